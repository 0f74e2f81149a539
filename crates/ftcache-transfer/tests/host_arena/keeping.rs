//! What is pinned and locked, and what follows when that is refused.

use std::ops::ControlFlow;

use ftcache_policy::{BankId, LayerId};
use ftcache_transfer::{
    ArenaError, ArenaOptions, DeviceError, Direct, HostArena, Pinning, Progress, Refusal, Residence, Unpinned,
};

use super::pinning::PinningDevice;
use super::sources::Sources;
use super::{load, options};

const PAGE: u64 = 4096;

/// Four layers; the rows of a bank are pages, or halves of them.
fn paged_layers() -> Sources {
    let mut sources = Sources::new(1);
    for layer in 0..4 {
        sources.contiguous(layer, 0, PAGE, 8, 0, 0);
        sources.contiguous(layer, 1, PAGE / 2, 8, 0, 0);
    }
    sources.written()
}

fn residences(arena: &HostArena) -> Vec<Residence> {
    arena.report().layers.iter().map(|layer| layer.residence).collect()
}

/// What the device has is what the report says, and all of it is of layers that are pinned as a whole.
fn check(arena: &HostArena, device: &PinningDevice) {
    let report = arena.report();
    assert_eq!(device.registered_bytes(), report.page_bytes(Residence::Pinned));
    assert_eq!(device.registered.len(), report.registration_count());
    for layer in &report.layers {
        assert_eq!(arena.residence(layer.layer), Some(layer.residence));
        assert_eq!(layer.residence == Residence::Pinned, layer.unpinned.is_none(), "{layer:?}");
    }
}

fn free(mut arena: HostArena, mut device: PinningDevice) {
    arena.free(&mut device).unwrap();
    arena.free(&mut device).unwrap();
    device.assert_clear();
    assert_eq!(arena.report().layer_count(Residence::Pinned), 0);
}

#[test]
fn every_bank_is_one_registration_of_its_own_pages() {
    let sources = Sources::layers(3, 6000, 5);
    let mut device = PinningDevice::default();
    let arena = load(&sources, options(), &mut device).unwrap();
    check(&arena, &device);
    assert_eq!(device.registered.len(), 6);
    for (&base, &bytes) in &device.registered {
        assert!(base.is_multiple_of(PAGE as usize) && bytes.is_multiple_of(PAGE));
    }
    for bank in &sources.banks {
        let rows = arena.bytes(bank.layer, bank.bank).unwrap();
        let (&base, &bytes) = device.registered.range(..=rows.as_ptr().addr()).next_back().unwrap();
        assert!(rows.as_ptr().addr() + rows.len() <= base + bytes as usize);
        assert!(arena.cut_rows(bank.layer, bank.bank).is_empty());
    }
    assert_eq!(arena.residence(LayerId::new(3)), None);
    free(arena, device);
}

#[test]
fn registrations_are_no_longer_than_asked_and_cut_between_rows() {
    let sources = paged_layers();
    let options = ArenaOptions { register_bytes: 3 * PAGE, ..options() };
    let mut device = PinningDevice::default();
    let arena = load(&sources, options, &mut device).unwrap();
    check(&arena, &device);
    assert_eq!(device.call_bytes_max, 3 * PAGE);
    assert_eq!(arena.report().registration_count(), 4 * (3 + 2));
    let (layer, [pages, halves]) = (LayerId::new(2), [0, 1].map(BankId::new));
    assert_eq!(arena.cut_rows(layer, pages), [3, 6]);
    assert_eq!(arena.cut_rows(layer, halves), [6]);
    sources.assert_in(&arena);
    free(arena, device);
}

