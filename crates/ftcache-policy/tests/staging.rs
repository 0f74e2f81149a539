//! Staging buffers against arenas that are painted byte by byte, and worked numbers.

use std::collections::{BTreeSet, HashSet};

use ftcache_policy::{
    BankId, Budget, Constraints, Geometry, LayerId, LayoutKey, Model, PoolId, Quantisation, Scope, SlotId, SlotRun,
    Staging, StagingError, TailPad,
};
use ftcache_testkit::Rng;

/// One bank's arena as DESIGN.md tells it: every byte's owner, and what the buffers are made of.
struct Painted {
    /// The pool and slot of each byte; nothing owns the tail pads.
    owners: Vec<Option<(usize, u32)>>,
    /// Each pool's bytes from one slot to the next.
    strides: Vec<u64>,
    /// Bytes of one whole layer.
    stage_bytes: u64,
    /// The widest tail pad.
    pad_bytes: u64,
    /// Bytes from one buffer's start to the next's.
    buffer_stride: u64,
}

impl Painted {
    fn new(geometry: &Geometry, bank: BankId) -> Self {
        let (model, constraints) = (geometry.model(), geometry.constraints());
        let aligned = |mut bytes: u64| {
            while !bytes.is_multiple_of(constraints.alignment) {
                bytes += 1;
            }
            bytes
        };
        let (mut owners, mut strides, mut pad_bytes) = (Vec::new(), Vec::new(), 0);
        for (index, pool) in geometry.pools().iter().enumerate() {
            let row_bytes = model.row_bytes(pool.layers()[0], bank);
            let (stride, pad) = match (row_bytes, constraints.tail_pad) {
                (0, _) => (0, 0),
                (_, TailPad::RowUpTo(most)) => (row_bytes + constraints.slot_pad_bytes, row_bytes.min(most)),
                (_, TailPad::Bytes(bytes)) => (row_bytes + constraints.slot_pad_bytes, bytes),
            };
            let (stride, pad) = (aligned(stride), aligned(pad));
            for slot in 0..pool.slot_count() {
                owners.extend((0..stride).map(|_| Some((index, slot))));
            }
            owners.extend((0..pad).map(|_| None));
            strides.push(stride);
            pad_bytes = pad.max(pad_bytes);
        }
        let mut stage_bytes = 0;
        for &stride in &strides {
            stage_bytes = stage_bytes.max(u64::from(model.expert_count()) * stride);
        }
        let between = if has_several_keys(geometry) { pad_bytes } else { 0 };
        Self { owners, strides, stage_bytes, pad_bytes, buffer_stride: stage_bytes + between }
    }

    /// Bytes from the arena's start to past the last buffer's pad.
    fn needed(&self, buffer_count: u32) -> u64 {
        u64::from(buffer_count - 1) * self.buffer_stride + self.stage_bytes + self.pad_bytes
    }

    /// The slots of which a byte lies under a buffer.
    fn slots_under(&self, buffer: u64) -> BTreeSet<(usize, u32)> {
        let mut slots = BTreeSet::new();
        for byte in buffer * self.buffer_stride..(buffer + 1) * self.buffer_stride {
            slots.extend(self.owners.get(byte as usize).copied().flatten());
        }
        slots
    }
}

/// Whether layers that hold slots have more than one layout key.
fn has_several_keys(geometry: &Geometry) -> bool {
    let model = geometry.model();
    let cached = model.layer_ids().filter(|&layer| geometry.pool_of_layer(layer).is_some());
    cached.map(|layer| model.layer(layer)).collect::<HashSet<_>>().len() > 1
}

fn paint(geometry: &Geometry) -> Vec<Painted> {
    geometry.model().bank_ids().map(|bank| Painted::new(geometry, bank)).collect()
}

/// The first bank that is too small for so many buffers.
fn lacking(painted: &[Painted], buffer_count: u32) -> Option<StagingError> {
    for (bank, arena) in painted.iter().enumerate() {
        let (needed, given) = (arena.needed(buffer_count), arena.owners.len() as u64);
        if needed > given {
            return Some(StagingError { bank: BankId::from_index(bank), buffer_count, needed, given });
        }
    }
    None
}

