//! How often each expert was used, as it was counted on some text: read and checked before anything is loaded.

use crate::{ExpertId, LayerId, Model, ProfileError};

/// Uses of every expert, each layer's scaled to one.
///
/// ```
/// use ftcache_policy::Profile;
///
/// let profile = Profile::new("tiny", &[vec![3.0, 1.0], vec![0.0, 8.0]])?;
/// assert_eq!(profile.shares(ftcache_policy::LayerId::new(0)), [0.75, 0.25]);
/// # Ok::<(), ftcache_policy::ProfileError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    model_name: String,
    expert_count: usize,
    /// `shares[layer * expert_count + expert]`, each from 0 to 1.
    shares: Vec<f64>,
}

impl Profile {
    /// The profile of a model; `expert_counts[layer][expert]` in any unit, as the layers are scaled apart.
    ///
    /// # Errors
    ///
    /// No layer; rows of unequal length; a count that is negative or not a number; a layer without any use.
    pub fn new(model_name: impl Into<String>, expert_counts: &[Vec<f64>]) -> Result<Self, ProfileError> {
        let expert_count = expert_counts.first().map_or(0, Vec::len);
        if expert_count == 0 {
            return Err(ProfileError::Empty);
        }
        let mut shares = Vec::with_capacity(expert_counts.len() * expert_count);
        for (index, row) in expert_counts.iter().enumerate() {
            let layer = LayerId::from_index(index);
            if row.len() != expert_count {
                return Err(ProfileError::RowLength { layer, experts: row.len(), first_experts: expert_count });
            }
            if let Some(expert) = row.iter().position(|count| !(*count >= 0.0 && count.is_finite())) {
                return Err(ProfileError::Count { layer, expert, count: row[expert].to_string() });
            }
            let sum: f64 = row.iter().sum();
            if sum == 0.0 {
                return Err(ProfileError::Unused { layer });
            }
            if !sum.is_finite() {
                return Err(ProfileError::TooLarge { layer });
            }
            // A count of minus zero is none; adding zero takes its sign, so that the bits order as the shares do.
            shares.extend(row.iter().map(|count| count / sum + 0.0));
        }
        Ok(Self { model_name: model_name.into(), expert_count, shares })
    }

    /// The model it was counted on, as its writer named it.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Number of layers.
    pub fn layer_count(&self) -> usize {
        self.shares.len() / self.expert_count
    }

    /// Experts of a layer.
    pub fn expert_count(&self) -> usize {
        self.expert_count
    }

    /// Each expert's share of its layer's uses.
    ///
    /// # Panics
    ///
    /// If the profile has no such layer.
    pub fn shares(&self, layer: LayerId) -> &[f64] {
        &self.shares[layer.index() * self.expert_count..][..self.expert_count]
    }

    /// The most used experts of every layer, `count` of each, ties to the lower id: what to pin if routing goes on as
    /// it was counted. Experts that were never used are left out.
    pub fn hottest(&self, count: usize) -> Vec<(LayerId, ExpertId)> {
        let mut hottest = Vec::new();
        for layer in (0..self.layer_count()).map(LayerId::from_index) {
            let shares = self.shares(layer);
            let mut experts: Vec<usize> = (0..shares.len()).filter(|&expert| shares[expert] > 0.0).collect();
            experts.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
            hottest.extend(experts.iter().take(count).map(|&expert| (layer, ExpertId::from_index(expert))));
        }
        hottest
    }

    /// Whether it has the layers and experts of a model.
    ///
    /// # Errors
    ///
    /// Both shapes, if they differ.
    pub fn check(&self, model: &Model) -> Result<(), ProfileError> {
        let (layers, experts) = (self.layer_count(), self.expert_count);
        if layers != model.layer_count() || experts != model.expert_count() as usize {
            let (model_layers, model_experts) = (model.layer_count(), model.expert_count());
            return Err(ProfileError::Shape { layers, experts, model_layers, model_experts });
        }
        Ok(())
    }
}
