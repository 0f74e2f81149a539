//! Settings in, a whole configuration out: pools, staging, requests, strategy, and every byte that an engine must set
//! aside for them, before anything is loaded.
//!
//! A setting is honoured, or refused with both numbers. Two may be lowered, and then say so: prefill's overlap, where
//! two layers do not fit, and the requests decoded at once, where the settings allow it. Both are worked out from what
//! was asked for, so a configuration for a larger budget has them back.

use crate::search::Search;
use crate::settings::{CpuCode, FetchChoice, OtherModel, Settings, StagingPlace, StrategyChoice};
use crate::{
    Admission, Budget, ConfigurationError, CpuLayers, Eviction, Fetch, FetchOrder, FetchRule, Fraction, Geometry,
    GeometryError, LayerId, LayoutKey, Model, PoolId, Recommendation, Rounding, SMALL_ROW_BYTES, Split, Staging,
    StagingError, Strategy,
};

/// Why a layer holds no slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declined {
    /// The constraints say so.
    Slotless,
    /// It decodes on the CPU.
    Cpu,
    /// It lies on the device as a whole.
    Resident,
}

/// Why prefill does not overlap, though it was asked to.
#[derive(Debug, Clone, PartialEq)]
pub enum OverlapOff {
    /// Two whole layers do not fit into a bank's arena.
    Borrowed(StagingError),
    /// With two whole layers beside it, the cache cannot be had.
    Dedicated(Box<ConfigurationError>),
    /// Nothing is staged.
    NoStaging,
    /// Only one layer is staged, so there is none to overlap with.
    OneLayer,
}

/// What a user should know of a configuration that can be had.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// Borrowed staging lies on every slot, so that a chunk finds nothing resident and leaves nothing.
    NothingStable {
        /// Slots over all pools.
        slots: u64,
    },
    /// A pool has fewer slots than one decode of all its layers routes to: LRU gives up each expert before its turn
    /// comes again.
    BelowCycle {
        /// The pool.
        pool: PoolId,
        /// Its slots.
        slots: u32,
        /// Routes of all requests in all its layers, at most every expert.
        cycle: u64,
        /// Of these, those that hit if each decode routes to the same experts and every miss is fetched: one in each
        /// layer for every slot beyond what the other layers route to.
        hits: u64,
    },
    /// A profile was counted on a model of another name.
    OtherModel {
        /// Where it was counted.
        profile: String,
        /// The model here.
        model: String,
    },
    /// Curves were counted on a model of another name.
    OtherCurves {
        /// Where they were counted.
        curves: String,
        /// The model here.
        model: String,
    },
    /// Hybrid steps never fetch a miss of a pool's layers, so that its slots serve prefill alone.
    NeverFilled {
        /// The pool.
        pool: PoolId,
        /// Its slots.
        slots: u32,
    },
    /// The rows to be copied have more bytes than the host may pin.
    Pinnable {
        /// Their bytes.
        needed: u64,
        /// What may be pinned.
        given: u64,
    },
    /// The budget is more than the pools can use.
    EveryPoolFull {
        /// Bytes of the budget that are not used.
        unused: u64,
    },
}

/// Everything to set aside, in bytes of the device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetAside {
    /// Each bank's arena, pads included.
    pub arenas: Vec<u64>,
    /// Each bank's dedicated staging buffers, pads included; nothing where they are borrowed.
    pub staging: Vec<u64>,
    /// Layers that lie on the device as a whole, with a pad after each bank.
    pub resident: u64,
    /// Tables of admission on the device.
    pub tables: u64,
}

impl SetAside {
    /// The sum.
    pub fn total(&self) -> u64 {
        u64::try_from(self.exact_total()).unwrap_or(u64::MAX)
    }

    /// The sum, before it is known that it can be had.
    pub(crate) fn exact_total(&self) -> u128 {
        let parts = self.arenas.iter().chain(&self.staging).chain([&self.resident, &self.tables]);
        parts.map(|&bytes| u128::from(bytes)).sum()
    }
}

/// What the settings come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    settings: Settings,
    geometry: Geometry,
    strategy: Strategy,
    staging: Option<Staging>,
    overlap_off: Option<OverlapOff>,
    requests_lowered: Option<GeometryError>,
    cpu_layers: Vec<LayerId>,
    set_aside: SetAside,
    notes: Vec<Note>,
}