/// A geometry of one to four layout keys and one to three banks, some of them of no bytes; `None` if it is refused.
fn random_geometry(rng: &mut Rng) -> Option<Geometry> {
    let expert_count = 1 + rng.below(5) as u32;
    let bank_count = 1 + rng.below(3);
    let key = |rng: &mut Rng, kind: u64| {
        let mut rows: Vec<u64> = (0..bank_count).map(|_| rng.below(13) * u64::from(rng.chance(3, 4))).collect();
        rows[(kind % bank_count) as usize] += 1;
        LayoutKey::tagged(kind.to_string(), rows)
    };
    let kinds: Vec<LayoutKey> = (0..1 + rng.below(4)).map(|kind| key(rng, kind)).collect();
    let layer_count = 1 + rng.below(7) as usize;
    let layers: Vec<LayoutKey> =
        (0..layer_count).map(|_| kinds[rng.below(kinds.len() as u64) as usize].clone()).collect();
    let top_k = 1 + rng.below(u64::from(expert_count)) as u32;
    let model = Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap();
    let budget = match rng.chance(1, 2) {
        true => Budget::Slots(rng.below(layer_count as u64 * u64::from(expert_count)) + 1),
        false => Budget::Bytes(rng.below(3 * model.model_bytes())),
    };
    let pad = rng.below(10) * u64::from(rng.chance(3, 4));
    let constraints = Constraints {
        scope: if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer },
        slotless_layers: model.layer_ids().filter(|_| rng.chance(1, 8)).collect(),
        alignment: 1 << rng.below(5),
        slot_pad_bytes: rng.below(4) * u64::from(rng.chance(1, 2)),
        tail_pad: if rng.chance(1, 2) { TailPad::Bytes(pad) } else { TailPad::RowUpTo(pad) },
        ..Constraints::new(budget)
    };
    Geometry::new(model, constraints).ok()
}

fn slots_of(runs: &[SlotRun]) -> Vec<(usize, u32)> {
    runs.iter().flat_map(|run| (0..run.count).map(|offset| (run.pool.index(), run.first.get() + offset))).collect()
}

#[test]
fn borrowed_buffers_are_those_of_painted_arenas() {
    // How many had two buffers, one, and none; of the first two, how many had several layout keys.
    let mut seen = [0; 4];
    for seed in 0..6_000 {
        let Some(geometry) = random_geometry(&mut Rng::new(seed)) else { continue };
        let painted = paint(&geometry);
        let arenas: Vec<u64> = painted.iter().map(|arena| arena.owners.len() as u64).collect();
        assert_eq!(geometry.arena_bytes(), arenas, "seed {seed}");
        let staging = match (Staging::borrowed(&geometry), lacking(&painted, 1)) {
            (Ok(staging), None) => staging,
            (given, wanted) => {
                assert_eq!(given.err(), wanted, "seed {seed}");
                seen[2] += 1;
                continue;
            }
        };
        assert_eq!(staging.second_lacks(), lacking(&painted, 2).as_ref(), "seed {seed}");
        assert_eq!(staging.buffer_count() == 2, lacking(&painted, 2).is_none(), "seed {seed}");
        assert!(staging.is_borrowed(), "seed {seed}");
        assert_eq!(staging.added_bytes(), vec![0; painted.len()], "seed {seed}");
        seen[usize::from(staging.buffer_count() == 1)] += 1;
        seen[3] += usize::from(has_several_keys(&geometry));

        let under = [0, 1].map(|buffer| painted.iter().flat_map(|arena| arena.slots_under(buffer)).collect());
        check_invalidated(&geometry, &staging, &under, seed);
        check_buffers(&geometry, &staging, &painted, seed);
    }
    assert!(seen.iter().all(|&count| count > 200), "{seen:?}");
}

