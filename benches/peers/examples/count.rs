//! Some tokens of one peer, for counting instructions where clocks are noisy.
//!
//! ```text
//! cargo build --release -p peers --example count
//! valgrind --tool=callgrind --toggle-collect='*count*measured*' \
//!     target/release/examples/count ftcache 2100 1 256
//! ```
//!
//! The arguments are `ftcache`, `ferrox-core` or `schnellru`, slots, requests and tokens. Only the tokens are counted,
//! not the routes and the warming up; the count divided by the steps printed is that of a step.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;

use peers::{Case, Ferrox, Ftcache, LAYERS, Peer, Replay, Schnellru};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize| args.get(index).and_then(|arg: &String| arg.parse::<u32>().ok());
    let (Some(peer), Some(slot_count), Some(requests), Some(tokens)) = (args.first(), number(1), number(2), number(3))
    else {
        eprintln!("count PEER SLOTS REQUESTS TOKENS");
        return ExitCode::FAILURE;
    };
    let case = Case { slot_count, request_count: requests as usize };
    match peer.as_str() {
        Ftcache::NAME => count::<Ftcache>(case, tokens as usize),
        Ferrox::NAME => count::<Ferrox>(case, tokens as usize),
        Schnellru::NAME => count::<Schnellru>(case, tokens as usize),
        _ => {
            eprintln!("peers: {}, {}, {}", Ftcache::NAME, Ferrox::NAME, Schnellru::NAME);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn count<P: Peer>(case: Case, token_count: usize) {
    let replay = Replay::new(case);
    let mut peer = P::new(case.slot_count);
    peer.pass(&replay);
    let misses = measured(&mut peer, &replay, token_count);
    let steps = token_count * LAYERS as usize;
    println!("{} {case}: {steps} steps, {:.2} misses a step", P::NAME, misses as f64 / steps as f64);
}

/// A function of its own, so that callgrind can be told to count it alone.
#[inline(never)]
fn measured<P: Peer>(peer: &mut P, replay: &Replay, token_count: usize) -> usize {
    (0..token_count).map(|token| peer.token(replay, token)).sum()
}
