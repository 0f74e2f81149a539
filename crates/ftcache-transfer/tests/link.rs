//! The link model: what is copied to measure it, what is left behind, and the line through the points. No test looks at
//! how long anything took.

#[cfg(feature = "cuda")]
#[path = "../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;
mod support;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ftcache_policy::{BankId, Budget, Constraints, Geometry, LayerId, LayoutKey, Model, Quantisation};
use ftcache_testkit::Rng;
use ftcache_transfer::{
    ArenaRate, ArenaReport, CopyPoint, Device, DeviceError, HostDevice, HostRows, Link, LinkError, LiveObjects, Loader,
    Reads, RowCopy, SPILL_RATIO, Source, Stream, measure_batches, measure_contended, measure_copies, measure_gathers,
    measure_reads, measure_step,
};
use insta::assert_snapshot;
use support::{Watched, host_rows};

const READS: Reads = Reads { threads: 2, bytes: 64 << 10 };

/// Every measurement of copies, under its name.
fn measurements<D: Device>() -> [(&'static str, Measurement<D>); 4] {
    [
        ("copies", |device, sizes, total, progress| measure_copies(device, sizes, total, progress)),
        ("batches", |device, sizes, total, progress| measure_batches(device, sizes, total, progress)),
        ("gathers", |device, sizes, total, progress| measure_gathers(device, sizes, total, progress)),
        ("contended", |device, sizes, total, progress| {
            let points = measure_contended(device, sizes, total, READS, progress)?;
            assert!(points.iter().all(|point| is_rate(point.read_bytes_per_second)), "{points:?}");
            Ok(points.into_iter().map(|point| point.copies).collect())
        }),
    ]
}

type Measurement<D> = fn(&mut D, &[u64], u64, &mut dyn FnMut(u64, u64)) -> Result<Vec<CopyPoint>, LinkError>;

fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate < f64::INFINITY
}

#[test]
fn a_steps_own_time_is_measured_with_pinned_copies_and_leaves_nothing_behind() {
    let mut device = HostDevice::new().reading_registered_only();
    let seconds = measure_step(&mut device).unwrap();
    assert!((0.0..f64::INFINITY).contains(&seconds), "{seconds}");
    assert_eq!(device.live_objects(), LiveObjects::default());
}

fn silent(_done: u64, _all: u64) {}

#[test]
fn every_size_has_a_point_with_as_many_copies_as_its_bytes_allow() {
    for (name, measure) in measurements() {
        // Copies are from pinned memory, or this device would refuse them.
        let mut device = HostDevice::new().reading_registered_only();
        let points = measure(&mut device, &[100_000, 1, 4096, 48, 7], 100_000, &mut silent).unwrap();
        let shapes: Vec<_> = points.iter().map(|point| (point.bytes, point.count)).collect();
        assert_eq!(shapes, [(100_000, 1), (1, 2048), (4096, 24), (48, 2048), (7, 2048)], "{name}");
        for point in points {
            assert!(is_rate(point.seconds) && is_rate(point.bytes_per_second()), "{name}: {point:?}");
            assert!((0.0..=point.seconds).contains(&point.returned_seconds), "{name}: {point:?}");
            assert_eq!(point.seconds_per_copy(), point.seconds / point.count as f64);
        }
        assert_eq!(device.live_objects(), LiveObjects::default(), "{name}");
        assert_eq!(measure(&mut device, &[], 100_000, &mut silent), Ok(Vec::new()), "{name}");
    }
}

/// Where a copy reads, and whether that is on the host.
fn source_of(copy: &RowCopy) -> (bool, u64) {
    match &copy.source {
        Source::Host(span) => (true, span.base.addr() as u64),
        Source::Device(span) => (false, span.offset),
    }
}

