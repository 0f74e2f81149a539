//! `replay --rates`: how long steps wait, strategy by strategy. The times are those of the rates given, so they are the
//! same everywhere.

use ftcache_trace::{Form, Header, Phase, Segment, Shape, Trace};
use serde_json::Value;

use super::*;

/// A file beside others of its own folder.
fn beside(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A trace of these ids, `[token][layer][k]`.
fn trace(folder: &Path, layers: u32, experts: u32, top_k: u32, ids: Vec<u16>) -> String {
    let tokens = ids.len() as u64 / u64::from(layers * top_k);
    let shape = Shape { tokens, layers, top_k, experts };
    let header = Header::new("by hand", shape, vec![Segment::new("one", Phase::Decode, 0, tokens)]);
    let path = folder.join("trace.ftr");
    Trace::new(header, ids).unwrap().write(std::fs::File::create(&path).unwrap(), Form::Plain).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[arguments, &["--json"]].concat())).unwrap()
}

fn strategy<'a>(json: &'a Value, name: &str) -> &'a Value {
    let strategies = json["strategies"].as_array().unwrap();
    strategies.iter().find(|one| one["strategy"] == name).unwrap_or_else(|| panic!("no {name} in {json:#}"))
}

/// Experts of 1 MB; 1 ms over the link, 500 us on the CPU, of which the link leaves half; 10 us a step.
const HALF: &str = r#"{ "device": "card", "seconds_per_step": 1e-5, "points": [
    { "tag": "q", "expert_bytes": 1000000, "link_bytes_per_second": 1e9, "cpu_bytes_per_second": 2e9 } ] }"#;