impl Configuration {
    /// What the settings come to for a model.
    ///
    /// ```
    /// use ftcache_policy::{Budget, Configuration, Constraints, LayoutKey, Model, Quantisation, Reserve, Settings,
    /// Share};
    ///
    /// let model = Model::new(64, 6, Quantisation::PerLayer, vec![LayoutKey::tagged("Q4_K", [4096, 2048]); 8])?;
    /// let settings = Settings {
    ///     free_bytes: Some(2 << 20),
    ///     reserves: vec![Reserve { name: "kv".into(), bytes: 1 << 20 }],
    ///     ..Settings::new(Constraints::new(Budget::Rest(Share::WHOLE)))
    /// };
    /// let configuration = Configuration::new(model, settings)?;
    /// assert_eq!(configuration.geometry().slot_count(), 170);
    /// assert!(configuration.staging().is_some_and(|staging| staging.buffer_count() == 2));
    /// assert_eq!(configuration.left_bytes(), Some((1 << 20) - configuration.set_aside().total()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first setting that cannot be honoured, with what it needs and what it was given.
    pub fn new(model: Model, settings: Settings) -> Result<Self, ConfigurationError> {
        let mut notes = Vec::new();
        check_split(&model, &settings, &mut notes)?;
        check_rates(&settings)?;
        check_inputs(&model, &settings)?;
        let has_cpu_code = |layer| settings.cpu_code.has(model.layer(layer));
        let mut slotless = settings.resident_layers.clone();
        slotless.extend(&settings.constraints.slotless_layers);
        let cpu_layers = settings.cpu_layers.resolve(&model, &slotless, has_cpu_code, settings.pinnable_bytes)?;
        slotless.extend(&cpu_layers);
        let cached: Vec<LayerId> = model.layer_ids().filter(|layer| !slotless.contains(layer)).collect();
        let strategy = choose_strategy(&model, &settings, &cached)?;

        let search = Search { model: &model, settings: &settings, strategy, cpu_layers: &cpu_layers };
        let found = search.run().map_err(|error| match settings.strategy {
            StrategyChoice::Measured => ConfigurationError::Recommended { strategy, error: Box::new(error) },
            StrategyChoice::Fixed(_) => error,
        })?;
        notes.extend(found.notes(&settings, strategy));
        let Found { geometry, staging, overlap_off, requests_lowered, set_aside } = found;
        Ok(Self { settings, geometry, strategy, staging, overlap_off, requests_lowered, cpu_layers, set_aside, notes })
    }

    /// The same settings with another budget: what was lowered comes back if there is room.
    ///
    /// # Errors
    ///
    /// As those of [`new`](Self::new); this configuration stays as it is.
    pub fn with_budget(&self, budget: Budget) -> Result<Self, ConfigurationError> {
        let mut settings = self.settings.clone();
        settings.constraints.budget = budget;
        Self::new(self.geometry.model().clone(), settings)
    }

    /// What was asked for.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The pools, with the budget in bytes or slots and the requests that are in effect.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How misses are computed.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The staging buffers, if prefill stages at all.
    pub fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Why prefill does not overlap, though it was asked to.
    pub fn overlap_off(&self) -> Option<&OverlapOff> {
        self.overlap_off.as_ref()
    }

    /// Requests decoded at once: as many as asked for, unless the settings allow fewer and no more fit.
    pub fn request_count(&self) -> u32 {
        self.geometry.constraints().request_count
    }

    /// Why fewer requests are decoded at once than asked for.
    pub fn requests_lowered(&self) -> Option<&GeometryError> {
        self.requests_lowered.as_ref()
    }

    /// Of the batch sizes in the settings, those that can be decoded at once.
    pub fn fitting_batches(&self) -> Vec<u32> {
        self.geometry.fitting_batches(&self.settings.batch_sizes).collect()
    }

