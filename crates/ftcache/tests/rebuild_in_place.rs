//! Slots in memory of the engine's: residents that stay where they are, or move within it.

#[path = "support/rig.rs"]
mod rig;

use ftcache::policy::TagLimit;
use ftcache::residency::Keep;
use ftcache::{
    BankId, Budget, ColdReason, Constraints, Device, DeviceError, Error, Geometry, HostDevice, PoolId, RebuildError,
    Rebuilt, Scope, Stream, Streams,
};
use rig::{Layout, Pinned, Rig, cuda, emulated, layer, padded, tagged_model};

const ONE: Streams = Streams::one(Stream::DEFAULT);
const ARENA_BYTES: u64 = 2048;

/// Layers of two widths; the wide ones have so many slots, whatever there are in all.
fn with_wide(wide_slots: u32, slots: u64) -> Geometry {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2]), ("narrow", &[24, 2, 13]));
    let limit = TagLimit { tag: b"wide".to_vec(), slots: wide_slots };
    let constraints = Constraints { tag_limits: vec![limit], ..padded(slots, Scope::Unified, 3, 8, 9) };
    Geometry::new(tagged_model(6, 2, &[wide, narrow, narrow]), constraints).unwrap()
}

/// Two wide slots, and narrow ones.
fn geometry(slots: u64) -> Geometry {
    with_wide(2, slots)
}

/// Runs a test on the host device and on the emulated driver, over memory that is full of other bytes.
fn in_memory(geometry: &Geometry, run: impl Fn(&mut Rig, &str)) {
    let mut memory = vec![vec![u128::MAX; ARENA_BYTES as usize / 16]; 3];
    for seed in 0..3 {
        let arenas: Vec<(u64, u64)> = memory.iter_mut().map(|arena| (arena.as_mut_ptr() as u64, ARENA_BYTES)).collect();
        let device = if seed == 0 { HostDevice::new() } else { HostDevice::deferred(seed) };
        let mut rig = Rig::in_memory(geometry.clone(), Box::new(device), Pinned::None, &arenas);
        run(&mut rig, &format!("host {seed}"));
        rig.check("at the end");
    }
    for seed in 0..3 {
        let world = emulated(seed);
        let mut engine = world.device();
        let arenas = [(); 3].map(|()| {
            let memory = engine.allocate(ARENA_BYTES, 256).unwrap();
            (engine.address(memory).unwrap(), ARENA_BYTES)
        });
        let mut rig = Rig::in_memory(geometry.clone(), cuda(&world), Pinned::All, &arenas);
        run(&mut rig, &format!("emulated {seed}"));
        rig.check("at the end");
        drop(rig);
        // The engine's memory is the engine's.
        assert_eq!(world.emulated.as_ref().unwrap().counts().allocations, 3);
        drop(engine);
        world.check_gone();
    }
}

fn addresses(rig: &Rig) -> Vec<u64> {
    let slots = |pool, bank| rig.cache.slots(PoolId::new(pool), BankId::new(bank)).unwrap();
    [0, 1]
        .into_iter()
        .flat_map(|pool| (0..3).filter_map(move |bank| slots(pool, bank)))
        .map(|span| span.address)
        .collect()
}

#[test]
fn residents_stay_where_their_pools_stay() {
    for (from, to) in [(6, 14), (14, 6), (14, 5), (10, 10)] {
        in_memory(&geometry(from), |rig, context| {
            let context = format!("{context}, {from} -> {to}");
            rig.fill(ONE);
            let (places, used, generation) = (addresses(rig), rig.probe.get().used_bytes, rig.cache.generation());
            let report = rig.cache.rebuild(geometry(to), Keep::WhatFits, 0).unwrap();
            assert_eq!(report.rebuilt, Rebuilt::InPlace, "{context}");
            assert_eq!(report.kept as u64, from.min(to), "{context}");
            assert_eq!((addresses(rig), rig.probe.get().used_bytes), (places, used), "{context}: no other memory");
            assert_eq!(rig.cache.generation(), generation + 1, "{context}");
            rig.check(&context);
            rig.fill(ONE);
        });
    }
}

#[test]
fn residents_of_slots_that_go_move_to_free_ones_that_stay() {
    in_memory(&geometry(14), |rig, context| {
        rig.load(ONE, layer(1), &[0, 1, 2, 3, 4, 5]).unwrap();
        rig.load(ONE, layer(2), &[0, 1, 2, 3]).unwrap();
        rig.load(ONE, layer(0), &[2, 4]).unwrap();
        rig.cache.forget_layer(layer(1)).unwrap();
        // Twelve narrow slots become four; those of layer 2 lie in the last six.
        let report = rig.cache.rebuild(geometry(6), Keep::WhatFits, 0).unwrap();
        assert_eq!((&report.rebuilt, report.kept), (&Rebuilt::InPlace, 6), "{context}");
        rig.check(context);
    });
}

