//! `ftcache replay TRACE --slots N`: a cache driven with recorded routing, over rows that are really moved and checked.
//!
//! The rows are generated: every byte depends on its layer, bank, expert and place, so that a wrong row, a row in a
//! wrong slot or half a row is seen. Each token of the trace is one step of each layer, in order.
//!
//! With measured rates nothing is moved: `replay_times` says how long the steps would wait.

use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ftcache::transfer::{ArenaRate, ArenaReport};
use ftcache::{
    BankId, BounceSize, Budget, Cache, Constraints, CudaContext, CudaDevice, CudaDriver, Device, Eviction, ExpertId,
    Geometry, HostDevice, HostRows, LayerId, LayoutKey, Model, Quantisation, SlotId, Stats, Stream,
};
use ftcache_trace::{ABSENT, Header, TraceReader};
use serde_json::{Value, json};

use crate::memory::{available_bytes, check_memory};
use crate::progress::ProgressLine;
use crate::table::{Table, binary, count, grouped, percent};
use crate::{Failure, ScopeArgument, replay_times};

/// Beside the weights, a bank as scales have it: few bytes a row.
const SIDE_ROW_BYTES: u64 = 16;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Recorded routing: an .ftr or .ftr.zst file
    trace: PathBuf,
    /// Slots over all pools
    #[arg(long, value_name = "N")]
    slots: u64,
    /// Which layers share slots
    #[arg(long, value_enum, default_value_t)]
    scope: ScopeArgument,
    /// Which rule says who goes: lru, lfu, cyclic, learned
    #[arg(long, value_name = "RULE", default_value_t)]
    eviction: Eviction,
    /// Bytes of a generated row of weights
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    row_bytes: u64,
    /// A CUDA device by its number, over whose link the rows go [default: slots in host memory]
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Show each layer
    #[arg(long)]
    per_layer: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    times: replay_times::Arguments,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    if let Some(rates) = &arguments.times.rates {
        let Arguments { trace, slots, scope, eviction, json, times, .. } = arguments;
        let (scope, eviction) = ((*scope).into(), *eviction);
        let replayed = replay_times::Replayed { trace, slots: *slots, scope, eviction, rates };
        return replay_times::run(&replayed, times, *json, out);
    }
    let Some(ordinal) = arguments.device else { return replay(arguments, HostDevice::new(), out) };
    let mut device = CudaDevice::new(CudaDriver::open()?, CudaContext::Primary(ordinal))?;
    device.probe_batches(0)?;
    replay(arguments, device, out)
}

fn replay<D: Device>(arguments: &Arguments, device: D, out: &mut String) -> Result<(), Failure> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", arguments.trace.display());
    let file = File::open(&arguments.trace).map_err(|error| at(&error))?;
    let mut reader = TraceReader::new(BufReader::new(file)).map_err(|error| at(&error))?;
    let shape = reader.header().shape();

    let mut replay = Replay::new(arguments, shape, device).map_err(|error| at(&error))?;
    let mut line = ProgressLine::new();
    let mut ids = Vec::new();
    let mut token = 0;
    while reader.next_token(&mut ids).map_err(|error| at(&error))? {
        for (layer, cell) in ids.chunks_exact(shape.top_k as usize).enumerate() {
            // An absent cell is absent as a whole: the layer did not run for this token.
            if cell[0] == ABSENT {
                replay.absent_cells += 1;
                continue;
            }
            let layer = LayerId::from_index(layer);
            replay.step(layer, cell).map_err(|error| at(&format!("token {token} layer {layer}: {error}")))?;
        }
        token += 1;
        line.show(|| format!("token {} of {}", grouped(token), grouped(shape.tokens)));
    }
    drop(line);
    let checked_slots = replay.check_every_slot().map_err(|error| at(&error))?;
    Ok(replay.write(arguments, reader.header(), checked_slots, out)?)
}

struct Replay<D: Device> {
    cache: Cache<D>,
    /// Whether the slots lie on the device; host memory is not asked.
    arenas: Option<ArenaReport>,
    /// Time inside `load` alone; checking takes longer than moving.
    load_time: Duration,
    routes: Vec<ExpertId>,
    slots: Vec<SlotId>,
    checked_rows: u64,
    absent_cells: u64,
}