    /// Every layer that holds no slots, ascending, and why.
    pub fn declined(&self) -> Vec<(LayerId, Declined)> {
        let why = |layer: LayerId| {
            if self.settings.resident_layers.contains(&layer) {
                Some(Declined::Resident)
            } else if self.cpu_layers.contains(&layer) {
                Some(Declined::Cpu)
            } else if self.settings.constraints.slotless_layers.contains(&layer) {
                Some(Declined::Slotless)
            } else {
                None
            }
        };
        self.geometry.model().layer_ids().filter_map(|layer| why(layer).map(|why| (layer, why))).collect()
    }

    /// What the rates recommend for a layer, if it was measured.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn recommendation(&self, layer: LayerId) -> Option<Recommendation> {
        recommend(self.geometry.model().layer(layer), &self.settings)
    }

    /// How many misses of a layer are fetched in a hybrid step; `None` if that is not asked, as all are or none, or
    /// if the layer holds no slots.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn fetch(&self, layer: LayerId) -> Option<Fetch> {
        self.geometry.pool_of_layer(layer).filter(|_| self.strategy == Strategy::Hybrid)?;
        fetch_of(self.geometry.model().layer(layer), &self.settings)
    }

    /// Which of the misses of a hybrid step are fetched first.
    pub fn fetch_order(&self) -> FetchOrder {
        self.settings.fetch_order.unwrap_or_default()
    }

    /// Which rule says who goes.
    pub fn eviction(&self) -> Eviction {
        self.settings.eviction
    }

    /// Banks with rows narrower than this are staged whole.
    pub fn small_row_bytes(&self) -> u64 {
        self.settings.small_row_bytes.unwrap_or(SMALL_ROW_BYTES)
    }

    /// Everything to set aside on the device.
    pub fn set_aside(&self) -> &SetAside {
        &self.set_aside
    }

    /// What is left of the free memory after reserves and everything set aside.
    pub fn left_bytes(&self) -> Option<u64> {
        // Neither difference is negative: that would have been refused.
        self.settings.free_bytes.map(|free| free - self.settings.reserved_bytes() - self.set_aside.total())
    }

    /// Bytes of the host that should be pinned: the rows of the layers that hold slots.
    pub fn pinned_bytes(&self) -> u64 {
        let pools = self.geometry.pools().iter();
        pools.flat_map(|pool| pool.layers()).map(|&layer| self.geometry.model().layer_bytes(layer)).sum()
    }

    /// Registrations that pin them, one for each bank that a layer reads.
    pub fn pinned_ranges(&self) -> usize {
        let layers = self.geometry.pools().iter().flat_map(|pool| pool.layers());
        let read = |&layer: &LayerId| self.geometry.model().layer(layer).row_bytes().iter().filter(|&&b| b > 0).count();
        layers.map(read).sum()
    }

    /// Bytes of the host that may be dropped once they are copied: the rows of layers that lie on the device as a
    /// whole. A slot's row is needed again as soon as it is given up, so no other may.
    pub fn droppable_bytes(&self) -> u64 {
        self.settings.resident_layers.iter().map(|&layer| self.geometry.model().layer_bytes(layer)).sum()
    }

    /// The layers that decode on the CPU, ascending.
    pub fn cpu_layers(&self) -> &[LayerId] {
        &self.cpu_layers
    }

    /// What a user should know.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

/// Whether what the split goes by fits the model, and was counted on it.
fn check_split(model: &Model, settings: &Settings, notes: &mut Vec<Note>) -> Result<(), ConfigurationError> {
    let (counted, by_curves) = match &settings.constraints.split {
        Split::Equal => return Ok(()),
        Split::Profile(profile) => {
            profile.check(model)?;
            (profile.model_name().to_owned(), false)
        }
        Split::Curve(curves) => {
            curves.check(model).map_err(GeometryError::from)?;
            (curves.model_name().to_owned(), true)
        }
    };
    let Some(name) = settings.model_name.clone() else {
        return match settings.other_model {
            OtherModel::Note => Ok(()),
            OtherModel::Refuse => {
                let because = "the model's name is not known";
                let setting = match by_curves {
                    false => "refusing another model's profile",
                    true => "refusing another model's curves",
                };
                Err(ConfigurationError::Ignored { setting, because })
            }
        };
    };
    if name == counted {
        return Ok(());
    }
    match (settings.other_model, by_curves) {
        (OtherModel::Note, false) => notes.push(Note::OtherModel { profile: counted, model: name }),
        (OtherModel::Note, true) => notes.push(Note::OtherCurves { curves: counted, model: name }),
        (OtherModel::Refuse, false) => {
            return Err(ConfigurationError::OtherModel { profile: counted, model: name });
        }
        (OtherModel::Refuse, true) => return Err(ConfigurationError::OtherCurves { curves: counted, model: name }),
    }
    Ok(())
}