#[test]
fn a_row_that_cannot_be_moved_empties_the_slots() {
    for failed in 0..4 * 3 {
        in_memory(&geometry(14), |rig, context| {
            let context = format!("{context}, copy {failed}");
            rig.load(ONE, layer(1), &[0, 1, 2, 3, 4, 5]).unwrap();
            rig.load(ONE, layer(2), &[0, 1, 2, 3]).unwrap();
            rig.cache.forget_layer(layer(1)).unwrap();
            rig.probe.get_mut().fail_copy = Some(failed);
            let report = rig.cache.rebuild(geometry(6), Keep::WhatFits, 0).unwrap();
            rig.probe.get_mut().fail_copy = None;
            assert!(matches!(report.rebuilt, Rebuilt::Cold(ColdReason::Failed(_))), "{context}: {report:?}");
            assert_eq!(rig.cache.residents(0).experts(), [], "{context}");
            rig.check(&context);
        });
    }
}

#[test]
fn pools_that_lie_elsewhere_lose_their_residents_and_leave_no_bytes() {
    let wide_limit = |slots| with_wide(slots, 10);
    for (from, to) in [(4, 3), (3, 4)] {
        in_memory(&wide_limit(from), |rig, context| {
            rig.fill(ONE);
            let report = rig.cache.rebuild(wide_limit(to), Keep::WhatFits, u64::MAX).unwrap();
            let reason = ColdReason::PoolsMoved { pool: PoolId::new(1) };
            assert_eq!((report.rebuilt, report.kept), (Rebuilt::Cold(reason), 0), "{context}");
            rig.check(context);
            rig.fill(ONE);
        });
        in_memory(&wide_limit(from), |rig, context| {
            // Nobody is in the pool that moves.
            rig.fill(ONE);
            rig.cache.forget_layer(layer(1)).unwrap();
            rig.cache.forget_layer(layer(2)).unwrap();
            let report = rig.cache.rebuild(wide_limit(to), Keep::WhatFits, u64::MAX).unwrap();
            assert_eq!((report.rebuilt, report.kept), (Rebuilt::InPlace, from.min(to) as usize), "{context}");
            rig.check(context);
            rig.fill(ONE);
        });
    }
}

#[test]
fn a_pool_of_another_layout_in_the_place_of_one_finds_none_of_its_bytes() {
    // Three layouts of one width; the first layer that holds slots is another one.
    let without = |slotless| {
        let model = tagged_model(6, 2, &[("a", &[16]), ("b", &[16]), ("c", &[16])]);
        let constraints = Constraints { slotless_layers: vec![layer(slotless)], ..Constraints::new(Budget::Slots(8)) };
        Geometry::new(model, constraints).unwrap()
    };
    in_memory(&without(1), |rig, context| {
        for number in [0, 2] {
            rig.load(ONE, layer(number), &[0, 1, 2, 3]).unwrap();
        }
        let report = rig.cache.rebuild(without(0), Keep::WhatFits, 0).unwrap();
        assert_eq!((&report.rebuilt, report.kept), (&Rebuilt::InPlace, 4), "{context}");
        rig.check(context);
    });
}

#[test]
fn a_geometry_that_does_not_fit_the_memory_changes_nothing() {
    in_memory(&geometry(8), |rig, context| {
        rig.fill(ONE);
        let large = Geometry::new(geometry(8).model().clone(), padded(14, Scope::Unified, 200, 8, 900)).unwrap();
        let (needed, given) = (large.arena_bytes()[0], ARENA_BYTES);
        let error = rig.refused(|cache| cache.rebuild(large, Keep::WhatFits, u64::MAX));
        let arena = DeviceError::Arena { bank: BankId::new(0), needed, given };
        assert_eq!(error, Error::Rebuild(RebuildError::Refused(arena)), "{context}");
        rig.check(context);
    });
}

#[test]
fn nothing_to_keep_leaves_zeros() {
    in_memory(&geometry(14), |rig, context| {
        rig.fill(ONE);
        let report = rig.cache.rebuild(geometry(14), Keep::Nothing, u64::MAX).unwrap();
        assert_eq!(report.rebuilt, Rebuilt::Cold(ColdReason::NothingToKeep), "{context}");
        for (bank, &bytes) in geometry(14).arena_bytes().iter().enumerate() {
            // The last pool reads every bank.
            let span = rig.cache.slots(PoolId::new(1), BankId::from_index(bank)).unwrap().unwrap();
            let (memory, _) = rig.probe.get().locate(span.address);
            let mut seen = vec![1; bytes as usize];
            rig.probe.get_mut().inner.read(memory, 0, &mut seen).unwrap();
            assert!(seen.iter().all(|&byte| byte == 0), "{context}, bank {bank}");
        }
    });
}
