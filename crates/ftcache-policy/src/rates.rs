//! What a machine's link and CPU were measured to do, and what follows from it for the misses of a step.
//!
//! Measured points belong to a device and are refused on another. Of one device, each layout key has its own point,
//! since a CPU computes one quantisation faster than another.

use std::fmt;

use crate::{Fraction, LayoutKey, RatesError, Strategy};

/// Bytes a second of experts that are copied, and of experts that the CPU computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Over the link.
    pub link: f64,
    /// By the CPU.
    pub cpu: f64,
}

/// What was measured with experts of one quantisation and size.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The quantisation tag; empty for layers without one.
    pub tag: Vec<u8>,
    /// Bytes of one expert. The point stands for experts of half to twice this size.
    pub expert_bytes: u64,
    /// Bytes a second over the link while the CPU rests.
    pub link: f64,
    /// Bytes a second of the CPU while the link rests; `None` if it has no code for the quantisation.
    pub cpu: Option<f64>,
    /// Both while both work, if that was measured: they share the host's memory.
    pub contended: Option<Pair>,
}

/// What a strategy was recommended by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Basis {
    /// The CPU has no code for the quantisation.
    NoCpuCode,
    /// The link is at least as fast as the CPU, both alone, and as both together.
    LinkFaster,
    /// The CPU alone is faster than link and CPU together.
    CpuFaster,
    /// Link and CPU were measured together.
    Contended,
    /// Link and CPU were measured alone, so the CPU is taken to lose what the link takes.
    Alone,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCpuCode => "the CPU has no code for it",
            Self::LinkFaster => "the link is faster",
            Self::CpuFaster => "the CPU alone is faster than both together",
            Self::Contended => "by rates measured together",
            Self::Alone => "by rates measured alone",
        })
    }
}

/// How a machine's figures say that the misses of a layer are computed best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recommendation {
    /// Where.
    pub strategy: Strategy,
    /// The fraction of the misses to fetch: all for [`Strategy::Offload`], none for [`Strategy::Cpu`].
    pub fraction: Fraction,
    /// Why.
    pub basis: Basis,
}

/// The measured points of one device.
///
/// ```
/// use ftcache_policy::{LayoutKey, Point, Rates, Strategy};
///
/// let (link, cpu) = (12.3e9, 56.2e9);
/// let point = Point { tag: b"Q4_K".to_vec(), expert_bytes: 5_308_416, link, cpu: Some(cpu), contended: None };
/// let rates = Rates::new("a card", vec![point])?;
/// let layer = LayoutKey::tagged("Q4_K", [3_538_944, 1_769_472]);
/// let recommended = rates.recommend(&layer).expect("its kind was measured");
/// assert_eq!(recommended.strategy, Strategy::Hybrid);
/// assert_eq!(recommended.fraction.q16(), (65_536.0 * link / cpu).round() as u32);
/// # Ok::<(), ftcache_policy::RatesError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    device: String,
    points: Vec<Point>,
    seconds_per_step: Option<f64>,
}

impl Rates {
    /// The points of a device.
    ///
    /// # Errors
    ///
    /// No point; two of one quantisation and size; an expert of no bytes; a rate that is not a positive number.
    pub fn new(device: impl Into<String>, points: Vec<Point>) -> Result<Self, RatesError> {
        if points.is_empty() {
            return Err(RatesError::NoPoints);
        }
        for (index, point) in points.iter().enumerate() {
            if point.expert_bytes == 0 {
                return Err(RatesError::EmptyExpert { point: index });
            }
            let same = |other: &Point| other.tag == point.tag && other.expert_bytes == point.expert_bytes;
            if points[..index].iter().any(same) {
                return Err(RatesError::Twice { point: index, expert_bytes: point.expert_bytes });
            }
            let named = [("link", Some(point.link)), ("cpu", point.cpu)];
            let pair = point.contended.map_or([("contended link", None), ("contended cpu", None)], |pair| {
                [("contended link", Some(pair.link)), ("contended cpu", Some(pair.cpu))]
            });
            for (name, rate) in named.into_iter().chain(pair) {
                // Two of them can be added up.
                if rate.is_some_and(|rate| !(rate > 0.0 && rate < f64::MAX / 2.0)) {
                    let rate = rate.unwrap_or(f64::NAN).to_string();
                    return Err(RatesError::Rate { point: index, name, rate });
                }
            }
        }
        Ok(Self { device: device.into(), points, seconds_per_step: None })
    }

    /// The same, with the time that the copies of a step take besides their bytes, from enqueueing them to knowing that
    /// they are done.
    ///
    /// # Errors
    ///
    /// Seconds that are negative, infinite or not a number.
    pub fn with_seconds_per_step(self, seconds: f64) -> Result<Self, RatesError> {
        if !(0.0..f64::INFINITY).contains(&seconds) {
            return Err(RatesError::StepSeconds { seconds: seconds.to_string() });
        }
        Ok(Self { seconds_per_step: Some(seconds), ..self })
    }

    /// What the copies of a step take besides their bytes, if that was measured.
    pub fn seconds_per_step(&self) -> Option<f64> {
        self.seconds_per_step
    }

    /// The device on which they were measured.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Every point.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Whether they were measured on this device.
    ///
    /// # Errors
    ///
    /// Both names, if not.
    pub fn check_device(&self, device: &str) -> Result<(), RatesError> {
        if self.device == device {
            return Ok(());
        }
        Err(RatesError::OtherDevice { measured: self.device.clone(), device: device.to_owned() })
    }

    /// The point that stands for a layer: its quantisation, and of these the nearest in size, within a factor of two.
    pub fn point_of(&self, layer: &LayoutKey) -> Option<&Point> {
        let bytes = layer.expert_bytes();
        // How many times the one is as large as the other.
        let ratio = |point: &Point| {
            let (small, large) = (point.expert_bytes.min(bytes), point.expert_bytes.max(bytes));
            large as f64 / small as f64
        };
        let near = |point: &&Point| {
            let (small, large) = (point.expert_bytes.min(bytes), point.expert_bytes.max(bytes));
            point.tag == layer.tag().unwrap_or_default() && large <= small.saturating_mul(2)
        };
        self.points.iter().filter(near).min_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    /// How the misses of a layer are computed best, or `None` if nothing was measured for its kind.
    pub fn recommend(&self, layer: &LayoutKey) -> Option<Recommendation> {
        self.point_of(layer).map(Point::recommend)
    }
}

impl Point {
    /// How misses are computed best by these figures.
    pub fn recommend(&self) -> Recommendation {
        let offload = |basis| Recommendation { strategy: Strategy::Offload, fraction: Fraction::ALL, basis };
        let Some(cpu) = self.cpu else { return offload(Basis::NoCpuCode) };
        let (ratio, basis) = match self.contended {
            Some(pair) if self.link >= cpu && self.link >= pair.link + pair.cpu => return offload(Basis::LinkFaster),
            Some(pair) if cpu > pair.link + pair.cpu => {
                return Recommendation { strategy: Strategy::Cpu, fraction: Fraction::NONE, basis: Basis::CpuFaster };
            }
            Some(pair) => (pair.link / (pair.link + pair.cpu), Basis::Contended),
            None if self.link >= cpu => return offload(Basis::LinkFaster),
            // Both read the host's memory: while the link takes its rate, the CPU is left with `cpu - link`.
            None => (self.link / cpu, Basis::Alone),
        };
        let fraction = Fraction::nearest(ratio).expect("rates are positive numbers");
        Recommendation { strategy: Strategy::Hybrid, fraction, basis }
    }
}