/// One layer of four experts, top-2, three slots. Times in us, tokens in order.
///
/// *Plain*: 0 and 1 are missing, 10 + 2000; both hit, 0; 2 and 3 are missing, and 0 is the victim, 2010; 2 hits and 0 is
/// missing, 1010. Together 5030.
///
/// *Carry* and *min-wait* at 0.5: one of two is fetched, 10 + 1000, while the CPU reads 20 kB alone and 980 kB at what
/// the link leaves, 990 us: 1010. Then 1 alone is missing and stays on the CPU, 500. Then again 1010 for 2 and 3, and 0
/// and 2 hit. Together 2520.
///
/// *Prefer-fetch* and *up to 1*: as these, but 1 is fetched in the second token, 1010. Together 3030.
///
/// *Behind*: rows 0 and 1 leave with the step and are there after 2010 us; the CPU reads 20 kB alone, and the other
/// 1,980 kB at 1 GB/s, 1990. The second token finds both on their way: 20 us beside the last 20 kB, 1,980 kB alone,
/// 1010. The third has the first flight landed, and is as the first, 0 being the victim. In the fourth 2 is on its way
/// still, and 0 goes to the last slot: 20 us beside the second flight, 10 us alone, 1 ms beside the third, and what is
/// left of 2 MB, 960 kB, alone in 480 us: 1510. Together 6500.
#[test]
fn four_tokens_worked_out_by_hand() {
    let folder = folder("times");
    let trace = trace(&folder, 1, 4, 2, vec![0, 1, 1, 0, 2, 3, 0, 2]);
    let rates = beside(&folder, "rates.json", HALF);
    let arguments = ["replay", &trace, "--slots", "3", "--rates", &rates, "--expert-bytes", "q=1000000"];
    insta::assert_snapshot!(done(&arguments), @r#"
    by hand: 4 tokens, 1 layer of 4 experts, top-2
    3 slots in 1 pool for 4 experts; nothing is moved: times by rates of "card"

    rates of  measured bytes  layers  expert bytes  link GB/s  CPU GB/s  link beside  CPU beside
    q              1,000,000       0     1,000,000       1.00      2.00            -           -
    a step's copies take 10.00 us besides their bytes

    us a token, and what so many of the tokens wait at most; behind, rows of 4 steps at once
    strategy                        hit rate  rows fetched  rows on CPU    link     CPU   waits    50 %    95 %    99 %
    plain                            37.50 %             5            0  1257.5     0.0  1257.5  1010.0  2010.0  2010.0
    hybrid, min-wait at 0.5000       37.50 %             2            3   505.0   620.0   630.0   500.0  1010.0  1010.0
    hybrid, prefer-fetch at 0.5000   37.50 %             3            2   757.5   495.0   757.5  1010.0  1010.0  1010.0
    hybrid, carry at 0.5000          37.50 %             2            3   505.0   620.0   630.0   500.0  1010.0  1010.0
    hybrid, up to 1 misses           37.50 %             3            2   757.5   495.0   757.5  1010.0  1010.0  1010.0
    behind                            0.00 %             5            8  1257.5  1625.0  1625.0  1510.0  1990.0  1990.0
    all on the CPU                         -             0            8     0.0  1000.0  1000.0  1000.0  1000.0  1000.0

    fastest: hybrid, min-wait at 0.5000, 630.0 us a token; 1.00 times as fast as the next (hybrid, carry at 0.5000), 2.00 times as fast as plain
    "#);
    let json = json(&arguments);
    insta::assert_snapshot!(format!("{:#}", strategy(&json, "behind")), @r#"
    {
      "cpu_ns": 6500000,
      "fetched": 5,
      "hit_rate": 0.0,
      "hits": 0,
      "link_ns": 5030000,
      "misses": 8,
      "on_cpu": 8,
      "strategy": "behind",
      "token_waiting_ns": {
        "mean": 1625000.0,
        "p50": 1510000,
        "p95": 1990000,
        "p99": 1990000
      },
      "total_ns": 6500000,
      "waiting_ns": 6500000
    }
    "#);
    insta::assert_snapshot!(format!("{:#}", json["fastest"]), @r#"
    {
      "next": {
        "strategy": "hybrid, carry at 0.5000",
        "times": 1.0
      },
      "ns": 2520000,
      "plain_times": 1.996031746031746,
      "strategy": "hybrid, min-wait at 0.5000"
    }
    "#);
    let waits = |name: &str| strategy(&json, name)["waiting_ns"].as_u64().unwrap() / 1000;
    assert_eq!(
        [waits("plain"), waits("hybrid, carry at 0.5000"), waits("hybrid, min-wait at 0.5000")],
        [5030, 2520, 2520]
    );
    assert_eq!([waits("hybrid, prefer-fetch at 0.5000"), waits("hybrid, up to 1 misses")], [3030, 3030]);
    assert_eq!([waits("behind"), waits("all on the CPU")], [6500, 4000]);

    // With one flight at most, 0 is not fetched in the fourth token: the CPU reads 20 kB beside the second flight, and
    // the rest in 990 us.
    let one = self::json(&[&arguments[..], &["--flights", "1"]].concat());
    assert_eq!(strategy(&one, "behind")["waiting_ns"], 6_500_000 - 1_510_000 + 1_010_000);
    assert_eq!(strategy(&one, "behind")["fetched"], 4);
    // While the device computes, the last 20 kB arrive. So the second token hits, and the fourth has 2 there: for it the
    // CPU computes 0 alone, 20 kB of it before its row leaves and 980 kB beside it.
    let computing = self::json(&[&arguments[..], &["--compute-us", "20"]].concat());
    let behind = strategy(&computing, "behind");
    assert_eq!((&behind["waiting_ns"], &behind["hits"]), (&(1_990_000 + 1_990_000 + 990_000).into(), &3.into()));
    assert_eq!(strategy(&computing, "plain")["total_ns"], 5_030_000 + 4 * 20_000);
    // The rules that are asked for stand in place of all others, a fraction before that of the rates.
    let asked = self::json(&[&arguments[..], &["--fetch", "carry:1", "--fetch", "2"]].concat());
    let names: Vec<&str> =
        asked["strategies"].as_array().unwrap().iter().map(|one| one["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "hybrid, carry at 1.0000", "hybrid, up to 2 misses", "behind", "all on the CPU"]);
    for all in ["hybrid, carry at 1.0000", "hybrid, up to 2 misses"] {
        assert_eq!(strategy(&asked, all)["waiting_ns"], 5_030_000);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Layers of two widths, of which the CPU can compute the narrow ones: the wide are fetched whole. 470 slots hold the
/// ten experts of every layer, so the second token hits in all that were fetched.
#[test]
fn a_models_layers_have_their_own_bytes_and_rates() {
    let model = model("mixed_quant.gguf");
    let folder = model.parent().unwrap();
    let trace = trace(folder, 47, 256, 10, (0..2 * 47 * 10).map(|id| id % 10).collect());
    let rates = r#"{ "device": "card", "points": [
        { "tag": "BF16", "expert_bytes": 18874368, "link_bytes_per_second": 1e10 },
        { "tag": "Q4_K", "expert_bytes": 5308416, "link_bytes_per_second": 1e10, "cpu_bytes_per_second": 2e10 } ] }"#;
    let rates = beside(folder, "rates.json", rates);
    let path = model.to_str().unwrap();
    let arguments =
        ["replay", &trace, "--slots", "470", "--rates", &rates, "--model", path, "--fetch", "4", "--fetch", "carry"];
    insta::assert_snapshot!(done(&arguments), @r#"
    by hand: 2 tokens, 47 layers of 256 experts, top-10
    470 slots in 2 pools for 12,032 experts; nothing is moved: times by rates of "card"

    rates of  measured bytes                                               layers  expert bytes  link GB/s  CPU GB/s  link beside  CPU beside
    BF16          18,874,368                         0, 6, 12, 18, 24, 30, 36, 42    18,874,368      10.00         -            -           -
    Q4_K           5,308,416  1-5, 7-11, 13-17, 19-23, 25-29, 31-35, 37-41, 43-46     5,308,416      10.00     20.00            -           -
    PATH has no seconds_per_step: what a step's copies take besides their bytes is left out

    us a token, and what so many of the tokens wait at most; behind, rows of 4 steps at once
    strategy                 hit rate  rows fetched  rows on CPU      link       CPU     waits     50 %      95 %      99 %
    plain                     50.00 %           470            0  179011.6       0.0  179011.6      0.0  358023.2  358023.2
    hybrid, up to 4 misses    25.11 %           392          312  158308.8   72459.9  168660.2  82811.3  254509.1  254509.1
    hybrid, carry at 0.5000   29.26 %           353          312  147957.4   77635.6  153133.1  51757.1  254509.1  254509.1
    behind                    50.00 %           470          390  179011.6  103514.1  179011.6      0.0  358023.2  358023.2
    all on the CPU                  -             -            -         -         -         -        -         -         -

    fetched whole by every strategy, as the CPU's rate is not known: layers 0, 6, 12, 18, 24, 30, 36, 42
    not estimated: PATH: points[0], experts of 18874368 bytes of BF16, has no cpu_bytes_per_second
    fastest: hybrid, carry at 0.5000, 153133.1 us a token; 1.10 times as fast as the next (hybrid, up to 4 misses), 1.17 times as fast as plain
    "#);
    let json = json(&arguments);
    // Every expert of the first token at 10 GB/s, 8 layers of 10 wide and 39 of 10 narrow ones.
    let (wide, narrow) = (18_874_368_u64, 5_308_416_u64);
    assert_eq!(strategy(&json, "plain")["waiting_ns"], 8 * wide + 39 * narrow);
    // Four of ten narrow ones are fetched: link and CPU read one memory, all ten at 20 GB/s: half of what the link takes
    // for them. In the second token six are missing; four cross the link in 2,123,366.4 ns, and two are done before.
    assert_eq!(strategy(&json, "hybrid, up to 4 misses")["waiting_ns"], 8 * wide + 39 * narrow / 2 + 39 * 2_123_367);
    assert_eq!(json["fetched_whole"], serde_json::json!([0, 6, 12, 18, 24, 30, 36, 42]));
    assert_eq!((&json["points"][6], &json["points"][7]), (&0.into(), &1.into()));

    let short = self::trace(folder, 46, 256, 10, (0..46 * 10).map(|id| id % 10).collect());
    let refusal = refused(&["replay", &short, "--slots", "470", "--rates", &rates, "--model", path]);
    insta::assert_snapshot!(refusal, @"ftcache: PATH: the trace has 46 layers of 256 experts; the model has 47 of 256");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The residency is the one that `replay` drives with real bytes: the misses of `replay_of_a_trained_model_in_both_scopes`.
#[test]
fn plain_steps_miss_what_a_replay_of_real_bytes_misses() {
    let folder = folder("times");
    let trace = testdata("traces/tinymoe-8l64e.ftr.zst");
    let rates = beside(&folder, "rates.json", HALF);
    let arguments = ["replay", trace.to_str().unwrap(), "--slots", "128", "--scope", "per-layer", "--rates", &rates];
    let json = json(&[&arguments[..], &["--expert-bytes", "q=1000000", "--fetch", "min-wait"]].concat());
    let plain = strategy(&json, "plain");
    assert_eq!((&plain["misses"], &plain["fetched"], &plain["on_cpu"]), (&392_717.into(), &392_717.into(), &0.into()));
    // Every route of the trace; none is absent.
    assert_eq!(strategy(&json, "all on the CPU")["on_cpu"], 6 * 8 * 18_688);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn strategies_without_a_cpu_rate_are_named_and_not_left_out() {
    let folder = folder("times");
    let trace = trace(&folder, 1, 4, 2, vec![0, 1, 1, 0, 2, 3, 0, 2]);
    let rates = HALF.replace(r#", "cpu_bytes_per_second": 2e9"#, "").replace(r#""seconds_per_step": 1e-5, "#, "");
    let rates = beside(&folder, "rates.json", &rates);
    let arguments = ["replay", &trace, "--slots", "3", "--rates", &rates, "--expert-bytes", "q=2MB"];
    insta::assert_snapshot!(done(&arguments), @r#"
    by hand: 4 tokens, 1 layer of 4 experts, top-2
    3 slots in 1 pool for 4 experts; nothing is moved: times by rates of "card"

    rates of  measured bytes  layers  expert bytes  link GB/s  CPU GB/s  link beside  CPU beside
    q              1,000,000       0     2,000,000       1.00         -            -           -
    PATH has no seconds_per_step: what a step's copies take besides their bytes is left out

    us a token, and what so many of the tokens wait at most; behind, rows of 4 steps at once
    strategy                           hit rate  rows fetched  rows on CPU    link  CPU   waits    50 %    95 %    99 %
    plain                               37.50 %             5            0  2500.0  0.0  2500.0  2000.0  4000.0  4000.0
    hybrid, min-wait by the rates             -             -            -       -    -       -       -       -       -
    hybrid, prefer-fetch by the rates         -             -            -       -    -       -       -       -       -
    hybrid, carry by the rates                -             -            -       -    -       -       -       -       -
    hybrid, up to 1 misses                    -             -            -       -    -       -       -       -       -
    behind                                    -             -            -       -    -       -       -       -       -
    all on the CPU                            -             -            -       -    -       -       -       -       -

    not estimated: PATH: points[0], experts of 1000000 bytes of q, has no cpu_bytes_per_second
    fastest: plain, 2500.0 us a token
    "#);
    let json = json(&arguments);
    insta::assert_snapshot!(strategy(&json, "behind"), @r#"{"not_estimated":"PATH: points[0], experts of 1000000 bytes of q, has no cpu_bytes_per_second","strategy":"behind"}"#);
    // What was asked for is refused.
    insta::assert_snapshot!(refused(&[&arguments[..], &["--fetch", "carry"]].concat()), @"ftcache: PATH: points[0], experts of 1000000 bytes of q, has no cpu_bytes_per_second; --fetch is for steps that leave some to it");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn times_that_cannot_be_told_are_refused() {
    let folder = folder("times");
    let trace = trace(&folder, 1, 4, 2, vec![0, 1, 1, 0]);
    let rates = beside(&folder, "rates.json", HALF);
    let bad = beside(&folder, "bad.json", &HALF.replace("1e9", "-1e9"));
    let fast = beside(&folder, "fast.json", &HALF.replace("2e9", "2e15"));
    let with = |rest: &str| {
        // Parted before there are paths in it, which may have blanks.
        let rest = rest.split(' ').map(|word| match word {
            "FAST" => fast.as_str(),
            "BAD" => bad.as_str(),
            "RATES" => rates.as_str(),
            word => word,
        });
        let arguments: Vec<&str> = ["replay", &trace, "--slots", "3"].into_iter().chain(rest).collect();
        let text = refused(&arguments);
        text.lines().next().unwrap().to_owned()
    };
    let refusals = [
        with("--rates RATES"),
        with("--rates /no/such/rates.json --expert-bytes q=1000000"),
        with("--rates BAD --expert-bytes q=1000000"),
        with("--rates FAST --expert-bytes q=1000000"),
        with("--rates RATES --expert-bytes 1000000"),
        with("--rates RATES --expert-bytes q=2000001"),
        with("--rates RATES --expert-bytes q=0"),
        with("--rates RATES --expert-bytes q=1000000 --model x.gguf"),
        with("--rates RATES --expert-bytes q=1000000 --device 0"),
        with("--rates RATES --expert-bytes q=1000000 --row-bytes 4096"),
        with("--rates RATES --expert-bytes q=1000000 --per-layer"),
        with("--rates RATES --expert-bytes q=1000000 --flights 0"),
        with("--rates RATES --expert-bytes q=1000000 --fetch some"),
        with("--compute-us 10"),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    ftcache: --rates needs the bytes of experts: --model or --expert-bytes
    ftcache: PATH: No such file or directory (os error 2)
    ftcache: PATH: the rates' point 0 has a link rate of -1000000000 bytes a second
    ftcache: PATH: layer 0: a CPU rate of 2000000000000000 bytes a second; times are counted from 1 to 17592186044416
    ftcache: PATH: layer 0: no point for experts of 1000000 bytes without a tag; it has 1000000 bytes of q
    ftcache: PATH: layer 0: no point for experts of 2000001 bytes of q; it has 1000000 bytes of q
    error: invalid value 'q=0' for '--expert-bytes <[TAG=]BYTES>': an expert of 0 bytes
    error: the argument '--expert-bytes <[TAG=]BYTES>' cannot be used with '--model <MODEL>'
    error: the argument '--rates <FILE>' cannot be used with '--device <N>'
    error: the argument '--rates <FILE>' cannot be used with '--row-bytes <BYTES>'
    error: the argument '--rates <FILE>' cannot be used with '--per-layer'
    error: invalid value '0' for '--flights <N>': 0 is not in 1..=4294967295
    error: invalid value 'some' for '--fetch <RULE>': "some" is not a number of misses, min-wait, prefer-fetch or carry, with a fraction or not
    error: the following required arguments were not provided:
    "#);
    insta::assert_snapshot!(refused(&["replay", &trace, "--slots", "1", "--rates", &rates, "--expert-bytes", "q=1000000"]), @"ftcache: PATH: the pools need at least 2 slots; 1 are given");
    std::fs::remove_dir_all(folder).unwrap();
}
