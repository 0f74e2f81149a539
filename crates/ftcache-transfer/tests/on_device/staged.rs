//! Layers that are staged: their hits and misses, a layer in one piece, and only while slots under a buffer are withheld
//! for it.

use bytemuck::Zeroable;
use ftcache_testkit::Rng;
use ftcache_transfer::{Device, Kernel};

use crate::cuda_world::CudaWorld;
use crate::mirror::{
    Bench, CompactHits, Entry, Fault, GENERATION, Guard, Materialize, PoolState, STEP, StageBank, Tables,
};
use crate::support::{Pages, same_bytes};

/// An expert that is in no slot, for one of the six reasons.
const ABSENT_FIRST: u32 = 0xFFFF_FFF8;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    Pages::noise(seed, bytes.max(1))[..bytes].to_vec()
}

// Hits and misses of a layer.

/// Lists the second of three layers, whose experts are in these places.
#[track_caller]
fn compact(bench: &mut Bench, places: &[u32], threads: u32, at: &str) {
    let experts = places.len();
    let all = [&vec![0; experts][..], places, &vec![3; experts]].concat();
    const UNTOUCHED: Entry = Entry { target: 77, source: 78 };
    let room = vec![UNTOUCHED; experts];
    let (hits, misses) = (bench.memory(bytemuck::cast_slice(&room)), bench.memory(bytemuck::cast_slice(&room)));
    let counts = bench.memory(&[0xEE; 8]);
    let address = |bench: &Bench, memory| bench.device.address(memory).unwrap();
    let place = bench.items(&all);
    let tables = Tables {
        header: bench.header_address,
        place,
        layer_count: 3,
        expert_count: experts as u32,
        ..Tables::zeroed()
    };
    let arguments = CompactHits {
        tables,
        generation: GENERATION,
        guard: Guard::zeroed(),
        layer: 1,
        reserved: 0,
        hit_count: address(bench, counts),
        hits: address(bench, hits),
        miss_count: address(bench, counts) + 4,
        misses: address(bench, misses),
    };
    bench.launch(Kernel::CompactHits, (1, threads), &arguments);
    bench.no_fault(at);
    let entry = |(row, &source): (usize, &u32)| Entry { target: row as u32, source };
    let is_hit = |(_, place): &(usize, &u32)| **place < ABSENT_FIRST;
    let wanted_hits: Vec<Entry> = places.iter().enumerate().filter(is_hit).map(entry).collect();
    let is_miss = |(_, place): &(usize, &u32)| **place >= ABSENT_FIRST;
    let wanted_misses: Vec<Entry> =
        places.iter().enumerate().filter(is_miss).map(|(row, _)| entry((row, &(row as u32)))).collect();
    let counted: Vec<u32> = bench.read_items(counts, 2);
    assert_eq!(counted, [wanted_hits.len() as u32, wanted_misses.len() as u32], "{at}");
    for (list, wanted) in [(hits, wanted_hits), (misses, wanted_misses)] {
        let found: Vec<Entry> = bench.read_items(list, experts);
        assert_eq!(found[..wanted.len()], wanted, "{at}");
        assert!(found[wanted.len()..].iter().all(|entry| *entry == UNTOUCHED), "{at}");
    }
    bench.clear();
}

#[test]
fn a_layers_hits_and_misses_are_listed_ascending() {
    let mut bench = Bench::new(CudaWorld::new(1));
    let mut rng = Rng::new(1);
    for experts in [1, 2, 31, 32, 33, 64, 257, 1000, 1024, 1025, 3000] {
        for threads in [32, 96, 1024] {
            for chance in [0, 1, 2, 3, 4] {
                let place = |rng: &mut Rng| match rng.chance(chance, 4) {
                    true => rng.below(5000) as u32,
                    false => ABSENT_FIRST + rng.below(6) as u32,
                };
                let places: Vec<u32> = (0..experts).map(|_| place(&mut rng)).collect();
                let at = format!("{experts} experts, {threads} threads, {chance} of 4");
                compact(&mut bench, &places, threads, &at);
            }
        }
    }
    bench.end();
}

// A layer in one piece.

