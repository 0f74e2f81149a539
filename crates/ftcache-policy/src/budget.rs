//! Bytes and shares as people write them, and what a cache may use.

use std::fmt;

use crate::BytesError;

/// What a geometry may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Bytes over all arenas, pads included.
    Bytes(u64),
    /// Slots over all pools, whatever their width.
    Slots(u64),
    /// A share of the device's free memory. Only a [`Configuration`](crate::Configuration) knows how much that is.
    Free(Share),
    /// A share of what is left of the free memory after reserves, tables and dedicated staging.
    Rest(Share),
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |share: &Share| if *share == Share::WHOLE { String::new() } else { format!("{share}*") };
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Slots(slots) => write!(f, "{slots} slots"),
            Self::Free(of) => write!(f, "{}free", share(of)),
            Self::Rest(of) => write!(f, "{}rest", share(of)),
        }
    }
}

/// An exact decimal fraction from nothing to the whole. Zeros at the end of its digits make no difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// At most the denominator.
    numerator: u64,
    /// The least power of ten with which the numerator is whole.
    denominator: u64,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
    /// None of it.
    pub const NOTHING: Self = Self { numerator: 0, denominator: 1 };

    /// The share of an amount, rounded down.
    pub fn of(self, amount: u64) -> u64 {
        // The quotient is at most `amount`.
        (u128::from(amount) * u128::from(self.numerator) / u128::from(self.denominator)) as u64
    }

    /// Reads a share: `0.9`, `1`, `0.125`.
    ///
    /// # Errors
    ///
    /// A text that is not a decimal number, or one that is over 1.
    pub fn parse(text: &str) -> Result<Self, BytesError> {
        Self::parse_part(text, text.trim())
    }

    fn parse_part(text: &str, part: &str) -> Result<Self, BytesError> {
        let unknown = || BytesError::NotShare { text: text.to_owned(), part: part.to_owned() };
        let Decimal { whole, part, scale } = Decimal::parse(part).ok_or_else(unknown)?;
        if !matches!((whole, part), (0, _) | (1, 0)) {
            return Err(BytesError::OverWhole { text: text.to_owned() });
        }
        let (mut numerator, mut denominator) = (whole * scale + part, scale);
        while denominator > 1 && numerator.is_multiple_of(10) {
            (numerator, denominator) = (numerator / 10, denominator / 10);
        }
        Ok(Self { numerator, denominator })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.denominator.ilog10() as usize;
        match digits {
            0 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}.{:0digits$}", self.numerator / self.denominator, self.numerator % self.denominator),
        }
    }
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads a byte count: `9059696640`, `12GiB`, `12.5 GB`, or a product such as `480*18874368`.
///
/// `GB` is 10^9 and `GiB` is 2^30; letters may be of either case. A fraction of a byte is cut off, once: `0.9*24GiB` is
/// nine tenths of 24 GiB.
///
/// # Errors
///
/// A text that is none of these, with the part that was not understood; more bytes than 64 bits hold.
pub fn parse_bytes(text: &str) -> Result<u64, BytesError> {
    let too_large = || BytesError::TooLarge { text: text.to_owned() };
    let (mut numerator, mut denominator) = (1_u128, 1_u128);
    for factor in text.split('*') {
        let (number, scale) = parse_factor(text, factor.trim())?;
        numerator = numerator.checked_mul(number).ok_or_else(too_large)?;
        denominator = denominator.checked_mul(scale).ok_or_else(too_large)?;
        while denominator > 1 && numerator.is_multiple_of(10) {
            (numerator, denominator) = (numerator / 10, denominator / 10);
        }
    }
    u64::try_from(numerator / denominator).map_err(|_| too_large())
}

/// Reads a budget: bytes as [`parse_bytes`] has them, or `free` or `rest` with or without a share: `0.9*free`.
///
/// `free` is the device's free memory; `rest` is what of it is not reserved and not taken by tables or staging.
///
/// ```
/// use ftcache_policy::{Budget, Share, parse_budget};
///
/// assert_eq!(parse_budget("480*18874368"), Ok(Budget::Bytes(9_059_696_640)));
/// assert_eq!(parse_budget("0.9*free"), Ok(Budget::Free(Share::parse("0.9")?)));
/// assert_eq!(parse_budget("rest"), Ok(Budget::Rest(Share::WHOLE)));
/// # Ok::<(), ftcache_policy::BytesError>(())
/// ```
///
/// # Errors
///
/// A text that is none of these, with the part that was not understood; a share over 1; more bytes than 64 bits hold.
pub fn parse_budget(text: &str) -> Result<Budget, BytesError> {
    let whole = |word: &str| match word.trim() {
        word if word.eq_ignore_ascii_case("free") => Some(Budget::Free as fn(Share) -> Budget),
        word if word.eq_ignore_ascii_case("rest") => Some(Budget::Rest as fn(Share) -> Budget),
        _ => None,
    };
    if let Some(budget) = whole(text) {
        return Ok(budget(Share::WHOLE));
    }
    let Some((left, right)) = text.split_once('*') else { return parse_bytes(text).map(Budget::Bytes) };
    let (share, budget) = match (whole(left), whole(right)) {
        (None, Some(budget)) => (left, budget),
        (Some(budget), None) => (right, budget),
        _ => return parse_bytes(text).map(Budget::Bytes),
    };
    Share::parse_part(text, share.trim()).map(budget)
}

/// `whole + part / scale`, with nothing rounded.
struct Decimal {
    whole: u64,
    part: u64,
    /// A power of ten, at most 10^18.
    scale: u64,
}

impl Decimal {
    /// Digits, which `_` may group, with a point or without one. `None` also for more digits than are kept.
    fn parse(digits: &str) -> Option<Self> {
        let digits = digits.replace('_', "");
        let (whole, fraction) = Self::parts(&digits)?;
        let part = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        Some(Self { whole: whole.parse().ok()?, part, scale: 10_u64.pow(fraction.len() as u32) })
    }

    /// The digits before the point and after it, of which there are not too many.
    fn parts(digits: &str) -> Option<(&str, &str)> {
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_decimal = !whole.is_empty() && all_digits(whole) && all_digits(fraction) && fraction.len() <= 18;
        is_decimal.then_some((whole, fraction))
    }
}

/// One factor of a product: a number of bytes, and the power of ten it is to be divided by.
fn parse_factor(text: &str, factor: &str) -> Result<(u128, u128), BytesError> {
    let unknown = || BytesError::NotBytes { text: text.to_owned(), part: factor.to_owned() };
    let unit_at = factor.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(factor.len());
    let (digits, unit) = (&factor[..unit_at], factor[unit_at..].trim());
    let unit_bytes = match unit {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(unknown)?.1,
    };
    let Some(Decimal { whole, part, scale }) = Decimal::parse(digits) else {
        // What has the form of a number and is none has too many digits before the point.
        return Err(match Decimal::parts(&digits.replace('_', "")) {
            Some(_) => BytesError::TooLarge { text: text.to_owned() },
            None => unknown(),
        });
    };
    // At most 2^64 * 10^18, and a unit.
    let number = u128::from(whole) * u128::from(scale) + u128::from(part);
    let number = number.checked_mul(u128::from(unit_bytes));
    Ok((number.ok_or_else(|| BytesError::TooLarge { text: text.to_owned() })?, u128::from(scale)))
}
