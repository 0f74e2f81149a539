//! Plans that stay open between two calls, for a caller whose language has no borrows.
//!
//! A ticket borrows the cache, so that nothing else can be decided while its rows may never arrive. Over the C ABI
//! that is told at run time instead: one plan is open at a time, and what would change the residency is refused until
//! it is committed or aborted.

use std::fmt;

use ftcache_policy::{ExpertId, LayerId};

use crate::{
    BringBackTicket, Cache, EnsureError, LateError, LatePlan, LateTicket, Placement, Plan, Residents, SnapshotError,
    StageError, StagePlan, StageTicket, Step, Ticket,
};

/// Which plan is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenPlan {
    /// A step's.
    Step,
    /// That of rows fetched behind a step.
    Later,
    /// That of rows fetched ahead of one by a hint.
    Hint,
    /// That of a layer to be staged.
    Stage,
    /// That of residents on their way back.
    BringBack,
}

impl fmt::Display for OpenPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Step => "the plan of a step",
            Self::Later => "the plan of rows behind a step",
            Self::Hint => "the plan of a hint",
            Self::Stage => "the plan of a layer to be staged",
            Self::BringBack => "the plan of residents on their way back",
        })
    }
}

/// A call that was refused. The residency is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlannerError {
    /// A plan is open.
    Open(OpenPlan),
    /// None is.
    NotOpen,
    /// Rows are on their way behind a step or ahead of one, to slots that would be given to others.
    InFlight,
    /// The step cannot be admitted.
    Ensure(EnsureError),
    /// Nothing can be fetched behind the step.
    Late(LateError),
    /// A call out of the order of a prefill chunk.
    Stage(StageError),
    /// Residents cannot be brought back.
    Snapshot(SnapshotError),
}

