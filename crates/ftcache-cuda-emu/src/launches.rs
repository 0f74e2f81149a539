//! Launches of kernels: what they may touch, when they are enqueued and when they run, and what running them showed.
//!
//! What a launch may touch is told by its arguments and by what lies in device memory, so it is asked twice. When it
//! is enqueued, for conflicts with other work: they are found for any seed. And when it runs, for the checks of each
//! access, since what is read there may have been on its way before; what is new then is compared with other work too.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Clock;
use crate::codes::{Answer, INVALID_HANDLE};
use crate::history::Access;
use crate::host_memory::HostKind;
use crate::kernels::{self, ATOMIC, AWAITED, BarrierSet, Kernel, RARELY, Range, Request, WRITE};
use crate::operation::{Task, Test, Touch, WordWait, Work};
use crate::rows::Rows;
use crate::session::Session;
use crate::state::State;

/// A kernel with its arguments, as it was enqueued.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) module: u64,
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) args: Box<[u64]>,
}

/// What is known of a kernel's launches so far. It crosses to the client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaunchCounts {
    pub(crate) launches: u64,
    pub(crate) barriers_most: u64,
    pub(crate) barriers_last: u64,
    pub(crate) barrier_ids: BarrierSet,
}

/// Kernels as a device has launched them, and what tests ask of them.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    pub(crate) counts: BTreeMap<&'static str, LaunchCounts>,
    /// Barriers that do nothing.
    pub(crate) skipped: BTreeMap<&'static str, BarrierSet>,
}

fn rows_of(range: &Range) -> Rows {
    Rows::new(range.base, range.row_bytes, range.stride, range.rows)
}

impl State {
    /// What a launch may touch, checked to be there.
    fn ranges_of(&mut self, launch: &Launch, context: u64) -> Answer<Vec<Range>> {
        let is_live = |address: u64, bytes: u64| {
            let end = address.saturating_add(bytes);
            let live = self.memory.holding(address).is_some_and(|live| end <= live.base + live.bytes);
            live || matches!(self.host.classify(address, bytes), HostKind::Pinned { .. })
        };
        let ranges = kernels::describe(launch.kernel, &launch.args, &is_live);
        for range in &ranges {
            let (rows, write) = (rows_of(range), range.access & WRITE != 0);
            // A copy ends where a registration does; a kernel does not know of registrations.
            if self.host.is_pinned_throughout(rows.base, rows.extent(), write) {
                continue;
            }
            let what = format!("{} of {}", range.name(), launch.kernel.name);
            self.check_device(&what, context, rows.base, rows.extent(), write)?;
        }
        Ok(ranges)
    }

    /// A launch that is enqueued now, with what it touches and waits for.
    pub(crate) fn launch_task(&mut self, launch: &Arc<Launch>, context: u64) -> Answer<Task> {
        let ranges = self.ranges_of(launch, context)?;
        let mut task = Task::new(launch.kernel.name, Work::Launch(launch.clone()), touches_of(&ranges));
        let awaited = ranges.iter().find(|range| range.access & AWAITED != 0);
        task.awaited = awaited.map(|range| WordWait { address: range.base, value: range.value, test: Test::AtLeast });
        Ok(task)
    }

    /// Compares what an operation touches with all other work, where only running it has shown that it does.
    fn touch_late(&mut self, timeline: usize, number: u64, clock: &Arc<Clock>, call: &'static str, touches: &[Touch]) {
        for &touch in touches {
            let access = Access { touch, timeline, number, clock: clock.clone(), call };
            for conflict in self.history.conflicts(&access, clock, false) {
                // What was enqueued since may stand after it.
                if !conflict.earlier.clock.knows(timeline, number) {
                    self.report(&conflict, &access);
                }
            }
        }
        for &touch in touches {
            self.history.insert(Access { touch, timeline, number, clock: clock.clone(), call });
        }
    }
}

fn touches_of(ranges: &[Range]) -> Vec<Touch> {
    let seen = ranges.iter().filter(|range| range.access & RARELY == 0);
    let touch = |range: &Range| Touch {
        rows: rows_of(range),
        write: range.access & WRITE != 0,
        atomic: range.access & ATOMIC != 0,
        early: false,
    };
    seen.map(touch).collect()
}

impl Session<'_> {
    /// Runs a launch that has come to the head of its queue.
    pub(crate) fn run_launch(
        &mut self,
        timeline: usize,
        number: u64,
        clock: &Arc<Clock>,
        enqueued: &[Touch],
        launch: &Launch,
    ) {
        let context = self.timelines[timeline].context;
        let name = launch.kernel.name;
        // What is not there has been reported, and nothing of it is run.
        let Ok(ranges) = self.ranges_of(launch, context) else { return };
        let new: Vec<Touch> = touches_of(&ranges).into_iter().filter(|touch| !enqueued.contains(touch)).collect();
        self.touch_late(timeline, number, clock, name, &new);
        let request = Request {
            kernel: launch.kernel,
            blocks: launch.blocks,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
            seed: self.random.next(),
            patience: self.settings.word_patience,
            args: &launch.args,
            ranges: &ranges,
            skipped: self.launches.skipped.get(name).copied().unwrap_or_default(),
        };
        let mut outcome = None;
        self.without_lock(timeline, || outcome = Some(kernels::run(&request)));
        let Some(outcome) = outcome else { return };
        let counts = self.launches.counts.entry(name).or_default();
        counts.launches += 1;
        counts.barriers_last = outcome.barriers;
        counts.barriers_most = counts.barriers_most.max(outcome.barriers);
        for (all, seen) in counts.barrier_ids.iter_mut().zip(outcome.barrier_ids) {
            *all |= seen;
        }
        outcome.reports.into_iter().for_each(|report| self.violation(report));
    }

    /// Refuses to launch what is of a module that is gone.
    pub(crate) fn check_module(&mut self, launch: &Launch) -> Answer {
        match self.modules.contains_key(&launch.module) {
            true => Ok(()),
            false => {
                let what = format!("{} is of a module that was unloaded", launch.kernel.name);
                Err(self.refuse(INVALID_HANDLE, &what))
            }
        }
    }
}
