//! What is enqueued is enqueued: no call waits that need not, nothing is copied by way of other memory, and no order is
//! made with streams that are nobody's business.

use ftcache_cuda_emu::client::Config;
use ftcache_transfer::{Device, RowCopy, Stream};

use crate::cuda_world::CudaWorld;
use crate::raw::Engine;
use crate::support::{
    PAGE, Pages, contents, copy_all, copy_rows, current_device, emulated, line, register, rows, same_bytes, seeded,
    span, stream_of, tell_host, wait_for_host, world_without,
};

#[test]
fn calls_that_enqueue_never_wait_whatever_is_on_its_way() {
    for (seed, hidden) in [&[][..], &["cuStreamWaitValue32_v2"], &["cuMemcpyBatchAsync_v2"]].iter().enumerate() {
        let world = world_without(hidden, seeded(seed as u64));
        let engine = Engine::new(&world);
        let mut device = current_device(&world);
        device.probe_batches(0).unwrap();
        let host = Pages::new((1 << 20) + PAGE);
        register(&mut device, &host[1 << 20..]).unwrap();
        register(&mut device, &host[..1 << 20]).unwrap();
        let memory = device.allocate(1 << 20, 1).unwrap();
        let streams = [
            Stream::DEFAULT,
            device.create_stream().unwrap(),
            stream_of(engine.stream(true)),
            stream_of(engine.stream(false)),
        ];
        let events = [device.create_event().unwrap(), device.create_event().unwrap()];
        let before = (emulated(&world).blocking_calls(), emulated(&world).counts().pageable_copies);
        for round in 0..3 {
            for (at, &stream) in streams.iter().enumerate() {
                let offset = at as u64 * 300;
                let gaps =
                    RowCopy { source: rows(&host, 50), target: span(memory, offset, 60), row_bytes: 40, row_count: 5 };
                copy_rows(&mut device, stream, &gaps).unwrap();
                let (one, two) = host[..1 << 20].split_at(1 << 19);
                copy_all(&mut device, stream, &[line(one, memory, 0), line(two, memory, 1 << 19)]).unwrap();
                copy_all(&mut device, stream, &[gaps, line(&host[..9], memory, offset)]).unwrap();
                device.record(events[round % 2], stream).unwrap();
                device.wait(streams[(at + 1) % 4], events[round % 2]).unwrap();
                device.clear_rows(stream, &span(memory, offset, 60), 40, 5).unwrap();
                device.clear_rows(stream, &span(memory, offset, 40), 40, 5).unwrap();
                if device.waits_for_host() {
                    wait_for_host(&mut device, stream, host.word(1 << 20), 0).unwrap();
                    tell_host(&mut device, stream, host.word((1 << 20) + 8), 1).unwrap();
                }
                device.check_stream(stream).unwrap();
                device.has_passed(events[0]).unwrap();
                device.check().unwrap();
            }
        }
        assert_eq!(emulated(&world).blocking_calls(), before.0, "without {hidden:?}");
        assert_eq!(emulated(&world).counts().pageable_copies, before.1);
        let queued = emulated(&world).counts().queued;
        assert!(queued > 0, "everything is done already");
        device.synchronize_all().unwrap();
        assert_eq!(emulated(&world).blocking_calls(), before.0 + 1);
        drop(device);
    }
}

#[test]
fn what_is_enqueued_on_one_stream_waits_for_no_other() {
    for seed in 0..10 {
        let world = CudaWorld::emulated(seeded(seed));
        let engine = Engine::new(&world);
        let mut device = current_device(&world);
        let host = Pages::noise(seed, 2 * PAGE);
        register(&mut device, &host[..PAGE]).unwrap();
        register(&mut device, &host[PAGE..]).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let word = host.word(PAGE);
        word.store(0, std::sync::atomic::Ordering::Release);
        // The default stream, and with it every stream that keeps to its order, stands still.
        let blocked = [Stream::DEFAULT, stream_of(engine.stream(true))];
        for stream in blocked {
            wait_for_host(&mut device, stream, word, 1).unwrap();
        }
        let stream = device.create_stream().unwrap();
        let event = device.create_event().unwrap();
        copy_rows(&mut device, stream, &line(&host[..PAGE], memory, 0)).unwrap();
        device.record(event, stream).unwrap();
        device.synchronize(stream).unwrap();
        assert_eq!(device.has_passed(event), Ok(true));
        assert_eq!(emulated(&world).peek(memory.0, PAGE), host[..PAGE]);
        // Memory is zeroed beside it, too.
        let more = device.allocate(100, 1).unwrap();
        assert_eq!(emulated(&world).peek(more.0, 100), [0; 100]);
        assert!(emulated(&world).counts().queued >= 2);
        word.store(1, std::sync::atomic::Ordering::Release);
        device.synchronize_all().unwrap();
        drop(device);
        drop(engine);
        emulated(&world).check();
    }
}

/// Copies narrow rows into wide slots, with nothing allocated on the way.
fn narrow_rows_in_wide_slots(row_bytes: u64, stride: u64, row_count: u64, from_device: bool) {
    let memory_bytes = stride * row_count;
    let held = memory_bytes + if from_device { row_bytes * row_count } else { 0 };
    // Memory for the slots, and not a byte more.
    let world = CudaWorld::emulated(Config { memory_bytes: held, ..seeded(row_bytes) });
    let mut device = world.device();
    let host = Pages::noise(row_bytes, (row_bytes * row_count) as usize);
    register(&mut device, &host).unwrap();
    let memory = device.allocate(memory_bytes, 1).unwrap();
    let stream = device.create_stream().unwrap();
    let mut source = rows(&host, row_bytes);
    if from_device {
        let packed = device.allocate(row_bytes * row_count, 1).unwrap();
        copy_rows(&mut device, stream, &line(&host, packed, 0)).unwrap();
        source = span(packed, 0, row_bytes).into();
    }
    let allocations = ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostRegister_v2"];
    let before = allocations.map(|name| emulated(&world).calls(name));
    let copy = RowCopy { source, target: span(memory, 0, stride), row_bytes, row_count };
    copy_rows(&mut device, stream, &copy).unwrap();
    device.synchronize(stream).unwrap();
    assert_eq!(emulated(&world).counts().peak_bytes, held);
    assert_eq!(allocations.map(|name| emulated(&world).calls(name)), before);
    let found = contents(&mut device, memory, memory_bytes as usize);
    let (row_bytes, stride) = (row_bytes as usize, stride as usize);
    for row in 0..row_count as usize {
        let slot = &found[row * stride..][..stride];
        same_bytes(&slot[..row_bytes], &host[row * row_bytes..][..row_bytes], "the row");
        assert!(slot[row_bytes..].iter().all(|&byte| byte == 0), "the rest of slot {row}");
    }
    drop(device);
    world.check_gone();
}

#[test]
fn narrow_rows_in_wide_slots_write_their_own_bytes_and_take_no_memory() {
    // Worked case C2 by 1024, both banks, from either side; and unaligned beside it.
    for (row_bytes, stride) in [(3456, 12_288), (1728, 6144), (3457, 12_289), (2, 48)] {
        for from_device in [false, true] {
            narrow_rows_in_wide_slots(row_bytes, stride, 20, from_device);
        }
    }
}

#[test]
fn a_row_of_three_mebibytes_in_a_slot_of_twelve_takes_no_memory() {
    // Worked case C2: the narrow layout's gate/up row at the wide layout's stride.
    narrow_rows_in_wide_slots(3_538_944, 12_582_912, 2, false);
}
