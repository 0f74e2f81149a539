//! What a step decided, for engines that copy by themselves or compute a part on the CPU.

use std::ffi::c_char;

use ftcache_core::residency::{LatePlan, OpenPlan, Placement};
use ftcache_core::{Copy, ExpertId, Plan, Run, SlotId};

use crate::boundary::{SizedStruct, array, array_mut, required_mut, write_sized, write_text};
use crate::cache::{Engine, Handle, enter, ftcache};
use crate::failure::Failure;
use crate::rebuild::ftcache_move;
use crate::status::ftcache_status;

/// One row to one slot, in every bank that the layer reads. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_copy {
    /// Where it goes, local to the plan's pool.
    pub slot: u32,
    /// The expert, which is the row in the layer's banks.
    pub row: u32,
}

/// Neighbouring rows to neighbouring slots: one copy for each bank whose rows and slots lie without gaps. This struct
/// will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_run {
    /// The first slot.
    pub slot: u32,
    /// The first row.
    pub row: u32,
    /// Rows and slots.
    pub count: u32,
}

/// One row of a resident on its way back. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_placement {
    /// The layer.
    pub layer: u32,
    /// The expert, which is the row in the layer's banks.
    pub row: u32,
    /// The layer's pool.
    pub pool: u32,
    /// Where the row goes, local to the pool.
    pub slot: u32,
}

/// What a step decided. The arrays are the library's, and valid until the next call on the handle.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_plan {
    /// sizeof(ftcache_plan), set by the caller.
    pub struct_size: u32,
    /// The layer.
    pub layer: u32,
    /// Its pool.
    pub pool: u32,
    /// 1 if this plan is open.
    pub is_open: u32,
    /// 1 if this is the answer to an earlier call with the same token: its copies were made then, and are not to be
    /// made again.
    pub is_repeat: u32,
    /// Distinct experts of the step; of the step before, for a plan of ftcache_admit_later or ftcache_admit_hint, as
    /// are miss_count, step and left.
    pub distinct_count: u32,
    /// Of these, those that were in no slot.
    pub miss_count: u32,
    /// Of the copies, those whose slot another expert lost.
    pub eviction_count: u32,
    /// The number of the step.
    pub step: u64,
    /// The rows to copy, in the order in which victims were taken.
    pub copies: *const ftcache_copy,
    /// How many.
    pub copy_count: u64,
    /// The same rows as the fewest runs, ascending by row.
    pub runs: *const ftcache_run,
    /// How many.
    pub run_count: u64,
    /// The experts that are left to the CPU, most wanted first.
    pub left: *const u32,
    /// How many.
    pub left_count: u64,
    /// Not 0: the step's copies and its kernels come behind the copies of this hint (ftcache_admit_hint) and of those
    /// before it, which bring rows that the step uses or were to bring some to slots that it takes. ftcache_load has
    /// seen to it.
    pub awaits_flight: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_plan {}

/// Arrays that are handed out until the next call.
#[derive(Default)]
pub(crate) struct Views {
    pub(crate) copies: Vec<ftcache_copy>,
    pub(crate) runs: Vec<ftcache_run>,
    left: Vec<u32>,
    placements: Vec<ftcache_placement>,
    pub(crate) moves: Vec<ftcache_move>,
}

impl From<&Copy> for ftcache_copy {
    fn from(copy: &Copy) -> Self {
        Self { slot: copy.slot.get(), row: copy.row.get() }
    }
}

impl From<Run> for ftcache_run {
    fn from(run: Run) -> Self {
        Self { slot: run.slot.get(), row: run.row.get(), count: run.count }
    }
}

impl From<&Placement> for ftcache_placement {
    fn from(placement: &Placement) -> Self {
        let Placement { layer, row, pool, slot } = placement;
        Self { layer: layer.get(), row: row.get(), pool: pool.get(), slot: slot.get() }
    }
}

/// Puts other values in the place of a view's.
pub(crate) fn refill<T>(view: &mut Vec<T>, values: impl IntoIterator<Item = T>) {
    view.clear();
    view.extend(values);
}

impl Handle {
    /// The plan of the last step.
    fn plan(&self) -> &Plan {
        match &self.engine {
            Engine::Device(cache) => cache.plan(),
            Engine::Planner(planner) => planner.plan(),
        }
    }
}

