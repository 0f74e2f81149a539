//! What a size of a `sweep` is, and what pools it buys: slots that are all alike, or bytes of a model's pools, as `plan`
//! makes them. Counts nothing.

use std::collections::BTreeMap;

use ftcache::Scope;
use ftcache::policy::{
    Budget, Constraints, Geometry, LayerId, LayoutKey, Model, PoolBounds, Split, group_layers, parse_bytes, split_curve,
};
use ftcache_model::MoeModel;
use ftcache_trace::{Events, Header, MissCurve};

use crate::Failure;
use crate::table::{binary, count, grouped, ranges};

/// A size as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Size {
    Percent(f64),
    Slots(u64),
    Bytes(u64),
}

impl Size {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let unknown =
            || format!("{text:?} is neither a number of slots, nor bytes such as 12GiB, nor a share such as 12.5%");
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let text = text.trim();
        match text.strip_suffix('%').map(str::trim_end) {
            Some(number) if is_number(number) => number.parse().map(Self::Percent).map_err(|_| unknown()),
            Some(_) => Err(unknown()),
            None if is_number(text) => text.parse().map(Self::Slots).map_err(|_| unknown()),
            None => parse_bytes(text).map(Self::Bytes).map_err(|_| unknown()),
        }
    }
}

/// What an expert weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertBytes {
    /// Over the layers, each counted once.
    pub(crate) mean: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl ExpertBytes {
    /// Of the bytes that are given, or else of the trace's own; none where there are neither.
    pub(crate) fn new(given: Option<u64>, header: &Header) -> Option<Self> {
        let by_layer = given.map_or_else(|| header.expert_bytes.clone().unwrap_or_default(), |bytes| vec![bytes]);
        let sum: u128 = by_layer.iter().map(|&bytes| u128::from(bytes)).sum();
        let (least, most) = (*by_layer.iter().min()?, *by_layer.iter().max()?);
        Some(Self { mean: (sum / by_layer.len() as u128) as u64, least, most })
    }
}

/// What sizes are.
pub(crate) enum Space {
    Slots(Slots),
    Bytes(ModelBytes),
}

/// Slots of one width, from the widest step to all experts used.
pub(crate) struct Slots {
    layers: u32,
    experts: u32,
    /// Experts of the widest step of each layer.
    widest: Vec<u32>,
    pub(crate) expert_bytes: Option<ExpertBytes>,
    least: u64,
    most: u64,
}

/// Bytes of a model's pools, pads included, from the least that one pool a layout key needs to all experts.
pub(crate) struct ModelBytes {
    model: Model,
    pub(crate) name: String,
    /// The model's own number of each layer.
    blocks: Vec<u32>,
    /// Requests decoded at once: every pool holds a step of theirs.
    requests: u32,
    least: u64,
    most: u64,
}

impl Space {
    /// Slots, as a trace's steps need them.
    pub(crate) fn of_slots(events: &Events, curve: &MissCurve, expert_bytes: Option<ExpertBytes>) -> Self {
        let mut widest = vec![0; events.layers() as usize];
        for event in events.iter() {
            let widest = &mut widest[event.layer as usize];
            *widest = (*widest).max(event.experts.len() as u32);
        }
        let (layers, experts) = (events.layers(), events.experts());
        let (least, most) = (curve.least_slots() as u64, curve.most_slots() as u64);
        Self::Slots(Slots { layers, experts, widest, expert_bytes, least, most })
    }

    /// Bytes of the pools of a model that a trace is of.
    pub(crate) fn of_model(file: &MoeModel, header: &Header, requests: u32) -> Result<Self, Failure> {
        let model = file.geometry()?;
        check_shape(header, &model)?;
        let (layers, experts) = (model.layer_count() as u64, model.expert_count());
        let bytes_of = |scope: Scope, slots: u64| -> Result<u64, Failure> {
            let constraints = Constraints { scope, request_count: requests, ..Constraints::new(Budget::Slots(slots)) };
            Ok(Geometry::new(model.clone(), constraints)?.total_bytes())
        };
        let in_a_pool = u64::from(requests.saturating_mul(model.top_k()).min(experts));
        let pools = group_layers(&model, Scope::Unified).len() as u64;
        let all = layers * u64::from(experts);
        Ok(Self::Bytes(ModelBytes {
            name: file.name.clone(),
            blocks: file.layers.iter().map(|layer| layer.block).collect(),
            requests,
            least: bytes_of(Scope::Unified, pools * in_a_pool)?,
            // Whichever has more pads: at 100 % nothing is given up.
            most: bytes_of(Scope::Unified, all)?.max(bytes_of(Scope::PerLayer, all)?),
            model,
        }))
    }

