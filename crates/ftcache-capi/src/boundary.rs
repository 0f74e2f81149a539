//! The one way in and out: NULL, sizes, panics, the last error, and handles that only one thread may be inside.
//!
//! *Unsafe*, relying on the C caller's promises as the header states them: a pointer that is not NULL points to what
//! its type says; a struct has as many bytes as its `struct_size`; a handle came from `_new` and was not freed.
//! What the errors below say is told in `failure`.

use std::cell::{RefCell, UnsafeCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::failure::Failure;
use crate::status::ftcache_status;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

// While a thread ends its message is gone, and a call from a destructor must not bring the process down for it.
fn set_last_error(message: &str) {
    // A message never holds a zero of ours; one that came in by a tag or a path ends the text there.
    let text = message.split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// # Safety
///
/// `buffer` points to `capacity` writable bytes, or `capacity` is 0.
pub(crate) unsafe fn copy_last_error(buffer: *mut c_char, capacity: usize) -> usize {
    // SAFETY: by this function's own promise.
    let copy = |bytes: &[u8]| unsafe { copy_text(bytes, buffer, capacity) };
    LAST_ERROR.try_with(|last| copy(last.borrow().as_bytes())).unwrap_or_else(|_| copy(b""))
}

/// Runs a body that touches no shared handle; a panic becomes a status.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> ftcache_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ftcache_status::Ok,
        Ok(Err(failure)) => {
            set_last_error(&failure.message);
            failure.status
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            set_last_error(&format!("a fault of ftcache: {text}"));
            ftcache_status::Panicked
        }
    }
}

const IDLE: u8 = 0;
const INSIDE: u8 = 1;
const POISONED: u8 = 2;

/// A handle's value, and whether a call is inside it.
///
/// Any thread may be that call's, so the value must be one that threads can hand on.
pub(crate) struct Guarded<T: Send> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `enter`, which lets one call at a time in; see there.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T: Send> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU8::new(IDLE), value: UnsafeCell::new(value) }
    }

    /// Runs a body on the value. A second call on another thread is turned away, as is any after a panic.
    pub(crate) fn enter(&self, body: impl FnOnce(&mut T) -> Result<(), Failure>) -> ftcache_status {
        match self.state.compare_exchange(IDLE, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {}
            Err(POISONED) => {
                set_last_error("an earlier call on this handle panicked; only ftcache_free works");
                return ftcache_status::Poisoned;
            }
            Err(_) => {
                set_last_error("another call is inside this handle");
                return ftcache_status::Busy;
            }
        }
        let status = guard(|| {
            // SAFETY: the exchange above let this call in alone, and it leaves by the store below.
            body(unsafe { &mut *self.value.get() })
        });
        let state = if status == ftcache_status::Panicked { POISONED } else { IDLE };
        self.state.store(state, Ordering::Release);
        status
    }
}

/// The value behind a pointer that must not be NULL.
///
/// # Safety
///
/// The pointer is NULL or points to a `T` that lives, and is not written to, through `'a`.
pub(crate) unsafe fn required<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: by this function's own promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// The value behind a pointer that must not be NULL, to be written.
///
/// # Safety
///
/// The pointer is NULL or points to a `T` that lives, and that nobody else uses, through `'a`.
pub(crate) unsafe fn required_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: by this function's own promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// A struct that crosses, beginning with `struct_size`.
///
/// # Safety
///
/// `repr(C)`, its first field is a `u32`, and any bytes, all zeros too, are a value of it.
pub(crate) unsafe trait SizedStruct: Copy {}

const SIZE_BYTES: usize = size_of::<u32>();

/// What a `struct_size` can be; past that it was never set.
const STRUCT_BYTES: std::ops::RangeInclusive<usize> = SIZE_BYTES..=1 << 12;

/// The size that the caller's header gave a struct.
///
/// # Safety
///
/// `pointer` is NULL or points to a struct that begins with its `struct_size`.
unsafe fn struct_size<T: SizedStruct>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so by the caller's word at least `struct_size` stands there; it may lie at any address.
    let given = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if !STRUCT_BYTES.contains(&given) {
        let ours = size_of::<T>();
        return Err(Failure::argument(format!("{name}->struct_size is {given}; this library's struct has {ours}")));
    }
    Ok(given)
}

/// Looks whether a struct can be written, for a call that must not find out at its end.
///
/// # Safety
///
/// `pointer` is NULL or points to a struct that begins with its `struct_size`.
pub(crate) unsafe fn check_sized<T: SizedStruct>(pointer: *const T, name: &str) -> Result<(), Failure> {
    // SAFETY: by this function's own promise.
    unsafe { struct_size(pointer, name) }.map(|_| ())
}

