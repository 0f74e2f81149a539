//! A step: routes in, slots out, the missing rows on their way.

use std::ffi::c_void;

use ftcache_core::policy::{Fetch, FetchRule, Strategy};
use ftcache_core::residency::{Misses, Parts, Phase};
use ftcache_core::{Configuration, EnsureError, ExpertId, FetchOrder, LayerId, Step, Stream, Streams};

use crate::boundary::{SizedStruct, array, flag, read_sized, required_mut, reserved};
use crate::cache::{Engine, Handle, enter, ftcache};
use crate::failure::Failure;
use crate::routes::{Call, Ids, Out, Shape, ftcache_routes, ftcache_slots};
use crate::settings::{FetchFields, fetch_order, not_a};
use crate::status::ftcache_status;

/// What a step is for, which decides what it leaves in the order of victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_phase {
    /// A token of each request: what is routed to has been used.
    Decode = 0,
    /// Drafted tokens: hits keep their place in the order of victims, since a draft may be rejected. ftcache_accept
    /// says what was used in the end.
    Verify = 1,
    /// A prompt: hits keep their place, and misses are the first to go after free slots, so that a prompt costs the
    /// decode set no more than it must.
    Prefill = 2,
}

/// What becomes of the experts of a step that are in no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_misses {
    /// As the configuration's strategy says, in every phase.
    Default = 0,
    /// All are fetched.
    Fetched = 1,
    /// Some are fetched, and the CPU computes the others: by the fields of the step, or if its fetch_rule is not set by
    /// the configuration's.
    Hybrid = 2,
}

/// One call for one layer. All zeros but for the layer is a decode step as the configuration says.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_step {
    /// sizeof(ftcache_step).
    pub struct_size: u32,
    /// The layer.
    pub layer: u32,
    /// An ftcache_phase.
    pub phase: u32,
    /// An ftcache_misses.
    pub misses: u32,
    /// The engine's name for the step, if has_token is 1. A second call for this layer with the same token, before
    /// another admission of the layer and before anything was freed by a call, has the same answer and changes nothing:
    /// for the two or three multiplies that read one route tensor.
    pub token: u64,
    /// 1 if token counts.
    pub has_token: u32,
    /// An ftcache_fetch_rule, for FTCACHE_MISSES_HYBRID.
    pub fetch_rule: u32,
    /// As in ftcache_settings.
    pub fetch_q16: u32,
    /// As in ftcache_settings.
    pub fetch_most: u32,
    /// An ftcache_fetch_order, for FTCACHE_MISSES_HYBRID.
    pub fetch_order: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_step {}

/// The engine's own streams. A struct of zeros, or NULL in its place, is the default stream for both, which is the only
/// one that FTCACHE_DEVICE_HOST has. The driver's per-thread default stream is refused.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_streams {
    /// sizeof(ftcache_streams).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Where the kernels run that read the slots: the driver's handle, NULL for the default stream.
    pub compute: *mut c_void,
    /// Where rows are copied; NULL for the compute stream itself.
    pub copy: *mut c_void,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_streams {}

pub(crate) fn phase_of(phase: u32, name: &str) -> Result<Phase, Failure> {
    match phase {
        phase if phase == ftcache_phase::Decode as u32 => Ok(Phase::Decode),
        phase if phase == ftcache_phase::Verify as u32 => Ok(Phase::Verify),
        phase if phase == ftcache_phase::Prefill as u32 => Ok(Phase::Prefill),
        other => Err(not_a(name, other, "ftcache_phase")),
    }
}

