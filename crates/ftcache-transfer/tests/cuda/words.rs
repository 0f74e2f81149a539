//! Words that streams wait for and raise by themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ftcache_cuda_emu::client::Config;
use ftcache_transfer::{CudaDevice, Device, HostAccess, Stream};

use crate::cuda_world::CudaWorld;
use crate::support::{
    PAGE, Pages, code, contents, copy_rows, emulated, line, register, register_as, seeded, stream_of, tell_host,
    wait_for_host, world_without,
};

const WAIT: &str = "cuStreamWaitValue32_v2";
const WRITE: &str = "cuStreamWriteValue32_v2";

/// Rows in one registration, words in another.
struct Host {
    rows: Pages,
    words: Pages,
}

fn prepare(device: &mut CudaDevice) -> Host {
    let host = Host { rows: Pages::new(PAGE), words: Pages::new(PAGE) };
    register(device, &host.rows).unwrap();
    register(device, &host.words).unwrap();
    host
}

/// Another thread fills rows and says so; a stream copies them then and says that they are free again.
fn rows_are_bounced(world: &CudaWorld, first: u32) {
    const ROUNDS: u32 = 4;
    const ROW: usize = 1000;
    let mut device = world.device();
    let host = prepare(&mut device);
    let memory = device.allocate(u64::from(ROUNDS) * ROW as u64, 1).unwrap();
    let stream = device.create_stream().unwrap();
    let (filled, free) = (host.words.word(0), host.words.word(64));
    filled.store(first.wrapping_sub(1), Ordering::Release);
    free.store(first, Ordering::Release);
    let row = &host.rows[..ROW];
    let base = row.as_ptr() as usize;
    for round in 0..ROUNDS {
        wait_for_host(&mut device, stream, filled, first.wrapping_add(round)).unwrap();
        copy_rows(&mut device, stream, &line(row, memory, u64::from(round) * ROW as u64)).unwrap();
        tell_host(&mut device, stream, free, first.wrapping_add(round + 1)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                // At or past it, so that a device that waits for nobody ends this, too.
                while (free.load(Ordering::Acquire).wrapping_sub(first.wrapping_add(round)) as i32) < 0 {
                    std::thread::yield_now();
                }
                // A copy that does not wait gets time to do harm.
                std::thread::sleep(Duration::from_millis(2));
                // SAFETY: the row is in place, and the stream neither has come to its next copy nor is in one.
                unsafe { (base as *mut u8).write_bytes(1 + round as u8, ROW) };
                filled.store(first.wrapping_add(round), Ordering::Release);
            }
        });
        device.synchronize(stream).unwrap();
    });
    assert_eq!(free.load(Ordering::Acquire), first.wrapping_add(ROUNDS));
    let wanted: Vec<u8> = (0..ROUNDS).flat_map(|round| [1 + round as u8; ROW]).collect();
    assert_eq!(contents(&mut device, memory, wanted.len()), wanted);
    drop(device);
    world.check_gone();
}

#[test]
fn rows_that_another_thread_fills_are_copied_when_it_says_so() {
    for seed in 0..4 {
        let world = CudaWorld::new(seed);
        // Counted around the end of 32 bits, too.
        for first in [1, u32::MAX - 1, i32::MAX as u32 - 1] {
            rows_are_bounced(&world, first);
        }
        if let Some(emulated) = &world.emulated {
            assert_eq!([WAIT, WRITE].map(|name| emulated.calls(name)), [12, 12]);
        }
    }
}

