//! Vector clocks: how much of every timeline is known to have happened.
//!
//! A timeline is a stream, or a host thread; its operations are numbered from 1 in the order they were enqueued. A
//! clock that holds `n` for a timeline stands after the first `n` operations of it. Timelines never mentioned are at 0.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    pub(crate) fn at(&self, timeline: usize) -> u64 {
        self.0.get(timeline).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, timeline: usize, number: u64) {
        if self.0.len() <= timeline {
            self.0.resize(timeline + 1, 0);
        }
        self.0[timeline] = number;
    }

    /// Whether this stands after the operation.
    pub(crate) fn knows(&self, timeline: usize, number: u64) -> bool {
        self.at(timeline) >= number
    }

    /// Stands after both from now on.
    pub(crate) fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Keeps only what both stand after.
    pub(crate) fn meet(&mut self, other: &Clock) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).min(*theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(numbers: &[u64]) -> Clock {
        Clock(numbers.to_vec())
    }

    #[test]
    fn joins_and_meets_are_pointwise() {
        let (a, b) = (clock(&[3, 0, 5]), clock(&[1, 4]));
        let (mut joined, mut met) = (a.clone(), a);
        joined.join(&b);
        met.meet(&b);
        assert_eq!(joined, clock(&[3, 4, 5]));
        assert_eq!(met, clock(&[1, 0]));
        assert!(joined.knows(1, 4) && !joined.knows(1, 5) && joined.knows(7, 0) && !joined.knows(7, 1));
    }
}