/// A step as the fields and the configuration say.
pub(crate) fn step_of(given: &ftcache_step, configuration: &Configuration) -> Result<Step, Failure> {
    reserved(given.reserved, "step->reserved")?;
    let layer = LayerId::new(given.layer);
    let token = flag(given.has_token, "step->has_token")?.then_some(given.token);
    if token.is_none() && given.token != 0 {
        return Err(Failure::argument(format!("step->token is {}, and has_token is 0", given.token)));
    }
    let fields = FetchFields { of: "step", rule: given.fetch_rule, q16: given.fetch_q16, most: given.fetch_most };
    let own = fields.read()?;
    let order = fetch_order(given.fetch_order, "step->fetch_order")?;
    let is_hybrid = given.misses == ftcache_misses::Hybrid as u32;
    if !is_hybrid && (own.is_some() || order != FetchOrder::Recency) {
        return Err(Failure::argument("step has a fetch rule or order, and misses is not FTCACHE_MISSES_HYBRID"));
    }
    let layer_count = configuration.geometry().model().layer_count();
    if layer.index() >= layer_count {
        return Err(EnsureError::UnknownLayer { layer, layer_count }.into());
    }
    if configuration.geometry().pool_of_layer(layer).is_none() {
        return Err(EnsureError::NoSlots { layer }.into());
    }
    let configured = || configuration.fetch(layer);
    // With the rule of the configuration goes its order.
    let order = if own.is_none() && order == FetchOrder::Recency { configuration.fetch_order() } else { order };
    let misses = match given.misses {
        misses if misses == ftcache_misses::Default as u32 => match configuration.strategy() {
            Strategy::Offload => Misses::Fetched,
            Strategy::Hybrid => configured()
                .map_or(Misses::Fetched, |fetch| Misses::Hybrid { fetch, order: configuration.fetch_order() }),
            Strategy::Cpu => {
                let fetch = Fetch { rule: FetchRule::UpTo(0), most: None };
                Misses::Hybrid { fetch, order: configuration.fetch_order() }
            }
        },
        misses if misses == ftcache_misses::Fetched as u32 => Misses::Fetched,
        misses if misses == ftcache_misses::Hybrid as u32 => match own.or_else(configured) {
            Some(fetch) => Misses::Hybrid { fetch, order },
            None => {
                let message = "step->fetch_rule is not set, and the configuration's strategy has none";
                return Err(Failure::argument(message));
            }
        },
        other => return Err(not_a("step->misses", other, "ftcache_misses")),
    };
    Ok(Step { phase: phase_of(given.phase, "step->phase")?, token, misses, ..Step::new(layer) })
}

/// # Safety
///
/// `streams` is NULL or points to a struct of its size, and its streams are the device's.
pub(crate) unsafe fn streams_of(streams: *const ftcache_streams) -> Result<Streams, Failure> {
    if streams.is_null() {
        return Ok(Streams::one(Stream::DEFAULT));
    }
    // SAFETY: by this function's own promise.
    let streams = unsafe { read_sized(streams, "streams") }?;
    reserved(streams.reserved, "streams->reserved")?;
    let compute = stream_of(streams.compute);
    let copy = if streams.copy.is_null() { compute } else { stream_of(streams.copy) };
    Ok(Streams { compute, copy })
}

/// A stream that the caller named.
pub(crate) fn stream_of(handle: *mut c_void) -> Stream {
    // SAFETY: by the header, a stream that is named is the device's and stays alive; the host device looks it up.
    unsafe { Stream::from_raw(handle as u64) }
}

/// Makes the experts of a step resident and writes a slot for each route, local to the pool of the layer.
///
/// Any number of routes is one step: an expert that is routed to twice has one slot and is copied once, and no slot
/// that the step uses is given to another expert. Copies are enqueued on the copy stream, behind what the compute
/// stream was given before; what the compute stream is given afterwards comes behind the copies. A step that names
/// another compute stream than the one before comes behind that one, which must be alive still. Nothing is waited
/// for; a step without a miss enqueues nothing, and allocates nothing if it is no wider than an earlier one or than
/// the requests of the configuration. Not to be called while a stream is being captured: that is refused.
///
/// streams may be NULL: the default stream then does both. slots may be NULL: ftcache_plan_get and its neighbours then
/// tell what was decided.
///
/// On FTCACHE_STATUS_DEVICE the slots of the step's misses are free, and the step may be tried again; but if the
/// message begins with "behind an earlier step", this one has changed nothing. On any other status nothing has changed.
/// In every case but FTCACHE_STATUS_OK the caller's slots are as they were.
///
/// # Safety
///
/// cache came from ftcache_new; step, routes, streams and slots point to structs of their struct_size, and
/// the memory that they name is readable and writable as they say.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_load(
    cache: *mut ftcache,
    step: *const ftcache_step,
    routes: *const ftcache_routes,
    streams: *const ftcache_streams,
    slots: *const ftcache_slots,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        let step = step_of(&unsafe { read_sized(step, "step") }?, &handle.configuration)?;
        // SAFETY: as above.
        let streams = unsafe { streams_of(streams) }?;
        // SAFETY: as above.
        let Call { ids, out } = unsafe { Call::read(routes, slots, handle, &step) }?;
        let cache = handle.on_device()?;
        // SAFETY: the ids are readable as `routes` says, by the caller's word.
        let values = unsafe { ids.values() };
        cache.load_ids(streams, step, values, ids.absent_value())?;
        if let Some(out) = out {
            // SAFETY: the slots are writable as `slots` says, by the caller's word.
            unsafe { out.write(cache.plan()) };
        }
        Ok(())
    })
}

