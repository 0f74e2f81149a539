//! What `probe` prints, as tables and as JSON; and rates as the file that `ftcache_model::measured` reads.

use std::fmt::Write;

use ftcache::BatchReport;
use ftcache::policy::Rates;
use ftcache::transfer::{ContendedPoint, CopyPoint, Link, LinkError, Reads};
use serde_json::{Value, json};

use crate::probe::{Found, Measured, MeasuredRates};
use crate::table::{Table, binary, count, grouped};

impl Measured {
    pub(crate) fn write(&self, rates: Option<&MeasuredRates>, out: &mut String) -> std::fmt::Result {
        match &self.found {
            Found::Cuda(facts, batches, kernels) => {
                writeln!(out, "{facts}\n{batches}")?;
                match kernels {
                    Ok(image) => writeln!(out, "admission on the device by {image}")?,
                    Err(why) => writeln!(out, "no admission on the device: {why}")?,
                }
            }
            Found::Host(why) => writeln!(out, "measured: host memory to host memory, no figure of a link ({why})")?,
        }
        if !self.left_out.is_empty() {
            let sizes: Vec<String> = self.left_out.iter().map(|&bytes| binary(bytes)).collect();
            writeln!(out, "left out, as --bytes is {}: {}", grouped(self.total_bytes), sizes.join(", "))?;
        }
        write_points(out, "copies, a call each", &self.copies)?;
        if let Some(batches) = &self.batches {
            write_points(out, "copies in batches", batches)?;
        }
        write_points(out, "gathers on the device", &self.gathers)?;
        writeln!(out, "small sizes stay in the device's caches: their rate is not that of its memory")?;
        let Reads { threads, bytes } = self.reads;
        writeln!(out)?;
        writeln!(
            out,
            "{} of the CPU over {}: {} GB/s alone",
            count(threads as u64, "reading thread"),
            binary(bytes),
            giga(self.read_rate)
        )?;
        let mut table = Table::new(["copies beside reads", "GB/s", "us a copy", "of those alone", "reads GB/s"]);
        for (ContendedPoint { copies, read_bytes_per_second }, alone) in self.contended.iter().zip(self.as_applied()) {
            table.row([
                binary(copies.bytes),
                giga(copies.bytes_per_second()),
                micro(copies.seconds_per_copy()),
                percent(copies.bytes_per_second() / alone.bytes_per_second()),
                giga(*read_bytes_per_second),
            ]);
        }
        write!(out, "\n{table}")?;
        writeln!(out)?;
        write_fit(out, "copies", &self.copies)?;
        if let Some(batches) = &self.batches {
            write_fit(out, "copies in batches", batches)?;
        }
        writeln!(out, "a step's copies take {} us besides their bytes", micro(self.step_seconds))?;
        let Some(MeasuredRates { path, rates, note, written }) = rates else { return Ok(()) };
        let mut table = Table::new(["rates of", "expert bytes", "link GB/s", "CPU GB/s", "link beside", "CPU beside"]);
        for point in rates.points() {
            let optional = |rate: Option<f64>| rate.map_or("-".to_owned(), giga);
            table.row([
                point.tag.escape_ascii().to_string(),
                grouped(point.expert_bytes),
                giga(point.link),
                optional(point.cpu),
                optional(point.contended.map(|pair| pair.link)),
                optional(point.contended.map(|pair| pair.cpu)),
            ]);
        }
        writeln!(out, "\n{table}")?;
        if written.is_ok() {
            writeln!(out, "written to {} for device {:?}", path.display(), rates.device())?;
        }
        note.as_ref().map_or(Ok(()), |note| writeln!(out, "note: {note}"))
    }

