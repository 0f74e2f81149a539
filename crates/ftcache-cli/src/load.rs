//! `ftcache load MODEL`: a model's experts read into a host arena and pinned, as an engine does it, and how that went.
//!
//! [`bank_sources`] is all that lies between a GGUF model and an arena, for engines to copy. Nothing is kept: the arena
//! is given back once it has been reported.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::ValueEnum;
use ftcache::transfer::{Direct, LoadReport, Pinning, Progress, Refusal, Reservation};
use ftcache::{
    ArenaOptions, BankSource, BytesError, CudaContext, CudaDevice, CudaDriver, Device, ExpertId, HostArena, HostDevice,
    LayerId, parse_bytes,
};
use ftcache_model::MoeModel;

use crate::Failure;
use crate::load_report::Loaded;
use crate::memory::{available_bytes, check_memory};
use crate::progress::ProgressLine;
use crate::table::binary;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A .gguf file; of a split model, any of its files
    model: PathBuf,
    /// Layers to pin for the first CUDA device: as many as fit in so many bytes, all, or none. What it refuses stays as
    /// it is, and is reported
    #[arg(long, value_name = "BYTES|all|none", value_parser = parse_pinning, default_value = "all")]
    pin: Pinning,
    /// Whether files are read past the system's page cache
    #[arg(long, value_enum, default_value_t)]
    direct: DirectArgument,
    /// Threads that read
    #[arg(long, value_name = "N", default_value_t = ArenaOptions::default().reader_count as u32,
        value_parser = clap::value_parser!(u32).range(1..))]
    readers: u32,
    /// Ask the system for huge pages
    #[arg(long)]
    huge_pages: bool,
    /// Lock in memory what is not pinned
    #[arg(long)]
    lock: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum DirectArgument {
    /// Where the file system can
    #[default]
    Try,
    /// Nowhere
    Never,
    /// Everywhere, or it is an error
    Require,
}

fn parse_pinning(text: &str) -> Result<Pinning, BytesError> {
    match text {
        "all" => Ok(Pinning::All),
        "none" => Ok(Pinning::None),
        bytes => parse_bytes(bytes).map(Pinning::Budget),
    }
}

