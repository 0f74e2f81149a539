//! The recorder: what goes in comes out, what does not fit or makes no sense is counted, and nothing stops it.

use ftcache_trace::{ABSENT, Form, Keep, Phase, Recorder, RecorderOptions, Segment, Synthetic, Trace, TraceError};

/// Two layers of eight experts, top-2.
fn options() -> RecorderOptions {
    RecorderOptions::new("toy", 2, 8, 2)
}

/// With room for so many tokens: 8 bytes of ids each, and 24 of a segment's start.
fn recorder(room: usize, keep: Keep) -> Recorder {
    let recorder = Recorder::new(RecorderOptions { keep, ..options() }, room * 32 + 31).unwrap();
    assert_eq!(recorder.room(), room as u64);
    recorder
}

/// Token `token` of one layer has these two experts.
fn cell(token: u32) -> [u32; 2] {
    [token % 8, (token + 1) % 8]
}

fn step(recorder: &mut Recorder, token: u32) {
    recorder.record(0, &cell(token));
    recorder.record(1, &cell(token + 3));
}

/// The ids that `step` brings for these tokens.
fn steps(tokens: impl IntoIterator<Item = u32>) -> Vec<u16> {
    tokens.into_iter().flat_map(|token| [cell(token), cell(token + 3)]).flatten().map(|id| id as u16).collect()
}

const GONE: u16 = ABSENT;

#[test]
fn a_trace_comes_back() {
    let synthetic = Synthetic { tokens: 100, layers: 3, requests: 4, ..Synthetic::default() };
    let wanted = synthetic.trace().unwrap();
    // Exactly as many tokens as fit.
    let options = RecorderOptions {
        expert_bytes: Some(vec![5, 6, 7]),
        layer_numbers: Some(vec![1, 2, 4]),
        ..RecorderOptions::new("toy", 3, 16, 2)
    };
    for width in [1, 5] {
        let mut recorder = Recorder::new(options.clone(), 100 * (3 * 2 * 2 + 24)).unwrap();
        for (request, segment) in wanted.header().segments.iter().enumerate() {
            recorder.begin(request as u64, Phase::Decode);
            for first in (segment.start..segment.start + segment.tokens).step_by(width) {
                for layer in 0..3 {
                    let cells = (0..width).flat_map(|token| wanted.cell(first as usize + token, layer).unwrap());
                    let ids: Vec<u32> = cells.map(|&id| id.into()).collect();
                    recorder.record(layer as u32, &ids);
                }
            }
        }
        assert_eq!((recorder.tokens(), recorder.dropped(), recorder.refused()), (100, 0, 0));
        let trace = recorder.trace().unwrap();
        assert_eq!(trace.ids(), wanted.ids());
        assert_eq!(trace.header().expert_bytes, options.expert_bytes);
        assert_eq!(trace.header().layer_numbers, options.layer_numbers);
        assert_eq!(trace.header().segments[3], Segment::new("request-3-decode", Phase::Decode, 75, 25));
        let file = trace.write(Vec::new(), Form::Zstd).unwrap();
        assert_eq!(Trace::read(file.as_slice()).unwrap(), trace);
    }
}

#[test]
fn a_layer_that_is_not_above_the_one_before_starts_the_next_token() {
    let mut recorder = recorder(9, Keep::First);
    recorder.record(0, &[1, 2]);
    // The same layer: token 1, and token 0 lacks layer 1.
    recorder.record(0, &[3, 4]);
    recorder.record(1, &[5, 6]);
    // Layer 1 again: token 2 lacks layer 0.
    recorder.record(1, &[7, 0]);
    // A segment starts a token even where the layers would go on.
    recorder.record(0, &[1, 0]);
    recorder.begin(1, Phase::Decode);
    recorder.record(1, &[2, 0]);
    let trace = recorder.trace().unwrap();
    let wanted = [1, 2, GONE, GONE, 3, 4, 5, 6, GONE, GONE, 7, 0, 1, 0, GONE, GONE, GONE, GONE, 2, 0];
    assert_eq!(trace.ids(), wanted);
    assert_eq!(trace.header().absent_cells, 4);
}

#[test]
fn what_does_not_fit_is_counted() {
    for (keep, wanted) in [(Keep::First, 0..4), (Keep::Last, 3..7)] {
        let mut recorder = recorder(4, keep);
        recorder.begin(1, Phase::Prefill);
        (0..2).for_each(|token| step(&mut recorder, token));
        recorder.begin(1, Phase::Decode);
        (2..6).for_each(|token| step(&mut recorder, token));
        recorder.begin(2, Phase::Prefill);
        step(&mut recorder, 6);
        assert_eq!((recorder.tokens(), recorder.dropped(), recorder.refused()), (4, 3, 0), "{keep:?}");
        let trace = recorder.trace().unwrap();
        assert_eq!(trace.ids(), steps(wanted), "{keep:?}");
        assert_eq!(trace.header().extra["recorder"]["dropped_tokens"], 3);
        let segments = match keep {
            Keep::First => [("request-1-prefill", Phase::Prefill, 0, 2), ("request-1-decode", Phase::Decode, 2, 2)],
            Keep::Last => [("request-1-decode", Phase::Decode, 0, 3), ("request-2-prefill", Phase::Prefill, 3, 1)],
        };
        assert_eq!(
            trace.header().segments,
            segments.map(|(name, phase, start, tokens)| Segment::new(name, phase, start, tokens))
        );
    }
}