#[test]
fn a_layer_comes_into_one_piece_from_slots_and_from_the_host() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(CudaWorld::new(seed));
        let experts = 1 + rng.below(12) as usize;
        let slots = 1 + rng.below(12) as usize;
        let place: Vec<u32> = (0..experts)
            .map(|_| if rng.chance(1, 2) { rng.below(slots as u64) as u32 } else { ABSENT_FIRST + rng.below(6) as u32 })
            .collect();
        let mut told = Vec::new();
        let mut targets = Vec::new();
        for number in 0..1 + rng.below(4) {
            let mut below = |bound: u64| rng.below(bound) as usize;
            let row_bytes = [0, 1 + below(60), 16 * below(60), 16_384 + below(3)][below(4)];
            let strides = [0, 1, 2].map(|_| row_bytes + [0, 1, 5, 16][below(4)]);
            let froms = [0, 1, 2].map(|_| below(17));
            let host = noise(number, froms[0] + experts * strides[0] + 8);
            let in_slots = noise(100 + number, froms[1] + slots * strides[1] + 8);
            let mut target = noise(200 + number, froms[2] + experts * strides[2] + 8);
            let memory = bench.memory(&target);
            let whole = rng.chance(1, 3);
            for row in 0..experts {
                let source = match place[row] {
                    place if !whole && place < ABSENT_FIRST => &in_slots[froms[1] + place as usize * strides[1]..],
                    _ => &host[froms[0] + row * strides[0]..],
                };
                target[froms[2] + row * strides[2]..][..row_bytes].copy_from_slice(&source[..row_bytes]);
            }
            told.push(StageBank {
                host: bench.pinned(&host) + froms[0] as u64,
                host_stride: strides[0] as u64,
                slots: bench.items(&in_slots) + froms[1] as u64,
                slot_stride: strides[1] as u64,
                target: bench.device.address(memory).unwrap() + froms[2] as u64,
                target_stride: strides[2] as u64,
                row_bytes: row_bytes as u64,
                slot_count: slots as u32,
                whole: whole.into(),
            });
            targets.push((memory, target));
        }
        let arguments = Materialize {
            header: bench.header_address,
            generation: GENERATION,
            pools: 0,
            guard: Guard::zeroed(),
            place: bench.items(&place),
            banks: bench.items(&told),
            expert_count: experts as u32,
            bank_count: told.len() as u32,
            layer: 1,
            reserved: 0,
        };
        let shape = (1 + rng.below(9) as u32, 32 * (1 + rng.below(8) as u32));
        bench.launch(Kernel::Materialize, shape, &arguments);
        bench.no_fault(&format!("seed {seed}"));
        for (memory, wanted) in targets {
            same_bytes(&bench.read(memory, wanted.len()), &wanted, &format!("seed {seed}: {told:?}"));
        }
        bench.end();
    }
}

/// A layer goes into a buffer only while the slots under it are withheld.
#[test]
fn nothing_is_staged_over_slots_that_are_handed_out() {
    let pool = |withheld| PoolState { pinned_count: 0, marked_count: 0, withheld, reserved: 0 };
    for (withheld, is_staged) in [(0, false), (4, false), (5, true), (9, true)] {
        let mut bench = Bench::new(CudaWorld::new(1));
        let guard = Guard { pool: 1, withheld: 5 };
        let (pools, place) = (bench.items(&[pool(5), pool(withheld)]), bench.items(&[3, ABSENT_FIRST]));
        let tables = Tables {
            header: bench.header_address,
            place,
            pools,
            layer_count: 1,
            expert_count: 2,
            pool_count: 2,
            ..Tables::zeroed()
        };
        let (counts, lists) = (bench.memory(&[0xEE; 8]), bench.items(&[0_u64; 4]));
        let at = bench.device.address(counts).unwrap();
        let told = CompactHits {
            tables,
            generation: GENERATION,
            guard,
            layer: 0,
            reserved: 0,
            hit_count: at,
            hits: lists,
            miss_count: at + 4,
            misses: lists + 16,
        };
        bench.launch(Kernel::CompactHits, (1, 64), &told);
        let fault = Fault { code: 7, layer: 0, step: STEP, needed: 5, given: withheld.into(), ..Fault::zeroed() };
        let wanted = |count| if is_staged { Fault::zeroed() } else { Fault { count, ..fault } };
        assert_eq!(bench.fault(), wanted(1), "{withheld} withheld");
        let counted: Vec<u32> = bench.read_items(counts, 2);
        assert_eq!(counted, if is_staged { [1, 1] } else { [0, 0] }, "{withheld} withheld");
        let target = bench.memory(&[7; 32]);
        let bank = StageBank {
            host: bench.pinned(&[1; 32]),
            host_stride: 16,
            slots: bench.items(&[2_u8; 64]),
            slot_stride: 16,
            target: bench.device.address(target).unwrap(),
            target_stride: 16,
            row_bytes: 16,
            slot_count: 4,
            whole: 0,
        };
        let told = Materialize {
            header: bench.header_address,
            generation: GENERATION,
            pools,
            guard,
            place,
            banks: bench.items(&[bank]),
            expert_count: 2,
            bank_count: 1,
            layer: 0,
            reserved: 0,
        };
        bench.launch(Kernel::Materialize, (2, 32), &told);
        assert_eq!(bench.fault(), wanted(2), "{withheld} withheld");
        let rows = if is_staged { [[2; 16], [1; 16]] } else { [[7; 16]; 2] };
        assert_eq!(bench.read(target, 32), rows.as_flattened(), "{withheld} withheld");
        bench.end();
    }
}
