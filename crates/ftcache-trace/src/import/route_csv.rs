//! The form `route_trace v1`: a line of text for each route, under comments that describe the model.
//!
//! ```text
//! # route_trace v1
//! # model=/models/toy.gguf arch=toy n_layer=2 n_expert=8 n_expert_used=2
//! # layer=0 expert_bytes=4096 dense_bytes=512
//! # layer=1 expert_bytes=4096 dense_bytes=512
//! turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
//! 0,0,0,0,0,5,0.6,0,4096
//! 0,0,0,0,1,2,0.4,0,4096
//! ```
//!
//! `phase` is 0 for prefill and 1 for decode, `step` the token, `slot` the place among the router's choices. Here
//! `slot` is the file's word; it names no place on a device.

use std::io::Read;

use super::grid::{Grid, Spot};
use super::lines::Lines;
use super::{ImportError, Wrong};
use crate::{Phase, Trace};

const FIRST: &str = "# route_trace v1";
const COLUMNS: [&str; 6] = ["turn", "phase", "step", "layer", "slot", "expert"];

/// Reads a `route_trace v1`, plain or zstd.
///
/// - The header must have `n_layer`, `n_expert` and `n_expert_used`. The trace's model is the file name in `model=`,
///   without its folders and `.gguf`.
/// - Where `# layer=` lines are, the trace has those layers whose `expert_bytes` are not 0, and their bytes as
///   [`expert_bytes`](crate::Header::expert_bytes); if some are left out, `layer_numbers` names those that are kept.
/// - The columns `turn`, `phase`, `step`, `layer`, `slot` and `expert` are read, wherever they stand; others are not
///   looked at.
/// - The lines of a (token, layer) stand together, `slot` from 0. In a layer, tokens ascend; whether a prompt comes
///   token by token or layer by layer is free. A (token, layer) without lines is an absent cell.
/// - Each phase of a turn is a segment, `turn-0-prefill`. Its tokens are numbered on from what is before it, in its
///   turn or in the file, or from 0.
///
/// # Errors
///
/// The line, the token and layer, and both numbers.
pub fn read_route_csv(source: impl Read) -> Result<Trace, ImportError> {
    let mut lines = Lines::new(source)?;
    let mut model = Model::default();
    let mut rows: Option<Rows> = None;
    let mut is_first = true;
    while let Some((line, bytes)) = lines.next()? {
        let at = |wrong| ImportError::Line { line, wrong };
        let text = String::from_utf8_lossy(bytes);
        if std::mem::replace(&mut is_first, false) {
            if text != FIRST {
                return Err(at(Wrong::Form { expected: FIRST, found: text.chars().take(40).collect() }));
            }
        } else if let Some(comment) = text.strip_prefix('#') {
            // Comments after the columns describe nothing that is kept.
            if rows.is_none() {
                model.comment(comment).map_err(at)?;
            }
        } else if let Some(rows) = &mut rows {
            rows.row(line, &text)?;
        } else {
            rows = Some(Rows::new(&model, &text).map_err(at)?);
        }
    }
    let mut rows = rows.ok_or(ImportError::NoRoutes)?;
    rows.flush()?;
    let (mut header, ids) = rows.grid.finish(std::mem::take(&mut model.name), Some(rows.numbers.len() as u32))?;
    if !model.layers.is_empty() {
        let expert_bytes = rows.numbers.iter().map(|number| model.expert_bytes(*number));
        header.expert_bytes = Some(expert_bytes.collect());
    }
    if rows.numbers.len() != model.layer_count.unwrap_or(0) as usize {
        header.layer_numbers = Some(rows.numbers);
    }
    Ok(Trace::new(header, ids)?)
}

/// What the comments say.
#[derive(Default)]
struct Model {
    name: String,
    layer_count: Option<u32>,
    experts: Option<u32>,
    top_k: Option<u32>,
    /// Number and bytes of an expert.
    layers: Vec<(u32, u64)>,
}