/// Reads a struct of the size that the caller's header gave it: a shorter one is followed by zeros, of a longer one
/// the tail that we do not know must be zeros.
///
/// # Safety
///
/// `pointer` is NULL or points to as many bytes as the `struct_size` that stands there.
pub(crate) unsafe fn read_sized<T: SizedStruct>(pointer: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: by this function's own promise.
    let (given, ours) = (unsafe { struct_size(pointer, name) }?, size_of::<T>());
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `given` bytes are readable by the caller's word, `ours` bytes are writable, and the two are apart.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), given.min(ours)) };
    for offset in ours..given {
        // SAFETY: inside the `given` bytes that are readable by the caller's word.
        let byte = unsafe { pointer.cast::<u8>().wrapping_add(offset).read() };
        if byte != 0 {
            let message =
                format!("{name} has {given} bytes, and byte {offset} is set; this library knows {ours} bytes of it");
            return Err(Failure::argument(message));
        }
    }
    // SAFETY: every byte is initialised, and any bytes are a value of `T` (`SizedStruct`).
    Ok(unsafe { value.assume_init() })
}

/// Writes a struct into the bytes that the caller's header gave it, leaving its `struct_size` as it stands.
///
/// A longer struct's tail is set to zeros.
///
/// # Safety
///
/// `pointer` is NULL or points to as many writable bytes as the `struct_size` that stands there.
pub(crate) unsafe fn write_sized<T: SizedStruct>(pointer: *mut T, name: &str, value: T) -> Result<(), Failure> {
    // SAFETY: by this function's own promise.
    let (given, ours) = (unsafe { struct_size(pointer, name) }?, size_of::<T>());
    let source = (&raw const value).cast::<u8>().wrapping_add(SIZE_BYTES);
    let target = pointer.cast::<u8>();
    let known = given.min(ours) - SIZE_BYTES;
    // SAFETY: the bytes after `struct_size` up to the shorter of both sizes are readable here and writable there.
    unsafe { std::ptr::copy_nonoverlapping(source, target.wrapping_add(SIZE_BYTES), known) };
    if given > ours {
        // SAFETY: the tail is inside the `given` bytes that are writable by the caller's word.
        unsafe { std::ptr::write_bytes(target.wrapping_add(ours), 0, given - ours) };
    }
    Ok(())
}

/// Writes a text for C into the caller's buffer, cut to fit and ended by a zero, and the bytes that all of it needs.
///
/// # Safety
///
/// `buffer` points to `capacity` writable bytes, or `capacity` is 0; `needed` is NULL or points to a number.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> Result<(), Failure> {
    if buffer.is_null() && capacity > 0 {
        return Err(Failure::argument(format!("buffer is NULL, with a capacity of {capacity}")));
    }
    // SAFETY: by this function's own promise.
    let whole = unsafe { copy_text(text.as_bytes(), buffer, capacity) };
    // SAFETY: as above.
    if let Some(needed) = unsafe { needed.as_mut() } {
        *needed = whole;
    }
    Ok(())
}

/// As [`write_text`], without its checks. Returns the bytes that all of it needs.
///
/// # Safety
///
/// As [`write_text`].
unsafe fn copy_text(bytes: &[u8], buffer: *mut c_char, capacity: usize) -> usize {
    if capacity > 0 && !buffer.is_null() {
        let length = bytes.len().min(capacity - 1);
        // SAFETY: `length + 1 <= capacity` bytes are writable by the caller's word, and the text is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), length) };
        // SAFETY: as above.
        unsafe { buffer.wrapping_add(length).write(0) };
    }
    bytes.len() + 1
}

/// A text of the caller's, or `None` for NULL.
///
/// # Safety
///
/// The pointer is NULL or points to a text that ends with a zero and lives, unchanged, through `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's own promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|error| Failure::argument(format!("{name} is not UTF-8: {error}")))
}

/// A field that says yes or no.
pub(crate) fn flag(value: u32, name: &str) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(format!("{name} is {other}, not 0 or 1"))),
    }
}

/// A field that has no meaning yet must be 0, so that it can be given one.
pub(crate) fn reserved(value: u32, name: &str) -> Result<(), Failure> {
    if value == 0 { Ok(()) } else { Err(Failure::argument(format!("{name} is {value}; it must be 0"))) }
}

