//! The driver's symbols as a program loads them, and a device with a context for one test.

#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use ftcache_cuda_emu::client::{Config, EmulatedDevice, Emulator};

macro_rules! driver {
    ($($name:ident($($argument:ty),*);)*) => {
        pub(crate) struct Driver {
            $(pub(crate) $name: extern "C" fn($($argument),*) -> i32,)*
        }

        impl Driver {
            fn load(emulator: Emulator) -> Self {
                $(
                    // SAFETY: the symbol is the driver's, with its type.
                    let symbol = unsafe { emulator.library().get(concat!(stringify!($name), "\0").as_bytes()) };
                    let symbol: Result<libloading::Symbol<'_, extern "C" fn($($argument),*) -> i32>, _> = symbol;
                    let $name = *symbol.expect(stringify!($name));
                )*
                Self { $($name,)* }
            }
        }
    };
}

driver! {
    cuInit(u32);
    cuDriverGetVersion(*mut i32);
    cuDeviceGetCount(*mut i32);
    cuDeviceGet(*mut i32, i32);
    cuDeviceGetName(*mut c_char, i32, i32);
    cuDeviceGetAttribute(*mut i32, i32, i32);
    cuDeviceTotalMem_v2(*mut usize, i32);
    cuDevicePrimaryCtxRetain(*mut u64, i32);
    cuDevicePrimaryCtxRelease_v2(i32);
    cuDevicePrimaryCtxGetState(i32, *mut u32, *mut i32);
    cuCtxCreate_v2(*mut u64, u32, i32);
    cuCtxDestroy_v2(u64);
    cuCtxGetCurrent(*mut u64);
    cuCtxSetCurrent(u64);
    cuCtxPushCurrent_v2(u64);
    cuCtxPopCurrent_v2(*mut u64);
    cuCtxGetDevice(*mut i32);
    cuCtxSynchronize();
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, u32);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, u32);
    cuPointerGetAttribute(*mut c_void, i32, u64);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, u64);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, u64);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, u64);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuMemcpy2DAsync_v2(*const c_void, u64);
    cuMemsetD8_v2(u64, u8, usize);
    cuMemsetD8Async(u64, u8, usize, u64);
    cuMemsetD2D8Async(u64, usize, u8, usize, usize, u64);
    cuMemcpyBatchAsync(
        *const u64, *const u64, *const usize, usize, *const c_void, *const usize, usize, *mut usize, u64
    );
    cuMemcpyBatchAsync_v2(*const u64, *const u64, *const usize, usize, *const c_void, *const usize, usize, u64);
    cuStreamCreate(*mut u64, u32);
    cuStreamCreateWithPriority(*mut u64, u32, i32);
    cuStreamDestroy_v2(u64);
    cuStreamSynchronize(u64);
    cuStreamQuery(u64);
    cuStreamWaitEvent(u64, u64, u32);
    cuStreamGetCtx(u64, *mut u64);
    cuStreamGetFlags(u64, *mut u32);
    cuStreamGetPriority(u64, *mut i32);
    cuStreamIsCapturing(u64, *mut i32);
    cuStreamBeginCapture_v2(u64, i32);
    cuStreamEndCapture(u64, *mut u64);
    cuThreadExchangeStreamCaptureMode(*mut i32);
    cuGraphInstantiateWithFlags(*mut u64, u64, u64);
    cuGraphLaunch(u64, u64);
    cuGraphExecDestroy(u64);
    cuGraphDestroy(u64);
    cuEventCreate(*mut u64, u32);
    cuEventDestroy_v2(u64);
    cuEventRecord(u64, u64);
    cuEventQuery(u64);
    cuEventSynchronize(u64);
    cuEventElapsedTime_v2(*mut f32, u64, u64);
    cuEventElapsedTime(*mut f32, u64, u64);
    cuStreamWaitValue32_v2(u64, u64, u32, u32);
    cuStreamWriteValue32_v2(u64, u64, u32, u32);
    cuLaunchHostFunc(u64, Option<extern "C" fn(*mut c_void)>, *mut c_void);
    cuModuleLoadData(*mut u64, *const c_void);
    cuModuleUnload(u64);
    cuModuleGetFunction(*mut u64, u64, *const c_char);
    cuLaunchKernel(u64, u32, u32, u32, u32, u32, u32, u32, u64, *const *const c_void, *const *const c_void);
    cuGetErrorName(i32, *mut *const c_char);
    cuGetErrorString(i32, *mut *const c_char);
}

pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let driver = Driver::load(Emulator::open());
        assert_eq!((driver.cuInit)(0), 0);
        driver
    })
}

/// A call that must succeed.
#[track_caller]
pub(crate) fn ok(code: i32) {
    assert_eq!(code, 0, "a call of the driver gave {code}");
}

/// A device with its primary context current, and shorthands.
pub(crate) struct Rig {
    pub(crate) device: EmulatedDevice,
    pub(crate) cu: &'static Driver,
    pub(crate) context: u64,
}

