#![no_main]

#[allow(dead_code, reason = "each target is one of the functions")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::rates(data);
});