    /// The smallest size and the largest.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        match self {
            Self::Slots(slots) => (slots.least, slots.most),
            Self::Bytes(bytes) => (bytes.least, bytes.most),
        }
    }

    /// A size in this space's unit, within its bounds.
    pub(crate) fn resolve(&self, size: Size) -> Result<u64, String> {
        let (least, most) = self.bounds();
        if let Size::Percent(percent) = size
            && percent > 100.0
        {
            return Err(format!("a size of {percent} % of {}; 100 % are all", self.whole()));
        }
        let of_most = |percent: f64| (percent * most as f64 / 100.0).round() as u64;
        match self {
            Self::Slots(slots) => {
                let (size, is) = match size {
                    Size::Percent(percent) => {
                        let size = of_most(percent);
                        (size, format!("{percent} % of the experts used are {}", count(size, "slot")))
                    }
                    Size::Slots(size) => (size, format!("a size of {}", count(size, "slot"))),
                    Size::Bytes(bytes) => {
                        let mean = slots.expert_bytes.map(|expert| expert.mean).filter(|&mean| mean > 0);
                        let mean =
                            mean.ok_or("how many slots bytes are is not known: --expert-bytes or --model says it")?;
                        (bytes / mean, format!("a size of {} bytes is {}", grouped(bytes), count(bytes / mean, "slot")))
                    }
                };
                match size {
                    _ if size > most => Err(format!("{is}; the trace uses {}", count(most, "expert"))),
                    _ if size < least => Err(format!("{is}; the widest step uses {}", count(least, "expert"))),
                    _ => Ok(size),
                }
            }
            Self::Bytes(_) => {
                let size = match size {
                    Size::Percent(percent) => of_most(percent),
                    Size::Bytes(size) => size,
                    Size::Slots(size) => {
                        let given = count(size, "slot");
                        return Err(format!("a size of {given}; with --model it is bytes, such as 12GiB, or a share"));
                    }
                };
                let is = format!("a size of {} bytes", grouped(size));
                match size {
                    _ if size > most => Err(format!("{is}; all experts and their pads have {}", grouped(most))),
                    _ if size < least => Err(format!("{is}; the pools need at least {}", grouped(least))),
                    _ => Ok(size),
                }
            }
        }
    }

    /// Whether experts of different layers have different bytes.
    pub(crate) fn is_of_widths(&self) -> bool {
        let Self::Bytes(bytes) = self else { return false };
        let mut widths = bytes.model.layers().iter().map(LayoutKey::expert_bytes);
        let first = widths.next();
        widths.any(|width| Some(width) != first)
    }

    /// What percents are of.
    fn whole(&self) -> &'static str {
        match self {
            Self::Slots(_) => "the experts used",
            Self::Bytes(_) => "the model's experts",
        }
    }

    /// The layers of each pool, as [`Space::slots`] has the pools.
    pub(crate) fn groups(&self, scope: Scope) -> Vec<Vec<LayerId>> {
        match (self, scope) {
            (Self::Slots(slots), Scope::Unified) => vec![(0..slots.layers).map(LayerId::new).collect()],
            (Self::Slots(slots), Scope::PerLayer) => (0..slots.layers).map(|layer| vec![LayerId::new(layer)]).collect(),
            (Self::Bytes(bytes), _) => group_layers(&bytes.model, scope),
        }
    }

    /// The slots of each pool at a size; none where the size is too small.
    pub(crate) fn slots(&self, scope: Scope, split: &Split, size: u64) -> Option<Vec<u32>> {
        match (self, scope) {
            (Self::Slots(_), Scope::Unified) => Some(vec![size as u32]),
            (Self::Slots(slots), Scope::PerLayer) => match split {
                Split::Curve(curves) => {
                    let bounds = |&min_slots| PoolBounds { layer_count: 1, min_slots, max_slots: slots.experts };
                    let pools: Vec<PoolBounds> = slots.widest.iter().map(bounds).collect();
                    // All rows are as wide, whatever that is.
                    split_curve(&pools, &self.groups(scope), curves, &vec![1; pools.len()], size).ok()
                }
                _ => {
                    let (each, rest) = (size / u64::from(slots.layers), size % u64::from(slots.layers));
                    Some((0..slots.layers).map(|layer| (each + u64::from(u64::from(layer) < rest)) as u32).collect())
                }
            },
            (Self::Bytes(bytes), _) => {
                let constraints = Constraints {
                    scope,
                    split: split.clone(),
                    request_count: bytes.requests,
                    ..Constraints::new(Budget::Bytes(size))
                };
                let geometry = Geometry::new(bytes.model.clone(), constraints).ok()?;
                Some(geometry.pools().iter().map(|pool| pool.slot_count()).collect())
            }
        }
    }

    /// Bytes of a row of a pool of these layers, over all banks.
    pub(crate) fn expert_bytes(&self, layers: &[LayerId]) -> Option<u64> {
        match self {
            Self::Slots(slots) => slots.expert_bytes.map(|bytes| bytes.mean),
            Self::Bytes(bytes) => Some(bytes.model.layer(layers[0]).expert_bytes()),
        }
    }

    /// Bytes of a size, where they are known.
    pub(crate) fn bytes(&self, size: u64) -> Option<u64> {
        match self {
            Self::Slots(slots) => slots.expert_bytes.map(|bytes| bytes.mean.saturating_mul(size)),
            Self::Bytes(_) => Some(size),
        }
    }

    /// `128 slots, 2.25 GiB`: a size as people say it.
    pub(crate) fn label(&self, size: u64) -> String {
        match (self, self.bytes(size)) {
            (Self::Slots(_), None) => count(size, "slot"),
            (Self::Slots(_), Some(bytes)) => format!("{}, {}", count(size, "slot"), binary(bytes)),
            (Self::Bytes(_), _) => binary(size),
        }
    }
}