#[test]
fn copies_are_of_all_sources_and_to_all_targets_once_each_time() {
    for (name, measure) in measurements().into_iter().take(3) {
        let mut device = Watched::new(HostDevice::deferred(7));
        measure(&mut device, &[1000, 400, 64], 9_999, &mut silent).unwrap();
        let state = device.get();
        let (streams, copies): (BTreeSet<u64>, Vec<RowCopy>) =
            state.copies.iter().map(|(stream, copy)| (stream.raw(), *copy)).unzip();
        assert!(streams.len() == 1 && !streams.contains(&Stream::DEFAULT.raw()), "{name}");
        let mut rest = &copies[..];
        for (bytes, count) in [(1000, 9), (400, 24), (64, 156)] {
            // Once that does not count, and five times that do.
            for _ in 0..6 {
                let (pass, others) = rest.split_at(count);
                rest = others;
                assert!(pass.iter().all(|copy| copy.bytes() == bytes && copy.row_count == 1), "{name}");
                let sources: BTreeSet<_> = pass.iter().map(source_of).collect();
                let (on_host, first) = *sources.first().unwrap();
                assert_eq!(on_host, name != "gathers", "{name}");
                let wanted = |first: u64| (0..count as u64).map(move |index| first + index * bytes);
                assert!(sources.iter().map(|&(_, at)| at).eq(wanted(first)), "{name}");
                let targets: BTreeSet<_> = pass.iter().map(|copy| copy.target.offset).collect();
                assert!(targets.into_iter().eq(wanted(0)), "{name}");
                // Two by chance, however many there are: one that follows and one that goes before.
                let apart = |pair: &[RowCopy]| source_of(&pair[0]).1.abs_diff(source_of(&pair[1]).1);
                let neighbours = pass.windows(2).filter(|pair| apart(pair) == bytes);
                assert!(neighbours.count() <= 3 + count / 32, "{name}: {count} sources are to be scattered");
            }
        }
        assert!(rest.is_empty(), "{name}");
    }
}

