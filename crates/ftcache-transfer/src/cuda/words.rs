//! Words in host memory that streams wait for and raise: by themselves where the device can, else on the driver's own
//! thread, which does one thing at a time.
//!
//! *Unsafe*, relying on one promise: a word stays in place until its stream has been synchronised
//! ([`Device::wait_for_host`](crate::Device::wait_for_host)).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use super::driver::Calls;
use super::{CudaDevice, handle_of};
use crate::{DeviceError, Stream};

/// The word is at the value or past it, counted around the end of 32 bits.
const WAIT_GEQ: u32 = 0;

/// A word and the value it is to have.
pub(super) struct WordTask {
    pub(super) word: *const AtomicU32,
    pub(super) value: u32,
}

extern "C" fn wait(task: *mut c_void) {
    // SAFETY: the box was leaked for this call alone.
    let task = unsafe { Box::from_raw(task.cast::<WordTask>()) };
    // SAFETY: the word stays in place until its stream has been synchronised (`Device::wait_for_host`).
    while (unsafe { (*task.word).load(Ordering::Acquire) }.wrapping_sub(task.value) as i32) < 0 {
        std::thread::yield_now();
    }
}

extern "C" fn raise(task: *mut c_void) {
    // SAFETY: the box was leaked for this call alone.
    let task = unsafe { Box::from_raw(task.cast::<WordTask>()) };
    // SAFETY: the word stays in place until its stream has been synchronised (`Device::tell_host`).
    unsafe { (*task.word).store(task.value, Ordering::Release) };
}

impl CudaDevice {
    /// The word as the device sees it.
    fn word_address(&self, calls: &Calls, word: *const AtomicU32) -> Result<CUdeviceptr, DeviceError> {
        let mut address = 0;
        // SAFETY: the driver looks the address up, and writes one number.
        let code = unsafe { (calls.host_device_pointer)(&raw mut address, word.cast_mut().cast(), 0) };
        self.done("word", 4, code).map(|()| address)
    }

    fn launch(
        &self,
        calls: &Calls,
        stream: Stream,
        function: extern "C" fn(*mut c_void),
        task: WordTask,
    ) -> Result<(), DeviceError> {
        let task = Box::into_raw(Box::new(task));
        // SAFETY: the function takes back the box that it is given, once.
        let code = unsafe { (calls.host_function)(handle_of(stream), Some(function), task.cast()) };
        if code != 0 {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(task) });
        }
        self.done("host function", 4, code)
    }

    /// See [`Device::wait_for_host`](crate::Device::wait_for_host).
    pub(super) fn wait_for_word(&self, calls: &Calls, stream: Stream, task: WordTask) -> Result<(), DeviceError> {
        let address = self.word_address(calls, task.word)?;
        match calls.stream_wait_value.filter(|_| self.facts.waits_for_words) {
            Some(wait) => {
                // SAFETY: the word is registered and stays in place, by our caller's promise.
                self.done("word", 4, unsafe { wait(handle_of(stream), address, task.value, WAIT_GEQ) })
            }
            None => self.launch(calls, stream, wait, task),
        }
    }

    /// See [`Device::tell_host`](crate::Device::tell_host).
    pub(super) fn raise_word(&self, calls: &Calls, stream: Stream, task: WordTask) -> Result<(), DeviceError> {
        let address = self.word_address(calls, task.word)?;
        match calls.stream_write_value.filter(|_| self.facts.waits_for_words) {
            // SAFETY: the word is registered and stays in place, by our caller's promise.
            Some(write) => self.done("word", 4, unsafe { write(handle_of(stream), address, task.value, 0) }),
            None => self.launch(calls, stream, raise, task),
        }
    }
}
