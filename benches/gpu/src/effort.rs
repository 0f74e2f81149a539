//! How long to time, and how: medians are taken of several repeats, each of enough work that neither the clock's grain
//! nor what a launch takes is in the number.

use std::time::{Duration, Instant};

use ftcache_transfer::Stream;

use crate::Outcome;
use crate::driver::Cuda;

/// Work on a stream.
pub(crate) type Work<'a> = &'a mut dyn FnMut() -> Outcome;

/// The most launches of a repeat: what is enqueued takes memory too.
const MOST_LAUNCHES: f64 = 1000.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Effort {
    /// Admissions of a graph, or more: whole rounds of its walk.
    pub(crate) graph_steps: u32,
    pub(crate) repeats: u32,
    /// Device work of each repeat.
    pub(crate) repeat: Duration,
    /// Work before the first, so that clocks are up.
    pub(crate) warm_up: Duration,
}

impl Effort {
    pub(crate) const FULL: Self =
        Self { graph_steps: 192, repeats: 11, repeat: Duration::from_millis(10), warm_up: Duration::from_millis(100) };
    /// Everything once or twice.
    pub(crate) const SMALL: Self = Self { graph_steps: 1, repeats: 2, repeat: Duration::ZERO, warm_up: Duration::ZERO };

    /// Seconds that the work takes, one for each repeat.
    pub(crate) fn time(&self, cuda: &Cuda, stream: Stream, work: Work<'_>) -> Outcome<Vec<f64>> {
        self.time_in_turn(cuda, stream, [work]).map(|[times]| times)
    }

    /// The same of several, which take turns.
    pub(crate) fn time_in_turn<const COUNT: usize>(
        &self,
        cuda: &Cuda,
        stream: Stream,
        mut works: [Work<'_>; COUNT],
    ) -> Outcome<[Vec<f64>; COUNT]> {
        let timer = cuda.timer()?;
        let mut counts = [1; COUNT];
        for (work, count) in works.iter_mut().zip(&mut counts) {
            let start = Instant::now();
            while start.elapsed() < self.warm_up {
                work()?;
                cuda.synchronize(stream)?;
            }
            let once = timer.time(stream, 1, &mut *work)?;
            let wanted = self.repeat.as_secs_f64() / once;
            // An emulated device's clock may stand still.
            *count = if wanted.is_finite() { wanted.clamp(1.0, MOST_LAUNCHES) as u32 } else { 1 };
        }
        let mut times = [const { Vec::new() }; COUNT];
        for _ in 0..self.repeats {
            for ((work, &count), times) in works.iter_mut().zip(&counts).zip(&mut times) {
                times.push(timer.time(stream, count, &mut *work)?);
            }
        }
        Ok(times)
    }
}