impl<D: Device> Replay<D> {
    fn new(arguments: &Arguments, shape: ftcache_trace::Shape, device: D) -> Result<Self, Failure> {
        let row_bytes = [arguments.row_bytes, SIDE_ROW_BYTES];
        let layers = vec![LayoutKey::tagged("generated", row_bytes); shape.layers as usize];
        let model = Model::new(shape.experts, shape.top_k, Quantisation::PerLayer, layers)?;
        let mut constraints = Constraints::new(Budget::Slots(arguments.slots));
        constraints.scope = arguments.scope.into();
        let geometry = Geometry::new(model, constraints)?;
        let (model_bytes, slot_bytes) = (geometry.model().model_bytes(), geometry.total_bytes());
        let (what, needed_bytes) = host_bytes(model_bytes, slot_bytes, arguments.device.is_none());
        check_memory(what, needed_bytes, available_bytes())?;
        let mut cache = Cache::new(geometry, device)?;
        cache.set_eviction(arguments.eviction)?;
        let arenas = arguments.device.map(|_| cache.measure_arenas()).transpose()?;
        // The rows lie in ordinary memory, which a GPU does not read.
        if arguments.device.is_some() {
            cache.set_bounce(BounceSize::default())?;
        }
        for layer in (0..shape.layers).map(LayerId::new) {
            for (bank, row_bytes) in row_bytes.into_iter().enumerate() {
                let bank = BankId::from_index(bank);
                let bytes = usize::try_from(row_bytes)? * shape.experts as usize;
                let mut rows = vec![0; bytes];
                for (expert, row) in rows.chunks_exact_mut(row_bytes as usize).enumerate() {
                    fill_row(layer, bank, ExpertId::from_index(expert), row);
                }
                cache.attach(layer, bank, HostRows::owned(rows.into(), 0))?;
            }
        }
        let (routes, slots) = (Vec::new(), Vec::new());
        Ok(Self { cache, arenas, load_time: Duration::ZERO, routes, slots, checked_rows: 0, absent_cells: 0 })
    }

    /// One step, and a look at every slot that it was given.
    fn step(&mut self, layer: LayerId, cell: &[u16]) -> Result<(), Failure> {
        self.routes.clear();
        self.routes.extend(cell.iter().map(|&id| ExpertId::new(u32::from(id))));
        let begin = Instant::now();
        let slots = self.cache.load(layer, &self.routes)?;
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        self.cache.synchronize(Stream::DEFAULT)?;
        self.load_time += begin.elapsed();
        for index in 0..self.routes.len() {
            self.check_slot(layer, self.routes[index], self.slots[index])?;
        }
        Ok(())
    }

    /// Whether a slot holds an expert's row in every bank, to the byte.
    fn check_slot(&mut self, layer: LayerId, expert: ExpertId, slot: SlotId) -> Result<(), Failure> {
        for bank in self.cache.geometry().model().bank_ids() {
            let row_bytes = self.cache.geometry().model().row_bytes(layer, bank) as usize;
            let (mut held, mut wanted) = (vec![0; row_bytes], vec![0; row_bytes]);
            self.cache.read_row(layer, bank, slot, &mut held)?;
            fill_row(layer, bank, expert, &mut wanted);
            check_row(&held, &wanted)
                .map_err(|wrong| format!("layer {layer} expert {expert}: slot {slot} bank {bank} {wrong}"))?;
            self.checked_rows += 1;
        }
        Ok(())
    }

    /// Checks every slot that holds an expert; returns how many there are.
    fn check_every_slot(&mut self) -> Result<u64, Failure> {
        let mut checked = 0;
        for pool in 0..self.cache.geometry().pools().len() {
            let pool = ftcache::PoolId::from_index(pool);
            for slot in (0..self.cache.geometry().pool(pool).slot_count()).map(SlotId::new) {
                if let Some((layer, expert)) = self.cache.residency().expert_of(pool, slot) {
                    self.check_slot(layer, expert, slot)?;
                    checked += 1;
                }
            }
        }
        Ok(checked)
    }

