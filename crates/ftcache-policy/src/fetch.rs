//! Of a step's misses, how many cross the link; the CPU computes the others.
//!
//! A fraction is kept in 65,536ths, so that the host and a device decide alike.

use std::fmt;

use crate::RatesError;

/// Where the experts of a decode step that are not resident are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// On the device, once their rows are copied: every miss is fetched.
    Offload,
    /// On the device those that are fetched, on the CPU the others.
    Hybrid,
    /// On the CPU, resident or not: slots serve prefill alone.
    Cpu,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offload => "offload",
            Self::Hybrid => "hybrid",
            Self::Cpu => "cpu",
        })
    }
}

/// A fraction of the misses, in 65,536ths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

impl Fraction {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self(1 << 16);

    /// So many 65,536ths, or `None` if that is more than all.
    pub const fn from_q16(q16: u32) -> Option<Self> {
        if q16 <= 1 << 16 { Some(Self(q16)) } else { None }
    }

    /// The fraction in 65,536ths.
    pub const fn q16(self) -> u32 {
        self.0
    }

    /// The nearest to a ratio; all, if the ratio is over 1.
    ///
    /// # Errors
    ///
    /// A ratio that is negative or not a number.
    pub fn nearest(ratio: f64) -> Result<Self, RatesError> {
        if ratio.is_nan() || ratio < 0.0 {
            return Err(RatesError::Ratio { ratio: ratio.to_string() });
        }
        Ok(Self((ratio.min(1.0) * 65_536.0).round() as u32))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4}", f64::from(self.0) / 65_536.0)
    }
}

/// How many of a step's misses are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchRule {
    /// Up to this many.
    UpTo(u32),
    /// The number at which neither link nor CPU waits longer than it must: of `n` in `0..=m` the one with the least
    /// `max(n (1 - q), (m - n) q)`, ties to the lower.
    ///
    /// A few misses that recur in every step may never be fetched: two at a fraction of 0.294 stay on the CPU for ever.
    MinWait(Fraction),
    /// The fraction, rounded up.
    PreferFetch(Fraction),
    /// The fraction; what it leaves below one is kept and added to the layer's next step, so that misses that recur are
    /// fetched in the end.
    Carry(Fraction),
}

/// How a fraction of the misses becomes a number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// [`FetchRule::MinWait`].
    MinWait,
    /// [`FetchRule::PreferFetch`].
    PreferFetch,
    /// [`FetchRule::Carry`].
    #[default]
    Carry,
}

impl Rounding {
    /// The rule for a fraction.
    pub fn rule(self, fraction: Fraction) -> FetchRule {
        match self {
            Self::MinWait => FetchRule::MinWait(fraction),
            Self::PreferFetch => FetchRule::PreferFetch(fraction),
            Self::Carry => FetchRule::Carry(fraction),
        }
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MinWait => "min-wait",
            Self::PreferFetch => "prefer-fetch",
            Self::Carry => "carry",
        })
    }
}

/// What [`FetchRule::Carry`] keeps from one step of a layer to its next: less than one miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried(u16);

impl Carried {
    /// So many 65,536ths of a miss.
    pub const fn from_q16(q16: u16) -> Self {
        Self(q16)
    }

    /// What is carried, in 65,536ths of a miss.
    pub const fn q16(self) -> u16 {
        self.0
    }
}

impl FetchRule {
    /// How many of `miss_count` misses to fetch, before any cap. Only [`Carry`](Self::Carry) reads and changes
    /// `carried`.
    ///
    /// ```
    /// use ftcache_policy::{Carried, FetchRule, Fraction};
    ///
    /// let fraction = Fraction::nearest(0.294)?;
    /// let mut carried = Carried::default();
    /// let mut fetched = |rule: FetchRule| [0; 4].map(|_| rule.fetched_count(2, &mut carried));
    /// assert_eq!(fetched(FetchRule::MinWait(fraction)), [0, 0, 0, 0]);
    /// assert_eq!(fetched(FetchRule::Carry(fraction)), [0, 1, 0, 1]);
    /// # Ok::<(), ftcache_policy::RatesError>(())
    /// ```
    pub fn fetched_count(self, miss_count: u32, carried: &mut Carried) -> u32 {
        // At most 2^32 * 2^16, and a quotient of at most `miss_count`.
        let misses = u64::from(miss_count);
        match self {
            Self::UpTo(most) => miss_count.min(most),
            Self::MinWait(Fraction(q)) => {
                let q = u64::from(q);
                let wait = |fetched: u64| (fetched * (65_536 - q)).max((misses - fetched) * q);
                let below = (misses * q) >> 16;
                let above = (below + 1).min(misses);
                (if wait(above) < wait(below) { above } else { below }) as u32
            }
            Self::PreferFetch(Fraction(q)) => (misses * u64::from(q)).div_ceil(65_536) as u32,
            Self::Carry(Fraction(q)) => {
                let sum = misses * u64::from(q) + u64::from(carried.0);
                carried.0 = sum as u16;
                (sum >> 16) as u32
            }
        }
    }
}

impl fmt::Display for FetchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpTo(most) => write!(f, "up to {most} misses"),
            Self::MinWait(fraction) => write!(f, "min-wait at {fraction}"),
            Self::PreferFetch(fraction) => write!(f, "prefer-fetch at {fraction}"),
            Self::Carry(fraction) => write!(f, "carry at {fraction}"),
        }
    }
}

/// Which of a step's misses are fetched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FetchOrder {
    /// The most recently active first, ties to the lower id.
    #[default]
    Recency,
    /// Ascending by id.
    LowestId,
}

impl fmt::Display for FetchOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recency => "recency",
            Self::LowestId => "lowest id",
        })
    }
}

/// How many of a step's misses are fetched, and at most how many.
///
/// A step is further bounded by the slots of its pool that it does not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// The rule.
    pub rule: FetchRule,
    /// The cap on its answer. What a cap holds back is not carried to the next step.
    pub most: Option<u32>,
}

impl Fetch {
    /// How many of `miss_count` misses to fetch, of which `unused_slots` could take one each.
    pub fn fetched_count(self, miss_count: u32, unused_slots: u32, carried: &mut Carried) -> u32 {
        let wanted = self.rule.fetched_count(miss_count, carried);
        wanted.min(self.most.unwrap_or(u32::MAX)).min(unused_slots)
    }

    /// Whether no step ever fetches anything.
    pub fn is_never(self) -> bool {
        let never = match self.rule {
            FetchRule::UpTo(most) => most == 0,
            FetchRule::MinWait(fraction) | FetchRule::PreferFetch(fraction) | FetchRule::Carry(fraction) => {
                fraction == Fraction::NONE
            }
        };
        never || self.most == Some(0)
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most {
            Some(most) => write!(f, "{}, at most {most}", self.rule),
            None => self.rule.fmt(f),
        }
    }
}