/// `count` values behind a pointer, which may be NULL if there are none.
///
/// # Safety
///
/// The pointer is NULL or points to `count` aligned values that live, and are not written to, through `'a`.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: u64, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL, with a count of {count}")));
    }
    let count = usize::try_from(count)
        .ok()
        .filter(|count| count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize));
    let count = count.ok_or_else(|| Failure::argument(format!("{name} has more values than memory")))?;
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    // SAFETY: not NULL and aligned, and `count` values stand there by the caller's word.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// As [`array`], to be written.
///
/// # Safety
///
/// The pointer is NULL or points to `count` aligned values that live, and that nobody else uses, through
/// `'a`.
pub(crate) unsafe fn array_mut<'a, T>(pointer: *mut T, count: u64, name: &str) -> Result<&'a mut [T], Failure> {
    // SAFETY: by this function's own promise.
    let count = unsafe { array(pointer.cast_const(), count, name) }?.len();
    match count {
        0 => Ok(&mut []),
        // SAFETY: not NULL and aligned, as was just seen, and `count` values stand there by this function's own
        // promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) }),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    #[repr(C)]
    struct Pair {
        struct_size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: `repr(C)`, a `u32` first, integers only.
    unsafe impl SizedStruct for Pair {}

    fn message() -> String {
        // SAFETY: never NULL, ended by a zero, and no call comes between.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_poisons_the_handle() {
        let handle = Guarded::new(1);
        assert_eq!(handle.enter(|_| panic!("slot {} twice", 3)), ftcache_status::Panicked);
        assert_eq!(message(), "a fault of ftcache: slot 3 twice");
        assert_eq!(handle.enter(|_| Ok(())), ftcache_status::Poisoned);
        assert_eq!(guard(|| Ok(())), ftcache_status::Ok);
        assert_eq!(message(), "an earlier call on this handle panicked; only ftcache_free works");
    }

    #[test]
    fn a_second_call_inside_a_handle_is_turned_away() {
        let handle = Guarded::new(1);
        let outer = handle.enter(|value| {
            assert_eq!(handle.enter(|_| unreachable!()), ftcache_status::Busy);
            *value += 1;
            Ok(())
        });
        assert_eq!(outer, ftcache_status::Ok);
        assert_eq!(
            handle.enter(|value| if *value == 2 { Ok(()) } else { Err(Failure::argument("")) }),
            ftcache_status::Ok
        );
    }

    #[test]
    fn structs_of_other_sizes() {
        let check = |bytes: [u32; 6]| {
            // SAFETY: `bytes` has 24 bytes, at least as many as any size below.
            unsafe { read_sized(bytes.as_ptr().cast::<Pair>(), "pair") }.map_err(|failure| failure.message)
        };
        assert_eq!(check([16, 7, 8, 0, 9, 9]), Ok(Pair { struct_size: 16, first: 7, second: 8 }));
        assert_eq!(check([8, 7, 8, 8, 9, 9]), Ok(Pair { struct_size: 8, first: 7, second: 0 }));
        assert_eq!(check([24, 7, 8, 0, 0, 0]), Ok(Pair { struct_size: 24, first: 7, second: 8 }));
        let set = "pair has 24 bytes, and byte 20 is set; this library knows 16 bytes of it".to_owned();
        assert_eq!(check([24, 7, 8, 0, 0, 1]), Err(set));
        assert_eq!(check([0; 6]), Err("pair->struct_size is 0; this library's struct has 16".to_owned()));

        let write = |size: u32| {
            let mut bytes = [size, 1, 1, 1, 1, 1];
            let value = Pair { struct_size: 16, first: 7, second: 8 };
            // SAFETY: `bytes` has 24 bytes, at least as many as any size below.
            unsafe { write_sized(bytes.as_mut_ptr().cast::<Pair>(), "pair", value) }.unwrap();
            bytes
        };
        assert_eq!(write(16), [16, 7, 8, 0, 1, 1]);
        assert_eq!(write(8), [8, 7, 1, 1, 1, 1]);
        assert_eq!(write(24), [24, 7, 8, 0, 0, 0]);
    }

    #[test]
    fn messages_are_cut_to_the_buffer() {
        set_last_error("four");
        let mut buffer = [1; 8];
        let mut copy = |capacity| {
            buffer.fill(1);
            // SAFETY: the buffer has at least `capacity` bytes.
            let needed = unsafe { copy_last_error(buffer.as_mut_ptr(), capacity) };
            (needed, buffer)
        };
        let text = |bytes: &[u8; 8]| bytes.map(|byte| byte as c_char);
        assert_eq!(copy(8), (5, text(b"four\0\x01\x01\x01")));
        assert_eq!(copy(3), (5, text(b"fo\0\x01\x01\x01\x01\x01")));
        assert_eq!(copy(0), (5, text(&[1; 8])));
    }
}
