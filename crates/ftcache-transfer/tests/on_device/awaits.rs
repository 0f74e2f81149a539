//! Rows that the host writes while a launch waits for its word: they are gathered when it says so, or their slots are
//! free again.
//!
//! *Unsafe* in one place: a thread of the host writes rows that a gather reads behind the word alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use bytemuck::Zeroable;
use ftcache_cuda_emu::client::Config;
use ftcache_transfer::{Device, Kernel, Memory};

use crate::cuda_world::CudaWorld;
use crate::mirror::{
    Await, BankRows, Bench, Entry, Fault, GENERATION, Gather, PlanHead, PoolRange, PoolState, STEP, Tables,
};
use crate::support::{PAGE, Pages, register, same_bytes, seeded};

const ABSENT_FIRST: u32 = 0xFFFF_FFF8;
const FREED: u32 = ABSENT_FIRST + 3;
const NOBODY: u32 = u32::MAX;
const EXPERTS: usize = 8;
const ROW: usize = 40;

/// Experts 3 and 5 of layer 1 are to come to slots 1 and 4 of the second pool, where slot 0 is of layer 0 and slot 4 is
/// pinned. Two slots of another pool lie before it.
const FIRST: usize = 2;
const SLOTS: usize = 6;

/// What tables hold of all that.
#[derive(Debug, Clone, PartialEq)]
struct State {
    place: Vec<u32>,
    owner: Vec<u32>,
    stamp: Vec<u64>,
    pinned: Vec<u8>,
    pools: Vec<PoolState>,
    plan: PlanHead,
}

impl State {
    fn new() -> Self {
        let pool = |pinned_count| PoolState { pinned_count, marked_count: 4, withheld: 0, reserved: 0 };
        let (mut place, mut owner) = (vec![ABSENT_FIRST; 2 * EXPERTS], vec![NOBODY; FIRST + SLOTS]);
        let (mut stamp, mut pinned) = (vec![0; FIRST + SLOTS], vec![0; FIRST + SLOTS]);
        for (expert, slot) in [(2, 0), (EXPERTS + 3, 1), (EXPERTS + 5, 4)] {
            place[expert] = slot as u32;
            (owner[FIRST + slot], stamp[FIRST + slot]) = (expert as u32, STEP);
        }
        pinned[FIRST + 4] = 1;
        let plan = PlanHead { copy_count: 2, distinct: 3, misses: 2, left: 0, step: STEP, reserved: 9 };
        Self { place, owner, stamp, pinned, pools: vec![pool(7), pool(1)], plan }
    }

    /// The same with the plan's slots freed.
    fn freed(mut self) -> Self {
        for (expert, slot) in [(EXPERTS + 3, 1), (EXPERTS + 5, 4)] {
            self.place[expert] = FREED;
            (self.owner[FIRST + slot], self.stamp[FIRST + slot], self.pinned[FIRST + slot]) = (NOBODY, 0, 0);
        }
        self.pools[1].pinned_count = 0;
        self.plan.copy_count = 0;
        self
    }
}

/// Those tables on a device, rows of the host's, and where they go.
struct Scene {
    bench: Bench,
    memories: [Memory; 5],
    plans: Memory,
    waits: Await,
    gathers: Gather,
    rows: Pages,
    target: Memory,
}

impl Scene {
    fn new(world: CudaWorld, state: &State) -> Self {
        let mut bench = Bench::new(world);
        let memories = [
            bench.memory(bytemuck::cast_slice(&state.place)),
            bench.memory(bytemuck::cast_slice(&state.owner)),
            bench.memory(bytemuck::cast_slice(&state.stamp)),
            bench.memory(&state.pinned),
            bench.memory(bytemuck::cast_slice(&state.pools)),
        ];
        let [place, owner, stamp, pinned, pools] = memories.map(|memory| bench.device.address(memory).unwrap());
        let plans = bench.memory(bytemuck::cast_slice(&[PlanHead::zeroed(), state.plan]));
        let plans_address = bench.device.address(plans).unwrap();
        let mut copies = vec![Entry { target: 90, source: 91 }; 2 * EXPERTS];
        copies[EXPERTS..EXPERTS + 2].copy_from_slice(&[Entry { target: 1, source: 3 }, Entry { target: 4, source: 5 }]);
        let tables = Tables {
            header: bench.header_address,
            place,
            owner,
            stamp,
            pinned,
            pools,
            plans: plans_address,
            copies: bench.items(&copies),
            layer_count: 2,
            expert_count: EXPERTS as u32,
            slot_count: (FIRST + SLOTS) as u32,
            pool_count: 2,
            ..Tables::zeroed()
        };
        let waits = Await {
            tables,
            generation: GENERATION,
            pool: PoolRange { pool: 1, first: FIRST as u32, slot_count: SLOTS as u32, reserved: 0 },
            layer: 1,
            word_value: 0,
            word: bench.device.kernel_address(bench.pages[PAGE..].as_ptr(), 4).unwrap(),
            patience: u64::MAX,
        };
        let rows = Pages::new(PAGE);
        register(&mut bench.device, &rows).unwrap();
        let target = bench.memory(&[0xCC; ROW * SLOTS]);
        let bank = BankRows {
            source: bench.device.kernel_address(rows.as_ptr(), (ROW * EXPERTS) as u64).unwrap(),
            source_stride: ROW as u64,
            target: bench.device.address(target).unwrap(),
            target_stride: ROW as u64,
            row_bytes: ROW as u64,
            source_rows: EXPERTS as u32,
            target_rows: SLOTS as u32,
        };
        let gathers = Gather {
            header: bench.header_address,
            generation: GENERATION,
            entry_count: plans_address + size_of::<PlanHead>() as u64,
            entries: tables.copies + (EXPERTS * size_of::<Entry>()) as u64,
            banks: bench.items(&[bank]),
            bank_count: 1,
            entry_max: EXPERTS as u32,
            layer: 1,
            reserved: 0,
        };
        Self { bench, memories, plans, waits, gathers, rows, target }
    }