/// The runs are the slots `under` each buffer, sorted, disjoint and as long as can be; stable slots begin past them.
fn check_invalidated(geometry: &Geometry, staging: &Staging, under: &[BTreeSet<(usize, u32)>; 2], seed: u64) {
    for (buffer, slots) in under.iter().enumerate() {
        let runs = staging.invalidates(buffer);
        // A set's order is ascending without repeats, so equal lists mean sorted and disjoint runs.
        let wanted: Vec<_> = slots.iter().copied().collect();
        assert_eq!(slots_of(runs), wanted, "seed {seed} buffer {buffer}");
        for pair in runs.windows(2) {
            let touch = pair[0].pool == pair[1].pool && pair[0].first.get() + pair[0].count == pair[1].first.get();
            assert!(!touch, "seed {seed} buffer {buffer}: {pair:?}");
        }
    }
    let mut stable_slots = 0;
    for (index, pool) in geometry.pools().iter().enumerate() {
        let mut past = [0, 0];
        for (buffer, slots) in under.iter().enumerate() {
            for &(_, slot) in slots.iter().filter(|&&(owner, _)| owner == index) {
                past[buffer] = past[buffer].max(slot + 1);
            }
        }
        let wanted = [past[0], past[0].max(past[1])];
        let id = PoolId::from_index(index);
        assert_eq!([1, 2].map(|count| staging.stable_from_with(id, count)), wanted, "seed {seed} pool {index}");
        let stable_from = wanted[staging.buffer_count() as usize - 1];
        assert_eq!(staging.stable_from(id), stable_from, "seed {seed} pool {index}");
        assert_eq!(staging.clone().without_overlap().stable_from(id), wanted[0], "seed {seed} pool {index}");
        stable_slots += u64::from(pool.slot_count() - stable_from);
    }
    assert_eq!(staging.stable_slots(geometry), stable_slots, "seed {seed}");
}

/// Every layer that holds slots fits into each buffer row by row, and the buffers lie apart.
fn check_buffers(geometry: &Geometry, staging: &Staging, painted: &[Painted], seed: u64) {
    for (bank, (arena, range)) in painted.iter().zip(staging.ranges()).enumerate() {
        let told = (arena.stage_bytes, arena.buffer_stride, arena.pad_bytes);
        assert_eq!((range.stage_bytes, range.buffer_stride, range.tail_pad_bytes), told, "seed {seed} bank {bank}");
        for (pool, stride) in geometry.pools().iter().zip(&arena.strides) {
            assert_eq!(pool.ranges()[bank].stride, *stride, "seed {seed} bank {bank}");
            for expert in 0..u64::from(geometry.model().expert_count()) {
                assert!((expert + 1) * stride <= range.stage_bytes, "seed {seed} bank {bank} expert {expert}");
            }
        }
        let between = range.buffer_stride.checked_sub(range.stage_bytes);
        let wanted = if has_several_keys(geometry) { range.tail_pad_bytes } else { 0 };
        assert_eq!(between, Some(wanted), "seed {seed} bank {bank}");
        let past_last = range.buffer_stride * u64::from(staging.buffer_count() - 1) + range.stage_bytes;
        assert!(past_last + range.tail_pad_bytes <= geometry.arena_bytes()[bank], "seed {seed} bank {bank}");
    }
}

#[test]
fn dedicated_buffers_are_added_and_leave_every_slot_alone() {
    let mut several = 0;
    for seed in 0..2_000 {
        let Some(geometry) = random_geometry(&mut Rng::new(seed)) else { continue };
        several += usize::from(has_several_keys(&geometry));
        for buffer_count in [1, 2] {
            let staging = Staging::dedicated(&geometry, buffer_count);
            let wanted: Vec<u64> = paint(&geometry).iter().map(|arena| arena.needed(buffer_count)).collect();
            assert_eq!(staging.added_bytes(), wanted, "seed {seed}, {buffer_count} buffers");
            assert_eq!(staging.buffer_count(), buffer_count, "seed {seed}");
            assert!(!staging.is_borrowed() && staging.second_lacks().is_none(), "seed {seed}");
            assert!([0, 1].iter().all(|&buffer| staging.invalidates(buffer).is_empty()), "seed {seed}");
            assert_eq!(staging.stable_slots(&geometry), geometry.slot_count(), "seed {seed}");
        }
    }
    assert!(several > 200, "{several}");
}

#[test]
fn small_chunks_are_admitted_on_demand() {
    for seed in 0..3_000 {
        let Some(geometry) = random_geometry(&mut Rng::new(seed)) else { continue };
        let mut bound = geometry.model().expert_count();
        for pool in geometry.pools() {
            bound = bound.min(pool.slot_count());
        }
        let mut most = 0;
        for tokens in 0..10 {
            if tokens * geometry.model().top_k() < bound {
                most = tokens;
            }
        }
        assert_eq!(geometry.on_demand_tokens(), most, "seed {seed}");
    }
    let demand = |expert_count, top_k, slots| {
        one_key(8, expert_count, top_k, Constraints::new(Budget::Slots(slots))).on_demand_tokens()
    };
    // 42 tokens have 252 routes, 43 have 258. 36 have 216 of 217 slots.
    assert_eq!(
        [demand(256, 6, 1_024), demand(256, 6, 217), demand(256, 6, 216), demand(256, 256, 256)],
        [42, 36, 35, 0]
    );
    let staging_only = Constraints { staging_only: true, ..Constraints::new(Budget::Slots(512)) };
    assert_eq!(one_key(8, 256, 6, staging_only).on_demand_tokens(), 0);
}

