//! `plan`: whole configurations, as tables and as JSON.

use super::*;

#[test]
fn a_mixed_quant_model_gets_988_and_202_slots() {
    let path = model("mixed_quant.gguf");
    let text = path.to_str().unwrap();
    insta::assert_snapshot!(done(&["plan", text, "--mem", "480*18874368", "--requests", "4"]), @"
    pool  quantisation  layers  slots  of experts  stable  slot bytes     pool bytes
    0             BF16       8    202       9.9 %       0  18,874,368  3,812,623,872
    1             Q4_K      39    988       9.9 %     796   5,308,416  5,244,716,544

    pool 0: blocks 1, 7, 13, 19, 25, 31, 37, 43
    pool 1: blocks 2-6, 8-12, 14-18, 20-24, 26-30, 32-36, 38-42, 44-47

    setting          asked for               in effect               why
    scope            unified                 unified
    budget           9059696640 bytes        9057340416 bytes        no pool's next slot fits
    split            equal                   equal
    requests         4                       4
    batch sizes      none                    none
    staging          borrowed                borrowed
    overlap          on                      off                     two whole layers need 3221226496 bytes of bank 0 to be staged; its arena has 3019113472
    small rows       under 262144 bytes      under 262144 bytes
    strategy         offload                 offload
    fetch            not said                every miss              strategy offload fetches all
    fetch order      recency                 recency
    cpu layers       none                    none
    resident layers  none                    none
    admission        host                    host
    eviction         lru                     lru
    slot limit       none                    none
    alignment        1 bytes                 1 bytes
    slot pad         0 bytes                 0 bytes
    tail pad         a row, up to 512 bytes  a row, up to 512 bytes

    set aside on the device                    bytes
    arenas                             9,057,340,416  8.44 GiB
      of these, pads                           3,072  3.00 KiB
    staging, borrowed from the arenas              0       0 B
    layers as a whole                              0       0 B
    tables                                         0       0 B
    all of it                          9,057,340,416  8.44 GiB

    1,190 slots; one token routes to 470 experts, 3.33 GiB (3,580,231,680 bytes)
    up to 20 requests decoded at once
    prefill chunks of up to 20 tokens are admitted on demand
    141 ranges of the host to pin, 85.36 GiB (91,653,931,008 bytes)
    note: pool 0 has 202 slots; one decode of all its layers routes to 320: with the same experts each time and every miss fetched, LRU hits 0 of them
    note: pool 1 has 988 slots; one decode of all its layers routes to 1560: with the same experts each time and every miss fetched, LRU hits 0 of them
    ");
    let json = done(&["plan", text, "--mem", "9059696640", "--tail-pad", "0", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let slots: Vec<_> = json["pools"].as_array().unwrap().iter().map(|pool| pool["slots"].as_u64().unwrap()).collect();
    assert_eq!(slots, [202, 988]);
    assert_eq!((json["pad_bytes"].as_u64(), json["request_limit"].as_u64()), (Some(0), Some(20)));
    assert_eq!(json["total_bytes"], 202 * 18_874_368_u64 + 988 * 5_308_416);

    let refusals = [
        &["--mem", "200MB"][..],
        &["--mem", "1GiB"],
        &["--slots", "12033"],
        &["--scope", "per-layer", "--slots", "100", "--requests", "2"],
        &["--mem", "12GiBs"],
        &["--mem", "1.5*free"],
        &["--mem", "rest"],
        &["--mem", "rest", "--free", "8GiB", "--reserve", "weights=8.2GiB"],
        &["--mem", "12GiB", "--free", "14GiB", "--reserve", "3GiB"],
        &["--mem", "12GiB", "--resident", "1-6"],
        &["--mem", "12GiB", "--resident", "0-2"],
        &["--mem", "12GiB", "--cpu-layers", "3,8,99"],
        &["--mem", "12GiB", "--cpu-layers", "some"],
        &["--mem", "12GiB", "--cpu-layers", "auto", "--pinnable", "1GiB", "--cpu-code", "BF16"],
        &["--mem", "12GiB", "--slot-limit", "Q5_K=992"],
        &["--mem", "12GiB", "--slot-limit", "9"],
        &["--mem", "12GiB", "--strategy", "cpu"],
        &["--mem", "12GiB", "--strategy", "hybrid"],
        &["--mem", "12GiB", "--strategy", "measured"],
        &["--mem", "12GiB", "--fetch", "carry:0.3"],
        &["--mem", "12GiB", "--fetch", "carry:3"],
        &["--mem", "12GiB", "--rank", "4/4"],
        &["--mem", "12GiB", "--rank", "0/7", "--cut", "rows"],
        &["--mem", "12GiB", "--rank", "0/2", "--cut", "rows", "--whole-bank", "sideways"],
    ];
    let first_line = |arguments: &&[&str]| {
        let text = refused(&[&["plan", text], *arguments].concat());
        format!("{}\n    {}", arguments.join(" "), text.lines().next().unwrap())
    };
    insta::assert_snapshot!(refusals.iter().map(first_line).collect::<Vec<_>>().join("\n"), @r#"
    --mem 200MB
        ftcache: PATH: the pools need at least 241830912 bytes; 200000000 are given; 4835970048 bytes would do
    --mem 1GiB
        ftcache: PATH: one whole layer needs 1610613248 bytes of bank 0 to be staged; its arena has 356254720; 4835970048 bytes would do
    --slots 12033
        ftcache: PATH: the pools can use 12032 slots; 12033 are given
    --scope per-layer --slots 100 --requests 2
        ftcache: PATH: the pools need at least 940 slots; 100 are given
    --mem 12GiBs
        error: invalid value '12GiBs' for '--mem <BUDGET>': "12GiBs" is not a byte count such as 12GiB, 12GB or 9059696640
    --mem 1.5*free
        error: invalid value '1.5*free' for '--mem <BUDGET>': "1.5*free" is over the whole; a share is at most 1
    --mem rest
        ftcache: PATH: a budget of rest: how much memory is free is not known
    --mem rest --free 8GiB --reserve weights=8.2GiB
        ftcache: PATH: the reserves alone need 8804682956 bytes (weights 8804682956); 8589934592 are free
    --mem 12GiB --free 14GiB --reserve 3GiB
        ftcache: PATH: 12883528704 bytes are to be set aside beside reserves of 3221225472; 15032385536 are free
    --mem 12GiB --resident 1-6
        ftcache: PATH: one whole layer needs 1610613248 bytes of bank 0 to be staged; its arena has 418579456; 16462589952 bytes would do; with no layer on the device as a whole, 36.0 slots a layer
    --mem 12GiB --resident 0-2
        ftcache: PATH: block 0 has no experts here; blocks 1-47 have
    --mem 12GiB --cpu-layers 3,8,99
        ftcache: PATH: block 99 has no experts here; blocks 1-47 have
    --mem 12GiB --cpu-layers some
        error: invalid value 'some' for '--cpu-layers <LAYERS>': "some" is not CPU layers such as 3,7,11 or 3, (these), 8 (so many), 0.5 (a share), auto or none
    --mem 12GiB --cpu-layers auto --pinnable 1GiB --cpu-code BF16
        ftcache: PATH: layers that cannot be left to the CPU have 52999225344 bytes; 1073741824 can be pinned
    --mem 12GiB --slot-limit Q5_K=992
        ftcache: PATH: a slot limit for Q5_K, which no layer has
    --mem 12GiB --slot-limit 9
        ftcache: PATH: pool 0 needs at least 10 slots; at most 9 are allowed
    --mem 12GiB --strategy cpu
        ftcache: PATH: slots that only stage prefill make 1 pool; scope and quantisations make 2
    --mem 12GiB --strategy hybrid
        ftcache: PATH: hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own
    --mem 12GiB --strategy measured
        ftcache: PATH: hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own
    --mem 12GiB --fetch carry:0.3
        ftcache: PATH: fetch would have no effect: offload fetches every miss
    --mem 12GiB --fetch carry:3
        error: invalid value 'carry:3' for '--fetch <RULE>': a fraction of 3 misses; it is at most 1
    --mem 12GiB --rank 4/4
        ftcache: PATH: no rank 4 of 4; they count from 0
    --mem 12GiB --rank 0/7 --cut rows
        ftcache: PATH: block 1 bank gate: rows of 6291456 bytes cannot be cut into 7 parts of whole BF16 blocks of 2 bytes; --whole-bank gate leaves them whole
    --mem 12GiB --rank 0/2 --cut rows --whole-bank sideways
        ftcache: PATH: no bank "sideways": the model has gate, up, down
    "#);
    assert!(refused(&["plan", text]).contains("--mem <BUDGET>"));
    assert!(refused(&["plan", text, "--mem", "1GiB", "--slots", "9"]).contains("cannot be used with"));
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

/// A file with this text beside a model.
fn beside(model: &Path, name: &str, text: &str) -> String {
    let path = model.with_file_name(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_whole_configuration_is_planned() {
    let path = model("mixed_quant.gguf");
    let rates = r#"{ "device": "card", "points": [
        { "tag": "Q4_K", "expert_bytes": 5308416, "link_bytes_per_second": 1.23e10, "cpu_bytes_per_second": 5.62e10 },
        { "tag": "BF16", "expert_bytes": 18874368, "link_bytes_per_second": 1.23e10 } ] }"#;
    let rates = beside(&path, "rates.json", rates);
    let flags = "--mem 0.3*rest --free 24GiB --reserve kv=4GiB --reserve 1GiB --staging dedicated --requests 64 \
                 --lower-requests --batch-sizes 1,8,16,32,64 --device card --strategy measured --cpu-code Q4_K \
                 --cpu-layers 2 --slot-limit Q4_K=992 --admission device";
    let arguments = [&["plan", path.to_str().unwrap(), "--rates", &rates][..], &flags.split(' ').collect::<Vec<_>>()];
    insta::assert_snapshot!(done(&arguments.concat()), @"
    pool  quantisation  layers  slots  of experts  stable  slot bytes     pool bytes
    0             BF16       8    190       9.3 %     190  18,874,368  3,586,131,456
    1             Q4_K      37    204       2.2 %     204   5,308,416  1,082,918,400

    pool 0: blocks 1, 7, 13, 19, 25, 31, 37, 43
    pool 1: blocks 3-6, 8-12, 14-18, 20-24, 26-30, 32-36, 38-42, 44-46
    no slots: blocks 2, 47 (decodes on the CPU)

    setting          asked for               in effect                         why
    scope            unified                 unified
    budget           0.3*rest                4669049856 bytes                  25769803776 bytes are free, 5368709120 reserved
    split            equal                   equal
    requests         64                      19                                the pools need at least 6190802432 bytes; 4670653980 are given
    batch sizes      1,8,16,32,64            1,8,16                            the smallest pool serves 19 requests at once
    staging          dedicated               dedicated
    overlap          on                      off                               with two whole layers, the pools need at least 4594736972 bytes; 3221091350 are given
    small rows       under 262144 bytes      under 262144 bytes
    strategy         measured                hybrid                            recommended: for block 1 offload, the CPU has no code for it; for block 3 hybrid, by rates measured alone
    fetch            not said                carry at 1.0000; carry at 0.2189
    fetch order      recency                 recency
    cpu layers       2                       blocks 2, 47                      taken from both ends
    resident layers  none                    none
    admission        device                  device
    eviction         lru                     lru
    slot limit       Q4_K=992                Q4_K=992
    alignment        1 bytes                 1 bytes
    slot pad         0 bytes                 0 bytes
    tail pad         a row, up to 512 bytes  a row, up to 512 bytes

    set aside on the device           bytes
    arenas                    4,669,049,856    4.35 GiB
      of these, pads                  3,072    3.00 KiB
    staging                   4,831,839,744    4.50 GiB
    layers as a whole                     0         0 B
    tables                          413,434  403.74 KiB
    all of it                 9,501,303,034    8.85 GiB
    reserved: kv              4,294,967,296    4.00 GiB
    reserved: engine          1,073,741,824    1.00 GiB
    left of what is free     10,899,791,622   10.15 GiB

    394 slots; one token routes to 470 experts, 3.33 GiB (3,580,231,680 bytes)
    up to 19 requests decoded at once
    prefill chunks of up to 18 tokens are admitted on demand
    135 ranges of the host to pin, 82.83 GiB (88,936,022,016 bytes)
    note: pool 0 has 190 slots; one decode of all its layers routes to 1520: with the same experts each time and every miss fetched, LRU hits 0 of them
    note: pool 1 has 204 slots; one decode of all its layers routes to 7030: with the same experts each time and every miss fetched, LRU hits 0 of them
    ");
    let other = refused(&["plan", path.to_str().unwrap(), "--slots", "2000", "--rates", &rates, "--device", "another"]);
    insta::assert_snapshot!(other, @r#"ftcache: PATH: the rates were measured on "card"; this device is "another""#);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

/// B27: layers on the device as a whole, or more slots for all, at the same memory.
#[test]
fn layers_on_the_device_are_compared_with_slots() {
    let path = model("mixed_quant.gguf");
    let text = path.to_str().unwrap();
    let plan = |budget: &[&str]| -> (serde_json::Value, serde_json::Value) {
        let arguments = [&["plan", text, "--json", "--resident", "1-6"], budget].concat();
        let with: serde_json::Value = serde_json::from_str(&done(&arguments)).unwrap();
        let bytes = with["total_bytes"].as_u64().unwrap() + with["set_aside"]["resident"].as_u64().unwrap();
        let without = done(&["plan", text, "--json", "--mem", &bytes.to_string()]);
        (with, serde_json::from_str(&without).unwrap())
    };
    for budget in [&["--slots", "1200"][..], &["--mem", "30GiB"]] {
        let (with, without) = plan(budget);
        assert_eq!(with["declined"].as_array().unwrap().len(), 6);
        assert_eq!(with["host"]["droppable_bytes"], 256 * (18_874_368_u64 + 5 * 5_308_416));
        if budget[0] == "--slots" {
            assert_eq!(with["all_in_slots"]["slots"], without["slots"]);
        }
        assert!(with["all_in_slots"]["slots"].as_u64() > with["slots"].as_u64());
    }
    let table = done(&["plan", text, "--slots", "1200", "--resident", "1-6"]);
    assert!(
        table.ends_with("29.3 slots a layer; with no layer on the device as a whole, 58.0 slots a layer\n"),
        "{table}"
    );
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_plan_as_json() {
    let path = model("split-00001-of-00003.gguf");
    for other in ["split-00002-of-00003.gguf", "split-00003-of-00003.gguf"] {
        let shard = model(other);
        std::fs::rename(&shard, path.with_file_name(other)).unwrap();
        std::fs::remove_dir_all(shard.parent().unwrap()).unwrap();
    }
    insta::assert_snapshot!(done(&["plan", path.to_str().unwrap(), "--mem", "40MB", "--free", "64MB", "--json"]), @r#"
    {
      "batch_sizes": [],
      "declined": [],
      "free_bytes": 64000000,
      "host": {
        "droppable_bytes": 0,
        "pinned_bytes": 8159232,
        "pinned_ranges": 12
      },
      "left_bytes": 55839232,
      "notes": [
        "every pool has the most slots it can use: 31839232 bytes of the budget stay unused"
      ],
      "on_demand_tokens": 3,
      "pad_bytes": 1536,
      "pools": [
        {
          "banks": {
            "down": {
              "offset": 0,
              "row_bytes": 107520,
              "stride": 107520,
              "tail_pad_bytes": 512
            },
            "gate": {
              "offset": 0,
              "row_bytes": 73728,
              "stride": 73728,
              "tail_pad_bytes": 512
            },
            "up": {
              "offset": 0,
              "row_bytes": 73728,
              "stride": 73728,
              "tail_pad_bytes": 512
            }
          },
          "blocks": [
            0,
            1,
            2,
            3
          ],
          "fetch": null,
          "max_slots": 32,
          "min_slots": 2,
          "pool_bytes": 8160768,
          "slot_bytes": 254976,
          "slots": 32,
          "stable_from": 16,
          "tag": "gate=Q4_K up=Q4_K down=Q6_K"
        }
      ],
      "rank": {
        "blocks": [
          0,
          1,
          2,
          3
        ],
        "cut": null,
        "experts": [
          0,
          8
        ],
        "rank": null,
        "ranks": null
      },
      "request_limit": null,
      "requests": 1,
      "reserved_bytes": 0,
      "reserves": [],
      "set_aside": {
        "arenas": {
          "down": 3441152,
          "gate": 2359808,
          "up": 2359808
        },
        "resident": 0,
        "staging": {
          "down": 0,
          "gate": 0,
          "up": 0
        },
        "tables": 0,
        "total": 8160768
      },
      "settings": {
        "admission": {
          "asked": "host",
          "effective": "host",
          "reason": null
        },
        "alignment": {
          "asked": "1 bytes",
          "effective": "1 bytes",
          "reason": null
        },
        "batch_sizes": {
          "asked": "none",
          "effective": "none",
          "reason": null
        },
        "budget": {
          "asked": "40000000 bytes",
          "effective": "8160768 bytes",
          "reason": "every pool has the most slots it can use"
        },
        "cpu_layers": {
          "asked": "none",
          "effective": "none",
          "reason": null
        },
        "eviction": {
          "asked": "lru",
          "effective": "lru",
          "reason": null
        },
        "fetch": {
          "asked": "not said",
          "effective": "every miss",
          "reason": "strategy offload fetches all"
        },
        "fetch_order": {
          "asked": "recency",
          "effective": "recency",
          "reason": null
        },
        "overlap": {
          "asked": "on",
          "effective": "on",
          "reason": null
        },
        "requests": {
          "asked": "1",
          "effective": "1",
          "reason": null
        },
        "resident_layers": {
          "asked": "none",
          "effective": "none",
          "reason": null
        },
        "scope": {
          "asked": "unified",
          "effective": "unified",
          "reason": null
        },
        "slot_limit": {
          "asked": "none",
          "effective": "none",
          "reason": null
        },
        "slot_pad": {
          "asked": "0 bytes",
          "effective": "0 bytes",
          "reason": null
        },
        "small_rows": {
          "asked": "under 262144 bytes",
          "effective": "under 262144 bytes",
          "reason": null
        },
        "split": {
          "asked": "equal",
          "effective": "equal",
          "reason": null
        },
        "staging": {
          "asked": "borrowed",
          "effective": "borrowed",
          "reason": null
        },
        "strategy": {
          "asked": "offload",
          "effective": "offload",
          "reason": null
        },
        "tail_pad": {
          "asked": "a row, up to 512 bytes",
          "effective": "a row, up to 512 bytes",
          "reason": null
        }
      },
      "slots": 32,
      "staging": {
        "borrowed": true,
        "buffer_stride": {
          "down": 860160,
          "gate": 589824,
          "up": 589824
        },
        "buffers": 2,
        "invalidates": [
          [
            {
              "count": 8,
              "first": 0,
              "pool": 0
            }
          ],
          [
            {
              "count": 8,
              "first": 8,
              "pool": 0
            }
          ]
        ],
        "stable_slots": 16,
        "stage_bytes": {
          "down": 860160,
          "gate": 589824,
          "up": 589824
        },
        "tail_pad_bytes": {
          "down": 512,
          "gate": 512,
          "up": 512
        }
      },
      "total_bytes": 8160768
    }
    "#);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn slots_are_divided_by_a_profile() {
    let path = model("mixed_quant.gguf");
    let text = path.to_str().unwrap();
    // The experts of layer 0 are used evenly, of the others four more than the rest.
    let row =
        |layer: usize| (0..256).map(|e| if layer > 0 && e < 4 { "99" } else { "1" }).collect::<Vec<_>>().join(",");
    let rows: Vec<String> = (0..47).map(|layer| format!("[{}]", row(layer))).collect();
    let profile = format!(r#"{{ "model": "mixed_quant", "expert_counts": [{}] }}"#, rows.join(","));
    let profile = beside(&path, "profile.json", &profile);
    let plan = |more: &[&str]| {
        let arguments = [&["plan", text, "--slots", "600", "--scope", "per-layer", "--staging", "none"], more].concat();
        done(&[&arguments[..], &["--json"]].concat()).parse::<serde_json::Value>().unwrap()
    };
    let slots = |json: &serde_json::Value, pool: usize| json["pools"][pool]["slots"].as_u64().unwrap();
    let (equal, by_use) = (plan(&[]), plan(&["--profile", &profile]));
    assert_eq!((slots(&equal, 0), slots(&equal, 1), slots(&equal, 46)), (13, 13, 12));
    // Every minimum covers the four; then each expert of layer 0 has the larger share.
    assert_eq!((slots(&by_use, 0), slots(&by_use, 1), slots(&by_use, 46)), (140, 10, 10));
    assert_eq!(by_use["settings"]["split"]["effective"], "profile");
    assert_eq!(by_use["notes"].as_array().unwrap().len(), 0);

    let renamed = std::fs::read_to_string(&profile).unwrap().replace("mixed_quant", "another");
    let renamed = beside(&path, "renamed.json", &renamed);
    assert!(plan(&["--profile", &renamed])["notes"][0].as_str().unwrap().contains(r#""another"; this model is "#));
    let short = beside(&path, "short.json", r#"{ "model": "mixed_quant", "expert_counts": [[1, 2], [3, 4]] }"#);
    let missing = path.with_file_name("missing.json").to_str().unwrap().to_owned();
    // B20: it is read before the model is.
    let early = refused(&["plan", "no-such-model.gguf", "--slots", "600", "--profile", "no-such-profile.json"]);
    assert!(early.starts_with("ftcache: no-such-profile.json: "), "{early}");
    let refusals = [&["--profile", &renamed, "--same-model"][..], &["--profile", &short], &["--profile", &missing]];
    let texts = refusals.map(|more| refused(&[&["plan", text, "--slots", "600", "--staging", "none"], more].concat()));
    insta::assert_snapshot!(texts.concat(), @r#"
    ftcache: PATH: the profile was counted on "another"; this model is "mixed_quant"
    ftcache: PATH: the profile has 2 layers of 2 experts; the model has 47 of 256
    ftcache: PATH: No such file or directory (os error 2)
    "#);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
