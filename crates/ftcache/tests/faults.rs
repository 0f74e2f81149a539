//! Every call of the driver fails once, in turn, in a life of a cache that does everything: whatever it is that
//! fails, a further try goes through, the bytes are right in the end, nothing is left behind, and nothing hangs.

#[path = "../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;
mod support;
#[path = "support/watchdog.rs"]
mod watchdog;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cuda_world::{CudaWorld, emulated_driver};
use ftcache::{
    ArenaOptions, BankId, BankSource, BounceSize, Budget, Cache, Constraints, CudaContext, CudaDevice, ExpertId,
    Geometry, HostArena, HostRows, Keep, LaterLimits, LayerId, Misses, PoolId, SMALL_ROW_BYTES, SlotId, Staging, Step,
    Streams,
};
use ftcache_cuda_emu::client::Config;
use ftcache_policy::{Fetch, FetchOrder, FetchRule};
use support::{host_rows, model, row};
use watchdog::Watchdog;

/// The driver's word for anything: nothing in particular is to be done about it.
const UNKNOWN: i32 = 999;
const OUT_OF_MEMORY: i32 = 2;

const EXPERTS: u32 = 6;
const LAYERS: u32 = 3;
const ROW_BYTES: [u64; 2] = [48, 4];

fn geometry(slots: u64) -> Geometry {
    let model = model(EXPERTS, 2, &vec![ROW_BYTES.to_vec(); LAYERS as usize]);
    Geometry::new(model, Constraints::new(Budget::Slots(slots))).unwrap()
}

/// Tries until it goes. One call fails once; what cannot be told at once is told by a later call, once.
fn persist<T, E: Display>(what: &str, mut each: impl FnMut() -> Result<T, E>) -> T {
    let mut said = Vec::new();
    for _ in 0..4 {
        match each() {
            Ok(done) => return done,
            Err(error) => said.push(error.to_string()),
        }
    }
    panic!("{what}: {said:?}");
}

