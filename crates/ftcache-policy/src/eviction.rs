//! Which rule says who goes.

use std::fmt;
use std::str::FromStr;

use crate::EvictionError;

/// How victims are chosen: free slots first, then slots of stamp 1, then by this rule, ties to the lower slot. A
/// slot that the step uses, or that is pinned or in flight, is never a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// The least recently used.
    #[default]
    Lru,
    /// The least share of its layer's uses of late: a use counts half after 64 steps of its layer, and is counted of
    /// experts that are in no slot too.
    Lfu,
    /// As `Lfu` with a half of 16 steps, over the number of layers until the expert's layer comes again: decode walks
    /// the layers in order, so what the next layers are about to ask for stays.
    Cyclic,
    /// As `Cyclic`, with six halves from 1 to 1,024 steps and with what followed the layer's last routes before, each
    /// as much as it has said of the uses so far.
    Learned,
}

impl Eviction {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Cyclic, Self::Learned];

    /// Checks that layers of so many experts can be ranked.
    ///
    /// # Errors
    ///
    /// More than 65,536 under [`Learned`](Self::Learned), which keeps their numbers in 16 bits.
    pub fn check(self, expert_count: u32) -> Result<(), EvictionError> {
        let most = 1 << 16;
        if self == Self::Learned && expert_count > most {
            return Err(EvictionError::TooManyExperts { rule: self, expert_count, most });
        }
        Ok(())
    }

    /// Logarithms of the halves of its decayed counts, in steps of a layer; the stamps of LRU have none.
    pub const fn log_halves(self) -> &'static [u32] {
        match self {
            Self::Lru => &[],
            Self::Lfu => &[6],
            Self::Cyclic => &[4],
            Self::Learned => &[0, 2, 4, 6, 8, 10],
        }
    }

    /// Whether it goes by what followed a layer's last routes too, and weighs all that it goes by anew with each step.
    pub const fn learns(self) -> bool {
        matches!(self, Self::Learned)
    }

    /// Whether a chance counts the less the more layers come before its own.
    pub const fn looks_at_distance(self) -> bool {
        matches!(self, Self::Cyclic | Self::Learned)
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Cyclic => "cyclic",
            Self::Learned => "learned",
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Eviction {
    type Err = EvictionError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|rule| rule.name() == name);
        known.ok_or_else(|| EvictionError::UnknownName { name: name.to_owned() })
    }
}