    pub(crate) fn json(&self, rates: Option<&MeasuredRates>) -> Value {
        let point = |point: &CopyPoint| {
            json!({
                "bytes": point.bytes,
                "count": point.count,
                "seconds": point.seconds,
                "returned_seconds": point.returned_seconds,
                "bytes_per_second": point.bytes_per_second(),
            })
        };
        let points = |points: &[CopyPoint]| -> Value { points.iter().map(point).collect() };
        let fit = |points: &[CopyPoint]| match Link::fit(points) {
            Ok(link) => json!({
                "bytes_per_second": link.bytes_per_second,
                "seconds_per_copy": link.seconds_per_copy,
                "deviation": link.deviation(points),
            }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        let contended = |contended: &ContendedPoint| {
            let mut value = point(&contended.copies);
            value["read_bytes_per_second"] = json!(contended.read_bytes_per_second);
            value
        };
        let mut whole = json!({
            "device": self.name,
            "left_out": self.left_out,
            "copies": points(&self.copies),
            "batches": self.batches.as_deref().map(points),
            "gathers": points(&self.gathers),
            "seconds_per_step": self.step_seconds,
            "reads": {
                "threads": self.reads.threads,
                "bytes": self.reads.bytes,
                "bytes_per_second": self.read_rate,
            },
            "contended": self.contended.iter().map(contended).collect::<Vec<_>>(),
            "fit": { "copies": fit(&self.copies), "batches": self.batches.as_deref().map(fit) },
        });
        match &self.found {
            Found::Host(why) => whole["no_link"] = json!(why),
            Found::Cuda(facts, batches, kernels) => {
                whole["cuda"] = json!({
                    "ordinal": facts.ordinal,
                    "driver_version": facts.driver_version,
                    "capability": [facts.capability.0, facts.capability.1],
                    "memory_bytes": facts.memory_bytes,
                    "waits_for_words": facts.waits_for_words,
                    "registers_read_only": facts.registers_read_only,
                    "batches": matches!(batches, BatchReport::On { .. }),
                    "batch_report": batches.to_string(),
                    "kernels": kernels.is_ok(),
                    "kernel_report": kernels.as_ref().unwrap_or_else(|why| why),
                });
            }
        }
        if let Some(MeasuredRates { rates, note, .. }) = rates {
            whole["rates"] = rates_json(rates, note.as_deref());
        }
        whole
    }
}

fn write_points(out: &mut String, heading: &str, points: &[CopyPoint]) -> std::fmt::Result {
    let mut table = Table::new([heading, "copies", "GB/s", "us a copy", "calls returned after"]);
    for point in points {
        table.row([
            binary(point.bytes),
            grouped(point.count),
            giga(point.bytes_per_second()),
            micro(point.seconds_per_copy()),
            percent(point.returned_seconds / point.seconds),
        ]);
    }
    write!(out, "\n{table}")
}

fn write_fit(out: &mut String, what: &str, points: &[CopyPoint]) -> std::fmt::Result {
    match Link::fit(points) {
        Ok(link) => writeln!(
            out,
            "{what}: {} us each and {} GB/s fit best, off by up to {}",
            micro(link.seconds_per_copy),
            giga(link.bytes_per_second),
            percent(link.deviation(points))
        ),
        // Few sizes were asked for: no reason to throw away what was measured.
        Err(error @ (LinkError::TooFewSizes { .. } | LinkError::NoBandwidth { .. })) => {
            writeln!(out, "{what}: no fit, {error}")
        }
        Err(error) => unreachable!("points that were measured: {error}"),
    }
}

fn giga(rate: f64) -> String {
    format!("{:.2}", rate / 1e9)
}

fn micro(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e6)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Rates in the form of `ftcache_model::measured`.
pub(crate) fn rates_json(rates: &Rates, note: Option<&str>) -> Value {
    let points: Vec<Value> = rates
        .points()
        .iter()
        .map(|point| {
            let mut value = json!({
                "tag": String::from_utf8_lossy(&point.tag),
                "expert_bytes": point.expert_bytes,
                "link_bytes_per_second": point.link,
            });
            if let Some(cpu) = point.cpu {
                value["cpu_bytes_per_second"] = json!(cpu);
            }
            if let Some(pair) = point.contended {
                value["contended"] = json!({ "link_bytes_per_second": pair.link, "cpu_bytes_per_second": pair.cpu });
            }
            value
        })
        .collect();
    let mut whole = json!({ "device": rates.device(), "points": points });
    if let Some(seconds) = rates.seconds_per_step() {
        whole["seconds_per_step"] = json!(seconds);
    }
    if let Some(note) = note {
        whole["note"] = json!(note);
    }
    whole
}
