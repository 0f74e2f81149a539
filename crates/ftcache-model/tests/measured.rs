//! Profiles and rates as files: what is read, and what is refused before it is used.

use std::path::Path;

use ftcache_model::measured::{parse_profile, parse_rates, read_profile};
use ftcache_policy::LayerId;

const PROFILE: &str = r#"{ "model": "tiny", "counted": "2026-11-29", "expert_counts": [[3, 1], [0, 2.5]] }"#;

const RATES: &str = r#"{ "device": "a card", "points": [
    { "tag": "Q4_K", "expert_bytes": 100, "link_bytes_per_second": 3e10, "cpu_bytes_per_second": 9e10,
      "contended": { "link_bytes_per_second": 2e10, "cpu_bytes_per_second": 6e10 } },
    { "tag": "MXFP4", "expert_bytes": 90, "link_bytes_per_second": 3e10 } ] }"#;

fn profile(json: &str) -> Result<ftcache_policy::Profile, String> {
    parse_profile(Path::new("p.json"), json.as_bytes()).map_err(|error| error.to_string())
}

fn rates(json: &str) -> Result<ftcache_policy::Rates, String> {
    parse_rates(Path::new("r.json"), json.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_profile_is_read() {
    let profile = profile(PROFILE).unwrap();
    assert_eq!((profile.model_name(), profile.layer_count(), profile.expert_count()), ("tiny", 2, 2));
    assert_eq!(profile.shares(LayerId::new(0)), [0.75, 0.25]);
    assert_eq!(profile.shares(LayerId::new(1)), [0.0, 1.0]);
}

#[test]
fn rates_are_read() {
    let rates = rates(RATES).unwrap();
    assert_eq!((rates.device(), rates.points().len()), ("a card", 2));
    let [first, second] = rates.points() else { panic!("two points") };
    assert_eq!(
        (first.tag.as_slice(), first.expert_bytes, first.link, first.cpu),
        (&b"Q4_K"[..], 100, 3e10, Some(9e10))
    );
    assert_eq!(first.contended.map(|pair| (pair.link, pair.cpu)), Some((2e10, 6e10)));
    assert_eq!((second.cpu, second.contended), (None, None));
}

#[test]
fn what_a_step_takes_may_stand_beside_the_points() {
    let with =
        |seconds| rates(&RATES.replacen("\"points\"", &format!("\"seconds_per_step\": {seconds}, \"points\""), 1));
    assert_eq!(rates(RATES).unwrap().seconds_per_step(), None);
    assert_eq!(with("8.5e-6").unwrap().seconds_per_step(), Some(8.5e-6));
    assert_eq!(with("0").unwrap().points(), rates(RATES).unwrap().points());
    insta::assert_snapshot!(with("-1").unwrap_err(), @"r.json: the rates have -1 seconds a step besides its bytes");
    insta::assert_snapshot!(with("\"8us\"").unwrap_err(), @r#"r.json: invalid type: string "8us", expected f64 at line 1 column 47"#);
}

#[test]
fn a_note_beside_rates_is_for_people() {
    let noted = RATES.replacen("\"points\"", "\"note\": \"cpu rates are those of memory reads\", \"points\"", 1);
    assert_eq!(rates(&noted), rates(RATES));
    let misspelt = rates(&noted.replacen("\"note\"", "\"notes\"", 1)).unwrap_err();
    insta::assert_snapshot!(misspelt, @"r.json: unknown field `notes`, expected one of `device`, `note`, `seconds_per_step`, `points` at line 1 column 29");
    let number = rates(&noted.replacen("\"cpu rates are those of memory reads\"", "7", 1)).unwrap_err();
    insta::assert_snapshot!(number, @"r.json: invalid type: integer `7`, expected a string at line 1 column 31");
}

#[test]
fn what_is_no_profile_is_refused() {
    let counts = |counts: &str| profile(&format!(r#"{{ "model": "m", "expert_counts": {counts} }}"#)).unwrap_err();
    let mut errors = vec![
        profile("").unwrap_err(),
        profile(r#"{ "expert_counts": [[1]] }"#).unwrap_err(),
        profile(r#"{ "model": "m" }"#).unwrap_err(),
        profile(r#"{ "model": 7, "expert_counts": [[1]] }"#).unwrap_err(),
    ];
    for text in
        ["[]", "[[]]", "[[1, 2], [3]]", "[[1, NaN]]", "[[1, -2]]", "[[1, null]]", "[[1e999]]", "[[1, 2], [0, 0]]"]
    {
        errors.push(counts(text));
    }
    errors.push(counts("[[1e308, 1e308]]"));
    insta::assert_snapshot!(errors.join("\n"), @"
    p.json: EOF while parsing a value at line 1 column 0
    p.json: missing field `model` at line 1 column 26
    p.json: missing field `expert_counts` at line 1 column 16
    p.json: invalid type: integer `7`, expected a string at line 1 column 12
    p.json: the profile counts no expert
    p.json: the profile counts no expert
    p.json: the profile counts 1 experts in layer 1 and 2 in layer 0
    p.json: expected value at line 1 column 39
    p.json: the profile's layer 0 expert 1 has a count of -2
    p.json: invalid type: null, expected f64 at line 1 column 42
    p.json: number out of range at line 1 column 40
    p.json: the profile's layer 1 was never used: all counts are 0
    p.json: the profile's layer 0 has counts too large to be summed
    ");
    let missing = read_profile(Path::new("no/such.json")).unwrap_err().to_string();
    assert!(missing.starts_with("no/such.json: "), "{missing}");
}

#[test]
fn rates_that_cannot_be_are_refused() {
    let point = |point: &str| rates(&format!(r#"{{ "device": "d", "points": [{point}] }}"#)).unwrap_err();
    let errors = [
        rates(r#"{ "points": [] }"#).unwrap_err(),
        rates(r#"{ "device": "d", "points": [] }"#).unwrap_err(),
        point(r#"{ "tag": "q", "expert_bytes": 0, "link_bytes_per_second": 1 }"#),
        point(r#"{ "tag": "q", "expert_bytes": -1, "link_bytes_per_second": 1 }"#),
        point(r#"{ "tag": "q", "expert_bytes": 1, "link_bytes_per_second": 0 }"#),
        point(r#"{ "tag": "q", "expert_bytes": 1, "link_bytes_per_second": 1, "cpu_bytes_per_second": -3 }"#),
        point(r#"{ "tag": "q", "expert_bytes": 1, "link_bytes_per_second": 1, "cpu_bytes_per_secnd": 3 }"#),
        point(
            r#"{ "tag": "q", "expert_bytes": 1, "link_bytes_per_second": 1,
                 "contended": { "link_bytes_per_second": 0, "cpu_bytes_per_second": 1 } }"#,
        ),
    ];
    insta::assert_snapshot!(errors.join("\n"), @"
    r.json: missing field `device` at line 1 column 16
    r.json: the rates have no measured point
    r.json: the rates' point 0 is of experts of 0 bytes
    r.json: invalid value: integer `-1`, expected u64 at line 1 column 60
    r.json: the rates' point 0 has a link rate of 0 bytes a second
    r.json: the rates' point 0 has a cpu rate of -3 bytes a second
    r.json: unknown field `cpu_bytes_per_secnd`, expected one of `tag`, `expert_bytes`, `link_bytes_per_second`, `cpu_bytes_per_second`, `contended` at line 1 column 110
    r.json: the rates' point 0 has a contended link rate of 0 bytes a second
    ");
}
