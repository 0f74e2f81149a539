//! What was measured beforehand, read from JSON and checked before any bank is: how often each expert was used, and
//! what a machine's link and CPU can do.
//!
//! A profile has the name of the model it was counted on and a count for each expert, in any unit:
//!
//! ```json
//! { "model": "Qwen3 30B A3B", "expert_counts": [[12, 0, 7.5, 3], [1, 1, 9, 4]] }
//! ```
//!
//! Other keys may stand beside them. Rates belong to one device; bytes of experts a second, over the link and by the
//! CPU:
//!
//! ```json
//! {
//!   "device": "NVIDIA H100 80GB HBM3",
//!   "seconds_per_step": 8.7e-6,
//!   "points": [
//!     {
//!       "tag": "Q4_K", "expert_bytes": 5308416,
//!       "link_bytes_per_second": 4.8e10, "cpu_bytes_per_second": 9.1e10,
//!       "contended": { "link_bytes_per_second": 3.9e10, "cpu_bytes_per_second": 6.2e10 }
//!     }
//!   ]
//! }
//! ```
//!
//! A point without `cpu_bytes_per_second` says that the CPU has no code for the quantisation; one without `contended`
//! that both were measured alone. `seconds_per_step` is what the copies of a step take besides their bytes, and may be
//! left out. A `"note"` beside the device is for people: how the points were measured. A key
//! that is not known is refused here, as it may be one of these misspelt.

use std::path::{Path, PathBuf};

use ftcache_policy::{Pair, Point, Profile, ProfileError, Rates, RatesError};
use serde::Deserialize;

/// A measurement that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasuredError {
    /// The system refused to open or read the file.
    // The field is not called `source`, since the text below already has it.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Not JSON, or not of this form.
    #[error("{}: {error}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// Counts that are no profile.
    #[error("{}: {error}", path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: ProfileError,
    },
    /// Rates that cannot be.
    #[error("{}: {error}", path.display())]
    Rates {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: RatesError,
    },
}

#[derive(Deserialize)]
struct ProfileFile {
    model: String,
    expert_counts: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RatesFile {
    device: String,
    /// For people only.
    #[serde(default, rename = "note")]
    _note: Option<String>,
    #[serde(default)]
    seconds_per_step: Option<f64>,
    points: Vec<PointFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PointFile {
    tag: String,
    expert_bytes: u64,
    link_bytes_per_second: f64,
    #[serde(default)]
    cpu_bytes_per_second: Option<f64>,
    #[serde(default)]
    contended: Option<PairFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PairFile {
    link_bytes_per_second: f64,
    cpu_bytes_per_second: f64,
}

/// Reads a profile.
///
/// # Errors
///
/// A file that cannot be read or is not of the form above; counts that [`Profile::new`] refuses.
pub fn read_profile(path: &Path) -> Result<Profile, MeasuredError> {
    parse_profile(path, &read(path)?)
}

/// As [`read_profile`], from the bytes of a file; `path` is for errors.
///
/// # Errors
///
/// As those of [`read_profile`], but for the file itself.
pub fn parse_profile(path: &Path, json: &[u8]) -> Result<Profile, MeasuredError> {
    let ProfileFile { model, expert_counts } = parse(path, json)?;
    Profile::new(model, &expert_counts).map_err(|error| MeasuredError::Profile { path: path.to_owned(), error })
}

/// Reads a device's rates.
///
/// # Errors
///
/// A file that cannot be read or is not of the form above; what [`Rates::new`] and [`Rates::with_seconds_per_step`]
/// refuse.
pub fn read_rates(path: &Path) -> Result<Rates, MeasuredError> {
    parse_rates(path, &read(path)?)
}

/// As [`read_rates`], from the bytes of a file; `path` is for errors.
///
/// # Errors
///
/// As those of [`read_rates`], but for the file itself.
pub fn parse_rates(path: &Path, json: &[u8]) -> Result<Rates, MeasuredError> {
    let RatesFile { device, points, seconds_per_step, _note: _ } = parse(path, json)?;
    let point = |point: PointFile| Point {
        tag: point.tag.into_bytes(),
        expert_bytes: point.expert_bytes,
        link: point.link_bytes_per_second,
        cpu: point.cpu_bytes_per_second,
        contended: point
            .contended
            .map(|pair| Pair { link: pair.link_bytes_per_second, cpu: pair.cpu_bytes_per_second }),
    };
    let rates = Rates::new(device, points.into_iter().map(point).collect());
    let whole = |rates: Rates| match seconds_per_step {
        None => Ok(rates),
        Some(seconds) => rates.with_seconds_per_step(seconds),
    };
    rates.and_then(whole).map_err(|error| MeasuredError::Rates { path: path.to_owned(), error })
}

fn read(path: &Path) -> Result<Vec<u8>, MeasuredError> {
    std::fs::read(path).map_err(|error| MeasuredError::Io { path: path.to_owned(), error })
}

fn parse<'a, T: Deserialize<'a>>(path: &Path, json: &'a [u8]) -> Result<T, MeasuredError> {
    serde_json::from_slice(json).map_err(|error| MeasuredError::Json { path: path.to_owned(), error })
}
