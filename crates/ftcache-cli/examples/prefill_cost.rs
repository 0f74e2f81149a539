//! What a prompt costs the decode set: staging buffers borrowed from the slots against buffers of their own, at the same
//! bytes of device memory.
//!
//! `cargo run --release -p ftcache-cli --example prefill_cost -- TRACE [TOKENS]`
//!
//! The trace's tokens are decoded, a step of each layer. Where a segment begins, and then every TOKENS tokens (256), a
//! prompt comes in one chunk: every layer is staged whole. Borrowed buffers lie on two layers' worth of slots; with
//! dedicated ones the pool is smaller by as much. Residency alone: rows are counted and not moved.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;

use ftcache::policy::Staging;
use ftcache::residency::{Cache, ChunkReport, Plan, StagePlan};
use ftcache::{Budget, Constraints, ExpertId, Geometry, LayerId, LayoutKey, Model, Quantisation};
use ftcache_trace::Trace;

#[derive(Clone, Copy, PartialEq)]
enum Buffers {
    Borrowed,
    Dedicated,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("prefill_cost TRACE [TOKENS]")?;
    let every: usize = arguments.next().map_or(Ok(256), |tokens| tokens.parse())?;
    let trace = Trace::read(BufReader::new(File::open(&path)?))?;
    let shape = trace.header().shape();
    println!("{}: {} tokens, a prompt every {every} and where a segment begins", trace.header().model, shape.tokens);
    println!(
        "memory  staging    slots   decode misses  of these staging's  lost a prompt  rows a token: decode  prompts"
    );
    let experts = u64::from(shape.layers) * u64::from(shape.experts);
    for percent in [15, 25, 35, 50, 75] {
        let memory = experts * percent / 100;
        for buffers in [Buffers::Borrowed, Buffers::Dedicated] {
            let own = if buffers == Buffers::Dedicated { 2 * u64::from(shape.experts) } else { 0 };
            match memory.checked_sub(own).map(|slots| replay(&trace, slots, buffers, every)) {
                Some(Ok(line)) => println!("{percent:>5}%  {line}"),
                // A pool that is too small for a step, or for two layers under it, is no choice at this memory.
                Some(Err(error)) => println!("{percent:>5}%  {error}"),
                None => println!("{percent:>5}%  dedicated buffers alone take more"),
            }
        }
    }
    Ok(())
}

fn replay(trace: &Trace, slots: u64, buffers: Buffers, every: usize) -> Result<String, Box<dyn Error>> {
    let shape = trace.header().shape();
    let layers = vec![LayoutKey::tagged("any", [1 << 20]); shape.layers as usize];
    let model = Model::new(shape.experts, shape.top_k, Quantisation::PerLayer, layers)?;
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(slots)))?;
    let staging = match buffers {
        Buffers::Borrowed => Staging::borrowed(&geometry)?,
        Buffers::Dedicated => Staging::dedicated(&geometry, 2),
    };
    if staging.buffer_count() < 2 {
        return Err(format!("{slots} slots are fewer than two layers'").into());
    }
    let mut cache = Cache::new(&geometry);
    cache.set_staging(staging, 0)?;

    let (mut plan, mut stage_plan) = (Plan::new(), StagePlan::new());
    let segment_starts: Vec<u64> = trace.header().segments.iter().map(|segment| segment.start).collect();
    let mut since = 0;
    for (token, _) in trace.tokens().enumerate() {
        if since == every || segment_starts.contains(&(token as u64)) {
            prefill(&mut cache, &mut stage_plan)?;
            since = 0;
        }
        since += 1;
        for layer in 0..shape.layers as usize {
            if let Some(cell) = trace.cell(token, layer) {
                let routes: Vec<ExpertId> = cell.iter().map(|&id| ExpertId::new(id.into())).collect();
                cache.ensure(LayerId::from_index(layer), &routes, &mut plan)?.commit();
            }
        }
    }

    let mut stats = ftcache::residency::Stats::default();
    (0..shape.layers).for_each(|layer| stats += cache.layer_stats(LayerId::new(layer)));
    let ChunkReport { chunks, fetched, lost, .. } = cache.chunk_total();
    let (tokens, share) = (shape.tokens as f64, |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64);
    Ok(format!(
        "{:<9} {:>6} {:>14.2}% {:>18.2}% {:>14.1} {:>21.1} {:>8.1}",
        if buffers == Buffers::Borrowed { "borrowed" } else { "dedicated" },
        slots,
        share(stats.misses, stats.distinct),
        share(stats.staging_misses, stats.distinct),
        lost as f64 / chunks.max(1) as f64,
        stats.misses as f64 / tokens,
        fetched as f64 / tokens
    ))
}

/// One chunk: each layer is staged while the one before it computes.
fn prefill(cache: &mut Cache, plan: &mut StagePlan) -> Result<(), Box<dyn Error>> {
    let layers: Vec<LayerId> = (0..cache.layer_count()).map(LayerId::from_index).collect();
    cache.begin_chunk()?;
    cache.prefetch(layers[0], plan)?.commit();
    for (index, &layer) in layers.iter().enumerate() {
        cache.wait(layer)?;
        if let Some(&next) = layers.get(index + 1) {
            cache.prefetch(next, plan)?.commit();
        }
        cache.release(layer)?;
    }
    cache.end_chunk()?;
    Ok(())
}
