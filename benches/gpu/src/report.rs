//! What is printed: tables in Markdown, to be pasted where results are kept; the same as JSON, for what compares.

use std::fmt::Write;

use ftcache_policy::Eviction;
use serde_json::{Value, json};

use crate::walk::{Room, Walk};
use crate::{GATHER_BLOCKS, GATHER_GOAL_BLOCKS, MISSES, Outcome, admission, gather};

/// Where it ran.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) device: String,
    pub(crate) capability: (i32, i32),
    pub(crate) cuda: i32,
    /// The driver's own version, where the system tells it.
    pub(crate) driver: Option<String>,
    pub(crate) command: String,
    pub(crate) is_emulated: bool,
}

impl Head {
    fn cuda(&self) -> String {
        format!("{}.{}", self.cuda / 1000, self.cuda % 1000 / 10)
    }
}

/// A row of admissions, or why there is none.
#[derive(Debug, Clone)]
pub(crate) struct AdmissionRow {
    pub(crate) threads: u32,
    pub(crate) walk: Walk,
    pub(crate) timed: Outcome<admission::Timed>,
}

impl AdmissionRow {
    /// Microseconds a step by graph replay.
    fn graph(&self) -> Option<f64> {
        self.timed.as_ref().ok().map(|timed| median(&timed.graph))
    }

    fn wait(&self) -> Option<f64> {
        self.timed.as_ref().ok().map(|timed| median(&timed.wait))
    }
}

/// A row of gathers, or why there is none.
#[derive(Debug, Clone)]
pub(crate) struct GatherRow {
    pub(crate) row_count: u32,
    pub(crate) bytes: u64,
    pub(crate) blocks: u32,
    pub(crate) timed: Outcome<gather::Timed>,
}

impl GatherRow {
    /// What part of the plain copy's bandwidth a gather reaches.
    fn of_plain(&self) -> Option<f64> {
        self.timed.as_ref().ok().map(|timed| median(&timed.plain) / median(&timed.gather))
    }
}

/// Everything that was found.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) head: Head,
    pub(crate) room: Room,
    pub(crate) eviction: Eviction,
    pub(crate) image: String,
    pub(crate) admissions: Vec<AdmissionRow>,
    pub(crate) gathers: Vec<GatherRow>,
    /// What could not even be begun.
    pub(crate) failures: Vec<String>,
}

/// The middle of some numbers: of an even count, the upper of the two.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn cell(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}"))
}

impl Report {
    /// What went wrong, row by row.
    pub(crate) fn failures(&self) -> Vec<String> {
        let admissions = self.admissions.iter().filter_map(|row| {
            let error = row.timed.as_ref().err()?;
            let Walk { requests, misses, .. } = row.walk;
            Some(format!("admission, {requests} requests, {misses} misses, {} threads: {error}", row.threads))
        });
        let gathers = self.gathers.iter().filter_map(|row| {
            let error = row.timed.as_ref().err()?;
            Some(format!("gather, {} rows, {} blocks: {error}", row.row_count, row.blocks))
        });
        self.failures.iter().cloned().chain(admissions).chain(gathers).collect()
    }