impl fmt::Display for PlannerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(plan) => write!(f, "{plan} is open: commit or abort it first"),
            Self::NotOpen => write!(f, "no plan is open"),
            Self::InFlight => write!(f, "rows are on their way behind a step or ahead of one: land them first"),
            Self::Ensure(error) => error.fmt(f),
            Self::Late(error) => error.fmt(f),
            Self::Stage(error) => error.fmt(f),
            Self::Snapshot(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlannerError {}

macro_rules! from {
    ($($error:ident => $variant:ident),*) => {
        $(impl From<$error> for PlannerError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from!(EnsureError => Ensure, LateError => Late, StageError => Stage, SnapshotError => Snapshot);

/// A residency and the plan that it may have open.
///
/// ```
/// use ftcache_policy::{Budget, Constraints, ExpertId, Geometry, LayerId, LayoutKey, Model, Quantisation};
/// use ftcache_residency::{Cache, Planner};
///
/// let model = Model::new(8, 2, Quantisation::PerLayer, vec![LayoutKey::tagged("f32", [16])])?;
/// let mut planner = Planner::new(Cache::new(&Geometry::new(model, Constraints::new(Budget::Slots(4)))?));
/// let routes = [6, 2, 6].map(ExpertId::new);
/// let copies = planner.admit(LayerId::new(0), &routes)?.copies().len();
/// assert_eq!(copies, 2);
/// assert!(planner.admit(LayerId::new(0), &routes).is_err());
/// planner.commit()?;
/// assert!(planner.admit(LayerId::new(0), &routes)?.copies().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Planner {
    cache: Cache,
    open: Option<OpenPlan>,
    plan: Plan,
    late: LatePlan,
    hint: LatePlan,
    stage: StagePlan,
    placements: Vec<Placement>,
    /// Reused for ids that an engine gives in its own form.
    routes: Vec<ExpertId>,
}

impl Planner {
    /// The planner of a residency, with no plan open. As long a step as it has room for allocates nothing.
    pub fn new(cache: Cache) -> Self {
        let experts = cache.expert_count() as usize;
        let width = cache.scratch.width();
        Self {
            open: None,
            plan: Plan::with_capacity(width),
            late: LatePlan::with_capacity(experts),
            hint: LatePlan::with_capacity(experts),
            stage: StagePlan::with_capacity(experts),
            placements: Vec::new(),
            routes: Vec::with_capacity(width),
            cache,
        }
    }

    /// Who is where. While a plan is open, its rows count as being there.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Which plan is open.
    pub fn open(&self) -> Option<OpenPlan> {
        self.open
    }

    /// The residency, to be changed by what needs no plan.
    ///
    /// # Errors
    ///
    /// A plan is open.
    pub fn cache_mut(&mut self) -> Result<&mut Cache, PlannerError> {
        self.check_none_open()?;
        Ok(&mut self.cache)
    }

    fn check_none_open(&self) -> Result<(), PlannerError> {
        self.open.map_or(Ok(()), |plan| Err(PlannerError::Open(plan)))
    }

    /// Opens the plan of a step: [`Cache::ensure`].
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::ensure`].
    pub fn admit(&mut self, step: impl Into<Step>, routes: &[ExpertId]) -> Result<&Plan, PlannerError> {
        self.check_none_open()?;
        self.cache.ensure(step, routes, &mut self.plan)?.leave_open();
        self.open = Some(OpenPlan::Step);
        Ok(&self.plan)
    }

    /// As [`admit`](Self::admit), for ids in an engine's own form; one equal to `absent` is not for this device.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit) and [`Cache::read_ids`].
    pub fn admit_ids(
        &mut self,
        step: impl Into<Step>,
        ids: impl IntoIterator<Item = i64>,
        absent: Option<i64>,
    ) -> Result<&Plan, PlannerError> {
        self.check_none_open()?;
        let step = step.into();
        self.cache.read_ids(step.layer, ids, absent, &mut self.routes)?;
        self.cache.ensure(step, &self.routes, &mut self.plan)?.leave_open();
        self.open = Some(OpenPlan::Step);
        Ok(&self.plan)
    }

    /// Opens the plan of what is fetched behind the last step: [`Cache::fetch_later`].
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::fetch_later`].
    pub fn fetch_later(&mut self, most: usize) -> Result<&LatePlan, PlannerError> {
        self.check_none_open()?;
        self.cache.fetch_later(&self.plan, most, &mut self.late)?.leave_open();
        self.open = Some(OpenPlan::Later);
        Ok(&self.late)
    }

    /// Opens the plan of what a hint fetches: [`Cache::hint`], with the last step as the current one.
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::hint`].
    pub fn hint(&mut self, layer: LayerId, experts: &[ExpertId], most: usize) -> Result<&LatePlan, PlannerError> {
        self.check_none_open()?;
        self.cache.hint(&self.plan, layer, experts, most, &mut self.hint)?.leave_open();
        self.open = Some(OpenPlan::Hint);
        Ok(&self.hint)
    }

    /// Opens the plan of a layer that is staged in a free buffer: [`Cache::prefetch`].
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::prefetch`].
    pub fn prefetch(&mut self, layer: LayerId) -> Result<&StagePlan, PlannerError> {
        self.check_none_open()?;
        let ticket = self.cache.prefetch(layer, &mut self.stage)?;
        ticket.leave_open();
        self.open = Some(OpenPlan::Stage);
        Ok(&self.stage)
    }

    /// As [`prefetch`](Self::prefetch), in the first buffer: [`Cache::materialize`].
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::materialize`].
    pub fn materialize(&mut self, layer: LayerId) -> Result<&StagePlan, PlannerError> {
        self.check_none_open()?;
        let ticket = self.cache.materialize(layer, &mut self.stage)?;
        ticket.leave_open();
        self.open = Some(OpenPlan::Stage);
        Ok(&self.stage)
    }

    /// Opens the plan of residents on their way back: [`Cache::bring_back`].
    ///
    /// # Errors
    ///
    /// A plan is open, or as [`Cache::bring_back`].
    pub fn bring_back(&mut self, residents: &Residents, fingerprint: u64) -> Result<&[Placement], PlannerError> {
        self.check_none_open()?;
        self.cache.bring_back(residents, fingerprint, &mut self.placements)?.leave_open();
        self.open = Some(OpenPlan::BringBack);
        Ok(&self.placements)
    }

    /// Ends the open plan as carried out. Rows behind a step, and those of a hint, are then on their way until
    /// [`Cache::land`].
    ///
    /// # Errors
    ///
    /// No plan is open.
    pub fn commit(&mut self) -> Result<(), PlannerError> {
        match self.open.take().ok_or(PlannerError::NotOpen)? {
            OpenPlan::Step => Ticket::of(&mut self.cache, &self.plan).commit(),
            OpenPlan::Later => LateTicket::of(&mut self.cache, &self.late).commit(),
            OpenPlan::Hint => LateTicket::of(&mut self.cache, &self.hint).commit(),
            OpenPlan::Stage => StageTicket::of(&mut self.cache, &self.stage).commit(),
            OpenPlan::BringBack => BringBackTicket::of(&mut self.cache, &self.placements).commit(),
        }
        Ok(())
    }

    /// Ends the open plan as not carried out: the slots that it would have filled are free.
    ///
    /// # Errors
    ///
    /// No plan is open.
    pub fn abort(&mut self) -> Result<(), PlannerError> {
        match self.open.take().ok_or(PlannerError::NotOpen)? {
            OpenPlan::Step => Ticket::of(&mut self.cache, &self.plan).abort(),
            OpenPlan::Later => LateTicket::of(&mut self.cache, &self.late).abort(),
            OpenPlan::Hint => LateTicket::of(&mut self.cache, &self.hint).abort(),
            OpenPlan::Stage => StageTicket::of(&mut self.cache, &self.stage).abort(),
            OpenPlan::BringBack => BringBackTicket::of(&mut self.cache, &self.placements).abort(),
        }
        Ok(())
    }

    /// What the last step decided.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was last fetched behind a step.
    pub fn late_plan(&self) -> &LatePlan {
        &self.late
    }

    /// What the last hint fetches.
    pub fn hint_plan(&self) -> &LatePlan {
        &self.hint
    }

    /// How the last layer comes to be staged.
    pub fn stage_plan(&self) -> &StagePlan {
        &self.stage
    }

    /// Where residents last came back to.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// Begins a prefill chunk: [`Cache::begin_chunk`].
    ///
    /// # Errors
    ///
    /// A plan is open; rows are on their way behind a step or ahead of one, and may be to slots under the buffers; or
    /// as [`Cache::begin_chunk`].
    pub fn begin_chunk(&mut self) -> Result<(), PlannerError> {
        self.check_none_open()?;
        let is_borrowed = self.cache.staging().is_some_and(|staging| staging.is_borrowed());
        if is_borrowed && self.cache.has_flights() {
            return Err(PlannerError::InFlight);
        }
        Ok(self.cache.begin_chunk()?)
    }

    /// Whether the residency may be exchanged: no plan is open and no row on its way.
    ///
    /// # Errors
    ///
    /// One is.
    pub fn check_idle(&self) -> Result<(), PlannerError> {
        self.check_none_open()?;
        if self.cache.has_flights() { Err(PlannerError::InFlight) } else { Ok(()) }
    }

    /// Goes on with another residency, such as [`Cache::rebuilt`] makes. No plan is the last any more.
    ///
    /// # Errors
    ///
    /// A plan is open, or rows are on their way behind a step or ahead of one.
    pub fn go_on_with(&mut self, cache: Cache) -> Result<(), PlannerError> {
        self.check_idle()?;
        *self = Self::new(cache);
        Ok(())
    }
}
