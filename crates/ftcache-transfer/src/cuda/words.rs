//! Words in host memory that streams wait for and raise by themselves.
//!
//! Where a device cannot do that, nothing here does it for it: a host function that waits would stand in the way of all
//! others of the driver's one thread.
//!
//! *Unsafe*, relying on one promise: a word stays in place until its stream has been synchronised
//! ([`Device::wait_for_host`](crate::Device::wait_for_host)).

use std::sync::atomic::AtomicU32;

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

impl CudaDevice {
    /// The word as the device sees it.
    fn word_address(&self, calls: &Calls, word: *const AtomicU32) -> Result<CUdeviceptr, DeviceError> {
        let mut address = 0;
        // SAFETY: the driver looks the address up, and writes one number.
        let code = unsafe { (calls.host_device_pointer)(&raw mut address, word.cast_mut().cast(), 0) };
        self.done("word", 4, code).map(|()| address)
    }

    fn no_words() -> DeviceError {
        let reason = "this device's streams do not wait for words of the host's".to_owned();
        DeviceError::Failed { operation: "word", bytes: 4, reason }
    }

    /// See [`Device::wait_for_host`](crate::Device::wait_for_host).
    pub(super) fn wait_for_word(&self, calls: &Calls, stream: Stream, task: WordTask) -> Result<(), DeviceError> {
        let wait = calls.stream_wait_value.filter(|_| self.facts.waits_for_words).ok_or_else(Self::no_words)?;
        let address = self.word_address(calls, task.word)?;
        // SAFETY: the word is registered and stays in place, by our caller's promise.
        self.done("word", 4, unsafe { wait(handle_of(stream), address, task.value, WAIT_GEQ) })
    }

    /// See [`Device::tell_host`](crate::Device::tell_host).
    pub(super) fn raise_word(&self, calls: &Calls, stream: Stream, task: WordTask) -> Result<(), DeviceError> {
        let write = calls.stream_write_value.filter(|_| self.facts.waits_for_words).ok_or_else(Self::no_words)?;
        let address = self.word_address(calls, task.word)?;
        // SAFETY: the word is registered and stays in place, by our caller's promise.
        self.done("word", 4, unsafe { write(handle_of(stream), address, task.value, 0) })
    }
}
