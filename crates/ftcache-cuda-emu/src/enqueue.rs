//! Putting work into a stream: what it stands after, and what it conflicts with.
//!
//! Order by the driver API manual: operations of a stream one after another; the legacy stream after and before all
//! streams of its context that were not made non-blocking; waits for events; and whatever the calling thread has waited
//! for before it made the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::Clock;
use crate::codes::{Answer, CAPTURE_IMPLICIT};
use crate::history::{Access, Conflict};
use crate::operation::{Operation, Task, Touch, Work};
use crate::rows::Rows;
use crate::session::Session;
use crate::state::{Kind, State};

impl Session<'_> {
    /// Puts a task into a stream, or into the graph that is captured from it. Gives its number, 0 in a capture.
    pub(crate) fn submit(&mut self, timeline: usize, task: Task) -> Answer<u64> {
        if self.timelines[timeline].capture.is_some() {
            self.capture_task(timeline, task)?;
            return Ok(0);
        }
        self.not_implicit(timeline)?;
        let thread = self.thread;
        let number = self.enqueue(thread, timeline, task, Vec::new(), None);
        self.settle_if_eager()?;
        Ok(number)
    }

    /// Refuses work in the legacy stream while a stream that waits for it is captured.
    pub(crate) fn not_implicit(&mut self, timeline: usize) -> Answer {
        let Kind::Legacy = self.timelines[timeline].kind else { return Ok(()) };
        let context = self.timelines[timeline].context;
        let captured: Vec<u64> = (self.timelines.iter())
            .filter(|other| other.context == context && other.kind == Kind::Blocking)
            .filter_map(|other| Some(other.capture.as_ref()?.capture))
            .collect();
        if captured.is_empty() {
            return Ok(());
        }
        for capture in captured {
            self.invalidate(capture);
        }
        Err(self.refuse(CAPTURE_IMPLICIT, "the legacy stream would wait for a stream that is being captured"))
    }

    /// An access by the host itself, now. It is remembered for other threads if `recorded`.
    pub(crate) fn touch_by_host(&mut self, rows: Rows, write: bool, recorded: bool) {
        let (thread, call) = (self.thread, self.call);
        let Some(host) = self.threads.get_mut(&thread) else { return };
        let (timeline, mut clock) = (host.timeline, host.knowledge.clone());
        let number = self.timelines[timeline].enqueued + 1;
        let touch = if write { Touch::write(rows) } else { Touch::read(rows) };
        let mut access = Access { touch, timeline, number, clock: Arc::default(), call };
        for conflict in self.history.conflicts(&access, &clock, recorded) {
            if !self.is_held_back(&conflict.earlier) {
                self.report(&conflict, &access);
            }
        }
        if recorded {
            self.timelines[timeline].enqueued = number;
            clock.set(timeline, number);
            access.clock = Arc::new(clock.clone());
            self.history.insert(access);
            self.learn(thread, &clock);
        }
    }
}

impl State {
    /// Puts a task into a timeline. It comes after its predecessor there, after what the thread knows, after `after`,
    /// and after all that `joined` stands after.
    pub(crate) fn enqueue(
        &mut self,
        thread: u64,
        timeline: usize,
        task: Task,
        mut after: Vec<(usize, u64)>,
        joined: Option<&Clock>,
    ) -> u64 {
        let mut clock = Clock::clone(&self.timelines[timeline].clock);
        let knowledge = self.threads.get(&thread).map(|thread| thread.knowledge.clone()).unwrap_or_default();
        clock.join(&knowledge);
        if let Some(joined) = joined {
            clock.join(joined);
        }
        self.join_default_streams(timeline, &mut clock, &mut after);
        let number = self.timelines[timeline].enqueued + 1;
        clock.set(timeline, number);
        if let Some(wait) = task.word() {
            if let Some(word) = self.words.get(&wait.address) {
                word.join_into(&mut clock, |value| wait.accepts(value));
            }
            self.timelines[timeline].word_waits.push_back((number, wait));
        }
        if let Work::WriteValue(address, value) = task.work {
            let word = self.words.entry(address).or_insert_with(|| Word::now(address));
            word.forget_known(&knowledge);
            word.writes.push((value, timeline, number, Arc::new(clock.clone())));
        }
        let clock = Arc::new(clock);
        for &touch in &task.touches {
            let access = Access { touch, timeline, number, clock: clock.clone(), call: task.call };
            let order = if touch.early { &knowledge } else { &*clock };
            for conflict in self.history.conflicts(&access, order, true) {
                self.report(&conflict, &access);
            }
        }
        // Only now: what one operation reads and writes is its own affair.
        for &touch in &task.touches {
            self.history.insert(Access { touch, timeline, number, clock: clock.clone(), call: task.call });
        }
        let fails = if task.can_fail() { self.take_late_fault() } else { None };
        after.retain(|&(other, number)| self.timelines[other].done < number);
        let line = &mut self.timelines[timeline];
        line.enqueued = number;
        line.clock = clock.clone();
        line.queue.push_back(Operation { number, after, clock, task, fails });
        self.pending.insert(timeline);
        number
    }

