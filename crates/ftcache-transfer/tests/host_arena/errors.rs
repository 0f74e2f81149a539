//! What is refused before anything is read, and every text.

use std::path::PathBuf;

use ftcache_policy::{BankId, LayerId};
use ftcache_transfer::{
    ArenaError, ArenaOptions, BankSource, DeviceError, FilePiece, HostArena, LockRefusal, PinRefusal, RegisterError,
};

use super::options;
use super::sources::Sources;

const LAYER: LayerId = LayerId::new(3);
const BANK: BankId = BankId::new(1);

fn bank(pieces: &[(u64, u64)]) -> BankSource {
    let piece = |&(target, bytes): &(u64, u64)| FilePiece { file: 0, offset: 10, bytes, target };
    BankSource { layer: LAYER, bank: BANK, row_bytes: 25, row_count: 4, pieces: pieces.iter().map(piece).collect() }
}

fn refused(banks: &[BankSource], options: ArenaOptions) -> String {
    let mut sources = Sources::new(1);
    sources.contiguous(0, 0, 150, 1, 0, 0);
    let sources = sources.written();
    let refused = HostArena::reserve(banks, &sources.paths, options).unwrap_err();
    refused.to_string().replace(&sources.paths[0].display().to_string(), "FILE")
}

#[test]
fn banks_that_their_pieces_do_not_fill_exactly_are_refused() {
    let cases: [&[(u64, u64)]; 9] = [
        &[],
        &[(0, 99)],
        &[(1, 99)],
        &[(60, 40), (0, 59)],
        &[(0, 100), (0, 100)],
        &[(0, 60), (50, 50)],
        &[(0, 50), (50, 51)],
        &[(0, 50), (50, 0), (50, 50)],
        &[(0, 100), (u64::MAX, 2)],
    ];
    let texts: Vec<String> = cases.iter().map(|pieces| refused(&[bank(pieces)], options())).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let good = || bank(&[(0, 100)]);
    let mut texts = vec![
        refused(&[], options()),
        refused(&[good(), good()], options()),
        refused(&[BankSource { row_count: 0, ..bank(&[]) }], options()),
        refused(&[BankSource { row_bytes: u64::MAX / 2, ..good() }], options()),
        refused(&[BankSource::contiguous(LAYER, BANK, 25, 4, 1, 0)], options()),
        refused(&[BankSource::contiguous(LAYER, BANK, 25, 4, 0, 51)], options()),
        refused(&[BankSource::contiguous(LAYER, BANK, 25, 4, 0, u64::MAX)], options()),
        refused(&[good()], ArenaOptions { reader_count: 0, ..options() }),
        refused(&[good()], ArenaOptions { read_bytes: 0, ..options() }),
        refused(&[good()], ArenaOptions { cpu_layers: vec![LayerId::new(4)], ..options() }),
    ];
    let missing = HostArena::reserve(&[good()], &["/nowhere/model.gguf"], options()).unwrap_err();
    assert!(matches!(missing, ArenaError::Open { .. }));
    texts.push(missing.to_string());
    insta::assert_snapshot!(texts.join("\n"));

    for alignment in [0, 24, 1 << 30] {
        let refused = refused(&[good()], ArenaOptions { alignment, ..options() });
        assert!(refused.starts_with(&format!("an alignment of {alignment} bytes")), "{refused}");
    }
    let refused = refused(&[good()], ArenaOptions { register_bytes: 1, ..options() });
    assert!(refused.starts_with("register_bytes is 1; the least is "), "{refused}");
}

#[test]
fn errors_of_a_load_name_place_and_sizes() {
    let path = PathBuf::from("model.gguf");
    let source = DeviceError::Failed { operation: "registration", bytes: 8192, reason: "refused".to_owned() };
    let pin = |budget_bytes| PinRefusal {
        layer: LAYER,
        bank: BANK,
        wanted_bytes: 8192,
        pinned_bytes: 40_960,
        budget_bytes,
        source: source.clone(),
    };
    let lock = |limit_bytes| LockRefusal {
        layer: LAYER,
        bank: BANK,
        wanted_bytes: 8192,
        locked_bytes: 4096,
        limit_bytes,
        reason: "Cannot allocate memory (os error 12)".to_owned(),
    };
    let texts = [
        ArenaError::NotDirect { path: path.clone(), reason: "this system has none".to_owned() }.to_string(),
        ArenaError::Reserve { bytes: 1 << 40, reason: "out of memory".to_owned() }.to_string(),
        ArenaError::Thread { reason: "too many".to_owned() }.to_string(),
        ArenaError::Read { path: path.clone(), offset: 32, bytes: 4096, reason: "bad disk".to_owned() }.to_string(),
        ArenaError::Ended { path, offset: 32, bytes: 4096, end: 1000 }.to_string(),
        ArenaError::Pin(pin(None)).to_string(),
        ArenaError::Pin(pin(Some(45_000))).to_string(),
        ArenaError::Cancelled { read_bytes: 10, total_bytes: 100 }.to_string(),
        ArenaError::Leaked {
            bytes: 1 << 20,
            reason: DeviceError::Failed { operation: "end of a registration", bytes: 0, reason: "broken".to_owned() },
            source: Box::new(ArenaError::Cancelled { read_bytes: 10, total_bytes: 100 }),
        }
        .to_string(),
        lock(None).to_string(),
        lock(Some(8192)).to_string(),
        RegisterError::Overlap { base: 0x1000, bytes: 20, other_base: 0x1010, other_bytes: 30 }.to_string(),
        RegisterError::TooLarge { base: 0x1000, bytes: u64::MAX }.to_string(),
        RegisterError::Unknown { base: 0x1000 }.to_string(),
        RegisterError::Refused { wanted_bytes: 8192, registered_bytes: 4096, source }.to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"));
}