impl Rig {
    pub(crate) fn new(config: Config) -> Self {
        let cu = Emulator::open();
        let device = cu.device(config);
        let cu = driver();
        let mut context = 0;
        ok((cu.cuDevicePrimaryCtxRetain)(&mut context, device.ordinal()));
        ok((cu.cuCtxSetCurrent)(context));
        Self { device, cu, context }
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self::new(Config { seed, ..Config::default() })
    }

    #[track_caller]
    pub(crate) fn memory(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok((self.cu.cuMemAlloc_v2)(&mut address, bytes));
        address
    }

    /// Pinned memory with these bytes; it lives as long as the context.
    #[track_caller]
    pub(crate) fn pinned(&self, bytes: &[u8]) -> *mut c_void {
        let mut address = std::ptr::null_mut();
        ok((self.cu.cuMemHostAlloc)(&mut address, bytes.len(), 0));
        // SAFETY: so many bytes were just allocated.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), bytes.len()) };
        address
    }

    /// What lies in host memory.
    pub(crate) fn host_bytes(&self, address: *const c_void, bytes: usize) -> Vec<u8> {
        // SAFETY: the tests give memory that they hold.
        unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec()
    }

    /// A stream that has nothing to do with the legacy one.
    #[track_caller]
    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0;
        ok((self.cu.cuStreamCreate)(&mut stream, 1));
        stream
    }

    #[track_caller]
    pub(crate) fn blocking_stream(&self) -> u64 {
        let mut stream = 0;
        ok((self.cu.cuStreamCreate)(&mut stream, 0));
        stream
    }

    #[track_caller]
    pub(crate) fn event(&self) -> u64 {
        let mut event = 0;
        ok((self.cu.cuEventCreate)(&mut event, 2));
        event
    }

    #[track_caller]
    pub(crate) fn up(&self, target: u64, source: *const c_void, bytes: usize, stream: u64) {
        ok((self.cu.cuMemcpyHtoDAsync_v2)(target, source, bytes, stream));
    }

    #[track_caller]
    pub(crate) fn across(&self, target: u64, source: u64, bytes: usize, stream: u64) {
        ok((self.cu.cuMemcpyDtoDAsync_v2)(target, source, bytes, stream));
    }

    #[track_caller]
    pub(crate) fn fill(&self, target: u64, value: u8, bytes: usize, stream: u64) {
        ok((self.cu.cuMemsetD8Async)(target, value, bytes, stream));
    }

    #[track_caller]
    pub(crate) fn record(&self, event: u64, stream: u64) {
        ok((self.cu.cuEventRecord)(event, stream));
    }

    #[track_caller]
    pub(crate) fn wait(&self, stream: u64, event: u64) {
        ok((self.cu.cuStreamWaitEvent)(stream, event, 0));
    }

    /// One stream after another, by an event of its own.
    #[track_caller]
    pub(crate) fn order(&self, before: u64, after: u64) {
        let event = self.event();
        self.record(event, before);
        self.wait(after, event);
        ok((self.cu.cuEventDestroy_v2)(event));
    }

    #[track_caller]
    pub(crate) fn sync(&self, stream: u64) {
        ok((self.cu.cuStreamSynchronize)(stream));
    }

    /// A kernel of those that test what runs kernels.
    #[track_caller]
    pub(crate) fn kernel(&self, name: &str) -> u64 {
        let image = CString::new(format!(".version 8.0\n.target sm_80\n.visible .entry {name}(\n")).unwrap();
        let name = CString::new(name).unwrap();
        let (mut module, mut function) = (0, 0);
        ok((self.cu.cuModuleLoadData)(&mut module, image.as_ptr().cast()));
        ok((self.cu.cuModuleGetFunction)(&mut function, module, name.as_ptr()));
        function
    }

    /// Launches a kernel; `shape` is blocks, threads and bytes of shared memory.
    pub(crate) fn run<T: ?Sized>(&self, kernel: u64, shape: (u32, u32, u32), stream: u64, args: &T) -> i32 {
        let params = [std::ptr::from_ref(args).cast::<c_void>()];
        let ((blocks, threads, bytes), none) = (shape, std::ptr::null());
        (self.cu.cuLaunchKernel)(kernel, blocks, 1, 1, threads, 1, 1, bytes, stream, params.as_ptr(), none)
    }

    /// Words of device memory as they lie there now.
    #[track_caller]
    pub(crate) fn words(&self, address: u64, count: usize) -> Vec<u32> {
        let bytes = self.device.peek(address, 4 * count);
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Device memory with these words.
    #[track_caller]
    pub(crate) fn memory_of(&self, words: &[u32]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = self.memory(bytes.len());
        ok((self.cu.cuMemcpyHtoD_v2)(memory, bytes.as_ptr().cast(), bytes.len()));
        ok((self.cu.cuCtxSynchronize)());
        memory
    }

    /// Exactly one report of the kind, with these words in it.
    #[track_caller]
    pub(crate) fn one_violation(&self, words: &str) {
        let found = self.device.violations();
        assert!(found.len() == 1 && found[0].contains(words), "want one with {words:?}: {found:?}");
    }
}
