//! `Device::copy_rows` of the host device beside plain memcpy of the same bytes: rows without gaps, and rows whose stride
//! on the host, on the device or on both is wider than they are.
//!
//! `cargo bench -p ftcache-transfer`. The aim is 0.9 of memcpy's rate for rows of 64 KiB and more. What is asked is a ratio,
//! and machines change their pace from second to second, so the strategies take turns, round after round, and the best time
//! of each stands for it; a bench that times one after another was off by a quarter here.

use std::time::{Duration, Instant};

use ftcache_transfer::{Device, DeviceSpan, HostDevice, HostSpan, Memory, RowCopy, Stream};

/// More than most caches hold, on each side.
const BYTES: u64 = 256 << 20;
const ROUNDS: usize = 25;
/// What stands between rows where they have gaps: a cache line and a half, so that lines do not fall on rows.
const GAP: u64 = 96;

/// Gaps on the host and on the device.
const STRATEGIES: [(&str, u64, u64); 4] =
    [("packed", 0, 0), ("host gaps", GAP, 0), ("device gaps", 0, GAP), ("both", GAP, GAP)];

fn copy(device: &mut HostDevice, memory: Memory, source: &[u8], row_bytes: u64, row_count: u64, gaps: (u64, u64)) {
    let copy = RowCopy {
        source: HostSpan { base: source.as_ptr(), stride: row_bytes + gaps.0 }.into(),
        target: DeviceSpan { memory, offset: 0, stride: row_bytes + gaps.1 },
        row_bytes,
        row_count,
    };
    // SAFETY: the source outlives the device's work, which is done when the call returns.
    unsafe { device.copy_rows(Stream::DEFAULT, &copy) }.expect("a copy in bounds");
}

fn main() {
    // As a test each case runs once, small.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (bytes, rounds) = if is_bench { (BYTES, ROUNDS) } else { (1 << 20, 1) };
    println!("copy_rows: of memcpy's rate, the best of {rounds} rounds");
    for row_bytes in [4 << 10, 64 << 10, 1 << 20, 5_308_416_u64] {
        let row_count = (bytes / row_bytes).max(1);
        let room = row_count * (row_bytes + GAP);
        let source = vec![7_u8; room as usize];
        let mut plain = vec![1_u8; room as usize];
        let mut device = HostDevice::new();
        let memory = device.allocate(room, 4096).expect("memory of the host");
        let mut best = [Duration::MAX; STRATEGIES.len() + 1];
        for _ in 0..rounds {
            for (index, best) in best.iter_mut().enumerate() {
                let begin = Instant::now();
                match index.checked_sub(1).map(|index| STRATEGIES[index]) {
                    None => plain[..(row_bytes * row_count) as usize]
                        .copy_from_slice(&source[..(row_bytes * row_count) as usize]),
                    Some((_, host, on_device)) => {
                        copy(&mut device, memory, &source, row_bytes, row_count, (host, on_device));
                    }
                }
                *best = begin.elapsed().min(*best);
            }
        }
        let rate = (row_bytes * row_count) as f64 / best[0].as_secs_f64() / 1e9;
        print!("rows of {row_bytes:>7}: memcpy {rate:5.2} GB/s");
        for ((name, ..), time) in STRATEGIES.iter().zip(&best[1..]) {
            print!("  {name} {:.2}", best[0].as_secs_f64() / time.as_secs_f64());
        }
        println!();
    }
}
