//! `Device::copy_rows` of the host device beside plain memcpy of the same bytes: rows without gaps, and rows whose stride
//! on the host, on the device or on both is wider than they are.
//!
//! `cargo bench -p ftcache-transfer`. The aim is 0.9 of memcpy's rate for rows of 64 KiB and more; the ratio is the one of
//! the medians of one run.

use criterion::{BenchmarkId, Criterion, Throughput};
use ftcache_transfer::{Device, DeviceSpan, HostDevice, HostSpan, RowCopy, Stream};

/// More than this machine's caches hold, on each side.
const BYTES: u64 = 256 << 20;
/// What stands between rows where they have gaps: a cache line and a half, so that lines do not fall on rows.
const GAP: u64 = 96;

fn copy_rows(criterion: &mut Criterion, bytes: u64) {
    for row_bytes in [4 << 10, 64 << 10, 1 << 20, 5_308_416_u64] {
        let row_count = (bytes / row_bytes).max(1);
        let room = row_count * (row_bytes + GAP);
        let source = vec![7_u8; room as usize];
        let mut plain = vec![0_u8; room as usize];
        let mut device = HostDevice::new();
        let memory = device.allocate(room, 4096).expect("memory of the host");
        let mut group = criterion.benchmark_group("copy_rows");
        group.throughput(Throughput::Bytes(row_bytes * row_count));
        let name = |strategy: &str| BenchmarkId::new(strategy, format!("row={row_bytes}"));
        group.bench_function(name("memcpy"), |bencher| {
            let length = (row_bytes * row_count) as usize;
            bencher.iter(|| plain[..length].copy_from_slice(&source[..length]));
        });
        for (strategy, host_gap, device_gap) in
            [("packed", 0, 0), ("host-gaps", GAP, 0), ("device-gaps", 0, GAP), ("both-gaps", GAP, GAP)]
        {
            let source = HostSpan { base: source.as_ptr(), stride: row_bytes + host_gap }.into();
            let target = DeviceSpan { memory, offset: 0, stride: row_bytes + device_gap };
            let copy = RowCopy { source, target, row_bytes, row_count };
            group.bench_function(name(strategy), |bencher| {
                // SAFETY: the source outlives the device's work, which is done when the call returns.
                bencher.iter(|| unsafe { device.copy_rows(Stream::DEFAULT, &copy) }.expect("a copy in bounds"));
            });
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    // As a test each case runs once, small.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    copy_rows(&mut criterion, if is_test { 1 << 20 } else { BYTES });
    criterion.final_summary();
}
