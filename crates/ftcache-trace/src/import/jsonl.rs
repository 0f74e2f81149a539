//! JSON lines of `topk`: what engines log at their router, an object for each token and layer, or for each token.
//!
//! ```text
//! {"experts": 8}
//! {"token": 0, "layer": 0, "topk": [5, 2]}
//! {"token": 0, "layer": 1, "topk": [0, 1]}
//! {"token": 1, "topk": [[5, 3], [0, 7]]}
//! ```

use std::collections::HashSet;
use std::io::Read;

use serde::Deserialize;
use serde_json::Value;

use super::grid::{Grid, Spot};
use super::lines::Lines;
use super::{ImportError, Wrong};
use crate::{Phase, Trace};

/// The most layers, where nothing says how many there are: what a slip of a layer's number may cost.
const MAX_LAYERS: u32 = 4096;

/// What the lines need not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonlOptions {
    /// Experts of a layer. Needed, unless the first line says it.
    pub experts: Option<u32>,
    /// Layers. Without it, those up to the last that is named.
    pub layers: Option<u32>,
    /// The model, for people.
    pub model: Option<String>,
    /// The phase of lines that name none.
    pub phase: Phase,
}

impl Default for JsonlOptions {
    /// Nothing known; lines that name no phase are decode.
    fn default() -> Self {
        Self { experts: None, layers: None, model: None, phase: Phase::Decode }
    }
}

/// Reads JSON lines of routes, plain or zstd.
///
/// The **first line** may describe the model: an object without `topk`. Its keys, all optional:
///
/// - `experts`: experts of a layer; `layers`; `top_k`;
/// - `model` (or `model_id`): a name;
/// - `expert_bytes`: bytes of one expert, by layer; `layer_numbers`: the model's own number of each layer.
///
/// Every **other line** has routes:
///
/// - `topk` (or `topk_ids`), needed: with a `layer`, the ids of one cell, the router's first choice first. Without,
///   a list of such lists, one for each layer; `[]` or `null` in it is an absent cell;
/// - `token` (or `token_idx`), needed: the token's number. In each layer tokens ascend; a new token is the next
///   number. Lines may come token by token, or layer by layer within a segment;
/// - `layer`: from 0;
/// - `request` (or `req_id`): a text or a number. All lines of a request stand together;
/// - `phase`: `prefill`, `decode`, `decode-like` or `mixed`; without it, that of the options.
///
/// Where `request` or `phase` changes, a segment starts. Its tokens are numbered on from what is before it, in its
/// request or in the file, or from 0. Other keys, such as weights, are not looked at. A (token, layer) without a line
/// is an absent cell. A blank line is none.
///
/// # Errors
///
/// The line, the token and layer, and both numbers.
pub fn read_jsonl(source: impl Read, options: &JsonlOptions) -> Result<Trace, ImportError> {
    let mut lines = Lines::new(source)?;
    let mut head =
        Head { experts: options.experts, layers: options.layers, model: options.model.clone(), ..Head::default() };
    let mut routes: Option<Routes> = None;
    let mut is_first = true;
    while let Some((line, bytes)) = lines.next()? {
        let at = |wrong| ImportError::Line { line, wrong };
        let record: Record = parse(bytes).map_err(at)?;
        if std::mem::replace(&mut is_first, false) && record.topk.is_none() {
            head.read(parse(bytes).map_err(at)?).map_err(at)?;
            continue;
        }
        let routes = match &mut routes {
            Some(routes) => routes,
            None => routes.insert(Routes::new(&head, options.phase).map_err(at)?),
        };
        routes.record(line, record).map_err(at)?;
    }
    let routes = routes.ok_or(ImportError::NoRoutes)?;
    let (mut header, ids) = routes.grid.finish(head.model.unwrap_or_default(), routes.layers)?;
    header.expert_bytes = head.expert_bytes;
    header.layer_numbers = head.layer_numbers;
    Ok(Trace::new(header, ids)?)
}

/// The first line, where it has no routes.
#[derive(Default, Deserialize)]
struct Head {
    experts: Option<u32>,
    layers: Option<u32>,
    top_k: Option<u32>,
    #[serde(alias = "model_id")]
    model: Option<String>,
    expert_bytes: Option<Vec<u64>>,
    layer_numbers: Option<Vec<u32>>,
}

impl Head {
    /// Takes what the line says; it must not contradict what was given.
    fn read(&mut self, line: Self) -> Result<(), Wrong> {
        let sizes = [("experts", self.experts, line.experts), ("layers", self.layers, line.layers)];
        for (key, given, found) in sizes {
            if let (Some(given), Some(found)) = (given, found)
                && given != found
            {
                return Err(Wrong::Differs { key, found: found.into(), given: given.into() });
            }
        }
        *self = Self {
            experts: self.experts.or(line.experts),
            layers: self.layers.or(line.layers),
            model: self.model.take().or(line.model),
            ..line
        };
        Ok(())
    }
}

