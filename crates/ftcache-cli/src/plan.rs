//! `ftcache plan MODEL --mem 12GiB`: what a budget buys, before anything is loaded.

use std::fmt::Write;
use std::path::PathBuf;

use ftcache::{Budget, Constraints, Geometry, TailPad, parse_bytes};
use ftcache_model::MoeModel;
use serde_json::json;

use crate::table::{Table, binary, count, grouped, ranges};
use crate::{Failure, ScopeArgument};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A .gguf file; of a split model, any of its files
    model: PathBuf,
    /// Bytes for all slots and their pads: 12GiB, 12GB, 9059696640 or 480*18874368
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, required_unless_present = "slots")]
    mem: Option<u64>,
    /// Slots over all pools, instead of bytes
    #[arg(long, value_name = "N", conflicts_with = "mem")]
    slots: Option<u64>,
    /// Which layers share slots
    #[arg(long, value_enum, default_value_t)]
    scope: ScopeArgument,
    /// Requests decoded at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    requests: u32,
    /// The most slots that the engine's kernels index in one pool
    #[arg(long, value_name = "N")]
    slot_limit: Option<u32>,
    /// Make slot strides multiples of this power of two
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    alignment: u64,
    /// Bytes after each pool's last slot [default: as many as a row has, up to 512]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    tail_pad: Option<u64>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let file = MoeModel::open(&arguments.model)?;
    let budget = match (arguments.mem, arguments.slots) {
        (Some(bytes), _) => Budget::Bytes(bytes),
        (None, slots) => Budget::Slots(slots.expect("clap asks for one of the two")),
    };
    let mut constraints = Constraints::new(budget);
    constraints.scope = arguments.scope.into();
    constraints.request_count = arguments.requests;
    constraints.slot_limit = arguments.slot_limit;
    constraints.alignment = arguments.alignment;
    if let Some(bytes) = arguments.tail_pad {
        constraints.tail_pad = TailPad::Bytes(bytes);
    }
    let geometry = Geometry::new(file.geometry()?, constraints)
        .map_err(|error| format!("{}: {error}", arguments.model.display()))?;
    let write = if arguments.json { write_json } else { write_table };
    Ok(write(&file, &geometry, out)?)
}

/// The blocks of the model whose layers a pool serves.
fn blocks<'a>(file: &'a MoeModel, pool: &'a ftcache::Pool) -> impl Iterator<Item = u32> + 'a {
    pool.layers().iter().map(|layer| file.layers[layer.index()].block)
}

fn write_json(file: &MoeModel, geometry: &Geometry, out: &mut String) -> std::fmt::Result {
    let pools: Vec<_> = geometry
        .pools()
        .iter()
        .map(|pool| {
            json!({
                "blocks": blocks(file, pool).collect::<Vec<_>>(),
                "tag": file.layers[pool.layers()[0].index()].tag,
                "slots": pool.slot_count(),
                "min_slots": pool.bounds().min_slots,
                "max_slots": pool.bounds().max_slots,
                "slot_bytes": pool.slot_bytes(),
                "pool_bytes": pool.pool_bytes(),
            })
        })
        .collect();
    let arenas: Vec<_> = file.banks.iter().zip(geometry.arena_bytes()).collect();
    let value = json!({
        "pools": pools,
        "slots": geometry.slot_count(),
        "total_bytes": geometry.total_bytes(),
        "pad_bytes": geometry.pad_bytes(),
        "arena_bytes": arenas.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "requests": geometry.constraints().request_count,
        "request_limit": geometry.request_limit(),
    });
    writeln!(out, "{value:#}")
}

fn write_table(file: &MoeModel, geometry: &Geometry, out: &mut String) -> std::fmt::Result {
    let model = geometry.model();
    let mut table = Table::new(["pool", "quantisation", "layers", "slots", "of experts", "slot bytes", "pool bytes"]);
    for (index, pool) in geometry.pools().iter().enumerate() {
        let layer_count = pool.layers().len() as u64;
        let experts = layer_count * u64::from(model.expert_count());
        table.row([
            index.to_string(),
            file.layers[pool.layers()[0].index()].tag.clone(),
            layer_count.to_string(),
            grouped(u64::from(pool.slot_count())),
            format!("{:.1} %", 100.0 * f64::from(pool.slot_count()) / experts as f64),
            grouped(pool.slot_bytes()),
            grouped(pool.pool_bytes()),
        ]);
    }
    write!(out, "{table}")?;
    writeln!(out)?;
    for (index, pool) in geometry.pools().iter().enumerate() {
        writeln!(out, "pool {index}: blocks {}", ranges(blocks(file, pool)))?;
    }
    writeln!(
        out,
        "{} slots, {} ({} bytes, pads {}){}",
        grouped(geometry.slot_count()),
        binary(geometry.total_bytes()),
        grouped(geometry.total_bytes()),
        grouped(geometry.pad_bytes()),
        match geometry.constraints().budget {
            Budget::Bytes(budget) => format!(" of {} bytes", grouped(budget)),
            _ => String::new(),
        }
    )?;
    let token_slots = u64::from(model.top_k()) * model.layer_count() as u64;
    writeln!(
        out,
        "one token routes to {} experts, {} ({} bytes)",
        grouped(token_slots),
        binary(model.token_bytes()),
        grouped(model.token_bytes())
    )?;
    let limit = match geometry.request_limit() {
        Some(limit) => format!("up to {}", count(u64::from(limit), "request")),
        None => "any number of requests".to_owned(),
    };
    writeln!(out, "{limit} decoded at once; {} asked for", geometry.constraints().request_count)
}