impl Arguments {
    fn options(&self) -> ArenaOptions {
        ArenaOptions {
            reader_count: self.readers as usize,
            direct: match self.direct {
                DirectArgument::Try => Direct::Try,
                DirectArgument::Never => Direct::Never,
                DirectArgument::Require => Direct::Require,
            },
            huge_pages: self.huge_pages,
            pinning: self.pin,
            // How much could be pinned is what is to be seen here.
            refusal: Refusal::Serve,
            lock: self.lock,
            ..ArenaOptions::default()
        }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let model = MoeModel::open(&arguments.model)?;
    let reservation = reserve(&model, arguments.options(), available_bytes())?;
    let (report, device) = match CudaDriver::open() {
        Ok(driver) => {
            let mut device = CudaDevice::new(driver, CudaContext::Primary(0))?;
            (load(reservation, &mut device)?, Ok(device.name()))
        }
        Err(why) => (load(reservation, &mut HostDevice::new())?, Err(why.to_string())),
    };
    let loaded = Loaded { model: &model, report, device };
    Ok(if arguments.json { writeln!(out, "{:#}", loaded.json()) } else { loaded.write(out) }?)
}

/// Where the bytes of every bank of a model are, for an arena over `model.files`; layers and banks as
/// [`MoeModel::geometry`] numbers them.
///
/// Rows that are neighbours in a file are joined by the arena, so a tensor that holds all experts is read as one.
pub(crate) fn bank_sources(model: &MoeModel) -> Vec<BankSource> {
    let mut sources = Vec::new();
    for (index, layer) in model.layers.iter().enumerate() {
        // To the geometry, a bank without bytes is one that the layer does not have.
        for tensor in layer.tensors.iter().filter(|tensor| tensor.row_bytes > 0) {
            let places = (0..model.expert_count).map(|expert| tensor.row(ExpertId::new(expert)));
            let rows = places.map(|place| (place.file_index, place.offset));
            sources.push(BankSource::scattered(LayerId::from_index(index), tensor.bank, tensor.row_bytes, rows));
        }
    }
    sources
}

/// Lays an arena out for a model, if there is memory for it.
fn reserve(model: &MoeModel, options: ArenaOptions, available: Option<u64>) -> Result<Reservation, Failure> {
    // No cache can be made of what the policy refuses.
    model.geometry()?;
    let reservation = HostArena::reserve(&bank_sources(model), &model.files, options)?;
    check_memory("the experts need", reservation.bytes(), available)?;
    Ok(reservation)
}

/// Fills an arena, tells how that went, and gives it back.
fn load(reservation: Reservation, device: &mut impl Device) -> Result<LoadReport, Failure> {
    let mut line = ProgressLine::new();
    let arena = reservation.load(device, |progress| {
        line.show(|| shown(&progress));
        ControlFlow::Continue(())
    });
    drop(line);
    let mut arena = arena?;
    let report = arena.report().clone();
    arena.free(device)?;
    Ok(report)
}

fn shown(progress: &Progress) -> String {
    let Progress { read_bytes, total_bytes, pinned_bytes, to_pin_bytes, .. } = *progress;
    let mut text = format!("read {} of {}", binary(read_bytes), binary(total_bytes));
    if to_pin_bytes > 0 {
        text += &format!(", registered {} of {}", binary(pinned_bytes), binary(to_pin_bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use clap::Parser;
    use ftcache::transfer::{Residence, Unpinned};
    use ftcache::{BankId, Budget, Cache, Constraints, Geometry};
    use ftcache_model::{ExpertTensor, GgmlType, Gguf, MoeLayer, RowPlace, Rows};

    use super::*;

    /// A folder of its own, deleted at the end, with the models of `testdata/gguf` that are small, as whole files: data
    /// behind the headers of which no two words are equal, be they of one file or of two.
    struct Models(PathBuf);

    impl Models {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let unique = format!("ftcache-load-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let folder = std::env::temp_dir().join(unique);
            std::fs::create_dir_all(&folder).unwrap();
            let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf");
            let sizes = std::fs::read(testdata.join("headers.json")).unwrap();
            let sizes: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&sizes).unwrap();
            let mut word = 0_u64;
            for (name, bytes) in sizes.iter().map(|(name, bytes)| (name, bytes.as_u64().unwrap())) {
                if bytes < 1 << 30 {
                    let mut file = std::fs::read(testdata.join(format!("{name}-header"))).unwrap();
                    while file.len() < bytes as usize {
                        // An odd factor: as many words as there are numbers.
                        word += 1;
                        file.extend(word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
                    }
                    file.truncate(bytes as usize);
                    std::fs::write(folder.join(name), file).unwrap();
                }
            }
            Self(folder)
        }

        fn open(&self, name: &str) -> MoeModel {
            MoeModel::open(&self.0.join(name)).unwrap()
        }
    }

    impl Drop for Models {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The bytes of one expert, found by the names of tensors alone; `None` if the layer has no such bank.
    fn expert_bytes<'a>(
        files: &'a [(Gguf, Vec<u8>)],
        (block, bank): (u32, &str),
        (expert, expert_count): (u32, u32),
    ) -> Option<&'a [u8]> {
        let (role, kind) = bank.split_once('.').unwrap_or((bank, "weight"));
        let all = format!("blk.{block}.ffn_{role}_exps.{kind}");
        let one = format!("blk.{block}.ffn_{role}.{expert}.{kind}");
        files.iter().find_map(|(gguf, bytes)| {
            let find = |name: &str| gguf.tensors().iter().find(|tensor| tensor.name() == name);
            let (tensor, rows, row) = match (find(&all), find(&one)) {
                (Some(tensor), None) => (tensor, expert_count, expert),
                (None, tensor) => (tensor?, 1, 0),
                (Some(_), Some(_)) => panic!("{all} and {one}"),
            };
            let row_bytes = tensor.bytes() as usize / rows as usize;
            Some(&bytes[tensor.offset() as usize + row as usize * row_bytes..][..row_bytes])
        })
    }

    /// Loads a model as an engine does, asks for every expert, and compares its slot in every bank. Returns how many
    /// rows there were.
    fn check_every_expert(model: &MoeModel, options: ArenaOptions) -> usize {
        let read = |path: &PathBuf| (Gguf::open(path).unwrap(), std::fs::read(path).unwrap());
        let files: Vec<(Gguf, Vec<u8>)> = model.files.iter().map(read).collect();
        let slots = model.layers.len() as u64 * u64::from(model.expert_count);
        let geometry = Geometry::new(model.geometry().unwrap(), Constraints::new(Budget::Slots(slots))).unwrap();
        let mut cache = Cache::new(geometry, HostDevice::new()).unwrap();
        cache.load_arena(reserve(model, options, None).unwrap(), |_| ControlFlow::Continue(())).unwrap();
        let mut row_count = 0;
        for (layer, MoeLayer { block, .. }) in model.layers.iter().enumerate() {
            let layer = LayerId::from_index(layer);
            for expert in 0..model.expert_count {
                let slot = cache.load(layer, &[ExpertId::new(expert)]).unwrap()[0];
                for (bank, name) in model.banks.iter().enumerate() {
                    let place = (*block, name.as_str());
                    let Some(wanted) = expert_bytes(&files, place, (expert, model.expert_count)) else { continue };
                    let mut held = vec![0; wanted.len()];
                    cache.read_row(layer, BankId::from_index(bank), slot, &mut held).unwrap();
                    assert!(held == wanted, "{}: expert {expert} of block {block}, {name}", model.name);
                    row_count += 1;
                }
            }
        }
        row_count
    }

    #[test]
    fn every_expert_of_every_form_is_that_of_its_tensor() {
        let models = Models::new();
        let few = ArenaOptions { reader_count: 1, direct: Direct::Never, read_bytes: 4096, ..ArenaOptions::default() };
        for (name, rows) in [
            ("fused_biases.gguf", 3 * 4 * 8),
            // The second layer has no scales of its third bank.
            ("scales.gguf", (9 + 7) * 8),
            ("every_type.gguf", 34 * 4),
            ("separate.gguf", 2 * 3 * 4),
            ("split-00002-of-00003.gguf", 4 * 3 * 8),
        ] {
            let model = models.open(name);
            for options in [ArenaOptions::default(), few.clone()] {
                assert_eq!(check_every_expert(&model, options), rows, "{name}");
            }
        }
    }

    /// A tensor may have no elements. The geometry has no such bank, so a cache would take no rows of it.
    #[test]
    fn a_bank_without_bytes_is_none() {
        let mut model = Models::new().open("separate.gguf");
        let rows = Rows::Strided { first: RowPlace { file_index: 0, offset: 64 }, stride: 0 };
        let ggml_type = GgmlType::from_id(0).unwrap();
        model.layers[0].tensors[1] = ExpertTensor { bank: BankId::new(1), ggml_type, row_bytes: 0, rows };
        let sources = bank_sources(&model);
        let banks: Vec<_> = sources.iter().map(|source| (source.layer.get(), source.bank.get())).collect();
        assert_eq!(banks, [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(words: &str) -> ArenaOptions {
        Only::parse_from(["load", "MODEL"].into_iter().chain(words.split_ascii_whitespace())).arguments.options()
    }

    #[test]
    fn options_are_what_is_asked_for() {
        let default = ArenaOptions { refusal: Refusal::Serve, ..ArenaOptions::default() };
        assert_eq!(options(""), default);
        let asked = options("--pin 480*18874368 --direct never --readers 9 --huge-pages --lock");
        let (pinning, direct) = (Pinning::Budget(9_059_696_640), Direct::Never);
        let wanted = ArenaOptions { pinning, direct, reader_count: 9, huge_pages: true, lock: true, ..default.clone() };
        assert_eq!(asked, wanted);
        assert_eq!(options("--pin none --direct require").direct, Direct::Require);
        assert_eq!(options("--pin none").pinning, Pinning::None);
        assert_eq!(options("--pin all --direct try"), default);
    }

    #[test]
    fn what_the_device_refuses_is_reported_and_nothing_stays_registered() {
        let models = Models::new();
        let model = models.open("split-00003-of-00003.gguf");
        // Of 8 experts, gate and up take 589,824 bytes each and down 860,160, all of them whole pages. One reader ends
        // banks in their order, so it is the sixth that is too many.
        let limit_bytes = 2_039_808 + 2 * 589_824;
        let mut device = HostDevice::new().with_register_limit(limit_bytes);
        let report = load(reserve(&model, options("--direct never --readers 1"), None).unwrap(), &mut device).unwrap();
        let refusal = report.pin_refusal.as_ref().unwrap();
        assert_eq!((refusal.layer, refusal.bank), (LayerId::new(1), BankId::new(2)));
        assert_eq!((refusal.wanted_bytes, refusal.pinned_bytes, refusal.budget_bytes), (860_160, limit_bytes, None));
        let kept: Vec<_> = report.layers.iter().map(|layer| (layer.residence, layer.unpinned)).collect();
        let pageable = |unpinned| (Residence::Pageable, Some(unpinned));
        let after = pageable(Unpinned::AfterRefusal);
        assert_eq!(kept, [(Residence::Pinned, None), pageable(Unpinned::Refused), after, after]);
        assert_eq!(report.bytes(), 4 * 2_039_808);
        assert_eq!(device.live_objects().registrations, 0);

        let report = load(reserve(&model, options(""), None).unwrap(), &mut HostDevice::new()).unwrap();
        assert_eq!(report.layer_count(Residence::Pinned), 4, "told as it was before it was given back");
    }

    #[test]
    fn a_model_that_memory_cannot_hold_or_no_cache_can_have_is_refused() {
        let models = Models::new();
        let mut model = models.open("split-00001-of-00003.gguf");
        let reserved = |model: &MoeModel, available| {
            let reserved = reserve(model, options("--direct never"), available);
            reserved.map(|reservation| reservation.bytes()).map_err(|error| error.to_string())
        };
        assert_eq!(reserved(&model, Some(8_159_232)), Ok(8_159_232));
        let refused = "the experts need 8,159,232 bytes of memory; 8,159,231 are available";
        assert_eq!(reserved(&model, Some(8_159_231)), Err(refused.to_owned()));
        model.top_k = 9;
        let refused = reserved(&model, None).unwrap_err();
        assert!(refused.ends_with(": top-9 of 8 experts: top_k must be from 1 to the expert count"), "{refused}");
    }
}
