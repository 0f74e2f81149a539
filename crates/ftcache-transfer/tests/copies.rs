//! Rows of any width between any strides: exact to the byte, and nothing else touched.

mod support;

use ftcache_policy::{BankId, Budget, Constraints, Geometry, LayerId, LayoutKey, Model, Quantisation};
use ftcache_testkit::Rng;
use ftcache_transfer::{
    BankError, Device, DeviceSpan, HostAccess, HostDevice, HostMemory, HostRows, HostSpan, LiveObjects, Loader,
    RegisterError, RowCopy, Stream,
};
use support::Watched;

const UNTOUCHED: u8 = 0x5A;

/// One copy and what it must come to, on a device whose memory is filled with `UNTOUCHED`.
#[derive(Debug, Clone, Copy)]
struct Shape {
    row_bytes: u64,
    row_count: u64,
    host_base: u64,
    host_stride: u64,
    device_offset: u64,
    device_stride: u64,
    /// Bytes of the memory after the last row's end.
    after: u64,
}

fn check(shape: Shape, mut device: HostDevice, context: &str) {
    let Shape { row_bytes, row_count, host_base, host_stride, device_offset, device_stride, after } = shape;
    let rows = row_count.max(1) - 1;
    let mut source = vec![0_u8; (host_base + rows * host_stride + row_bytes) as usize];
    for (at, byte) in source.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(97).wrapping_add((at >> 8) as u8);
    }
    let memory_bytes = device_offset + rows * device_stride + row_bytes + after;
    let memory = device.allocate(memory_bytes, 1).unwrap();
    support::write(&mut device, Stream::DEFAULT, memory, 0, vec![UNTOUCHED; memory_bytes as usize].leak()).unwrap();
    device.synchronize(Stream::DEFAULT).unwrap();

    let copy = RowCopy {
        source: HostSpan { base: source[host_base as usize..].as_ptr(), stride: host_stride }.into(),
        target: DeviceSpan { memory, offset: device_offset, stride: device_stride },
        row_bytes,
        row_count,
    };
    assert_eq!(copy.bytes(), row_bytes * row_count);
    // SAFETY: `source` holds `row_count` rows from the base on, and is left alone until it is dropped, after the read.
    unsafe { device.copy_rows(Stream::DEFAULT, &copy) }.unwrap_or_else(|error| panic!("{context}: {error} {shape:?}"));
    let mut wanted = vec![UNTOUCHED; memory_bytes as usize];
    for row in 0..row_count {
        for byte in 0..row_bytes {
            wanted[(device_offset + row * device_stride + byte) as usize] =
                source[(host_base + row * host_stride + byte) as usize];
        }
    }
    let mut bytes = vec![0; memory_bytes as usize];
    device.read(memory, 0, &mut bytes).unwrap();
    drop(source);
    if let Some(at) = (0..bytes.len()).find(|&at| bytes[at] != wanted[at]) {
        panic!("{context}: byte {at} is {:#x} and not {:#x}, {shape:?}", bytes[at], wanted[at]);
    }
}

#[test]
fn rows_of_any_width_and_strides_arrive_and_nothing_else_is_touched() {
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let row_bytes = 1 + rng.below(70);
        // Packed in every fourth case on each side, so that both, one and neither are.
        let mut stride = |most| row_bytes + if rng.chance(1, 4) { 0 } else { rng.below(most) };
        let (host_stride, device_stride) = (stride(40), stride(40));
        let shape = Shape {
            row_bytes,
            row_count: rng.below(6),
            host_base: rng.below(17),
            host_stride,
            device_offset: rng.below(40),
            device_stride,
            after: rng.below(40),
        };
        let device = if rng.chance(1, 2) { HostDevice::new() } else { HostDevice::deferred(seed) };
        check(shape, device, &format!("seed {seed}"));
    }
}

