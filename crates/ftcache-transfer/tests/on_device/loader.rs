//! A loader's device mode: after an admission and its gather, every slot holds its resident's rows, in every bank.
//!
//! *Unsafe*, relying on two promises: rows, routes and words lie where they are told as `Loaded` says; rows that are
//! written late are read behind a word alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use ftcache_policy::{
    BankId, Budget, Constraints, Eviction, ExpertId, FetchRule, LayerId, PoolId, Scope, SlotId, Staging, TailPad,
};
use ftcache_residency::Cache;
use ftcache_testkit::Rng;
use ftcache_testkit::generators::row;
use ftcache_transfer::{
    BounceSize, Device, DeviceModeError, DeviceModeOptions, DeviceRows, Fault, FaultReport, HostAccess, HostMemory,
    HostRows, HostWord, Loader, Streams,
};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::loaded::{EXPERTS, Loaded, geometry};
use crate::raw::{Engine, ok};
use crate::states::{decode, hybrid, layer, prefill};
use crate::support::Pages;

/// Three layers over two pools: wide ones with a bank of two bytes and one that only the narrow layer reads.
fn three_layers() -> Vec<Vec<u64>> {
    vec![vec![70, 2, 0, 33], vec![70, 2, 0, 33], vec![16, 0, 5, 17]]
}

fn routes(rng: &mut Rng) -> Vec<i64> {
    (0..1 + rng.below(5)).map(|_| rng.below(u64::from(EXPERTS)) as i64).collect()
}

#[test]
fn slots_hold_their_residents_rows_after_every_gather() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let constraints = Constraints {
            scope: if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer },
            slot_pad_bytes: rng.below(4),
            alignment: 1 << rng.below(6),
            tail_pad: if rng.chance(1, 2) { TailPad::RowUpTo(512) } else { TailPad::Bytes(rng.below(20)) },
            request_count: 5,
            ..Constraints::new(Budget::Slots(16 + rng.below(8)))
        };
        let mut loaded = Loaded::new(seed, &geometry(&three_layers(), constraints), rng.below(9));
        loaded.set_eviction(Eviction::ALL[seed as usize % 4]);
        let options = DeviceModeOptions {
            admission_threads: 32 << rng.below(3),
            gather_blocks: 1 + rng.below(6) as u32,
            ..DeviceModeOptions::default()
        };
        loaded.enter(options);
        for number in 0..12 {
            let of = rng.below(3) as u32;
            let rule = FetchRule::UpTo(rng.below(3) as u32);
            let step = [decode(of), prefill(of), hybrid(of, rule)][rng.below(3) as usize];
            let (ids, at) = (routes(&mut rng), format!("seed {seed}, step {number}"));
            loaded.step(step, &ids, &at);
            let plan = loaded.loader.plan_on_device(step.layer).unwrap();
            assert_eq!(plan.copies, loaded.plan.copies(), "{at}");
            if number % 3 == 0 {
                loaded.check_arenas(&at);
            }
        }
        loaded.check_arenas(&format!("seed {seed}"));
        loaded.leave(&format!("seed {seed}"));
        loaded.end();
    }
}

