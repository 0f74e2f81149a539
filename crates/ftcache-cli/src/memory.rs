//! Whether there is memory for what a command is about to take: it is granted before it is there, and a process that
//! then takes it is ended without a word.

use crate::table::grouped;

/// Refuses what is more than there is, where the system says how much that is. `what` needs it: "the experts need".
pub(crate) fn check_memory(what: &str, needed_bytes: u64, available_bytes: Option<u64>) -> Result<(), String> {
    match available_bytes {
        Some(available) if needed_bytes > available => {
            let (needed, available) = (grouped(needed_bytes), grouped(available));
            Err(format!("{what} {needed} bytes of memory; {available} are available"))
        }
        _ => Ok(()),
    }
}

/// Memory that can be used without swapping, where the system says so.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_memory_cannot_hold_is_refused_with_both_numbers() {
        assert_eq!(check_memory("rows need", 1_000, Some(1_000)), Ok(()));
        assert_eq!(check_memory("rows need", u64::MAX, None), Ok(()));
        let error = check_memory("rows need", 1_001, Some(1_000)).unwrap_err();
        assert_eq!(error, "rows need 1,001 bytes of memory; 1,000 are available");
        if cfg!(target_os = "linux") {
            assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