#[test]
fn every_width_to_70_bytes_works_packed_and_padded_on_either_side() {
    for row_bytes in 1..=70 {
        for (host_gap, device_gap) in [(0, 0), (0, 3), (5, 0), (16, 16), (1, 31)] {
            let shape = Shape {
                row_bytes,
                row_count: 3,
                host_base: 1,
                host_stride: row_bytes + host_gap,
                device_offset: 7,
                device_stride: row_bytes + device_gap,
                after: 9,
            };
            check(shape, HostDevice::new(), &format!("{row_bytes} bytes"));
        }
    }
}

#[test]
fn rows_of_two_bytes_leave_their_neighbours_alone() {
    for (host_stride, device_stride) in [(2, 2), (2, 16), (3, 2), (16, 5)] {
        let shape =
            Shape { row_bytes: 2, row_count: 5, host_base: 1, host_stride, device_offset: 1, device_stride, after: 1 };
        check(shape, HostDevice::new(), "2 bytes");
    }
}

#[test]
fn a_narrow_row_in_a_wide_slot_writes_its_own_bytes_and_takes_no_memory() {
    // Worked case C2: the narrow layout's gate/up row at the wide layout's stride.
    let (row_bytes, stride) = (3_538_944, 12_582_912);
    let shape = Shape {
        row_bytes,
        row_count: 2,
        host_base: 0,
        host_stride: row_bytes,
        device_offset: 0,
        device_stride: stride,
        after: stride - row_bytes,
    };
    // Memory for the two slots and not a byte more.
    check(shape, HostDevice::new().with_limit(2 * stride), "C2");
}

#[test]
fn no_rows_is_a_copy_that_does_nothing() {
    let shape = Shape {
        row_bytes: 8,
        row_count: 0,
        host_base: 0,
        host_stride: 8,
        device_offset: 0,
        device_stride: 8,
        after: 4,
    };
    check(shape, HostDevice::new(), "no rows");
    check(Shape { device_stride: 12, ..shape }, HostDevice::deferred(1), "no rows, padded");
}

#[test]
fn memory_of_the_engines_is_pinned_in_parts_and_let_go_with_the_loader() {
    let rows: Vec<u8> = (0..4 * 100).map(|byte| byte as u8).collect();
    let model = Model::new(4, 1, Quantisation::PerLayer, vec![LayoutKey::tagged("t", [100])]).unwrap();
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(2))).unwrap();
    let device = Watched::new(HostDevice::new().reading_registered_only());
    let mut loader = Loader::new(geometry, device.clone()).unwrap();
    // SAFETY: the rows outlive the loader, and nothing changes them.
    let borrowed = || unsafe { HostRows::borrowed(rows.as_ptr(), 400, 0) };
    let (layer, bank) = (LayerId::new(0), BankId::new(0));
    assert_eq!(loader.attach(layer, bank, borrowed()), Err(BankError::NotPinned { layer, bank }.into()));
    // SAFETY: as above.
    let memory = unsafe { HostMemory::borrowed(rows.as_ptr(), 400) };
    loader.register(memory, HostAccess::ReadOnly, 150).unwrap();
    assert_eq!(device.get().host.live_objects().registrations, 3);
    loader.attach(layer, bank, borrowed()).unwrap();
    assert_eq!(loader.is_direct(layer, bank), Some(true));
    // SAFETY: as above.
    let part = unsafe { HostMemory::borrowed(rows[10..].as_ptr(), 1) };
    let again = loader.register(part, HostAccess::ReadOnly, 0).unwrap_err();
    assert!(matches!(again, RegisterError::Overlap { bytes: 1, other_bytes: 400, .. }), "{again}");
    loader.unregister(rows.as_ptr()).unwrap();
    assert!(matches!(loader.unregister(rows.as_ptr()), Err(RegisterError::Unknown { .. })));
    // SAFETY: as above.
    loader.register(memory, HostAccess::ReadOnly, 0).unwrap();
    drop(loader);
    assert_eq!(device.get().host.live_objects(), LiveObjects::default());
}
