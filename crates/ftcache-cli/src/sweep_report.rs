//! What `sweep` says: a table for people, CSV and JSON for programs, and the line that one would act on.

use std::fmt::{Result, Write};

use ftcache::Scope;
use ftcache_trace::Phase;
use serde_json::{Value, json};

use crate::sweep::Sweep;
use crate::sweep_lines::{Line, Misses};
use crate::sweep_space::{ExpertBytes, Space};
use crate::table::{Table, binary, count, grouped, percent};

pub(crate) fn write(sweep: &Sweep, out: &mut String) -> Result {
    let header = &sweep.header;
    writeln!(
        out,
        "{}: {} tokens, {} of {} experts, top-{}",
        header.model,
        grouped(header.tokens),
        count(header.layers.into(), "layer"),
        header.experts,
        header.top_k
    )?;
    let tokens = if sweep.batch == 1 { String::new() } else { format!(" of up to {} tokens", sweep.batch) };
    writeln!(
        out,
        "{}{tokens} use {} {} times; the widest uses {}",
        count(sweep.steps as u64, "step"),
        count(sweep.experts_used as u64, "expert"),
        grouped(sweep.uses),
        sweep.widest_step
    )?;
    match &sweep.space {
        Space::Slots(slots) => write_expert_bytes(slots.expert_bytes, out)?,
        Space::Bytes(bytes) => {
            writeln!(out, "{}: {}", bytes.name, bytes.describe())?;
            if bytes.name != header.model {
                writeln!(out, "note: the trace is of {:?}; this model is {:?}", header.model, bytes.name)?;
            }
        }
    }
    let prompts = header.segments.iter().filter(|segment| segment.phase == Phase::Prefill);
    let prompts: u64 = prompts.map(|segment| segment.tokens).sum();
    if prompts > 0 {
        writeln!(out, "{} of the tokens are prompts, and taken for steps of decode like the others", grouped(prompts))?;
    }
    writeln!(out, "LRU is counted up to ties within a step; `replay` has one size to the last miss")?;
    if sweep.lines.iter().any(|line| line.split == "curve") {
        let cut = grouped(sweep.cut);
        writeln!(
            out,
            "curve: each half of the trace, cut at token {cut}, has its slots divided by the other's {}",
            if sweep.space.is_of_widths() { "fetched bytes" } else { "misses" }
        )?;
    }
    if let Some(bound) = sweep.lines.iter().find(|line| !line.is_configurable && is_divided(sweep, line)) {
        writeln!(
            out,
            "{}: of the unified pools as they are divided equally; another division may miss less",
            bound.name
        )?;
    }
    writeln!(out)?;

    let mut heading = match sweep.space {
        Space::Slots(_) => vec!["slots".to_owned(), "of experts".to_owned()],
        Space::Bytes(_) => vec!["bytes".to_owned(), "of experts".to_owned()],
    };
    let has_bytes_beside = |size| sweep.space.bytes(size).filter(|_| matches!(sweep.space, Space::Slots(_)));
    heading.extend(has_bytes_beside(0).map(|_| "bytes".to_owned()));
    heading.extend(sweep.lines.iter().map(|line| line.name.clone().into_owned()));
    let mut table = Table::with_heading(heading);
    for (index, &size) in sweep.sizes.iter().enumerate() {
        let first = match sweep.space {
            Space::Slots(_) => grouped(size),
            Space::Bytes(_) => binary(size),
        };
        let mut row = vec![first, format!("{:.1} %", 100.0 * sweep.share(size))];
        row.extend(has_bytes_beside(size).map(binary));
        row.extend(sweep.lines.iter().map(|line| percent(line.misses[index].map(|misses| sweep.rate(misses.count)))));
        table.row(row);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "{}", verdict(sweep))
}

fn write_expert_bytes(bytes: Option<ExpertBytes>, out: &mut String) -> Result {
    match bytes {
        None => Ok(()),
        Some(bytes) if bytes.least == bytes.most => writeln!(out, "an expert has {} bytes", grouped(bytes.mean)),
        // A pool has slots of one size: such a cache has several, and bytes are about right at best.
        Some(bytes) => writeln!(
            out,
            "an expert has {} to {} bytes by its layer; counted with their mean, {}",
            grouped(bytes.least),
            grouped(bytes.most),
            grouped(bytes.mean)
        ),
    }
}

/// Whether a line is of the unified scope, and that is of several pools.
fn is_divided(sweep: &Sweep, line: &Line) -> bool {
    line.scope == "unified" && sweep.space.groups(Scope::Unified).len() > 1
}

