//! What an engine does beside the cache, by the driver's own calls: memory, pinned memory, streams, events, graphs.
//!
//! *Unsafe*, relying on one promise: pinned memory is touched between its allocation and its end, inside its bytes.

#![allow(non_snake_case, reason = "the names are the driver's")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ftcache::{HostWord, Stream};
use ftcache_cuda_emu::client::{EmulatedDevice, Emulator};

use crate::cuda_world::CudaWorld;

macro_rules! raw {
    ($($name:ident($($argument:ty),*);)*) => {
        pub(crate) struct Raw {
            $(pub(crate) $name: extern "C" fn($($argument),*) -> i32,)*
        }

        impl Raw {
            fn load() -> Self {
                let library = Emulator::open().library();
                $(
                    // SAFETY: the symbol is the driver's, with its type by the manual; handles are numbers of one word.
                    let symbol = unsafe {
                        library.get::<extern "C" fn($($argument),*) -> i32>(stringify!($name).as_bytes())
                    };
                    let $name = *symbol.expect(stringify!($name));
                )*
                Self { $($name,)* }
            }
        }
    };
}

raw! {
    cuDevicePrimaryCtxRetain(*mut u64, i32);
    cuDevicePrimaryCtxRelease_v2(i32);
    cuCtxPushCurrent_v2(u64);
    cuCtxPopCurrent_v2(*mut u64);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, u64);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, u64);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, u64);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuMemsetD8Async(u64, u8, usize, u64);
    cuStreamCreate(*mut u64, u32);
    cuStreamDestroy_v2(u64);
    cuStreamSynchronize(u64);
    cuStreamBeginCapture_v2(u64, i32);
    cuStreamEndCapture(u64, *mut u64);
    cuStreamIsCapturing(u64, *mut i32);
    cuStreamWaitEvent(u64, u64, u32);
    cuGraphInstantiateWithFlags(*mut u64, u64, u64);
    cuGraphLaunch(u64, u64);
    cuGraphDestroy(u64);
    cuGraphExecDestroy(u64);
    cuEventCreate(*mut u64, u32);
    cuEventDestroy_v2(u64);
    cuEventRecord(u64, u64);
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(code: i32) {
    assert_eq!(code, 0, "a call of the driver gave {code}");
}

/// Calls on the emulated driver.
pub(crate) fn raw() -> &'static Raw {
    static RAW: OnceLock<Raw> = OnceLock::new();
    RAW.get_or_init(Raw::load)
}

/// Device memory of the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// Pinned host memory of the engine's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pinned {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: an address, which any thread may have; those that use it say what they touch there.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn base(&self) -> *const u8 {
        self.base
    }

    /// Its first word, as a gather waits for it.
    pub(crate) fn word(&self, value: u32) -> HostWord {
        assert!(self.bytes >= 4);
        // SAFETY: pinned memory of the driver's is aligned, and stays until the cache is gone.
        unsafe { HostWord::from_raw(self.base.cast(), value) }
    }

    /// Sets its first word.
    pub(crate) fn raise(&self, value: u32) {
        assert!(self.bytes >= 4);
        // SAFETY: pinned memory of the driver's is aligned, and this word of it is touched as a word alone.
        unsafe { AtomicU32::from_ptr(self.base.cast()) }.store(value, Ordering::Release);
    }

    /// Writes it behind the emulator's back.
    ///
    /// # Safety
    ///
    /// Nothing reads there meanwhile.
    pub(crate) unsafe fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: inside the pinned memory, and our caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, bytes.len()) };
    }
}

/// What is given back at the end.
enum Held {
    Memory(u64),
    Pinned(*mut u8),
    Stream(u64),
    Event(u64),
    Exec(u64),
}

/// The primary context of a world's device, and what the engine has in it. Calls here enter the context and leave it,
/// so that engines of several devices can be used in turn.
pub(crate) struct Engine {
    pub(crate) world: Arc<CudaWorld>,
    pub(crate) raw: &'static Raw,
    context: u64,
    held: RefCell<Vec<Held>>,
    /// The device failed, and takes nothing back any more.
    is_lost: Cell<bool>,
}