#[test]
fn admissions_and_gathers_of_all_layers_are_one_graph() {
    for seed in 0..6 {
        let constraints = Constraints { request_count: 4, ..Constraints::new(Budget::Slots(14)) };
        let mut loaded = Loaded::new(seed, &geometry(&three_layers(), constraints), 3);
        loaded.enter(DeviceModeOptions { admission_threads: 64, gather_blocks: 3, ..DeviceModeOptions::default() });
        let engine = Engine::new(&loaded.world);
        let side = loaded.engine.create_stream().unwrap();
        let events = [(); 2].map(|()| loaded.engine.create_event().unwrap());
        let (mut graph, mut exec) = (0, 0);
        ok((engine.raw.cuStreamBeginCapture_v2)(loaded.stream.raw(), 0));
        let step = |of: u32| if of == 1 { hybrid(of, FetchRule::UpTo(2)) } else { decode(of) };
        for of in 0..3 {
            let mut told = loaded.told(step(of), 4);
            let address = loaded.engine.address(loaded.routes).unwrap() + 32 * u64::from(of);
            // SAFETY: as all routes.
            told.ids.rows = unsafe { DeviceRows::from_raw(address, 0) };
            loaded.loader.admit_on_device(loaded.stream, &loaded.twin, &told).unwrap();
            // The gather in a stream of its own, behind the admission, and what comes next behind it.
            loaded.engine.record(events[0], loaded.stream).unwrap();
            loaded.engine.wait(side, events[0]).unwrap();
            loaded.loader.gather_on_device(side, &loaded.twin, layer(of)).unwrap();
            loaded.engine.record(events[1], side).unwrap();
            loaded.engine.wait(loaded.stream, events[1]).unwrap();
        }
        ok((engine.raw.cuStreamEndCapture)(loaded.stream.raw(), &mut graph));
        ok((engine.raw.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        let mut rng = Rng::new(seed);
        for token in 0..20 {
            let ids: Vec<i64> = (0..12).map(|_| rng.below(u64::from(EXPERTS)) as i64).collect();
            loaded.write_routes(&ids);
            ok((engine.raw.cuGraphLaunch)(exec, loaded.stream.raw()));
            let wanted: Vec<i64> =
                (0..3).flat_map(|of| loaded.expected(step(of), &ids[4 * of as usize..][..4])).collect();
            loaded.answered(&wanted, &format!("seed {seed}, token {token}"));
            loaded.check_arenas(&format!("seed {seed}, token {token}"));
        }
        ok((engine.raw.cuGraphExecDestroy)(exec));
        ok((engine.raw.cuGraphDestroy)(graph));
        events.into_iter().for_each(|event| loaded.engine.destroy_event(event));
        loaded.engine.destroy_stream(side);
        drop(engine);
        loaded.leave(&format!("seed {seed}"));
        loaded.end();
    }
}

#[test]
fn a_gather_behind_a_refused_step_moves_nothing_and_one_more_moves_the_same() {
    let constraints = Constraints { request_count: 3, ..Constraints::new(Budget::Slots(9)) };
    let mut loaded = Loaded::new(3, &geometry(&three_layers(), constraints), 0);
    loaded.enter(DeviceModeOptions::default());
    loaded.step(decode(0), &[1, 2, 3], "residents");
    for ids in [&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[4, 5, 11]] {
        loaded.write_routes(ids);
        let told = loaded.told(decode(0), ids.len());
        loaded.loader.admit_on_device(loaded.stream, &loaded.twin, &told).unwrap();
        loaded.loader.gather_on_device(loaded.stream, &loaded.twin, layer(0)).unwrap();
        loaded.engine.synchronize(loaded.stream).unwrap();
        assert!(loaded.loader.take_faults().is_some());
        loaded.check_arenas("refused");
    }
    // The refused steps are known to the host too, or the numbers of what was refused would differ.
    let all: Vec<ExpertId> = (0..EXPERTS).map(ExpertId::new).collect();
    loaded.host.ensure(layer(0), &all, &mut loaded.plan).unwrap_err();
    loaded.step(decode(0), &[4, 5, 1], "goes on");
    loaded.loader.gather_on_device(loaded.stream, &loaded.twin, layer(0)).unwrap();
    loaded.check_arenas("once more");
    loaded.leave("refused");
    loaded.end();
}

#[test]
fn more_spans_than_a_launch_takes_are_zeroed_in_several() {
    // Two layouts over 40 banks: a chunk leaves rows of the one on slots of the other, in every bank.
    const BANKS: u64 = 40;
    let widths = |layer: u64| (0..BANKS).map(|bank| 5 + bank % 7 + layer % 2 * 9).collect();
    let layers: Vec<Vec<u64>> = (0..6).map(widths).collect();
    let geometry = geometry(&layers, Constraints::new(Budget::Slots(46)));
    let staging = Staging::borrowed(&geometry).unwrap();
    assert_eq!(staging.buffer_count(), 2);
    let mut loaded = Loaded::new(4, &geometry, 2);
    loaded.loader.set_staging(staging.clone()).unwrap();
    for cache in [&mut loaded.twin, &mut loaded.host] {
        cache.set_staging(staging.clone(), 0).unwrap();
    }
    loaded.enter(DeviceModeOptions { admission_threads: 32, gather_blocks: 2, ..DeviceModeOptions::default() });
    loaded.step(decode(0), &[0, 1, 2], "residents");
    loaded.loader.begin_chunk_on_device(loaded.stream).unwrap();
    for of in 0..2 {
        loaded.loader.stage_on_device(loaded.stream, &loaded.twin, layer(of), of).unwrap();
        loaded.loader.synchronize(loaded.stream).unwrap();
        let pool = loaded.twin.pool_of(layer(of)).unwrap();
        for bank in geometry.model().bank_ids() {
            let span = loaded.loader.staged(pool, bank, of as usize).unwrap();
            let row_bytes = geometry.model().row_bytes(layer(of), bank);
            let mut found = vec![0; (u64::from(EXPERTS) * span.stride) as usize];
            loaded.loader.read(&span, &mut found).unwrap();
            for (expert, bytes) in found.chunks(span.stride as usize).enumerate() {
                let wanted = row(of, expert as u32, bank.get(), row_bytes);
                assert_eq!(bytes[..row_bytes as usize], wanted, "layer {of} bank {bank} expert {expert}");
            }
        }
    }
    let launches = |loaded: &Loaded| {
        let emulated = loaded.world.emulated.as_ref();
        emulated.map(|emulated| emulated.launch_report("ftcache_zero").launches)
    };
    let before = launches(&loaded);
    loaded.loader.end_chunk_on_device(loaded.stream).unwrap();
    loaded.loader.synchronize(loaded.stream).unwrap();
    assert_eq!(launches(&loaded), before.map(|before| before + (2 * BANKS).div_ceil(32)));
    loaded.host.begin_chunk().unwrap();
    loaded.host.abandon_chunk().unwrap();
    // Nothing is in any slot under the buffers: all of it is zero, or a resident's.
    for (index, pool) in geometry.pools().iter().enumerate() {
        for (bank, range) in pool.ranges().iter().enumerate() {
            for slot in (0..staging.stable_from(PoolId::from_index(index))).map(SlotId::new) {
                let span = loaded.loader.slot(PoolId::from_index(index), BankId::from_index(bank), slot).unwrap();
                let mut found = vec![1; range.row_bytes as usize];
                loaded.loader.read(&span, &mut found).unwrap();
                assert!(found.iter().all(|&byte| byte == 0), "pool {index} bank {bank} slot {slot}");
            }
        }
    }
    loaded.step(decode(1), &[3, 4], "goes on");
    loaded.check_arenas("after the chunk");
    loaded.leave("after the chunk");
    loaded.end();
}

#[test]
fn a_stream_of_before_may_go_once_the_residency_is_on_the_device() {
    let constraints = Constraints { request_count: 3, ..Constraints::new(Budget::Slots(9)) };
    let mut loaded = Loaded::new(11, &geometry(&three_layers(), constraints), 0);
    let [before, after] = [(); 2].map(|()| loaded.engine.create_stream().unwrap());
    let apply = |loaded: &mut Loaded, stream, experts: &[u32]| {
        let routes: Vec<ExpertId> = experts.iter().copied().map(ExpertId::new).collect();
        let ticket = loaded.twin.ensure(decode(0), &routes, &mut loaded.plan).unwrap();
        loaded.loader.apply(Streams::one(stream), ticket.plan()).unwrap();
        ticket.commit();
    };
    apply(&mut loaded, before, &[1, 2]);
    loaded.loader.enter_device_mode(&loaded.twin, DeviceModeOptions::default()).unwrap();
    loaded.engine.destroy_stream(before);
    loaded.loader.leave_device_mode(&mut loaded.twin).unwrap();
    apply(&mut loaded, after, &[3]);
    loaded.loader.synchronize_all().unwrap();
    loaded.engine.destroy_stream(after);
    loaded.end();
}

/// A loader whose step has been admitted and whose gather waits for a word, with two misses of layer 0.
fn waiting(seed: u64, word: &Pages, looks: u64, before: u32) -> Loaded {
    let constraints = Constraints { request_count: 3, ..Constraints::new(Budget::Slots(9)) };
    let mut loaded = Loaded::new(seed, &geometry(&three_layers(), constraints), 4);
    loaded.set_eviction(Eviction::ALL[seed as usize % 4]);
    // SAFETY: the word is given back before its pages are.
    let memory = unsafe { HostMemory::borrowed(word.as_ptr(), 4096) };
    loaded.loader.register(memory, HostAccess::ReadWrite, 0).unwrap();
    word.word(8).store(before, Ordering::Release);
    loaded.enter(DeviceModeOptions { admission_threads: 64, gather_blocks: 2, word_looks: looks });
    loaded.step(decode(0), &[1], "a resident");
    let ids = [3, 1, 7];
    loaded.write_routes(&ids);
    let told = loaded.told(decode(0), ids.len());
    loaded.loader.admit_on_device(loaded.stream, &loaded.twin, &told).unwrap();
    // SAFETY: as above.
    let word = unsafe { HostWord::from_raw(word.word(8), 5) };
    loaded.loader.gather_on_device_after(loaded.stream, &loaded.twin, layer(0), word).unwrap();
    loaded
}

#[test]
fn rows_that_the_host_has_still_to_write_are_gathered_when_it_says_so() {
    for seed in 0..6 {
        let page = Pages::new(4096);
        let mut loaded = waiting(seed, &page, u64::MAX, 4);
        // What the rows are to be is taken away, and written late.
        let rows = loaded.rows[0].as_ptr() as usize;
        let right: Vec<u8> = loaded.rows[0].to_vec();
        // SAFETY: the gather reads the rows behind the word alone.
        unsafe { (rows as *mut u8).write_bytes(0xAA, right.len()) };
        let wanted = loaded.expected(decode(0), &[3, 1, 7]);
        let word = page.word(8);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(3));
                for (at, &byte) in right.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { ((rows + at) as *mut u8).write_volatile(byte) };
                }
                word.store(5, Ordering::Release);
            });
            loaded.answered(&wanted, &format!("seed {seed}"));
        });
        loaded.check_arenas(&format!("seed {seed}"));
        loaded.leave(&format!("seed {seed}"));
        loaded.loader.unregister(page.as_ptr()).unwrap();
        loaded.end();
    }
}