    /// Waits for the word to be at a value, and gathers then.
    fn launch(&mut self, value: u32, threads: u32) {
        self.bench.launch(Kernel::Await, (1, threads), &Await { word_value: value, ..self.waits });
        self.bench.launch(Kernel::GatherRows, (3, 64), &self.gathers);
    }

    fn word(&self) -> &AtomicU32 {
        self.bench.pages.word(PAGE)
    }

    fn state(&mut self) -> State {
        let [place, owner, stamp, pinned, pools] = self.memories;
        State {
            place: self.bench.read_items(place, 2 * EXPERTS),
            owner: self.bench.read_items(owner, FIRST + SLOTS),
            stamp: self.bench.read_items(stamp, FIRST + SLOTS),
            pinned: self.bench.read(pinned, FIRST + SLOTS),
            pools: self.bench.read_items(pools, 2),
            plan: self.bench.read_items(self.plans, 2)[1],
        }
    }

    /// Every slot's bytes: those of the plan's rows, or what was there.
    #[track_caller]
    fn slots(&mut self, gathered: bool, at: &str) {
        let mut wanted = [0xCC; ROW * SLOTS];
        if gathered {
            for (slot, row) in [(1, 3), (4, 5)] {
                wanted[slot * ROW..][..ROW].copy_from_slice(&self.rows[row * ROW..][..ROW]);
            }
        }
        same_bytes(&self.bench.read(self.target, ROW * SLOTS), &wanted, at);
    }

    #[track_caller]
    fn end(mut self) {
        self.bench.device.unregister(self.rows.as_ptr()).unwrap();
        self.bench.end();
    }
}

fn timeout(value: u32, found: u32) -> Fault {
    let (needed, given) = (u64::from(value), u64::from(found));
    Fault { code: 6, layer: 1, step: STEP, needed, given, count: 1, ..Fault::zeroed() }
}

#[test]
fn rows_that_are_written_before_the_word_is_raised_arrive() {
    // Counted around the end of 32 bits, too, and already past the value.
    for (before, value, after) in [(0, 1, 1), (u32::MAX, 3, 4), (u32::MAX - 5, u32::MAX, 7), (9, 5, 10)] {
        for threads in [32, 256] {
            let at = format!("{threads} threads: from {before} to {after} for {value}");
            let mut scene = Scene::new(CudaWorld::new(u64::from(value)), &State::new());
            scene.word().store(before, Ordering::Release);
            scene.launch(value, threads);
            let base = scene.rows.as_ptr() as usize;
            let is_past = (before.wrapping_sub(value) as i32) >= 0;
            let write = move || {
                for byte in 0..ROW * EXPERTS {
                    // SAFETY: the rows are in place, and are read behind the word alone.
                    unsafe { ((base + byte) as *mut u8).write_volatile((byte % 251) as u8) };
                }
            };
            if is_past {
                write();
            }
            let Scene { bench, .. } = &mut scene;
            let (word, device) = (bench.pages.word(PAGE), &mut bench.device);
            thread::scope(|scope| {
                scope.spawn(move || {
                    if !is_past {
                        // A launch that does not wait gets time to do harm.
                        thread::sleep(Duration::from_millis(3));
                        write();
                    }
                    word.store(after, Ordering::Release);
                });
                device.synchronize(bench.stream).unwrap();
            });
            scene.bench.no_fault(&at);
            scene.slots(true, &at);
            assert_eq!(scene.state(), State::new(), "{at}");
            scene.end();
        }
    }
}