    fn join_default_streams(&self, timeline: usize, clock: &mut Clock, after: &mut Vec<(usize, u64)>) {
        let line = &self.timelines[timeline];
        match line.kind {
            Kind::Legacy => {
                let blocking = self.timelines.iter().enumerate();
                let blocking =
                    blocking.filter(|(_, other)| other.context == line.context && other.kind == Kind::Blocking);
                for (other, blocking) in blocking {
                    clock.join(&blocking.clock);
                    after.push((other, blocking.enqueued));
                }
            }
            Kind::Blocking => {
                let Some(context) = self.contexts.get(&line.context) else { return };
                let legacy = &self.timelines[context.legacy];
                clock.join(&legacy.clock);
                after.push((context.legacy, legacy.enqueued));
            }
            Kind::NonBlocking | Kind::Host | Kind::Branch => {}
        }
    }

    fn take_late_fault(&mut self) -> Option<i32> {
        let mut code = None;
        self.faults.late.retain_mut(|(after, its_code)| match after.checked_sub(1) {
            Some(left) => {
                *after = left;
                true
            }
            None => {
                code = code.or(Some(*its_code));
                false
            }
        });
        code
    }

    /// Whether an operation stands behind a wait for a word that nobody has raised yet: it cannot have begun.
    fn is_held_back(&self, access: &Access) -> bool {
        let lines = self.timelines.iter().enumerate();
        let mut waits =
            lines.flat_map(|(at, line)| line.word_waits.iter().map(move |(number, wait)| (at, number, wait)));
        waits.any(|(at, number, wait)| access.clock.knows(at, *number) && !wait.is_met())
    }

    /// Says that two accesses conflict.
    pub(crate) fn report(&mut self, conflict: &Conflict, later: &Access) {
        let say = |access: &Access| {
            let verb = if access.touch.write { "writes" } else { "reads" };
            let early = if access.touch.early { ", as early as the call," } else { "" };
            let name = &self.timelines[access.timeline].name;
            format!("{} ({name}, operation {}){early} {verb} {}", access.call, access.number, access.touch.rows)
        };
        let (low, high) = conflict.shared;
        let place = match self.memory.holding(low) {
            Some(allocation) => format!(", {} bytes into the allocation {:#x}", low - allocation.base, allocation.base),
            None => String::new(),
        };
        let text = format!(
            "{} and {}, unordered; both touch [{low:#x}, +{}){place}",
            say(&conflict.earlier),
            say(later),
            high - low
        );
        self.race(text);
    }
}

/// What streams have written to a word that streams wait for.
#[derive(Debug)]
pub(crate) struct Word {
    /// Its value before the first of the writes.
    before: u32,
    /// Value, timeline, number, and what the write stands after.
    writes: Vec<(u32, usize, u64, Arc<Clock>)>,
}

impl Word {
    fn now(address: u64) -> Self {
        // SAFETY: aligned, and live or pinned, as the call has checked.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(address as *mut u32) };
        Self { before: word.load(Ordering::Acquire), writes: Vec::new() }
    }

    /// Joins what stands before the word's being accepted, whichever write it was that did it.
    fn join_into(&self, clock: &mut Clock, accepts: impl Fn(u32) -> bool) {
        if accepts(self.before) {
            return;
        }
        let mut clocks = self.writes.iter().filter(|write| accepts(write.0)).map(|write| &*write.3);
        let Some(mut certain) = clocks.next().cloned() else { return };
        clocks.for_each(|other| certain.meet(other));
        clock.join(&certain);
    }

    fn forget_known(&mut self, knowledge: &Clock) {
        while let Some(&(value, timeline, number, _)) = self.writes.first()
            && knowledge.knows(timeline, number)
        {
            self.before = value;
            self.writes.remove(0);
        }
    }
}