#[test]
fn progress_grows_by_one_to_all_of_it() {
    for (name, measure) in measurements() {
        let mut told = Vec::new();
        measure(&mut HostDevice::new(), &[100, 200], 1000, &mut |done, all| told.push((done, all))).unwrap();
        let all = told.len() as u64;
        assert!(told.iter().copied().eq((1..=all).map(|done| (done, all))), "{name}: {told:?}");
    }
    let mut told = Vec::new();
    measure_reads(READS, &mut |done, all| told.push((done, all))).unwrap();
    assert_eq!(told, [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
}

#[test]
fn sizes_that_cannot_be_are_refused_before_anything_is_taken() {
    for (name, measure) in measurements() {
        let mut device = HostDevice::new().with_limit(0);
        let refused = |error| Err(error);
        let no_bytes = LinkError::NoBytes { total_bytes: 10 };
        assert_eq!(measure(&mut device, &[5, 0], 10, &mut silent), refused(no_bytes), "{name}");
        let too_wide = LinkError::TooWide { bytes: 11, total_bytes: 10 };
        assert_eq!(measure(&mut device, &[11], 10, &mut silent), refused(too_wide), "{name}");
    }
}

#[test]
fn whatever_fails_nothing_is_left_behind() {
    for (name, measure) in measurements() {
        let check = |device: &mut HostDevice, wanted: &str| {
            let error = measure(device, &[1000, 10], 5000, &mut silent).unwrap_err().to_string();
            assert!(error.contains(wanted), "{name}: {error}");
            assert_eq!(device.live_objects(), LiveObjects::default(), "{name}: {error}");
            assert_eq!(device.used_bytes(), 0, "{name}: {error}");
        };
        for copies in [0, 1, 4, 5, 17, 500] {
            for mut device in [HostDevice::new(), HostDevice::deferred(copies)] {
                device.fail_copy_after(copies);
                check(&mut device, "this copy was asked to fail");
            }
        }
        check(&mut HostDevice::new().with_limit(4999), "5000 bytes of device memory wanted; 4999 are free");
        if name == "gathers" {
            check(&mut HostDevice::new().with_limit(9999), "5000 bytes of device memory wanted; 4999 are free");
        } else {
            check(&mut HostDevice::new().with_register_limit(5000), "the limit is 5000");
        }
        let mut device = HostDevice::new();
        let panicking = |done: u64, _: u64| assert!(done < 7, "a caller's own trouble");
        let caught =
            catch_unwind(AssertUnwindSafe(|| measure(&mut device, &[1000, 10], 5000, &mut { panicking }).map(|_| ())));
        assert!(caught.is_err(), "{name}");
        assert_eq!(device.live_objects(), LiveObjects::default(), "{name}");
    }
}

#[test]
fn reads_need_a_thread_and_a_page_for_each() {
    for (threads, bytes) in [(1, 4096), (3, 3 * 4096), (2, 1 << 20)] {
        assert!(is_rate(measure_reads(Reads { threads, bytes }, &mut silent).unwrap()));
    }
    for (threads, bytes) in [(0, 1 << 20), (3, 3 * 4096 - 1), (usize::MAX, 1 << 20)] {
        let refused = measure_reads(Reads { threads, bytes }, &mut silent).unwrap_err();
        assert_eq!(refused, LinkError::TooFewBytes { bytes, threads, needed_bytes: 4096 });
    }
    let bytes = u64::MAX - 1;
    assert_eq!(measure_reads(Reads { threads: 1, bytes }, &mut silent), Err(LinkError::HostMemory { bytes }));
}

fn points(link: Link, shapes: &[(u64, u64)]) -> Vec<CopyPoint> {
    let point = |&(bytes, count): &(u64, u64)| {
        let seconds = link.seconds(count, count * bytes);
        CopyPoint { bytes, count, seconds, returned_seconds: seconds }
    };
    shapes.iter().map(point).collect()
}

#[test]
fn a_link_is_found_again_in_points_of_its_own() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        // 1 MB/s to 10 TB/s, and 1 ns to 1 ms a copy, or nothing.
        let mut power =
            |least: f64, most: f64| 10_f64.powf(least + (most - least) * rng.below(1 << 20) as f64 / 1048576.0);
        let bytes_per_second = power(6.0, 13.0);
        let seconds_per_copy = power(-9.0, -3.0) * if seed % 8 == 0 { 0.0 } else { 1.0 };
        let link = Link { bytes_per_second, seconds_per_copy };
        let mut bytes = 1 + rng.below(5000);
        let mut shapes = Vec::new();
        for _ in 0..2 + rng.below(6) {
            shapes.push((bytes, 1 + rng.below(2048)));
            bytes = bytes * 2 + rng.below(10_000);
        }
        let points = points(link, &shapes);
        let found = Link::fit(&points).unwrap();
        // Times are what is known; where a copy's bytes take a millionth of its time, their part of it is not.
        assert!(found.deviation(&points) < 1e-9, "seed {seed}: {found:?} for {link:?}");
        let part = |rate: f64| shapes.iter().map(|&(bytes, _)| bytes as f64 / rate).fold(0.0, f64::max);
        let known = part(bytes_per_second) / (part(bytes_per_second) + seconds_per_copy);
        let off = (found.bytes_per_second / bytes_per_second - 1.0).abs();
        assert!(off * known < 1e-7, "seed {seed}: {found:?} for {link:?}");
    }
}