#[test]
fn a_budget_is_spent_on_whole_layers_and_never_exceeded() {
    let sources = paged_layers();
    // A layer is 12 pages.
    for (pages, pinned_count) in [(0, 0), (11, 0), (12, 1), (35, 2), (36, 3), (47, 3), (48, 4), (100, 4)] {
        let pinning = Pinning::Budget(pages * PAGE);
        let options = ArenaOptions { pinning, direct: Direct::Never, ..options() };
        let mut device = PinningDevice::default();
        let arena = load(&sources, options, &mut device).unwrap();
        check(&arena, &device);
        assert_eq!(arena.report().layer_count(Residence::Pinned), pinned_count, "{pages} pages");
        assert!(device.bytes_max <= pages * PAGE);
        if pages == 35 {
            let text = "196608 bytes in 4 layers: 2 pinned (98304 bytes in 4 registrations), 2 pageable (98304 bytes)";
            assert_eq!(arena.report().to_string(), text);
        }
        let unpinned: Vec<_> = arena.report().layers.iter().filter_map(|layer| layer.unpinned).collect();
        let left_bytes = (pages - 12 * pinned_count as u64) * PAGE;
        assert_eq!(unpinned, vec![Unpinned::Budget { needed_bytes: 12 * PAGE, left_bytes }; 4 - pinned_count]);
        free(arena, device);
    }
}

#[test]
fn layers_of_the_cpu_are_never_registered_and_take_nothing_of_the_budget() {
    let sources = paged_layers();
    let cpu_layers = vec![LayerId::new(0), LayerId::new(2)];
    for pinning in [Pinning::All, Pinning::Budget(24 * PAGE)] {
        let options = ArenaOptions { cpu_layers: cpu_layers.clone(), pinning, ..options() };
        let mut device = PinningDevice::default();
        let arena = load(&sources, options, &mut device).unwrap();
        check(&arena, &device);
        let unpinned: Vec<_> = arena.report().layers.iter().map(|layer| layer.unpinned).collect();
        assert_eq!(unpinned, [Some(Unpinned::Cpu), None, Some(Unpinned::Cpu), None]);
        for layer in &cpu_layers {
            let rows = arena.bytes(*layer, BankId::new(0)).unwrap().as_ptr_range();
            let (begin, end) = (rows.start.addr(), rows.end.addr());
            assert!(device.registered.iter().all(|(&base, &bytes)| base >= end || base + bytes as usize <= begin));
        }
        sources.assert_in(&arena);
        free(arena, device);
    }
}

#[test]
fn a_refusal_is_an_error_that_undoes_everything() {
    let sources = paged_layers();
    for refused_at in 0..8 {
        let mut device = PinningDevice { refuse_from: Some(refused_at), ..PinningDevice::default() };
        let error = load(&sources, options(), &mut device).unwrap_err();
        let ArenaError::Pin(refusal) = &error else { panic!("{error}") };
        assert!([4 * PAGE, 8 * PAGE].contains(&refusal.wanted_bytes), "{error}");
        assert_eq!(refusal.pinned_bytes, device.bytes_max);
        assert_eq!(device.begun_count, refused_at);
        device.assert_clear();
    }
}

#[test]
fn a_refusal_can_be_served_by_the_cpu_and_nothing_is_tried_after_it() {
    let sources = paged_layers();
    for reader_count in [1, 4] {
        for refused_at in 0..20 {
            let register_bytes = 3 * PAGE;
            let options = ArenaOptions { refusal: Refusal::Serve, reader_count, register_bytes, ..options() };
            let mut device = PinningDevice { refuse_once: Some(refused_at), ..PinningDevice::default() };
            let arena = load(&sources, options, &mut device).unwrap();
            check(&arena, &device);
            sources.assert_in(&arena);
            assert_eq!(device.call_count, refused_at + 1, "none is tried after it");
            let refused = arena.report().layers.iter().filter(|layer| layer.unpinned == Some(Unpinned::Refused));
            let named = arena.report().pin_refusal.as_ref().unwrap().layer;
            assert_eq!(refused.map(|layer| layer.layer).collect::<Vec<_>>(), [named]);
            if reader_count == 1 {
                let pinned_count = refused_at / 5;
                let expected = [vec![Residence::Pinned; pinned_count], vec![Residence::Pageable; 4 - pinned_count]];
                assert_eq!(residences(&arena), expected.concat());
            }
            free(arena, device);
        }
    }
}

