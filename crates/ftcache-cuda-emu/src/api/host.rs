//! Host memory: registered or allocated.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::codes::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::host_memory::{DEVICE_MAP, IO_MEMORY, Mapping, PAGE, PORTABLE, Pinned, READ_ONLY, mapping_of};
use crate::memory::Room;
use crate::session::{Session, in_context, put};

impl Session<'_> {
    fn unpin(&mut self, address: u64, allocated: bool, code: i32) -> Result<(), i32> {
        self.unsafe_in_capture()?;
        let known = self.host.holding(address).filter(|pinned| pinned.base == address);
        if known.is_none_or(|pinned| pinned.room.is_some() != allocated) {
            return Err(self.refuse(code, &format!("{address:#x} is not the base of such memory")));
        }
        self.wait_for_context()?;
        let Some(pinned) = self.host.remove(address, allocated) else {
            return Err(self.refuse(code, &format!("{address:#x} was given up by two threads at a time")));
        };
        self.history.forget_range(address, pinned.bytes);
        self.words.retain(|word, _| *word < address || *word >= address + pinned.bytes);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    in_context("cuMemHostRegister_v2", |session| {
        session.unsafe_in_capture()?;
        let (base, bytes) = (address as u64, bytes as u64);
        if base == 0 || bytes == 0 || flags & !(PORTABLE | DEVICE_MAP | IO_MEMORY | READ_ONLY) != 0 {
            return Err(session.refuse(INVALID_VALUE, &format!("[{base:#x}, +{bytes}) with flags {flags:#x}")));
        }
        let attribute = |session: &Session<'_>, attribute: Attribute| session.attribute(attribute as i32);
        let read_only_supported = attribute(session, Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
        if attribute(session, Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) == 0
            || flags & IO_MEMORY != 0
            || (flags & READ_ONLY != 0 && read_only_supported == 0)
        {
            return Err(NOT_SUPPORTED);
        }
        if session.memory.holding(base).is_some() {
            return Err(session.refuse(INVALID_VALUE, &format!("{base:#x} is device memory")));
        }
        if session.host.collides(base, bytes) {
            let what = format!("[{base:#x}, +{bytes}) shares a page with pinned memory");
            return Err(session.refuse(ALREADY_REGISTERED, &what));
        }
        match mapping_of(base, bytes) {
            Mapping::Writable => {}
            Mapping::ReadOnly if flags & READ_ONLY != 0 => {}
            mapping => {
                let what = format!("[{base:#x}, +{bytes}) is mapped {mapping:?}, with flags {flags:#x}");
                return Err(session.refuse(INVALID_VALUE, &what));
            }
        }
        let settings = &session.settings;
        let over = session.host.registered_bytes.saturating_add(bytes) > settings.register_limit_bytes
            || bytes > settings.register_call_max_bytes;
        if over || session.faults.register_poisoned {
            session.faults.register_poisoned |= session.settings.register_poisoned_after_refusal;
            return Err(OUT_OF_MEMORY);
        }
        let context = session.context;
        session.history.forget_range(base, bytes);
        session.host.insert(Pinned { base, bytes, flags, context, room: None });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: *mut c_void) -> c_int {
    in_context("cuMemHostUnregister", |session| session.unpin(address as u64, false, NOT_REGISTERED))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    in_context("cuMemHostAlloc", |session| {
        session.unsafe_in_capture()?;
        // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP, _WRITECOMBINED
        if bytes == 0 || address.is_null() || flags & !7 != 0 {
            return Err(session.refuse(INVALID_VALUE, &format!("{bytes} bytes with flags {flags:#x}")));
        }
        let whole = bytes.checked_next_multiple_of(PAGE as usize).ok_or(OUT_OF_MEMORY)?;
        let mut room = Room::new(whole, PAGE as usize).ok_or(OUT_OF_MEMORY)?;
        // Not zeros, as with device memory.
        let pattern: Vec<u8> = (0..64).map(|_| 1 + session.random.below(255) as u8).collect();
        room.fill(0, whole, &pattern);
        let (base, bytes, context) = (room.address(), bytes as u64, session.context);
        session.history.forget_range(base, bytes);
        session.host.insert(Pinned { base, bytes, flags, context, room: Some(room) });
        put(address, base as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    in_context("cuMemFreeHost", |session| session.unpin(address as u64, true, INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, flags: c_uint) -> c_int {
    in_context("cuMemHostGetDevicePointer_v2", |session| {
        if flags != 0 || session.host.holding(host as u64).is_none() {
            return Err(session.refuse(INVALID_VALUE, &format!("{host:?} is not pinned, or flags {flags:#x}")));
        }
        put(device, host as u64)
    })
}
