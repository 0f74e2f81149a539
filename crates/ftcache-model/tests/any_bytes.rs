//! The fuzz targets, on texts of their kind with a few bytes changed.

use ftcache_testkit::Rng;

#[path = "../../../fuzz/targets.rs"]
mod targets;

const TEXTS: [&str; 8] =
    ["12.5 GiB", "480*18874368", "0.9*free", "rest", "3,7,11", "0.5", "auto", "18446744073709551615"];

const PROFILES: [&str; 1] = [r#"{ "model": "tiny", "counted": "2026-11-29", "expert_counts": [[3, 1], [0, 2.5]] }"#];

const RATES: [&str; 1] = [r#"{ "device": "a card", "points": [
    { "tag": "Q4_K", "expert_bytes": 100, "link_bytes_per_second": 3e10, "cpu_bytes_per_second": 9e10,
      "contended": { "link_bytes_per_second": 2e10, "cpu_bytes_per_second": 6e10 } },
    { "tag": "MXFP4", "expert_bytes": 90, "link_bytes_per_second": 3e10 } ] }"#];

/// A text with a few bytes changed, cut out, doubled or put in.
fn mutated(rng: &mut Rng, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes[at] = b"0123456789-+.eE,:[]{}\"nN_*"[rng.below(26) as usize],
            2 => bytes.truncate(at + 1),
            3 => drop(bytes.remove(at)),
            _ => bytes.insert(at, bytes[at]),
        }
        if bytes.is_empty() {
            bytes.push(b' ');
        }
    }
    bytes
}

#[test]
fn any_bytes_are_read_or_refused() {
    type Target = fn(&[u8]) -> bool;
    let kinds: [(&str, &[&str], Target); 3] = [
        ("texts", &TEXTS, targets::texts),
        ("profile", &PROFILES, targets::profile),
        ("rates", &RATES, targets::rates),
    ];
    for (name, texts, target) in kinds {
        let (mut read, mut refused) = (0, 0);
        for seed in 0..20_000 {
            let mut rng = Rng::new(seed);
            let text = texts[rng.below(texts.len() as u64) as usize];
            let bytes = mutated(&mut rng, text);
            let shown = bytes.escape_ascii().to_string();
            match std::panic::catch_unwind(|| target(&bytes)) {
                Ok(true) => read += 1,
                Ok(false) => refused += 1,
                Err(_) => panic!("{name}, seed {seed}: {shown}"),
            }
        }
        assert!(read > 500 && refused > 500, "{name}: {read} read, {refused} refused");
    }
}