#[test]
fn a_refusal_can_be_met_with_smaller_registrations() {
    let sources = paged_layers();
    let refusal = Refusal::Halve { least_bytes: 2 * PAGE };
    // What one call may take is found by halving: 8, 4, 2 pages.
    let mut device = PinningDevice { call_limit_bytes: Some(3 * PAGE), ..PinningDevice::default() };
    let options = || ArenaOptions { refusal, reader_count: 1, ..options() };
    let arena = load(&sources, options(), &mut device).unwrap();
    check(&arena, &device);
    assert_eq!(arena.report().layer_count(Residence::Pinned), 4);
    assert_eq!((arena.report().register_bytes, device.call_bytes_max), (2 * PAGE, 2 * PAGE));
    assert_eq!(arena.report().pin_refusal.as_ref().unwrap().wanted_bytes, 4 * PAGE);
    assert_eq!(device.call_count, 2 + 4 * 6, "what was refused once is not asked for again");
    free(arena, device);

    // Less than the least is never tried.
    let mut device = PinningDevice { call_limit_bytes: Some(PAGE), ..PinningDevice::default() };
    let arena = load(&sources, options(), &mut device).unwrap();
    check(&arena, &device);
    assert_eq!((device.call_count, device.begun_count), (3, 0));
    assert_eq!(residences(&arena), [Residence::Pageable; 4]);
    sources.assert_in(&arena);

    // A limit of all bytes: as many layers as fit.
    for pages in [0, 5, 12, 20, 24, 30, 47] {
        let limit_bytes = Some(pages * PAGE);
        let mut device = PinningDevice { limit_bytes, ..PinningDevice::default() };
        let arena = load(&sources, options(), &mut device).unwrap();
        check(&arena, &device);
        assert_eq!(arena.report().layer_count(Residence::Pinned) as u64, pages / 12, "{pages} pages");
        sources.assert_in(&arena);
        free(arena, device);
    }
}

