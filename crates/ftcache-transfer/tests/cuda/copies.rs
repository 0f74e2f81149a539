//! Rows of any width between any strides, from the host and on the device, one by one and several: every byte is where
//! a slow and obvious model puts it, and no other has changed.

use ftcache_cuda_emu::client::Config;
use ftcache_testkit::Rng;
use ftcache_transfer::{BatchReport, CudaDevice, Device, DeviceError, DeviceSpan, Memory, RowCopy, Source, Stream};

use crate::cuda_world::CudaWorld;
use crate::support::{
    PAGE, Pages, contents, copy_all, copy_rows, emulated, line, register, rows, same_bytes, seeded, span,
};

/// What a copy does, byte by byte.
fn apply(copy: &RowCopy, host: &Pages, image: &mut [u8], memory: Memory) {
    let before = image.to_vec();
    for row in 0..copy.row_count as usize {
        for byte in 0..copy.row_bytes as usize {
            let target = copy.target.offset as usize + row * copy.target.stride as usize + byte;
            image[target] = match copy.source {
                Source::Host(span) => {
                    let first = span.base as usize - host.as_ptr() as usize;
                    host[first + row * span.stride as usize + byte]
                }
                Source::Device(span) => {
                    assert_eq!(span.memory, memory);
                    before[span.offset as usize + row * span.stride as usize + byte]
                }
            };
        }
    }
}

const HOST_BYTES: u64 = 4 * PAGE as u64;
const MEMORY_BYTES: u64 = 8192;

/// Rows of a few bytes up to some hundred, with strides of any size on both sides; targets begin in this part of the
/// memory and end there. Sources on the device are of the other half.
fn draw(rng: &mut Rng, host: &Pages, memory: Memory, part: std::ops::Range<u64>) -> RowCopy {
    let row_bytes = if rng.chance(1, 2) { rng.below(18) } else { 1 + rng.below(200) };
    let row_count = rng.below(7);
    // Packed in every fourth case on each side, so that both, one and neither are.
    let mut stride = |most| row_bytes + if rng.chance(1, 4) { 0 } else { rng.below(most) };
    let (source_stride, target_stride) = (stride(150), stride(60));
    let length = |stride: u64| row_count.max(1) * stride.max(row_bytes);
    let offset = part.start + rng.below(part.end - part.start - length(target_stride) + 1);
    let target = span(memory, offset, target_stride);
    let source = if rng.chance(1, 3) {
        let room = MEMORY_BYTES / 2 - length(source_stride);
        span(memory, MEMORY_BYTES / 2 + rng.below(room + 1), source_stride).into()
    } else {
        // Rows of the host may also overlap, or be one row again and again.
        let stride = if rng.chance(1, 8) { rng.below(row_bytes + 1) } else { source_stride };
        rows(&host[rng.below(HOST_BYTES - length(source_stride) + 1) as usize..], stride)
    };
    RowCopy { source, target, row_bytes, row_count }
}

/// A device with rows in four registrations, and memory that is full of other bytes.
fn prepare(world: &CudaWorld, host: &Pages) -> (CudaDevice, Memory, Stream) {
    let mut device = world.device();
    // One of four pages, one of one, one of three: rows lie across.
    let (one, rest) = host.split_at(PAGE);
    let (two, rest) = rest.split_at(PAGE);
    for part in [one, two, rest] {
        register(&mut device, part).unwrap();
    }
    let memory = device.allocate(MEMORY_BYTES, 1).unwrap();
    let stream = device.create_stream().unwrap();
    for (at, page) in [one, two].into_iter().enumerate() {
        copy_rows(&mut device, stream, &line(page, memory, (at * PAGE) as u64)).unwrap();
    }
    (device, memory, stream)
}

