//! Hints: rows that a later step is expected to route to, copied ahead of it; and what became of them.

use ftcache_core::policy::LayoutKey;
use ftcache_core::{HintReport, HintTotal, LayerId, hinted_rows};
use serde_json::{Value, json};

use crate::boundary::{SizedStruct, check_sized, write_sized};
use crate::cache::{Engine, Handle, enter, ftcache};
use crate::failure::Failure;
use crate::routes::{Ids, ftcache_routes};
use crate::status::ftcache_status;

/// What a hint came to. Each of its ids is counted once, but for absent ones.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_hint_report {
    /// sizeof(ftcache_hint_report), set by the caller.
    pub struct_size: u32,
    /// Ids of experts that are in a slot or on their way to one, those named twice among them: they cost nothing.
    pub present: u32,
    /// Ids whose rows are copied.
    pub started: u32,
    /// Ids that are not, since the budget was spent.
    pub over_budget: u32,
    /// Ids that are not, since no slot was left that a hint may take.
    pub no_slot: u32,
    /// Ids that are not, since as many hints as there may be (hint_flight_count of ftcache_config) were on their way.
    pub held_back: u32,
    /// Its number, for ftcache_cancel_hint; of FTCACHE_DEVICE_NONE, that of its flight too. None is 0.
    pub hint: u64,
    /// Bytes that are copied.
    pub bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_hint_report {}

impl From<HintReport> for ftcache_hint_report {
    fn from(report: HintReport) -> Self {
        let HintReport { hint, present, started, over_budget, no_slot, held_back, bytes } = report;
        Self { struct_size: 0, present, started, over_budget, no_slot, held_back, hint, bytes }
    }
}

/// What became of the rows of hints, since the cache was made or rebuilt: started are useful, late, wasted and open
/// ones together. A step counts as if there were no hints: an expert that one has brought is a hit, and so is one that
/// a step waits for; one that a hybrid step leaves to the CPU on its way is a miss.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_hint_stats {
    /// sizeof(ftcache_hint_stats), set by the caller.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Rows that were copied.
    pub started: u64,
    /// Those that took the slot of another expert.
    pub evictions: u64,
    /// Rows that were there when the next step of their layer routed to them.
    pub useful: u64,
    /// Rows that were on their way then.
    pub late: u64,
    /// Rows that it did not route to, that a step took the slot of before, or that were cancelled, freed by a call or
    /// refused by the device.
    pub wasted: u64,
    /// Rows whose step has not come.
    pub open: u64,
    /// Bytes of those that were started.
    pub started_bytes: u64,
    /// Bytes of the useful ones.
    pub useful_bytes: u64,
    /// Bytes of the late ones.
    pub late_bytes: u64,
    /// Bytes of the wasted ones.
    pub wasted_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_hint_stats {}

impl From<HintTotal> for ftcache_hint_stats {
    fn from(total: HintTotal) -> Self {
        let HintTotal { residency, started_bytes, useful_bytes, late_bytes, wasted_bytes } = total;
        Self {
            struct_size: 0,
            reserved: 0,
            started: residency.started,
            evictions: residency.evictions,
            useful: residency.useful,
            late: residency.late,
            wasted: residency.wasted,
            open: residency.open(),
            started_bytes,
            useful_bytes,
            late_bytes,
            wasted_bytes,
        }
    }
}

impl Handle {
    fn layer_key(&self, layer: LayerId) -> &LayoutKey {
        self.configuration.geometry().model().layer(layer)
    }

    fn layer_hints(&self, layer: LayerId) -> HintTotal {
        HintTotal::of_layer(self.residency().hint_stats(layer), self.layer_key(layer))
    }

    fn hint_total(&self) -> HintTotal {
        let mut sum = HintTotal::default();
        self.configuration.geometry().model().layer_ids().for_each(|layer| sum += self.layer_hints(layer));
        sum
    }

    /// The same for people and logs, by the names of the struct's fields.
    pub(crate) fn hints_json(&self) -> Value {
        let stats = ftcache_hint_stats::from(self.hint_total());
        json!({
            "started": stats.started,
            "evictions": stats.evictions,
            "useful": stats.useful,
            "late": stats.late,
            "wasted": stats.wasted,
            "open": stats.open,
            "started_bytes": stats.started_bytes,
            "useful_bytes": stats.useful_bytes,
            "late_bytes": stats.late_bytes,
            "wasted_bytes": stats.wasted_bytes,
        })
    }
}

/// Has the experts of a hint read into the handle's routes, and checks where the report goes.
///
/// # Safety
///
/// `routes` and `report` point to structs of their size, and the ids are readable as `routes` says; `report` may be
/// NULL.
unsafe fn read_hint(
    handle: &mut Handle,
    layer: LayerId,
    routes: *const ftcache_routes,
    report: *const ftcache_hint_report,
) -> Result<(), Failure> {
    if !report.is_null() {
        // A size that is none must be refused before anything is decided.
        // SAFETY: by this function's own promise.
        unsafe { check_sized(report, "report") }?;
    }
    // SAFETY: as above.
    let ids = unsafe { Ids::read(routes, handle, layer) }?;
    let mut experts = std::mem::take(&mut handle.routes);
    // SAFETY: as above.
    let read = handle.residency().read_ids(layer, unsafe { ids.values() }, ids.absent_value(), &mut experts);
    handle.routes = experts;
    Ok(read?)
}

