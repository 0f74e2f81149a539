//! Modules, their kernels, and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND};
use crate::images::{Image, Target};
use crate::kernels;
use crate::launches::Launch;
use crate::operation::Work;
use crate::session::{Session, in_context, put};
use crate::state::{Function, Module};
use crate::worlds::HandleKind;

/// What a block may have of shared memory without asking for more, by the programming guide.
const SHARED_BYTES_MAX: u32 = 48 * 1024;
const THREADS_MAX: u32 = 1024;
/// By the programming guide.
const BLOCKS_MAX: u32 = i32::MAX as u32;

impl Session<'_> {
    fn target(&self) -> Target {
        Target {
            major: self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as i32),
            minor: self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as i32),
            driver_version: self.settings.driver_version,
        }
    }

    fn module(&mut self, handle: u64) -> Result<(), i32> {
        let context = self.context;
        match self.modules.get(&handle).is_some_and(|module| module.context == context) {
            true => Ok(()),
            false => Err(self.refuse(INVALID_HANDLE, &format!("{handle:#x} is no module of this context"))),
        }
    }

    /// Whether a launch of this module is still to be done.
    fn is_queued(&self, module: u64) -> bool {
        let mut queued = self.pending.iter().flat_map(|&timeline| &self.timelines[timeline].queue);
        queued.any(|operation| matches!(&operation.task.work, Work::Launch(launch) if launch.module == module))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: *mut u64, image: *const c_void) -> c_int {
    in_context("cuModuleLoadData", |session| {
        session.unsafe_in_capture()?;
        if module.is_null() || image.is_null() {
            return Err(session.refuse(INVALID_VALUE, "no image or nowhere to say its handle"));
        }
        // SAFETY: by the manual the caller gives a complete image.
        let image = unsafe { Image::read(image.cast(), session.target()) }?;
        let (handle, context) = (session.new_handle(HandleKind::Module), session.context);
        session.modules.insert(handle, Module { context, image });
        put(module, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: u64) -> c_int {
    in_context("cuModuleUnload", |session| {
        session.unsafe_in_capture()?;
        session.module(module)?;
        if session.is_queued(module) {
            return Err(session.refuse(INVALID_VALUE, "a launch of the module has not been waited for"));
        }
        session.modules.remove(&module);
        session.functions.retain(|_, function| function.module != module);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> c_int {
    in_context("cuModuleGetFunction", |session| {
        session.module(module)?;
        if function.is_null() || name.is_null() {
            return Err(session.refuse(INVALID_VALUE, "no name or nowhere to say its handle"));
        }
        // SAFETY: by the manual a text that ends in a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        let in_image = session.modules[&module].image.has(name);
        let kernel = kernels::kernel(name).filter(|_| in_image).ok_or(NOT_FOUND)?;
        let handle = session.new_handle(HandleKind::Function);
        session.functions.insert(handle, Function { module, kernel });
        put(function, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: u64,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: u64,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> c_int {
    in_context("cuLaunchKernel", |session| {
        let timeline = session.stream(stream)?;
        let Some(&Function { module, kernel }) = session.functions.get(&function) else {
            return Err(session.refuse(INVALID_HANDLE, &format!("{function:#x} is no kernel of this device")));
        };
        session.module(module)?;
        let (grid, block) = ((blocks, blocks_y, blocks_z), (threads, threads_y, threads_z));
        let one = (blocks_y, blocks_z, threads_y, threads_z) == (1, 1, 1, 1);
        let whole_warps = (1..=THREADS_MAX).contains(&threads) && threads.is_multiple_of(32);
        if !one || !(1..=BLOCKS_MAX).contains(&blocks) || !whole_warps || shared_bytes > SHARED_BYTES_MAX {
            let what = format!("{}: a grid of {grid:?}, blocks of {block:?}, {shared_bytes} bytes", kernel.name);
            return Err(session.refuse(INVALID_VALUE, &what));
        }
        if params.is_null() || !extra.is_null() {
            return Err(session.refuse(INVALID_VALUE, "arguments are given as a list of one pointer"));
        }
        // SAFETY: by the manual a pointer for each parameter, of which every kernel here has one.
        let given = unsafe { params.read() };
        if given.is_null() {
            return Err(session.refuse(INVALID_VALUE, "the argument is null"));
        }
        let mut args = vec![0_u64; (kernel.args_bytes as usize).div_ceil(8)].into_boxed_slice();
        let target = args.as_mut_ptr().cast::<u8>();
        // SAFETY: by the manual the argument is as long as the kernel's parameter, and so is the target.
        unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), target, kernel.args_bytes as usize) };
        let launch = Launch { module, kernel, blocks, threads, shared_bytes, args };
        let context = session.context;
        let task = session.launch_task(&Arc::new(launch), context)?;
        session.submit(timeline, task).map(|_| ())
    })
}