#[test]
fn a_device_whose_streams_do_not_wait_for_words_says_so_and_does_nothing() {
    // CAN_USE_64_BIT_STREAM_MEM_OPS.
    let without = CudaWorld::emulated(Config { attributes: vec![(122, 0)], ..seeded(1) });
    for world in [without, world_without(&[WAIT], seeded(2)), world_without(&[WRITE], seeded(3))] {
        let mut device = world.device();
        let host = prepare(&mut device);
        let stream = device.create_stream().unwrap();
        assert!(!device.waits_for_host() && !device.facts().waits_for_words);
        for refused in [
            wait_for_host(&mut device, stream, host.words.word(0), 0),
            tell_host(&mut device, stream, host.words.word(0), 1),
        ] {
            let text = refused.unwrap_err().to_string();
            assert_eq!(text, "word of 4 bytes: this device's streams do not wait for words of the host's");
        }
        assert_eq!(emulated(&world).counts().queued, 0);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_stream_stands_still_until_the_word_is_raised_and_goes_on_at_any_later_value() {
    for (seed, (value, before, after)) in
        [(5, 4, 5), (5, 0, 9), (0, u32::MAX, 0), (1, u32::MAX, 7), (u32::MAX, u32::MAX - 1, 3)].into_iter().enumerate()
    {
        let world = CudaWorld::new(seed as u64);
        let mut device = world.device();
        let host = prepare(&mut device);
        let memory = device.allocate(64, 1).unwrap();
        let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
        let word = host.words.word(16);
        word.store(before, Ordering::Release);
        wait_for_host(&mut device, stream, word, value).unwrap();
        copy_rows(&mut device, stream, &line(&host.rows[..64], memory, 0)).unwrap();
        tell_host(&mut device, stream, host.words.word(20), 77).unwrap();
        device.record(event, stream).unwrap();
        for _ in 0..200 {
            assert_eq!(device.has_passed(event), Ok(false), "{value} after {before}");
        }
        assert_eq!(host.words.word(20).load(Ordering::Acquire), 0);
        word.store(after, Ordering::Release);
        device.synchronize(stream).unwrap();
        assert_eq!(host.words.word(20).load(Ordering::Acquire), 77);
        assert_eq!(word.load(Ordering::Acquire), after, "a wait writes nothing");
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_word_is_raised_after_what_was_enqueued_before() {
    for seed in 0..20 {
        let world = CudaWorld::emulated(seeded(seed));
        let mut device = world.device();
        let host = prepare(&mut device);
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let stream = device.create_stream().unwrap();
        copy_rows(&mut device, stream, &line(&host.rows, memory, 0)).unwrap();
        device.clear_rows(stream, &crate::support::span(memory, 0, 8), 8, 1).unwrap();
        tell_host(&mut device, stream, host.words.word(0), 3).unwrap();
        let seen = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while host.words.word(0).load(Ordering::Acquire) != 3 {
                    std::thread::yield_now();
                }
                seen.store(emulated(&world).peek(memory.0, 8) == [0; 8], Ordering::Release);
            });
            device.synchronize(stream).unwrap();
        });
        assert!(seen.into_inner(), "seed {seed}");
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_word_in_no_registered_memory_is_refused_and_nothing_is_enqueued() {
    let world = CudaWorld::emulated(seeded(6));
    let mut device = world.device();
    let host = prepare(&mut device);
    let loose = Pages::new(PAGE);
    let stream = device.create_stream().unwrap();
    let refused = [
        wait_for_host(&mut device, stream, loose.word(0), 0).unwrap_err(),
        tell_host(&mut device, stream, loose.word(0), 1).unwrap_err(),
    ];
    for refused in refused {
        let text = refused.to_string();
        assert_eq!(code(&refused), 1, "{text}");
        assert_eq!(text, "word of 4 bytes: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    }
    assert_eq!(emulated(&world).counts().queued, 0);
    assert_eq!([WAIT, WRITE].map(|name| emulated(&world).calls(name)), [0; 2]);
    emulated(&world).violations();
    // A stream that is not there.
    let gone = stream_of(stream.raw() + (1 << 20));
    assert_eq!(code(&wait_for_host(&mut device, gone, host.words.word(0), 0).unwrap_err()), 400);
    assert_eq!(code(&tell_host(&mut device, gone, host.words.word(0), 0).unwrap_err()), 400);
    emulated(&world).violations();
    device.unregister(host.words.as_ptr()).unwrap();
    assert!(wait_for_host(&mut device, stream, host.words.word(0), 0).is_err());
    emulated(&world).violations();
    drop(device);
    world.check_gone();
}

#[test]
fn a_word_in_memory_that_is_registered_to_be_read_can_be_waited_for() {
    let world = CudaWorld::emulated(seeded(8));
    let mut device = world.device();
    let words = Pages::new(PAGE);
    register_as(&mut device, &words, HostAccess::ReadOnly).unwrap();
    wait_for_host(&mut device, Stream::DEFAULT, words.word(0), 0).unwrap();
    device.synchronize_all().unwrap();
    drop(device);
    world.check_gone();
}
