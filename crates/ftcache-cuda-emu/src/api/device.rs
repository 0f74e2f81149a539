//! Initialisation, devices, and the names of errors.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::codes::{self, Answer, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, SUCCESS};
use crate::session::{on_device, put};
use crate::worlds;

fn code(answer: Answer) -> c_int {
    answer.err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return INVALID_VALUE;
    }
    worlds::initialize();
    if worlds::count() == 0 { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    code(put(version, 13000))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    match worlds::is_initialized() {
        true => code(put(count, worlds::count())),
        false => NOT_INITIALIZED,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    on_device("cuDeviceGet", ordinal, |_| put(device, ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> c_int {
    on_device("cuDeviceGetName", device, |_| {
        let length = usize::try_from(length).ok().filter(|length| *length > 0).ok_or(INVALID_VALUE)?;
        let text = format!("ftcache emulated device {device}");
        let shown = text.bytes().take(length - 1).chain([0]);
        shown.enumerate().try_for_each(|(at, byte)| match name.is_null() {
            true => Err(INVALID_VALUE),
            false => put(name.wrapping_add(at), byte as c_char),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> c_int {
    on_device("cuDeviceTotalMem_v2", device, |session| put(bytes, session.memory.limit_bytes as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    on_device("cuDeviceGetAttribute", device, |session| put(value, session.attribute(attribute)))
}

/// What the device says of itself where its settings do not say otherwise: an H100's figures where they matter.
pub(crate) fn default_attribute(attribute: i32) -> i32 {
    const VALUES: &[(Attribute, i32)] = &[
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65_535),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49_152),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
        (Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    ];
    VALUES.iter().find(|(known, _)| *known as i32 == attribute).map_or(0, |(_, value)| *value)
}

impl crate::state::State {
    pub(crate) fn attribute(&self, attribute: i32) -> i32 {
        let set = self.settings.attributes.iter().rev().find(|(known, _)| *known == attribute);
        set.map_or_else(|| default_attribute(attribute), |(_, value)| *value)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int {
    let known = codes::describe(error);
    let answer = put(text, known.map_or(std::ptr::null(), |(name, _)| name.as_ptr()));
    code(answer.and(known.map(|_| ()).ok_or(INVALID_VALUE)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    let known = codes::describe(error);
    let answer = put(text, known.map_or(std::ptr::null(), |(_, words)| words.as_ptr()));
    code(answer.and(known.map(|_| ()).ok_or(INVALID_VALUE)))
}