#[test]
fn a_link_through_noise_never_runs_backwards() {
    let mut found = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let link = Link { bytes_per_second: 2e10, seconds_per_copy: [0.0, 1e-7, 3e-6][seed as usize % 3] };
        let mut points = points(link, &[(1000, 100), (5000, 100), (70_000, 20), (1 << 20, 3)]);
        points.iter_mut().for_each(|point| point.seconds *= 0.5 + rng.below(1000) as f64 / 1000.0);
        let Ok(fitted) = Link::fit(&points) else { continue };
        found += 1;
        assert!(is_rate(fitted.bytes_per_second) && fitted.seconds_per_copy >= 0.0, "seed {seed}: {fitted:?}");
        let mut before = (0, 0, 0.0);
        for _ in 0..20 {
            let (copies, bytes) = (before.0 + rng.below(10), before.1 + rng.below(1 << 20));
            let seconds = fitted.seconds(copies, bytes);
            assert!(seconds >= before.2, "seed {seed}: {fitted:?}");
            before = (copies, bytes, seconds);
        }
        // No other link near it fits the points better, unless it cannot be.
        let squares = |link: Link| -> f64 {
            let off = |point: &CopyPoint| link.seconds(point.count, point.count * point.bytes) / point.seconds - 1.0;
            points.iter().map(|point| off(point).powi(2)).sum()
        };
        for (rate, copy) in [(1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99)] {
            let Link { bytes_per_second, seconds_per_copy } = fitted;
            let other = Link { bytes_per_second: bytes_per_second * rate, seconds_per_copy: seconds_per_copy * copy };
            assert!(squares(other) >= squares(fitted) - 1e-12, "seed {seed}: {fitted:?} {other:?}");
        }
    }
    assert!(found > 1_900, "{found}");
}

#[test]
fn what_no_link_fits_is_refused_with_both_numbers() {
    let link = Link { bytes_per_second: 1e9, seconds_per_copy: 1e-6 };
    let mut errors = vec![Link::fit(&[]).unwrap_err(), Link::fit(&points(link, &[(64, 10), (64, 20)])).unwrap_err()];
    let mut bad = points(link, &[(64, 10), (128, 10)]);
    bad[1].count = 0;
    errors.push(Link::fit(&bad).unwrap_err());
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        bad[1] = CopyPoint { count: 10, seconds, ..bad[1] };
        errors.push(Link::fit(&bad).unwrap_err());
    }
    bad[1].seconds = bad[0].seconds / 2.0;
    errors.push(Link::fit(&bad).unwrap_err());
    bad[1].seconds = bad[0].seconds;
    errors.push(Link::fit(&bad).unwrap_err());
    errors.extend([
        LinkError::NoBytes { total_bytes: 10 },
        LinkError::TooWide { bytes: 11, total_bytes: 10 },
        LinkError::TooFewBytes { bytes: 4096, threads: 2, needed_bytes: 4096 },
        LinkError::HostMemory { bytes: 1 << 50 },
        LinkError::Threads { threads: 9, reason: "Resource temporarily unavailable (os error 11)".to_owned() },
        LinkError::Attached { layer: LayerId::new(3), bank: BankId::new(1) },
    ]);
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_snapshot!(texts.join("\n"), @"
    a link is fitted to copies of 2 sizes or more; 0 given
    a link is fitted to copies of 2 sizes or more; 1 given
    point 1 is of 0 copies in 0.000011279999999999999 seconds
    point 1 is of 10 copies in 0 seconds
    point 1 is of 10 copies in -1 seconds
    point 1 is of 10 copies in NaN seconds
    point 1 is of 10 copies in inf seconds
    copies of 128 bytes take no longer than copies of 64
    copies of 128 bytes take no longer than copies of 64
    copies of 0 bytes; 10 are to be moved
    copies of 11 bytes; 10 are to be moved
    reads of 4096 bytes by 2 threads; each needs 4096
    1125899906842624 bytes of host memory cannot be had
    9 threads cannot be had: Resource temporarily unavailable (os error 11)
    layer 3 bank 1 has rows; arenas are measured while they hold nothing
    ");
}

/// Three banks, the second read by no layer, with slots for five experts.
fn geometry(row_bytes: [u64; 3]) -> Geometry {
    let model = Model::new(8, 2, Quantisation::PerLayer, vec![LayoutKey::tagged("t", row_bytes); 2]).unwrap();
    Geometry::new(model, Constraints::new(Budget::Slots(5))).unwrap()
}

/// Every arena's bytes, by its first slot's memory.
fn image<D: Device>(loader: &mut Loader<D>) -> Vec<Vec<u8>> {
    let bytes = loader.geometry().arena_bytes().to_vec();
    let mut image = Vec::new();
    for (bank, bytes) in bytes.into_iter().enumerate() {
        let slot =
            loader.slot(ftcache_policy::PoolId::new(0), BankId::from_index(bank), ftcache_policy::SlotId::new(0));
        let mut arena = vec![0xEE; bytes as usize];
        if let Some(span) = slot {
            loader.read(&span, &mut arena).unwrap();
        }
        image.push(arena);
    }
    image
}