/// Starts to copy the rows of experts that the next step of a layer is expected to route to: as far as budget bytes go,
/// rounded down to whole experts, in the order of routes, which should be the likeliest first. Speculative copies come
/// behind all that steps need, and take nothing from them:
///
/// - they are enqueued on a stream of their own, behind what the compute stream of the last step was given until now.
///   So this is to be called once a step is loaded and before its kernels are enqueued: the copies then go beside them;
/// - no slot is taken that the last step uses, that is pinned or on its way, under a chunk's staging buffers, or whose
///   expert an earlier hint has named. Free slots go first, and then those that would go next;
/// - until the layer's next step, or ftcache_cancel_hint, steps take what a hint brought only where they find no other
///   slot: no step fails for a hint. What the step did not route to is the first to go after free slots from then on.
///
/// A step that routes to a row on its way hits it, and what its compute stream is given afterwards comes behind that
/// copy; a hybrid step leaves it to the CPU. An id that was named before, by this hint or an earlier one, costs
/// nothing, and belongs to the hint that named it last.
///
/// report is NULL or set to what became of each id; absent ids are passed over. Needs hint_flight_count of
/// ftcache_config. Not for device mode, and not to be called while the compute stream is being captured: both are
/// refused. On FTCACHE_STATUS_DEVICE what was started counts as wasted, unless the message begins with "behind an
/// earlier step": then nothing has changed, as on any other status. Allocates nothing if there are no more ids than a
/// layer has experts, or than in an earlier call; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; routes points to a struct of its struct_size, and the memory that it names is
/// readable as it says; report is NULL or points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_hint(
    cache: *mut ftcache,
    layer: u32,
    routes: *const ftcache_routes,
    budget: u64,
    report: *mut ftcache_hint_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        handle.on_device()?;
        // SAFETY: structs of their sizes, and ids that are readable, by the caller's word.
        unsafe { read_hint(handle, layer, routes, report) }?;
        let experts = std::mem::take(&mut handle.routes);
        let hinted = handle.on_device().and_then(|cache| Ok(cache.hint(layer, &experts, budget)?));
        handle.routes = experts;
        // SAFETY: points to a struct of its size, or NULL, by the caller's word.
        unsafe { write_report(report, hinted?) }
    })
}

/// Opens the plan of what a hint copies, for FTCACHE_DEVICE_NONE: decides as ftcache_hint does, and moves nothing. The
/// engine makes the copies of ftcache_plan_get behind those of all steps so far and in the order of the hints, then
/// calls ftcache_commit; or ftcache_abort, if it could not, which frees their slots. Committed, the rows are on their
/// way until ftcache_land_flight is told the hint's number; a step that uses one before says so in awaits_flight of
/// ftcache_plan. report is NULL or set as by ftcache_hint; nothing is held back here. Allocates nothing once as many
/// rows were on their way, as hint_flight_count of ftcache_config makes room for; waits for nothing.
///
/// # Safety
///
/// As for ftcache_hint.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_admit_hint(
    cache: *mut ftcache,
    layer: u32,
    routes: *const ftcache_routes,
    budget: u64,
    report: *mut ftcache_hint_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        handle.planner()?;
        // SAFETY: structs of their sizes, and ids that are readable, by the caller's word.
        unsafe { read_hint(handle, layer, routes, report) }?;
        let Handle { engine: Engine::Planner(planner), configuration, routes, .. } = handle else {
            unreachable!("looked at before")
        };
        let key = configuration.geometry().model().layer(layer);
        let plan = planner.hint(layer, routes, hinted_rows(budget, key))?;
        let answer = plan.hint().expect("the plan is a hint's");
        let hinted = HintReport::of_layer(plan.flight(), answer, key);
        // SAFETY: points to a struct of its size, or NULL, by the caller's word.
        unsafe { write_report(report, hinted) }
    })
}

/// # Safety
///
/// `report` is NULL or points to a struct of its size.
unsafe fn write_report(report: *mut ftcache_hint_report, hinted: HintReport) -> Result<(), Failure> {
    if report.is_null() {
        return Ok(());
    }
    // SAFETY: by this function's own promise.
    unsafe { write_sized(report, "report", hinted.into()) }
}

/// Cancels a hint by its number, such as one that came of drafts which were rejected; 0 cancels all. Copies that the
/// device was given are not taken back: what they bring is resident and the first to go. wasted is NULL or set to the
/// rows that the hint had started and that count as wasted for it; none if it is not open, since its layer was stepped
/// or it was cancelled. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; wasted is NULL or points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_cancel_hint(cache: *mut ftcache, hint: u64, wasted: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let rows = match (&mut handle.engine, hint) {
            (Engine::Device(cache), 0) => cache.cancel_hints()?,
            (Engine::Device(cache), hint) => cache.cancel_hint(hint)?,
            (Engine::Planner(planner), 0) => planner.cache_mut()?.cancel_hints(),
            (Engine::Planner(planner), hint) => planner.cache_mut()?.cancel_hint(hint),
        };
        // SAFETY: points to a number, or NULL, by the caller's word.
        if let Some(wasted) = unsafe { wasted.as_mut() } {
            *wasted = rows as u64;
        }
        Ok(())
    })
}

/// What became of hints over all layers: counted apart from steps, and not started over by ftcache_stats_reset.
/// Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_hint_stats_get(cache: *mut ftcache, stats: *mut ftcache_hint_stats) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", handle.hint_total().into()) }
    })
}

/// The same of one layer's hints. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_layer_hint_stats_get(
    cache: *mut ftcache,
    layer: u32,
    stats: *mut ftcache_hint_stats,
) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        handle.residency().pool_of(layer)?;
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", handle.layer_hints(layer).into()) }
    })
}