    fn write(&self, arguments: &Arguments, header: &Header, checked_slots: u64, out: &mut String) -> std::fmt::Result {
        let stats = self.cache.stats();
        let layer_ids = self.cache.geometry().model().layer_ids();
        let layers: Vec<Stats> =
            layer_ids.map(|layer| self.cache.layer_stats(layer).expect("a layer of the model")).collect();
        let seconds = self.load_time.as_secs_f64();
        let routing = |layer: usize| self.cache.residency().layer_routing(LayerId::from_index(layer));
        let mean = self.cache.residency().mean_routing();
        if arguments.json {
            let value = |stats: &Stats| {
                json!({
                    "steps": stats.residency.steps,
                    "routes": stats.residency.routes,
                    "distinct": stats.residency.distinct,
                    "hits": stats.residency.hits(),
                    "misses": stats.residency.misses,
                    "cold_misses": stats.residency.cold_misses,
                    "capacity_misses": stats.residency.capacity_misses,
                    "evictions": stats.residency.evictions,
                    "hit_rate": stats.residency.hit_rate(),
                    "bytes": stats.bytes,
                })
            };
            let mut whole = value(&stats);
            whole["model"] = json!(header.model);
            whole["device"] = json!(self.cache.device().name());
            whole["arenas"] = json!(self.arenas.as_ref().map(arenas_json));
            whole["tokens"] = json!(header.tokens);
            whole["slots"] = json!(self.cache.geometry().slot_count());
            whole["eviction"] = json!(arguments.eviction.name());
            whole["absent_cells"] = json!(self.absent_cells);
            whole["checked_rows"] = json!(self.checked_rows);
            whole["checked_slots"] = json!(checked_slots);
            whole["load_seconds"] = json!(seconds);
            whole["routing"] = json!(mean.map(|mean| {
                json!({
                    "working_set": mean.working_set,
                    "experts_for_90_percent": mean.experts_for_90_percent,
                    "entropy": mean.entropy,
                    "oracle_hit_rate": mean.oracle_hit_rate,
                })
            }));
            if arguments.per_layer {
                let layer = |(layer, stats): (usize, &Stats)| {
                    let mut value = value(stats);
                    value["routing"] = json!(routing(layer).map(|routing| {
                        json!({
                            "working_set": routing.working_set,
                            "experts_for_90_percent": routing.experts_for_90_percent,
                            "entropy": routing.entropy,
                            "slots": routing.slots,
                            "oracle_hit_rate": routing.oracle_hit_rate,
                        })
                    }));
                    value
                };
                whole["layers"] = layers.iter().enumerate().map(layer).collect();
            }
            return writeln!(out, "{whole:#}");
        }

        writeln!(
            out,
            "{}: {} tokens, {} layers of {} experts, top-{}",
            header.model,
            grouped(header.tokens),
            header.layers,
            header.experts,
            header.top_k
        )?;
        let geometry = self.cache.geometry();
        writeln!(
            out,
            "{} in {} for {}, {} bytes each",
            count(geometry.slot_count(), "slot"),
            count(geometry.pools().len() as u64, "pool"),
            count(u64::from(header.layers) * u64::from(header.experts), "expert"),
            grouped(geometry.pool(ftcache::PoolId::new(0)).slot_bytes())
        )?;
        if arguments.eviction != Eviction::Lru {
            writeln!(out, "victims by {}", arguments.eviction)?;
        }
        if arguments.per_layer {
            writeln!(out)?;
            let mut table = Table::new([
                "layer",
                "steps",
                "distinct",
                "misses",
                "hit rate",
                "oracle",
                "experts",
                "for 90 %",
                "entropy",
                "bytes moved",
            ]);
            for (layer, stats) in layers.iter().enumerate() {
                let counted = stats.residency;
                let cells = [counted.steps, counted.distinct, counted.misses].map(grouped);
                let routing = routing(layer);
                let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
                let rest = [
                    percent(counted.hit_rate()),
                    percent(routing.map(|routing| routing.oracle_hit_rate)),
                    number(routing.map(|routing| routing.working_set)),
                    number(routing.map(|routing| routing.experts_for_90_percent)),
                    routing.map_or("-".to_owned(), |routing| format!("{:.3}", routing.entropy)),
                    grouped(stats.bytes),
                ];
                table.row([layer.to_string()].into_iter().chain(cells).chain(rest));
            }
            write!(out, "{table}")?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "hit rate {}: {} hits and {} misses in {} steps",
            percent(stats.residency.hit_rate()),
            grouped(stats.residency.hits()),
            grouped(stats.residency.misses),
            grouped(stats.residency.steps)
        )?;
        writeln!(
            out,
            "of the misses {} were first uses and {} had lost their slots to others",
            grouped(stats.residency.cold_misses),
            grouped(stats.residency.capacity_misses)
        )?;
        if let Some(mean) = mean {
            writeln!(
                out,
                "a layer used {:.1} experts, {:.1} for 90 % of its routes, entropy {:.3}; its most used, fixed, would hit {}",
                mean.working_set,
                mean.experts_for_90_percent,
                mean.entropy,
                percent(Some(mean.oracle_hit_rate))
            )?;
        }
        writeln!(
            out,
            "checked {} rows as they were used and {} slots at the end: every byte right",
            grouped(self.checked_rows),
            grouped(checked_slots)
        )?;
        if let Some(spilled) = self.arenas.as_ref().and_then(spilled) {
            writeln!(out, "{spilled}")?;
        }
        let device = self.cache.device().name();
        writeln!(out, "moved {} ({} bytes) to {device}", binary(stats.bytes), grouped(stats.bytes))?;
        writeln!(
            out,
            "in {seconds:.3} s, {:.2} GB/s, {:.0} ns a step",
            stats.bytes as f64 / seconds / 1e9,
            1e9 * seconds / stats.residency.steps.max(1) as f64
        )
    }
}