#[test]
fn arenas_are_measured_and_hold_what_they_held() {
    for device in [HostDevice::new(), HostDevice::deferred(5)] {
        let mut loader = Loader::new(geometry([4000, 0, 33]), device).unwrap();
        let (live, before) = (loader.device().live_objects(), image(&mut loader));
        let report = loader.measure_arenas().unwrap();
        let arena_bytes = loader.geometry().arena_bytes().to_vec();
        let shapes: Vec<_> = report.rates.iter().map(|rate| (rate.bank, rate.bytes)).collect();
        assert_eq!(shapes, [(BankId::new(0), arena_bytes[0]), (BankId::new(2), arena_bytes[2])]);
        for rate in &report.rates {
            assert!(is_rate(rate.bytes_per_second) && rate.fresh_bytes_per_second.is_some_and(is_rate), "{rate:?}");
        }
        assert_eq!(loader.device().live_objects(), live);
        assert_eq!(image(&mut loader), before);
        assert!(before.iter().flatten().all(|&byte| byte == 0 || before[1].is_empty()));
    }
}

#[test]
fn arenas_that_may_hold_rows_are_not_measured() {
    let device = Watched::new(HostDevice::new());
    let mut loader = Loader::new(geometry([4000, 0, 33]), device.clone()).unwrap();
    loader.measure_arenas().unwrap();
    let rows = HostRows::owned(host_rows(1, 2, 8, 33, 33), 33);
    loader.attach(LayerId::new(1), BankId::new(2), rows).unwrap();
    let enqueued = device.get().enqueued;
    let attached = LinkError::Attached { layer: LayerId::new(1), bank: BankId::new(2) };
    assert_eq!(loader.measure_arenas(), Err(attached));
    assert_eq!(device.get().enqueued, enqueued);
}

#[test]
fn arenas_of_a_full_device_are_measured_without_fresh_memory() {
    let geometry = geometry([4000, 16, 33]);
    let device = HostDevice::new().with_limit(geometry.arena_bytes().iter().sum::<u64>() + 7);
    let mut loader = Loader::new(geometry, device).unwrap();
    let live = loader.device().live_objects();
    let report = loader.measure_arenas().unwrap();
    assert_eq!(report.rates.len(), 3);
    assert!(report.rates.iter().all(|rate| rate.fresh_bytes_per_second.is_none()));
    assert_eq!(loader.device().live_objects(), live);
}

#[test]
fn arenas_of_the_callers_are_measured_as_a_whole() {
    let geometry = geometry([64, 0, 1]);
    let mut memory: Vec<Vec<u8>> = geometry.arena_bytes().iter().map(|&bytes| vec![7; bytes as usize + 10]).collect();
    let arenas: Vec<_> = memory.iter_mut().map(|memory| (memory.as_mut_ptr() as u64, memory.len() as u64)).collect();
    // SAFETY: the memory outlives the loader, and nobody looks at it before that is gone.
    let mut loader = unsafe { Loader::in_memory(geometry, HostDevice::new(), &arenas) }.unwrap();
    let report = loader.measure_arenas().unwrap();
    assert_eq!(report.rates.iter().map(|rate| rate.bytes).collect::<Vec<_>>(), [arenas[0].1, arenas[2].1]);
    drop(loader);
    assert!(memory[0].iter().chain(&memory[2]).all(|&byte| byte == 0));
}

#[test]
fn a_copy_within_an_arena_that_fails_leaves_nothing() {
    for copies in [0, 1, 63, 64, 300] {
        let device = Watched::new(HostDevice::deferred(copies));
        let mut loader = Loader::new(geometry([4000, 0, 33]), device.clone()).unwrap();
        let live = device.get().host.live_objects();
        device.get_mut().host.fail_copy_after(copies);
        let error = loader.measure_arenas().unwrap_err();
        assert!(matches!(error, LinkError::Device(DeviceError::Failed { operation: "row copy", .. })), "{error}");
        assert_eq!(device.get().host.live_objects(), live);
        assert!(image(&mut loader)[0].iter().all(|&byte| byte == 0));
        loader.measure_arenas().unwrap();
    }
}