/// What the rates say of a layer; never a strategy that its quantisation has no CPU code for.
fn recommend(layer: &LayoutKey, settings: &Settings) -> Option<Recommendation> {
    let mut point = settings.rates.as_ref()?.point_of(layer)?.clone();
    if !settings.cpu_code.has(layer) {
        point.cpu = None;
    }
    Some(point.recommend())
}

/// What the settings list: batches, tags, reserves and layers.
fn check_inputs(model: &Model, settings: &Settings) -> Result<(), ConfigurationError> {
    if settings.batch_sizes.contains(&0) {
        return Err(ConfigurationError::EmptyBatch);
    }
    if let CpuCode::Tags(tags) = &settings.cpu_code {
        let has_no_layer =
            |tag: &&Vec<u8>| !model.layers().iter().any(|layer| layer.tag().unwrap_or_default() == **tag);
        if let Some(tag) = tags.iter().find(has_no_layer) {
            return Err(ConfigurationError::UnknownCpuTag { tag: tag.clone() });
        }
    }
    let reserved: u128 = settings.reserves.iter().map(|reserve| u128::from(reserve.bytes)).sum();
    if let Some(free) = settings.free_bytes
        && reserved > u128::from(free)
    {
        let reserves = settings.reserves.clone();
        return Err(ConfigurationError::Reserves { reserves, reserved: settings.reserved_bytes(), free });
    }
    if !settings.reserves.is_empty() && settings.free_bytes.is_none() {
        let because = "how much memory is free is not known";
        return Err(ConfigurationError::Ignored { setting: "reserves", because });
    }
    let resident = &settings.resident_layers;
    if let Some(&layer) = resident.iter().find(|layer| layer.index() >= model.layer_count()) {
        return Err(GeometryError::UnknownLayer { layer, layer_count: model.layer_count() }.into());
    }
    if let Some(index) = (1..resident.len()).find(|&index| resident[..index].contains(&resident[index])) {
        return Err(ConfigurationError::ResidentTwice { layer: resident[index] });
    }
    Ok(())
}

/// Rates of another device are no rates.
fn check_rates(settings: &Settings) -> Result<(), ConfigurationError> {
    match (&settings.rates, &settings.device) {
        (Some(rates), Some(device)) => Ok(rates.check_device(device)?),
        (Some(rates), None) => Err(ConfigurationError::DeviceUnknown { measured: rates.device().to_owned() }),
        (None, Some(_)) => Err(ConfigurationError::Ignored { setting: "device", because: "there are no rates" }),
        (None, None) => Ok(()),
    }
}

