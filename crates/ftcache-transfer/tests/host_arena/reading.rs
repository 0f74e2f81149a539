//! What is read, and how.

use std::ops::ControlFlow;
use std::path::PathBuf;

use ftcache_policy::{BankId, LayerId};
use ftcache_testkit::Rng;
use ftcache_transfer::{ArenaError, ArenaOptions, BankSource, Direct, HostArena, HugePages, Pinning};

use super::pinning::PinningDevice;
use super::sources::Sources;
use super::{go_on, load, options};

#[test]
fn every_byte_arrives_from_every_offset() {
    for rests in [[1, 2, 15, 16, 31], [32, 511, 512, 513, 1000], [2048, 2049, 4000, 4094, 4095]] {
        let mut sources = Sources::new(1);
        for (layer, rest) in rests.into_iter().enumerate() {
            // Within one sector, up to its end, over one end, and many.
            for (bank, row_bytes) in [2, 4096 - rest, 513, 9000].into_iter().enumerate() {
                sources.contiguous(layer as u32, bank as u32, row_bytes, 3, 0, rest);
            }
        }
        let sources = sources.written();
        for direct in [Direct::Try, Direct::Never] {
            for alignment in [1, 16, 4096] {
                let options = ArenaOptions { direct, alignment, ..options() };
                let arena = load(&sources, options, &mut PinningDevice::default()).unwrap();
                sources.assert_in(&arena);
                for bank in &sources.banks {
                    let base = arena.bytes(bank.layer, bank.bank).unwrap().as_ptr();
                    assert!(base.addr().is_multiple_of(alignment as usize));
                }
            }
        }
    }
}

#[test]
fn every_byte_arrives_from_pieces_in_any_order_of_any_file() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let mut sources = Sources::new(1 + rng.below(3) as usize);
        for layer in 0..3 {
            for bank in 0..2 {
                let (row_bytes, row_count) = (1 + rng.below(7000), 1 + rng.below(9) as u32);
                sources.shattered(layer, bank, row_bytes, row_count, &mut rng);
            }
        }
        let sources = sources.written();
        for reader_count in [1, 5] {
            for read_bytes in [1, 4096, 20_000, 1 << 30] {
                let direct = if rng.chance(3, 4) { Direct::Try } else { Direct::Never };
                let alignment = 1 << rng.below(6);
                let options = ArenaOptions { reader_count, read_bytes, direct, alignment, ..ArenaOptions::default() };
                let mut device = PinningDevice::default();
                let mut arena =
                    load(&sources, options, &mut device).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                sources.assert_in(&arena);
                assert_eq!(arena.report().bytes(), sources.bytes());
                arena.free(&mut device).unwrap();
                device.assert_clear();
            }
        }
    }
}

#[test]
fn the_report_says_how_each_file_was_read() {
    let sources = Sources::layers(2, 6000, 4);
    let arena = load(&sources, options(), &mut PinningDevice::default()).unwrap();
    let [file] = &arena.report().files[..] else { panic!("one file") };
    assert_eq!(file.path, sources.paths[0]);
    assert!(file.direct.is_some() != file.reason.is_some(), "{file:?}");
    assert!(file.direct.is_none_or(u64::is_power_of_two));

    let options = ArenaOptions { direct: Direct::Never, huge_pages: false, ..options() };
    let arena = load(&sources, options, &mut PinningDevice::default()).unwrap();
    assert_eq!(arena.report().files[0].direct, None);
    assert_eq!(arena.report().files[0].reason, None);
    assert_eq!(arena.report().huge_pages, HugePages::NotAsked);
}