#[test]
fn rows_that_never_begin_with_a_page_are_not_parted() {
    let mut sources = Sources::new(1);
    sources.contiguous(0, 0, 4098, 6, 0, 32);
    let sources = sources.written();
    let refusal = Refusal::Halve { least_bytes: 1 };
    let mut device = PinningDevice { call_limit_bytes: Some(5 * PAGE), ..PinningDevice::default() };
    let arena = load(&sources, ArenaOptions { refusal, register_bytes: PAGE, ..options() }, &mut device).unwrap();
    assert_eq!((device.call_count, arena.residence(LayerId::new(0))), (1, Some(Residence::Pageable)));
    sources.assert_in(&arena);
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_not_pinned_can_be_locked() {
    let sources = paged_layers();
    let options = ArenaOptions { pinning: Pinning::Budget(12 * PAGE), lock: true, ..options() };
    let mut device = PinningDevice::default();
    let arena = load(&sources, options, &mut device).unwrap();
    sources.assert_in(&arena);
    // How much may be locked is the machine's; what is not locked is pageable, and then a refusal says so.
    let report = arena.report();
    let [pinned, locked, pageable] =
        [Residence::Pinned, Residence::Locked, Residence::Pageable].map(|residence| report.layer_count(residence));
    assert_eq!((pinned, locked + pageable), (1, 3));
    assert_eq!(report.lock_refusal.is_some(), pageable > 0);
    free(arena, device);
}

#[test]
fn a_device_that_fails_at_the_end_is_not_asked_again() {
    let sources = paged_layers();
    let mut device = PinningDevice { fail_end: Some(3), ..PinningDevice::default() };
    let mut arena = load(&sources, options(), &mut device).unwrap();
    let report = arena.report().clone();
    assert!(arena.free(&mut device).is_err());
    device.assert_clear();
    assert_eq!(arena.report(), &report, "the device has not let go");
    arena.free(&mut device).unwrap();
    assert_eq!(device.ended_count, 8);
    assert_eq!(arena.report(), &report);
}

#[test]
fn memory_that_an_error_leaves_with_the_device_is_told() {
    let sources = paged_layers();
    let check =
        |options: ArenaOptions, mut device: PinningDevice, stop_at: u64, wanted: &dyn Fn(&ArenaError) -> bool| {
            let reserved = HostArena::reserve(&sources.banks, &sources.paths, options).unwrap();
            let arena_bytes = reserved.bytes();
            let tell = |progress: Progress| match progress.read_bytes < stop_at {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
            let error = reserved.load(&mut device, tell).unwrap_err();
            device.assert_clear();
            let ArenaError::Leaked { bytes, reason, source } = &error else { panic!("{error}") };
            assert!(wanted(source), "{error}");
            assert_eq!(*bytes, arena_bytes);
            let text = error.to_string();
            assert!(text.starts_with(&format!("{source}; {bytes} bytes of host memory stay mapped")), "{text}");
            assert!(text.ends_with(&reason.to_string()) && text.ends_with("broken"), "{text}");
        };
    let is_refusal = |error: &ArenaError| matches!(error, ArenaError::Pin(_));
    for fail_end in 0..3 {
        let device = || PinningDevice { fail_end: Some(fail_end), ..PinningDevice::default() };
        check(options(), PinningDevice { refuse_from: Some(3), ..device() }, u64::MAX, &is_refusal);
        check(options(), device(), sources.bytes(), &|error| matches!(error, ArenaError::Cancelled { .. }));
        // The first layer's fourth registration is refused, and the three before it are let go.
        let (refusal, register_bytes) = (Refusal::Serve, 3 * PAGE);
        let serve = ArenaOptions { refusal, register_bytes, reader_count: 1, ..options() };
        check(serve, PinningDevice { refuse_from: Some(3), ..device() }, u64::MAX, &is_refusal);
    }
}

#[test]
fn an_error_of_earlier_work_is_no_refusal() {
    let sources = paged_layers();
    for refusal in [Refusal::Fail, Refusal::Serve, Refusal::Halve { least_bytes: 1 }] {
        let late = DeviceError::Failed { operation: "kernel", bytes: 0, reason: "of before".to_owned() };
        let mut device = PinningDevice { late: Some(late.clone()), ..PinningDevice::default() };
        let error = load(&sources, ArenaOptions { refusal, ..options() }, &mut device).unwrap_err();
        assert_eq!(error, ArenaError::Device(late));
        device.assert_clear();
    }
}

#[test]
fn a_dropped_arena_leaves_its_memory_to_the_device() {
    let sources = paged_layers();
    let mut device = PinningDevice::default();
    drop(load(&sources, options(), &mut device).unwrap());
    assert_eq!(device.registered.len(), 8);
    // The device reads the last byte of each.
    for base in device.registered.keys().copied().collect::<Vec<_>>() {
        ftcache_transfer::Device::unregister(&mut device, std::ptr::with_exposed_provenance(base)).unwrap();
    }
    device.assert_clear();
}

#[test]
fn rows_lie_where_the_bank_does_and_outlive_the_arena() {
    let sources = paged_layers();
    let mut device = PinningDevice::default();
    let mut arena = load(&sources, options(), &mut device).unwrap();
    let rows: Vec<_> = sources.banks.iter().map(|bank| arena.rows(bank.layer, bank.bank).unwrap()).collect();
    assert!(arena.rows(LayerId::new(4), BankId::new(0)).is_none());
    assert!(arena.rows(LayerId::new(0), BankId::new(2)).is_none());
    for (bank, rows) in sources.banks.iter().zip(&rows) {
        assert_eq!(rows.base(), arena.bytes(bank.layer, bank.bank).unwrap().as_ptr());
    }
    arena.free(&mut device).unwrap();
    drop(arena);
    for (bank, rows) in sources.banks.iter().zip(&rows) {
        for at in 0..rows.bytes() {
            // SAFETY: the byte lies in memory that the rows own a share of.
            let found = unsafe { *rows.base().wrapping_add(at as usize) };
            assert_eq!(found, super::sources::byte(bank.layer, bank.bank, at));
        }
    }
}