fn choose_strategy(model: &Model, settings: &Settings, cached: &[LayerId]) -> Result<Strategy, ConfigurationError> {
    let Some(&first) = cached.first() else {
        return Err(GeometryError::NothingCached { layers: model.layer_count() }.into());
    };
    let strategy = match settings.strategy {
        StrategyChoice::Measured if settings.rates.is_none() => return Err(ConfigurationError::NoRates),
        StrategyChoice::Fixed(strategy) => strategy,
        StrategyChoice::Measured => {
            // The layers are alike but for their quantisation: the CPU takes part if it helps with any of them.
            let recommended = cached.iter().filter_map(|&layer| recommend(model.layer(layer), settings));
            let each: Vec<Strategy> = recommended.map(|one| one.strategy).collect();
            if each.is_empty() {
                return Err(ConfigurationError::NotMeasured { layer: first });
            }
            let alike = each.iter().all(|one| *one == each[0]);
            if alike && each.len() == cached.len() { each[0] } else { Strategy::Hybrid }
        }
    };
    if strategy == Strategy::Cpu && settings.cpu_layers != CpuLayers::None {
        return Err(ConfigurationError::Ignored { setting: "cpu layers", because: "every layer decodes on the CPU" });
    }
    let because = match strategy {
        Strategy::Offload => Some("offload fetches every miss"),
        Strategy::Cpu => Some("nothing is fetched where the CPU computes every expert"),
        Strategy::Hybrid => None,
    };
    if let (Some(because), Some(_), StrategyChoice::Fixed(_)) = (because, &settings.fetch, settings.strategy) {
        return Err(ConfigurationError::Ignored { setting: "fetch", because });
    }
    if let (Some(because), Some(_), StrategyChoice::Fixed(_)) = (because, settings.fetch_order, settings.strategy) {
        return Err(ConfigurationError::Ignored { setting: "fetch order", because });
    }
    if settings.staging == StagingPlace::Nowhere && settings.small_row_bytes.is_some() {
        return Err(ConfigurationError::Ignored { setting: "small rows", because: "nothing is staged" });
    }
    if strategy == Strategy::Cpu && settings.admission == Admission::Device {
        let because = "nothing is admitted where the CPU computes every expert";
        return Err(ConfigurationError::Ignored { setting: "admission on the device", because });
    }
    check_eviction(model, settings, strategy)?;
    if settings.constraints.staging_only && strategy != Strategy::Cpu {
        return Err(ConfigurationError::Ignored { setting: "strategy", because: "slots only stage prefill" });
    }
    if strategy == Strategy::Offload {
        return Ok(strategy);
    }
    if let StrategyChoice::Fixed(_) = settings.strategy
        && let Some(&layer) = cached.iter().find(|&&layer| !settings.cpu_code.has(model.layer(layer)))
    {
        let tag = model.layer(layer).tag().unwrap_or_default().to_vec();
        return Err(ConfigurationError::NoCpuCode { strategy, layer, tag });
    }
    if strategy == Strategy::Hybrid {
        let given = matches!(settings.fetch, Some(FetchChoice::Fixed(_)));
        if settings.rates.is_none() && !given {
            return Err(ConfigurationError::NoRates);
        }
        let unmeasured = |layer: &&LayerId| fetch_of(model.layer(**layer), settings).is_none();
        if let Some(&layer) = cached.iter().find(unmeasured) {
            return Err(ConfigurationError::NotMeasured { layer });
        }
        let fetches = |&layer: &LayerId| fetch_of(model.layer(layer), settings).is_some_and(|fetch| !fetch.is_never());
        if !cached.iter().any(fetches) {
            return Err(ConfigurationError::NothingFetched);
        }
    }
    Ok(strategy)
}

/// Whether victims can be chosen by the rule that is asked for.
fn check_eviction(model: &Model, settings: &Settings, strategy: Strategy) -> Result<(), ConfigurationError> {
    let eviction = settings.eviction;
    eviction.check(model.expert_count()).map_err(ConfigurationError::Eviction)?;
    if eviction != Eviction::Lru && strategy == Strategy::Cpu {
        let because = "nothing is admitted where the CPU computes every expert";
        return Err(ConfigurationError::Ignored { setting: "eviction", because });
    }
    Ok(())
}

/// How many misses of a layer a hybrid step fetches. All, if the CPU has no code for it; `None`, if that is to be
/// measured and was not.
pub(crate) fn fetch_of(layer: &LayoutKey, settings: &Settings) -> Option<Fetch> {
    if !settings.cpu_code.has(layer) {
        return Some(Fetch { rule: FetchRule::Carry(Fraction::ALL), most: None });
    }
    let (rounding, most) = match settings.fetch {
        Some(FetchChoice::Fixed(fetch)) => return Some(fetch),
        Some(FetchChoice::Measured { rounding, most }) => (rounding, most),
        None => (Rounding::default(), None),
    };
    recommend(layer, settings).map(|one| Fetch { rule: rounding.rule(one.fraction), most })
}

/// What was found to fit.
pub(crate) struct Found {
    pub(crate) geometry: Geometry,
    pub(crate) staging: Option<Staging>,
    pub(crate) overlap_off: Option<OverlapOff>,
    pub(crate) requests_lowered: Option<GeometryError>,
    pub(crate) set_aside: SetAside,
}
