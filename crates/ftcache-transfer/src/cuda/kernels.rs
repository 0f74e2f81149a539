//! The kernels: which of their images a device gets, and launches.
//!
//! The images are built from `kernels/` by `cargo xtask build-kernels` and lie in this library, so that nothing of CUDA
//! is needed to build it: machine code for some architectures, and PTX, which the driver compiles for any later one.
//! Each holds all kernels.
//!
//! *Unsafe*, relying on the driver doing what its manual says, and on what [`Device::launch`](crate::Device::launch)
//! asks of its callers.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;

use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};

use super::driver::{Calls, Version};
use super::{CudaDevice, enter, handle_of};
use crate::{DeviceError, Kernel, Launch, Stream};

/// The least compute capability that PTX here is for.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// Codes by which a driver says that this image is not for it, or not for its device: another may be. The manual's
/// names stand beside them.
const REFUSALS: [c_int; 10] = [
    200, // INVALID_IMAGE
    209, // NO_BINARY_FOR_GPU
    218, // INVALID_PTX
    221, // JIT_COMPILER_NOT_FOUND
    222, // UNSUPPORTED_PTX_VERSION
    223, // JIT_COMPILATION_DISABLED
    300, // INVALID_SOURCE
    302, // SHARED_OBJECT_SYMBOL_NOT_FOUND
    303, // SHARED_OBJECT_INIT_FAILED
    801, // NOT_SUPPORTED
];

/// Bytes where a driver may read tables of numbers in place.
#[repr(C, align(16))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// A file of `images/`.
macro_rules! image {
    ($name:literal) => {{
        const BYTES: usize = include_bytes!(concat!("images/", $name)).len();
        static IMAGE: Aligned<BYTES> = Aligned(*include_bytes!(concat!("images/", $name)));
        &IMAGE.0
    }};
}

/// Machine code. It runs on devices of its major capability and of this minor one or a higher one.
struct Machine {
    name: &'static str,
    capability: (i32, i32),
    bytes: &'static [u8],
}

static MACHINES: [Machine; 6] = [
    Machine { name: "sm_80", capability: (8, 0), bytes: image!("sm_80.cubin") },
    Machine { name: "sm_86", capability: (8, 6), bytes: image!("sm_86.cubin") },
    Machine { name: "sm_89", capability: (8, 9), bytes: image!("sm_89.cubin") },
    Machine { name: "sm_90", capability: (9, 0), bytes: image!("sm_90.cubin") },
    Machine { name: "sm_100", capability: (10, 0), bytes: image!("sm_100.cubin") },
    Machine { name: "sm_120", capability: (12, 0), bytes: image!("sm_120.cubin") },
];

static PTX: &str = include_str!("images/ftcache.ptx");

static MANIFEST: &str = include_str!("images/manifest.txt");

/// The CUDA version of the compiler, `13.0`: drivers of it and of later ones take what it makes.
fn cuda_version() -> &'static str {
    let version = MANIFEST.lines().find_map(|line| line.strip_prefix("nvcc ")).unwrap_or_default();
    // The third number changes nothing in what drivers take.
    version.rsplit_once('.').map_or(version, |(version, _)| version)
}

/// The machine code for a device: of those it runs, the one that knows most of it.
fn pick((major, minor): (i32, i32)) -> Option<&'static Machine> {
    let runs = |machine: &&Machine| machine.capability.0 == major && machine.capability.1 <= minor;
    MACHINES.iter().filter(runs).max_by_key(|machine| machine.capability.1)
}

/// What a device runs kernels from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelImage {
    /// Machine code.
    Machine {
        /// For this architecture.
        architecture: &'static str,
    },
    /// PTX, which the driver has compiled.
    Ptx {
        /// Why it is no machine code.
        reason: String,
    },
}

impl fmt::Display for KernelImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine { architecture } => write!(f, "machine code for {architecture}"),
            Self::Ptx { reason } => write!(f, "PTX, compiled by the driver, since {reason}"),
        }
    }
}

