//! What each layer would miss with so many slots of its own, as it was counted on a trace: read and checked before
//! anything is loaded. Where the counts come from is the caller's; here they are numbers that must not rise.

use crate::{CurvesError, LayerId, Model};

/// Misses of every layer at each number of slots.
///
/// ```
/// use ftcache_policy::{Curves, LayerId};
///
/// // With no slot of its own, layer 0 misses 9 times, with one 4 times, with two or more never.
/// let curves = Curves::new("tiny", vec![vec![9, 4, 0], vec![9, 9]])?;
/// assert_eq!([0, 1, 7].map(|slots| curves.misses(LayerId::new(0), slots)), [9, 4, 0]);
/// # Ok::<(), ftcache_policy::CurvesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curves {
    model_name: String,
    /// `misses[layer][slots]`, never ascending; the last holds for more slots too. None is empty, and the first of all
    /// layers add up in 64 bits.
    misses: Vec<Vec<u64>>,
}

impl Curves {
    /// The curves of a model; `misses[layer][slots]` from no slot on, in one unit for all layers.
    ///
    /// # Errors
    ///
    /// No layer; a layer without a number; misses that rise with a slot, or that cannot be summed over the layers.
    pub fn new(model_name: impl Into<String>, misses: Vec<Vec<u64>>) -> Result<Self, CurvesError> {
        if misses.is_empty() {
            return Err(CurvesError::NoLayers);
        }
        let mut all = 0_u64;
        for (index, curve) in misses.iter().enumerate() {
            let layer = LayerId::from_index(index);
            let first = *curve.first().ok_or(CurvesError::Empty { layer, layers: misses.len() })?;
            all = all.checked_add(first).ok_or(CurvesError::TooLarge { layer })?;
            if let Some(slots) = (1..curve.len()).find(|&slots| curve[slots] > curve[slots - 1]) {
                return Err(CurvesError::Rises { layer, slots, before: curve[slots - 1], misses: curve[slots] });
            }
        }
        Ok(Self { model_name: model_name.into(), misses })
    }

    /// The model they were counted on, as their writer named it.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Number of layers.
    pub fn layer_count(&self) -> usize {
        self.misses.len()
    }

    /// Misses of a layer with so many slots.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn misses(&self, layer: LayerId, slots: u32) -> u64 {
        let curve = &self.misses[layer.index()];
        curve[(slots as usize).min(curve.len() - 1)]
    }

    /// Misses of a pool with from `least` to `most` slots, shared out equally between its layers, the odd ones to the
    /// first of them.
    ///
    /// One LRU over the layers shares them out by itself, and about so only where the layers are alike; a curve of the
    /// pool would have to be counted for each way to group the layers.
    pub(crate) fn of_pool(&self, layers: &[LayerId], least: u32, most: u32) -> impl Iterator<Item = (u32, u64)> {
        let count = layers.len() as u32;
        let share = |slots: u32, index: u32| slots / count + u32::from(index < slots % count);
        let shares = (0..).zip(layers).map(|(index, &layer)| self.misses(layer, share(least, index)));
        let mut misses: u64 = shares.sum();
        (least..=most).map(move |slots| {
            if slots > least {
                // The slot before went to this layer and to no other.
                let (layer, had) = (layers[((slots - 1) % count) as usize], (slots - 1) / count);
                misses -= self.misses(layer, had) - self.misses(layer, had + 1);
            }
            (slots, misses)
        })
    }

    /// Whether they have the layers of a model, and none more slots than it has experts.
    ///
    /// # Errors
    ///
    /// Both numbers, if they do not fit.
    pub fn check(&self, model: &Model) -> Result<(), CurvesError> {
        let (layers, model_layers) = (self.layer_count(), model.layer_count());
        if layers != model_layers {
            return Err(CurvesError::Layers { layers, model_layers });
        }
        let expert_count = model.expert_count();
        match self.misses.iter().position(|curve| curve.len() - 1 > expert_count as usize) {
            None => Ok(()),
            Some(index) => {
                let (layer, slots) = (LayerId::from_index(index), self.misses[index].len() - 1);
                Err(CurvesError::Slots { layer, slots, expert_count })
            }
        }
    }
}
