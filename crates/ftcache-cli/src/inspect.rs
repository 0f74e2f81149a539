//! `ftcache inspect MODEL`: what the experts weigh, layer by layer.

use std::fmt::Write;
use std::path::PathBuf;

use ftcache_model::MoeModel;
use serde_json::json;

use crate::Failure;
use crate::table::{Table, binary, count, grouped, ranges};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A .gguf file; of a split model, any of its files
    model: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let model = MoeModel::open(&arguments.model)?;
    let geometry = model.geometry()?;
    if arguments.json {
        let layers: Vec<_> = model
            .layers
            .iter()
            .zip(geometry.layers())
            .map(|(layer, key)| json!({ "block": layer.block, "tag": layer.tag, "row_bytes": key.row_bytes() }))
            .collect();
        let value = json!({
            "name": model.name,
            "architecture": model.architecture,
            "blocks": model.block_count,
            "experts": model.expert_count,
            "top_k": model.top_k,
            "banks": model.banks,
            "layers": layers,
            "expert_bytes": geometry.model_bytes(),
            "token_bytes": geometry.token_bytes(),
            "files": model.files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>(),
        });
        writeln!(out, "{value:#}")?;
        return Ok(());
    }

    let name = if model.name.is_empty() { "unnamed" } else { &model.name };
    writeln!(
        out,
        "{name} ({}), {} in {}",
        model.architecture,
        count(u64::from(model.block_count), "block"),
        count(model.files.len() as u64, "file")
    )?;
    writeln!(out, "{} layers of {} experts, top-{}", model.layers.len(), model.expert_count, model.top_k)?;
    writeln!(out)?;

    // Layers of one key are one row: a model has two or three kinds, not forty-eight.
    let mut kinds: Vec<(&str, &[u64], Vec<u32>)> = Vec::new();
    for (layer, key) in model.layers.iter().zip(geometry.layers()) {
        match kinds.iter_mut().find(|(tag, row_bytes, _)| *tag == layer.tag && *row_bytes == key.row_bytes()) {
            Some((_, _, blocks)) => blocks.push(layer.block),
            None => kinds.push((&layer.tag, key.row_bytes(), vec![layer.block])),
        }
    }
    let mut heading = vec!["quantisation".to_owned(), "layers".to_owned()];
    heading.extend(model.banks.iter().map(|bank| format!("{bank} row")));
    heading.push("expert bytes".to_owned());
    heading.push("all experts".to_owned());
    let mut table = Table::with_heading(heading);
    for (tag, row_bytes, blocks) in &kinds {
        let expert: u64 = row_bytes.iter().sum();
        let all = expert * u64::from(model.expert_count) * blocks.len() as u64;
        let mut row = vec![(*tag).to_owned(), blocks.len().to_string()];
        row.extend(row_bytes.iter().map(|&bytes| grouped(bytes)));
        row.extend([grouped(expert), binary(all)]);
        table.row(row);
    }
    write!(out, "{table}")?;
    writeln!(out)?;
    for (tag, _, blocks) in &kinds {
        writeln!(out, "{tag}: blocks {}", ranges(blocks.iter().copied()))?;
    }
    writeln!(
        out,
        "all experts {} ({} bytes); one token's {} ({} bytes)",
        binary(geometry.model_bytes()),
        grouped(geometry.model_bytes()),
        binary(geometry.token_bytes()),
        grouped(geometry.token_bytes())
    )?;
    Ok(())
}
