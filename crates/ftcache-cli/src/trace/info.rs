//! `ftcache trace info FILE`: what recorded routing is like, as far as the ids tell.

use std::fmt::Write;
use std::thread;

use ftcache_trace::{Events, LayerCurves, LayerSurvey, MissCurve, Optimum, Phase, Reuse, Survey, Trace};
use serde_json::{Value, json};

use super::{Input, describe};
use crate::Failure;
use crate::sweep_space::ExpertBytes;
use crate::table::{Table, binary, count, grouped};

/// The share of hits whose slots are told, in percent.
const HIT_PERCENT: u32 = 90;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let trace = arguments.input.read()?;
    let survey = Survey::of(&trace);
    let needs = Needs::of(&trace);
    if arguments.json {
        writeln!(out, "{:#}", value(&trace, &survey, needs.as_ref()))?;
        return Ok(());
    }
    describe(&trace, out)?;
    let phases: Vec<String> = phases(&trace)
        .iter()
        .map(|(phase, segments, tokens)| {
            format!("{} {} in {}", count(*tokens, "token"), phase.name(), count(*segments, "segment"))
        })
        .collect();
    writeln!(out, "{}", phases.join(", "))?;
    writeln!(out)?;
    layers(&trace, &survey, out)?;
    writeln!(out)?;
    whole(&trace, &survey, out)?;
    if let Some(needs) = needs {
        needs.write(&trace, out)?;
    }
    writeln!(out, "digest {:016x}", trace.digest())?;
    Ok(())
}

/// Phase, segments, tokens: in the order in which phases come.
fn phases(trace: &Trace) -> Vec<(Phase, u64, u64)> {
    let mut phases: Vec<(Phase, u64, u64)> = Vec::new();
    for segment in &trace.header().segments {
        match phases.iter_mut().find(|(phase, _, _)| *phase == segment.phase) {
            Some((_, segments, tokens)) => {
                *segments += 1;
                *tokens += segment.tokens;
            }
            None => phases.push((segment.phase, 1, segment.tokens)),
        }
    }
    phases
}

fn layers(trace: &Trace, survey: &Survey, out: &mut String) -> std::fmt::Result {
    let mut table = Table::new([
        "layer",
        "cells",
        "experts",
        "hottest 10 %",
        "entropy",
        "overlap",
        "again after",
        "90 % within",
        "99 %",
        "longest",
    ]);
    for (index, layer) in survey.layers.iter().enumerate() {
        let distance = |of: fn(&Reuse) -> u64| layer.reuse.as_ref().map_or("-".to_owned(), |reuse| grouped(of(reuse)));
        table.row([
            number(trace, index).to_string(),
            grouped(layer.cells),
            layer.used.to_string(),
            percent(layer.hottest_share),
            layer.entropy.map_or("-".to_owned(), |entropy| format!("{entropy:.3}")),
            percent(layer.overlap),
            distance(|reuse| reuse.p50),
            distance(|reuse| reuse.p90),
            distance(|reuse| reuse.p99),
            distance(|reuse| reuse.max),
        ]);
    }
    write!(out, "{table}")
}

fn whole(trace: &Trace, survey: &Survey, out: &mut String) -> std::fmt::Result {
    let experts = u64::from(trace.header().layers) * u64::from(trace.header().experts);
    writeln!(out, "{} of {} are used", grouped(survey.used), count(experts, "expert"))?;
    if let Some(entropy) = survey.entropy {
        let share = percent(survey.hottest_share);
        writeln!(out, "a layer's hottest tenth of experts has {share} of its routes, entropy {entropy:.3}")?;
    }
    if survey.overlap.is_some() {
        writeln!(out, "of a token's experts the token before used {}", percent(survey.overlap))?;
    }
    if let Some(Reuse { uses, p50, p90, p99, max }) = survey.reuse {
        writeln!(
            out,
            "an expert is used again after {} (median of {} uses), 90 % within {}, 99 % within {}, the longest {}",
            count(p50, "token"),
            grouped(uses),
            grouped(p90),
            grouped(p99),
            grouped(max)
        )?;
    }
    Ok(())
}

/// The slots that caches need for [`HIT_PERCENT`], every token a step, cold at the start.
struct Needs {
    uses: u64,
    /// Uses that are the first of their expert.
    first_uses: u64,
    per_layer: Option<usize>,
    unified: Option<usize>,
    optimal: Option<usize>,
}

