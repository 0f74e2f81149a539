//! What `replay --rates` prints: each strategy's times, and which is the fastest, as a table and as JSON.

use std::fmt::Write;

use ftcache::policy::{Eviction, Pair, Point};
use serde_json::{Value, json};

use crate::replay_times::{Line, Outcome, Times, Way};
use crate::table::{Table, count, grouped, percent, ranges};

/// Of the tokens' waiting times.
const PERCENTILES: [usize; 3] = [50, 95, 99];

/// The strategy that takes the least time.
struct Fastest<'a> {
    line: &'a Line,
    /// What it takes in all, and the same for others: the one after it, and plain steps.
    ns: u64,
    next: Option<(&'a Line, u64)>,
    plain: Option<(&'a Line, u64)>,
}

impl Times<'_> {
    /// What a strategy takes in all: the waits, and what the device computes between them.
    fn total_ns(&self, outcome: &Outcome) -> u64 {
        let computed_ns = self.steps.saturating_mul(u64::from(self.compute_us) * 1000);
        outcome.waited_ns().saturating_add(computed_ns)
    }

    /// Of equal ones the first in the table.
    fn fastest(&self) -> Option<Fastest<'_>> {
        let total = |line: &Line| line.outcome.as_ref().ok().map(|outcome| self.total_ns(outcome));
        let mut known: Vec<(&Line, u64)> =
            self.lines.iter().filter_map(|line| total(line).map(|ns| (line, ns))).collect();
        known.sort_by_key(|&(_, ns)| ns);
        let &(line, ns) = known.first()?;
        let plain = known.iter().find(|(line, _)| matches!(line.way, Way::Plain)).copied();
        Some(Fastest { line, ns, next: known.get(1).copied(), plain })
    }

    /// A token's share of a time, in microseconds.
    fn token_us(&self, ns: u64) -> f64 {
        ns as f64 / 1e3 / self.header.tokens.max(1) as f64
    }

    /// Layers that are fetched whole by every strategy, as the CPU has no code for them.
    fn without_cpu(&self) -> Vec<u32> {
        let layers = self.layers.iter().zip(0..).filter(|(layer, _)| !layer.rates.has_cpu());
        layers.map(|(_, layer)| layer).collect()
    }

    pub(crate) fn write_table(&self, out: &mut String) -> std::fmt::Result {
        let header = self.header;
        writeln!(
            out,
            "{}: {}, {} of {}, top-{}",
            header.model,
            count(header.tokens, "token"),
            count(header.layers.into(), "layer"),
            count(header.experts.into(), "expert"),
            header.top_k
        )?;
        writeln!(
            out,
            "{} in {} for {}; nothing is moved: times by rates of {:?}",
            count(self.geometry.slot_count(), "slot"),
            count(self.geometry.pools().len() as u64, "pool"),
            count(u64::from(header.layers) * u64::from(header.experts), "expert"),
            self.rates.device()
        )?;
        if self.eviction != Eviction::Lru {
            writeln!(out, "victims by {}", self.eviction)?;
        }
        writeln!(out)?;
        self.write_rates(out)?;
        writeln!(out)?;
        self.write_lines(out)?;
        writeln!(out)?;
        let whole = self.without_cpu();
        if !whole.is_empty() && whole.len() < self.layers.len() {
            let layers = ranges(whole.iter().copied());
            writeln!(out, "fetched whole by every strategy, as the CPU's rate is not known: layers {layers}")?;
        }
        let mut reasons: Vec<&String> = self.lines.iter().filter_map(|line| line.outcome.as_ref().err()).collect();
        reasons.dedup();
        for why in reasons {
            writeln!(out, "not estimated: {why}")?;
        }
        let Some(fastest) = self.fastest() else { return Ok(()) };
        writeln!(out, "{}", self.sentence(&fastest))
    }

    /// The points that stand for layers.
    fn write_rates(&self, out: &mut String) -> std::fmt::Result {
        let mut table = Table::new([
            "rates of",
            "measured bytes",
            "layers",
            "expert bytes",
            "link GB/s",
            "CPU GB/s",
            "link beside",
            "CPU beside",
        ]);
        for (index, Point { tag, expert_bytes, link, cpu, contended }) in self.rates.points().iter().enumerate() {
            let layers: Vec<u32> =
                self.layers.iter().zip(0..).filter(|(layer, _)| layer.point == index).map(|(_, id)| id).collect();
            let Some(&first) = layers.first() else { continue };
            let giga = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{:.2}", rate / 1e9));
            let bytes = |layer: u32| self.geometry.model().layers()[layer as usize].expert_bytes();
            // A point stands for experts of up to twice its size.
            let (least, most) =
                layers.iter().fold((bytes(first), 0), |(least, most), &id| (least.min(bytes(id)), most.max(bytes(id))));
            let bytes = if least == most { grouped(least) } else { format!("{} to {}", grouped(least), grouped(most)) };
            let pair: Option<Pair> = *contended;
            table.row([
                if tag.is_empty() { "untagged".to_owned() } else { tag.escape_ascii().to_string() },
                grouped(*expert_bytes),
                ranges(layers),
                bytes,
                giga(Some(*link)),
                giga(*cpu),
                giga(pair.map(|pair| pair.link)),
                giga(pair.map(|pair| pair.cpu)),
            ]);
        }
        write!(out, "{table}")?;
        match self.rates.seconds_per_step() {
            Some(seconds) => writeln!(out, "a step's copies take {:.2} us besides their bytes", 1e6 * seconds),
            None => writeln!(
                out,
                "{} has no seconds_per_step: what a step's copies take besides their bytes is left out",
                self.rates_path.display()
            ),
        }
    }

    fn write_lines(&self, out: &mut String) -> std::fmt::Result {
        let flights = count(self.flights.into(), "step");
        writeln!(out, "us a token, and what so many of the tokens wait at most; behind, rows of {flights} at once")?;
        let mut heading: Vec<String> =
            ["strategy", "hit rate", "rows fetched", "rows on CPU", "link", "CPU", "waits"].map(str::to_owned).into();
        heading.extend(PERCENTILES.map(|percent| format!("{percent} %")));
        let columns = heading.len();
        let mut table = Table::with_heading(heading);
        for Line { name, outcome, .. } in &self.lines {
            let Ok(outcome) = outcome else {
                table.row([name.clone()].into_iter().chain(std::iter::repeat_n("-".to_owned(), columns - 1)));
                continue;
            };
            let us = |us: f64| format!("{us:.1}");
            let rows = [outcome.fetched, outcome.on_cpu].map(grouped);
            let times = [outcome.link_ns, outcome.cpu_ns, outcome.waited_ns()].map(|ns| us(self.token_us(ns)));
            let percentiles = PERCENTILES.map(|percent| us(outcome.percentile_ns(percent) as f64 / 1e3));
            let cells = [name.clone(), percent(outcome.stats.and_then(|stats| stats.hit_rate()))];
            table.row(cells.into_iter().chain(rows).chain(times).chain(percentiles));
        }
        write!(out, "{table}")
    }

    fn sentence(&self, Fastest { line, ns, next, plain }: &Fastest<'_>) -> String {
        let mut text = format!("fastest: {}, {:.1} us a token", line.name, self.token_us(*ns));
        if self.compute_us > 0 {
            text += &format!(" with {} us of the device's own after each step", grouped(self.compute_us.into()));
        }
        let times = |other: u64| times(*ns, other).map_or("-".to_owned(), |times| format!("{times:.2}"));
        if let Some((next, next_ns)) = next {
            text += &format!("; {} times as fast as the next ({})", times(*next_ns), next.name);
        }
        if let Some((plain, plain_ns)) = plain
            && !std::ptr::eq(*plain, *line)
        {
            text += &format!(", {} times as fast as plain", times(*plain_ns));
        }
        text
    }

    pub(crate) fn write_json(&self, out: &mut String) -> std::fmt::Result {
        let fastest = self.fastest().map(|Fastest { line, ns, next, plain }| {
            json!({
                "strategy": line.name,
                "ns": ns,
                "next": next.map(|(next, next_ns)| json!({ "strategy": next.name, "times": times(ns, next_ns) })),
                "plain_times": plain.and_then(|(_, plain_ns)| times(ns, plain_ns)),
            })
        });
        let whole = json!({
            "model": self.header.model,
            "device": self.rates.device(),
            "tokens": self.header.tokens,
            "steps": self.steps,
            "slots": self.geometry.slot_count(),
            "eviction": self.eviction.name(),
            "pools": self.geometry.pools().len(),
            "flights": self.flights,
            "compute_us": self.compute_us,
            "seconds_per_step": self.rates.seconds_per_step(),
            "points": self.layers.iter().map(|layer| layer.point).collect::<Vec<_>>(),
            "fetched_whole": self.without_cpu(),
            "strategies": self.lines.iter().map(|line| self.line_json(line)).collect::<Vec<_>>(),
            "fastest": fastest,
        });
        writeln!(out, "{whole:#}")
    }

    fn line_json(&self, Line { name, outcome, .. }: &Line) -> Value {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(why) => return json!({ "strategy": name, "not_estimated": why }),
        };
        let [p50, p95, p99] = PERCENTILES.map(|percent| outcome.percentile_ns(percent));
        json!({
            "strategy": name,
            "hit_rate": outcome.stats.and_then(|stats| stats.hit_rate()),
            "hits": outcome.stats.map(|stats| stats.hits()),
            "misses": outcome.stats.map(|stats| stats.misses),
            "fetched": outcome.fetched,
            "on_cpu": outcome.on_cpu,
            "link_ns": outcome.link_ns,
            "cpu_ns": outcome.cpu_ns,
            "waiting_ns": outcome.waited_ns(),
            "total_ns": self.total_ns(outcome),
            "token_waiting_ns": {
                "mean": outcome.waited_ns() as f64 / self.header.tokens.max(1) as f64,
                "p50": p50,
                "p95": p95,
                "p99": p99,
            },
        })
    }
}

/// How many times as long the other takes; `None` where this takes no time at all.
fn times(ns: u64, other_ns: u64) -> Option<f64> {
    (ns > 0).then(|| other_ns as f64 / ns as f64)
}