/// The best that a cache can be set to at the chosen size, what it saves against unified LRU, and what cannot be beaten.
fn verdict(sweep: &Sweep) -> String {
    let (best, first) = (sweep.best(), &sweep.lines[0]);
    let of_best = best.misses[sweep.chosen].expect("a size holds the widest step of unified pools");
    let of_first = first.misses[sweep.chosen].expect("a size holds the widest step of unified pools");
    let tokens = sweep.header.tokens;
    let in_a_token = |misses: Misses| {
        let bytes = sweep.bytes_a_token(misses).map_or(String::new(), |bytes| format!(" and {}", binary(bytes)));
        format!("{:.2} misses{bytes}", misses.count as f64 / tokens as f64)
    };
    let size = sweep.space.label(sweep.chosen_size());
    // Misses of wide slots move more bytes: what misses least need not move least.
    let by = match sweep.lines.iter().any(|line| line.is_configurable && has_fewer_misses(sweep, line, of_best)) {
        true => " by bytes moved",
        false => "",
    };
    let mut text = format!("best at {size}{by}: {}, with {} a token", best.name, in_a_token(of_best));
    if std::ptr::eq(best, first) {
        text += "; nothing else that a cache can be set to saves any";
    } else if let Some((misses_share, bytes_share)) = saved(sweep) {
        let misses = (of_first.count as f64 - of_best.count as f64) / tokens as f64;
        let _ = write!(text, "; it saves {misses:.2} misses ({:.1} %)", 100.0 * misses_share);
        if let (Some(share), Some(first), Some(best)) = (bytes_share, of_first.bytes, of_best.bytes) {
            let _ = write!(text, " and {} ({:.1} %)", binary((first - best) / tokens), 100.0 * share);
        }
        let _ = write!(text, " a token against {}", first.name);
    }
    for bound in sweep.lines.iter().filter(|line| !line.is_configurable) {
        let has = bound.misses[sweep.chosen].map(in_a_token);
        text += &has.map_or(String::new(), |has| format!("; the {} has {has}", bound.name));
    }
    text
}

fn has_fewer_misses(sweep: &Sweep, line: &Line, than: Misses) -> bool {
    line.misses[sweep.chosen].is_some_and(|misses| misses.count < than.count)
}

/// Misses and bytes of unified LRU that the best line does not have, each as a share of them; none where nothing is
/// missed.
fn saved(sweep: &Sweep) -> Option<(f64, Option<f64>)> {
    let (best, first) = (sweep.best().misses[sweep.chosen]?, sweep.lines[0].misses[sweep.chosen]?);
    let share = |first: u64, best: u64| (first > 0).then(|| (first as f64 - best as f64) / first as f64);
    let bytes = first.bytes.zip(best.bytes).and_then(|(first, best)| share(first, best));
    Some((share(first.count, best.count)?, bytes))
}

/// A row for each size; what is not known is empty.
pub(crate) fn csv(sweep: &Sweep) -> String {
    let mut text = "slots,share,bytes".to_owned();
    for line in &sweep.lines {
        let split = if line.split == "curve" { "_curve" } else { "" };
        let key = format!("{}_{}{split}", line.policy, line.scope.replace('-', "_"));
        let _ = write!(text, ",{key}_misses,{key}_miss_rate,{key}_bytes");
    }
    text.push('\n');
    let or_empty = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
    for (index, &size) in sweep.sizes.iter().enumerate() {
        let bytes = or_empty(sweep.space.bytes(size));
        let _ = write!(text, "{},{:.6},{bytes}", or_empty(slots(sweep, size)), sweep.share(size));
        for misses in sweep.lines.iter().map(|line| line.misses[index]) {
            let rate = misses.map_or(String::new(), |misses| format!("{:.6}", sweep.rate(misses.count)));
            let bytes = or_empty(misses.and_then(|misses| misses.bytes));
            let _ = write!(text, ",{},{rate},{bytes}", or_empty(misses.map(|misses| misses.count)));
        }
        text.push('\n');
    }
    text
}

/// A size in slots, where it is that.
fn slots(sweep: &Sweep, size: u64) -> Option<u64> {
    matches!(sweep.space, Space::Slots(_)).then_some(size)
}

pub(crate) fn write_json(sweep: &Sweep, out: &mut String) -> Result {
    let header = &sweep.header;
    let size_json = |&size: &u64| json!({ "slots": slots(sweep, size), "share": sweep.share(size), "bytes": sweep.space.bytes(size) });
    let line = |line: &Line| {
        let of_each = |of: &dyn Fn(Misses) -> Value| -> Value {
            line.misses.iter().map(|misses| misses.map_or(Value::Null, of)).collect()
        };
        json!({
            "name": line.name,
            "policy": line.policy,
            "scope": line.scope,
            "split": line.split,
            "configurable": line.is_configurable,
            "misses": of_each(&|misses| misses.count.into()),
            "miss_rates": of_each(&|misses| sweep.rate(misses.count).into()),
            "moved_bytes": of_each(&|misses| misses.bytes.into()),
        })
    };
    let (expert_bytes, model_file) = match &sweep.space {
        Space::Slots(slots) => (slots.expert_bytes.map(|bytes| bytes.mean), None),
        Space::Bytes(bytes) => (None, Some(&bytes.name)),
    };
    let value = json!({
        "model": header.model,
        "pools_of": model_file,
        "tokens": header.tokens,
        "layers": header.layers,
        "experts": header.experts,
        "top_k": header.top_k,
        "batch": sweep.batch,
        "steps": sweep.steps,
        "uses": sweep.uses,
        "experts_used": sweep.experts_used,
        "widest_step": sweep.widest_step,
        "cut": sweep.cut,
        "expert_bytes": expert_bytes,
        "sizes": sweep.sizes.iter().map(size_json).collect::<Value>(),
        "lines": sweep.lines.iter().map(line).collect::<Value>(),
        "chosen": {
            "slots": slots(sweep, sweep.chosen_size()),
            "bytes": sweep.space.bytes(sweep.chosen_size()),
            "best": sweep.best().name,
            "saved_misses": saved(sweep).map(|(misses, _)| misses),
            "saved_bytes": saved(sweep).and_then(|(_, bytes)| bytes),
        },
    });
    writeln!(out, "{value:#}")
}