#[test]
fn every_byte_of_a_copy_arrives_and_nothing_else_is_touched() {
    for seed in 0..400 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(seed);
        let host = Pages::noise(seed, HOST_BYTES as usize);
        let (mut device, memory, stream) = prepare(&world, &host);
        let mut image = host[..MEMORY_BYTES as usize].to_vec();
        let mut copies = Vec::new();
        for _ in 0..4 {
            let copy = draw(&mut rng, &host, memory, 0..MEMORY_BYTES / 2);
            assert_eq!(copy.bytes(), copy.row_bytes * copy.row_count);
            copy_rows(&mut device, stream, &copy).unwrap_or_else(|error| panic!("seed {seed}: {error} {copy:?}"));
            apply(&copy, &host, &mut image, memory);
            copies.push(copy);
        }
        let context = format!("seed {seed}, {copies:?}");
        same_bytes(&contents(&mut device, memory, MEMORY_BYTES as usize), &image, &context);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn several_copies_are_those_copies_one_by_one() {
    for seed in 0..300 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(!seed);
        let host = Pages::noise(seed, HOST_BYTES as usize);
        let (mut device, memory, stream) = prepare(&world, &host);
        if rng.chance(1, 4) {
            device.probe_batches(0).unwrap();
        }
        let mut image = host[..MEMORY_BYTES as usize].to_vec();
        for stream in [stream, Stream::DEFAULT] {
            device.synchronize_all().unwrap();
            // No row is the target of two: each copy has a part of the memory of its own.
            let (part, count) = (2048, rng.below(4).min(2));
            let copies: Vec<RowCopy> = (0..count)
                .map(|at| draw(&mut rng, &host, memory, at * part..(at + 1) * part))
                .filter(|copy| copy.bytes() <= part)
                .collect();
            copy_all(&mut device, stream, &copies).unwrap_or_else(|error| panic!("seed {seed}: {error:?} {copies:?}"));
            copies.iter().for_each(|copy| apply(copy, &host, &mut image, memory));
        }
        let context = format!("seed {seed}");
        same_bytes(&contents(&mut device, memory, MEMORY_BYTES as usize), &image, &context);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn narrow_rows_go_at_any_offset() {
    let world = CudaWorld::new(1);
    let host = Pages::noise(1, HOST_BYTES as usize);
    let (mut device, memory, stream) = prepare(&world, &host);
    let mut image = host[..MEMORY_BYTES as usize].to_vec();
    for row_bytes in 1..=16 {
        for (gaps, at) in [((0, 0), 0), ((1, 0), 1), ((0, 3), 2), ((15, 7), 3), ((5, 5), 5)] {
            for from_host in [true, false] {
                let (source_stride, target_stride) = (row_bytes + gaps.0, row_bytes + gaps.1);
                let source = match from_host {
                    true => rows(&host[1 + 3 * at as usize..], source_stride),
                    false => span(memory, 6001 + 3 * at, source_stride).into(),
                };
                let offset = 200 * row_bytes + 7 * at;
                let copy = RowCopy { source, target: span(memory, offset, target_stride), row_bytes, row_count: 5 };
                copy_rows(&mut device, stream, &copy).unwrap();
                apply(&copy, &host, &mut image, memory);
            }
        }
    }
    same_bytes(&contents(&mut device, memory, MEMORY_BYTES as usize), &image, "narrow rows");
    drop(device);
    world.check_gone();
}

#[test]
fn zeros_go_over_rows_and_not_between_them() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        // MAX_PITCH: of any size, or narrower than many strides here.
        let attributes = if rng.chance(1, 2) { vec![] } else { vec![(11, 40)] };
        let world = CudaWorld::emulated(Config { attributes, ..seeded(seed) });
        let host = Pages::noise(seed, HOST_BYTES as usize);
        let (mut device, memory, stream) = prepare(&world, &host);
        let mut image = host[..MEMORY_BYTES as usize].to_vec();
        for _ in 0..4 {
            let (row_bytes, row_count) = (rng.below(70), rng.below(8));
            let stride = row_bytes + rng.below(3) * rng.below(60);
            let offset = rng.below(MEMORY_BYTES - 8 * 190);
            device.clear_rows(stream, &span(memory, offset, stride), row_bytes, row_count).unwrap();
            for row in 0..row_count {
                image[(offset + row * stride) as usize..][..row_bytes as usize].fill(0);
            }
        }
        same_bytes(&contents(&mut device, memory, MEMORY_BYTES as usize), &image, &format!("seed {seed}"));
        drop(device);
        world.check_gone();
    }
}

#[test]
fn strides_wider_than_the_device_takes_go_row_by_row() {
    // MAX_PITCH.
    let world = CudaWorld::emulated(Config { attributes: vec![(11, 300)], ..seeded(2) });
    let host = Pages::noise(2, HOST_BYTES as usize);
    let (mut device, memory, stream) = prepare(&world, &host);
    let mut image = host[..MEMORY_BYTES as usize].to_vec();
    let calls = |name| emulated(&world).calls(name);
    let mut one_by_one = calls("cuMemcpyHtoDAsync_v2");
    for (source_stride, target_stride, together) in [(300, 300, 1), (301, 300, 0), (300, 301, 0), (700, 500, 0)] {
        let (before, target) = (calls("cuMemcpy2DAsync_v2"), span(memory, 3, target_stride));
        let copy = RowCopy { source: rows(&host[PAGE * 2..], source_stride), target, row_bytes: 290, row_count: 5 };
        copy_rows(&mut device, stream, &copy).unwrap();
        apply(&copy, &host, &mut image, memory);
        assert_eq!(calls("cuMemcpy2DAsync_v2") - before, together);
        one_by_one += 5 * (1 - together);
        assert_eq!(calls("cuMemcpyHtoDAsync_v2"), one_by_one);
        let source = span(memory, 5000, source_stride).into();
        let copy = RowCopy { source, row_bytes: 90, ..copy };
        copy_rows(&mut device, stream, &copy).unwrap();
        apply(&copy, &host, &mut image, memory);
    }
    same_bytes(&contents(&mut device, memory, MEMORY_BYTES as usize), &image, "wide strides");
    drop(device);
    world.check_gone();
}

