//! Something that panics and catches it, so that its archive has a standard library, an allocator and an unwinder in it.

/// Catches a panic that has `value` in it, and returns the length of its message.
#[unsafe(no_mangle)]
pub extern "C" fn other_rust_catches(value: u32) -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| -> usize { panic!("value {value}") });
    let text = caught.unwrap_err().downcast::<String>().unwrap_or_default();
    i32::try_from(text.len()).unwrap_or(-1)
}