impl Needs {
    /// None if no expert is used.
    fn of(trace: &Trace) -> Option<Self> {
        let events = Events::of(trace);
        if events.is_empty() {
            return None;
        }
        let hit_rate = f64::from(HIT_PERCENT) / 100.0;
        thread::scope(|scope| {
            let optimal = scope.spawn(|| Optimum::unified(&events).slots_for(hit_rate));
            let curve = MissCurve::lru(&events);
            Some(Self {
                uses: curve.uses(),
                first_uses: curve.compulsory(),
                per_layer: LayerCurves::lru(&events).slots_for_equal(hit_rate),
                unified: curve.slots_for(hit_rate),
                optimal: optimal.join().expect("counting does not panic"),
            })
        })
    }

    /// The share of hits of a cache that never gives an expert up.
    fn most_hits(&self) -> f64 {
        (self.uses - self.first_uses) as f64 / self.uses as f64
    }

    fn write(&self, trace: &Trace, out: &mut String) -> std::fmt::Result {
        let most = percent(Some(self.most_hits()));
        // What one of them reaches with all experts used, every one of them does.
        let (Some(per_layer), Some(unified), Some(optimal)) = (self.per_layer, self.unified, self.optimal) else {
            return writeln!(
                out,
                "no cache has {HIT_PERCENT} % hits, and none more than {most}: {} of {} uses are the first of their expert",
                grouped(self.first_uses),
                grouped(self.uses)
            );
        };
        let bytes = ExpertBytes::new(None, trace.header());
        let in_bytes = |slots: usize| {
            bytes.map_or(String::new(), |bytes| format!(" ({})", binary(bytes.mean.saturating_mul(slots as u64))))
        };
        writeln!(
            out,
            "for {HIT_PERCENT} % hits per-layer LRU needs {}{}, unified LRU {}{}, an optimal cache {}{}; no cache has \
             more than {most}",
            count(per_layer as u64, "slot"),
            in_bytes(per_layer),
            grouped(unified as u64),
            in_bytes(unified),
            grouped(optimal as u64),
            in_bytes(optimal)
        )
    }

    fn json(&self) -> Value {
        json!({
            "hit_rate": f64::from(HIT_PERCENT) / 100.0,
            "per_layer": self.per_layer,
            "unified": self.unified,
            "optimal": self.optimal,
            "most_hit_rate": self.most_hits(),
        })
    }
}

/// The model's own number of a layer.
fn number(trace: &Trace, index: usize) -> u32 {
    trace.header().layer_numbers.as_ref().map_or(index as u32, |numbers| numbers[index])
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

fn value(trace: &Trace, survey: &Survey, needs: Option<&Needs>) -> Value {
    let header = trace.header();
    let reuse = |reuse: Option<Reuse>| {
        json!(reuse.map(|Reuse { uses, p50, p90, p99, max }| {
            json!({ "uses": uses, "p50": p50, "p90": p90, "p99": p99, "max": max })
        }))
    };
    let layer = |(index, layer): (usize, &LayerSurvey)| {
        json!({
            "layer": number(trace, index),
            "cells": layer.cells,
            "absent_cells": layer.absent_cells,
            "experts_used": layer.used,
            "hottest_tenth_share": layer.hottest_share,
            "entropy": layer.entropy,
            "next_token_overlap": layer.overlap,
            "reuse_distance": reuse(layer.reuse),
        })
    };
    let phase = |&(phase, segments, tokens): &(Phase, u64, u64)| json!({ "phase": phase.name(), "segments": segments, "tokens": tokens });
    json!({
        "model": header.model,
        "tokens": header.tokens,
        "layers": header.layers,
        "experts": header.experts,
        "top_k": header.top_k,
        "absent_cells": header.absent_cells,
        "segments": header.segments,
        "phases": phases(trace).iter().map(phase).collect::<Vec<_>>(),
        "experts_used": survey.used,
        "hottest_tenth_share": survey.hottest_share,
        "entropy": survey.entropy,
        "next_token_overlap": survey.overlap,
        "reuse_distance": reuse(survey.reuse),
        "by_layer": survey.layers.iter().enumerate().map(layer).collect::<Vec<_>>(),
        "slots_for_hits": needs.map(Needs::json),
        "digest": format!("{:016x}", trace.digest()),
    })
}
