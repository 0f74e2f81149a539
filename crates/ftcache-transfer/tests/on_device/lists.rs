//! What kernels do to slots beside admissions: slots freed, zeros, what can be read.

use bytemuck::Zeroable;
use ftcache_policy::{ExpertId, PoolId, SlotId};
use ftcache_residency::{Absence, Cache};
use ftcache_transfer::{Device, Kernel};

use crate::cuda_world::CudaWorld;
use crate::mirror::{
    Bench, Fault, GENERATION, Invalidate, PoolRange, PoolState, STEP, Scores, Statistics, Tables, Zero, ZeroSpan,
};
use crate::rig::{Form, Rig};
use crate::states::{Resident, decode, empty, filled, layer, of_layer, one_pool, prefill, span};
use crate::support::{Pages, same_bytes};

/// An expert that is in no slot, for one of the six reasons.
const ABSENT_FIRST: u32 = 0xFFFF_FFF8;
const NOBODY: u32 = u32::MAX;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    Pages::noise(seed, bytes.max(1))[..bytes].to_vec()
}

// Slots freed.

/// C10: three layers of four experts over twelve slots. Owners 0: 1, 2: 7, 3: 8, 5: 0, 9: 6.
fn c10() -> Cache {
    let owners = [(0, 1), (2, 7), (3, 8), (5, 0), (9, 6)];
    let resident = |(slot, expert)| Resident { slot, expert, stamp: 3 + u64::from(expert) };
    filled(one_pool(3, 4, 12), 20, owners.map(resident))
}

fn owners(cache: &Cache) -> Vec<Option<u32>> {
    let owner = |slot| cache.expert_of(PoolId::new(0), SlotId::new(slot));
    (0..12).map(|slot| owner(slot).map(|(layer, expert)| layer.get() * 4 + expert.get())).collect()
}

#[test]
fn c10_a_buffers_slots_are_freed_and_no_others() {
    let mut rig = Rig::new(2, c10());
    let pool = PoolId::new(0);
    let launches = |rig: &Rig| rig.world.emulated.as_ref().map(|emulated| emulated.calls("cuLaunchKernel"));
    let before = launches(&rig);
    for _ in 0..2 {
        rig.tables.withhold(&mut rig.device, rig.stream, pool, 4).unwrap();
    }
    // One launch each, whoever owns the slots.
    assert_eq!(launches(&rig), before.map(|before| before + 2));
    rig.tables.withhold(&mut rig.device, rig.stream, pool, 0).unwrap();
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    rig.twin.check().unwrap();
    let mut wanted = [None; 12];
    (wanted[5], wanted[9]) = (Some(0), Some(6));
    assert_eq!(owners(&rig.twin), wanted);
    for slot in 0..12 {
        let stamp = match slot {
            5 => 3,
            9 => 9,
            _ => 0,
        };
        assert_eq!(rig.twin.stamp(pool, SlotId::new(slot)), stamp, "slot {slot}");
    }
    for (of, expert) in [(0, 1), (1, 3), (2, 0)] {
        let (of, expert) = (layer(of), ExpertId::new(expert));
        assert_eq!((rig.twin.slot_of(of, expert), rig.twin.absence(of, expert)), (None, Some(Absence::Staged)));
    }
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
    rig.end();
}

