//! What `ftcache plan` prints: a configuration as tables or as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use ftcache::policy::{
    Configuration, ConfigurationError, CpuLayers, Effective, Fetch, FetchRule, LayerId, Pool, PoolId, RankView,
    SlotRun, Staging, StagingPlace,
};
use ftcache_model::MoeModel;
use serde_json::{Value, json};

use crate::plan::{CutArgument, Rank, in_blocks};
use crate::table::{Table, binary, count, grouped, ranges};

/// What the same memory buys with no layer on the device as a whole.
pub(crate) struct Comparison {
    pub(crate) all_in_slots: Result<Configuration, ConfigurationError>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.all_in_slots {
            Ok(configuration) => {
                write!(f, "with no layer on the device as a whole, {} a layer", slots_a_layer(configuration))
            }
            Err(error) => write!(f, "with no layer on the device as a whole: {error}"),
        }
    }
}

/// Slots over the layers that share them, on average.
fn slots_a_layer(configuration: &Configuration) -> String {
    let geometry = configuration.geometry();
    let layers: usize = geometry.pools().iter().map(|pool| pool.layers().len()).sum();
    format!("{:.1} slots", geometry.slot_count() as f64 / layers as f64)
}

/// A fetch rule, exact: fractions in 65,536ths.
fn fetch_json(fetch: Fetch) -> Value {
    let (rule, q16, misses) = match fetch.rule {
        FetchRule::UpTo(misses) => ("up_to", None, Some(misses)),
        FetchRule::MinWait(fraction) => ("min_wait", Some(fraction.q16()), None),
        FetchRule::PreferFetch(fraction) => ("prefer_fetch", Some(fraction.q16()), None),
        FetchRule::Carry(fraction) => ("carry", Some(fraction.q16()), None),
    };
    json!({ "rule": rule, "fraction_q16": q16, "misses": misses, "most": fetch.most })
}

/// A configuration and what it was made of.
pub(crate) struct Planned<'a> {
    pub(crate) file: &'a MoeModel,
    pub(crate) view: &'a RankView,
    /// The model's own number of each layer.
    pub(crate) blocks: Vec<u32>,
    pub(crate) rank: Option<Rank>,
    pub(crate) configuration: Configuration,
    pub(crate) comparison: Option<Comparison>,
}