/// What the last step decided; while a plan of ftcache_admit_later or ftcache_admit_hint is open, what that one did.
/// Waits for nothing; allocates nothing once there was a plan as long.
///
/// # Safety
///
/// cache came from ftcache_new; plan points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_plan_get(cache: *mut ftcache, plan: *mut ftcache_plan) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let Handle { engine, views, .. } = handle;
        let (decided, open) = match &*engine {
            Engine::Device(cache) => (cache.plan(), None),
            Engine::Planner(planner) => (planner.plan(), planner.open()),
        };
        let later = match &*engine {
            Engine::Planner(planner) if open == Some(OpenPlan::Later) => Some(planner.late_plan()),
            Engine::Planner(planner) if open == Some(OpenPlan::Hint) => Some(planner.hint_plan()),
            _ => None,
        };
        let copies = later.map_or(decided.copies(), |later| later.copies());
        refill(&mut views.copies, copies.iter().map(ftcache_copy::from));
        match later {
            Some(later) => refill(&mut views.runs, later.runs().map(ftcache_run::from)),
            None => refill(&mut views.runs, decided.runs().map(ftcache_run::from)),
        }
        refill(&mut views.left, decided.left().iter().map(|expert| expert.get()));
        let value = ftcache_plan {
            struct_size: 0,
            layer: later.map_or(decided.layer(), LatePlan::layer).get(),
            pool: later.map_or(decided.pool(), LatePlan::pool).get(),
            is_open: u32::from(matches!(open, Some(OpenPlan::Step | OpenPlan::Later | OpenPlan::Hint))),
            is_repeat: u32::from(later.is_none() && decided.is_repeat()),
            distinct_count: decided.distinct_count() as u32,
            miss_count: decided.miss_count() as u32,
            eviction_count: later.map_or(decided.eviction_count(), LatePlan::eviction_count) as u32,
            step: decided.step(),
            copies: views.copies.as_ptr(),
            copy_count: views.copies.len() as u64,
            runs: views.runs.as_ptr(),
            run_count: views.runs.len() as u64,
            left: views.left.as_ptr(),
            left_count: views.left.len() as u64,
            awaits_flight: if later.is_none() { decided.awaits().unwrap_or(0) } else { 0 },
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(plan, "plan", value) }
    })
}

/// The last plan in one line, for people and logs. The text is cut to fit and ended by a zero; *needed is set to the
/// bytes of all of it, and may be NULL. Allocates; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
/// number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_plan_text(
    cache: *mut ftcache,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: the caller gives `capacity` writable bytes, and a number, as the header says.
        unsafe { write_text(&handle.plan().to_string(), buffer, capacity, needed) }
    })
}

/// The last plan as a map of the layer's experts, for kernels that take one: map[expert] is its slot, or absent if the
/// step does not route to it or the CPU computes it. count is the number of experts. Allocates nothing, waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; map points to count writable numbers.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_plan_map(
    cache: *mut ftcache,
    map: *mut i32,
    count: u64,
    absent: i32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let expert_count = handle.residency().expert_count();
        if count != u64::from(expert_count) {
            return Err(Failure::argument(format!("count is {count}; a layer has {expert_count} experts")));
        }
        let plan = handle.plan();
        let slot_count = handle.residency().slot_count(plan.pool());
        if (0..i64::from(slot_count)).contains(&i64::from(absent)) {
            return Err(Failure::argument(format!("absent is {absent}, a slot of pool {}", plan.pool())));
        }
        // SAFETY: `count` writable numbers by the caller's word.
        let map = unsafe { array_mut(map, count, "map") }?;
        map.fill(absent);
        for (route, slot) in plan.routes().iter().zip(plan.slots()) {
            if *route != ExpertId::ABSENT && slot.is_slot() {
                map[route.index()] = slot.get() as i32;
            }
        }
        Ok(())
    })
}

/// The expert of each route of the last step that the CPU computes, in route order, and none for the others. count is
/// the number of routes. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; experts points to count writable numbers.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_plan_cpu_experts(
    cache: *mut ftcache,
    experts: *mut i32,
    count: u64,
    none: i32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let plan = handle.plan();
        check_route_count(plan, count)?;
        let expert_count = handle.residency().expert_count();
        if (0..i64::from(expert_count)).contains(&i64::from(none)) {
            return Err(Failure::argument(format!("none is {none}, an expert of 0..{expert_count}")));
        }
        // SAFETY: `count` writable numbers by the caller's word.
        let experts = unsafe { array_mut(experts, count, "experts") }?;
        for (out, expert) in experts.iter_mut().zip(plan.cpu_experts()) {
            *out = expert.map_or(none, |expert| expert.get() as i32);
        }
        Ok(())
    })
}

