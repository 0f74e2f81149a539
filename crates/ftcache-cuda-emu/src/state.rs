//! All that one emulated device knows, under one lock.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::capture::{Capture, Capturing, Exec, Graph};
use crate::clock::Clock;
use crate::codes::{Answer, INVALID_VALUE};
use crate::history::History;
use crate::host_memory::{HostKind, HostMemory};
use crate::images::Image;
use crate::kernels::Kernel;
use crate::launches::Launches;
use crate::memory::Memory;
use crate::operation::Operation;
use crate::random::{ByNumber, Random};
use crate::settings::{Batch, Counts};
use crate::worlds::{Handle, HandleKind};

/// Reports beyond this are only counted: one missing wait in a loop would otherwise fill memory.
const REPORTS_MAX: usize = 100;

/// How a stream stands to the legacy stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
    /// Not a stream: the order of a host thread.
    Host,
    /// Not a stream: a branch of a graph that was launched.
    Branch,
}

/// A stream, or something else whose operations are in order.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) context: u64,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) queue: VecDeque<Operation>,
    /// The number of the last operation enqueued.
    pub(crate) enqueued: u64,
    /// The number of the last operation done.
    pub(crate) done: u64,
    /// Its first operation runs on some thread without the lock.
    pub(crate) busy: bool,
    /// After its last operation.
    pub(crate) clock: Arc<Clock>,
    pub(crate) capture: Option<Capturing>,
    /// The numbers and waits for host words that are still queued.
    pub(crate) word_waits: VecDeque<(u64, crate::operation::WordWait)>,
}

/// What an event was recorded as last.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Never,
    Queued { timeline: usize, number: u64, clock: Arc<Clock>, time: Arc<AtomicU64> },
    Captured { capture: u64, nodes: Vec<usize> },
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) record: Record,
}

#[derive(Debug, Default)]
pub(crate) struct Context {
    /// The code that every call gives after work failed late.
    pub(crate) lost: Option<i32>,
    pub(crate) legacy: usize,
    pub(crate) per_thread: ByNumber<usize>,
}

#[derive(Debug)]
pub(crate) struct HostThread {
    pub(crate) timeline: usize,
    /// What its calls stand after.
    pub(crate) knowledge: Clock,
    pub(crate) alive: Arc<AtomicBool>,
}

/// Faults that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Name of the call, calls of it before the fault, code.
    pub(crate) calls: Vec<(String, u64, i32)>,
    /// Copies, fills and launches before the fault, code.
    pub(crate) late: Vec<(u64, i32)>,
    /// A registration was refused, and with it all later ones.
    pub(crate) register_poisoned: bool,
}

/// The settings of a world.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) eager: bool,
    pub(crate) register_limit_bytes: u64,
    pub(crate) register_call_max_bytes: u64,
    pub(crate) register_poisoned_after_refusal: bool,
    pub(crate) threads_share_order: bool,
    pub(crate) driver_version: i32,
    pub(crate) word_patience: std::time::Duration,
    pub(crate) batch: Batch,
    pub(crate) attributes: Vec<(i32, i32)>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) ordinal: i32,
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    serial: u64,
    /// Operations done.
    pub(crate) tick: u64,
    pub(crate) contexts: ByNumber<Context>,
    pub(crate) ended_contexts: HashSet<u64>,
    pub(crate) primary: u64,
    pub(crate) primary_retains: u64,
    pub(crate) timelines: Vec<Timeline>,
    /// Timelines with operations queued.
    pub(crate) pending: BTreeSet<usize>,
    pub(crate) streams: ByNumber<Stream>,
    pub(crate) events: ByNumber<Event>,
    pub(crate) captures: ByNumber<Capture>,
    pub(crate) graphs: ByNumber<Graph>,
    pub(crate) execs: ByNumber<Exec>,
    pub(crate) modules: ByNumber<Module>,
    pub(crate) functions: ByNumber<Function>,
    pub(crate) launches: Launches,
    pub(crate) memory: Memory,
    pub(crate) host: HostMemory,
    pub(crate) threads: ByNumber<HostThread>,
    /// What threads knew that have ended.
    departed: Clock,
    pub(crate) history: History,
    /// Words that streams have written.
    pub(crate) words: ByNumber<crate::enqueue::Word>,
    pub(crate) idle_queries: u32,
    /// Of eight queries, how many find that nothing has gone on.
    pub(crate) laziness: u64,
    pub(crate) races: Vec<String>,
    pub(crate) violations: Vec<String>,
    unreported: u64,
    pub(crate) faults: Faults,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) calls_total: u64,
    pub(crate) blocking_calls: u64,
    pub(crate) pageable_copies: u64,
    /// Threads that wait for `World::changed`.
    pub(crate) waiting: u32,
    /// The world was destroyed; whoever still waits in it goes home.
    pub(crate) over: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) timeline: usize,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: u64,
    pub(crate) image: Image,
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) kernel: Kernel,
}