#[test]
fn rows_outside_the_memory_are_refused_and_nothing_is_copied() {
    let world = CudaWorld::new(3);
    let host = Pages::noise(3, HOST_BYTES as usize);
    let (mut device, memory, stream) = prepare(&world, &host);
    let other = device.allocate(40, 1).unwrap();
    let good = RowCopy { source: rows(&host, 2), target: span(memory, 0, 9), row_bytes: 2, row_count: 6 };
    let out =
        |offset, bytes, memory_bytes| DeviceError::OutOfBounds { operation: "row copy", offset, bytes, memory_bytes };
    let unknown = |memory: Memory| DeviceError::UnknownHandle { what: "memory", handle: memory.0 };
    let nowhere = Memory(memory.0 + 1);
    let device_rows = |offset, stride| Source::Device(DeviceSpan { memory: other, offset, stride });
    let cases = [
        (RowCopy { target: span(other, 0, 9), ..good }, out(0, 47, 40)),
        (RowCopy { target: span(other, 39, 1), row_count: 1, ..good }, out(39, 2, 40)),
        (RowCopy { target: span(other, u64::MAX - 7, 9), ..good }, out(u64::MAX - 7, 47, 40)),
        (RowCopy { target: span(other, 0, u64::MAX / 2), ..good }, out(0, u64::MAX, 40)),
        (RowCopy { target: span(nowhere, 0, 9), ..good }, unknown(nowhere)),
        (RowCopy { source: device_rows(0, 9), ..good }, out(0, 47, 40)),
        (RowCopy { source: device_rows(41, 9), row_count: 0, ..good }, out(41, 0, 40)),
        (RowCopy { source: span(nowhere, 0, 2).into(), ..good }, unknown(nowhere)),
    ];
    for (copy, wanted) in cases {
        assert_eq!(copy_rows(&mut device, stream, &copy), Err(wanted.clone()), "{copy:?}");
        let refused = copy_all(&mut device, stream, &[RowCopy { row_count: 0, ..good }, copy, good]).unwrap_err();
        assert_eq!((refused.index, refused.source), (1, wanted));
    }
    same_bytes(&contents(&mut device, memory, 8192), &host[..8192], "nothing was copied");
    assert_eq!(contents(&mut device, other, 40), [0; 40]);
    // The last row ends with the memory, without a last stride.
    copy_rows(&mut device, stream, &RowCopy { target: span(other, 3, 7), ..good }).unwrap();
    drop(device);
    world.check_gone();
}

#[test]
fn batches_give_the_bytes_that_single_copies_give() {
    const WIDE: usize = 256 << 10;
    for seed in 0..12 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(seed);
        let host = Pages::noise(seed, 4 * WIDE);
        let (one, two) = host.split_at(WIDE + 3 * PAGE);
        let mut images = Vec::new();
        let small = rng.below(2000) as usize;
        for batches in [true, false] {
            let mut device = world.device();
            if batches {
                let report = device.probe_batches(0).unwrap();
                assert!(world.emulated.is_none() || matches!(report, BatchReport::On { .. }), "{report}");
            }
            register(&mut device, one).unwrap();
            register(&mut device, two).unwrap();
            let memory = device.allocate(6 * WIDE as u64, 1).unwrap();
            let stream = device.create_stream().unwrap();
            let (row_bytes, stride) = (WIDE as u64 + 100, WIDE as u64 + 228);
            // Across the two registrations, with gaps; small rows; and rows that were there.
            let wide = RowCopy {
                source: rows(&host[5..], row_bytes),
                target: span(memory, 1, stride),
                row_bytes,
                row_count: 2,
            };
            let narrow = RowCopy {
                source: rows(&host[small..], 9),
                target: span(memory, 3 * stride, 16),
                row_bytes: 7,
                row_count: 3,
            };
            copy_all(&mut device, stream, &[wide, narrow]).unwrap();
            let source = span(memory, 1, stride).into();
            let again = RowCopy { source, target: span(memory, 3 * stride + 64, row_bytes), row_bytes, row_count: 2 };
            let last = line(&host[small..small + 3], memory, 2 * stride + 5);
            copy_all(&mut device, stream, &[last, again]).unwrap();
            images.push(contents(&mut device, memory, 6 * WIDE));
        }
        same_bytes(&images[0], &images[1], &format!("seed {seed}"));
        let row = &images[0][1..][..WIDE + 100];
        same_bytes(row, &host[5..][..WIDE + 100], &format!("seed {seed}"));
        world.check_gone();
    }
}
