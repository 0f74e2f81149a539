//! The legacy stream, host functions, and words that streams wait for.

mod common;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use common::{Rig, driver, ok};
use ftcache_cuda_emu::client::Config;

#[test]
fn the_legacy_stream_waits_both_ways_but_for_non_blocking_streams() {
    for seed in 0..50 {
        for legacy in [0, 1] {
            let rig = Rig::seeded(seed);
            let (blocking, free, memory) = (rig.blocking_stream(), rig.stream(), rig.memory(8));
            rig.fill(memory, 1, 8, blocking);
            rig.fill(memory, 2, 8, legacy);
            rig.fill(memory, 3, 8, blocking);
            rig.fill(memory, 4, 8, 2);
            // The stream of the thread is blocking, and as such not ordered with another.
            assert_eq!(rig.device.races().len(), 1);
            rig.fill(memory, 5, 8, legacy);
            rig.sync(legacy);
            assert_eq!(rig.device.peek(memory, 8), [5; 8]);
            assert_eq!(rig.device.counts().queued, 0);
            rig.fill(memory, 6, 8, free);
            rig.device.check();
            rig.fill(memory, 7, 8, legacy);
            assert_eq!(rig.device.races().len(), 1);
            // Waiting for the legacy stream is waiting for the blocking ones.
            let other = rig.memory(8);
            rig.fill(other, 1, 8, blocking);
            rig.sync(legacy);
            rig.fill(other, 2, 8, free);
            rig.device.check();
        }
    }
}

#[test]
fn the_legacy_query_asks_blocking_streams_too() {
    let mut not_ready = 0;
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let (blocking, memory) = (rig.blocking_stream(), rig.memory(8));
        rig.fill(memory, 1, 8, blocking);
        not_ready += usize::from((rig.cu.cuStreamQuery)(0) == 600);
        let queries = (0..200).find(|_| (rig.cu.cuStreamQuery)(0) == 0);
        assert!(queries.is_some() && rig.device.peek(memory, 8) == [1; 8]);
        rig.device.check();
    }
    assert!(not_ready > 0);
}

