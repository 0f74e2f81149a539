//! Files read at a place: past the page cache where the file system has that, and never by another thread's position.
//!
//! *Unsafe* in one place, relying on the manual of `statx(2)`. A direct read moves whole sectors to an address that is
//! aligned as they are. What lies in memory as it does in its file goes straight into place; heads, tails and the rest
//! go by way of a scratch buffer.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::ArenaError;
use super::options::Direct;
use super::report::FileReport;

/// A file, open.
#[derive(Debug)]
pub(super) struct SourceFile {
    path: PathBuf,
    file: File,
    pub(super) bytes: u64,
    direct: Option<DirectFile>,
    /// Why it is not read directly although that was asked for: known when it is opened, or at the first read that is
    /// refused.
    reason: OnceLock<String>,
    required: bool,
}

/// The same file, opened for direct reads.
#[derive(Debug)]
struct DirectFile {
    file: File,
    /// Of the address in memory, the offset and the length.
    alignment: u64,
}

/// A read that gave less than was asked.
enum ReadError {
    /// The file ends here.
    Ended(u64),
    Failed(io::Error),
}

impl SourceFile {
    pub(super) fn open(path: &Path, direct: Direct) -> Result<Self, ArenaError> {
        let failed = |error: io::Error| ArenaError::Open { path: path.into(), reason: error.to_string() };
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let reason = OnceLock::new();
        let direct_file = match direct {
            Direct::Never => None,
            Direct::Try => DirectFile::open(path).inspect_err(|why| drop(reason.set(why.clone()))).ok(),
            Direct::Require => {
                let refused = |reason| ArenaError::NotDirect { path: path.into(), reason };
                Some(DirectFile::open(path).map_err(refused)?)
            }
        };
        Ok(Self { path: path.into(), file, bytes, direct: direct_file, reason, required: direct == Direct::Require })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What direct reads of the file must be multiples of; `None` where there are none.
    pub(super) fn alignment(&self) -> Option<u64> {
        self.direct().map(|direct| direct.alignment)
    }

    pub(super) fn report(&self) -> FileReport {
        let reason = self.reason.get().cloned();
        FileReport { path: self.path.clone(), direct: self.alignment(), reason }
    }

    fn direct(&self) -> Option<&DirectFile> {
        if self.reason.get().is_some() { None } else { self.direct.as_ref() }
    }

    /// Fills `target` from `offset` on. The scratch buffer is aligned as direct reads need it and holds a few sectors.
    pub(super) fn fill(&self, offset: u64, target: &mut [u8], scratch: &mut [u8]) -> Result<(), ArenaError> {
        let bytes = target.len() as u64;
        if let Some(direct) = self.direct() {
            match direct.fill(offset, target, scratch) {
                Ok(()) => return Ok(()),
                // Some file systems find out only now.
                Err(ReadError::Failed(error)) if is_refusal(&error) => {
                    let reason = format!("a read of {bytes} bytes at {offset}: {error}");
                    if self.required {
                        return Err(ArenaError::NotDirect { path: self.path.clone(), reason });
                    }
                    // Another reader may have been told already.
                    self.reason.get_or_init(|| reason);
                }
                Err(error) => return Err(self.error(offset, bytes, error)),
            }
        }
        read(&self.file, offset, target, bytes, 1).map_err(|error| self.error(offset, bytes, error))
    }

    fn error(&self, offset: u64, bytes: u64, error: ReadError) -> ArenaError {
        let path = self.path.clone();
        match error {
            ReadError::Ended(end) => ArenaError::Ended { path, offset, bytes, end },
            ReadError::Failed(error) => ArenaError::Read { path, offset, bytes, reason: error.to_string() },
        }
    }
}

impl DirectFile {
    /// Opens a file, or says why it cannot be read directly.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn open(path: &Path) -> Result<Self, String> {
        use std::os::unix::fs::OpenOptionsExt;

