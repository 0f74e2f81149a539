//! Doing queued work: only while something waits, and then in an order that the seed chooses.
//!
//! A wait does what it needs, and by the seed some of what else could go on meanwhile, so that over seeds every legal
//! order occurs. Several threads may wait at once. Host functions and kernels run without the lock, and so does the
//! pause of a thread that has only words to wait for which the host must raise.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::codes::{Answer, LAUNCH_TIMEOUT};
use crate::operation::Work;
use crate::session::Session;
use crate::state::State;
use crate::worlds::THREAD;

/// A point in a timeline: its index and the number of the operation.
pub(crate) type Goal = (usize, u64);

/// Queries that may all find nothing done before one of them does a step.
const IDLE_QUERIES_MAX: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

/// What stands between a wait and its goal.
enum Next {
    Step(usize),
    /// Runs on another thread.
    Busy,
    /// Waits for a word.
    Word(usize),
    /// A kernel that will wait for a word: it keeps the thread that runs it, and so comes after all else.
    WaitingKernel(usize),
}

impl Session<'_> {
    /// Does work until the goals are reached, and gives the context's state then.
    pub(crate) fn wait_for(&mut self, goals: &[Goal]) -> Answer {
        if !self.waited && goals.iter().any(|goal| !self.is_done(*goal)) {
            self.waited = true;
            self.blocking_calls += 1;
        }
        self.drain(goals);
        self.not_lost()
    }

    /// Waits for all work of the context, and knows it done.
    pub(crate) fn wait_for_context(&mut self) -> Answer {
        let context = self.context;
        let timelines: Vec<usize> = self.timelines_of(context).collect();
        let goals: Vec<Goal> =
            timelines.iter().map(|&timeline| (timeline, self.timelines[timeline].enqueued)).collect();
        self.wait_for(&goals)?;
        let thread = self.thread;
        for timeline in timelines {
            let clock = self.timelines[timeline].clock.clone();
            if let Some(known) = self.threads.get_mut(&thread) {
                known.knowledge.join(&clock);
            }
        }
        self.forget();
        Ok(())
    }

    fn drain(&mut self, goals: &[Goal]) {
        // Of eight steps, how many are any that could go on.
        let stray = 2 * self.random.below(4) as u64;
        let mut word_since: Option<Instant> = None;
        while !self.over {
            let unmet: Vec<Goal> = goals.iter().copied().filter(|goal| !self.is_done(*goal)).collect();
            if unmet.is_empty() {
                break;
            }
            let at = self.random.below(unmet.len());
            let strays = self.random.chance(stray).then(|| self.any_ready()).flatten();
            let next = strays.map_or_else(|| self.next_towards(unmet[at].0), Next::Step);
            let next = match next {
                Next::Step(_) => next,
                // Somebody else's work may be what raises the word.
                blocked => self.any_ready().map_or(blocked, Next::Step),
            };
            match next {
                Next::Step(timeline) => {
                    word_since = None;
                    self.step(timeline);
                }
                Next::WaitingKernel(timeline) => self.step(timeline),
                Next::Busy => self.pause(),
                Next::Word(timeline) => {
                    let since = *word_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > self.settings.word_patience {
                        self.give_up(timeline);
                    }
                    self.pause();
                }
            }
        }
        if self.random.chance(2) {
            for _ in 0..self.random.below(8) {
                let Some(timeline) = self.any_ready() else { break };
                self.step(timeline);
            }
        }
    }

    /// Does a little, or nothing, as a query finds a device that has gone on by itself.
    pub(crate) fn query(&mut self, goals: &[Goal]) -> Answer<bool> {
        let lazy = self.laziness;
        let mut steps = if self.random.chance(lazy) { 0 } else { self.random.below(4) };
        self.idle_queries += 1;
        while steps > 0 {
            let Some(timeline) = self.any_ready() else { break };
            self.step(timeline);
            self.idle_queries = 0;
            steps -= 1;
        }
        let unmet = |session: &Self| goals.iter().copied().find(|goal| !session.is_done(*goal));
        if let Some(goal) = unmet(self)
            && self.idle_queries >= IDLE_QUERIES_MAX
        {
            self.idle_queries = 0;
            if let Next::Step(timeline) = self.next_towards(goal.0) {
                self.step(timeline);
            }
        }
        self.not_lost()?;
        Ok(unmet(self).is_none())
    }

    /// On an eager device, does all that can be done.
    pub(crate) fn settle_if_eager(&mut self) -> Answer {
        if self.settings.eager {
            while let Some(timeline) = self.any_ready() {
                self.step(timeline);
            }
        }
        Ok(())
    }

    /// Does the first operation of a timeline, or a piece of it.
    fn step(&mut self, timeline: usize) {
        let Some(mut operation) = self.timelines[timeline].queue.pop_front() else { return };
        let number = operation.number;
        if let Some(code) = operation.fails {
            let context = self.timelines[timeline].context;
            self.lose(context, code);
            return;
        }
        match operation.task.work {
            Work::Host(function, data) => {
                self.without_lock(timeline, || function(data as *mut std::ffi::c_void));
            }
            Work::Kernel(ref kernel) => {
                let kernel = kernel.clone();
                self.without_lock(timeline, || (kernel.call)(kernel.data as *mut std::ffi::c_void));
            }
            Work::Launch(ref launch) => {
                let launch = launch.clone();
                self.run_launch(timeline, number, &operation.clock, &operation.task.touches, &launch);
            }
            _ => {
                let tick = self.tick + 1;
                let state: &mut State = self;
                if !operation.run_some(&mut state.random, tick) {
                    state.timelines[timeline].queue.push_front(operation);
                    return;
                }
            }
        }
        let state: &mut State = self;
        state.tick += 1;
        let line = &mut state.timelines[timeline];
        line.done = line.done.max(number);
        if line.word_waits.front().is_some_and(|(wait, _)| *wait <= number) {
            line.word_waits.pop_front();
        }
        if line.queue.is_empty() {
            state.pending.remove(&timeline);
        }
        // Telling nobody is a call of the system all the same.
        if self.waiting > 0 {
            self.world.changed.notify_all();
        }
    }

    pub(crate) fn without_lock(&mut self, timeline: usize, work: impl FnOnce()) {
        self.timelines[timeline].busy = true;
        self.state = None;
        let before = THREAD.with(|thread| thread.inside.replace(true));
        work();
        THREAD.with(|thread| thread.inside.set(before));
        self.state = Some(self.world.lock());
        self.timelines[timeline].busy = false;
    }

    /// Lets go of the lock for a moment, or until something has changed.
    fn pause(&mut self) {
        self.waiting += 1;
        let guard: Option<MutexGuard<'_, State>> = self.state.take();
        let Some(guard) = guard else { return };
        let waited = self.world.changed.wait_timeout(guard, PAUSE);
        self.state = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
        self.waiting -= 1;
    }

    fn give_up(&mut self, timeline: usize) {
        let (name, context) = (self.timelines[timeline].name.clone(), self.timelines[timeline].context);
        let wait = self.timelines[timeline].word_waits.front().map(|(_, wait)| *wait);
        let what = wait.map(|wait| format!("{:?} {} at {:#x}", wait.test, wait.value, wait.address));
        let patience = self.settings.word_patience;
        let text = format!("{name} has waited {patience:?} for a word: {}", what.unwrap_or_default());
        self.refuse(LAUNCH_TIMEOUT, &text);
        self.lose(context, LAUNCH_TIMEOUT);
    }
}