/// Host memory for all rows, and for the slots if they lie there, too.
fn host_bytes(row_bytes: u64, slot_bytes: u64, on_host: bool) -> (&'static str, u64) {
    match on_host {
        true => ("rows and slots need", row_bytes.saturating_add(slot_bytes)),
        false => ("rows need", row_bytes.saturating_add(BounceSize::default().bytes())),
    }
}

/// Arenas that do not lie in the device's memory, in one line, if any does not.
fn spilled(arenas: &ArenaReport) -> Option<String> {
    let arena = |rate: &ArenaRate| {
        let (bytes, reference) = (grouped(rate.bytes), arenas.reference(rate) / 1e9);
        format!(
            "bank {}, {bytes} bytes at {:.1} GB/s instead of {reference:.1}",
            rate.bank,
            rate.bytes_per_second / 1e9
        )
    };
    let spilled: Vec<String> = arenas.spilled().map(arena).collect();
    (!spilled.is_empty()).then(|| format!("not in the device's memory: {}", spilled.join("; ")))
}

fn arenas_json(arenas: &ArenaReport) -> Value {
    let arena = |rate: &ArenaRate| {
        let reference = arenas.reference(rate);
        json!({
            "bank": rate.bank.get(),
            "bytes": rate.bytes,
            "bytes_per_second": rate.bytes_per_second,
            "reference_bytes_per_second": reference,
            "spilled": rate.spilled(reference),
        })
    };
    arenas.rates.iter().map(arena).collect()
}

/// Whether a slot holds what it should, or the first byte that differs.
fn check_row(held: &[u8], wanted: &[u8]) -> Result<(), String> {
    match held.iter().zip(wanted).position(|(held, wanted)| held != wanted) {
        Some(byte) => Err(format!("byte {byte} is {}, not {}", held[byte], wanted[byte])),
        None => Ok(()),
    }
}

/// The bytes of one row: the owner, hashed, as the seed of a sequence, so that rows of two owners have no word alike
/// but by a chance of one in 2^64.
fn fill_row(layer: LayerId, bank: BankId, expert: ExpertId, row: &mut [u8]) {
    let mut state = mixed(u64::from(layer.get()));
    for part in [bank.get(), expert.get()] {
        state = mixed(state ^ u64::from(part));
    }
    for word in row.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed(state).to_le_bytes()[..word.len()]);
    }
}