/// Opens the plan of a step, for FTCACHE_DEVICE_NONE: decides as ftcache_load does, writes a slot for each route, and
/// moves nothing. The engine makes the copies of ftcache_plan_get, in every bank, then calls ftcache_commit; or
/// ftcache_abort, if it could not. One plan is open at a time: until then, what would change the residency is refused.
/// A repeat under a step token opens a plan too (is_repeat): its copies were made before, and it is only to be
/// committed; aborting it frees their slots.
///
/// Touches no device and waits for nothing; allocates nothing if the step is no wider than an earlier one or than the
/// requests of the configuration. slots may be NULL.
///
/// # Safety
///
/// As for ftcache_load.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_admit(
    cache: *mut ftcache,
    step: *const ftcache_step,
    routes: *const ftcache_routes,
    slots: *const ftcache_slots,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        let step = step_of(&unsafe { read_sized(step, "step") }?, &handle.configuration)?;
        // SAFETY: as above.
        let Call { ids, out } = unsafe { Call::read(routes, slots, handle, &step) }?;
        // SAFETY: the ids are readable as `routes` says, by the caller's word.
        let values = unsafe { ids.values() };
        let plan = handle.planner()?.admit_ids(step, values, ids.absent_value())?;
        if let Some(out) = out {
            // SAFETY: the slots are writable as `slots` says, by the caller's word.
            unsafe { out.write(plan) };
        }
        Ok(())
    })
}

/// Parts a step that is wider than its pool by experts, so that each part fits and each expert is fetched once; a step
/// that fits is one part. Admits nothing. *part_count is set to their number, 0 if no route is present. Allocates
/// nothing once there was a step as wide; waits for nothing.
///
/// The parts are loaded (or admitted) one after another, each once the kernels of the one before are enqueued. If
/// something else is admitted or freed between two of them, the rest is right still, but an expert may be fetched
/// again, and statistics count another step.
///
/// # Safety
///
/// cache came from ftcache_new; step and routes point to structs of their struct_size, and the memory that
/// routes names is readable as it says; part_count points to a uint32_t.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_partition(
    cache: *mut ftcache,
    step: *const ftcache_step,
    routes: *const ftcache_routes,
    part_count: *mut u32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let part_count = unsafe { required_mut(part_count, "part_count") }?;
        // SAFETY: points to a struct of its size by the caller's word.
        let step = step_of(&unsafe { read_sized(step, "step") }?, &handle.configuration)?;
        // SAFETY: as above.
        let ids = unsafe { Ids::read(routes, handle, step.layer) }?;
        // SAFETY: the ids are readable as `routes` says, by the caller's word.
        let values = unsafe { ids.values() };
        let absent = ids.absent_value();
        let Handle { engine, parts, routes, .. } = handle;
        match engine {
            Engine::Device(cache) => {
                cache.residency().read_ids(step.layer, values, absent, routes)?;
                cache.partition(step, routes, &mut parts.parts)?;
            }
            Engine::Planner(planner) => {
                let cache = planner.cache_mut()?;
                cache.read_ids(step.layer, values, absent, routes)?;
                cache.partition(step, routes, &mut parts.parts)?;
            }
        }
        parts.shape = Some(ids.shape());
        *part_count = parts.parts.len() as u32;
        Ok(())
    })
}

/// The parts of a step, and how its routes lay.
#[derive(Default)]
pub(crate) struct Parted {
    parts: Parts,
    shape: Option<Shape>,
}

