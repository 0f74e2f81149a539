//! The search behind a configuration: the most requests and the staging that fit, or the least budget that would do.

use crate::configuration::{Found, Note, OverlapOff, SetAside, fetch_of};
use crate::geometry::slot_ranges;
use crate::settings::{Settings, StagingPlace};
use crate::tables::{Admission, loader_table_bytes, shape_of, table_bytes};
use crate::{
    Budget, ConfigurationError, Constraints, Enough, Fetch, Geometry, GeometryError, LayerId, Model, PoolId, SlotRange,
    Staging, Strategy,
};

pub(crate) struct Search<'a> {
    pub(crate) model: &'a Model,
    pub(crate) settings: &'a Settings,
    pub(crate) strategy: Strategy,
    pub(crate) cpu_layers: &'a [LayerId],
}

/// One attempt that fits.
struct Fit {
    geometry: Geometry,
    staging: Option<Staging>,
    set_aside: SetAside,
}

impl Search<'_> {
    pub(crate) fn run(&self) -> Result<Found, ConfigurationError> {
        let settings = self.settings;
        if self.strategy == Strategy::Cpu && settings.staging != StagingPlace::Borrowed {
            return Err(ConfigurationError::CpuWithoutSlots);
        }
        let (fit, requests_lowered) = self.most_requests().map_err(|error| self.with_enough(error))?;
        let (fit, overlap_off) = match (settings.overlap, fit.geometry.pools()) {
            (false, _) => (fit, None),
            (true, [pool]) if pool.layers().len() == 1 => (fit, Some(OverlapOff::OneLayer)),
            (true, _) => self.overlapping(fit),
        };
        let Fit { geometry, staging, set_aside } = fit;
        Ok(Found { geometry, staging, overlap_off, requests_lowered, set_aside })
    }

    /// As many requests as asked for; or the most that fit, with what stood against more, where the settings allow it.
    fn most_requests(&self) -> Result<(Fit, Option<GeometryError>), ConfigurationError> {
        let asked = self.settings.constraints.request_count;
        let error = match self.fit(asked, 1) {
            Ok(fit) => return Ok((fit, None)),
            Err(error) => error,
        };
        let Some(too_many) = too_many_requests(&error).cloned().filter(|_| self.settings.lower_requests) else {
            return Err(error);
        };
        // Pools that hold fewer requests hold fewer still, so the most that the pools allow is found by halves.
        let (mut fits, mut past) = (1, asked);
        while past - fits > 1 {
            let middle = fits + (past - fits) / 2;
            match self.fit(middle, 1) {
                Err(error) if too_many_requests(&error).is_some() => past = middle,
                _ => fits = middle,
            }
        }
        // Whether a layer can be staged may depend on how the requests' needs divide slots of several widths, either
        // way.
        let one_width = self.model.layers().iter().all(|layer| layer == &self.model.layers()[0]);
        let mut first = None;
        for request_count in (1..=fits.min(self.model.expert_count())).rev() {
            match self.fit(request_count, 1) {
                Ok(fit) => return Ok((fit, Some(too_many))),
                Err(error) if one_width => return Err(error),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or(error))
    }

    /// The same with two staging buffers, or why there is one.
    fn overlapping(&self, fit: Fit) -> (Fit, Option<OverlapOff>) {
        match self.settings.staging {
            StagingPlace::Nowhere => (fit, Some(OverlapOff::NoStaging)),
            StagingPlace::Borrowed => {
                let short = fit.staging.as_ref().and_then(Staging::second_lacks).cloned();
                (fit, short.map(OverlapOff::Borrowed))
            }
            StagingPlace::Dedicated => match self.fit(fit.geometry.constraints().request_count, 2) {
                Ok(two) => (two, None),
                Err(error) => (fit, Some(OverlapOff::Dedicated(Box::new(error)))),
            },
        }
    }

    /// The constraints of a geometry, with what the settings around them add.
    fn constraints(&self, request_count: u32) -> Constraints {
        let settings = self.settings;
        let mut constraints = settings.constraints.clone();
        constraints.request_count = request_count;
        constraints.staging_only |= self.strategy == Strategy::Cpu;
        constraints.slotless_layers.extend(self.cpu_layers);
        constraints.slotless_layers.extend(&settings.resident_layers);
        constraints
    }

    /// One geometry with its staging, and everything it sets aside.
    fn fit(&self, request_count: u32, buffer_count: u32) -> Result<Fit, ConfigurationError> {
        let settings = self.settings;
        let constraints = self.constraints(request_count);
        // Which rows are staged, and so how many bytes, does not depend on the slots.
        let staged = |geometry: &Geometry| match settings.staging {
            StagingPlace::Dedicated => Some(Staging::dedicated(geometry, buffer_count)),
            StagingPlace::Borrowed | StagingPlace::Nowhere => None,
        };
        let least = Geometry::least(self.model.clone(), constraints.clone())?;
        let staging_bytes = staged(&least).map_or(vec![0; self.model.bank_count()], |staging| staging.added_bytes());
        let resident = resident_bytes(self.model, &settings.resident_layers, &constraints);
        // Their tables, as if there were two buffers wherever there may be.
        let (fixed_table_bytes, slot_table_bytes) = match settings.admission {
            Admission::Host => (0, 0),
            Admission::Device => {
                let borrowed = 1 + u32::from(settings.overlap);
                let most = if settings.staging == StagingPlace::Borrowed { borrowed } else { buffer_count };
                let staging = Staging::dedicated(&least, most);
                let staging = Some(&staging).filter(|_| settings.staging != StagingPlace::Nowhere);
                let shape = shape_of(&least, settings.eviction);
                (shape.fixed_bytes() + loader_table_bytes(&least, staging), shape.slot_bytes())
            }
        };
        let beside = settings.reserved_bytes().saturating_add(sum(&staging_bytes)).saturating_add(fixed_table_bytes);

        let geometry = match settings.constraints.budget {
            Budget::Slots(_) => Geometry::new(self.model.clone(), constraints)?,
            Budget::Bytes(bytes) => self.within(constraints, bytes, resident, 0)?,
            budget @ (Budget::Free(share) | Budget::Rest(share)) => {
                let free = settings.free_bytes.ok_or(ConfigurationError::FreeUnknown { budget })?;
                if let Budget::Free(_) = budget {
                    self.within(constraints, share.of(free), resident, 0)?
                } else {
                    let left = free.checked_sub(beside);
                    let rest = left.ok_or(ConfigurationError::NothingLeft { needed: beside, free })?;
                    // The tables of a slot are paid with it.
                    self.within(constraints, share.of(rest), resident, slot_table_bytes)?
                }
            }
        };

        let staging = match settings.staging {
            StagingPlace::Borrowed => Some(Staging::borrowed(&geometry)?),
            StagingPlace::Dedicated | StagingPlace::Nowhere => staged(&geometry),
        };
        // Where overlap is off for a reason, a second buffer did not fit, or was not asked for.
        let staging = if settings.overlap { staging } else { staging.map(Staging::without_overlap) };
        let set_aside = SetAside {
            arenas: geometry.arena_bytes().to_vec(),
            staging: staging_bytes,
            resident,
            tables: table_bytes(&geometry, staging.as_ref(), settings.admission, settings.eviction),
        };
        let total = set_aside.exact_total();
        if total > isize::MAX as u128 {
            return Err(GeometryError::TooManyBytes { bytes: total, most: isize::MAX as u64 }.into());
        }
        if let Some(free) = settings.free_bytes
            && u128::from(settings.reserved_bytes()) + total > u128::from(free)
        {
            let (needed, reserved) = (set_aside.total(), settings.reserved_bytes());
            return Err(ConfigurationError::PastFree { needed, reserved, free });
        }
        Ok(Fit { geometry, staging, set_aside })
    }

    /// A geometry within so many bytes, of which the layers on the device take theirs first, and each slot
    /// `slot_table_bytes` beside its rows.
    fn within(
        &self,
        mut constraints: Constraints,
        bytes: u64,
        resident: u64,
        slot_table_bytes: u64,
    ) -> Result<Geometry, ConfigurationError> {
        let short = ConfigurationError::Resident { needed: resident, given: bytes };
        constraints.budget = Budget::Bytes(bytes.checked_sub(resident).ok_or(short)?);
        Ok(Geometry::with_slot_tables(self.model.clone(), constraints, slot_table_bytes)?)
    }

    /// The error with the least budget that would do, where more of it would help.
    fn with_enough(&self, error: ConfigurationError) -> ConfigurationError {
        let helps = match &error {
            ConfigurationError::Staging(_)
            | ConfigurationError::NothingLeft { .. }
            | ConfigurationError::Resident { .. }
            | ConfigurationError::Geometry(
                GeometryError::SlotsBelowMinimum { .. } | GeometryError::BudgetBelowMinimum { .. },
            ) => true,
            ConfigurationError::PastFree { .. } => self.budget_is_a_share(),
            _ => false,
        };
        match helps.then(|| self.enough()).flatten() {
            Some(enough) => ConfigurationError::Short { error: Box::new(error), enough },
            None => error,
        }
    }

    fn budget_is_a_share(&self) -> bool {
        matches!(self.settings.constraints.budget, Budget::Free(_) | Budget::Rest(_))
    }

    /// The least budget above what is given that would do; of a share, the least free memory.
    fn enough(&self) -> Option<Enough> {
        let budget = self.settings.constraints.budget;
        let tried = |amount: u64| {
            let mut settings = self.settings.clone();
            match &mut settings.constraints.budget {
                Budget::Slots(slots) => *slots = amount,
                Budget::Bytes(bytes) => *bytes = amount,
                Budget::Free(_) | Budget::Rest(_) => settings.free_bytes = Some(amount),
            }
            Search { settings: &settings, ..*self }.most_requests()
        };
        // More than the pools can use or than is free is refused too, so what is looked for may lie before such an
        // amount.
        let is_too_little = |amount: u64| match tried(amount) {
            Ok(_) | Err(ConfigurationError::Geometry(GeometryError::SlotsAboveMaximum { .. })) => false,
            Err(ConfigurationError::PastFree { .. }) => self.budget_is_a_share(),
            Err(_) => true,
        };
        let (given, enough): (u64, fn(u64) -> Enough) = match budget {
            Budget::Slots(slots) => (slots, Enough::Slots),
            Budget::Bytes(bytes) => (bytes, Enough::Bytes),
            Budget::Free(_) | Budget::Rest(_) => (self.settings.free_bytes?, Enough::Free),
        };
        let mut most = given.max(1);
        while is_too_little(most) {
            most = most.checked_mul(2)?;
        }
        let mut short = given;
        while most - short > 1 {
            let middle = short + (most - short) / 2;
            if is_too_little(middle) {
                short = middle;
            } else {
                most = middle;
            }
        }
        tried(most).is_ok().then(|| enough(most))
    }
}