/// Parts the routes' weights between device and CPU: each goes to the side that computes it, and is 0 on the other. An
/// absent route's is 0 on both. count is the number of routes; the outputs may be the weights' own memory. Allocates
/// nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; weights points to count numbers, device_weights and cpu_weights to count
/// writable ones, and these two lie apart.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_plan_split_weights(
    cache: *mut ftcache,
    weights: *const f32,
    device_weights: *mut f32,
    cpu_weights: *mut f32,
    count: u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let plan = handle.plan();
        check_route_count(plan, count)?;
        // Looked at for NULL and alignment; they are reached through their pointers, as they may be one memory.
        // SAFETY: `count` numbers by the caller's word.
        unsafe { array(weights, count, "weights") }?;
        // SAFETY: as above.
        unsafe { array(device_weights.cast_const(), count, "device_weights") }?;
        // SAFETY: as above.
        unsafe { array(cpu_weights.cast_const(), count, "cpu_weights") }?;
        for (index, slot) in plan.slots().iter().enumerate() {
            // SAFETY: inside the `count` numbers.
            let weight = unsafe { weights.wrapping_add(index).read() };
            let of = |on_this_side: bool| if on_this_side { weight } else { 0.0 };
            // SAFETY: as above.
            unsafe { device_weights.wrapping_add(index).write(of(slot.is_slot())) };
            // SAFETY: as above.
            unsafe { cpu_weights.wrapping_add(index).write(of(*slot == SlotId::CPU)) };
        }
        Ok(())
    })
}

fn check_route_count(plan: &Plan, count: u64) -> Result<(), Failure> {
    let routes = plan.routes().len();
    if count == routes as u64 {
        return Ok(());
    }
    Err(Failure::argument(format!("count is {count}; the last step had {routes} routes")))
}

/// Ends the open plan as carried out: every row lies in its slot, or will for whatever reads it. Allocates nothing,
/// waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_commit(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.planner()?.commit()?))
}

/// Ends the open plan as not carried out: the slots that it would have filled are free. Old owners do not come back,
/// since their rows may be overwritten; the step is in no statistics. What the router chose stays counted where victims
/// go by use (ftcache_eviction). Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_abort(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.planner()?.abort()?))
}

/// Opens the plan of up to most rows that the hybrid step before has left to the CPU, to be copied behind it, for
/// FTCACHE_DEVICE_NONE: the rows of ftcache_plan_get. Committed, they are on their way, and their slots nobody's, until
/// ftcache_land_flight; *flight is set to what that call is given. To be called right after that step's commit. May
/// allocate; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; flight points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_admit_later(cache: *mut ftcache, most: u64, flight: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let flight = unsafe { required_mut(flight, "flight") }?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        *flight = handle.planner()?.fetch_later(most)?.flight();
        Ok(())
    })
}

/// Makes the rows of a flight, or of a hint by its number, resident, for FTCACHE_DEVICE_NONE: their copies are done.
/// landed is NULL or set to how many there are: none of a flight that is not on its way, and none that was forgotten.
/// May allocate; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; landed is NULL or points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_land_flight(cache: *mut ftcache, flight: u64, landed: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let rows = handle.planner()?.cache_mut()?.land(flight);
        // SAFETY: points to a number, or NULL, by the caller's word.
        if let Some(landed) = unsafe { landed.as_mut() } {
            *landed = rows as u64;
        }
        Ok(())
    })
}

/// Where residents come back to, for FTCACHE_DEVICE_NONE, while the plan of ftcache_bring_back is open. The array is
/// the library's, and valid until the next call on the handle. Allocates nothing once there were as many; waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; placements points to a pointer, and count to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_placements_get(
    cache: *mut ftcache,
    placements: *mut *const ftcache_placement,
    count: *mut u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a pointer by the caller's word.
        let placements = unsafe { required_mut(placements, "placements") }?;
        // SAFETY: points to a number by the caller's word.
        let count = unsafe { required_mut(count, "count") }?;
        handle.planner()?;
        let Handle { engine: Engine::Planner(planner), views, .. } = handle else { unreachable!("looked at before") };
        if planner.open() != Some(OpenPlan::BringBack) {
            let message = "the plan of ftcache_bring_back is not open";
            return Err(Failure::new(ftcache_status::OutOfOrder, message));
        }
        refill(&mut views.placements, planner.placements().iter().map(ftcache_placement::from));
        (*placements, *count) = (views.placements.as_ptr(), views.placements.len() as u64);
        Ok(())
    })
}
