//! What `sweep` says: a table for people, CSV and JSON for programs, and the line that one would act on.

use std::fmt::{Result, Write};

use serde_json::{Value, json};

use crate::sweep::{Line, Sweep};
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
    if let Some(bytes) = sweep.expert_bytes {
        match bytes.least == bytes.most {
            true => writeln!(out, "an expert has {} bytes", grouped(bytes.mean))?,
            // A pool has slots of one size: such a cache has several, and bytes are about right at best.
            false => writeln!(
                out,
                "an expert has {} to {} bytes by its layer; counted with their mean, {}",
                grouped(bytes.least),
                grouped(bytes.most),
                grouped(bytes.mean)
            )?,
        }
    }
    writeln!(out, "LRU is counted up to ties within a step; `replay` has one size to the last miss")?;
    writeln!(out)?;

    let mut heading = vec!["slots".to_owned(), "of experts".to_owned()];
    heading.extend(sweep.expert_bytes.map(|_| "bytes".to_owned()));
    heading.extend(sweep.lines.iter().map(|line| line.name.to_owned()));
    let mut table = Table::with_heading(heading);
    for (index, &slots) in sweep.sizes.iter().enumerate() {
        let mut row = vec![grouped(slots as u64), format!("{:.1} %", 100.0 * share(sweep, slots))];
        row.extend(sweep.bytes(slots).map(binary));
        row.extend(sweep.lines.iter().map(|line| percent(line.misses[index].map(|misses| sweep.rate(misses)))));
        table.row(row);
    }
    writeln!(out, "{table}")?;
    writeln!(out, "{}", verdict(sweep))
}

/// The best that a cache can be set to at the chosen size, and how far it is from what is lost without it and from what
/// cannot be beaten.
fn verdict(sweep: &Sweep) -> String {
    let (best, first) = (sweep.best(), &sweep.lines[0]);
    let at = |line: &Line| percent(line.misses[sweep.chosen].map(|misses| sweep.rate(misses)));
    let mut text = format!("at {}: {} misses {}", count(sweep.sizes[sweep.chosen] as u64, "slot"), best.name, at(best));
    if std::ptr::eq(best, first) {
        text += ", and nothing that a cache can be set to misses less";
    } else {
        let _ = write!(text, ", {:.1} % fewer than {}", 100.0 * saved(sweep), first.name);
    }
    for bound in sweep.lines.iter().filter(|line| !line.is_configurable) {
        let _ = write!(text, "; the {} misses {}", bound.name, at(bound));
    }
    text
}

/// Misses of unified LRU that the best line does not have, as a share of them.
fn saved(sweep: &Sweep) -> f64 {
    let misses = |line: &Line| line.misses[sweep.chosen].expect("a size holds the widest step");
    let (best, first) = (misses(sweep.best()), misses(&sweep.lines[0]));
    (first - best) as f64 / first as f64
}

fn share(sweep: &Sweep, slots: usize) -> f64 {
    slots as f64 / sweep.experts_used as f64
}

/// A row for each size; what is not known is empty.
pub(crate) fn csv(sweep: &Sweep) -> String {
    let mut text = "slots,share,bytes".to_owned();
    for line in &sweep.lines {
        let key = format!("{}_{}", line.policy, line.scope.replace('-', "_"));
        let _ = write!(text, ",{key}_misses,{key}_miss_rate");
    }
    text.push('\n');
    let or_empty = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
    for (index, &slots) in sweep.sizes.iter().enumerate() {
        let _ = write!(text, "{slots},{:.6},{}", share(sweep, slots), or_empty(sweep.bytes(slots)));
        for misses in sweep.lines.iter().map(|line| line.misses[index]) {
            let rate = misses.map_or(String::new(), |misses| format!("{:.6}", sweep.rate(misses)));
            let _ = write!(text, ",{},{rate}", or_empty(misses));
        }
        text.push('\n');
    }
    text
}

pub(crate) fn write_json(sweep: &Sweep, out: &mut String) -> Result {
    let header = &sweep.header;
    let size = |&slots: &usize| json!({ "slots": slots, "share": share(sweep, slots), "bytes": sweep.bytes(slots) });
    let line = |line: &Line| {
        let rates: Vec<Option<f64>> =
            line.misses.iter().map(|misses| misses.map(|misses| sweep.rate(misses))).collect();
        json!({
            "name": line.name,
            "policy": line.policy,
            "scope": line.scope,
            "configurable": line.is_configurable,
            "misses": line.misses,
            "miss_rates": rates,
        })
    };
    let value = json!({
        "model": header.model,
        "tokens": header.tokens,
        "layers": header.layers,
        "experts": header.experts,
        "top_k": header.top_k,
        "batch": sweep.batch,
        "steps": sweep.steps,
        "uses": sweep.uses,
        "experts_used": sweep.experts_used,
        "widest_step": sweep.widest_step,
        "expert_bytes": sweep.expert_bytes.map(|bytes| bytes.mean),
        "sizes": sweep.sizes.iter().map(size).collect::<Value>(),
        "lines": sweep.lines.iter().map(line).collect::<Value>(),
        "chosen": {
            "slots": sweep.sizes[sweep.chosen],
            "best": sweep.best().name,
            "saved": saved(sweep),
        },
    });
    writeln!(out, "{value:#}")
}
