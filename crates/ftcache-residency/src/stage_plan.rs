//! How one layer comes to lie in a staging buffer: rows to gather from slots, rows to copy from the host.

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};

use crate::map::Expert;

/// One row from a slot to a staging buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Where it lies, local to the plan's pool.
    pub slot: SlotId,
    /// The expert, which is the row in the buffer.
    pub row: ExpertId,
}

/// Neighbouring rows of a bank, which go to the same rows of a staging buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowRun {
    /// The first row.
    pub row: ExpertId,
    /// How many.
    pub count: u32,
}

/// How one layer comes to lie in a staging buffer. A value, whose buffers are used again by the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    layer: LayerId,
    pool: PoolId,
    buffer: usize,
    /// Ascending by row.
    gathers: Vec<Gather>,
    /// The other rows, ascending.
    misses: Vec<RowRun>,
    whole: RowRun,
    small_row_bytes: u64,
}

impl Default for StagePlan {
    fn default() -> Self {
        Self::new()
    }
}

impl StagePlan {
    /// An empty plan, to be filled by the first layer.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty plan with room for layers of `expert_count` experts, which then allocate nothing.
    pub fn with_capacity(expert_count: usize) -> Self {
        Self {
            layer: LayerId::new(0),
            pool: PoolId::new(0),
            buffer: 0,
            gathers: Vec::with_capacity(expert_count),
            misses: Vec::with_capacity(expert_count.div_ceil(2)),
            whole: RowRun { row: ExpertId::new(0), count: 0 },
            small_row_bytes: 0,
        }
    }

    /// The layer that is staged.
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// The pool that serves it; the gathers' slots are local to this pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The buffer that it is staged in, 0 or 1.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Rows that lie in slots, ascending.
    pub fn gathers(&self) -> &[Gather] {
        &self.gathers
    }

    /// Rows that come from the host, ascending.
    pub fn misses(&self) -> &[RowRun] {
        &self.misses
    }

    /// Whether a bank with rows of this width ships all rows from the host, whatever is resident: one long copy of
    /// small rows is cheaper than many short ones.
    pub fn ships_whole(&self, row_bytes: u64) -> bool {
        row_bytes < self.small_row_bytes
    }

    /// What is gathered in a bank with rows of this width.
    pub fn bank_gathers(&self, row_bytes: u64) -> &[Gather] {
        if self.ships_whole(row_bytes) { &[] } else { &self.gathers }
    }

    /// What comes from the host in a bank with rows of this width.
    pub fn bank_runs(&self, row_bytes: u64) -> &[RowRun] {
        if self.ships_whole(row_bytes) { std::slice::from_ref(&self.whole) } else { &self.misses }
    }

    /// Bytes that come from the host in a bank with rows of this width.
    pub fn bank_bytes(&self, row_bytes: u64) -> u64 {
        self.bank_runs(row_bytes).iter().map(|run| u64::from(run.count) * row_bytes).sum()
    }

    pub(crate) fn stage(&mut self, experts: &[Expert], place: (LayerId, PoolId, usize), small_row_bytes: u64) {
        (self.layer, self.pool, self.buffer) = place;
        self.whole.count = experts.len() as u32;
        self.small_row_bytes = small_row_bytes;
        self.gathers.clear();
        self.misses.clear();
        for (row, place) in (0..).zip(experts.iter().map(|expert| expert.place)) {
            if place.is_slot() {
                self.gathers.push(Gather { slot: place.slot(), row: ExpertId::new(row) });
                continue;
            }
            match self.misses.last_mut() {
                Some(run) if run.row.get() + run.count == row => run.count += 1,
                _ => self.misses.push(RowRun { row: ExpertId::new(row), count: 1 }),
            }
        }
    }
}
