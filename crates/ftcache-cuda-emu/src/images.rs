//! Images of modules: machine code in an ELF file, or PTX, and which devices and drivers take them.
//!
//! The code in them is not run: kernels are run by name, from the same sources. An image only has to be one that a real
//! driver would take for this device, and to have the kernel in it.
//!
//! *Unsafe*, relying on the caller of the driver for an image that is complete: a driver is not told its length either.

use std::ffi::{CStr, c_char};

use crate::codes::{Answer, INVALID_IMAGE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};

const ELF_MAGIC: &[u8] = b"\x7fELF";
const ELF_HEADER_BYTES: usize = 64;
/// `EM_CUDA`.
const MACHINE: u64 = 190;
/// `SHT_NOBITS`: a section without bytes in the file.
const NO_BITS: u64 = 8;
/// ELF files of CUDA 13 are of this ABI version; those before are of 7 and less, and hold the architecture elsewhere.
/// By nvcc 13.0 for `sm_80` to `sm_120`.
const ABI_OF_CUDA_13: u8 = 8;

/// What a module was loaded from.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Vec<u8>,
    is_text: bool,
}

/// What decides whether an image is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) major: i32,
    pub(crate) minor: i32,
    /// As `cuDriverGetVersion` has it: 13000 is 13.0.
    pub(crate) driver_version: i32,
}

/// The PTX version that a driver takes, as major * 10 + minor.
fn ptx_version(driver_version: i32) -> i32 {
    match (driver_version / 1000, driver_version % 1000 / 10) {
        // 12.5 and 12.6 had the same, and the ones behind them are one lower.
        (12, minor) if minor > 5 => 80 + minor - 1,
        (major, minor) => 10 * (major - 4) + minor,
    }
}

impl Image {
    /// Reads an image, and says why a driver would refuse it.
    ///
    /// # Safety
    ///
    /// The image is a complete ELF file or a text that ends in a zero.
    pub(crate) unsafe fn read(image: *const u8, target: Target) -> Answer<Self> {
        // SAFETY: a text ends in a zero, and a file begins with four bytes that are none.
        let head = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
        if !head.to_bytes().starts_with(ELF_MAGIC) {
            let bytes = head.to_bytes().to_vec();
            check_text(&bytes, target)?;
            return Ok(Self { bytes, is_text: true });
        }
        // SAFETY: a complete ELF file has a header.
        let header = unsafe { std::slice::from_raw_parts(image, ELF_HEADER_BYTES) };
        check_machine(header, target)?;
        let (first, count) = (number(header, 40, 8), number(header, 60, 2));
        let mut end = first + count * number(header, 58, 2);
        end = end.max(number(header, 32, 8) + number(header, 56, 2) * number(header, 54, 2));
        // SAFETY: a complete file has the table of sections that its header tells of.
        let table = unsafe { std::slice::from_raw_parts(image, end as usize) };
        for section in 0..count {
            let at = (first + section * number(header, 58, 2)) as usize;
            if number(table, at + 4, 4) != NO_BITS {
                end = end.max(number(table, at + 24, 8) + number(table, at + 32, 8));
            }
        }
        // SAFETY: a complete file has its sections.
        let bytes = unsafe { std::slice::from_raw_parts(image, end as usize) }.to_vec();
        Ok(Self { bytes, is_text: false })
    }

    /// Whether a kernel of this name is in it.
    pub(crate) fn has(&self, name: &str) -> bool {
        let wanted = if self.is_text { format!(".entry {name}") } else { format!("\0{name}\0") };
        let wanted = wanted.as_bytes();
        let longer = |byte: u8| self.is_text && (byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$');
        let mut windows = self.bytes.windows(wanted.len()).enumerate();
        windows
            .any(|(at, found)| found == wanted && self.bytes.get(at + wanted.len()).is_none_or(|byte| !longer(*byte)))
    }
}

/// A number of some bytes, the least first; 0 where the file does not reach.
fn number(bytes: &[u8], at: usize, count: usize) -> u64 {
    let bytes = bytes.get(at..at + count).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn check_machine(header: &[u8], target: Target) -> Answer {
    // 64 bits, least byte first.
    if header[4..6] != [2, 1] || number(header, 18, 2) != MACHINE {
        return Err(INVALID_IMAGE);
    }
    let is_of_13 = header[8] >= ABI_OF_CUDA_13;
    if is_of_13 && target.driver_version < 13000 {
        return Err(INVALID_IMAGE);
    }
    let flags = number(header, 48, 4);
    let architecture = (if is_of_13 { flags >> 8 & 0xFF } else { flags & 0xFF }) as i32;
    match (architecture / 10, architecture % 10) {
        (major, minor) if major == target.major && minor <= target.minor => Ok(()),
        _ => Err(NO_BINARY_FOR_GPU),
    }
}

fn check_text(text: &[u8], target: Target) -> Answer {
    let text = std::str::from_utf8(text).map_err(|_| INVALID_IMAGE)?;
    let directive = |name: &str| {
        let found = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
        found.map(str::trim).ok_or(INVALID_IMAGE)
    };
    let leading_number = |text: &str| -> Answer<i32> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        text[..digits].parse().map_err(|_| INVALID_IMAGE)
    };
    let (major, minor) = directive(".version ")?.split_once('.').ok_or(INVALID_IMAGE)?;
    let version = 10 * leading_number(major)? + leading_number(minor)?;
    let architecture = leading_number(directive(".target ")?.strip_prefix("sm_").ok_or(INVALID_IMAGE)?)?;
    let newest = 10 * target.major + target.minor;
    if version > ptx_version(target.driver_version) || architecture > newest {
        return Err(UNSUPPORTED_PTX_VERSION);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_take_the_ptx_of_their_toolkit() {
        let versions = [(11080, 78), (12000, 80), (12050, 85), (12060, 85), (12080, 87), (12090, 88), (13000, 90)];
        for (driver, version) in versions {
            assert_eq!(ptx_version(driver), version, "driver {driver}");
        }
    }

    #[test]
    fn names_are_whole() {
        let text = Image { bytes: b".visible .entry admit_two(\n.entry zero\n(".to_vec(), is_text: true };
        assert!(text.has("admit_two") && text.has("zero") && !text.has("admit") && !text.has("zer"));
        let file = Image { bytes: b"\0.text.admit_two\0admit_two\0".to_vec(), is_text: false };
        assert!(file.has("admit_two") && !file.has("admit") && !file.has("two"));
    }
}