/// A file system that has no direct reads, and sizes that are larger than what is in the files.
#[cfg(target_os = "linux")]
#[test]
fn a_file_system_without_direct_reads_is_read_as_usual_and_it_is_said() {
    let path = PathBuf::from("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok(text) = std::fs::read(&path) else { return };
    let bank = BankSource::contiguous(LayerId::new(0), BankId::new(0), text.len() as u64, 1, 0, 0);
    let arena = HostArena::reserve(std::slice::from_ref(&bank), &[&path], options()).unwrap();
    let arena = arena.load(&mut PinningDevice::default(), go_on).unwrap();
    assert_eq!(arena.bytes(LayerId::new(0), BankId::new(0)), Some(&text[..]));
    let file = &arena.report().files[0];
    let reason = file.reason.as_deref().expect("a reason");
    assert!(file.direct.is_none() && reason.starts_with("the file system refuses it: "), "{reason}");
    assert!(arena.report().to_string().contains("/enabled not read directly: "), "{}", arena.report());

    let required = ArenaOptions { direct: Direct::Require, ..options() };
    let refused = HostArena::reserve(std::slice::from_ref(&bank), &[&path], required).unwrap_err();
    assert!(matches!(&refused, ArenaError::NotDirect { path: named, .. } if *named == path), "{refused}");

    // The file claims a page, and ends before.
    let whole = BankSource::contiguous(LayerId::new(0), BankId::new(0), 4096, 1, 0, 0);
    let mut device = PinningDevice::default();
    let ended = HostArena::reserve(&[whole], &[&path], options()).unwrap().load(&mut device, go_on).unwrap_err();
    assert_eq!(ended, ArenaError::Ended { path, offset: 0, bytes: 4096, end: text.len() as u64 });
    device.assert_clear();
}

#[test]
fn a_file_that_is_cut_after_the_check_is_named_and_nothing_stays() {
    for direct in [Direct::Try, Direct::Never] {
        for cut in [0, 1, 5000, 30_000, 59_999] {
            let sources = Sources::layers(4, 5000, 2);
            let options = ArenaOptions { direct, reader_count: 2, ..options() };
            let reserved = HostArena::reserve(&sources.banks, &sources.paths, options).unwrap();
            std::fs::File::options().write(true).open(&sources.paths[0]).unwrap().set_len(cut).unwrap();
            let mut device = PinningDevice::default();
            let error = reserved.load(&mut device, go_on).unwrap_err();
            let ArenaError::Ended { path, offset, bytes, end } = &error else { panic!("{error}") };
            assert_eq!(path, &sources.paths[0]);
            assert!(offset + bytes > cut && *end <= offset + bytes, "{error}");
            device.assert_clear();
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn reserving_touches_nothing() {
    let sources = Sources::new(1).written();
    const BYTES: u64 = 61 << 30;
    std::fs::File::options().write(true).open(&sources.paths[0]).unwrap().set_len(BYTES).unwrap();
    let bank = BankSource::contiguous(LayerId::new(0), BankId::new(0), BYTES, 1, 0, 0);
    let reserved = HostArena::reserve(&[bank], &sources.paths, options()).unwrap();
    assert_eq!(reserved.bytes(), BYTES);
    let Ok(map) = std::fs::read_to_string("/proc/self/smaps") else { return };
    let kilobytes =
        |line: &str, name: &str| -> Option<u64> { line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok() };
    let mut lines = map.lines();
    lines
        .find(|line| kilobytes(line, "Size:").is_some_and(|size| size << 10 >= BYTES))
        .expect("a mapping of that size");
    // The system may have joined it with small mappings of other tests.
    let resident = lines.find_map(|line| kilobytes(line, "Rss:")).unwrap();
    assert!(resident < 16 << 10, "{resident} kB");
}

#[test]
fn progress_never_falls_and_ends_at_the_whole() {
    let sources = Sources::layers(5, 9000, 7);
    for reader_count in [1, 4] {
        let options = ArenaOptions { reader_count, cpu_layers: vec![LayerId::new(2)], ..options() };
        let reserved = HostArena::reserve(&sources.banks, &sources.paths, options).unwrap();
        let to_pin: u64 = reserved.layers().filter(|layer| layer.2.is_none()).map(|layer| layer.1).sum();
        let mut last = None;
        let caller = std::thread::current().id();
        let tell = |progress: ftcache_transfer::Progress| {
            assert_eq!(std::thread::current().id(), caller);
            assert_eq!((progress.total_bytes, progress.to_pin_bytes), (sources.bytes(), to_pin));
            if let Some((read, pinned)) = last {
                assert!(progress.read_bytes >= read && progress.pinned_bytes >= pinned);
            }
            last = Some((progress.read_bytes, progress.pinned_bytes));
            ControlFlow::Continue(())
        };
        reserved.load(&mut PinningDevice::default(), tell).unwrap();
        assert_eq!(last, Some((sources.bytes(), to_pin)));
    }
}

#[test]
fn a_load_that_is_stopped_leaves_nothing() {
    let sources = Sources::layers(4, 9000, 3);
    for reader_count in [1, 4] {
        for stop_at in (0_u64..).step_by(3) {
            let options = ArenaOptions { reader_count, ..options() };
            let reserved = HostArena::reserve(&sources.banks, &sources.paths, options).unwrap();
            let mut device = PinningDevice::default();
            let mut told = 0;
            let tell = |_| {
                told += 1;
                if told > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            match reserved.load(&mut device, tell) {
                Ok(mut arena) => {
                    assert!(stop_at > 8, "there is more to tell than {stop_at} times");
                    sources.assert_in(&arena);
                    arena.free(&mut device).unwrap();
                    device.assert_clear();
                    break;
                }
                Err(ArenaError::Cancelled { read_bytes, total_bytes }) => {
                    assert!(read_bytes <= total_bytes && total_bytes == sources.bytes());
                }
                Err(other) => panic!("{other}"),
            }
            device.assert_clear();
        }
    }
}

#[test]
fn an_arena_can_be_for_reading_alone() {
    let sources = Sources::layers(3, 2, 3);
    let options = ArenaOptions { pinning: Pinning::None, ..options() };
    let mut device = PinningDevice::default();
    let arena = load(&sources, options, &mut device).unwrap();
    sources.assert_in(&arena);
    assert_eq!(device.call_count, 0);
}