impl Planned<'_> {
    fn blocks_of<'b>(&'b self, pool: &'b Pool) -> impl Iterator<Item = u32> + 'b {
        pool.layers().iter().map(|layer| self.blocks[layer.index()])
    }

    fn tag(&self, layer: LayerId) -> String {
        self.view.model().layer(layer).tag().unwrap_or_default().escape_ascii().to_string()
    }

    fn named<'b>(&'b self, bytes: &'b [u64]) -> BTreeMap<&'b str, u64> {
        self.file.banks.iter().map(String::as_str).zip(bytes.iter().copied()).collect()
    }

    /// Every setting; layers by the model's own numbers.
    fn effective(&self) -> Vec<Effective> {
        let blocks = |layers: &[LayerId]| match layers {
            [] => "none".to_owned(),
            _ => format!("blocks {}", ranges(layers.iter().map(|layer| self.blocks[layer.index()]))),
        };
        let mut settings = self.configuration.effective();
        for one in settings.iter_mut().filter(|one| one.setting == "cpu layers") {
            if let CpuLayers::List(listed) = &self.configuration.settings().cpu_layers {
                one.asked = blocks(listed);
            }
            one.effective = blocks(self.configuration.cpu_layers());
        }
        for one in settings.iter_mut().filter(|one| one.setting == "resident layers") {
            one.asked = blocks(&self.configuration.settings().resident_layers);
            one.effective.clone_from(&one.asked);
        }
        for one in &mut settings {
            one.reason = one.reason.take().map(|reason| in_blocks(&reason, &self.blocks));
        }
        settings
    }

    pub(crate) fn write_json(&self, out: &mut String) -> fmt::Result {
        let configuration = &self.configuration;
        let geometry = configuration.geometry();
        let pools: Vec<Value> =
            (0..geometry.pools().len()).map(|index| self.pool_json(PoolId::from_index(index))).collect();
        let settings: serde_json::Map<String, Value> = self
            .effective()
            .into_iter()
            .map(|one| {
                let value = json!({ "asked": one.asked, "effective": one.effective, "reason": one.reason });
                (one.setting.replace(' ', "_"), value)
            })
            .collect();
        let declined: Vec<Value> = configuration
            .declined()
            .iter()
            .map(|(layer, why)| json!({ "block": self.blocks[layer.index()], "reason": why.to_string() }))
            .collect();
        let reserves = configuration.settings().reserves.iter();
        let reserves: Vec<Value> =
            reserves.map(|reserve| json!({ "name": reserve.name, "bytes": reserve.bytes })).collect();
        let set_aside = configuration.set_aside();
        let mut value = json!({
            "pools": pools,
            "slots": geometry.slot_count(),
            "total_bytes": geometry.total_bytes(),
            "pad_bytes": geometry.pad_bytes(),
            "requests": configuration.request_count(),
            "request_limit": geometry.request_limit(),
            "batch_sizes": configuration.fitting_batches(),
            "on_demand_tokens": geometry.on_demand_tokens(),
            "staging": configuration.staging().map(|staging| self.staging_json(staging)),
            "settings": settings,
            "declined": declined,
            "set_aside": {
                "arenas": self.named(&set_aside.arenas),
                "staging": self.named(&set_aside.staging),
                "resident": set_aside.resident,
                "tables": set_aside.tables,
                "total": set_aside.total(),
            },
            "reserves": reserves,
            "reserved_bytes": configuration.settings().reserved_bytes(),
            "free_bytes": configuration.settings().free_bytes,
            "left_bytes": configuration.left_bytes(),
            "host": {
                "pinned_bytes": configuration.pinned_bytes(),
                "pinned_ranges": configuration.pinned_ranges(),
                "droppable_bytes": configuration.droppable_bytes(),
            },
            "rank": {
                "rank": self.rank.map(|rank| rank.rank),
                "ranks": self.rank.map(|rank| rank.rank_count),
                "cut": self.rank.map(|rank| match rank.cut {
                    CutArgument::Experts => "experts",
                    CutArgument::Rows => "rows",
                }),
                "experts": [self.view.experts().start, self.view.experts().end],
                "blocks": self.blocks,
            },
            "notes": configuration.notes().iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        if let Some(comparison) = &self.comparison {
            value["all_in_slots"] = match &comparison.all_in_slots {
                Ok(other) => json!({ "slots": other.geometry().slot_count(), "left_bytes": other.left_bytes() }),
                Err(error) => json!({ "error": error.to_string() }),
            };
        }
        writeln!(out, "{value:#}")
    }

    fn pool_json(&self, id: PoolId) -> Value {
        let pool = self.configuration.geometry().pool(id);
        let layer = pool.layers()[0];
        let banks: BTreeMap<&str, Value> = self
            .file
            .banks
            .iter()
            .zip(pool.ranges())
            .map(|(bank, range)| {
                let value = json!({
                    "row_bytes": range.row_bytes,
                    "stride": range.stride,
                    "offset": range.offset,
                    "tail_pad_bytes": range.tail_pad_bytes,
                });
                (bank.as_str(), value)
            })
            .collect();
        json!({
            "blocks": self.blocks_of(pool).collect::<Vec<_>>(),
            "tag": self.tag(layer),
            "slots": pool.slot_count(),
            "min_slots": pool.bounds().min_slots,
            "max_slots": pool.bounds().max_slots,
            "slot_bytes": pool.slot_bytes(),
            "pool_bytes": pool.pool_bytes(),
            "stable_from": self.configuration.staging().map(|staging| staging.stable_from(id)),
            "fetch": self.configuration.fetch(layer).map(fetch_json),
            "banks": banks,
        })
    }

    fn staging_json(&self, staging: &Staging) -> Value {
        let run = |run: &SlotRun| json!({ "pool": run.pool.get(), "first": run.first.get(), "count": run.count });
        let buffers = 0..staging.buffer_count() as usize;
        let invalidates: Vec<Vec<Value>> =
            buffers.map(|buffer| staging.invalidates(buffer).iter().map(run).collect()).collect();
        let of_banks = |bytes: fn(&ftcache::policy::StageRange) -> u64| {
            json!(self.named(&staging.ranges().iter().map(bytes).collect::<Vec<_>>()))
        };
        json!({
            "borrowed": staging.is_borrowed(),
            "buffers": staging.buffer_count(),
            "stage_bytes": of_banks(|range| range.stage_bytes),
            "buffer_stride": of_banks(|range| range.buffer_stride),
            "tail_pad_bytes": of_banks(|range| range.tail_pad_bytes),
            "invalidates": invalidates,
            "stable_slots": staging.stable_slots(self.configuration.geometry()),
        })
    }

    pub(crate) fn write_table(&self, out: &mut String) -> fmt::Result {
        self.write_pools(out)?;
        writeln!(out)?;
        let mut table = Table::new(["setting", "asked for", "in effect", "why"]);
        for one in self.effective() {
            table.row([one.setting.to_owned(), one.asked, one.effective, one.reason.unwrap_or_default()]);
        }
        write!(out, "{}", table.left_aligned())?;
        writeln!(out)?;
        self.write_set_aside(out)?;
        writeln!(out)?;
        self.write_limits(out)?;
        for note in self.configuration.notes() {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }

    fn write_pools(&self, out: &mut String) -> fmt::Result {
        let geometry = self.configuration.geometry();
        let model = geometry.model();
        let heading = ["pool", "quantisation", "layers", "slots", "of experts", "stable", "slot bytes", "pool bytes"];
        let mut table = Table::new(heading);
        for (index, pool) in geometry.pools().iter().enumerate() {
            let layer_count = pool.layers().len() as u64;
            let experts = layer_count * u64::from(model.expert_count());
            let stable = self
                .configuration
                .staging()
                .map(|staging| grouped(u64::from(pool.slot_count() - staging.stable_from(PoolId::from_index(index)))));
            table.row([
                index.to_string(),
                self.tag(pool.layers()[0]),
                layer_count.to_string(),
                grouped(u64::from(pool.slot_count())),
                format!("{:.1} %", 100.0 * f64::from(pool.slot_count()) / experts as f64),
                stable.unwrap_or("-".to_owned()),
                grouped(pool.slot_bytes()),
                grouped(pool.pool_bytes()),
            ]);
        }
        write!(out, "{table}")?;
        writeln!(out)?;
        for (index, pool) in geometry.pools().iter().enumerate() {
            writeln!(out, "pool {index}: blocks {}", ranges(self.blocks_of(pool)))?;
        }
        let mut declined: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (layer, why) in self.configuration.declined() {
            declined.entry(why.to_string()).or_default().push(self.blocks[layer.index()]);
        }
        for (why, blocks) in declined {
            writeln!(out, "no slots: blocks {} ({why})", ranges(blocks))?;
        }
        Ok(())
    }

    fn write_set_aside(&self, out: &mut String) -> fmt::Result {
        let configuration = &self.configuration;
        let (geometry, set_aside) = (configuration.geometry(), configuration.set_aside());
        let mut table = Table::new(["set aside on the device", "bytes", ""]);
        let mut row = |what: &str, bytes: u64| table.row([what.to_owned(), grouped(bytes), binary(bytes)]);
        row("arenas", geometry.total_bytes());
        row("  of these, pads", geometry.pad_bytes());
        match configuration.settings().staging {
            StagingPlace::Dedicated => row("staging", set_aside.staging.iter().sum()),
            StagingPlace::Borrowed => row("staging, borrowed from the arenas", 0),
            StagingPlace::Nowhere => row("staging, none", 0),
        }
        row("layers as a whole", set_aside.resident);
        row("tables", set_aside.tables);
        row("all of it", set_aside.total());
        for reserve in &configuration.settings().reserves {
            row(&format!("reserved: {}", reserve.name), reserve.bytes);
        }
        if let Some(left) = configuration.left_bytes() {
            row("left of what is free", left);
        }
        write!(out, "{table}")
    }

    fn write_limits(&self, out: &mut String) -> fmt::Result {
        let configuration = &self.configuration;
        let geometry = configuration.geometry();
        let model = geometry.model();
        writeln!(
            out,
            "{}; one token routes to {} experts, {} ({} bytes)",
            count(geometry.slot_count(), "slot"),
            grouped(u64::from(model.top_k()) * model.layer_count() as u64),
            binary(model.token_bytes()),
            grouped(model.token_bytes())
        )?;
        let limit = match geometry.request_limit() {
            Some(limit) => format!("up to {}", count(u64::from(limit), "request")),
            None => "any number of requests".to_owned(),
        };
        writeln!(out, "{limit} decoded at once")?;
        match geometry.on_demand_tokens() {
            0 => writeln!(out, "no prefill chunk is admitted on demand")?,
            tokens => {
                writeln!(out, "prefill chunks of up to {} are admitted on demand", count(u64::from(tokens), "token"))?;
            }
        }
        let (pinned, droppable) = (configuration.pinned_bytes(), configuration.droppable_bytes());
        let ranges_to_pin = count(configuration.pinned_ranges() as u64, "range");
        writeln!(out, "{ranges_to_pin} of the host to pin, {} ({} bytes)", binary(pinned), grouped(pinned))?;
        if droppable > 0 {
            writeln!(
                out,
                "the host may drop {} ({} bytes) once they are copied",
                binary(droppable),
                grouped(droppable)
            )?;
        }
        let owned = self.view.experts();
        if self.rank.is_some() || self.blocks.len() < self.file.layers.len() {
            let rank = self.rank.map_or("this rank".to_owned(), |rank| match rank.cut {
                CutArgument::Experts => format!("rank {} of {}", rank.rank, rank.rank_count),
                CutArgument::Rows => format!("rank {} of {} with rows cut", rank.rank, rank.rank_count),
            });
            writeln!(
                out,
                "{rank}: experts {} of {}, blocks {}",
                ranges(owned),
                self.file.expert_count,
                ranges(self.blocks.iter().copied())
            )?;
        }
        match &self.comparison {
            Some(comparison) => writeln!(out, "{} a layer; {comparison}", slots_a_layer(configuration)),
            None => Ok(()),
        }
    }
}