    /// All tables.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let Head { device, capability: (major, minor), driver, command, is_emulated, .. } = &self.head;
        if *is_emulated {
            text += "**An emulated driver: these times mean nothing.**\n\n";
        }
        let driver = driver.as_ref().map_or_else(String::new, |driver| format!("driver {driver}, "));
        let cuda = self.head.cuda();
        let _ = writeln!(text, "{device} (compute capability {major}.{minor}), {driver}CUDA {cuda}: `{command}`");
        let mut threads: Vec<u32> = self.admissions.iter().map(|row| row.threads).collect();
        threads.dedup();
        threads.into_iter().for_each(|threads| self.write_admissions(&mut text, threads));
        self.write_gathers(&mut text);
        self.write_goals(&mut text);
        let failures = self.failures();
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
            failures.iter().for_each(|failure| text += &format!("- {failure}\n"));
        }
        text
    }

    fn rows(&self, threads: u32) -> impl Iterator<Item = &AdmissionRow> {
        self.admissions.iter().filter(move |row| row.threads == threads)
    }

    fn row(&self, threads: u32, requests: u32, misses: u32) -> Option<&AdmissionRow> {
        self.rows(threads).find(|row| (row.walk.requests, row.walk.misses) == (requests, misses))
    }

    /// How much more the most misses cost than one, where a walk misses as often as it is to.
    fn growth(&self, threads: u32, requests: u32) -> Option<f64> {
        let most = MISSES[MISSES.len() - 1];
        let is_known = self.eviction == Eviction::Lru;
        let graph = |misses| self.row(threads, requests, misses).filter(|_| is_known)?.graph();
        Some(graph(most)? / graph(1)?)
    }

    fn requests(&self) -> Vec<u32> {
        let mut requests: Vec<u32> = self.admissions.iter().map(|row| row.walk.requests).collect();
        requests.sort_unstable();
        requests.dedup();
        requests
    }

    fn write_admissions(&self, text: &mut String, threads: u32) {
        let Room { slot_count, expert_count, top_k, layer_count } = self.room;
        let _ = writeln!(
            text,
            "\nAdmission, microseconds a step, medians: {slot_count} slots, {layer_count} layers of {expert_count} \
             experts, top-{top_k}, {threads} threads, {}, victims by {}. By replays of a graph of admissions, each \
             with as many misses{}; the last column launches one admission and waits for it, on the host's clock.\n",
            self.image,
            self.eviction,
            if self.eviction == Eviction::Lru { "" } else { " by LRU, and in brackets as many as there were" },
        );
        *text += "| requests | routes | distinct |";
        MISSES.iter().for_each(|&misses| *text += &format!(" {} |", column(misses)));
        let _ = writeln!(text, " {} misses / 1 | launch and wait, all hits |", MISSES[MISSES.len() - 1]);
        *text += &format!("|{}\n", "---|".repeat(MISSES.len() + 5));
        for requests in self.requests() {
            let walk = self.rows(threads).map(|row| &row.walk).find(|walk| walk.requests == requests);
            let distinct = walk.map_or(0, Walk::distinct);
            let _ = write!(text, "| {requests} | {} | {distinct} |", requests * top_k);
            for misses in MISSES {
                let row = self.row(threads, requests, misses);
                let _ = write!(text, " {}", cell(row.and_then(AdmissionRow::graph), 2));
                if let Some(timed) =
                    row.and_then(|row| row.timed.as_ref().ok()).filter(|_| self.eviction != Eviction::Lru)
                {
                    let _ = write!(text, " ({:.2})", timed.counted.misses as f64 / timed.counted.steps as f64);
                }
                *text += " |";
            }
            let wait = self.row(threads, requests, 0).and_then(AdmissionRow::wait);
            let _ = writeln!(text, " {} | {} |", cell(self.growth(threads, requests), 2), cell(wait, 1));
        }
    }

    fn write_gathers(&self, text: &mut String) {
        let Some(first) = self.gathers.first() else { return };
        let expert_bytes = first.bytes / u64::from(first.row_count);
        let _ = writeln!(
            text,
            "\nGather of experts' rows of {expert_bytes} bytes from pinned memory, as a part of the bandwidth of one \
             plain copy of as many bytes out of the same memory (in brackets: out of memory that the driver \
             allocated), by blocks of the gather; medians.\n"
        );
        *text += "| experts | bytes | plain, GB/s |";
        GATHER_BLOCKS.iter().for_each(|blocks| *text += &format!(" {blocks} blocks |"));
        *text += &format!("\n|{}\n", "---|".repeat(GATHER_BLOCKS.len() + 3));
        let mut counts: Vec<u32> = self.gathers.iter().map(|row| row.row_count).collect();
        counts.sort_unstable();
        counts.dedup();
        for count in counts {
            let rows = || self.gathers.iter().filter(|row| row.row_count == count);
            let bytes = rows().next().map_or(0, |row| row.bytes);
            let rate = |of: fn(&gather::Timed) -> &Vec<f64>| {
                let times: Vec<f64> = rows().filter_map(|row| row.timed.as_ref().ok()).flat_map(of).copied().collect();
                (!times.is_empty()).then(|| bytes as f64 / median(&times) / 1e9)
            };
            let (plain, allocated) = (rate(|timed| &timed.plain), rate(|timed| &timed.allocated));
            let _ = write!(text, "| {count} | {bytes} | {} ({}) |", cell(plain, 1), cell(allocated, 1));
            for blocks in GATHER_BLOCKS {
                let part = rows().find(|row| row.blocks == blocks).and_then(GatherRow::of_plain);
                let _ = write!(text, " {} |", cell(part, 3));
            }
            *text += "\n";
        }
    }

    /// What was aimed at on an H100 or H200, and what was found. What flashlib takes is known to the script beside it.
    fn write_goals(&self, text: &mut String) {
        if self.head.is_emulated || self.eviction != Eviction::Lru {
            return;
        }
        let mut say = |goal: &str, found: Option<(f64, String)>, is_reached: fn(f64) -> bool| {
            let Some((number, found)) = found else { return };
            let word = if is_reached(number) { "reached" } else { "not reached" };
            let _ = writeln!(text, "- {goal}: {found}; {word}.");
        };
        let threads = self.admissions.first().map_or(0, |row| row.threads);
        let widest = self.rows(threads).filter(|row| row.walk.route_count() == 1280);
        let slowest = widest.filter_map(|row| Some((row.graph()?, row.walk.misses)));
        let slowest = slowest.max_by(|one, other| one.0.total_cmp(&other.0));
        let found = slowest.map(|(time, misses)| (time, format!("{time:.2} us at most, with {}", column(misses))));
        say("At most 12 us at 1,280 routes", found, |time| time <= 12.0);
        let growths =
            self.requests().into_iter().filter_map(|requests| Some((self.growth(threads, requests)?, requests)));
        let most = growths.max_by(|one, other| one.0.total_cmp(&other.0));
        let found = most.map(|(growth, requests)| (growth, format!("{growth:.2} at most, with {requests} requests")));
        say("From 1 to 64 misses less than twice the time", found, |growth| growth < 2.0);
        let widest = self.gathers.iter().map(|row| row.row_count).max();
        let row = self.gathers.iter().find(|row| Some(row.row_count) == widest && row.blocks == GATHER_GOAL_BLOCKS);
        let found = row.and_then(|row| Some((row.of_plain()?, row.row_count)));
        let found =
            found.map(|(part, count)| (part, format!("{part:.3} of it, {count} experts, {GATHER_GOAL_BLOCKS} blocks")));
        say("A gather at 0.95 of the plain copy", found, |part| part >= 0.95);
    }

    /// Everything, with every repeat.
    pub(crate) fn json(&self) -> Value {
        let Room { slot_count, expert_count, top_k, layer_count } = self.room;
        let Head { device, capability, driver, command, is_emulated, .. } = &self.head;
        let admissions = self.admissions.iter().map(|AdmissionRow { threads, walk, timed }| {
            let mut row = json!({
                "threads": threads,
                "requests": walk.requests,
                "routes": walk.route_count(),
                "distinct": walk.distinct(),
                "misses": walk.misses,
                "walk": {"layers": walk.layer_count, "hits": walk.hits, "groups": walk.group_count},
            });
            match timed {
                Ok(timed) => {
                    row["us"] = json!(median(&timed.graph));
                    row["us_of_repeats"] = json!(timed.graph);
                    row["wait_us"] = json!(median(&timed.wait));
                    row["wait_us_of_repeats"] = json!(timed.wait);
                    row["graph_steps"] = json!(timed.graph_steps);
                    row["counted_steps"] = json!(timed.counted.steps);
                    row["counted_misses"] = json!(timed.counted.misses);
                }
                Err(error) => row["error"] = json!(error),
            }
            row
        });
        let gathers = self.gathers.iter().map(|GatherRow { row_count, bytes, blocks, timed }| {
            let mut row = json!({"experts": row_count, "bytes": bytes, "blocks": blocks});
            match timed {
                Ok(timed) => {
                    for (name, times) in
                        [("gather", &timed.gather), ("plain", &timed.plain), ("plain_allocated", &timed.allocated)]
                    {
                        row[format!("{name}_us")] = json!(median(times) * 1e6);
                        let all: Vec<f64> = times.iter().map(|seconds| seconds * 1e6).collect();
                        row[format!("{name}_us_of_repeats")] = json!(all);
                    }
                }
                Err(error) => row["error"] = json!(error),
            }
            row
        });
        json!({
            "device": device,
            "capability": [capability.0, capability.1],
            "cuda": self.head.cuda(),
            "driver": driver,
            "command": command,
            "is_emulated": is_emulated,
            "kernels": self.image,
            "slots": slot_count,
            "experts": expert_count,
            "top_k": top_k,
            "layers": layer_count,
            "admission": admissions.collect::<Vec<_>>(),
            "gather": gathers.collect::<Vec<_>>(),
            "failures": self.failures,
        })
    }
}

fn column(misses: u32) -> String {
    match misses {
        0 => "all hits".to_owned(),
        1 => "1 miss".to_owned(),
        misses => format!("{misses} misses"),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_a_number_that_was_measured() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 3.0);
        assert!(median(&[]).is_nan());
    }
}