/// What an invalidation of some slots leaves of tables of two pools. Pinned ones are freed too.
#[test]
fn neighbouring_slots_are_freed_from_anywhere_to_anywhere() {
    let mut bench = Bench::new(CudaWorld::new(3));
    // Pool 1 has 70 slots behind the 30 of pool 0. Expert 2 i lies in slot i; each third is free, each fifth pinned.
    let (first, slots) = (30, 100_usize);
    let is_free = |slot: usize| slot.is_multiple_of(3);
    let is_pinned = |slot: usize| !is_free(slot) && slot.is_multiple_of(5);
    let place: Vec<u32> = (0..200_usize)
        .map(|expert| match expert / 2 {
            slot if expert % 2 == 0 && !is_free(slot) => slot as u32 - if slot >= first { first as u32 } else { 0 },
            _ => ABSENT_FIRST + 1,
        })
        .collect();
    let owner: Vec<u32> = (0..slots).map(|slot| if is_free(slot) { NOBODY } else { 2 * slot as u32 }).collect();
    let stamp: Vec<u64> = (0..slots).map(|slot| if is_free(slot) { 0 } else { 5 + slot as u64 }).collect();
    let pinned: Vec<u8> = (0..slots).map(|slot| is_pinned(slot).into()).collect();
    let pool = |pinned_count, withheld| PoolState { pinned_count, marked_count: 9, withheld, reserved: 0 };
    let pins = |range: std::ops::Range<usize>| range.filter(|&slot| is_pinned(slot)).count() as u32;
    for (from, count) in [(0, 0), (0, 1), (0, 70), (69, 1), (3, 40), (64, 6), (1, 33)] {
        for shape in [(1, 32), (3, 32), (64, 256)] {
            let told = [pool(pins(0..first), 2), pool(pins(first..slots), 3)];
            let memories = [
                bench.memory(bytemuck::cast_slice(&place)),
                bench.memory(bytemuck::cast_slice(&owner)),
                bench.memory(bytemuck::cast_slice(&stamp)),
                bench.memory(&pinned),
                bench.memory(bytemuck::cast_slice(&told)),
            ];
            let at = memories.map(|memory| bench.device.address(memory).unwrap());
            let tables = Tables {
                header: bench.header_address,
                place: at[0],
                owner: at[1],
                stamp: at[2],
                pinned: at[3],
                pools: at[4],
                layer_count: 2,
                expert_count: 100,
                slot_count: slots as u32,
                pool_count: 2,
                ..Tables::zeroed()
            };
            let arguments = Invalidate {
                tables,
                generation: GENERATION,
                pool: PoolRange { pool: 1, first: first as u32, slot_count: 70, reserved: 0 },
                from,
                count,
                absence: 2,
                withheld: 11,
            };
            // Twice changes nothing.
            for _ in 0..2 {
                bench.launch(Kernel::Invalidate, shape, &arguments);
            }
            let context = format!("{count} slots from {from}, {shape:?}");
            bench.no_fault(&context);
            let freed = first + from as usize..first + (from + count) as usize;
            let (mut place, mut owner, mut stamp, mut pinned) =
                (place.clone(), owner.clone(), stamp.clone(), pinned.clone());
            for slot in freed.clone().filter(|&slot| !is_free(slot)) {
                place[2 * slot] = ABSENT_FIRST + 2;
                (owner[slot], stamp[slot], pinned[slot]) = (NOBODY, 0, 0);
            }
            let told = [told[0], pool(pins(first..slots) - pins(freed), 11)];
            let wanted: [&[u8]; 5] = [
                bytemuck::cast_slice(&place),
                bytemuck::cast_slice(&owner),
                bytemuck::cast_slice(&stamp),
                &pinned,
                bytemuck::cast_slice(&told),
            ];
            for (memory, wanted) in memories.into_iter().zip(wanted) {
                same_bytes(&bench.read(memory, wanted.len()), wanted, &context);
            }
            bench.clear();
        }
    }
    bench.end();
}

#[test]
fn a_reset_frees_every_slot_and_nothing_else() {
    let mut cache = empty(20, &[0, 1, 0], &[33, 7]);
    cache.pin(&of_layer(0, [3, 4]), 20).unwrap();
    let mut rig = Rig::new(4, cache);
    for number in 0..3 {
        for of in 0..3 {
            rig.step(decode(of), &span(number, 7), Form::PLAIN, "residents");
        }
        for _ in 0..2 {
            rig.tables.reset(&mut rig.device, rig.stream).unwrap();
            rig.host.reset();
            rig.compare(&format!("reset {number}"));
        }
        assert_eq!(rig.twin.total_stats().steps, 3 * (u64::from(number) + 1), "what was counted stays");
    }
    rig.end();
}

// What can be read.

#[test]
fn a_reading_tells_what_is_there() {
    // No slot in use; fewer than threads, more than threads; two pools.
    for (slots, used) in [(5, 0), (40, 17), (1500, 1100)] {
        let stamps = (0..used).map(|slot| Resident { slot, expert: slot as u32, stamp: 1 + slot as u64 % 90 });
        let mut rig = Rig::new(5, filled(empty(600, &[0, 0, 0, 1], &[slots, 9]), 95, stamps));
        assert_eq!(rig.tables.reading(), None, "nothing was asked for");
        for (number, step) in [decode(0), prefill(3), decode(3)].into_iter().enumerate() {
            rig.step(step, &[7, 9, 7, 11], Form::PLAIN, &format!("step {number}"));
            rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
            rig.device.synchronize(rig.stream).unwrap();
            let reading = rig.tables.reading().unwrap();
            let resident = |pool| {
                let pool = PoolId::new(pool);
                let slots = (0..rig.host.slot_count(pool)).map(SlotId::new);
                slots.filter(|&slot| rig.host.expert_of(pool, slot).is_some()).count() as u64
            };
            assert_eq!((reading.generation, reading.step), (1, 96 + number as u64));
            assert_eq!(reading.digest, rig.host.digest(), "{slots} slots, step {number}");
            assert_eq!(reading.resident_count, resident(0) + resident(1), "{slots} slots, step {number}");
        }
        rig.compare(&format!("{slots} slots"));
        rig.end();
    }
}

