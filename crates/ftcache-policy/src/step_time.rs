//! How long a step waits for what is not in a slot, by measured rates. Whole nanoseconds; nothing is timed here.
//!
//! A step fetches some experts over the link and leaves some to the CPU:
//!
//! ```text
//! link   |- step_ns -|----- fetched x expert_bytes at the link's rate -----|
//! CPU    |------- on_cpu x expert_bytes at the CPU's rate -------|
//! ```
//!
//! - *Link time* is what the copies of a step take besides their bytes (`step_ns`), and then the bytes of the fetched
//!   experts at the rate that their own rows were measured at, so that what each copy costs is in it.
//! - *CPU time* is the bytes of the others at the CPU's rate.
//! - Both begin with the step. While both move bytes they go at the rates measured together, and whoever is left alone
//!   goes on at its own. If they were not measured together, both read the host's memory: the CPU has what the link
//!   leaves, and waits for the link if that is nothing.
//! - A step waits for the longer of the two. What the device computes from its slots is no part of it.
//!
//! Rows that are fetched behind steps ([`Behind`]) cross the link one flight after another, and nobody waits for them,
//! but for a step that fetches: it is taken to come behind them on the link. The CPU has meanwhile what the link leaves.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;

use crate::{LayoutKey, Pair, Rates};

/// Nanoseconds of a second: work is counted in bytes times these, which a rate divides into nanoseconds.
const SECOND_NS: u128 = 1_000_000_000;
/// The highest rate, in bytes a second: 17 TB, above any link or memory of a host.
const RATE_MAX: u64 = 1 << 44;
/// The most bytes of a step: 70 TB. With these two, products of two rates and a step's work stay below 2^128.
const STEP_BYTES_MAX: u64 = 1 << 46;
/// The most nanoseconds that a step takes besides its bytes: 18 minutes.
const STEP_NS_MAX: u64 = 1 << 40;

/// Rates by which no step can be timed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepTimeError {
    /// No point stands for a layer.
    NotMeasured {
        /// The layer's quantisation; empty for one without a tag.
        tag: Vec<u8>,
        /// Bytes of one of its experts.
        expert_bytes: u64,
    },
    /// A rate that is counted in no whole number of bytes a second.
    Rate {
        /// Which rate.
        name: &'static str,
        /// The rate, as it prints.
        rate: String,
        /// The highest that there can be.
        most: u64,
    },
    /// Experts with more bytes than are counted.
    Bytes {
        /// Bytes of a step that uses every expert.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// A step that takes longer without its bytes than is counted.
    Seconds {
        /// Seconds, as they print.
        seconds: String,
        /// The most.
        most: u64,
    },
}

impl fmt::Display for StepTimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMeasured { tag, expert_bytes } if tag.is_empty() => {
                write!(f, "no point for experts of {expert_bytes} bytes without a tag")
            }
            Self::NotMeasured { tag, expert_bytes } => {
                write!(f, "no point for experts of {expert_bytes} bytes of {}", tag.escape_ascii())
            }
            Self::Rate { name, rate, most } => {
                write!(f, "a {name} rate of {rate} bytes a second; times are counted from 1 to {most}")
            }
            Self::Bytes { bytes, most } => {
                write!(f, "the experts of a layer have {bytes} bytes; times are counted up to {most}")
            }
            Self::Seconds { seconds, most } => {
                write!(f, "a step takes {seconds} seconds besides its bytes; times are counted up to {most}")
            }
        }
    }
}

impl Error for StepTimeError {}

/// What the CPU comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuRates {
    alone: u64,
    /// While the link works too; 0 if nothing is left.
    beside: u64,
    /// The link's meanwhile.
    link_beside: u64,
}

/// How fast a layer's experts come, in whole bytes a second.
///
/// ```
/// use ftcache_policy::{LayoutKey, Point, Rates, StepRates};
///
/// let point = Point { tag: b"q".to_vec(), expert_bytes: 1_000_000, link: 1e9, cpu: Some(4e9), contended: None };
/// let rates = Rates::new("a card", vec![point])?;
/// let step = StepRates::of(&rates, &LayoutKey::tagged("q", [1_000_000]), 64)?;
/// // A row takes 1 ms over the link. The CPU reads 3 GB/s meanwhile: 3 of the 6 MB, and the rest at 4 GB/s.
/// let time = step.time(1, 6).expect("the CPU was measured");
/// assert_eq!((time.link_ns, time.cpu_ns), (1_000_000, 1_750_000));
/// assert_eq!(time.waiting_ns(), 1_750_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRates {
    expert_bytes: u64,
    step_ns: u64,
    link: u64,
    cpu: Option<CpuRates>,
}

/// How long link and CPU work for one step, both from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTime {
    /// Until the last row has arrived; 0 if none is fetched.
    pub link_ns: u64,
    /// Until the CPU has computed the last expert; 0 if it has none.
    pub cpu_ns: u64,
}