#[test]
fn slots_whose_rows_do_not_come_in_time_are_free_again() {
    for (found, value) in [(0, 1), (7, 8), (u32::MAX, 2), (1, 1 << 31)] {
        for (threads, patience) in [(32, 0), (32, 30), (256, 30)] {
            let at = format!("{threads} threads: {found} and not {value}");
            let mut scene = Scene::new(CudaWorld::new(5), &State::new());
            scene.waits.patience = patience;
            scene.word().store(found, Ordering::Release);
            scene.launch(value, threads);
            assert_eq!(scene.bench.fault(), timeout(value, found), "{at}");
            scene.slots(false, &at);
            assert_eq!(scene.state(), State::new().freed(), "{at}");
            // There is nothing left to wait for.
            scene.launch(value, threads);
            assert_eq!(scene.bench.fault(), timeout(value, found), "{at}, again");
            scene.end();
        }
    }
}

#[test]
fn a_wait_in_vain_is_counted_behind_an_earlier_fault() {
    let mut scene = Scene::new(CudaWorld::new(6), &State::new());
    scene.waits.patience = 3;
    scene.bench.launch(Kernel::GatherRows, (4, 64), &Gather { generation: GENERATION + 1, ..scene.gathers });
    let first = scene.bench.fault();
    assert_eq!((first.code, first.count), (3, 1));
    scene.launch(1, 64);
    assert_eq!(scene.bench.fault(), Fault { count: 2, ..first });
    scene.end();
}

/// The plan's slots are the plan's only as long as nobody else was admitted to them.
#[test]
fn a_slot_that_has_gone_to_another_since_is_not_freed() {
    let mut state = State::new();
    // Slot 4 went to expert 6 of layer 0, which pinned it too.
    state.place[EXPERTS + 5] = ABSENT_FIRST + 1;
    state.place[6] = 4;
    state.owner[FIRST + 4] = 6;
    let mut scene = Scene::new(CudaWorld::new(7), &state);
    scene.waits.patience = 3;
    scene.launch(1, 64);
    let mut wanted = state.freed();
    wanted.place[EXPERTS + 5] = ABSENT_FIRST + 1;
    (wanted.owner[FIRST + 4], wanted.stamp[FIRST + 4], wanted.pinned[FIRST + 4]) = (6, STEP, 1);
    wanted.pools[1].pinned_count = 1;
    assert_eq!(scene.state(), wanted);
    scene.end();
}

#[test]
fn without_copies_or_of_another_generation_nobody_waits() {
    let mut state = State::new();
    state.plan.copy_count = 0;
    let mut scene = Scene::new(CudaWorld::new(8), &state);
    scene.waits.patience = 0;
    scene.launch(1, 64);
    scene.bench.no_fault("no copies");
    assert_eq!(scene.state(), state);
    scene.end();

    let mut scene = Scene::new(CudaWorld::new(9), &State::new());
    scene.waits.generation = GENERATION - 1;
    scene.bench.launch(Kernel::Await, (1, 64), &scene.waits);
    let stale = Fault { value: GENERATION as i64 - 1, needed: GENERATION, ..timeout(0, 0) };
    assert_eq!(scene.bench.fault(), Fault { code: 3, ..stale });
    assert_eq!(scene.state(), State::new());
    scene.end();
}

#[test]
fn the_emulated_driver_says_so_if_a_word_is_waited_for_in_vain() {
    let config = Config { word_patience_ms: 20, ..seeded(10) };
    let mut scene = Scene::new(CudaWorld::emulated(config), &State::new());
    scene.bench.launch(Kernel::Await, (1, 64), &Await { word_value: 1, ..scene.waits });
    scene.bench.device.synchronize(scene.bench.stream).unwrap();
    let told = scene.bench.world.emulated.as_ref().unwrap().violations();
    assert!(told.len() == 1 && told[0].contains("waited"), "{told:?}");
    scene.end();
}

/// Whether waiting without this barrier goes wrong: for `barriers.rs`.
pub(crate) fn goes_wrong(seed: u64, skipped: Option<u32>) -> bool {
    let mut scene = Scene::new(CudaWorld::emulated(seeded(seed)), &State::new());
    scene.waits.patience = 5;
    scene.bench.world.emulated.as_ref().unwrap().skip_barrier("ftcache_await", skipped);
    scene.launch(1, 96);
    let is_right = scene.state() == State::new().freed();
    let told = scene.bench.world.emulated.as_ref().unwrap().violations();
    scene.end();
    !told.is_empty() || !is_right
}