/// A reading is whole when its two counts are alike, and each reading counts itself.
#[test]
fn a_reading_counts_itself_and_one_of_another_generation_leaves_it_alone() {
    let mut bench = Bench::new(CudaWorld::new(6));
    let counters: Vec<u64> = (100..139).collect();
    let memory = bench.memory(&[0; 48]);
    let stats = bench.memory(&[0; 8 * 39]);
    let tables = Tables {
        header: bench.header_address,
        owner: bench.items(&[NOBODY; 40]),
        stamp: bench.items(&[0_u64; 40]),
        stats: bench.items(&counters),
        layer_count: 1,
        expert_count: 8,
        slot_count: 40,
        ..Tables::zeroed()
    };
    let reading = bench.device.address(memory).unwrap();
    let stats_address = bench.device.address(stats).unwrap();
    let told = Statistics { tables, generation: GENERATION, reading, stats: stats_address, scores: Scores::zeroed() };
    for number in 1..=3 {
        bench.launch(Kernel::Statistics, (1, 64), &Statistics { generation: GENERATION + 1, ..told });
        bench.launch(Kernel::Statistics, (1, 64), &told);
        assert_eq!(bench.fault().count, number);
        let found: Vec<u64> = bench.read_items(memory, 6);
        assert_eq!(found[..4], [number, number, GENERATION, STEP]);
        assert_eq!(found[5], 0, "nobody is in a slot");
        assert_eq!(bench.read_items::<u64>(stats, 39), counters);
    }
    bench.end();
}

// Zeros.

#[track_caller]
fn zero(bench: &mut Bench, spans: &[(usize, usize, usize, usize)], shape: (u32, u32), at: &str) {
    let end = spans.iter().map(|&(base, stride, row_bytes, rows)| base + stride * rows + row_bytes).max().unwrap_or(0);
    let mut image = noise(9, end + 40);
    image.iter_mut().for_each(|byte| *byte |= 1);
    let memory = bench.memory(&image);
    let base = bench.device.address(memory).unwrap();
    let nothing = ZeroSpan { base: 0, stride: 0, row_bytes: 0, row_count: 0 };
    let span_count = spans.len() as u32;
    let mut told = Zero { spans: [nothing; 32], span_count, ..Zero::zeroed() };
    for (told, &(from, stride, row_bytes, rows)) in told.spans.iter_mut().zip(spans) {
        let (stride, row_bytes, row_count) = (stride as u64, row_bytes as u64, rows as u64);
        *told = ZeroSpan { base: base + from as u64, stride, row_bytes, row_count };
        for row in 0..rows {
            image[from + row * stride as usize..][..row_bytes as usize].fill(0);
        }
    }
    bench.launch(Kernel::Zero, shape, &told);
    bench.no_fault(at);
    same_bytes(&bench.read(memory, image.len()), &image, at);
    bench.clear();
}

#[test]
fn rows_of_every_width_and_alignment_become_zero_and_nothing_beside_them() {
    let mut bench = Bench::new(CudaWorld::new(6));
    for row_bytes in (0..=40).chain([255, 256, 257, 16_383, 16_384, 16_385, 40_000]) {
        // A span for each alignment, of two rows, all in one launch.
        let stride = row_bytes + 3;
        let spans: Vec<_> =
            (0..17).map(|from| (from * (2 * stride + 16) / 16 * 17 + from, stride, row_bytes, 2)).collect();
        let spans = &spans[..if row_bytes > 300 { 3 } else { 17 }];
        zero(&mut bench, spans, (3, 64), &format!("{row_bytes} bytes"));
    }
    bench.end();
}

#[test]
fn a_launch_zeroes_as_many_spans_as_it_is_told() {
    let mut bench = Bench::new(CudaWorld::new(7));
    for count in [0, 1, 2, 31, 32] {
        let spans: Vec<_> = (0..count).map(|span| (7 + 210 * span, 41, 5 + span, 5)).collect();
        for shape in [(1, 32), (4, 1024), (40, 96)] {
            zero(&mut bench, &spans, shape, &format!("{count} spans, {shape:?}"));
        }
    }
    bench.end();
}

#[test]
fn zeros_of_another_generation_are_not_written() {
    let mut bench = Bench::new(CudaWorld::new(8));
    let memory = bench.memory(&[9; 64]);
    let base = bench.device.address(memory).unwrap();
    for (generation, wanted) in [(GENERATION - 1, 9), (GENERATION + 1, 9), (GENERATION, 0)] {
        let mut told = Zero { span_count: 1, layer: 4, header: bench.header_address, generation, ..Zero::zeroed() };
        told.spans[0] = ZeroSpan { base, stride: 16, row_bytes: 16, row_count: 4 };
        bench.launch(Kernel::Zero, (3, 32), &told);
        let stale = Fault {
            code: 3,
            layer: 4,
            count: 1,
            step: STEP,
            value: generation as i64,
            needed: GENERATION,
            ..Fault::zeroed()
        };
        assert_eq!(bench.fault(), if wanted == 0 { Fault::zeroed() } else { stale });
        assert_eq!(bench.read(memory, 64), [wanted; 64]);
        bench.forget_fault();
    }
    bench.end();
}