impl Parted {
    /// A part and its routes.
    fn part(&self, part: u32) -> Result<(Step, &[ExpertId], Shape), Failure> {
        let part_count = self.parts.len();
        if part_count == 0 {
            return Err(Failure::new(ftcache_status::OutOfOrder, "no step is partitioned"));
        }
        let found = self.parts.iter().nth(part as usize).zip(self.shape);
        let found = found.ok_or_else(|| Failure::range(format!("no part {part}: the step has {part_count} parts")))?;
        let ((step, routes), shape) = found;
        Ok((step, routes, shape))
    }
}

/// As ftcache_load, for one part of the step that was last partitioned. Routes of other parts are written as absent.
/// Enqueues, allocates and waits as that does.
///
/// # Safety
///
/// cache came from ftcache_new; streams and slots point to structs of their struct_size or are NULL, and the
/// memory that slots names is writable as it says, for as many rows as the routes had.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_load_part(
    cache: *mut ftcache,
    part: u32,
    streams: *const ftcache_streams,
    slots: *const ftcache_slots,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let (step, _, shape) = handle.parts.part(part)?;
        // SAFETY: points to a struct of its size, or NULL, by the caller's word.
        let streams = unsafe { streams_of(streams) }?;
        // SAFETY: as above.
        let out = unsafe { Out::read(slots, shape, handle, &step, true) }?;
        handle.on_device()?;
        let Handle { engine: Engine::Device(cache), parts, .. } = handle else { unreachable!("looked at before") };
        cache.load_on(streams, step, parts.part(part)?.1)?;
        if let Some(out) = out {
            // SAFETY: the slots are writable as `slots` says, by the caller's word.
            unsafe { out.write(cache.plan()) };
        }
        Ok(())
    })
}

/// As ftcache_admit, for one part of the step that was last partitioned. Routes of other parts are written as absent.
/// Allocates and waits as that does.
///
/// # Safety
///
/// As for ftcache_load_part.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_admit_part(
    cache: *mut ftcache,
    part: u32,
    slots: *const ftcache_slots,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let (step, _, shape) = handle.parts.part(part)?;
        // SAFETY: points to a struct of its size, or NULL, by the caller's word.
        let out = unsafe { Out::read(slots, shape, handle, &step, true) }?;
        handle.planner()?;
        let Handle { engine: Engine::Planner(planner), parts, .. } = handle else { unreachable!("looked at before") };
        let plan = planner.admit(step, parts.part(part)?.1)?;
        if let Some(out) = out {
            // SAFETY: the slots are writable as `slots` says, by the caller's word.
            unsafe { out.write(plan) };
        }
        Ok(())
    })
}

/// Ends a verify step once it is known which drafts were accepted: these experts have been used, and are made the most
/// recent, by a step number of their own. What was fetched for the others is the first to go after free slots. experts
/// may hold one twice; each must be one that the step routed to. Once for each layer and verify step, one in parts too,
/// whenever that is known: other steps may lie between. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; experts points to count numbers.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_accept(
    cache: *mut ftcache,
    layer: u32,
    experts: *const u32,
    count: u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: `count` numbers by the caller's word.
        let experts = unsafe { array(experts, count, "experts") }?;
        let Handle { engine, routes, .. } = handle;
        routes.clear();
        routes.extend(experts.iter().copied().map(ExpertId::new));
        match engine {
            Engine::Device(cache) => Ok(cache.accept(LayerId::new(layer), routes)?),
            Engine::Planner(planner) => Ok(planner.cache_mut()?.accept(LayerId::new(layer), routes)?),
        }
    })
}

/// Makes resident what has arrived behind earlier hybrid steps (later_step_bytes of ftcache_config) and ahead of later
/// ones (ftcache_hint). Every step does this first; on its own it is for an engine that looks at the residency between
/// steps. landed is NULL or set to the number of rows. Allocates nothing, waits for nothing. What failed behind a step
/// is told here, or by the next step.
///
/// # Safety
///
/// cache came from ftcache_new; landed is NULL or points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_land(cache: *mut ftcache, landed: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let rows = handle.on_device()?.land()?;
        // SAFETY: points to a number, or NULL, by the caller's word.
        if let Some(landed) = unsafe { landed.as_mut() } {
            *landed = rows as u64;
        }
        Ok(())
    })
}