/// The rows of layer 2 lie in a file, of its own for each test.
fn file(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ftcache-faults-{test}-{}", std::process::id()));
    let banks = (0..).zip(ROW_BYTES);
    let bytes: Vec<u8> = banks.flat_map(|(bank, bytes)| host_rows(2, bank, EXPERTS, bytes, bytes).to_vec()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

fn routes(experts: &[u32]) -> Vec<ExpertId> {
    experts.iter().copied().map(ExpertId::new).collect()
}

/// Every resident's row, in every bank.
fn check_residents(cache: &mut Cache<CudaDevice>, context: &str) {
    for pool in 0..cache.geometry().pools().len() {
        for slot in 0..cache.geometry().pools()[pool].slot_count() {
            let (pool, slot) = (PoolId::from_index(pool), SlotId::new(slot));
            let Some((layer, expert)) = cache.residency().expert_of(pool, slot) else { continue };
            for (bank, bytes) in (0..).zip(ROW_BYTES) {
                let mut read = vec![0; bytes as usize];
                persist("read_row", || cache.read_row(layer, BankId::new(bank), slot, &mut read));
                let wanted = row(layer.get(), expert.get(), bank, bytes);
                assert_eq!(read, wanted, "{context}: layer {layer} expert {expert} bank {bank} in slot {slot}");
            }
        }
    }
    cache.residency().check().unwrap();
}

/// Everything that a cache does, on a device of an emulated world.
fn live(world: &CudaWorld, file: &Path, context: &str) {
    let make = || {
        let mut device = CudaDevice::new(emulated_driver(), CudaContext::Primary(world.ordinal))
            .map_err(|error| error.to_string())?;
        device.probe_batches(0).map_err(|error| error.to_string())?;
        Cache::new(geometry(8), device).map_err(|error| error.to_string())
    };
    let mut cache = persist("new", make);
    let size = BounceSize { entry_bytes: 64, entry_count: 2, thread_count: 1 };
    persist("set_bounce", || cache.set_bounce(size));
    // Layer 0 and 1 lie in ordinary memory, layer 2 in an arena.
    for layer in [0, 1] {
        for (bank, bytes) in (0..).zip(ROW_BYTES) {
            let rows = HostRows::owned(host_rows(layer, bank, EXPERTS, bytes, bytes + 3), bytes + 3);
            persist("attach", || cache.attach(LayerId::new(layer), BankId::new(bank), rows.clone()));
        }
    }
    let bytes_before = |bank: usize| ROW_BYTES[..bank].iter().sum::<u64>() * u64::from(EXPERTS);
    let sources: Vec<BankSource> = (0..ROW_BYTES.len())
        .map(|bank| {
            let (layer, id) = (LayerId::new(2), BankId::from_index(bank));
            BankSource::contiguous(layer, id, ROW_BYTES[bank], EXPERTS, 0, bytes_before(bank))
        })
        .collect();
    persist("load_arena", || {
        let reservation = HostArena::reserve(&sources, &[file], ArenaOptions::default()).unwrap();
        cache.load_arena(reservation, |_| ControlFlow::Continue(())).map(|_| ())
    });
    persist("set_later", || cache.set_later(LaterLimits { step_bytes: 104, flight_count: 2 }));
    persist("set_hints", || cache.set_hints(2));
    let staging = Staging::dedicated(cache.geometry(), 2);
    persist("set_staging", || cache.set_staging(staging.clone(), SMALL_ROW_BYTES));

    let compute = persist("create_stream", || cache.create_stream());
    let copy = persist("create_stream", || cache.create_stream());
    let (one, two) = (Streams::one(compute), Streams { compute, copy });
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let hybrid =
        |layer| Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..Step::new(LayerId::new(layer)) };
    for (streams, layer, experts) in [(one, 0, [0, 3]), (two, 1, [1, 2]), (two, 2, [4, 5]), (one, 2, [0, 4])] {
        let routes = routes(&experts);
        persist("load_on", || cache.load_on(streams, LayerId::new(layer), &routes).map(<[_]>::len));
        // What comes true, late or not.
        persist("hint", || cache.hint(LayerId::new(layer), &[ExpertId::new(5)], 104));
        let routes = self::routes(&[experts[0], 5]);
        persist("load_on", || cache.load_on(streams, LayerId::new(layer), &routes).map(<[_]>::len));
    }
    for (streams, layer, experts) in [(two, 0, [1, 2, 4]), (one, 2, [1, 2, 3]), (two, 0, [4, 5, 1])] {
        let routes = routes(&experts);
        persist("hybrid step", || cache.load_on(streams, hybrid(layer), &routes).map(<[_]>::len));
    }
    check_residents(&mut cache, context);

    persist("begin_chunk", || cache.begin_chunk(two));
    for layer in (0..LAYERS).map(LayerId::new) {
        persist("prefetch", || cache.prefetch(layer));
        // What fails between a chunk's states is the device's, and ends the chunk.
        if cache.wait(layer).is_err() || cache.release(layer).is_err() {
            break;
        }
    }
    persist("abandon_chunk", || cache.abandon_chunk());
    persist("synchronize_all", || cache.synchronize_all());
    persist("land", || cache.land());
    check_residents(&mut cache, context);

    let kept = cache.residents(7);
    persist("rebuild", || cache.rebuild(geometry(10), Keep::WhatFits, u64::MAX));
    check_residents(&mut cache, context);
    persist("rebuild", || cache.rebuild(geometry(6), Keep::Nothing, 0));
    persist("bring_back", || cache.bring_back(two, &kept, 7));
    persist("check_device", || cache.check_device());
    check_residents(&mut cache, context);
    assert!(!cache.residents(7).experts().is_empty(), "{context}: they are back");
}

fn world(seed: u64) -> CudaWorld {
    // A thread of the bounce buffer and this one share what they know by words, which the emulator does not follow.
    CudaWorld::emulated(Config { seed, threads_share_order: true, ..Config::default() })
}

#[test]
fn whatever_call_of_the_driver_fails_once_a_further_try_goes_through_and_nothing_leaks() {
    let _watchdog = Watchdog::new("faults");
    let file = file("one");
    let clean = world(1);
    live(&clean, &file, "no fault");
    clean.check_gone();
    let emulated = clean.emulated.as_ref().expect("it is emulated");
    let mut failed = 0;
    for name in calls() {
        let calls = emulated.calls(name);
        // The first ones are those of set-up, each of another kind; of many alike some are enough.
        let chosen: BTreeSet<u64> =
            (0..calls.min(12)).chain((12..calls).step_by((calls / 24).max(1) as usize)).collect();
        for &index in &chosen {
            let code = if name == "cuMemAlloc_v2" { OUT_OF_MEMORY } else { UNKNOWN };
            let context = format!("{name} fails at call {index}");
            let world = world(index);
            world.emulated.as_ref().expect("it is emulated").fail_call(name, index, code);
            live(&world, &file, &context);
            world.check_gone();
            failed += 1;
        }
    }
    assert!(failed > 400, "{failed} faults");
    fs::remove_file(file).unwrap();
}

/// Calls that may fail, without those that tell of no failure: whether a stream is of this context, and what a code
/// means.
fn calls() -> Vec<&'static str> {
    vec![
        "cuCtxPushCurrent_v2",
        "cuCtxSynchronize",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGetName",
        "cuDeviceTotalMem_v2",
        "cuEventCreate",
        "cuEventQuery",
        "cuEventRecord",
        "cuMemAlloc_v2",
        "cuMemGetInfo_v2",
        "cuMemHostAlloc",
        "cuMemHostGetDevicePointer_v2",
        "cuMemHostRegister_v2",
        "cuMemcpyBatchAsync_v2",
        "cuMemcpy2DAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoH_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemsetD8Async",
        "cuPointerGetAttribute",
        "cuStreamCreate",
        "cuStreamGetCtx",
        "cuStreamIsCapturing",
        "cuStreamQuery",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
    ]
}

#[test]
fn a_device_that_is_lost_at_any_time_ends_every_call_in_an_error_and_gives_back_what_it_can() {
    let _watchdog = Watchdog::new("a lost device");
    let file = file("lost");
    let mut lost = 0;
    for index in 0..60 {
        let world = world(index);
        world.emulated.as_ref().expect("it is emulated").fail_late(index, 700);
        // It ends in a panic of `persist`. Lost in its making, it is made anew; and late copies are few.
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(&world, &file, "lost")));
        lost += u32::from(lived.is_err());
        world.check_gone();
    }
    assert!(lost > 30, "{lost} devices were lost");
    fs::remove_file(file).unwrap();
}
