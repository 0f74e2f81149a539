//! Accesses that are not yet known to be over, and the conflicts among them.
//!
//! Two accesses conflict if they share bytes, one of them writes, and neither is ordered before the other. Order is
//! known when an operation is enqueued, so a conflict is found whatever order the work is then done in. An access is
//! forgotten once nothing can conflict with it: every host thread stands after it, or a later one that is ordered
//! behind it covers its bytes and conflicts with whatever it would.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Clock;
use crate::operation::Touch;

#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) touch: Touch,
    pub(crate) timeline: usize,
    pub(crate) number: u64,
    /// What the operation stands after.
    pub(crate) clock: Arc<Clock>,
    pub(crate) call: &'static str,
}

/// Two accesses in conflict: the earlier enqueued, and the bytes they share.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) earlier: Access,
    pub(crate) shared: (u64, u64),
}

#[derive(Debug, Default)]
pub(crate) struct History {
    /// By first byte, then by order of arrival.
    accesses: BTreeMap<(u64, u64), Access>,
    arrived: u64,
    /// No access in here extends further than this.
    longest: u64,
}

impl History {
    pub(crate) fn len(&self) -> usize {
        self.accesses.len()
    }

    /// Conflicts of an access with earlier ones. It may happen as soon as `order` is past. If it will be inserted,
    /// those that it makes superfluous are forgotten.
    pub(crate) fn conflicts(&mut self, new: &Access, order: &Clock, inserted: bool) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut covered = Vec::new();
        let rows = &new.touch.rows;
        if rows.is_empty() {
            return found;
        }
        let low = rows.base.saturating_sub(self.longest);
        for (key, old) in self.accesses.range((low, 0)..(rows.end(), 0)) {
            let ordered = order.knows(old.timeline, old.number);
            let (writes, atomic) = (new.touch.write || old.touch.write, new.touch.atomic && old.touch.atomic);
            if ordered {
                let outdoes = (new.touch.write || !old.touch.write) && (!new.touch.atomic || old.touch.atomic);
                if inserted && outdoes && rows.covers(&old.touch.rows) {
                    covered.push(*key);
                }
            } else if writes
                && !atomic
                && let Some(shared) = rows.overlap(&old.touch.rows)
            {
                found.push(Conflict { earlier: old.clone(), shared });
            }
        }
        for key in covered {
            self.accesses.remove(&key);
        }
        found
    }

    pub(crate) fn insert(&mut self, access: Access) {
        if access.touch.rows.is_empty() {
            return;
        }
        if self.accesses.is_empty() {
            self.longest = 0;
        }
        self.longest = self.longest.max(access.touch.rows.extent());
        self.arrived += 1;
        self.accesses.insert((access.touch.rows.base, self.arrived), access);
    }

    /// Forgets what every host thread stands after.
    pub(crate) fn forget_known(&mut self, floor: &Clock) {
        self.accesses.retain(|_, access| !floor.knows(access.timeline, access.number));
    }

    /// Forgets accesses inside memory that is given back; its addresses may come again for something else.
    pub(crate) fn forget_range(&mut self, base: u64, bytes: u64) {
        self.accesses.retain(|_, access| access.touch.rows.base >= base + bytes || access.touch.rows.end() <= base);
    }
}
