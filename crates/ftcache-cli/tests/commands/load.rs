//! `load`: on the emulated driver, which takes the real one's place on the library path, and without any. Whether every
//! byte of every expert is right is looked at where `load` is written; here it is what people read. How long it took is
//! masked.

use serde_json::{Value, json};

use super::*;

const SPLIT: [&str; 3] = ["split-00001-of-00003.gguf", "split-00002-of-00003.gguf", "split-00003-of-00003.gguf"];

/// A folder of models, and what is on the library path.
struct World {
    folder: PathBuf,
    drivers: Drivers,
}

impl World {
    fn new(drivers: Drivers) -> Self {
        let world = Self { folder: folder("load"), drivers };
        SPLIT.iter().for_each(|name| world.put(name));
        world
    }

    fn with_driver() -> Self {
        Self::new(Drivers::emulated())
    }

    fn without_driver() -> Self {
        Self::new(Drivers::none())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Puts a model of `testdata` there.
    fn put(&self, name: &str) {
        let path = model(name);
        std::fs::rename(&path, self.path(name)).unwrap();
        std::fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    /// Cuts a file off.
    fn cut(&self, name: &str, bytes: u64) {
        std::fs::OpenOptions::new().write(true).open(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    /// What a program printed, run in the folder of models; and whether it succeeded.
    fn run(&self, program: &[&str], environment: &[(&str, &str)]) -> (String, bool) {
        let mut command = self.drivers.command(program[0]);
        printed(command.args(&program[1..]).current_dir(&self.folder).envs(environment.iter().copied()))
    }

    fn load(&self, arguments: &str) -> String {
        let (text, success) = self.run(&line(arguments), &[]);
        assert!(success, "{text}");
        text
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.load(&format!("{arguments} --json"))).unwrap()
    }

    /// Why not, in one line.
    fn refused(&self, arguments: &str) -> String {
        let (text, success) = self.run(&line(arguments), &[]);
        assert!(!success, "{text}");
        assert!(text.starts_with("error: ") || text.trim_end().lines().count() == 1, "{text}");
        text.lines().next().unwrap().to_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn line(arguments: &str) -> Vec<&str> {
    [env!("CARGO_BIN_EXE_ftcache"), "load"].into_iter().chain(arguments.split_ascii_whitespace()).collect()
}

/// Seconds and rates as `#`.
fn masked(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_time = |next: &&str| ["s", "s,", "GB/s;"].contains(next);
        let word = |(index, word): (usize, &&str)| match words.get(index + 1).filter(|next| is_time(next)) {
            Some(_) if word.parse::<f64>().is_ok() => "#".to_owned(),
            _ => (*word).to_owned(),
        };
        words.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_split_model_is_pinned_for_a_device() {
    let world = World::with_driver();
    let text = masked(&world.load("split-00002-of-00003.gguf --direct never"));
    insta::assert_snapshot!(text, @"
    split-00001-of-00003 (qwen3moe), 4 layers of 8 experts in 3 files
    device: ftcache emulated device 0
    read 7.78 MiB (8,159,232 bytes) in # s, # GB/s; # s for pins and locks, # s in all

    kept    layers      bytes  bytes of pages  registrations
    pinned       4  8,159,232       8,159,232             12

    file                       read
    split-00001-of-00003.gguf  by way of the page cache, as asked
    split-00002-of-00003.gguf  by way of the page cache, as asked
    split-00003-of-00003.gguf  by way of the page cache, as asked
    ");
    assert_eq!(text, masked(&world.load("split-00003-of-00003.gguf --direct never --readers 1 --pin all")));
}

#[test]
fn a_budget_is_spent_on_whole_layers_and_the_others_are_said() {
    let world = World::with_driver();
    world.put("fused_biases.gguf");
    // Each layer takes 2 x 589,824 + 860,160 bytes, which are whole pages.
    let text = masked(&world.load("split-00001-of-00003.gguf --direct never --pin 2*2039808"));
    insta::assert_snapshot!(text, @"
    split-00001-of-00003 (qwen3moe), 4 layers of 8 experts in 3 files
    device: ftcache emulated device 0
    read 7.78 MiB (8,159,232 bytes) in # s, # GB/s; # s for pins and locks, # s in all

    kept      layers      bytes  bytes of pages  registrations
    pinned         2  4,079,616       4,079,616              6
    pageable       2  4,079,616       4,079,616              0

    blocks 2-3 not pinned: 2039808 bytes of pages each; the budget had 0 left

    file                       read
    split-00001-of-00003.gguf  by way of the page cache, as asked
    split-00002-of-00003.gguf  by way of the page cache, as asked
    split-00003-of-00003.gguf  by way of the page cache, as asked
    ");
    let layers = |arguments: &str| -> Vec<(u64, String, Value)> {
        let json = world.json(arguments);
        let layers = json["layers"].as_array().unwrap().iter();
        layers
            .map(|layer| {
                let kept = layer["kept"].as_str().unwrap().to_owned();
                (layer["block"].as_u64().unwrap(), kept, layer["unpinned"].clone())
            })
            .collect()
    };
    let short = layers("split-00001-of-00003.gguf --direct never --pin 4079615");
    let budget = |left: u64| json!({ "reason": "budget", "needed_bytes": 2_039_808, "left_bytes": left });
    assert_eq!(short[0], (0, "pinned".to_owned(), Value::Null));
    assert_eq!(short[1..], [1, 2, 3].map(|block| (block, "pageable".to_owned(), budget(2_039_807))));
    // Its first block is dense.
    let none = layers("fused_biases.gguf --pin none");
    assert_eq!(none, [1, 2, 3].map(|block| (block, "pageable".to_owned(), json!({ "reason": "not_asked" }))));
}

#[test]
fn without_a_driver_it_says_that_nothing_was_pinned_for_a_gpu() {
    let world = World::without_driver();
    world.put("separate.gguf");
    let text = masked(&world.load("separate.gguf --direct never"));
    let lines: Vec<&str> = text.lines().collect();
    let begin = "nothing was pinned for a GPU, since there is none to use (no CUDA driver: ";
    assert!(lines[1].starts_with(begin), "{}", lines[1]);
    let end = "); what is registered here is so with the host device alone";
    assert!(lines[1].ends_with(end), "{}", lines[1]);
    insta::assert_snapshot!([&lines[..1], &lines[2..]].concat().join("\n"), @"
    separate (llama), 2 layers of 4 experts in 1 file
    read 29.00 KiB (29,696 bytes) in # s, # GB/s; # s for pins and locks, # s in all

    kept        layers   bytes  bytes of pages  registrations
    registered       2  29,696          49,152              6

    file           read
    separate.gguf  by way of the page cache, as asked
    ");
    let json = world.json("separate.gguf");
    assert_eq!(json["device"], Value::Null);
    assert!(json["no_device"].as_str().unwrap().starts_with("no CUDA driver: "), "{json}");
    assert_eq!(json["residences"][0]["kept"], "registered");
}

#[test]
fn a_driver_without_a_device_is_none() {
    let line = line("split-00001-of-00003.gguf");
    let (text, success) = World::with_driver().run(&line, &[("FTCACHE_EMU_DEVICES", "0")]);
    assert!(success, "{text}");
    let begin = "nothing was pinned for a GPU, since there is none to use (cuInit: CUDA_ERROR_NO_DEVICE (100): ";
    assert!(text.lines().nth(1).unwrap().starts_with(begin), "{text}");
}

#[test]
fn all_of_it_is_there_as_json() {
    let world = World::with_driver();
    let json = world.json("split-00001-of-00003.gguf --direct never --pin 5000000");
    assert_eq!((&json["device"], &json["no_device"]), (&json!("ftcache emulated device 0"), &Value::Null));
    assert_eq!(json["bytes"], 4 * 2_039_808);
    let residence = |kept: &str, registrations: u32| {
        let bytes = 2 * 2_039_808;
        json!({ "kept": kept, "layers": 2, "bytes": bytes, "page_bytes": bytes, "registrations": registrations })
    };
    assert_eq!(json["residences"], json!([residence("pinned", 6), residence("pageable", 0)]));
    let seconds = ["read_seconds", "pin_seconds", "total_seconds"].map(|name| json[name].as_f64().unwrap());
    assert!(seconds[0] <= seconds[2] && seconds[1] <= seconds[2], "{seconds:?}");
    let rate = json["read_bytes_per_second"].as_f64().unwrap();
    assert!((rate * seconds[0] / (4.0 * 2_039_808.0) - 1.0).abs() < 1e-6, "{rate} {seconds:?}");
    let nothing = json!({ "accepted": null, "reason": null });
    assert_eq!(
        (&json["pin_refusal"], &json["lock_refusal"], &json["huge_pages"]),
        (&Value::Null, &Value::Null, &nothing)
    );
}

/// Whether a file system has direct reads is the machine's; each file says it, or why not.
#[test]
fn each_file_says_how_it_was_read() {
    let world = World::without_driver();
    let read = |direct: &str| -> Vec<(String, Value, Value)> {
        let json = world.json(&format!("split-00001-of-00003.gguf --direct {direct}"));
        let files = json["files"].as_array().unwrap().iter();
        let file = |file: &Value| {
            let path = file["path"].as_str().unwrap().to_owned();
            (path, file["direct"].clone(), file["reason"].clone())
        };
        files.map(file).collect()
    };
    let names = SPLIT.map(str::to_owned);
    let never = read("never");
    assert_eq!(never, names.clone().map(|name| (name, Value::Null, Value::Null)));
    let tried = read("try");
    assert_eq!(tried.iter().map(|(name, ..)| name).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    assert!(tried.iter().all(|(_, direct, reason)| direct.is_u64() == reason.is_null()), "{tried:?}");
    if tried.iter().all(|(_, direct, _)| direct.is_u64()) {
        assert_eq!(read("require"), tried);
        let text = world.load("split-00001-of-00003.gguf");
        let wanted = format!("directly, in multiples of {} bytes", tried[2].1);
        assert!(text.contains(&format!("\nsplit-00003-of-00003.gguf  {wanted}\n")), "{text}");
    } else {
        let refused = world.refused("split-00001-of-00003.gguf --direct require");
        assert!(refused.contains(": direct reads are required: "), "{refused}");
    }
}

/// How much may be locked is the machine's; what is not locked is pageable, and then a refusal says so.
#[test]
fn what_is_not_pinned_can_be_locked_and_huge_pages_be_asked_for() {
    let world = World::with_driver();
    let arguments = "split-00001-of-00003.gguf --direct never --pin 2039808 --lock --huge-pages";
    let json = world.json(arguments);
    let kept: Vec<&str> =
        json["layers"].as_array().unwrap().iter().map(|layer| layer["kept"].as_str().unwrap()).collect();
    assert_eq!(kept[0], "pinned");
    let locked = kept[1..].iter().filter(|&&kept| kept == "locked").count();
    assert_eq!(json["lock_refusal"].is_null(), locked == 3, "{json}");
    assert!(kept[1..].iter().all(|&kept| kept == "locked" || kept == "pageable"), "{kept:?}");
    assert_eq!(json["huge_pages"]["accepted"] == true, json["huge_pages"]["reason"].is_null(), "{json}");
    let text = world.load(arguments);
    assert!(text.contains("\nhuge pages: "), "{text}");
    assert!(text.contains("\nlocked ") || text.contains("\nnot locked: "), "{text}");
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let world = World::with_driver();
    ["dense.gguf", "fused_biases.gguf", "separate.gguf"].iter().for_each(|name| world.put(name));
    let bytes = |name: &str| std::fs::metadata(world.path(name)).unwrap().len();
    // The last tensor without its last byte; a header without its end; a shard that is gone.
    world.cut("fused_biases.gguf", bytes("fused_biases.gguf") - 1);
    world.cut("separate.gguf", 300);
    std::fs::remove_file(world.path(SPLIT[1])).unwrap();
    std::fs::create_dir(world.path("folder")).unwrap();
    let lines = [
        "split-00003-of-00003.gguf",
        "fused_biases.gguf",
        "separate.gguf",
        "dense.gguf",
        "none.gguf",
        "folder",
        "dense.gguf --pin much",
        "dense.gguf --pin 1XB",
        "dense.gguf --pin 20000000TiB",
        "dense.gguf --direct maybe",
        "dense.gguf --readers 0",
        "--pin all",
    ];
    let texts = lines.map(|line| format!("{line}\n    {}", world.refused(line)));
    insta::assert_snapshot!(texts.join("\n"), @r#"
    split-00003-of-00003.gguf
        ftcache: split-00002-of-00003.gguf: is missing, shard 2 of 3
    fused_biases.gguf
        ftcache: fused_biases.gguf: tensor blk.3.ffn_gate_up_exps.bias ends at byte 306496; the file has 306495 bytes
    separate.gguf
        ftcache: separate.gguf: 24 tensors need at least 576 bytes, 276 are left in the file
    dense.gguf
        ftcache: dense.gguf: has no mixture-of-experts layer (it has no key llama.expert_count)
    none.gguf
        ftcache: none.gguf: No such file or directory (os error 2)
    folder
        ftcache: folder: Is a directory (os error 21)
    dense.gguf --pin much
        error: invalid value 'much' for '--pin <BYTES|all|none>': "much" is not a byte count such as 12GiB, 12GB or 9059696640
    dense.gguf --pin 1XB
        error: invalid value '1XB' for '--pin <BYTES|all|none>': "1XB" is not a byte count such as 12GiB, 12GB or 9059696640
    dense.gguf --pin 20000000TiB
        error: invalid value '20000000TiB' for '--pin <BYTES|all|none>': "20000000TiB" is over 18446744073709551615 bytes
    dense.gguf --direct maybe
        error: invalid value 'maybe' for '--direct <DIRECT>'
    dense.gguf --readers 0
        error: invalid value '0' for '--readers <N>': 0 is not in 1..=4294967295
    --pin all
        error: the following required arguments were not provided:
    "#);
}

#[cfg(target_os = "linux")]
#[test]
fn addresses_that_a_process_may_not_have_are_no_crash() {
    let world = World::with_driver();
    world.put("mixed_quant.gguf");
    let program =
        format!("ulimit -v 4000000; exec '{}' load mixed_quant.gguf --direct never", env!("CARGO_BIN_EXE_ftcache"));
    let (text, success) = world.run(&["sh", "-c", &program], &[]);
    assert!(!success, "{text}");
    insta::assert_snapshot!(text, @"ftcache: reserving 91653931008 bytes of host memory: Cannot allocate memory (os error 12)");
}
