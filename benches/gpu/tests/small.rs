//! The program as people run it, in small on the emulated driver, and what it says where there is nothing to measure.

use std::path::Path;
use std::process::Command;

/// What it printed to either output, and its exit status.
fn gpu_bench(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-bench")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn it_prints_tables_and_saves_every_number() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("small.json");
    let (tables, told, code) = gpu_bench(&["--small", "--emulated", "--json", path.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}{tables}");
    assert!(tables.starts_with("**An emulated driver: these times mean nothing.**\n"), "{tables}");
    assert!(tables.contains("CUDA 13.0: `gpu-bench --small --emulated`\n"), "{tables}");
    // Three requests of up to four misses, and two counts of rows.
    let rows =
        tables.lines().filter(|line| line.starts_with("| ") && !line.contains("plain") && !line.contains("hits"));
    assert_eq!(rows.count(), 5, "{tables}");
    assert_eq!(told.lines().filter(|line| line.starts_with("admission, 64 threads, ")).count(), 7, "{told}");
    let results: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rows = results["admission"].as_array().unwrap();
    for row in rows {
        let misses = row["misses"].as_u64().unwrap();
        assert_eq!(row["counted_misses"].as_u64().unwrap(), misses * row["counted_steps"].as_u64().unwrap(), "{row}");
        assert!(row["us"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(rows.iter().any(|row| row["misses"] == 8), "{tables}");
    assert_eq!(results["gather"].as_array().unwrap().len(), 10);
}

#[test]
fn without_a_device_it_says_that_nothing_was_measured() {
    let (tables, told, code) = gpu_bench(&["--small", "--emulated", "--device", "7"]);
    assert_eq!((tables.as_str(), code), ("", Some(2)), "{told}");
    assert_eq!(told, "gpu-bench: nothing was measured: no CUDA device 7: there are 1\n");
}