#[test]
fn an_arena_far_below_the_others_of_its_size_has_spilled() {
    let rate = |bank, bytes, bytes_per_second, fresh_bytes_per_second| ArenaRate {
        bank: BankId::new(bank),
        bytes,
        bytes_per_second,
        fresh_bytes_per_second,
    };
    let (large, larger, small) = (300 << 20, 12 << 30, 64 << 10);
    let spilled =
        |rates: Vec<ArenaRate>| -> Vec<u32> { ArenaReport { rates }.spilled().map(|rate| rate.bank.get()).collect() };
    let fast = rate(0, large, 900e9, Some(1000e9));
    // A small arena is slow by itself: it is compared with as much fresh memory.
    assert_eq!(spilled(vec![fast, rate(1, larger, 20e9, Some(990e9)), rate(2, small, 5e9, Some(6e9))]), [1]);
    assert_eq!(spilled(vec![fast, rate(2, small, 1e9, Some(6e9))]), [2]);
    // Fresh memory may be what spills, or not be had: then other arenas tell.
    assert_eq!(spilled(vec![rate(0, large, 900e9, Some(15e9)), rate(1, larger, 20e9, Some(15e9))]), [1]);
    assert_eq!(spilled(vec![rate(0, large, 900e9, None), rate(1, larger, 20e9, None)]), [1]);
    assert!(spilled(vec![rate(1, larger, 20e9, None)]).is_empty());
    let edge = rate(0, large, 300e9, None);
    assert!(!edge.spilled(300e9 / SPILL_RATIO - 1.0) && edge.spilled(300e9 / SPILL_RATIO + 1.0));

    let report = ArenaReport { rates: vec![fast, rate(1, larger, 20e9, Some(990e9))] };
    assert_snapshot!(report, @"bank 0: 314572800 bytes at 900.0 GB/s; bank 1: 12884901888 bytes at 20.0 GB/s, spilled: device memory goes at 1000.0 GB/s");
    assert_snapshot!(ArenaReport::default(), @"no arena");
}

#[cfg(feature = "cuda")]
mod emulated {
    use ftcache_cuda_emu::client::{Config, Counts};

    use super::cuda_world::CudaWorld;
    use super::*;

    const TEAR_DOWN: [&str; 4] = ["cuStreamDestroy_v2", "cuMemHostUnregister", "cuMemFree_v2", "cuCtxSynchronize"];
    const OTHERS: [&str; 8] = [
        "cuMemAlloc_v2",
        "cuMemHostRegister_v2",
        "cuStreamCreate",
        "cuMemsetD8Async",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyBatchAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuStreamSynchronize",
    ];

    fn world(seed: u64) -> CudaWorld {
        CudaWorld::emulated(Config { seed, ..Config::default() })
    }

    fn held(world: &CudaWorld) -> Counts {
        let counts = world.emulated.as_ref().map(|emulated| emulated.counts()).unwrap_or_default();
        Counts { peak_bytes: 0, pageable_copies: 0, queued: 0, ..counts }
    }

    #[test]
    fn a_driver_is_measured_and_left_as_it_was() {
        for probed in [false, true] {
            // On the machine's GPU, too, if the tests are to run there.
            let world = CudaWorld::new(3);
            let mut device = world.device();
            if probed {
                device.probe_batches(0).unwrap();
            }
            let before = held(&world);
            for (name, measure) in measurements() {
                let points = measure(&mut device, &[70_000, 300_000, 2400], 600_000, &mut silent).unwrap();
                assert_eq!(points.iter().map(|point| point.count).collect::<Vec<_>>(), [8, 2, 250], "{name}");
                assert_eq!(held(&world), before, "{name}");
            }
            drop(device);
            let pageable = world.emulated.as_ref().map(|emulated| emulated.counts().pageable_copies);
            assert!(pageable.is_none_or(|copies| copies == 0), "every copy is from pinned memory");
            world.check_gone();
        }
    }