/// Layers of one key with rows of 96 and 32 bytes.
fn one_key(layer_count: usize, expert_count: u32, top_k: u32, constraints: Constraints) -> Geometry {
    let layers = vec![LayoutKey::tagged("q", [96, 32]); layer_count];
    let model = Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap();
    Geometry::new(model, constraints).unwrap()
}

/// Kernels that index at most 992 slots in a pool.
fn limited(expert_count: u32, budget: Budget, tail_pad: TailPad) -> (Geometry, Result<Staging, StagingError>) {
    let constraints = Constraints { slot_limit: Some(992), tail_pad, ..Constraints::new(budget) };
    let geometry = one_key(3, expert_count, 8, constraints);
    assert_eq!(geometry.slot_count(), 992);
    let staging = Staging::borrowed(&geometry);
    (geometry, staging)
}

#[test]
fn two_layers_of_496_experts_fit_992_slots_exactly() {
    let run = |first, count| [SlotRun { pool: PoolId::new(0), first: SlotId::new(first), count }];
    for tail_pad in [TailPad::Bytes(0), TailPad::RowUpTo(512), TailPad::Bytes(7)] {
        for budget in [Budget::Slots(992), Budget::Bytes(1 << 40)] {
            let (geometry, staging) = limited(496, budget, tail_pad);
            let staging = staging.unwrap();
            assert_eq!((staging.buffer_count(), staging.second_lacks()), (2, None), "{tail_pad:?} {budget:?}");
            assert_eq!(staging.invalidates(0), run(0, 496), "{tail_pad:?} {budget:?}");
            assert_eq!(staging.invalidates(1), run(496, 496), "{tail_pad:?} {budget:?}");
            assert_eq!(staging.stable_from(PoolId::new(0)), 992, "{tail_pad:?} {budget:?}");
            assert_eq!(staging.stable_slots(&geometry), 0, "{tail_pad:?} {budget:?}");
            // Without overlap, half of them stay.
            assert_eq!(staging.without_overlap().stable_slots(&geometry), 496, "{tail_pad:?} {budget:?}");
        }
    }
}

#[test]
fn two_layers_of_497_or_512_experts_do_not_fit_992_slots() {
    for (expert_count, needed) in [(497, 2 * 497 * 96), (512, 2 * 512 * 96)] {
        for (tail_pad, pad) in [(TailPad::Bytes(0), 0), (TailPad::RowUpTo(512), 96)] {
            let (_, staging) = limited(expert_count, Budget::Slots(992), tail_pad);
            let staging = staging.unwrap();
            let given = 992 * 96 + pad;
            let lacks = StagingError { bank: BankId::new(0), buffer_count: 2, needed: needed + pad, given };
            assert_eq!(staging.second_lacks(), Some(&lacks), "{expert_count} experts, {tail_pad:?}");
            assert_eq!(staging.buffer_count(), 1, "{expert_count} experts, {tail_pad:?}");
            assert_eq!(staging.stable_from(PoolId::new(0)), expert_count, "{expert_count} experts, {tail_pad:?}");
        }
    }
    let (_, staging) = limited(993, Budget::Slots(992), TailPad::Bytes(0));
    let error = staging.unwrap_err();
    assert_eq!(error.to_string(), "one whole layer needs 95328 bytes of bank 0 to be staged; its arena has 95232");
}

/// Case C01: 1,024 slots are exactly two layers of 512, so that a chunk leaves nothing of the decode set.
#[test]
fn nothing_is_stable_at_two_layers_of_slots() {
    let of = |slots| one_key(48, 512, 10, Constraints::new(Budget::Slots(slots)));
    let stable = |slots| {
        let geometry = of(slots);
        let staging = Staging::borrowed(&geometry).unwrap();
        (staging.buffer_count(), staging.stable_slots(&geometry))
    };
    assert_eq!([stable(1_023), stable(1_024), stable(1_025), stable(2_048)], [(1, 511), (2, 0), (2, 1), (2, 1_024)]);
    // Chunks of up to 51 tokens, 510 routes, stage nothing.
    assert_eq!(of(1_024).on_demand_tokens(), 51);
}