/// A line of routes.
#[derive(Deserialize)]
struct Record {
    #[serde(alias = "token_idx")]
    token: Option<u64>,
    layer: Option<u32>,
    #[serde(alias = "topk_ids")]
    topk: Option<Value>,
    #[serde(alias = "req_id")]
    request: Option<Request>,
    phase: Option<Phase>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a request is a text or a whole number")]
enum Request {
    Number(i64),
    Text(String),
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Wrong> {
    serde_json::from_slice(line).map_err(|error| {
        let text = error.to_string();
        // The parser counts lines too, and has only ever seen this one.
        let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text).to_owned();
        Wrong::Json { column: error.column(), text }
    })
}

struct Routes {
    grid: Grid,
    /// As far as they are known.
    layers: Option<u32>,
    phase: Phase,
    segment: Option<(Option<String>, Phase)>,
    /// Requests whose lines have ended.
    ended: HashSet<Option<String>>,
    ids: Vec<i64>,
}

impl Routes {
    fn new(head: &Head, phase: Phase) -> Result<Self, Wrong> {
        let experts = head.experts.ok_or(Wrong::MissingHeader { key: "experts" })?;
        let sizes = [
            ("experts", Some(experts), u32::from(crate::ABSENT)),
            ("layers", head.layers, 1 << 16),
            ("top_k", head.top_k, experts),
        ];
        for (key, found, most) in sizes {
            match found {
                Some(0) => return Err(Wrong::Zero { key }),
                Some(found) if found > most => return Err(Wrong::AtMost { key, found, most }),
                _ => {}
            }
        }
        let grid = Grid::new(experts, head.top_k.map(|top_k| top_k as usize));
        Ok(Self { grid, layers: head.layers, phase, segment: None, ended: HashSet::new(), ids: Vec::new() })
    }

    fn record(&mut self, line: u64, record: Record) -> Result<(), Wrong> {
        let Record { token, layer, topk, request, phase } = record;
        let topk = topk.ok_or(Wrong::MissingKey { key: "topk" })?;
        let token = token.ok_or(Wrong::MissingKey { key: "token" })?;
        let request = request.map(|request| match request {
            Request::Number(number) => number.to_string(),
            Request::Text(text) => text,
        });
        self.enter(request, phase.unwrap_or(self.phase), token)?;
        let Value::Array(items) = &topk else { return Err(Wrong::TopKShape) };
        if let Some(layer) = layer {
            return self.cell(line, token, layer, items);
        }
        // A flat list is a cell whose layer is missing.
        if items.first().is_some_and(Value::is_number) {
            return Err(Wrong::MissingKey { key: "layer" });
        }
        let expected = *self.layers.get_or_insert(self.grid.layer_count().max(items.len() as u32));
        if items.len() != expected as usize {
            return Err(Wrong::LayerCount { token, found: items.len(), expected });
        }
        self.grid.touch(token, 0)?;
        for (layer, item) in items.iter().enumerate() {
            match item {
                Value::Null => {}
                Value::Array(items) if items.is_empty() => {}
                Value::Array(items) => self.cell(line, token, layer as u32, items)?,
                _ => return Err(Wrong::TopKShape),
            }
        }
        Ok(())
    }

    fn cell(&mut self, line: u64, token: u64, layer: u32, items: &[Value]) -> Result<(), Wrong> {
        match self.layers {
            Some(layers) if layer >= layers => {
                return Err(Wrong::Layer { token, layer: layer.into(), layers: layers.into() });
            }
            None if layer >= MAX_LAYERS => return Err(Wrong::LayerBound { token, layer, most: MAX_LAYERS }),
            _ => {}
        }
        self.ids.clear();
        for item in items {
            self.ids.push(item.as_i64().ok_or(Wrong::TopKShape)?);
        }
        self.grid.cell(Spot { token, number: layer, layer: layer as usize, line }, &self.ids)
    }

    /// Starts a segment where a line is of another request or phase than the one before.
    fn enter(&mut self, request: Option<String>, phase: Phase, token: u64) -> Result<(), Wrong> {
        let segment = (request, phase);
        if self.segment.as_ref() == Some(&segment) {
            return Ok(());
        }
        let follows = self.segment.as_ref().is_some_and(|(last, _)| *last == segment.0);
        if !follows {
            self.ended.extend(self.segment.take().map(|(last, _)| last));
            if self.ended.contains(&segment.0) {
                return Err(Wrong::RequestAgain { request: segment.0.unwrap_or_default() });
            }
        }
        let name = match &segment.0 {
            Some(request) => format!("{request}-{}", phase.name()),
            None => phase.name().to_owned(),
        };
        self.grid.begin(name, phase, token, follows)?;
        self.segment = Some(segment);
        Ok(())
    }
}