type Load = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> c_int;
type Unload = unsafe extern "C" fn(CUmodule) -> c_int;
type Function = unsafe extern "C" fn(*mut CUfunction, CUmodule, *const c_char) -> c_int;
type LaunchCall = unsafe extern "C" fn(
    CUfunction,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// The driver's calls that kernels need.
#[derive(Debug, Clone, Copy)]
struct KernelCalls {
    load: Load,
    unload: Unload,
    function: Function,
    launch: LaunchCall,
}

impl KernelCalls {
    /// Those of a driver, or the first that it lacks.
    fn new(calls: &Calls) -> Result<Self, &'static str> {
        Ok(Self {
            load: calls.module_load.ok_or("cuModuleLoadData")?,
            unload: calls.module_unload.ok_or("cuModuleUnload")?,
            function: calls.module_function.ok_or("cuModuleGetFunction")?,
            launch: calls.launch.ok_or("cuLaunchKernel")?,
        })
    }

    /// Loads an image, or returns the driver's code.
    ///
    /// # Safety
    ///
    /// The bytes are an image as the driver's manual wants it: machine code in one piece, or PTX ended by zero. A
    /// context is current.
    unsafe fn load(&self, image: &[u8]) -> Result<CUmodule, c_int> {
        let mut module = std::ptr::null_mut();
        // SAFETY: our caller's promise; the driver writes one handle, and reads the image before it returns.
        match unsafe { (self.load)(&raw mut module, image.as_ptr().cast()) } {
            0 => Ok(module),
            code => Err(code),
        }
    }
}

/// Kernels that are loaded.
#[derive(Debug)]
pub(super) struct Kernels {
    calls: KernelCalls,
    module: CUmodule,
    /// By the kernel's number.
    functions: [CUfunction; Kernel::ALL.len()],
    image: KernelImage,
}

impl Kernels {
    pub(super) fn image(&self) -> &KernelImage {
        &self.image
    }
}

impl CudaDevice {
    fn no_kernels(&self, reason: String) -> DeviceError {
        let (major, minor) = self.facts.capability;
        let device = format!("{} (compute capability {major}.{minor})", self.facts.name);
        DeviceError::NoKernels { device, reason }
    }

    /// See [`Device::prepare_kernels`](crate::Device::prepare_kernels). A context is current.
    pub(super) fn load_kernels(&self, calls: &Calls) -> Result<Kernels, DeviceError> {
        if self.facts.capability < LEAST_CAPABILITY {
            let (major, minor) = LEAST_CAPABILITY;
            return Err(self.no_kernels(format!("{major}.{minor} is needed")));
        }
        let missing = |symbol| self.no_kernels(format!("the CUDA driver has no {symbol}"));
        let calls = KernelCalls::new(calls).map_err(missing)?;
        let (module, image) = self.load_image(&calls)?;
        match self.find_functions(&calls, module) {
            Ok(functions) => Ok(Kernels { calls, module, functions, image }),
            Err(error) => {
                // SAFETY: the module was loaded above, and nothing of it was launched.
                unsafe { (calls.unload)(module) };
                Err(error)
            }
        }
    }

    /// Loads machine code for the device, or PTX if there is none or if the driver will not have it.
    fn load_image(&self, calls: &KernelCalls) -> Result<(CUmodule, KernelImage), DeviceError> {
        let (major, minor) = self.facts.capability;
        let failed = |bytes: usize, code| {
            let reason = self.driver.reason(code);
            DeviceError::Driver { operation: "kernels", bytes: bytes as u64, code, reason }
        };
        let mut refusal = None;
        if let Some(Machine { name, bytes, .. }) = pick(self.facts.capability) {
            // SAFETY: the image is a file of the compiler's, whole. A context is current.
            match unsafe { calls.load(bytes) } {
                Ok(module) => return Ok((module, KernelImage::Machine { architecture: name })),
                Err(code) if REFUSALS.contains(&code) => {
                    refusal = Some(format!("{name}: {}", self.driver.reason(code)));
                }
                Err(code) => return Err(failed(bytes.len(), code)),
            }
        }
        let mut text = PTX.as_bytes().to_vec();
        text.push(0);
        // SAFETY: as above, and ended by zero.
        match unsafe { calls.load(&text) } {
            Ok(module) => {
                let reason = match refusal {
                    Some(refusal) => format!("it refused {refusal}"),
                    None => format!("there is no machine code for compute capability {major}.{minor}"),
                };
                Ok((module, KernelImage::Ptx { reason }))
            }
            Err(code) if REFUSALS.contains(&code) => {
                let refusals = refusal.into_iter().chain([format!("PTX: {}", self.driver.reason(code))]);
                Err(self.no_kernels(format!(
                    "the driver is of CUDA {}, and one of CUDA {} is needed; {}",
                    Version(self.driver.version()),
                    cuda_version(),
                    refusals.collect::<Vec<_>>().join("; ")
                )))
            }
            Err(code) => Err(failed(text.len(), code)),
        }
    }