impl State {
    pub(crate) fn new(ordinal: i32, settings: Settings) -> Self {
        let (seed, memory_bytes) = (settings.seed, settings.memory_bytes);
        Self {
            ordinal,
            settings,
            random: Random::new(seed),
            serial: 0,
            tick: 0,
            contexts: ByNumber::default(),
            ended_contexts: HashSet::new(),
            primary: 0,
            primary_retains: 0,
            timelines: Vec::new(),
            pending: BTreeSet::new(),
            streams: ByNumber::default(),
            events: ByNumber::default(),
            captures: ByNumber::default(),
            graphs: ByNumber::default(),
            execs: ByNumber::default(),
            modules: ByNumber::default(),
            functions: ByNumber::default(),
            launches: Launches::default(),
            memory: Memory::new(memory_bytes, seed),
            host: HostMemory::default(),
            threads: ByNumber::default(),
            departed: Clock::default(),
            history: History::default(),
            words: ByNumber::default(),
            idle_queries: 0,
            // Of some devices it is nearly none, of some all until the driver takes pity.
            laziness: [0, 4, 7, 8][Random::new(!seed).below(4)],
            races: Vec::new(),
            violations: Vec::new(),
            unreported: 0,
            faults: Faults::default(),
            calls: BTreeMap::new(),
            calls_total: 0,
            blocking_calls: 0,
            pageable_copies: 0,
            waiting: 0,
            over: false,
        }
    }

    pub(crate) fn new_handle(&mut self, kind: HandleKind) -> u64 {
        self.serial += 1;
        Handle { ordinal: self.ordinal, serial: self.serial, kind }.number()
    }

    pub(crate) fn new_timeline(&mut self, context: u64, kind: Kind, name: String) -> usize {
        self.timelines.push(Timeline {
            context,
            kind,
            name,
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            busy: false,
            clock: Arc::default(),
            capture: None,
            word_waits: VecDeque::new(),
        });
        self.timelines.len() - 1
    }

    pub(crate) fn new_context(&mut self) -> u64 {
        let handle = self.new_handle(HandleKind::Context);
        let legacy = self.new_timeline(handle, Kind::Legacy, "the legacy stream".to_owned());
        self.contexts.insert(handle, Context { legacy, ..Context::default() });
        handle
    }

    /// Streams of a context, its default ones included, and branches of its graphs.
    pub(crate) fn timelines_of(&self, context: u64) -> impl Iterator<Item = usize> {
        (0..self.timelines.len()).filter(move |&timeline| self.timelines[timeline].context == context)
    }

    pub(crate) fn violation(&mut self, text: String) {
        match self.violations.len() < REPORTS_MAX {
            true => self.violations.push(text),
            false => self.unreported += 1,
        }
    }

    pub(crate) fn race(&mut self, text: String) {
        match self.races.len() < REPORTS_MAX {
            true => self.races.push(text),
            false => self.unreported += 1,
        }
    }