impl State {
    pub(crate) fn is_done(&self, (timeline, number): Goal) -> bool {
        self.timelines[timeline].done >= number
    }

    fn any_ready(&mut self) -> Option<usize> {
        let ready: Vec<usize> = self.pending.iter().copied().filter(|&timeline| self.is_ready(timeline)).collect();
        if ready.is_empty() {
            return None;
        }
        Some(ready[self.random.below(ready.len())])
    }

    fn is_ready(&self, timeline: usize) -> bool {
        let line = &self.timelines[timeline];
        let Some(first) = line.queue.front() else { return false };
        !line.busy
            && first.after.iter().all(|goal| self.is_done(*goal))
            && first.task.word().is_none_or(|word| word.is_met())
    }

    /// What has to be done first for a timeline to go on. Dependencies were all enqueued before what depends on them,
    /// so following them comes to an end.
    fn next_towards(&mut self, mut timeline: usize) -> Next {
        loop {
            let line = &self.timelines[timeline];
            if line.busy {
                return Next::Busy;
            }
            let Some(first) = line.queue.front() else { return Next::Busy };
            let unmet: Vec<Goal> = first.after.iter().copied().filter(|goal| !self.is_done(*goal)).collect();
            match &first.task.work {
                _ if !unmet.is_empty() => timeline = unmet[self.random.below(unmet.len())].0,
                Work::WaitValue(wait) if !wait.is_met() => return Next::Word(timeline),
                _ if first.task.word().is_some_and(|word| !word.is_met()) => return Next::WaitingKernel(timeline),
                _ => return Next::Step(timeline),
            }
        }
    }

    /// Ends all work of a context; every later call in it gives the code.
    pub(crate) fn lose(&mut self, context: u64, code: i32) {
        if let Some(lost) = self.contexts.get_mut(&context) {
            lost.lost = lost.lost.or(Some(code));
        }
        for (at, line) in self.timelines.iter_mut().enumerate().filter(|(_, line)| line.context == context) {
            line.queue.clear();
            line.word_waits.clear();
            line.done = line.enqueued;
            self.pending.remove(&at);
        }
    }
}