impl StepTime {
    /// How long the step waits: for the longer of the two.
    pub fn waiting_ns(self) -> u64 {
        self.link_ns.max(self.cpu_ns)
    }
}

impl StepRates {
    /// The rates for a layer of `expert_count` experts, by the point that stands for it.
    ///
    /// # Errors
    ///
    /// No such point; a rate below 1 or above 2^44 bytes a second; more than 2^46 bytes of experts; more than 2^40
    /// nanoseconds that a step takes besides its bytes.
    pub fn of(rates: &Rates, layer: &LayoutKey, expert_count: u32) -> Result<Self, StepTimeError> {
        let expert_bytes = layer.expert_bytes();
        let point = rates.point_of(layer).ok_or_else(|| {
            let tag = layer.tag().unwrap_or_default().to_vec();
            StepTimeError::NotMeasured { tag, expert_bytes }
        })?;
        let bytes = expert_bytes.saturating_mul(expert_count.into());
        if bytes > STEP_BYTES_MAX {
            return Err(StepTimeError::Bytes { bytes, most: STEP_BYTES_MAX });
        }
        let seconds = rates.seconds_per_step().unwrap_or(0.0);
        let step_ns = whole(seconds * 1e9, 0, STEP_NS_MAX).ok_or_else(|| {
            let most = STEP_NS_MAX / SECOND_NS as u64;
            StepTimeError::Seconds { seconds: seconds.to_string(), most }
        })?;
        let link = whole_rate("link", point.link)?;
        let cpu = point.cpu.map(|cpu| {
            let alone = whole_rate("CPU", cpu)?;
            let (link_beside, beside) = match point.contended {
                Some(Pair { link, cpu }) => (whole_rate("contended link", link)?, whole_rate("contended CPU", cpu)?),
                None => (link, alone.saturating_sub(link)),
            };
            Ok(CpuRates { alone, beside, link_beside })
        });
        Ok(Self { expert_bytes, step_ns, link, cpu: cpu.transpose()? })
    }

    /// Whether the CPU has code for the layer's quantisation.
    pub fn has_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// How long a step takes that fetches so many experts and leaves so many to the CPU; `None` if the CPU has no code
    /// for them. Saturates.
    pub fn time(&self, fetched: u32, on_cpu: u32) -> Option<StepTime> {
        let (link, step_ns) = (u128::from(self.link), u128::from(self.step_ns));
        let (fetched, computed) = (self.work(fetched), self.work(on_cpu));
        if computed == 0 {
            let link_ns = if fetched == 0 { 0 } else { step_ns + fetched.div_ceil(link) };
            return Some(StepTime { link_ns: nanoseconds(link_ns), cpu_ns: 0 });
        }
        let CpuRates { alone, beside, link_beside } = self.cpu?;
        let [alone, beside, link_beside] = [alone, beside, link_beside].map(u128::from);
        if fetched == 0 {
            return Some(StepTime { link_ns: 0, cpu_ns: nanoseconds(computed.div_ceil(alone)) });
        }
        // Until the first byte moves, the CPU is alone.
        let left = computed.saturating_sub(alone * step_ns);
        let (link_ns, cpu_ns) = if left == 0 {
            (step_ns + fetched.div_ceil(link), computed.div_ceil(alone))
        } else if fetched * beside <= left * link_beside {
            // The link is done first, after `fetched / link_beside`; of `left` the rest goes at the CPU's own rate. One
            // fraction, so that only the end is rounded.
            let cpu_ns = (fetched * alone + left * link_beside - fetched * beside).div_ceil(link_beside * alone);
            (step_ns + fetched.div_ceil(link_beside), step_ns + cpu_ns)
        } else {
            let link_ns = (left * link + fetched * beside - left * link_beside).div_ceil(beside * link);
            (step_ns + link_ns, step_ns + left.div_ceil(beside))
        };
        Some(StepTime { link_ns: nanoseconds(link_ns), cpu_ns: nanoseconds(cpu_ns) })
    }

    /// Bytes of so many experts, times the nanoseconds of a second. No step has more than every expert of its layer.
    fn work(&self, experts: u32) -> u128 {
        let bytes = self.expert_bytes.saturating_mul(experts.into());
        u128::from(bytes.min(STEP_BYTES_MAX)) * SECOND_NS
    }
}