    /// Makes a host thread known. A new one is taken to have been started by whoever did what was done so far.
    pub(crate) fn enlist(&mut self, thread: u64, alive: &Arc<AtomicBool>) {
        if self.threads.contains_key(&thread) {
            return;
        }
        let timeline = self.new_timeline(0, Kind::Host, format!("host thread {thread}"));
        let knowledge = self.knowledge_of_all();
        self.threads.insert(thread, HostThread { timeline, knowledge, alive: alive.clone() });
    }

    pub(crate) fn knowledge_of_all(&self) -> Clock {
        let mut all = self.departed.clone();
        self.threads.values().for_each(|thread| all.join(&thread.knowledge));
        all
    }

    /// The thread stands after this from now on.
    pub(crate) fn learn(&mut self, thread: u64, clock: &Clock) {
        if let Some(known) = self.threads.get_mut(&thread) {
            known.knowledge.join(clock);
        }
        self.forget();
    }

    /// Forgets accesses that nothing to come can conflict with.
    pub(crate) fn forget(&mut self) {
        // Looking costs as much as there is to look at, so not for a handful.
        if self.history.len() < 32 {
            return;
        }
        let departed = &mut self.departed;
        self.threads.retain(|_, thread| {
            let alive = thread.alive.load(Ordering::Relaxed);
            if !alive {
                departed.join(&thread.knowledge);
            }
            alive
        });
        let mut knowledge = self.threads.values().map(|thread| &thread.knowledge);
        let Some(mut floor) = knowledge.next().cloned() else { return };
        knowledge.for_each(|other| floor.meet(other));
        self.history.forget_known(&floor);
    }

    /// Checks that memory of this extent may be given to the device: one live allocation of the context, or one pinned
    /// range.
    pub(crate) fn check_device(&mut self, call: &str, context: u64, base: u64, bytes: u64, write: bool) -> Answer {
        if bytes == 0 {
            return Ok(());
        }
        if let Some(allocation) = self.memory.holding(base) {
            let (start, length) = (allocation.base, allocation.bytes);
            if allocation.context != context {
                self.violation(format!("{call}: [{base:#x}, +{bytes}) is memory of another context"));
                return Err(INVALID_VALUE);
            }
            if base + bytes <= start + length {
                return Ok(());
            }
            let past = base + bytes - start - length;
            self.violation(format!(
                "{call}: [{base:#x}, +{bytes}) reaches {past} bytes past the end of the allocation \
                 [{start:#x}, +{length})"
            ));
            return Err(INVALID_VALUE);
        }
        match self.host.classify(base, bytes) {
            HostKind::Pinned { read_only: true } if write => {
                self.violation(format!("{call}: [{base:#x}, +{bytes}) is registered read-only and would be written"));
                Err(INVALID_VALUE)
            }
            HostKind::Pinned { .. } => Ok(()),
            _ => {
                self.violation(format!("{call}: [{base:#x}, +{bytes}) is in no allocation of device {}", self.ordinal));
                Err(INVALID_VALUE)
            }
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            allocations: self.memory.live_count() as u64,
            allocated_bytes: self.memory.used_bytes,
            peak_bytes: self.memory.peak_bytes,
            registrations: self.host.count(false) as u64,
            registered_bytes: self.host.registered_bytes,
            host_allocations: self.host.count(true) as u64,
            streams: self.streams.len() as u64,
            events: self.events.len() as u64,
            graphs: self.graphs.len() as u64,
            graph_execs: self.execs.len() as u64,
            modules: self.modules.len() as u64,
            contexts: self.contexts.keys().filter(|&&context| context != self.primary).count() as u64,
            primary_retains: self.primary_retains,
            pageable_copies: self.pageable_copies,
            queued: self.pending.iter().map(|&timeline| self.timelines[timeline].queue.len() as u64).sum(),
        }
    }

    /// Reports of both kinds that were too many to keep.
    pub(crate) fn take_unreported(&mut self) -> u64 {
        std::mem::take(&mut self.unreported)
    }
}