/// Under each rule. What was counted stays counted.
fn waits_in_vain(seed: u64) {
    let page = Pages::new(4096);
    let mut loaded = waiting(seed, &page, 20, 4);
    loaded.engine.synchronize(loaded.stream).unwrap();
    let first = Fault::WordTimeout { layer: layer(0), wanted: 5, found: 4 };
    assert_eq!(loaded.loader.take_faults(), Some(FaultReport { first, step: 2, count: 1 }));
    loaded.check_arenas("not raised");
    for slot in [1, 2].map(SlotId::new) {
        let span = loaded.loader.slot(PoolId::new(0), BankId::new(0), slot).unwrap();
        let mut found = [1; 70];
        loaded.loader.read(&span, &mut found).unwrap();
        assert_eq!(found, [0; 70], "slot {slot}");
    }
    // The twin's step, and then its slots freed by a call.
    loaded.expected(decode(0), &[3, 1, 7]);
    for slot in [1, 2].map(SlotId::new) {
        loaded.host.forget(PoolId::new(0), slot);
    }
    // The same experts miss again, and come once the word is raised.
    page.word(8).store(6, Ordering::Release);
    let ids = [3, 1, 7];
    let wanted = loaded.expected(decode(0), &ids);
    loaded.write_routes(&ids);
    let told = loaded.told(decode(0), ids.len());
    loaded.loader.admit_on_device(loaded.stream, &loaded.twin, &told).unwrap();
    // SAFETY: as in `waiting`.
    let word = unsafe { HostWord::from_raw(page.word(8), 5) };
    loaded.loader.gather_on_device_after(loaded.stream, &loaded.twin, layer(0), word).unwrap();
    loaded.answered(&wanted, "raised");
    loaded.check_arenas("raised");
    assert_eq!(loaded.loader.take_faults(), None);
    // A word that kernels cannot read.
    let elsewhere = AtomicU32::new(0);
    // SAFETY: it is refused.
    let word = unsafe { HostWord::from_raw(&elsewhere, 5) };
    let refused = loaded.loader.gather_on_device_after(loaded.stream, &loaded.twin, layer(0), word).unwrap_err();
    assert!(refused.to_string().ends_with("is not registered"), "{refused}");
    loaded.leave("not raised");
    loaded.loader.unregister(page.as_ptr()).unwrap();
    loaded.end();
}