static FUNCTIONS: AtomicUsize = AtomicUsize::new(0);
static CALL_INSIDE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(data: *mut c_void) {
    // SAFETY: the test gives a counter that outlives the work.
    let counter = unsafe { &*data.cast::<AtomicUsize>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn call_the_driver(_: *mut c_void) {
    CALL_INSIDE.store((driver().cuCtxSynchronize)() as usize, Ordering::SeqCst);
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    let rig = Rig::seeded(1);
    let (stream, memory) = (rig.stream(), rig.memory(8));
    let data = (&raw const FUNCTIONS).cast_mut().cast();
    rig.fill(memory, 1, 8, stream);
    ok((rig.cu.cuLaunchHostFunc)(stream, Some(count), data));
    let address = memory;
    ok(rig.device.launch(stream, &[(memory, 8)], &[], move || {
        assert_eq!(FUNCTIONS.load(Ordering::SeqCst), 1);
        // SAFETY: live memory, and this work is in its turn.
        assert_eq!(unsafe { *(address as *const u8) }, 1);
    }));
    assert_eq!(FUNCTIONS.load(Ordering::SeqCst), 0);
    rig.sync(stream);
    assert_eq!(FUNCTIONS.load(Ordering::SeqCst), 1);
    assert_eq!((rig.cu.cuLaunchHostFunc)(stream, None, data), 1);
    rig.one_violation("no function");
    ok((rig.cu.cuLaunchHostFunc)(stream, Some(call_the_driver), data));
    rig.sync(stream);
    assert_eq!(CALL_INSIDE.load(Ordering::SeqCst), 800);
    rig.one_violation("from a host function");
    // A panic in a kernel is told.
    ok(rig.device.launch(stream, &[], &[], || panic!("as the test wants it")));
    rig.sync(stream);
    rig.one_violation("as the test wants it");
    // After late failure they are not called.
    rig.device.fail_late(0, 719);
    rig.fill(memory, 1, 8, stream);
    ok((rig.cu.cuLaunchHostFunc)(stream, Some(count), data));
    assert_eq!((rig.cu.cuStreamSynchronize)(stream), 719);
    assert_eq!(FUNCTIONS.load(Ordering::SeqCst), 1);
    rig.device.check();
}

/// A pinned word.
fn word(rig: &Rig, value: u32) -> &'static AtomicU32 {
    let address = rig.pinned(&value.to_le_bytes());
    // SAFETY: aligned to a page, and only used while the device lives.
    unsafe { AtomicU32::from_ptr(address.cast()) }
}

#[test]
fn a_stream_waits_for_a_word_that_another_thread_raises() {
    for seed in 0..30 {
        let rig = Rig::seeded(seed);
        let (stream, memory, row) = (rig.stream(), rig.memory(64), rig.pinned(&[0; 64]));
        let flag = word(&rig, u32::MAX - 1);
        let address = flag.as_ptr() as u64;
        // Greater or equal in a cycle: three steps on, past zero.
        ok((rig.cu.cuStreamWaitValue32_v2)(stream, address, 1, 0));
        rig.up(memory, row, 64, stream);
        assert_eq!((rig.cu.cuStreamQuery)(stream), 600);
        let row_address = row as usize;
        std::thread::scope(|scope| {
            let rig = &rig;
            scope.spawn(move || {
                // The copy cannot have begun: the word is not raised.
                rig.device.host_access(row_address as *const u8, 64, true);
                // SAFETY: pinned memory of this length, which nothing else uses before the word is raised.
                unsafe { std::ptr::write_bytes(row_address as *mut u8, 9, 64) };
                flag.store(0, Ordering::Release);
                std::thread::yield_now();
                flag.store(1, Ordering::Release);
            });
            rig.sync(stream);
        });
        assert_eq!(rig.device.peek(memory, 64), [9; 64]);
        rig.device.check();
        // The other thread was joined.
        rig.device.hand_over();
        // Once it is raised, the same access is a race.
        ok((rig.cu.cuStreamWaitValue32_v2)(stream, address, 1, 0));
        rig.up(memory, row, 64, stream);
        rig.device.host_access(row.cast(), 64, true);
        assert_eq!(rig.device.races().len(), 1);
    }
}

#[test]
fn words_are_tested_four_ways() {
    let cases: [(u32, u32, u32, bool); 11] = [
        (0, 5, 5, true),
        (0, 5, 4, false),
        (0, 5, 6, true),
        (0, 5, 0x8000_0004, true),
        (0, 5, 0x8000_0006, false),
        (1, 5, 5, true),
        (1, 5, 6, false),
        (2, 5, 4, true),
        (2, 5, 2, false),
        (3, 5, 0xFFFF_FFF0, true),
        (3, 5, 0xFFFF_FFFA, false),
    ];
    for (test, value, present, met) in cases {
        let rig = Rig::new(Config { eager: true, ..Config::default() });
        let (stream, flag) = (rig.stream(), word(&rig, present));
        ok((rig.cu.cuStreamWaitValue32_v2)(stream, flag.as_ptr() as u64, value, test));
        assert_eq!(rig.device.counts().queued == 0, met, "test {test} of {value} with {present:#x}");
        flag.store(if test == 3 { 0 } else { 5 }, Ordering::Release);
        rig.sync(stream);
        rig.device.check();
    }
}

#[test]
fn a_word_that_a_stream_writes_orders_another_stream() {
    for seed in 0..40 {
        let rig = Rig::seeded(seed);
        let (a, b, memory, flag) = (rig.stream(), rig.stream(), rig.memory(64), word(&rig, 0));
        let address = flag.as_ptr() as u64;
        rig.fill(memory, 1, 64, a);
        ok((rig.cu.cuStreamWriteValue32_v2)(a, address, 1, 0));
        rig.fill(memory + 32, 2, 32, a);
        ok((rig.cu.cuStreamWaitValue32_v2)(b, address, 1, 0));
        rig.fill(memory, 3, 32, b);
        rig.device.check();
        rig.fill(memory + 32, 3, 32, b);
        assert_eq!(rig.device.races().len(), 1, "what comes after the write is not ordered");
        rig.sync(b);
        assert_eq!((flag.load(Ordering::Acquire), rig.device.peek(memory, 32)), (1, vec![3; 32]));
        // A plain access to the word itself is one like any other.
        ok((rig.cu.cuStreamWriteValue32_v2)(a, address, 2, 0));
        rig.fill(address, 0, 4, b);
        assert_eq!(rig.device.races().len(), 1);
    }
}

#[test]
fn words_have_rules() {
    let rig = Rig::seeded(1);
    let (stream, flag) = (rig.stream(), word(&rig, 0));
    let address = flag.as_ptr() as u64;
    let on_the_stack = AtomicU32::new(0);
    for bad in [address + 2, 0, on_the_stack.as_ptr() as u64] {
        assert_eq!((rig.cu.cuStreamWaitValue32_v2)(stream, bad, 0, 0), 1);
        assert_eq!((rig.cu.cuStreamWriteValue32_v2)(stream, bad, 0, 0), 1);
        assert_eq!(rig.device.violations().len(), 2);
    }
    assert_eq!((rig.cu.cuStreamWaitValue32_v2)(stream, address, 0, 77), 1);
    rig.one_violation("flags");
    assert_eq!((rig.cu.cuStreamWaitValue32_v2)(stream, address, 0, 1 << 30), 801);
    rig.device.set_attribute(122, 0);
    rig.device.set_attribute(92, 0);
    assert_eq!((rig.cu.cuStreamWaitValue32_v2)(stream, address, 0, 0), 801);
    rig.device.check();
}

#[test]
fn two_threads_wait_at_a_time() {
    let rig = Arc::new(Rig::new(Config { threads_share_order: true, ..Config::default() }));
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let rig = rig.clone();
            std::thread::spawn(move || {
                ok((rig.cu.cuCtxSetCurrent)(rig.context));
                let (memory, stream) = (rig.memory(5000), rig.stream());
                for round in 0..200_u8 {
                    rig.fill(memory, round, 5000, stream);
                    ok(rig.device.launch(stream, &[(memory, 5000)], &[], std::thread::yield_now));
                    rig.sync(stream);
                    assert_eq!(rig.device.peek(memory, 1), [round], "thread {thread}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    rig.device.check();
}

#[test]
fn a_word_that_nobody_raises_is_told() {
    let rig = Rig::new(Config { word_patience_ms: 5, ..Config::default() });
    let (stream, flag) = (rig.stream(), word(&rig, 3));
    ok((rig.cu.cuStreamWaitValue32_v2)(stream, flag.as_ptr() as u64, 4, 1));
    assert_eq!((rig.cu.cuCtxSynchronize)(), 702);
    rig.one_violation("Equal 4");
    assert_eq!((rig.cu.cuCtxSynchronize)(), 702);
}

#[test]
fn who_waits_in_a_device_that_goes_away_goes_home() {
    let rig = Rig::seeded(1);
    let (stream, flag) = (rig.stream(), word(&rig, 0));
    ok((rig.cu.cuStreamWaitValue32_v2)(stream, flag.as_ptr() as u64, 1, 0));
    let (cu, context) = (rig.cu, rig.context);
    let (started, begin) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        ok((cu.cuCtxSetCurrent)(context));
        started.send(()).unwrap();
        (cu.cuStreamSynchronize)(stream)
    });
    begin.recv().unwrap();
    drop(rig);
    // It was in the wait, or came too late for it.
    assert!([709, 201].contains(&thread.join().unwrap()));
}

#[test]
fn streams_say_what_they_were_made_with() {
    let rig = Rig::seeded(1);
    let (mut stream, mut flags, mut priority, mut context) = (0, 0, 0, 0);
    ok((rig.cu.cuStreamCreateWithPriority)(&mut stream, 1, -99));
    ok((rig.cu.cuStreamGetFlags)(stream, &mut flags));
    ok((rig.cu.cuStreamGetPriority)(stream, &mut priority));
    ok((rig.cu.cuStreamGetCtx)(stream, &mut context));
    assert_eq!((flags, priority, context), (1, -5, rig.context));
    rig.device.check();
    assert_eq!((rig.cu.cuStreamCreate)(&mut stream, 2), 1);
    rig.one_violation("flags 0x2");
}

#[test]
fn waiting_where_nothing_is_queued_is_not_counted() {
    let rig = Rig::seeded(1);
    let (stream, blocking, memory) = (rig.stream(), rig.blocking_stream(), rig.memory(8));
    for stream in [0, stream, blocking] {
        rig.sync(stream);
    }
    ok((rig.cu.cuMemcpyHtoD_v2)(memory, [1_u8; 8].as_ptr().cast(), 8));
    assert_eq!(rig.device.blocking_calls(), 0);
    rig.sync(0);
    assert_eq!(rig.device.blocking_calls(), 1);
    rig.fill(memory, 2, 8, blocking);
    rig.sync(0);
    assert_eq!(rig.device.blocking_calls(), 2);
    // A copy from pageable memory waits for what its stream held before.
    rig.fill(memory, 3, 8, 0);
    ok((rig.cu.cuMemcpyHtoD_v2)(rig.memory(8), [1_u8; 8].as_ptr().cast(), 8));
    rig.fill(memory, 4, 8, stream);
    assert_eq!(rig.device.blocking_calls(), 3);
    rig.device.check();
}

/// Looks at its device when it is dropped, which takes the device's lock.
struct Looks(Arc<Rig>, Arc<AtomicUsize>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.1.fetch_add(1 + self.0.device.counts().queued as usize, Ordering::SeqCst);
    }
}

#[test]
fn what_a_kernel_holds_is_let_go_where_no_lock_is_held() {
    for fails in [false, true] {
        let (rig, looked) = (Arc::new(Rig::seeded(1)), Arc::new(AtomicUsize::new(0)));
        let (stream, memory) = (rig.stream(), rig.memory(8));
        if fails {
            rig.device.fail_late(0, 700);
        }
        rig.fill(memory, 1, 8, stream);
        let held = Looks(rig.clone(), looked.clone());
        ok(rig.device.launch(stream, &[], &[], move || drop(held)));
        assert_eq!((rig.cu.cuStreamSynchronize)(stream), if fails { 700 } else { 0 });
        assert_eq!(looked.load(Ordering::SeqCst), 1);
        // A kernel that is refused is let go as well.
        let held = Looks(rig.clone(), looked.clone());
        assert_ne!(rig.device.launch(77 << 32, &[], &[], move || drop(held)), 0);
        assert_eq!(looked.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn times_of_events_go_up() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let (stream, memory, mut start, mut end) = (rig.stream(), rig.memory(8), 0, 0);
        ok((rig.cu.cuEventCreate)(&mut start, 0));
        ok((rig.cu.cuEventCreate)(&mut end, 0));
        let mut time = -1.0;
        assert_eq!((rig.cu.cuEventElapsedTime)(&mut time, start, end), 400);
        rig.one_violation("never recorded");
        rig.record(start, stream);
        rig.fill(memory, 1, 8, stream);
        rig.record(end, stream);
        assert_eq!((rig.cu.cuEventElapsedTime)(&mut time, start, end), 600);
        rig.sync(stream);
        ok((rig.cu.cuEventElapsedTime)(&mut time, start, end));
        assert!(time > 0.0 && time < 1.0, "{time}");
        ok((rig.cu.cuEventElapsedTime_v2)(&mut time, end, start));
        assert!(time < 0.0);
        rig.device.check();
    }
}

#[test]
fn contexts_of_a_device_are_apart() {
    let rig = Rig::seeded(1);
    let (stream, event, memory) = (rig.stream(), rig.event(), rig.memory(8));
    rig.fill(memory, 1, 8, stream);
    rig.record(event, stream);
    let mut other = 0;
    ok((rig.cu.cuCtxCreate_v2)(&mut other, 0, rig.device.ordinal()));
    let (mine, mut my_event, my_memory) = (rig.stream(), 0, rig.memory(8));
    ok((rig.cu.cuEventCreate)(&mut my_event, 2));
    assert_eq!((rig.cu.cuMemsetD8Async)(my_memory, 1, 8, stream), 400);
    rig.one_violation("of another context");
    assert_eq!((rig.cu.cuMemsetD8Async)(memory, 1, 8, mine), 1);
    rig.one_violation("memory of another context");
    assert_eq!((rig.cu.cuMemFree_v2)(memory), 1);
    rig.one_violation("not the base of an allocation of this context");
    assert_eq!((rig.cu.cuEventRecord)(event, mine), 400);
    rig.one_violation("of another context than the stream");
    // An event of another context can be waited for.
    rig.wait(mine, event);
    rig.sync(mine);
    assert_eq!(rig.device.peek(memory, 8), [1; 8]);
    // Waiting for one context is not waiting for another.
    rig.fill(my_memory, 1, 8, mine);
    ok((rig.cu.cuCtxSetCurrent)(rig.context));
    ok((rig.cu.cuCtxSynchronize)());
    ok((rig.cu.cuCtxDestroy_v2)(other));
    assert_eq!((rig.device.counts().streams, rig.device.counts().events, rig.device.counts().allocations), (1, 1, 1));
    rig.device.check();
}