/// The finish of SplitMix64: every bit of the answer depends on every bit asked.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn row(layer: u32, bank: u32, expert: u32, bytes: usize) -> Vec<u8> {
        let mut row = vec![0; bytes];
        fill_row(LayerId::new(layer), BankId::new(bank), ExpertId::new(expert), &mut row);
        row
    }

    #[test]
    fn a_wrong_byte_is_named() {
        let wanted = row(3, 0, 7, 37);
        assert_eq!(check_row(&wanted, &wanted), Ok(()));
        for byte in 0..wanted.len() {
            let mut held = wanted.clone();
            held[byte] ^= 1;
            let message = format!("byte {byte} is {}, not {}", held[byte], wanted[byte]);
            assert_eq!(check_row(&held, &wanted), Err(message));
        }
    }

    #[test]
    fn slots_take_host_memory_on_the_host_device_alone() {
        assert_eq!(host_bytes(1_000, 10, true), ("rows and slots need", 1_010));
        assert_eq!(host_bytes(1_000, 1 << 50, false), ("rows need", 1_000 + BounceSize::default().bytes()));
    }

    #[test]
    fn arenas_that_have_spilled_are_named_in_one_line() {
        let rate = |bank, bytes_per_second| ArenaRate {
            bank: BankId::new(bank),
            bytes: 300 << 20,
            bytes_per_second,
            fresh_bytes_per_second: Some(1000e9),
        };
        assert_eq!(spilled(&ArenaReport { rates: vec![rate(0, 900e9), rate(1, 990e9)] }), None);
        let report = ArenaReport { rates: vec![rate(0, 900e9), rate(1, 20e9), rate(2, 30e9)] };
        insta::assert_snapshot!(spilled(&report).unwrap(), @"not in the device's memory: bank 1, 314,572,800 bytes at 20.0 GB/s instead of 1000.0; bank 2, 314,572,800 bytes at 30.0 GB/s instead of 1000.0");
        let json = arenas_json(&report);
        assert_eq!((&json[0]["spilled"], &json[1]["spilled"]), (&json!(false), &json!(true)));
    }

    #[test]
    fn no_two_rows_share_a_word() {
        let mut words = HashSet::new();
        for layer in 0..64 {
            for bank in 0..2 {
                for expert in 0..128 {
                    let row = row(layer, bank, expert, 32);
                    assert!(row.chunks(8).all(|word| words.insert(word.to_vec())), "{layer} {bank} {expert}");
                }
            }
        }
    }

    #[test]
    fn a_slot_that_holds_another_row_ends_the_replay() {
        let arguments = Arguments {
            trace: "trace".into(),
            slots: 4,
            scope: ScopeArgument::Unified,
            eviction: Eviction::Lru,
            row_bytes: 64,
            device: None,
            per_layer: false,
            json: false,
            times: replay_times::Arguments::default(),
        };
        let shape = ftcache_trace::Shape { tokens: 1, layers: 2, top_k: 2, experts: 8 };
        let mut replay = Replay::new(&arguments, shape, HostDevice::new()).unwrap();
        replay.step(LayerId::new(1), &[3, 5]).unwrap();
        assert_eq!(replay.check_every_slot().unwrap(), 2);
        // The rows of layer 1 are exchanged for those of layer 0 behind the cache's back; what is copied from now on is
        // wrong.
        let rows: Vec<u8> = (0..8).flat_map(|expert| row(0, 0, expert, 64)).collect();
        replay.cache.attach(LayerId::new(1), BankId::new(0), HostRows::owned(rows.into(), 0)).unwrap();
        replay.step(LayerId::new(1), &[3, 5]).expect("both are resident");
        let error = replay.step(LayerId::new(1), &[3, 6]).unwrap_err().to_string();
        assert!(error.starts_with("layer 1 expert 6: slot 2 bank 0 byte 0 is "), "{error}");
    }
}
