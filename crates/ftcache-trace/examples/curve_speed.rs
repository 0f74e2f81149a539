//! Times the curves on ten million routes over 48 layers of 512 experts, on one core.
//!
//! `cargo run --release -p ftcache-trace --example curve_speed`: 0.64 s for the unified LRU curve, 2.1 s for the optimum
//! at one size, on a core of an Intel Xeon virtual machine, 2026-11-30.

use std::error::Error;
use std::time::Instant;

use ftcache_trace::{Events, LayerCurves, MissCurve, Optimum, Synthetic};

fn main() -> Result<(), Box<dyn Error>> {
    let synthetic = Synthetic {
        tokens: 26_042,
        layers: 48,
        experts: 512,
        top_k: 8,
        requests: 50,
        drift: 1000,
        ..Synthetic::default()
    };
    let trace = synthetic.trace()?;
    for batch in [1, 16] {
        let events = Events::batched(&trace, batch);
        println!("batch {batch}: {} routes, {} uses, {} steps", trace.ids().len(), events.use_count(), events.len());

        let exact = timed("LRU, unified, every size", || MissCurve::lru(&events));
        timed("LRU, by layer, every size", || LayerCurves::lru(&events));
        let sampled = timed("LRU, unified, one expert in 8", || MissCurve::lru_sampled(&events, 8, 0));
        let slots = exact.most_slots() / 4;
        let optimum = timed("the optimum, unified, one size", || Optimum::unified(&events).miss_rate(slots));

        let [exact, sampled, optimum] =
            [exact.miss_rate(slots), sampled.miss_rate(slots), optimum].map(|rate| rate.unwrap_or(f64::NAN) * 100.0);
        println!("  {slots} slots: LRU misses {exact:.2}%, sampled {sampled:.2}%, the optimum {optimum:.2}%");
    }
    Ok(())
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    println!("  {what}: {:.2} s", start.elapsed().as_secs_f64());
    result
}