/// A token in the place of another has none of its cells.
#[test]
fn what_was_there_before_is_gone() {
    let mut recorder = recorder(1, Keep::Last);
    step(&mut recorder, 0);
    recorder.record(1, &[6, 7]);
    assert_eq!(recorder.trace().unwrap().ids(), [GONE, GONE, 6, 7]);
}

/// A prompt wider than all the room, and one that wraps.
#[test]
fn steps_wider_than_the_room_are_cut() {
    for (keep, wanted) in [(Keep::First, 0..3), (Keep::Last, 4..7)] {
        let mut recorder = recorder(3, keep);
        let prompt = |offset: u32| -> Vec<u32> { (0..5).flat_map(|token| cell(token + offset)).collect() };
        recorder.record(0, &prompt(0));
        recorder.record(1, &prompt(3));
        for tokens in [5..7, 7..7] {
            let ids = |offset: u32| -> Vec<u32> { tokens.clone().flat_map(|token| cell(token + offset)).collect() };
            recorder.record(0, &ids(0));
            recorder.record(1, &ids(3));
        }
        // The last two calls had no ids.
        assert_eq!((recorder.tokens(), recorder.dropped(), recorder.refused()), (3, 4, 2), "{keep:?}");
        assert_eq!(recorder.trace().unwrap().ids(), steps(wanted), "{keep:?}");
    }
}

#[test]
fn odd_input_is_counted_and_left_out() {
    let mut recorder = recorder(9, Keep::First);
    recorder.record(0, &[1, 2, 3, 4]);
    // No such layer, no multiple of top-2, none, one token instead of two: refused whole, and the step goes on.
    recorder.record(2, &[1, 2]);
    recorder.record(u32::MAX, &[1, 2]);
    recorder.record(1, &[1, 2, 3]);
    recorder.record(1, &[]);
    recorder.record(1, &[1, 2]);
    assert_eq!(recorder.refused(), 5);
    // A padded row, and an expert twice: the other cells stay.
    recorder.record(1, &[u32::MAX, u32::MAX, 5, 6]);
    recorder.record(0, &[3, 3]);
    recorder.record(1, &[0, 8]);
    assert_eq!((recorder.refused(), recorder.tokens()), (8, 3));
    let trace = recorder.trace().unwrap();
    assert_eq!(trace.ids(), [1, 2, GONE, GONE, 3, 4, 5, 6, GONE, GONE, GONE, GONE]);
    assert_eq!(trace.header().extra["recorder"]["refused"], 8);
}

/// Any calls: never a panic, always a trace that its own reader takes, and no token unaccounted for.
#[test]
fn any_calls_give_a_trace() {
    for seed in 0..300_u64 {
        let mut state = seed;
        let mut draw = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let keep = if seed % 2 == 0 { Keep::First } else { Keep::Last };
        let mut recorder = recorder(1 + draw(6) as usize, keep);
        for _ in 0..draw(60) {
            match draw(8) {
                0 => recorder.begin(draw(3), Phase::Mixed),
                _ => {
                    let ids: Vec<u32> = (0..draw(12)).map(|_| draw(9) as u32).collect();
                    recorder.record(draw(3) as u32, &ids);
                }
            }
            assert!(recorder.tokens() <= recorder.room(), "seed {seed}");
        }
        let tokens = recorder.tokens();
        match recorder.trace() {
            Ok(trace) => {
                assert_eq!(trace.header().tokens, tokens, "seed {seed}");
                let file = trace.write(Vec::new(), Form::Plain).unwrap();
                assert_eq!(Trace::read(file.as_slice()).unwrap(), trace, "seed {seed}");
            }
            Err(error) => {
                assert!(tokens == 0 && matches!(error, TraceError::Zero { key: "tokens" }), "seed {seed}: {error}")
            }
        }
    }
}

#[test]
fn recorders_that_cannot_be_are_refused() {
    let refused = |options: RecorderOptions, bytes| Recorder::new(options, bytes).unwrap_err().to_string();
    assert_eq!(refused(options(), 31), "a recorder of 31 bytes; one token takes 32");
    let bytes = usize::MAX;
    assert_eq!(refused(options(), bytes), format!("a recorder of {bytes} bytes; there is not so much memory"));
    let wide = RecorderOptions { top_k: 9, ..options() };
    assert_eq!(refused(wide, 100), "top-9 of 8 experts: top_k must be from 1 to the expert count");
    let short = RecorderOptions { expert_bytes: Some(vec![1]), ..options() };
    assert_eq!(refused(short, 100), "\"expert_bytes\" has 1 entries; there are 2 layers");
    let error = recorder(1, Keep::First).trace().unwrap_err().to_string();
    assert_eq!(error, "\"tokens\" is 0; at least 1 is needed");
}

/// As the threads' paragraph says.
#[test]
fn it_may_move_between_threads() {
    fn moves<T: Send + Sync>(value: T) -> T {
        value
    }
    let mut recorder = moves(recorder(1, Keep::First));
    let recorder = std::thread::spawn(move || {
        step(&mut recorder, 0);
        recorder
    });
    assert_eq!(recorder.join().unwrap().tokens(), 1);
}