        let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = file.map_err(|error| format!("the file system refuses it: {error}"))?;
        // What most devices need, where the system does not say: a logical sector is 512 or 4,096 bytes.
        let alignment = direct_alignment(&file).unwrap_or(4096);
        match alignment.is_power_of_two() && alignment <= 1 << 20 {
            true => Ok(Self { file, alignment }),
            false => Err(format!("the file system gives an alignment of {alignment} bytes")),
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn open(_: &Path) -> Result<Self, String> {
        Err("this system has none".to_owned())
    }

    fn fill(&self, offset: u64, target: &mut [u8], scratch: &mut [u8]) -> Result<(), ReadError> {
        let alignment = self.alignment;
        let end = offset + target.len() as u64;
        let straight = (target.as_ptr().addr() as u64).wrapping_sub(offset).is_multiple_of(alignment);
        let (body, tail) = match straight {
            true => {
                let body = offset.next_multiple_of(alignment).min(end);
                (body, (end & !(alignment - 1)).max(body))
            }
            false => (end, end),
        };
        let (head, rest) = target.split_at_mut((body - offset) as usize);
        let (whole, rest) = rest.split_at_mut((tail - body) as usize);
        self.fill_by_way_of(offset, head, scratch)?;
        let whole_bytes = whole.len() as u64;
        read(&self.file, body, whole, whole_bytes, alignment)?;
        self.fill_by_way_of(tail, rest, scratch)
    }

    /// Reads the sectors that the target lies in to the scratch buffer, and copies.
    fn fill_by_way_of(&self, offset: u64, mut target: &mut [u8], scratch: &mut [u8]) -> Result<(), ReadError> {
        let mut at = offset;
        while !target.is_empty() {
            let first = at & !(self.alignment - 1);
            let skipped = (at - first) as usize;
            let bytes = target.len().min(scratch.len() - skipped);
            let sectors = (skipped + bytes).next_multiple_of(self.alignment as usize);
            // The last sector may be cut short by the end of the file.
            read(&self.file, first, &mut scratch[..sectors], (skipped + bytes) as u64, self.alignment)?;
            let (now, later) = target.split_at_mut(bytes);
            now.copy_from_slice(&scratch[skipped..][..bytes]);
            (target, at) = (later, at + bytes as u64);
        }
        Ok(())
    }
}

/// Whether a direct read was refused as such.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Reads from `offset` on until `needed` bytes are there. After a read that was cut short, it goes on at a multiple
/// of the alignment.
fn read(file: &File, offset: u64, target: &mut [u8], needed: u64, alignment: u64) -> Result<(), ReadError> {
    let mut reached = 0;
    while reached < needed {
        let count = match read_at(file, &mut target[reached as usize..], offset + reached) {
            Ok(count) => count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ReadError::Failed(error)),
        };
        let end = reached + count;
        if end >= needed {
            return Ok(());
        }
        let next = end & !(alignment - 1);
        if next <= reached {
            return Err(ReadError::Ended(offset + end));
        }
        reached = next;
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, target, offset)
}

#[cfg(windows)]
fn read_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, target, offset)
}

#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// What the system says that direct reads of a file must be multiples of, if it does.
#[cfg(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")))]
fn direct_alignment(file: &File) -> Option<u64> {
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;

    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let (empty, mask) = (c"".as_ptr(), libc::STATX_DIOALIGN);
    // SAFETY: the descriptor is open, the path an empty string as the flag allows, and the system writes one `statx`.
    let status = unsafe { libc::statx(file.as_raw_fd(), empty, libc::AT_EMPTY_PATH, mask, answer.as_mut_ptr()) };
    // SAFETY: all zeros are a `statx`, whether or not the system wrote there.
    let answer = unsafe { answer.assume_init() };
    let known = status == 0 && answer.stx_mask & mask != 0;
    // A zero says that there are no direct reads, which the caller refuses as an alignment.
    known.then(|| match answer.stx_dio_offset_align {
        0 => 0,
        offset => u64::from(offset.max(answer.stx_dio_mem_align)),
    })
}

#[cfg(all(
    any(target_os = "linux", target_os = "android"),
    not(all(target_os = "linux", any(target_env = "gnu", target_env = "musl")))
))]
fn direct_alignment(_: &File) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_direct_read_that_is_refused_goes_on_as_an_ordinary_one() {
        let path = std::env::temp_dir().join(format!("ftcache-files-{}", std::process::id()));
        std::fs::write(&path, (0..20_000_u32).map(|byte| byte as u8).collect::<Vec<_>>()).unwrap();
        let mut file = SourceFile::open(&path, Direct::Try).unwrap();
        // A file system that says less than it needs.
        let Some(direct) = &mut file.direct else { return };
        direct.alignment = 1;
        let mut target = [0_u8; 1001];
        file.fill(3, &mut target, &mut [0; 64]).unwrap();
        assert!(target.iter().enumerate().all(|(at, &byte)| byte == (at + 3) as u8));
        // Some file systems take any direct read.
        if let Some(reason) = file.report().reason {
            assert!(reason.starts_with("a read of 1001 bytes at 3: "), "{reason}");
            assert_eq!(file.alignment(), None);

            let mut required = SourceFile::open(&path, Direct::Require).unwrap();
            required.direct.as_mut().unwrap().alignment = 1;
            let refused = required.fill(3, &mut target, &mut [0; 64]).unwrap_err();
            assert!(matches!(refused, ArenaError::NotDirect { .. }), "{refused}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
