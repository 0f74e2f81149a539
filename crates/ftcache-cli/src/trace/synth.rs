//! `ftcache trace synth OUT`: routing from a seed, by stated popularity, repetition and drift.

use std::path::PathBuf;

use ftcache_trace::Synthetic;

use super::{at, form_of, write};
use crate::Failure;
use crate::memory::{available_bytes, check_memory};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to write: .ftr or .ftr.zst
    #[arg(value_name = "OUT")]
    target: PathBuf,
    /// Tokens, over all requests
    #[arg(long, value_name = "N")]
    tokens: u64,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().layers)]
    layers: u32,
    /// Experts of a layer
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().experts)]
    experts: u32,
    /// Experts that a token is routed to in a layer
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().top_k)]
    top_k: u32,
    /// Requests, one after another, each a segment; the first token of one repeats nothing
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().requests)]
    requests: u64,
    /// Exponent of popularity, 0 (all alike) to 8; 1 is Zipf's law
    #[arg(long, value_name = "X", default_value_t = Synthetic::default().skew, allow_negative_numbers = true)]
    skew: f64,
    /// Probability of repeating an expert of the token before, 0 to 1
    #[arg(long, value_name = "X", default_value_t = Synthetic::default().locality, allow_negative_numbers = true)]
    locality: f64,
    /// Tokens after which a quarter of each layer's experts change their popularity; 0 for never
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().drift)]
    drift: u64,
    /// Where all of it starts from
    #[arg(long, value_name = "N", default_value_t = Synthetic::default().seed)]
    seed: u64,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let &Arguments { tokens, layers, experts, top_k, requests, skew, locality, drift, seed, .. } = arguments;
    let form = form_of(&arguments.target)?;
    let synthetic = Synthetic { seed, tokens, layers, experts, top_k, requests, skew, locality, drift };
    // A product that does not fit is refused by `trace`, in its own words.
    let bytes = [u64::from(top_k), 2, tokens].into_iter().try_fold(u64::from(layers), u64::checked_mul);
    check_memory("ids need", bytes.unwrap_or(0), available_bytes()).map_err(|error| at(&arguments.target, error))?;
    let trace = synthetic.trace().map_err(|error| at(&arguments.target, error))?;
    write(&trace, &arguments.target, form, out)
}