/// The refusal, if fewer requests would not meet it.
fn too_many_requests(error: &ConfigurationError) -> Option<&GeometryError> {
    match error {
        ConfigurationError::Geometry(
            error @ (GeometryError::SlotsBelowMinimum { .. }
            | GeometryError::BudgetBelowMinimum { .. }
            | GeometryError::SlotLimitBelowMinimum { .. }),
        ) => Some(error),
        _ => None,
    }
}

impl Found {
    /// What a user should know of it.
    pub(crate) fn notes(&self, settings: &Settings, strategy: Strategy) -> Vec<Note> {
        let mut notes = Vec::new();
        let geometry = &self.geometry;
        let (model, constraints) = (geometry.model(), geometry.constraints());
        if let Some(staging) = self.staging.as_ref().filter(|staging| staging.is_borrowed())
            && strategy != Strategy::Cpu
            && staging.stable_slots(geometry) == 0
        {
            notes.push(Note::NothingStable { slots: geometry.slot_count() });
        }
        for (index, pool) in geometry.pools().iter().enumerate().filter(|_| strategy != Strategy::Cpu) {
            let routes = u64::from(model.top_k()) * u64::from(constraints.request_count);
            let (layers, slots) = (pool.layers().len() as u64, pool.slot_count());
            let step = routes.min(u64::from(model.expert_count()));
            let cycle = layers * step;
            // A pool of one layer has what one step needs.
            if u64::from(slots) < cycle {
                // The slots of a step are stamped alike and leave lowest first. What is over when the other layers have
                // had theirs is still there when the layer's turn comes again.
                let hits = layers * u64::from(slots).saturating_sub(cycle - step);
                notes.push(Note::BelowCycle { pool: PoolId::from_index(index), slots, cycle, hits });
            }
        }
        if let Budget::Bytes(budget) = constraints.budget
            && geometry.pools().iter().all(|pool| pool.slot_count() == pool.bounds().max_slots)
            && budget > geometry.total_bytes()
        {
            notes.push(Note::EveryPoolFull { unused: budget - geometry.total_bytes() });
        }
        for (index, pool) in geometry.pools().iter().enumerate().filter(|_| strategy == Strategy::Hybrid) {
            if fetch_of(model.layer(pool.layers()[0]), settings).is_some_and(Fetch::is_never) {
                notes.push(Note::NeverFilled { pool: PoolId::from_index(index), slots: pool.slot_count() });
            }
        }
        let layers = geometry.pools().iter().flat_map(|pool| pool.layers());
        let needed: u64 = layers.map(|&layer| model.layer_bytes(layer)).sum();
        if let Some(given) = settings.pinnable_bytes.filter(|&given| given < needed) {
            notes.push(Note::Pinnable { needed, given });
        }
        notes
    }
}

/// Bytes of whole layers on the device: each bank's rows at their stride, and a pad after them.
fn resident_bytes(model: &Model, layers: &[LayerId], constraints: &Constraints) -> u64 {
    let layer_bytes = |&layer: &LayerId| {
        let ranges = slot_ranges(model, layer, constraints);
        let experts = u64::from(model.expert_count());
        let bank = |range: &SlotRange| range.stride.saturating_mul(experts).saturating_add(range.tail_pad_bytes);
        ranges.map_or(u64::MAX, |ranges| ranges.iter().map(bank).fold(0, u64::saturating_add))
    };
    layers.iter().map(layer_bytes).fold(0, u64::saturating_add)
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}
