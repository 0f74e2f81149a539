//! The result codes of the driver API that this driver gives, with their names and texts.
//!
//! Numbers are cudarc's, which took them from `cuda.h`.

use std::ffi::CStr;

use cudarc::driver::sys::CUresult;

/// What a call gives: nothing, or a `CUresult` other than success.
pub(crate) type Answer<T = ()> = Result<T, i32>;

macro_rules! codes {
    ($($short:ident = $name:ident: $text:literal;)*) => {
        $(pub(crate) const $short: i32 = CUresult::$name as i32;)*

        /// The name of a code and a sentence about it, if the code is one of the driver's.
        pub(crate) fn describe(code: i32) -> Option<(&'static CStr, &'static CStr)> {
            const NAMES: &[(i32, &str, &str)] =
                &[$(($short, concat!(stringify!($name), "\0"), concat!($text, "\0"))),*];
            let &(_, name, text) = NAMES.iter().find(|(known, ..)| *known == code)?;
            let c = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
            Some((c(name)?, c(text)?))
        }
    };
}

codes! {
    SUCCESS = CUDA_SUCCESS: "no error";
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE: "invalid argument";
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY: "out of memory";
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED: "initialization error";
    INVALID_IMAGE = CUDA_ERROR_INVALID_IMAGE: "device kernel image is invalid";
    NO_BINARY_FOR_GPU = CUDA_ERROR_NO_BINARY_FOR_GPU: "no kernel image is available for execution on the device";
    UNSUPPORTED_PTX_VERSION = CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        "the provided PTX was compiled with an unsupported toolchain";
    NO_DEVICE = CUDA_ERROR_NO_DEVICE: "no CUDA-capable device is detected";
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE: "invalid device ordinal";
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT: "invalid device context";
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE: "invalid resource handle";
    ILLEGAL_STATE = CUDA_ERROR_ILLEGAL_STATE: "the operation cannot be performed in the present state";
    NOT_FOUND = CUDA_ERROR_NOT_FOUND: "named symbol not found";
    NOT_READY = CUDA_ERROR_NOT_READY: "device not ready";
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS: "an illegal memory access was encountered";
    LAUNCH_TIMEOUT = CUDA_ERROR_LAUNCH_TIMEOUT: "the launch timed out and was terminated";
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED: "context is destroyed";
    ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        "part or all of the requested memory range is already mapped";
    NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED: "unspecified launch failure";
    NOT_PERMITTED = CUDA_ERROR_NOT_PERMITTED: "operation not permitted";
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED: "operation not supported";
    CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
        "operation failed due to a previous error during capture";
    CAPTURE_MERGE = CUDA_ERROR_STREAM_CAPTURE_MERGE:
        "operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: "capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
        "capturing stream has unjoined work";
    CAPTURE_ISOLATION = CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
        "dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = CUDA_ERROR_CAPTURED_EVENT:
        "operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = CUDA_ERROR_UNKNOWN: "unknown error";
}
