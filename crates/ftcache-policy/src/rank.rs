//! One rank's view of a model: what of it lies on this device. One plan a device; the engine distributes.
//!
//! A view is a model of its own, with the layers this rank runs and the experts or parts of experts it owns, so that
//! everything else is planned and cached as without ranks. What is left is to turn the router's ids into the view's.

use std::ops::Range;

use crate::{BankId, ExpertId, LayerId, LayoutKey, Model, Profile, ProfileError, RankError};

/// How the experts of a layer are divided between ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// Not at all: this rank owns every expert of its layers.
    Whole,
    /// Whole experts: rank `r` of `R` owns those from `r E / R` on, up to `(r + 1) E / R`, both rounded down.
    Experts {
        /// This rank.
        rank: u32,
        /// How many there are.
        rank_count: u32,
    },
    /// Every expert's rows, by this factor, but for the banks whose rows every rank needs whole (scales an expert).
    Rows {
        /// How many ranks share a row.
        rank_count: u32,
        /// Banks that are not cut.
        whole_banks: Vec<BankId>,
    },
}

/// What of a model lies on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankView {
    model: Model,
    /// Layers of the whole model.
    layer_count: usize,
    /// Experts of a layer of the whole model.
    expert_count: u32,
    experts: Range<u32>,
    /// The whole model's number of each layer of the view.
    layers: Vec<LayerId>,
}

impl RankView {
    /// The view of a rank that runs `layers` of the whole model, ascending, with its cut of their experts.
    ///
    /// A token is routed to at most as many of the view's experts as there are, so the view's `top_k` may be lower.
    ///
    /// # Errors
    ///
    /// No layer, an unknown one or one not in order; a rank that does not exist; more ranks than experts, so that one
    /// would own none; rows that the factor does not divide, named with both numbers.
    pub fn new(whole: &Model, cut: &Cut, layers: &[LayerId]) -> Result<Self, RankError> {
        if layers.is_empty() {
            return Err(RankError::NoLayers);
        }
        for (index, &layer) in layers.iter().enumerate() {
            if layer.index() >= whole.layer_count() {
                return Err(RankError::UnknownLayer { layer, layer_count: whole.layer_count() });
            }
            if index > 0 && layers[index - 1] >= layer {
                return Err(RankError::Order { before: layers[index - 1], layer });
            }
        }
        let expert_count = whole.expert_count();
        let experts = match *cut {
            Cut::Rows { rank_count: 0, .. } => return Err(RankError::UnknownRank { rank: 0, rank_count: 0 }),
            Cut::Whole | Cut::Rows { .. } => 0..expert_count,
            Cut::Experts { rank, rank_count } => {
                if rank >= rank_count {
                    return Err(RankError::UnknownRank { rank, rank_count });
                }
                if rank_count > expert_count {
                    return Err(RankError::MoreRanksThanExperts { rank_count, expert_count });
                }
                let border = |rank: u32| (u64::from(rank) * u64::from(expert_count) / u64::from(rank_count)) as u32;
                border(rank)..border(rank + 1)
            }
        };
        let keys = layers.iter().map(|&layer| cut_rows(whole, layer, cut)).collect::<Result<Vec<_>, _>>()?;
        let owned = experts.end - experts.start;
        let model = Model::part(owned, whole.top_k().min(owned), whole.bank_count(), keys);
        Ok(Self { model, layer_count: whole.layer_count(), expert_count, experts, layers: layers.to_vec() })
    }

    /// The model of this rank: what plans and caches are made of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The experts of a layer that this rank owns, by the whole model's ids.
    pub fn experts(&self) -> Range<u32> {
        self.experts.clone()
    }

    /// The whole model's number of each layer of the view, ascending.
    pub fn layers(&self) -> &[LayerId] {
        &self.layers
    }

    /// The view's number of a layer of the whole model, or `None` if another rank runs it.
    pub fn local_layer(&self, layer: LayerId) -> Option<LayerId> {
        self.layers.binary_search(&layer).ok().map(LayerId::from_index)
    }

