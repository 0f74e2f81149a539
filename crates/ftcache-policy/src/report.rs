//! A configuration as people read it: each setting that shapes it, as it was asked for and as it is in effect, and why
//! they differ. Free memory, reserves and what the host may pin are inputs of sums and stand with those.

use std::fmt;

use crate::{
    Admission, Budget, Configuration, CpuLayers, Declined, FetchChoice, Note, OverlapOff, Scope, Split, StagingPlace,
    Strategy, StrategyChoice, TailPad,
};

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// Its name.
    pub setting: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What is in effect.
    pub effective: String,
    /// Why it is not what was asked for, or how it was found.
    pub reason: Option<String>,
}

impl Configuration {
    /// Of [`effective`](Self::effective), the settings that are less than was asked for, as others allowed.
    pub fn lowered(&self) -> Vec<Effective> {
        let mut lowered = vec![self.requests_in_effect(), self.batches_in_effect(), self.overlap_in_effect()];
        lowered.retain(|one| one.asked != one.effective);
        lowered
    }

    /// Every setting, asked for and in effect.
    pub fn effective(&self) -> Vec<Effective> {
        let settings = self.settings();
        let constraints = &settings.constraints;
        let as_asked = |setting, asked: String| Effective { setting, effective: asked.clone(), asked, reason: None };
        vec![
            as_asked("scope", constraints.scope.to_string()),
            self.budget_in_effect(),
            as_asked("split", constraints.split.to_string()),
            self.requests_in_effect(),
            self.batches_in_effect(),
            as_asked("staging", settings.staging.to_string()),
            self.overlap_in_effect(),
            as_asked("small rows", format!("under {} bytes", self.small_row_bytes())),
            Effective {
                setting: "strategy",
                asked: match settings.strategy {
                    StrategyChoice::Fixed(strategy) => strategy.to_string(),
                    StrategyChoice::Measured => "measured".to_owned(),
                },
                effective: self.strategy().to_string(),
                reason: settings.rates.is_some().then(|| self.recommended()),
            },
            self.fetch_in_effect(),
            as_asked("fetch order", self.fetch_order().to_string()),
            self.cpu_layers_in_effect(),
            as_asked("resident layers", listed(&settings.resident_layers.iter().map(|l| l.get()).collect::<Vec<_>>())),
            as_asked("admission", settings.admission.to_string()),
            as_asked("eviction", settings.eviction.to_string()),
            as_asked("slot limit", self.slot_limits()),
            as_asked("alignment", format!("{} bytes", constraints.alignment)),
            as_asked("slot pad", format!("{} bytes", constraints.slot_pad_bytes)),
            as_asked("tail pad", constraints.tail_pad.to_string()),
        ]
    }

    fn slot_limits(&self) -> String {
        let constraints = &self.settings().constraints;
        let of_tags =
            constraints.tag_limits.iter().map(|limit| format!("{}={}", limit.tag.escape_ascii(), limit.slots));
        let limits: Vec<String> = constraints.slot_limit.iter().map(ToString::to_string).chain(of_tags).collect();
        if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
    }

    fn budget_in_effect(&self) -> Effective {
        let asked = self.settings().constraints.budget;
        let geometry = self.geometry();
        let used = self.set_aside().resident.saturating_add(geometry.total_bytes());
        let full = geometry.pools().iter().filter(|pool| pool.slot_count() == pool.bounds().max_slots).count();
        let (effective, reason) = match asked {
            Budget::Slots(slots) => (format!("{slots} slots"), None),
            Budget::Bytes(bytes) if bytes == used => (format!("{used} bytes"), None),
            _ if full == geometry.pools().len() => {
                (format!("{used} bytes"), Some("every pool has the most slots it can use".to_owned()))
            }
            Budget::Bytes(_) if full > 0 => {
                let why = format!("{full} of the pools have the most slots they can use; no other's next slot fits");
                (format!("{used} bytes"), Some(why))
            }
            Budget::Bytes(_) => (format!("{used} bytes"), Some("no pool's next slot fits".to_owned())),
            Budget::Free(_) | Budget::Rest(_) => {
                let free = self.settings().free_bytes.unwrap_or(0);
                let reserved = self.settings().reserved_bytes();
                (format!("{used} bytes"), Some(format!("{free} bytes are free, {reserved} reserved")))
            }
        };
        Effective { setting: "budget", asked: asked.to_string(), effective, reason }
    }

    fn requests_in_effect(&self) -> Effective {
        Effective {
            setting: "requests",
            asked: self.settings().constraints.request_count.to_string(),
            effective: self.request_count().to_string(),
            reason: self.requests_lowered().map(ToString::to_string),
        }
    }

    fn overlap_in_effect(&self) -> Effective {
        Effective {
            setting: "overlap",
            asked: on_or_off(self.settings().overlap),
            effective: on_or_off(self.staging().is_some_and(|staging| staging.buffer_count() == 2)),
            reason: self.overlap_off().map(ToString::to_string),
        }
    }