impl ModelBytes {
    /// `8 layers of BF16, 18,874,368 bytes an expert`, for each layout key.
    pub(crate) fn describe(&self) -> String {
        let mut layers: BTreeMap<Vec<u32>, String> = BTreeMap::new();
        for group in group_layers(&self.model, Scope::Unified) {
            let key = self.model.layer(group[0]);
            let tag = key.tag().unwrap_or_default().escape_ascii();
            let blocks: Vec<u32> = group.iter().map(|layer| self.blocks[layer.index()]).collect();
            let text = format!(
                "blocks {} of {tag}, {} bytes an expert",
                ranges(blocks.iter().copied()),
                grouped(key.expert_bytes())
            );
            layers.insert(blocks, text);
        }
        layers.into_values().collect::<Vec<_>>().join("; ")
    }
}

/// Whether a trace can be of a model.
fn check_shape(header: &Header, model: &Model) -> Result<(), Failure> {
    header.shape().check_model(model.layer_count(), model.expert_count())?;
    let top_k = header.top_k;
    if top_k > model.top_k() {
        return Err(format!("the trace has {top_k} routes a token and layer; the model has {}", model.top_k()).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_slots_bytes_or_shares() {
        assert_eq!(Size::parse("25%"), Ok(Size::Percent(25.0)));
        assert_eq!(Size::parse(" 12.5 % "), Ok(Size::Percent(12.5)));
        assert_eq!(Size::parse("128"), Ok(Size::Slots(128)));
        assert_eq!(Size::parse("1.5 GiB"), Ok(Size::Bytes(3 << 29)));
        assert_eq!(Size::parse("4*18874368"), Ok(Size::Bytes(75_497_472)));
        for text in ["", "%", "-1", "-1%", "1.5", "1e2%", "inf%", "NaN%", "1.2.3%", "ten", "5x", "GiB"] {
            let error = Size::parse(text).unwrap_err();
            let wanted = "is neither a number of slots, nor bytes such as 12GiB, nor a share such as 12.5%";
            assert_eq!(error, format!("{text:?} {wanted}"));
        }
    }

    #[test]
    fn layers_of_several_sizes_have_a_mean() {
        let shape = ftcache_trace::Shape { tokens: 1, layers: 3, top_k: 1, experts: 2 };
        let mut header = Header::new("by hand", shape, Vec::new());
        assert_eq!(ExpertBytes::new(None, &header), None);
        header.expert_bytes = Some(vec![10, 30, 50]);
        assert_eq!(ExpertBytes::new(None, &header), Some(ExpertBytes { mean: 30, least: 10, most: 50 }));
        assert_eq!(ExpertBytes::new(Some(7), &header), Some(ExpertBytes { mean: 7, least: 7, most: 7 }));
    }
}
