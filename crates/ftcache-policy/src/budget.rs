//! Bytes as people write them.

use crate::BytesError;

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
/// `GB` is 10^9 and `GiB` is 2^30; letters may be of either case. A fraction of a byte is cut off.
///
/// # Errors
///
/// A text that is none of these, with the part that was not understood; more bytes than 64 bits hold.
pub fn parse_bytes(text: &str) -> Result<u64, BytesError> {
    let mut product = 1_u64;
    for factor in text.split('*') {
        let factor = parse_factor(text, factor.trim())?;
        product = product.checked_mul(factor).ok_or_else(|| BytesError::TooLarge { text: text.to_owned() })?;
    }
    Ok(product)
}

fn parse_factor(text: &str, factor: &str) -> Result<u64, BytesError> {
    let unknown = || BytesError::NotBytes { text: text.to_owned(), part: factor.to_owned() };
    let too_large = || BytesError::TooLarge { text: text.to_owned() };

    let unit_at = factor.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(factor.len());
    let (digits, unit) = (factor[..unit_at].replace('_', ""), factor[unit_at..].trim());
    let unit_bytes = match unit {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(unknown)?.1,
    };

    // Whole numbers stay exact over all 64 bits; a fraction is scaled by its own power of ten.
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || !fraction.bytes().all(|c| c.is_ascii_digit()) || fraction.len() > 18 {
        return Err(unknown());
    }
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let bytes = u128::from(whole) * u128::from(unit_bytes);
    let part = match fraction {
        "" => 0,
        _ => {
            fraction.parse::<u128>().map_err(|_| unknown())? * u128::from(unit_bytes)
                / 10_u128.pow(fraction.len() as u32)
        }
    };
    u64::try_from(bytes + part).map_err(|_| too_large())
}