    #[test]
    fn a_call_that_fails_leaves_nothing_and_is_told() {
        for (name, measure) in measurements() {
            for call in OTHERS.into_iter().chain(TEAR_DOWN) {
                for after in [0, 1, 5] {
                    // Its copies are those of batches, and every look at its threads takes its time.
                    if name == "contended" && after > 0 {
                        continue;
                    }
                    let world = world(after);
                    let mut device = world.device();
                    device.probe_batches(0).unwrap();
                    let before = held(&world);
                    let emulated = world.emulated.as_ref().unwrap();
                    let start = emulated.calls(call);
                    emulated.fail_call(call, after, 999);
                    let measured = measure(&mut device, &[300_000, 3000], 600_000, &mut silent);
                    if emulated.calls(call) - start <= after {
                        measured.unwrap_or_else(|error| panic!("{name}: {call} was not called so often: {error}"));
                        continue;
                    }
                    // A batch that is refused goes one by one.
                    if call != "cuMemcpyBatchAsync_v2" {
                        let error = measured.expect_err(call).to_string();
                        assert!(error.contains("CUDA_ERROR_UNKNOWN (999)"), "{name}, {call}, after {after}: {error}");
                    }
                    if !TEAR_DOWN.contains(&call) {
                        assert_eq!(held(&world), before, "{name}, {call}, after {after}");
                        drop(device);
                        world.check_gone();
                    }
                }
            }
        }
    }

    /// So many bytes that the allocator would give them back to the system, whatever it does with fewer.
    #[test]
    fn pages_that_the_device_does_not_let_go_of_stay() {
        const BYTES: u64 = 40 << 20;
        let world = world(1);
        let mut device = Watched::new(world.device());
        world.emulated.as_ref().unwrap().fail_call("cuMemHostUnregister", 0, 999);
        let error = measure_copies(&mut device, &[BYTES], BYTES, &mut silent).unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_UNKNOWN (999)"), "{error}");
        let Source::Host(span) = device.get().copies[0].1.source else { panic!("copies are from the host") };
        for at in (0..BYTES as usize).step_by(4096) {
            // SAFETY: nobody gave the pages back, which is what is tested here; nobody writes to them any more.
            assert_eq!(unsafe { span.base.wrapping_add(at).read_volatile() }, 0xA5, "byte {at}");
        }
    }

    #[test]
    fn arenas_of_a_driver_are_measured_in_any_order_of_its_work() {
        for seed in 0..4 {
            let world = world(seed);
            let mut loader = Loader::new(geometry([4000, 0, 33]), world.device()).unwrap();
            let before = held(&world);
            let report = loader.measure_arenas().unwrap();
            assert_eq!(report.rates.len(), 2);
            assert_eq!(held(&world), before);
            assert!(image(&mut loader)[0].iter().all(|&byte| byte == 0));
            drop(loader);
            world.check_gone();
        }
    }

    #[test]
    fn a_call_that_fails_while_arenas_are_measured_leaves_nothing() {
        for call in OTHERS {
            for after in [0, 1, 9] {
                let world = world(after);
                let mut loader = Loader::new(geometry([4000, 0, 33]), world.device()).unwrap();
                let before = held(&world);
                let emulated = world.emulated.as_ref().unwrap();
                let start = emulated.calls(call);
                emulated.fail_call(call, after, 999);
                let measured = loader.measure_arenas();
                if emulated.calls(call) - start > after {
                    let error = measured.expect_err(call).to_string();
                    assert!(error.contains("CUDA_ERROR_UNKNOWN (999)"), "{call}, after {after}: {error}");
                }
                assert_eq!(held(&world), before, "{call}, after {after}");
                drop(loader);
                world.check_gone();
            }
        }
    }
}
