//! How fast a file comes into an arena, next to `dd` reading the same file, in turn and in one run.
//!
//! ```text
//! cargo run --release -p ftcache-transfer --example arena_load -- FILE [readers] [direct|buffered] [rounds]
//! ```
//!
//! `dd`, an arena and an arena with huge pages take turns. Without a word for it, both ways of reading are measured;
//! buffered reads are of a warm page cache. `dd` throws away what it reads; the arena keeps it, so every page of it
//! is touched for the first time. How fast that alone goes is the column `touch`: ordinary memory of the same size,
//! written a byte a page by as many threads, just before each arena. In a virtual machine it may be far slower than
//! on the machine itself, since the host takes memory back that is free and finds it anew.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use ftcache_policy::{BankId, LayerId};
use ftcache_transfer::{ArenaOptions, BankSource, Direct, HostArena, HostDevice};

/// A bank of a usual size; the file is cut into layers of one bank each.
const BANK_BYTES: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = words.first() else {
        return Err("usage: arena_load FILE [readers] [direct|buffered] [rounds]".into());
    };
    let has = |word: &str| words[1..].iter().any(|given| given == word);
    let mut numbers = Vec::new();
    for word in words[1..].iter().filter(|word| !["direct", "buffered"].contains(&word.as_str())) {
        let number = word.parse::<usize>().ok().filter(|&number| number > 0 && numbers.len() < 2);
        let unknown = || format!("{word:?} is none of: readers or rounds from 1 on, direct, buffered");
        numbers.push(number.ok_or_else(unknown)?);
    }
    let reader_count = numbers.first().copied().unwrap_or(ArenaOptions::default().reader_count);
    let round_count = numbers.get(1).copied().unwrap_or(7);
    let bytes = std::fs::metadata(path)?.len();
    if bytes == 0 {
        return Err(format!("{path}: is empty").into());
    }
    println!("{path}: {bytes} bytes, {reader_count} readers; medians of {round_count} rounds, GB/s and ratio to dd");
    println!("{:>9} {:>8} {:>8} {:>15} {:>15}", "", "touch", "dd", "arena", "huge pages");
    for (word, direct) in [("direct", Direct::Require), ("buffered", Direct::Never)] {
        if (has("direct") || has("buffered")) && !has(word) {
            continue;
        }
        // A first time that does not count, for the page cache and for the machine that lends the memory.
        dd(path, direct)?;
        touch(bytes as usize, reader_count);
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let mut rounds = Vec::new();
        let mut report = String::new();
        for _ in 0..round_count {
            let dd = rate(dd(path, direct)?);
            let mut touched = 0.0;
            let options = |huge_pages| ArenaOptions { reader_count, direct, huge_pages, ..ArenaOptions::default() };
            let mut arena = |huge_pages| {
                touched = rate(touch(bytes as usize, reader_count));
                let (seconds, text) = load(Path::new(path), bytes, options(huge_pages))?;
                report = text;
                Ok::<_, Box<dyn std::error::Error>>(rate(seconds))
            };
            let (small, huge) = (arena(false)?, arena(true)?);
            rounds.push([touched, dd, small, small / dd, huge, huge / dd]);
        }
        let median = |column: usize| {
            let mut numbers: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
            numbers.sort_by(f64::total_cmp);
            numbers[numbers.len() / 2]
        };
        let [touch, dd, small, small_ratio, huge, huge_ratio] = [0, 1, 2, 3, 4, 5].map(median);
        println!("{word:>9} {touch:>8.2} {dd:>8.2} {small:>8.2} {small_ratio:>6.2} {huge:>8.2} {huge_ratio:>6.2}");
        println!("{:>9} {report}", "");
    }
    Ok(())
}

/// Seconds that `dd` takes to read the file.
fn dd(path: &str, direct: Direct) -> Result<f64, Box<dyn std::error::Error>> {
    let mut command = Command::new("dd");
    command.arg(format!("if={path}")).args(["of=/dev/null", "bs=8M"]).stderr(Stdio::null());
    if direct != Direct::Never {
        command.arg("iflag=direct");
    }
    let begin = Instant::now();
    match command.status()?.success() {
        true => Ok(begin.elapsed().as_secs_f64()),
        false => Err("dd has failed".into()),
    }
}

/// Seconds that it takes to write to every page of fresh memory.
fn touch(bytes: usize, thread_count: usize) -> f64 {
    let mut memory = vec![0_u8; bytes];
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for part in memory.chunks_mut(bytes.div_ceil(thread_count)) {
            scope.spawn(|| part.iter_mut().step_by(4096).for_each(|byte| *byte = 1));
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    std::hint::black_box(&memory);
    seconds
}

/// Seconds from reserving an arena to the last byte of the file in it, and what was achieved.
fn load(path: &Path, bytes: u64, options: ArenaOptions) -> Result<(f64, String), Box<dyn std::error::Error>> {
    let bank = |layer: u64| {
        let offset = layer * BANK_BYTES;
        let row_bytes = BANK_BYTES.min(bytes - offset);
        BankSource::contiguous(LayerId::new(layer as u32), BankId::new(0), row_bytes, 1, 0, offset)
    };
    let banks: Vec<BankSource> = (0..bytes.div_ceil(BANK_BYTES)).map(bank).collect();
    let mut device = HostDevice::new();
    let begin = Instant::now();
    let mut arena = HostArena::reserve(&banks, &[path], options)?.load(&mut device, |_| ControlFlow::Continue(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let report = arena.report().to_string();
    arena.free(&mut device)?;
    Ok((seconds, report))
}