    fn batches_in_effect(&self) -> Effective {
        let (asked, fitting) = (&self.settings().batch_sizes, self.fitting_batches());
        let lowered = fitting.len() < asked.len();
        let reason = self.geometry().request_limit().filter(|_| lowered);
        Effective {
            setting: "batch sizes",
            asked: listed(asked),
            effective: listed(&fitting),
            reason: reason.map(|limit| format!("the smallest pool serves {limit} requests at once")),
        }
    }

    fn fetch_in_effect(&self) -> Effective {
        let mut rules: Vec<String> = Vec::new();
        for pool in self.geometry().pools() {
            let rule = self.fetch(pool.layers()[0]).map(|fetch| fetch.to_string());
            if let Some(rule) = rule.filter(|rule| !rules.contains(rule)) {
                rules.push(rule);
            }
        }
        let asked = match &self.settings().fetch {
            None => "not said".to_owned(),
            Some(FetchChoice::Fixed(fetch)) => fetch.to_string(),
            Some(FetchChoice::Measured { rounding, most: None }) => format!("{rounding}, measured"),
            Some(FetchChoice::Measured { rounding, most: Some(most) }) => {
                format!("{rounding}, measured, at most {most}")
            }
        };
        if rules.is_empty() {
            let all = format!("strategy {} fetches {}", self.strategy(), if self.fetches() { "all" } else { "none" });
            let effective = if self.fetches() { "every miss" } else { "no miss" };
            return Effective { setting: "fetch", asked, effective: effective.to_owned(), reason: Some(all) };
        }
        Effective { setting: "fetch", asked, effective: rules.join("; "), reason: None }
    }

    fn fetches(&self) -> bool {
        self.strategy() != Strategy::Cpu
    }

    fn cpu_layers_in_effect(&self) -> Effective {
        let layers: Vec<u32> = self.cpu_layers().iter().map(|layer| layer.get()).collect();
        Effective {
            setting: "cpu layers",
            asked: self.settings().cpu_layers.to_string(),
            effective: listed(&layers),
            reason: match (&self.settings().cpu_layers, self.settings().pinnable_bytes) {
                (CpuLayers::None | CpuLayers::List(_), _) => None,
                (CpuLayers::Auto, Some(pinnable)) => Some(format!("{pinnable} bytes can be pinned")),
                (CpuLayers::Auto, None) | (CpuLayers::Count(_) | CpuLayers::Share(_), _) => {
                    Some("taken from both ends".to_owned())
                }
            },
        }
    }

    /// What the rates recommend for the first layer of each pool.
    fn recommended(&self) -> String {
        let mut each = Vec::new();
        for pool in self.geometry().pools() {
            let layer = pool.layers()[0];
            if let Some(one) = self.recommendation(layer) {
                each.push(format!("for layer {layer} {}, {}", one.strategy, one.basis));
            }
        }
        format!("recommended: {}", each.join("; "))
    }
}

fn on_or_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

fn listed(numbers: &[u32]) -> String {
    match numbers {
        [] => "none".to_owned(),
        _ => numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unified => "unified",
            Self::PerLayer => "per-layer",
        })
    }
}

impl fmt::Display for TailPad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RowUpTo(most) => write!(f, "a row, up to {most} bytes"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "equal",
            Self::Profile(_) => "profile",
            Self::Curve(_) => "curve",
        })
    }
}

impl fmt::Display for StagingPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Borrowed => "borrowed",
            Self::Dedicated => "dedicated",
            Self::Nowhere => "none",
        })
    }
}

impl fmt::Display for OverlapOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Borrowed(error) => error.fmt(f),
            Self::Dedicated(error) => write!(f, "with two whole layers, {error}"),
            Self::NoStaging => write!(f, "nothing is staged"),
            Self::OneLayer => write!(f, "only one layer is staged"),
        }
    }
}

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slotless => "it is to hold none",
            Self::Cpu => "decodes on the CPU",
            Self::Resident => "on the device as a whole",
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingStable { slots } => {
                write!(f, "staging lies on all {slots} slots: a prefill leaves nothing of what decode had")
            }
            Self::BelowCycle { pool, slots, cycle, hits } => {
                write!(
                    f,
                    "pool {pool} has {slots} slots; one decode of all its layers routes to {cycle}: \
                     with the same experts each time and every miss fetched, LRU hits {hits} of them"
                )
            }
            Self::NeverFilled { pool, slots } => {
                write!(f, "no miss of pool {pool} is ever fetched: its {slots} slots serve prefill alone")
            }
            Self::OtherModel { profile, model } => {
                write!(f, "the profile was counted on {profile:?}; this model is {model:?}")
            }
            Self::OtherCurves { curves, model } => {
                write!(f, "the curves were counted on {curves:?}; this model is {model:?}")
            }
            Self::Pinnable { needed, given } => {
                write!(f, "the rows to copy have {needed} bytes; {given} can be pinned")
            }
            Self::EveryPoolFull { unused } => {
                write!(f, "every pool has the most slots it can use: {unused} bytes of the budget stay unused")
            }
        }
    }
}
