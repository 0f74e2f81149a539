//! `ftcache trace info FILE`: what recorded routing is like, as far as the ids tell.

use std::fmt::Write;

use ftcache_trace::{LayerSurvey, Phase, Reuse, Survey, Trace};
use serde_json::{Value, json};

use super::{Input, describe};
use crate::Failure;
use crate::table::{Table, count, grouped};

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
    if arguments.json {
        writeln!(out, "{:#}", value(&trace, &survey))?;
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
    // How many slots a hit rate takes stands here, once miss curves are.
    Ok(())
}

/// The model's own number of a layer.
fn number(trace: &Trace, index: usize) -> u32 {
    trace.header().layer_numbers.as_ref().map_or(index as u32, |numbers| numbers[index])
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.2} %", 100.0 * share))
}

fn value(trace: &Trace, survey: &Survey) -> Value {
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
        "digest": format!("{:016x}", trace.digest()),
    })
}
