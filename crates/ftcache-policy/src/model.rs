//! The model as the cache sees it: layers, experts, and the bytes of a row.

use std::collections::HashMap;

use crate::{BankId, GeometryError, LayerId, LayoutKey, SlotId};

/// How the layers' quantisation is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantisation {
    /// Each layer's tag tells it. Untagged layers of equal bytes are refused, as nothing says that they are alike.
    #[default]
    PerLayer,
    /// All layers have one quantisation, so untagged layers of equal bytes are alike.
    One,
}

/// So that a slot's strides and pads, each below 2^48 bytes, can be added up. Models have fewer than twenty.
const MOST_BANKS: usize = 1 << 14;

/// `L` mixture-of-experts layers of `E` experts each, of which a token is routed to `top_k`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    expert_count: u32,
    top_k: u32,
    bank_count: usize,
    layers: Vec<LayoutKey>,
}

impl Model {
    /// A model with the given layers, in the order in which a token walks them.
    ///
    /// Layers may list different numbers of banks; the shorter ones read the rest as rows of zero bytes.
    ///
    /// # Errors
    ///
    /// No layer or no expert; more than 16,384 banks; a `top_k` outside `1..=expert_count`; a layer without bytes;
    /// more experts or bytes than can be counted; untagged layers of equal bytes, unless `quantisation` says that all
    /// layers are alike.
    pub fn new(
        expert_count: u32,
        top_k: u32,
        quantisation: Quantisation,
        layers: Vec<LayoutKey>,
    ) -> Result<Self, GeometryError> {
        if layers.is_empty() {
            return Err(GeometryError::NoLayers);
        }
        if top_k == 0 || top_k > expert_count {
            return Err(GeometryError::TopK { top_k, expert_count });
        }
        // As many slots could be asked for, and above their limit the numbers mean something else.
        let flat_count = layers.len() as u128 * u128::from(expert_count);
        if flat_count > u128::from(SlotId::LIMIT) {
            return Err(GeometryError::TooManyExperts { layers: layers.len(), expert_count });
        }

        let bank_count = layers.iter().map(|layer| layer.row_bytes().len()).max().unwrap_or(0);
        if bank_count > MOST_BANKS {
            return Err(GeometryError::TooManyBanks { banks: bank_count, most: MOST_BANKS });
        }
        let layers: Vec<LayoutKey> = layers.into_iter().map(|layer| layer.widened(bank_count)).collect();
        let mut model_bytes = 0_u128;
        for (index, layer) in layers.iter().enumerate() {
            let bytes: u128 = layer.row_bytes().iter().map(|&bytes| u128::from(bytes)).sum();
            if bytes == 0 {
                return Err(GeometryError::EmptyLayer { layer: LayerId::from_index(index) });
            }
            model_bytes += bytes * u128::from(expert_count);
        }
        // Everything a geometry adds up is bounded by this sum and small multiples of it; half the range is ample.
        if model_bytes > u128::from(u64::MAX / 4) {
            return Err(GeometryError::TooManyBytes { bytes: model_bytes, most: u64::MAX / 4 });
        }

        if quantisation == Quantisation::PerLayer {
            let mut first_of = HashMap::new();
            for (second, layer) in layers.iter().enumerate().filter(|(_, layer)| layer.tag().is_none()) {
                let first = *first_of.entry(layer).or_insert(second);
                if first != second {
                    return Err(GeometryError::UntaggedLayers {
                        first: LayerId::from_index(first),
                        second: LayerId::from_index(second),
                        expert_bytes: layer.expert_bytes(),
                    });
                }
            }
        }
        Ok(Self { expert_count, top_k, bank_count, layers })
    }

    /// A part of a model that was checked as a whole; every layer lists all banks.
    pub(crate) fn part(expert_count: u32, top_k: u32, bank_count: usize, layers: Vec<LayoutKey>) -> Self {
        debug_assert!(layers.iter().all(|layer| layer.row_bytes().len() == bank_count));
        Self { expert_count, top_k, bank_count, layers }
    }

    /// Experts of a layer, `E`.
    pub fn expert_count(&self) -> u32 {
        self.expert_count
    }

    /// Experts a token is routed to in each layer.
    pub fn top_k(&self) -> u32 {
        self.top_k
    }

    /// Number of layers, `L`.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Number of banks: the most that any layer lists.
    pub fn bank_count(&self) -> usize {
        self.bank_count
    }

    /// Every layer's key, in order.
    pub fn layers(&self) -> &[LayoutKey] {
        &self.layers
    }

    /// Every layer's id, in order.
    pub fn layer_ids(&self) -> impl ExactSizeIterator<Item = LayerId> + use<> {
        (0..self.layers.len()).map(LayerId::from_index)
    }

    /// Every bank's id, in order.
    pub fn bank_ids(&self) -> impl ExactSizeIterator<Item = BankId> + use<> {
        (0..self.bank_count).map(BankId::from_index)
    }

    /// One layer's key.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn layer(&self, layer: LayerId) -> &LayoutKey {
        &self.layers[layer.index()]
    }

    /// Bytes of one expert's row in one bank of a layer; zero where the layer does not read that bank.
    ///
    /// # Panics
    ///
    /// If the model has no such layer or bank.
    pub fn row_bytes(&self, layer: LayerId, bank: BankId) -> u64 {
        self.layers[layer.index()].row_bytes()[bank.index()]
    }

    /// Bytes of all experts of a layer.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn layer_bytes(&self, layer: LayerId) -> u64 {
        self.layer(layer).expert_bytes() * u64::from(self.expert_count)
    }

    /// Bytes of all experts of all layers.
    pub fn model_bytes(&self) -> u64 {
        self.layer_ids().map(|layer| self.layer_bytes(layer)).sum()
    }

    /// Bytes that one token's experts have, over all layers: what a step-by-step decode reads without any cache.
    pub fn token_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.expert_bytes() * u64::from(self.top_k)).sum()
    }
}