    /// Where the driver has each kernel. That also loads it: a driver that loads kernels late does so here, by its
    /// manual, and not at a launch, which might be in a capture.
    fn find_functions(
        &self,
        calls: &KernelCalls,
        module: CUmodule,
    ) -> Result<[CUfunction; Kernel::ALL.len()], DeviceError> {
        let mut functions = [std::ptr::null_mut(); Kernel::ALL.len()];
        for (kernel, function) in Kernel::ALL.into_iter().zip(&mut functions) {
            let symbol = CString::new(kernel.symbol()).expect("a symbol has no zeros");
            // SAFETY: the module is loaded, the name is ended by zero, and the driver writes one handle.
            let code = unsafe { (calls.function)(function, module, symbol.as_ptr()) };
            self.done(kernel.operation(), 0, code)?;
        }
        Ok(functions)
    }

    /// See [`Device::launch`](crate::Device::launch). A context is current.
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn launch_kernel(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let Launch { kernel, block_count, thread_count, shared_bytes, arguments } = *launch;
        let (operation, bytes) = (kernel.operation(), arguments.len() as u64);
        let Some(Kernels { calls, functions, .. }) = &self.kernels else {
            let reason = "kernels are not prepared".to_owned();
            return Err(DeviceError::Failed { operation, bytes: 0, reason });
        };
        if arguments.len() != kernel.argument_bytes() {
            let reason = format!("its arguments have {} bytes", kernel.argument_bytes());
            return Err(DeviceError::Failed { operation, bytes, reason });
        }
        // By the driver's manual, arguments are copied before the call returns, as many bytes as the kernel has.
        let mut arguments = [arguments.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the function is of a module that is loaded; its one argument has the bytes it is to have, and is
        // of its type, by our caller's promise, as is all that it names.
        let code = unsafe {
            (calls.launch)(
                functions[kernel as usize],
                block_count,
                1,
                1,
                thread_count,
                1,
                1,
                shared_bytes,
                handle_of(stream),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.done(operation, 0, code)
    }

    /// Unloads what was loaded, once nothing of it runs any more.
    pub(super) fn unload_kernels(&mut self) {
        let Some(kernels) = self.kernels.take() else { return };
        if let Ok(_entered) = enter(&self.driver, self.context) {
            // SAFETY: a context is current.
            unsafe { (self.driver.calls.context_synchronize)() };
            // SAFETY: the module is loaded, and is used no more: nothing is enqueued, and nobody has its functions.
            unsafe { (kernels.calls.unload)(kernels.module) };
        }
    }

    /// Where kernels find host memory, all of which is known to be pinned. A context is current.
    pub(super) fn mapped_address(&self, calls: &Calls, base: u64, bytes: u64) -> Result<u64, DeviceError> {
        let operation = "kernel address";
        let look_up = |at: u64| {
            let mut address = 0;
            // SAFETY: the driver looks the address up, and writes one number.
            let code = unsafe { (calls.host_device_pointer)(&raw mut address, at as *mut c_void, 0) };
            self.done(operation, bytes, code).map(|()| address)
        };
        let first = look_up(base)?;
        let check = |at: u64| match look_up(at)?.wrapping_sub(first) {
            apart if apart == at - base => Ok(()),
            apart => {
                let wanted = at - base;
                let reason = format!("{at:#x} is {wanted} bytes from {base:#x} for the host and {apart} for kernels");
                Err(DeviceError::Failed { operation, bytes, reason })
            }
        };
        // A registration lies in one piece, so it is enough to look where each begins, and at the last byte.
        let Some(last) = bytes.checked_sub(1).map(|bytes| base + bytes) else { return Ok(first) };
        let mut at = base;
        while let Some(left) = self.ranges.left(at).filter(|&left| left <= last - at) {
            at += left;
            check(at)?;
        }
        check(last).map(|()| first)
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelImage, MACHINES, MANIFEST, PTX, cuda_version, pick};
    use crate::Kernel;

    /// Little-endian numbers of an image, by where they stand.
    struct Numbers<'a>(&'a [u8]);

    impl Numbers<'_> {
        fn at<const BYTES: usize>(&self, at: usize) -> usize {
            self.0[at..][..BYTES].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
        }
    }

    /// A text ended by zero.
    fn text(image: &[u8], at: usize) -> &str {
        let end = image[at..].iter().position(|&byte| byte == 0).unwrap();
        std::str::from_utf8(&image[at..][..end]).unwrap()
    }

    /// The functions that a 64-bit ELF file defines for all to see.
    fn functions(image: &[u8]) -> Vec<&str> {
        const SYMBOL_TABLE: usize = 2;
        const SYMBOL_BYTES: usize = 24;
        const GLOBAL_FUNCTION: usize = 1 << 4 | 2;
        let elf = Numbers(image);
        assert_eq!(image[..6], *b"\x7FELF\x02\x01", "64 bits, little-endian");
        let (sections, section_bytes, section_count) = (elf.at::<8>(0x28), elf.at::<2>(0x3A), elf.at::<2>(0x3C));
        // Where a section lies in the file, and how many bytes it has.
        let section = |index: usize| sections + index * section_bytes;
        let range = |index: usize| (elf.at::<8>(section(index) + 0x18), elf.at::<8>(section(index) + 0x20));
        let mut names = Vec::new();
        for index in (0..section_count).filter(|&index| elf.at::<4>(section(index) + 4) == SYMBOL_TABLE) {
            let (names_at, _) = range(elf.at::<4>(section(index) + 0x28));
            let (first, bytes) = range(index);
            for symbol in (first..first + bytes).step_by(SYMBOL_BYTES) {
                if elf.at::<1>(symbol + 4) == GLOBAL_FUNCTION {
                    assert_ne!(elf.at::<2>(symbol + 6), 0, "defined here");
                    names.push(text(image, names_at + elf.at::<4>(symbol)));
                }
            }
        }
        names
    }

    /// Every image is of the same sources, and its kernels are those of the host.
    #[test]
    fn every_image_has_each_kernel_once_and_nothing_else() {
        let mut wanted = Kernel::ALL.map(Kernel::symbol);
        wanted.sort_unstable();
        let check = |image: &str, mut names: Vec<&str>| {
            names.sort_unstable();
            assert_eq!(names, wanted, "{image}");
        };
        for machine in &MACHINES {
            check(machine.name, functions(machine.bytes));
        }
        let entries = PTX.lines().filter_map(|line| line.split_once(".entry "));
        check("PTX", entries.map(|(_, entry)| entry.trim_end().trim_end_matches('(')).collect());
    }

    #[test]
    fn every_kernel_takes_as_many_bytes_as_it_is_given() {
        for kernel in Kernel::ALL {
            let start = format!(" {}_param_0[", kernel.symbol());
            let (_, rest) = PTX.split_once(&start).unwrap();
            let (bytes, _) = rest.split_once(']').unwrap();
            assert_eq!(bytes.parse(), Ok(kernel.argument_bytes()), "{kernel:?}");
        }
    }

    #[test]
    fn images_lie_where_numbers_can_be_read_in_place() {
        assert!(MACHINES.iter().all(|machine| machine.bytes.as_ptr().addr().is_multiple_of(16)));
    }

    #[test]
    fn a_device_gets_the_machine_code_of_its_major_capability_that_is_nearest_below() {
        let names =
            [(7, 5), (8, 0), (8, 5), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]
                .map(|capability| pick(capability).map_or("none", |machine| machine.name));
        let wanted = [
            "none", "sm_80", "sm_80", "sm_86", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100", "none", "sm_120",
            "sm_120",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn the_manifest_says_what_is_picked_from_and_a_version_of_two_numbers() {
        let (major, minor) = cuda_version().split_once('.').unwrap();
        assert!(major.parse::<u32>().unwrap() >= 13 && minor.parse::<u32>().is_ok());
        let names: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
        let line = format!("architectures {} compute_80", names.join(" "));
        assert!(MANIFEST.lines().any(|other| other == line), "{line}");
    }

    #[test]
    fn what_was_chosen_is_said_in_one_line() {
        let machine = KernelImage::Machine { architecture: "sm_90" };
        assert_eq!(machine.to_string(), "machine code for sm_90");
        let ptx = KernelImage::Ptx { reason: "it refused sm_90: code 7".to_owned() };
        assert_eq!(ptx.to_string(), "PTX, compiled by the driver, since it refused sm_90: code 7");
    }
}
