//! The emulated devices of the process, handles into them, and what the driver keeps for each thread.
//!
//! Every device ordinal is a world of its own behind a lock of its own; ordinals are never used twice. A handle is a
//! number that says its world and is looked up there. It is never dereferenced, so a stale or foreign one is an error.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use crate::settings::{Batch, DRIVER_VERSION};
use crate::state::{Settings, State};

#[derive(Debug)]
pub(crate) struct World {
    state: Mutex<State>,
    /// Something was done without the lock, or the world is over.
    pub(crate) changed: Condvar,
}

impl World {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of ours ends the process at the C border, so no half-changed state is ever seen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Table {
    worlds: BTreeMap<i32, Arc<World>>,
    next: i32,
}

static TABLE: RwLock<Table> = RwLock::new(Table { worlds: BTreeMap::new(), next: 0 });
static INITIALIZED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::Acquire)
}

/// `cuInit`: makes devices by the environment if no control call has made any.
pub(crate) fn initialize() {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if table.next == 0 {
        let number = |name: &str, default: u64| -> u64 {
            std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        };
        let settings = Settings {
            seed: number("FTCACHE_EMU_SEED", 0),
            memory_bytes: number("FTCACHE_EMU_MEMORY_BYTES", 1 << 30),
            eager: false,
            register_limit_bytes: u64::MAX,
            register_call_max_bytes: u64::MAX,
            register_poisoned_after_refusal: false,
            threads_share_order: false,
            word_patience: std::time::Duration::from_secs(10),
            batch: Batch::Right,
            attributes: Vec::new(),
            driver_version: DRIVER_VERSION,
        };
        for _ in 0..number("FTCACHE_EMU_DEVICES", 1) {
            insert(&mut table, settings.clone());
        }
    }
    INITIALIZED.store(true, Ordering::Release);
}

fn insert(table: &mut Table, settings: Settings) -> i32 {
    let ordinal = table.next;
    table.next += 1;
    let state = Mutex::new(State::new(ordinal, settings));
    table.worlds.insert(ordinal, Arc::new(World { state, changed: Condvar::new() }));
    ordinal
}

pub(crate) fn create(settings: Settings) -> i32 {
    insert(&mut TABLE.write().unwrap_or_else(PoisonError::into_inner), settings)
}

/// Takes a world out of the table. Whoever waits in it is told.
pub(crate) fn destroy(ordinal: i32) -> bool {
    let world = TABLE.write().unwrap_or_else(PoisonError::into_inner).worlds.remove(&ordinal);
    let Some(world) = world else { return false };
    let mut state = world.lock();
    state.over = true;
    drop(state);
    world.changed.notify_all();
    true
}

pub(crate) fn world(ordinal: i32) -> Option<Arc<World>> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).worlds.get(&ordinal).cloned()
}

pub(crate) fn all_worlds() -> Vec<(i32, Arc<World>)> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.worlds.iter().map(|(ordinal, world)| (*ordinal, world.clone())).collect()
}

/// One more than the highest ordinal that was given out.
pub(crate) fn count() -> i32 {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).next
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    Context = 1,
    Stream = 2,
    Event = 3,
    Graph = 4,
    Exec = 5,
    Capture = 6,
    Module = 7,
    Function = 8,
}

/// What a handle says. As a number it is above 2^32, so that no small constant is mistaken for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) ordinal: i32,
    pub(crate) serial: u64,
    pub(crate) kind: HandleKind,
}

impl Handle {
    pub(crate) fn number(self) -> u64 {
        // Twenty-eight bits of serial, then the kind.
        ((self.ordinal as u64 + 1) << 32) | ((self.serial & 0x0FFF_FFFF) << 4) | self.kind as u64
    }

    /// The world that a number would be of; it may not be a handle at all.
    pub(crate) fn ordinal_of(number: u64) -> Option<i32> {
        i32::try_from((number >> 32).checked_sub(1)?).ok()
    }
}

/// What the driver keeps for each thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: u64,
    pub(crate) alive: Arc<AtomicBool>,
    /// The stack of current contexts.
    pub(crate) contexts: RefCell<Vec<u64>>,
    pub(crate) capture_mode: Cell<i32>,
    /// It is inside a host function or a kernel, where the driver must not be called.
    pub(crate) inside: Cell<bool>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    pub(crate) static THREAD: Thread = Thread {
        id: THREADS.fetch_add(1, Ordering::Relaxed),
        alive: Arc::new(AtomicBool::new(true)),
        contexts: RefCell::default(),
        capture_mode: Cell::new(0),
        inside: Cell::new(false),
    };
}