/// The engine's context is current.
pub(crate) struct Entered<'a>(&'a Engine);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = 0;
        let code = (self.0.raw.cuCtxPopCurrent_v2)(&mut popped);
        // A test that fails says why by itself.
        if !std::thread::panicking() {
            assert_eq!((code, popped), (0, self.0.context), "the context is where it was");
        }
    }
}

impl Engine {
    pub(crate) fn new(world: Arc<CudaWorld>) -> Self {
        let raw = raw();
        let mut context = 0;
        ok((raw.cuDevicePrimaryCtxRetain)(&mut context, world.ordinal));
        Self { world, raw, context, held: RefCell::default(), is_lost: Cell::new(false) }
    }

    pub(crate) fn emulated(&self) -> &EmulatedDevice {
        self.world.emulated.as_ref().expect("these tests are for the emulated driver")
    }

    #[must_use]
    pub(crate) fn enter(&self) -> Entered<'_> {
        ok((self.raw.cuCtxPushCurrent_v2)(self.context));
        Entered(self)
    }

    /// The device has failed: what is the engine's goes with its context.
    pub(crate) fn is_lost(&self) {
        self.is_lost.set(true);
    }

    fn hold(&self, held: Held) {
        self.held.borrow_mut().push(held);
    }

    /// Memory of noise.
    pub(crate) fn memory(&self, bytes: usize) -> Buffer {
        let _entered = self.enter();
        let mut address = 0;
        ok((self.raw.cuMemAlloc_v2)(&mut address, bytes));
        self.hold(Held::Memory(address));
        Buffer { address, bytes }
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Pinned {
        let _entered = self.enter();
        let mut base = std::ptr::null_mut();
        ok((self.raw.cuMemHostAlloc)(&mut base, bytes, 0));
        self.hold(Held::Pinned(base.cast()));
        Pinned { base: base.cast(), bytes }
    }

    /// A stream that is ordered with no other.
    pub(crate) fn stream(&self) -> Stream {
        let _entered = self.enter();
        let mut stream = 0;
        ok((self.raw.cuStreamCreate)(&mut stream, 1));
        self.hold(Held::Stream(stream));
        // SAFETY: the driver has just made it.
        unsafe { Stream::from_raw(stream) }
    }

    /// Ends a stream of `stream`'s before the rest.
    pub(crate) fn destroy(&self, stream: Stream) {
        let _entered = self.enter();
        self.held.borrow_mut().retain(|held| !matches!(held, Held::Stream(held) if *held == stream.raw()));
        ok((self.raw.cuStreamDestroy_v2)(stream.raw()));
    }

    pub(crate) fn event(&self) -> u64 {
        let _entered = self.enter();
        let mut event = 0;
        ok((self.raw.cuEventCreate)(&mut event, 2));
        self.hold(Held::Event(event));
        event
    }

    /// Writes pinned memory, as the host does at once.
    pub(crate) fn put(&self, pinned: Pinned, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= pinned.bytes);
        let target = pinned.base.wrapping_add(at);
        self.emulated().host_access(target, bytes.len(), true);
        // SAFETY: inside the pinned memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Reads pinned memory, as the host does at once.
    pub(crate) fn get(&self, pinned: Pinned, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= pinned.bytes);
        let source = pinned.base.wrapping_add(at);
        self.emulated().host_access(source, bytes, false);
        let mut read = vec![0; bytes];
        // SAFETY: inside the pinned memory.
        unsafe { std::ptr::copy_nonoverlapping(source, read.as_mut_ptr(), bytes) };
        read
    }

    /// Enqueues a copy to the device. The context is entered.
    pub(crate) fn upload(&self, stream: Stream, source: Pinned, from: usize, target: Buffer, to: usize, bytes: usize) {
        assert!(from + bytes <= source.bytes && to + bytes <= target.bytes);
        let (address, source) = (target.address + to as u64, source.base.wrapping_add(from));
        ok((self.raw.cuMemcpyHtoDAsync_v2)(address, source.cast(), bytes, stream.raw()));
    }

    /// Enqueues a copy from the device. The context is entered.
    pub(crate) fn download(
        &self,
        stream: Stream,
        source: Buffer,
        from: usize,
        target: Pinned,
        to: usize,
        bytes: usize,
    ) {
        assert!(from + bytes <= source.bytes && to + bytes <= target.bytes);
        let (address, target) = (source.address + from as u64, target.base.wrapping_add(to));
        ok((self.raw.cuMemcpyDtoHAsync_v2)(target.cast(), address, bytes, stream.raw()));
    }

    /// Device memory as it is now; everything that was enqueued is done.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let _entered = self.enter();
        let mut read = vec![0; bytes];
        if bytes > 0 {
            ok((self.raw.cuMemcpyDtoH_v2)(read.as_mut_ptr().cast(), address, bytes));
        }
        read
    }

    pub(crate) fn sync(&self, stream: Stream) {
        let _entered = self.enter();
        ok((self.raw.cuStreamSynchronize)(stream.raw()));
    }

    /// What `then` is given from now on comes behind what `first` was given until now.
    pub(crate) fn order(&self, first: Stream, then: Stream) {
        let event = self.event();
        let _entered = self.enter();
        ok((self.raw.cuEventRecord)(event, first.raw()));
        ok((self.raw.cuStreamWaitEvent)(then.raw(), event, 0));
    }

    /// Begins to capture a stream; other streams are not stopped by it.
    pub(crate) fn begin_capture(&self, stream: Stream) {
        const THREAD_LOCAL: i32 = 1;
        let _entered = self.enter();
        ok((self.raw.cuStreamBeginCapture_v2)(stream.raw(), THREAD_LOCAL));
    }

    /// Ends a capture. Returns a graph to launch.
    #[track_caller]
    pub(crate) fn end_capture(&self, stream: Stream) -> u64 {
        let _entered = self.enter();
        let (mut graph, mut exec) = (0, 0);
        ok((self.raw.cuStreamEndCapture)(stream.raw(), &mut graph));
        ok((self.raw.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        ok((self.raw.cuGraphDestroy)(graph));
        self.hold(Held::Exec(exec));
        exec
    }

    /// 0: not captured; 1: captured; 2: the capture is spoiled.
    pub(crate) fn capture_status(&self, stream: Stream) -> i32 {
        let _entered = self.enter();
        let mut status = -1;
        ok((self.raw.cuStreamIsCapturing)(stream.raw(), &mut status));
        status
    }

    #[track_caller]
    pub(crate) fn launch(&self, exec: u64, stream: Stream) {
        let _entered = self.enter();
        ok((self.raw.cuGraphLaunch)(exec, stream.raw()));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut codes = Vec::new();
        ok((self.raw.cuCtxPushCurrent_v2)(self.context));
        for held in self.held.borrow_mut().drain(..).rev() {
            codes.push(match held {
                Held::Memory(address) => (self.raw.cuMemFree_v2)(address),
                Held::Pinned(base) => (self.raw.cuMemFreeHost)(base.cast()),
                Held::Stream(stream) => (self.raw.cuStreamDestroy_v2)(stream),
                Held::Event(event) => (self.raw.cuEventDestroy_v2)(event),
                Held::Exec(exec) => (self.raw.cuGraphExecDestroy)(exec),
            });
        }
        let mut popped = 0;
        codes.push((self.raw.cuCtxPopCurrent_v2)(&mut popped));
        codes.push((self.raw.cuDevicePrimaryCtxRelease_v2)(self.world.ordinal));
        if !std::thread::panicking() && !self.is_lost.get() {
            assert!(codes.iter().all(|&code| code == 0), "what is the engine's is given back: {codes:?}");
        }
    }
}