/// What `u64` cannot hold is more than any time.
fn nanoseconds(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The nearest whole number, if it is within the bounds.
fn whole(number: f64, least: u64, most: u64) -> Option<u64> {
    let rounded = number.round();
    (rounded >= least as f64 && rounded <= most as f64).then_some(rounded as u64)
}

fn whole_rate(name: &'static str, rate: f64) -> Result<u64, StepTimeError> {
    let refused = || StepTimeError::Rate { name, rate: rate.to_string(), most: RATE_MAX };
    whole(rate, 1, RATE_MAX).ok_or_else(refused)
}

/// Rows of one step on their way behind it.
#[derive(Debug, Clone, Copy)]
struct Flight {
    number: u64,
    /// What is left of the time besides its bytes.
    fixed_ns: u64,
    /// What is left of its bytes, times the nanoseconds of a second.
    work: u128,
    link: u64,
    link_beside: u64,
}

/// The link as it carries rows behind steps, one flight after another, while time passes.
///
/// ```
/// use ftcache_policy::{Behind, LayoutKey, Point, Rates, StepRates};
///
/// let point = Point { tag: b"q".to_vec(), expert_bytes: 1_000_000, link: 1e9, cpu: Some(4e9), contended: None };
/// let rates = StepRates::of(&Rates::new("a card", vec![point])?, &LayoutKey::tagged("q", [1_000_000]), 64)?;
/// let mut behind = Behind::default();
/// // Two experts on the CPU, which are then fetched behind the step: 2 ms over the link.
/// assert_eq!(behind.compute(&rates, 2), Some(500_000));
/// behind.take_off(7, &rates, 2);
/// // The next step's six take 2 ms beside them at 3 GB/s, and so the flight has landed when it ends.
/// assert_eq!(behind.compute(&rates, 6), Some(2_000_000));
/// assert_eq!((behind.land(), behind.land()), (Some(7), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Behind {
    flights: VecDeque<Flight>,
    landed: VecDeque<u64>,
    link_ns: u64,
}

impl Behind {
    /// So many experts of a layer are on their way from now on, behind the flights before.
    pub fn take_off(&mut self, number: u64, rates: &StepRates, experts: u32) {
        let StepRates { step_ns, link, cpu, .. } = *rates;
        let link_beside = cpu.map_or(link, |cpu| cpu.link_beside);
        self.flights.push_back(Flight { number, fixed_ns: step_ns, work: rates.work(experts), link, link_beside });
        self.settle();
    }

    /// Flights that have not landed, in the link's order, and those that [`land`](Self::land) has not told.
    pub fn flight_count(&self) -> usize {
        self.flights.len() + self.landed.len()
    }

    /// The first flight that has landed and was not told yet.
    pub fn land(&mut self) -> Option<u64> {
        self.landed.pop_front()
    }

    /// How long the link has worked so far.
    pub fn link_ns(&self) -> u64 {
        self.link_ns
    }

    /// Time in which the CPU rests.
    pub fn pass(&mut self, ns: u64) {
        let mut left = ns;
        while left > 0 {
            let Some(flight) = self.flights.front() else { return };
            let needed = match flight.fixed_ns {
                0 => nanoseconds(flight.work.div_ceil(flight.link.into())),
                fixed => fixed,
            };
            let ns = needed.min(left);
            self.carry(ns, flight.link);
            left -= ns;
        }
    }

    /// Time in which the CPU rests until every flight has landed: what a step that fetches rows waits for first. Returns
    /// how long that is.
    pub fn drain(&mut self) -> u64 {
        let before = self.link_ns;
        self.pass(u64::MAX);
        self.link_ns - before
    }

    /// The CPU computes so many experts of a layer while flights go on. Returns how long that takes, in nanoseconds;
    /// `None` if the CPU has no code for them, and nothing has passed. Each change of rates is rounded up.
    pub fn compute(&mut self, rates: &StepRates, experts: u32) -> Option<u64> {
        let mut left = rates.work(experts);
        if left == 0 {
            return Some(0);
        }
        let cpu = rates.cpu?;
        let mut passed: u64 = 0;
        while left > 0 {
            let (cpu_rate, ns, link_rate) = match self.flights.front() {
                None => (cpu.alone, u64::MAX, 0),
                Some(flight) if flight.fixed_ns > 0 => (cpu.alone, flight.fixed_ns, flight.link),
                Some(flight) => {
                    let ns = nanoseconds(flight.work.div_ceil(flight.link_beside.into()));
                    (cpu.beside, ns, flight.link_beside)
                }
            };
            let ns = match cpu_rate {
                // What the link leaves is nothing.
                0 => ns,
                rate => ns.min(nanoseconds(left.div_ceil(rate.into()))),
            };
            left = left.saturating_sub(u128::from(cpu_rate) * u128::from(ns));
            passed = passed.saturating_add(ns);
            if link_rate > 0 {
                self.carry(ns, link_rate);
            }
        }
        Some(passed)
    }

    /// The first flight goes on for so long, at most to the end of its time besides its bytes or of its bytes.
    fn carry(&mut self, ns: u64, rate: u64) {
        let Some(flight) = self.flights.front_mut() else { return };
        self.link_ns = self.link_ns.saturating_add(ns);
        match flight.fixed_ns {
            0 => flight.work = flight.work.saturating_sub(u128::from(rate) * u128::from(ns)),
            fixed => flight.fixed_ns = fixed - ns,
        }
        self.settle();
    }

    /// Flights without anything left have landed.
    fn settle(&mut self) {
        while let Some(flight) = self.flights.front().filter(|flight| flight.fixed_ns == 0 && flight.work == 0) {
            self.landed.push_back(flight.number);
            self.flights.pop_front();
        }
    }
}
