//! `probe`: on the emulated driver, which takes the real one's place on the library path, and without any. What was
//! measured is masked: no test looks at how long anything took.

use super::*;

impl Drivers {
    fn probe(&self, arguments: &str) -> String {
        let (text, success) = self.run(&[&["probe"], &words(arguments)[..]].concat(), &[]);
        assert!(success, "{text}");
        text
    }

    fn refused(&self, arguments: &str) -> String {
        let (text, success) = self.run(&[&["probe"], &words(arguments)[..]].concat(), &[]);
        assert!(!success, "{text}");
        assert!(text.starts_with("error: ") || text.trim_end().lines().count() == 1, "{text}");
        text.lines().next().unwrap().to_owned()
    }
}

/// The words of a line; what stands in quotes, such as a path with blanks, is one.
fn words(text: &str) -> Vec<&str> {
    let parts = text.split('\'').enumerate();
    parts
        .flat_map(|(index, part)| if index % 2 == 1 { vec![part] } else { part.split_ascii_whitespace().collect() })
        .collect()
}

/// Numbers that were measured as `#`; columns a blank apart.
fn masked(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let word = |(index, word): (usize, &&str)| {
            let next = words.get(index + 1).copied().unwrap_or_default();
            let is_number = word.bytes().all(|byte| byte.is_ascii_digit() || b".,".contains(&byte));
            let is_size = ["B", "KiB", "MiB", "MiB:"].contains(&next);
            let is_measured = is_number && !is_size && (word.contains('.') || next == "%");
            if is_measured { "#".to_owned() } else { (*word).to_owned() }
        };
        words.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
    };
    // With little to copy, the larger size may come out as the faster one: whether there is a fit is chance.
    let line = |text: &str| match text.split_once(": ") {
        Some((what, fit)) if fit.contains("fit") => format!("{what}: FIT"),
        _ => line(text),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Without the note that the link was faster beside reads: the emulated driver keeps no time, so that is chance.
fn without_chance(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("; the link's rate of ").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

const SMALL: &str = "--sizes 64KiB,1KiB --bytes 256KiB --threads 2 --read-bytes 1MiB";

#[test]
fn a_device_is_measured() {
    let text = Drivers::emulated().probe(SMALL);
    insta::assert_snapshot!(masked(&text), @"
    ftcache emulated device 0 (device 0, compute capability # 1073741824 bytes), driver of CUDA # streams wait for words, registers read-only memory
    copies in batches by cuMemcpyBatchAsync_v2, entries below 0 bytes alone
    admission on the device by machine code for sm_90

    copies, a call each copies GB/s us a copy calls returned after
    1.00 KiB 256 # # # %
    64.00 KiB 4 # # # %

    copies in batches copies GB/s us a copy calls returned after
    1.00 KiB 256 # # # %
    64.00 KiB 4 # # # %

    gathers on the device copies GB/s us a copy calls returned after
    1.00 KiB 256 # # # %
    64.00 KiB 4 # # # %
    small sizes stay in the device's caches: their rate is not that of its memory

    2 reading threads of the CPU over 1.00 MiB: # GB/s alone

    copies beside reads GB/s us a copy of those alone reads GB/s
    1.00 KiB # # # % #
    64.00 KiB # # # % #

    copies: FIT
    copies in batches: FIT
    a step's copies take # us besides their bytes
    ");
}

#[test]
fn without_a_driver_it_says_what_it_measured_instead() {
    let drivers = Drivers::none();
    let text = drivers.probe(SMALL);
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(
        first.starts_with("measured: host memory to host memory, no figure of a link (no CUDA driver: "),
        "{first}"
    );
    insta::assert_snapshot!(masked(rest), @"

    copies, a call each copies GB/s us a copy calls returned after
    1.00 KiB 256 # # # %
    64.00 KiB 4 # # # %

    gathers on the device copies GB/s us a copy calls returned after
    1.00 KiB 256 # # # %
    64.00 KiB 4 # # # %
    small sizes stay in the device's caches: their rate is not that of its memory

    2 reading threads of the CPU over 1.00 MiB: # GB/s alone

    copies beside reads GB/s us a copy of those alone reads GB/s
    1.00 KiB # # # % #
    64.00 KiB # # # % #

    copies: FIT
    a step's copies take # us besides their bytes
    ");
    // One size is none too few to be measured.
    let text = drivers.probe("--host --sizes 1KiB --bytes 1KiB --threads 1");
    assert!(text.starts_with("measured: host memory to host memory, no figure of a link (--host)\n"), "{text}");
    assert!(text.contains("\ncopies: no fit, a link is fitted to copies of 2 sizes or more; 1 given\n"), "{text}");

    let json: serde_json::Value = serde_json::from_str(&drivers.probe(&format!("--json {SMALL}"))).unwrap();
    assert!(json["no_link"].as_str().unwrap().starts_with("no CUDA driver: "), "{json}");
    assert!(json["seconds_per_step"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{json}");
    assert_eq!((&json["device"], json.get("cuda"), &json["batches"]), (&"host memory".into(), None, &().into()));
}

#[test]
fn a_driver_without_a_device_is_none() {
    let arguments = [&["probe"], &words(SMALL)[..]].concat();
    let (text, success) = Drivers::emulated().run(&arguments, &[("FTCACHE_EMU_DEVICES", "0")]);
    assert!(success, "{text}");
    let first = "measured: host memory to host memory, no figure of a link (cuInit: CUDA_ERROR_NO_DEVICE (100): ";
    assert!(text.starts_with(first), "{text}");
}

#[test]
fn all_of_it_is_there_as_json() {
    let json: serde_json::Value = serde_json::from_str(&Drivers::emulated().probe(&format!("--json {SMALL}"))).unwrap();
    assert_eq!(json["device"], "ftcache emulated device 0");
    assert!(json["seconds_per_step"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{json}");
    assert_eq!((&json["cuda"]["ordinal"], &json["cuda"]["batches"]), (&0.into(), &true.into()));
    let kernels = (&json["cuda"]["kernels"], &json["cuda"]["kernel_report"]);
    assert_eq!(kernels, (&true.into(), &"machine code for sm_90".into()));
    for (name, counts) in [("copies", [256, 4]), ("batches", [256, 4]), ("gathers", [256, 4]), ("contended", [256, 4])]
    {
        let points = json[name].as_array().unwrap();
        assert_eq!(points.iter().map(|point| point["count"].as_u64().unwrap()).collect::<Vec<_>>(), counts, "{name}");
        for point in points {
            assert!(point["bytes_per_second"].as_f64().unwrap() > 0.0, "{name}: {point}");
            assert!(point["returned_seconds"].as_f64() <= point["seconds"].as_f64(), "{name}: {point}");
        }
    }
    assert!(json["contended"][0]["read_bytes_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(json["reads"]["threads"], 2);
    assert_eq!(json["reads"]["bytes"], 1 << 20);
    assert!(json["reads"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    // The emulated driver keeps no time, so there may be no fit; but why is said.
    for fit in [&json["fit"]["copies"], &json["fit"]["batches"]] {
        assert!(fit["bytes_per_second"].is_f64() || fit["error"].is_string(), "{fit}");
    }
}

#[test]
fn rates_are_written_and_a_plan_takes_them() {
    let (drivers, model) = (Drivers::emulated(), model("fused_biases.gguf"));
    let (path, folder) = (model.to_str().unwrap(), model.parent().unwrap());
    let rates = folder.join("rates.json");
    let file = rates.to_str().unwrap();
    let small = format!("'{path}' --sizes 1KiB --bytes 256KiB --threads 2 --read-bytes 1MiB --rates '{file}'");
    let text = drivers.probe(&small);
    let text = without_chance(&text[text.find("\nrates of").unwrap()..]);
    insta::assert_snapshot!(masked(&text), @r#"

    rates of expert bytes link GB/s CPU GB/s link beside CPU beside
    gate_up=MXFP4 down=MXFP4 gate_up.bias=F32 down.bias=F32 10,816 # # # #

    written to PATH for device "ftcache emulated device 0"
    note: the CPU's rate of gate_up=MXFP4 down=MXFP4 gate_up.bias=F32 down.bias=F32 is that of memory reads by 2 threads: the most that its code could reach, not what it does
    "#);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&rates).unwrap()).unwrap();
    assert_eq!(json["device"], "ftcache emulated device 0");
    insta::assert_snapshot!(without_chance(json["note"].as_str().unwrap()), @"the CPU's rate of gate_up=MXFP4 down=MXFP4 gate_up.bias=F32 down.bias=F32 is that of memory reads by 2 threads: the most that its code could reach, not what it does");
    let inspected: serde_json::Value = serde_json::from_str(&done(&["inspect", path, "--json"])).unwrap();
    let points = json["points"].as_array().unwrap();
    for layer in inspected["layers"].as_array().unwrap() {
        let bytes: u64 = layer["row_bytes"].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).sum();
        let point = points.iter().find(|point| point["tag"] == layer["tag"] && point["expert_bytes"] == bytes).unwrap();
        assert_eq!(point["cpu_bytes_per_second"], points[0]["cpu_bytes_per_second"]);
        assert!(point["contended"]["cpu_bytes_per_second"].as_f64().unwrap() > 0.0);
    }
    // Which strategy is recommended is chance; of the three, each can be planned with these.
    let plan = ["plan", path, "--slots", "16", "--rates", file, "--strategy", "measured"];
    let planned = |device| ftcache(&[&plan[..], &["--device", device]].concat());
    let (text, success) = planned("ftcache emulated device 0");
    assert!(success && text.contains("\nstrategy         measured "), "{text}");
    let (text, success) = planned("another");
    assert!(!success && text.contains("the rates were measured on"), "{text}");

    // With code of its own the CPU's rate is what was given, and nothing is left to be noted.
    let tag = points[0]["tag"].as_str().unwrap();
    let cpu_rate = format!("{tag}=1.5e6");
    let arguments = [&["probe"], &words(&small)[..], &["--json", "--cpu-rate", &cpu_rate]].concat();
    let (text, success) = drivers.run(&arguments, &[]);
    assert!(success, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&rates).unwrap()).unwrap();
    assert_eq!(json["rates"], written);
    assert_eq!(written["points"][0]["cpu_bytes_per_second"], 1.5e6);
    assert!(!written["note"].as_str().is_some_and(|note| note.contains("memory reads")), "{written}");
    assert!(written["points"][0]["contended"]["cpu_bytes_per_second"].as_f64().unwrap() <= 1.5e6);
    // Nothing lies beside what was written.
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let (emulated, none, model) = (Drivers::emulated(), Drivers::none(), model("fused_biases.gguf"));
    let (path, rates) = (model.to_str().unwrap(), model.with_file_name("rates.json"));
    let file = rates.to_str().unwrap();
    let lines = [
        "--rates FILE",
        "MODEL --cpu-rate Q4_K=1e9",
        "MODEL --rates FILE --cpu-rate Q4_K",
        "MODEL --rates FILE --cpu-rate Q4_K=fast",
        "MODEL --rates FILE --cpu-rate IQ1_S=1e9",
        "MODEL --rates FILE --host",
        "MODEL --bytes 100",
        "--bytes 4095",
        "--sizes 1KiB,2KiB --bytes 1536",
        "--sizes 0",
        "--sizes 1KiBs",
        "--bytes 1000000TiB --read-bytes 1MiB",
        "--host --bytes 1000000TiB --read-bytes 1MiB",
        "--threads 0",
        "--threads 2 --read-bytes 8191",
        "--device 7",
        "--device 0 --host",
        // Told before anything is measured, which would be refused, too.
        "MODEL --sizes 1KiB --bytes 64KiB --threads 2 --read-bytes 8191 --rates /no/such/folder/rates.json",
    ];
    let texts = lines.map(|line| {
        let quoted = |path: &str| format!("'{path}'");
        let refused = emulated.refused(&line.replace("MODEL", &quoted(path)).replace("FILE", &quoted(file)));
        format!("{line}\n    {refused}")
    });
    let available = |text: String| match text.split_once("bytes of memory; ") {
        Some((before, after)) => format!("{before}bytes of memory; #{}", &after[after.find(" are").unwrap()..]),
        None => text,
    };
    insta::assert_snapshot!(texts.map(available).join("\n").replace(path, "PATH"), @r#"
    --rates FILE
        error: the following required arguments were not provided:
    MODEL --cpu-rate Q4_K=1e9
        error: the following required arguments were not provided:
    MODEL --rates FILE --cpu-rate Q4_K
        error: invalid value 'Q4_K' for '--cpu-rate <TAG=BYTES_PER_S>': "Q4_K" has no tag before a =
    MODEL --rates FILE --cpu-rate Q4_K=fast
        error: invalid value 'Q4_K=fast' for '--cpu-rate <TAG=BYTES_PER_S>': "fast" is not bytes a second such as 9.1e10 or 91GB
    MODEL --rates FILE --cpu-rate IQ1_S=1e9
        ftcache: a CPU rate for IQ1_S, which no layer has
    MODEL --rates FILE --host
        ftcache: PATH: not written, as host memory is no link: --host
    MODEL --bytes 100
        ftcache: copies of 256 bytes; --bytes 100 are to be moved
    --bytes 4095
        ftcache: copies of 4,096 bytes and more; --bytes 4,095 are to be moved
    --sizes 1KiB,2KiB --bytes 1536
        ftcache: copies of 2,048 bytes; --bytes 1,536 are to be moved
    --sizes 0
        ftcache: copies of 0 bytes; 67108864 are to be moved
    --sizes 1KiBs
        error: invalid value '1KiBs' for '--sizes <BYTES,BYTES>': "1KiBs" is not a byte count such as 12GiB, 12GB or 9059696640
    --bytes 1000000TiB --read-bytes 1MiB
        ftcache: measuring needs 1,099,511,627,777,048,576 bytes of memory; # are available
    --host --bytes 1000000TiB --read-bytes 1MiB
        ftcache: measuring needs 2,199,023,255,553,048,576 bytes of memory; # are available
    --threads 0
        error: invalid value '0' for '--threads <N>': 0 is not in 1..=4294967295
    --threads 2 --read-bytes 8191
        ftcache: reads of 8191 bytes by 2 threads; each needs 4096
    --device 7
        ftcache: no CUDA device 7: there are 1
    --device 0 --host
        error: the argument '--device <N>' cannot be used with '--host'
    MODEL --sizes 1KiB --bytes 64KiB --threads 2 --read-bytes 8191 --rates /no/such/folder/rates.json
        ftcache: PATH: No such file or directory (os error 2)
    "#);
    assert!(!rates.exists());
    // A number is a wish for a device of the driver's.
    let text = none.refused("--device 0");
    assert!(text.starts_with("ftcache: no CUDA driver: "), "{text}");
    let text = none.refused(&format!("'{path}' --rates '{file}'"));
    assert!(text.starts_with("ftcache: PATH: not written, as host memory is no link: no CUDA driver: "), "{text}");
    assert!(!rates.exists());
    std::fs::remove_dir_all(model.parent().unwrap()).unwrap();
}

#[test]
fn rates_that_cannot_be_put_in_place_are_shown() {
    let (drivers, model) = (Drivers::emulated(), model("fused_biases.gguf"));
    let folder = model.with_file_name("rates.json");
    std::fs::create_dir(&folder).unwrap();
    let small = "--sizes 1KiB --bytes 256KiB --threads 1 --read-bytes 1MiB --rates";
    let arguments = [&["probe", model.to_str().unwrap()], &words(small)[..], &[folder.to_str().unwrap()]].concat();
    let (text, success) = drivers.run(&arguments, &[]);
    assert!(!success && text.contains("\nrates of ") && !text.contains("written to"), "{text}");
    assert!(text.ends_with("\nftcache: PATH: Is a directory (os error 21)\n"), "{text}");
    // Nothing lies beside it.
    assert_eq!(std::fs::read_dir(folder.parent().unwrap()).unwrap().count(), 2);
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn sizes_above_what_is_moved_are_named() {
    let line = "--host --bytes 256KiB --threads 1 --read-bytes 1MiB";
    let text = Drivers::none().probe(line);
    let named = "\nleft out, as --bytes is 262,144: 1.00 MiB, 4.00 MiB, 16.00 MiB\n";
    assert!(text.contains(named), "{text}");
    let json: serde_json::Value = serde_json::from_str(&Drivers::none().probe(&format!("{line} --json"))).unwrap();
    assert_eq!(json["left_out"], serde_json::json!([1 << 20, 4 << 20, 16 << 20]));
}