    /// What a profile of the whole model says of this rank's layers and experts.
    ///
    /// # Errors
    ///
    /// A profile of another shape than the whole model's; one by which none of the rank's experts of a layer was used.
    pub fn profile(&self, whole: &Profile) -> Result<Profile, ProfileError> {
        let (layers, experts) = (whole.layer_count(), whole.expert_count());
        if layers != self.layer_count || experts != self.expert_count as usize {
            let (model_layers, model_experts) = (self.layer_count, self.expert_count);
            return Err(ProfileError::Shape { layers, experts, model_layers, model_experts });
        }
        let owned = self.experts.start as usize..self.experts.end as usize;
        let rows: Vec<Vec<f64>> =
            self.layers.iter().map(|&layer| whole.shares(layer)[owned.clone()].to_vec()).collect();
        Profile::new(whole.model_name(), &rows).map_err(|error| match error {
            ProfileError::Unused { layer } => {
                ProfileError::NoneOwned { layer: self.layers[layer.index()], experts: self.experts() }
            }
            other => other,
        })
    }

    /// The view's number of an expert that the router named: [`ExpertId::ABSENT`] if another rank owns it, which is
    /// neither a miss nor an error.
    ///
    /// ```
    /// use ftcache_policy::{Cut, ExpertId, LayerId, LayoutKey, Model, Quantisation, RankView};
    ///
    /// let model = Model::new(10, 2, Quantisation::PerLayer, vec![LayoutKey::tagged("Q4_K", [4096])])?;
    /// let view = RankView::new(&model, &Cut::Experts { rank: 1, rank_count: 4 }, &[LayerId::new(0)])?;
    /// assert_eq!(view.experts(), 2..5);
    /// assert_eq!(view.local_expert(ExpertId::new(3)), Ok(ExpertId::new(1)));
    /// assert_eq!(view.local_expert(ExpertId::new(9)), Ok(ExpertId::ABSENT));
    /// assert!(view.local_expert(ExpertId::new(10)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An expert that no rank has. [`ExpertId::ABSENT`] itself stays what it is.
    pub fn local_expert(&self, expert: ExpertId) -> Result<ExpertId, RankError> {
        if expert == ExpertId::ABSENT {
            return Ok(expert);
        }
        if expert.get() >= self.expert_count {
            return Err(RankError::UnknownExpert { expert, expert_count: self.expert_count });
        }
        Ok(match self.experts.contains(&expert.get()) {
            true => ExpertId::new(expert.get() - self.experts.start),
            false => ExpertId::ABSENT,
        })
    }

    /// As [`local_expert`](Self::local_expert), for all routes of a step, in place.
    ///
    /// # Errors
    ///
    /// The first route to an expert that no rank has; the routes before it are already the view's.
    pub fn localise(&self, routes: &mut [ExpertId]) -> Result<(), RankError> {
        for route in routes {
            *route = self.local_expert(*route)?;
        }
        Ok(())
    }
}

fn cut_rows(whole: &Model, layer: LayerId, cut: &Cut) -> Result<LayoutKey, RankError> {
    let Cut::Rows { rank_count, whole_banks } = cut else { return Ok(whole.layer(layer).clone()) };
    if let Some(&bank) = whole_banks.iter().find(|bank| bank.index() >= whole.bank_count()) {
        return Err(RankError::UnknownBank { bank, bank_count: whole.bank_count() });
    }
    let row_bytes = whole.bank_ids().map(|bank| {
        let row_bytes = whole.row_bytes(layer, bank);
        if whole_banks.contains(&bank) {
            return Ok(row_bytes);
        }
        let divided = u64::from(*rank_count);
        if !row_bytes.is_multiple_of(divided) {
            return Err(RankError::Rows { layer, bank, row_bytes, rank_count: *rank_count });
        }
        Ok(row_bytes / divided)
    });
    Ok(whole.layer(layer).with_rows(row_bytes.collect::<Result<Vec<_>, _>>()?))
}
