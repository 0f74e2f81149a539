//! The control calls: making worlds, faults, counts and reports. [`crate::client`] is their typed face.
//!
//! A call for a device that is gone does nothing.

use std::ffi::{CStr, c_char, c_void};

use crate::client::{Callback, Sink};
use crate::codes::{Answer, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, SUCCESS};
use crate::host_memory::HostKind;
use crate::kernels;
use crate::launches::LaunchCounts;
use crate::operation::{Kernel, Task, Touch, Work, release_kernels};
use crate::random::Random;
use crate::rows::Rows;
use crate::session::{Session, current};
use crate::settings::{Batch, Counts, RawConfig};
use crate::state::{Settings, State};
use crate::worlds::{self, Handle};

fn on_world<T: Default>(ordinal: i32, body: impl FnOnce(&mut State) -> T) -> T {
    worlds::world(ordinal).map_or_else(T::default, |world| body(&mut world.lock()))
}

fn text(name: *const c_char) -> String {
    // SAFETY: the client gives a text that ends in a zero and lives for the call.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn list<'a, T>(items: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the client gives so many, and they live for the call.
    unsafe { std::slice::from_raw_parts(items, count) }
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_create(config: *const RawConfig) -> i32 {
    // SAFETY: the client lends one for the call.
    let config = unsafe { config.read() };
    worlds::create(Settings {
        seed: config.seed,
        memory_bytes: config.memory_bytes,
        eager: config.eager != 0,
        register_limit_bytes: config.register_limit_bytes,
        register_call_max_bytes: config.register_call_max_bytes,
        register_poisoned_after_refusal: config.register_poisoned_after_refusal != 0,
        word_patience: std::time::Duration::from_millis(config.word_patience_ms),
        threads_share_order: config.threads_share_order != 0,
        driver_version: config.driver_version,
        batch: Batch::from_raw(config.batch, config.batch_value),
        attributes: list(config.attributes, config.attribute_count).iter().map(|pair| (pair[0], pair[1])).collect(),
    })
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_destroy(ordinal: i32) {
    worlds::destroy(ordinal);
    release_kernels();
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_set_seed(ordinal: i32, seed: u64) {
    on_world(ordinal, |state| state.random = Random::new(seed));
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_set_memory_bytes(ordinal: i32, bytes: u64) {
    on_world(ordinal, |state| state.memory.limit_bytes = bytes);
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_set_batch(ordinal: i32, kind: u32, value: u64) {
    on_world(ordinal, |state| state.settings.batch = Batch::from_raw(kind, value));
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_set_attribute(ordinal: i32, attribute: i32, value: i32) {
    on_world(ordinal, |state| state.settings.attributes.push((attribute, value)));
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_fail_call(ordinal: i32, name: *const c_char, after: u64, code: i32) {
    let name = text(name);
    on_world(ordinal, |state| state.faults.calls.push((name, after, code)));
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_fail_late(ordinal: i32, after: u64, code: i32) {
    on_world(ordinal, |state| state.faults.late.push((after, code)));
}

/// Calls of a name, or of any if there is none.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_calls(ordinal: i32, name: *const c_char) -> u64 {
    let name = (!name.is_null()).then(|| text(name));
    on_world(ordinal, |state| match name {
        Some(name) => state.calls.get(name.as_str()).copied().unwrap_or(0),
        None => state.calls_total,
    })
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_blocking_calls(ordinal: i32) -> u64 {
    on_world(ordinal, |state| state.blocking_calls)
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_counts(ordinal: i32, counts: *mut Counts) {
    let now = on_world(ordinal, |state| state.counts());
    // SAFETY: the client lends room for one.
    unsafe { counts.write(now) };
}

/// Gives reports out and forgets them: 0 races, 1 violations; 2 is damage found now, which stays.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_reports(ordinal: i32, kind: u32, sink: Sink, data: *mut c_void) {
    let reports = on_world(ordinal, |state| {
        let mut reports = match kind {
            0 => std::mem::take(&mut state.races),
            1 => std::mem::take(&mut state.violations),
            _ => {
                let mut damage = Vec::new();
                state.memory.check(&mut damage);
                return damage;
            }
        };
        let more = state.take_unreported();
        if more > 0 {
            reports.push(format!("{more} more reports, of races or violations, were not kept"));
        }
        reports
    });
    // Without the lock: the sink is the test's.
    reports.iter().for_each(|report| sink(data, report.as_ptr(), report.len()));
}

/// A violation that the test's side has seen.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_report(ordinal: i32, words: *const u8, bytes: usize) {
    let words = String::from_utf8_lossy(list(words, bytes)).into_owned();
    on_world(ordinal, |state| state.violation(words));
}

/// A kernel of the test: `call` runs it with `data`, `release` ends `data`, both without a lock.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_launch(
    ordinal: i32,
    stream: u64,
    reads: *const (u64, u64),
    read_count: usize,
    writes: *const (u64, u64),
    write_count: usize,
    call: Callback,
    release: Callback,
    data: *mut c_void,
    once: u32,
) -> i32 {
    let kernel = Work::Kernel(std::sync::Arc::new(Kernel { call, release, data: data as u64, once: once != 0 }));
    let Some(world) = worlds::world(ordinal) else { return INVALID_DEVICE };
    let Some(context) = current().filter(|context| Handle::ordinal_of(*context) == Some(ordinal)) else {
        return INVALID_CONTEXT;
    };
    let mut session = Session::open(&world, "kernel", context);
    let launch = |session: &mut Session<'_>| -> Answer {
        if !session.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        session.not_lost()?;
        let timeline = session.stream(stream)?;
        let mut touches = Vec::new();
        for (ranges, write) in [(list(reads, read_count), false), (list(writes, write_count), true)] {
            for &(address, bytes) in ranges.iter().filter(|(_, bytes)| *bytes > 0) {
                session.check_device("kernel", context, address, bytes, write)?;
                let rows = Rows::span(address, bytes);
                touches.push(if write { Touch::write(rows) } else { Touch::read(rows) });
            }
        }
        session.submit(timeline, Task::new("kernel", kernel, touches)).map(|_| ())
    };
    let answer = launch(&mut session);
    drop(session);
    release_kernels();
    answer.err().unwrap_or(SUCCESS)
}

/// Leaves one barrier of a kernel out, or none if the number is negative. Whether there is such a kernel.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_skip_barrier(ordinal: i32, kernel: *const c_char, id: i32) -> u32 {
    let Some(kernel) = kernels::kernel(&text(kernel)) else { return 0 };
    let mut skipped = kernels::BarrierSet::default();
    if let Ok(id) = usize::try_from(id)
        && let Some(word) = skipped.get_mut(id / 64)
    {
        *word = 1 << (id % 64);
    }
    on_world(ordinal, |state| state.launches.skipped.insert(kernel.name, skipped));
    1
}

/// What is known of a kernel's launches. Whether there is such a kernel.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_launch_counts(ordinal: i32, kernel: *const c_char, counts: *mut LaunchCounts) -> u32 {
    let Some(kernel) = kernels::kernel(&text(kernel)) else { return 0 };
    let now = on_world(ordinal, |state| state.launches.counts.get(kernel.name).copied().unwrap_or_default());
    // SAFETY: the client lends room for one.
    unsafe { counts.write(now) };
    1
}

/// Sizes, offsets and constants that kernels are compiled with: texts of a name, a blank and a number.
#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_abi(sink: Sink, data: *mut c_void) {
    for (name, value) in kernels::numbers() {
        let line = format!("{name} {value}");
        sink(data, line.as_ptr(), line.len());
    }
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_set_driver_version(ordinal: i32, version: i32) {
    on_world(ordinal, |state| state.settings.driver_version = version);
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_host_access(ordinal: i32, address: u64, bytes: u64, write: u32) {
    let Some(world) = worlds::world(ordinal) else { return };
    let mut session = Session::open(&world, "host", 0);
    if bytes == 0 {
        return;
    }
    // Only memory the driver knows keeps its addresses; elsewhere the next owner of them would be blamed.
    let recorded = matches!(session.host.classify(address, bytes), HostKind::Pinned { .. });
    session.touch_by_host(Rows::span(address, bytes), write != 0, recorded);
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_hand_over(ordinal: i32) {
    let Some(world) = worlds::world(ordinal) else { return };
    let mut session = Session::open(&world, "hand over", 0);
    let (thread, all) = (session.thread, session.knowledge_of_all());
    session.learn(thread, &all);
}

#[unsafe(no_mangle)]
extern "C" fn ftcache_emu_peek(ordinal: i32, address: u64, bytes: usize, copy: *mut u8) -> i32 {
    let found = on_world(ordinal, |state| {
        let end = address + bytes as u64;
        let live = state.memory.holding(address).is_some_and(|live| end <= live.base + live.bytes);
        let pinned = matches!(state.host.classify(address, bytes as u64), HostKind::Pinned { .. });
        if live || pinned {
            // SAFETY: live or pinned memory as just checked, under the lock; the client lends so much room.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy, bytes) };
        }
        live || pinned
    });
    if found { SUCCESS } else { INVALID_VALUE }
}