/// Case C10: four experts and twelve slots.
#[test]
fn buffers_own_the_first_and_the_second_layer_of_slots() {
    let geometry = one_key(5, 4, 2, Constraints::new(Budget::Slots(12)));
    let staging = Staging::borrowed(&geometry).unwrap();
    assert_eq!(slots_of(staging.invalidates(0)), [(0, 0), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(slots_of(staging.invalidates(1)), [(0, 4), (0, 5), (0, 6), (0, 7)]);
    assert_eq!((staging.stable_from(PoolId::new(0)), staging.stable_slots(&geometry)), (8, 4));
}

/// Case C2: 202 wide slots and 988 narrow ones. One layer of 256 wide rows lies on all wide slots and 54 wide rows'
/// worth of narrow ones, of which 32 are as many bytes as 9 wide rows.
#[test]
fn a_buffer_over_two_widths() {
    let layer = |index: usize| match index % 6 {
        0 => LayoutKey::tagged("BF16", [12_582_912, 6_291_456]),
        _ => LayoutKey::tagged("Q4_K", [3_538_944, 1_769_472]),
    };
    let model = Model::new(256, 10, Quantisation::PerLayer, (0..47).map(layer).collect()).unwrap();
    for (tail_pad, pad) in [(TailPad::Bytes(0), 0), (TailPad::RowUpTo(512), 512)] {
        let constraints = Constraints { tail_pad, ..Constraints::new(Budget::Bytes(480 * 18_874_368)) };
        let geometry = Geometry::new(model.clone(), constraints).unwrap();
        let staging = Staging::borrowed(&geometry).unwrap();
        let run = |pool, count| SlotRun { pool: PoolId::new(pool), first: SlotId::new(0), count };
        assert_eq!(staging.invalidates(0), [run(0, 202), run(1, 192)], "{tail_pad:?}");
        assert_eq!((staging.buffer_count(), staging.stable_slots(&geometry)), (1, 988 - 192), "{tail_pad:?}");
        let lacks = staging.second_lacks().unwrap();
        let arena = 202 * 12_582_912 + 988 * 3_538_944;
        assert_eq!((lacks.needed, lacks.given), (512 * 12_582_912 + 2 * pad, arena + 2 * pad), "{tail_pad:?}");
        // 201 of the 202 wide slots may be needed at once.
        assert_eq!(geometry.on_demand_tokens(), 20, "{tail_pad:?}");
    }
}

#[test]
fn the_widest_row_is_that_of_a_layer_with_slots() {
    let layers = [[64, 8], [16, 8], [16, 8]].map(|rows| LayoutKey::tagged(rows[0].to_string(), rows));
    let model = Model::new(4, 2, Quantisation::PerLayer, layers.to_vec()).unwrap();
    let slotless_layers = vec![LayerId::new(0)];
    let constraints =
        Constraints { slotless_layers, tail_pad: TailPad::Bytes(0), ..Constraints::new(Budget::Slots(8)) };
    let staging = Staging::borrowed(&Geometry::new(model, constraints).unwrap()).unwrap();
    assert_eq!(staging.ranges().iter().map(|range| range.stage_bytes).collect::<Vec<_>>(), [64, 32]);
    assert_eq!(staging.buffer_count(), 2);
}

/// An empty bank lacks nothing, and the bank after it is named.
#[test]
fn the_first_bank_that_lacks_is_named() {
    let layers = vec![LayoutKey::tagged("a", [0, 8, 4]), LayoutKey::tagged("b", [0, 2, 8])];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let error = |slots| {
        let constraints = Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(Budget::Slots(slots)) };
        let geometry = Geometry::new(model.clone(), constraints).unwrap();
        Staging::borrowed(&geometry).map(|staging| staging.second_lacks().cloned())
    };
    let lacks =
        |bank, buffer_count, needed, given| StagingError { bank: BankId::new(bank), buffer_count, needed, given };
    // Six slots are three of each key: 3 * 8 + 3 * 2 and 3 * 4 + 3 * 8 bytes. Seven are four of the first.
    assert_eq!(error(6), Err(lacks(1, 1, 32, 30)));
    assert_eq!(error(4), Err(lacks(1, 1, 32, 20)));
    assert_eq!(error(7), Ok(Some(lacks(1, 2, 64, 38))));
}