impl Model {
    fn comment(&mut self, comment: &str) -> Result<(), Wrong> {
        let mut layer = None;
        // A value ends where the next key starts: a path may have spaces in it.
        let mut pairs: Vec<(&str, String)> = Vec::new();
        for word in comment.split_whitespace() {
            match (word.split_once('='), pairs.last_mut()) {
                (Some((key, value)), _) => pairs.push((key, value.to_owned())),
                (None, Some((_, value))) => *value = format!("{value} {word}"),
                (None, None) => {}
            }
        }
        for (key, value) in &pairs {
            match *key {
                "model" => {
                    let file = value.rsplit(['/', '\\']).next().unwrap_or(value);
                    file.strip_suffix(".gguf").unwrap_or(file).clone_into(&mut self.name);
                }
                "n_layer" => self.layer_count = Some(number("n_layer", value)?),
                "n_expert" => self.experts = Some(number("n_expert", value)?),
                "n_expert_used" => self.top_k = Some(number("n_expert_used", value)?),
                "layer" => layer = Some(number("layer", value)?),
                "expert_bytes" => {
                    let layer = layer.ok_or(Wrong::MissingKey { key: "layer" })?;
                    self.layers.push((layer, number::<u64>("expert_bytes", value)?));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn expert_bytes(&self, layer: u32) -> u64 {
        self.layers.iter().find(|(number, _)| *number == layer).map_or(0, |(_, bytes)| *bytes)
    }
}

fn number<N: std::str::FromStr>(key: &'static str, text: &str) -> Result<N, Wrong> {
    text.parse().map_err(|_| Wrong::Number { key, found: text.to_owned() })
}

/// The lines under the columns.
struct Rows {
    grid: Grid,
    /// The layers that are kept, by the model's numbers.
    numbers: Vec<u32>,
    /// `place_of[number]` among those that are kept.
    place_of: Vec<Option<usize>>,
    columns: usize,
    /// Where each of `COLUMNS` stands.
    places: [usize; COLUMNS.len()],
    segment: Option<(u64, u64)>,
    /// The cell whose lines are coming.
    spot: Option<Spot>,
    ids: Vec<i64>,
}

impl Rows {
    fn new(model: &Model, columns: &str) -> Result<Self, Wrong> {
        let needed = |key, value: Option<u32>| value.ok_or(Wrong::MissingHeader { key });
        let layer_count = needed("n_layer", model.layer_count)?;
        let experts = needed("n_expert", model.experts)?;
        let top_k = needed("n_expert_used", model.top_k)?;
        let bounded = |key, value: u32, most: u32| match value {
            0 => Err(Wrong::Zero { key }),
            value if value > most => Err(Wrong::AtMost { key, found: value, most }),
            _ => Ok(()),
        };
        bounded("n_layer", layer_count, MAX_LAYERS)?;
        bounded("n_expert", experts, u32::from(crate::ABSENT))?;
        bounded("n_expert_used", top_k, experts)?;
        let names: Vec<&str> = columns.split(',').map(str::trim).collect();
        let mut places = [0; COLUMNS.len()];
        for (place, key) in places.iter_mut().zip(COLUMNS) {
            *place = names.iter().position(|name| *name == key).ok_or(Wrong::MissingKey { key })?;
        }
        let is_kept = |number: &u32| model.layers.is_empty() || model.expert_bytes(*number) > 0;
        let numbers: Vec<u32> = (0..layer_count).filter(is_kept).collect();
        let mut place_of = vec![None; layer_count as usize];
        for (place, &number) in numbers.iter().enumerate() {
            place_of[number as usize] = Some(place);
        }
        let grid = Grid::new(experts, Some(top_k as usize));
        Ok(Self { grid, numbers, place_of, columns: names.len(), places, segment: None, spot: None, ids: Vec::new() })
    }

    fn row(&mut self, line: u64, text: &str) -> Result<(), ImportError> {
        let at = |wrong| ImportError::Line { line, wrong };
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != self.columns {
            return Err(at(Wrong::Fields { expected: self.columns, found: fields.len() }));
        }
        let mut values = [0_u64; COLUMNS.len()];
        for ((value, key), &place) in values.iter_mut().zip(COLUMNS).zip(&self.places) {
            *value = number::<u32>(key, fields[place]).map_err(at)?.into();
        }
        let [turn, phase, token, layer, slot, expert] = values;

        let goes_on = |spot: &Spot| (spot.token, u64::from(spot.number)) == (token, layer) && slot != 0;
        if self.segment != Some((turn, phase)) || !self.spot.as_ref().is_some_and(goes_on) {
            self.flush()?;
            self.enter(turn, phase, token).map_err(at)?;
            let place = self.place_of.get(layer as usize).copied().flatten();
            let place = place.ok_or(Wrong::Layer { token, layer, layers: self.numbers.len() as u64 }).map_err(at)?;
            self.spot = Some(Spot { token, number: layer as u32, layer: place, line });
        }
        if slot != self.ids.len() as u64 {
            let expected = self.ids.len();
            return Err(at(Wrong::Place { token, layer: layer as u32, found: slot, expected }));
        }
        self.ids.push(expert as i64);
        if let Some(spot) = &mut self.spot {
            spot.line = line;
        }
        Ok(())
    }

    /// Starts a segment where a line is of another turn or phase than the one before.
    fn enter(&mut self, turn: u64, phase: u64, token: u64) -> Result<(), Wrong> {
        if self.segment == Some((turn, phase)) {
            return Ok(());
        }
        let (kind, name) = match phase {
            0 => (Phase::Prefill, "prefill"),
            1 => (Phase::Decode, "decode"),
            found => return Err(Wrong::Phase { found }),
        };
        if let Some((last_turn, last_phase)) = self.segment.filter(|&last| last > (turn, phase)) {
            return Err(Wrong::TurnOrder { turn, phase, last_turn, last_phase });
        }
        let follows = self.segment.is_some_and(|(last, _)| last == turn);
        self.grid.begin(format!("turn-{turn}-{name}"), kind, token, follows)?;
        self.segment = Some((turn, phase));
        Ok(())
    }

    /// Keeps the cell whose lines have come.
    fn flush(&mut self) -> Result<(), ImportError> {
        let Some(spot) = self.spot.take() else { return Ok(()) };
        let kept = self.grid.cell(spot, &self.ids);
        self.ids.clear();
        kept.map_err(|wrong| ImportError::Line { line: spot.line, wrong })
    }
}

/// More than any model has; `place_of` is made by the header's word.
const MAX_LAYERS: u32 = 1 << 16;