#[test]
fn what_a_gather_waited_for_in_vain_is_forgotten_and_told() {
    (4..8).for_each(waits_in_vain);
}

#[test]
fn a_loader_refuses_what_it_cannot_do_and_says_why() {
    let constraints = Constraints { request_count: 3, ..Constraints::new(Budget::Slots(9)) };
    let geometry = geometry(&three_layers(), constraints);
    let mut loaded = Loaded::new(5, &geometry, 0);
    let mut texts = Vec::new();
    let mut tell = |refused: Result<(), DeviceModeError>| texts.push(refused.unwrap_err().to_string());
    let Loaded { loader, twin, stream, .. } = &mut loaded;
    let stream = *stream;
    let options = DeviceModeOptions::default();
    tell(loader.gather_on_device(stream, twin, layer(0)));
    tell(loader.reset_on_device(stream));
    tell(loader.begin_chunk_on_device(stream));
    tell(loader.stage_on_device(stream, twin, layer(0), 0));
    tell(loader.request_reading(stream));
    tell(loader.reading().map(|_| ()));
    tell(loader.plan_on_device(layer(0)).map(|_| ()));
    tell(loader.leave_device_mode(twin));
    for gather_blocks in [0, 1 << 31] {
        tell(loader.enter_device_mode(twin, DeviceModeOptions { gather_blocks, ..options }));
    }
    tell(loader.enter_device_mode(twin, DeviceModeOptions { admission_threads: 48, ..options }));
    loader.enter_device_mode(twin, options).unwrap();
    tell(loader.enter_device_mode(twin, options));
    tell(loader.gather_on_device(stream, twin, LayerId::new(7)));
    tell(loader.begin_chunk_on_device(stream));
    tell(loader.end_chunk_on_device(stream));
    tell(loader.stage_on_device(stream, twin, layer(0), 0));
    tell(loader.materialize_on_device(stream, twin, layer(0), 0));
    assert_snapshot!(texts.join("\n"), @"
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    a gather of 0 blocks; a launch has 1 to 2147483647
    a gather of 2147483648 blocks; a launch has 1 to 2147483647
    48 threads a block; a multiple of 32 up to 1024 is needed
    the residency is on the device: leave device mode first
    no layer 7: the cache has 3 layers
    there are no staging buffers on the device
    there are no staging buffers on the device
    there are no staging buffers on the device
    there are no staging buffers on the device
    ");
    loaded.leave("nothing was done");
    loaded.end();

    // Rows that are not attached, and rows that kernels cannot read.
    let world = CudaWorld::new(6);
    let mut loader = Loader::new(geometry.clone(), world.device()).unwrap();
    let missing = loader.enter_device_mode(&Cache::new(&geometry), options).unwrap_err();
    loader.set_bounce(BounceSize { entry_bytes: 4096, entry_count: 2, ..Default::default() }).unwrap();
    for layer in geometry.model().layer_ids() {
        for bank in geometry.model().bank_ids() {
            let row_bytes = geometry.model().row_bytes(layer, bank);
            if row_bytes > 0 {
                let bytes: Arc<[u8]> = vec![0; (row_bytes * u64::from(EXPERTS)) as usize].into();
                loader.attach(layer, bank, HostRows::owned(bytes, 0)).unwrap();
            }
        }
    }
    let bounced = loader.enter_device_mode(&Cache::new(&geometry), options).unwrap_err();
    assert_snapshot!(format!("{missing}\n{bounced}"), @"
    layer 0 bank 0 is not attached
    layer 0 bank 0: kernels read pinned rows alone, and these go through the bounce buffer
    ");
    drop(loader);
    world.check_gone();
}
