//! The driver's calls as an engine makes them beside the device, on the library that a world's device is of.

#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;
use std::sync::OnceLock;

use ftcache_cuda_emu::client::Emulator;
use libloading::Library;

use crate::cuda_world::CudaWorld;

macro_rules! raw {
    ($($name:ident($($argument:ty),*);)*) => {
        pub(crate) struct Raw {
            $(pub(crate) $name: extern "C" fn($($argument),*) -> i32,)*
        }

        impl Raw {
            fn load(library: &'static Library) -> Self {
                $(
                    // SAFETY: the symbol is the driver's, with its type by the manual; handles are numbers of one word.
                    let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    let $name: libloading::Symbol<'_, extern "C" fn($($argument),*) -> i32> =
                        symbol.expect(stringify!($name));
                    let $name = *$name;
                )*
                Self { $($name,)* }
            }
        }
    };
}

raw! {
    cuDevicePrimaryCtxRetain(*mut u64, i32);
    cuDevicePrimaryCtxRelease_v2(i32);
    cuCtxCreate_v2(*mut u64, u32, i32);
    cuCtxDestroy_v2(u64);
    cuCtxPushCurrent_v2(u64);
    cuCtxPopCurrent_v2(*mut u64);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, u32);
    cuMemHostUnregister(*mut c_void);
    cuMemsetD8Async(u64, u8, usize, u64);
    cuStreamCreate(*mut u64, u32);
    cuStreamDestroy_v2(u64);
    cuStreamSynchronize(u64);
    cuStreamBeginCapture_v2(u64, i32);
    cuStreamEndCapture(u64, *mut u64);
    cuGraphDestroy(u64);
    cuGraphInstantiateWithFlags(*mut u64, u64, u64);
    cuGraphLaunch(u64, u64);
    cuGraphExecDestroy(u64);
    cuEventCreate(*mut u64, u32);
    cuEventDestroy_v2(u64);
    cuEventRecord(u64, u64);
    cuStreamWaitEvent(u64, u64, u32);
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(code: i32) {
    assert_eq!(code, 0, "a call of the driver gave {code}");
}

/// Calls on the emulated driver.
pub(crate) fn emulated() -> &'static Raw {
    static RAW: OnceLock<Raw> = OnceLock::new();
    RAW.get_or_init(|| Raw::load(Emulator::open().library()))
}

/// Calls on the driver of a world.
pub(crate) fn of(world: &CudaWorld) -> &'static Raw {
    if world.emulated.is_some() {
        return emulated();
    }
    static RAW: OnceLock<Raw> = OnceLock::new();
    RAW.get_or_init(|| {
        // SAFETY: it goes by the driver's name on the system's own path, and the device has loaded it before.
        let library = unsafe { Library::new("libcuda.so.1") }.expect("there is a GPU, so there is a driver");
        Raw::load(Box::leak(Box::new(library)))
    })
}

/// The calling thread's contexts, the current one last. They stay as they are.
pub(crate) fn contexts(raw: &Raw) -> Vec<u64> {
    let mut stack = Vec::new();
    let mut context = 0;
    // The driver of the manual gives an error where no context is left, the emulated one too.
    while (raw.cuCtxPopCurrent_v2)(&mut context) == 0 && context != 0 {
        stack.push(context);
    }
    stack.reverse();
    for &context in &stack {
        // A fault that is in wait for this very call strikes once.
        if (raw.cuCtxPushCurrent_v2)(context) != 0 {
            ok((raw.cuCtxPushCurrent_v2)(context));
        }
    }
    stack
}

/// The primary context of a world's device, current to the calling thread for as long as this lives: an engine's.
pub(crate) struct Engine {
    pub(crate) raw: &'static Raw,
    pub(crate) context: u64,
    ordinal: i32,
}

impl Engine {
    pub(crate) fn new(world: &CudaWorld) -> Self {
        let raw = of(world);
        let mut context = 0;
        ok((raw.cuDevicePrimaryCtxRetain)(&mut context, world.ordinal));
        ok((raw.cuCtxPushCurrent_v2)(context));
        Self { raw, context, ordinal: world.ordinal }
    }

    pub(crate) fn memory(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok((self.raw.cuMemAlloc_v2)(&mut address, bytes));
        address
    }

    /// A stream: ordered with the default stream, or not.
    pub(crate) fn stream(&self, is_blocking: bool) -> u64 {
        let mut stream = 0;
        ok((self.raw.cuStreamCreate)(&mut stream, u32::from(!is_blocking)));
        stream
    }

    pub(crate) fn event(&self) -> u64 {
        let mut event = 0;
        ok((self.raw.cuEventCreate)(&mut event, 2));
        event
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut popped = 0;
        let code = (self.raw.cuCtxPopCurrent_v2)(&mut popped);
        let released = (self.raw.cuDevicePrimaryCtxRelease_v2)(self.ordinal);
        // A test that fails says why by itself.
        if !std::thread::panicking() {
            assert_eq!((code, popped, released), (0, self.context, 0), "the engine's context is where it was");
        }
    }
}
