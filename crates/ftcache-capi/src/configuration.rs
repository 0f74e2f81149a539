//! The configuration: settings in, pools, staging and every byte to set aside out, before anything is allocated.

use std::ffi::c_char;

use ftcache_core::policy::{Declined, FetchRule, Note, Strategy, parse_budget};
use ftcache_core::{BankId, Configuration, Geometry, LayerId, Pool, PoolId, SlotId};

use crate::boundary::{SizedStruct, guard, read_sized, required, required_mut, text, write_sized, write_text};
use crate::failure::Failure;
use crate::model::ftcache_model;
use crate::settings::{ftcache_fetch_rule, ftcache_settings, ftcache_strategy, settings_of};
use crate::status::ftcache_status;

/// Why a layer has slots, or has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_layer_state {
    /// It has slots.
    Cached = 0,
    /// It is among slotless_layers.
    Slotless = 1,
    /// It decodes on the CPU.
    Cpu = 2,
    /// It lies on the device as a whole.
    Resident = 3,
}

/// What a configuration came to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_configuration_report {
    /// sizeof(ftcache_configuration_report), set by the caller.
    pub struct_size: u32,
    /// Pools, numbered from 0 in the order in which they lie in the arenas.
    pub pool_count: u32,
    /// Banks: the most that any layer has.
    pub bank_count: u32,
    /// Layers that hold slots.
    pub cached_layer_count: u32,
    /// Requests decoded at once: as many as asked for unless lower_requests allowed fewer.
    pub request_count: u32,
    /// Requests that the pools could serve at once; 0 if any number.
    pub request_limit: u32,
    /// Staging buffers: 2 overlap, 1 does not, 0 if nothing is staged.
    pub buffer_count: u32,
    /// 1 if they lie on slots.
    pub is_borrowed: u32,
    /// 1 if overlap was asked for and is off; the reason is in the text.
    pub overlap_off: u32,
    /// The most tokens of a prefill chunk that is better admitted on demand than staged.
    pub on_demand_tokens: u32,
    /// Slots over all pools.
    pub slot_count: u64,
    /// Of these, slots that keep what they hold while a chunk is staged.
    pub stable_slot_count: u64,
    /// Bytes of all arenas.
    pub arena_bytes: u64,
    /// Of these, bytes that hold no row.
    pub pad_bytes: u64,
    /// Bytes of dedicated staging, pads included; 0 where it is borrowed.
    pub staging_bytes: u64,
    /// Bytes of layers that lie on the device as a whole: the engine's to place.
    pub resident_bytes: u64,
    /// Bytes of the tables of admission on the device.
    pub table_bytes: u64,
    /// All of it: what the engine sets aside on the device before it sizes its KV pool.
    pub total_bytes: u64,
    /// What is left of free_bytes after reserves and that; 0 if free_bytes was not given.
    pub left_bytes: u64,
    /// Bytes of the host that should be pinned.
    pub pinned_bytes: u64,
    /// Bytes of the host that may be dropped once they are copied.
    pub droppable_bytes: u64,
    /// Settings that are less than was asked for, as others allowed, and notes: lines of ftcache_configuration_text.
    pub note_count: u32,
    /// The ftcache_strategy in effect.
    pub strategy: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_configuration_report {}

/// One pool.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_pool_report {
    /// sizeof(ftcache_pool_report), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Layers that share them.
    pub layer_count: u32,
    /// The least slots it could have had.
    pub min_slots: u32,
    /// The most.
    pub max_slots: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of one slot over all banks, pads between slots included.
    pub slot_bytes: u64,
    /// Bytes of the pool over all banks, pads included.
    pub pool_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_pool_report {}

/// Where the slots of one pool lie in one bank's arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_range {
    /// sizeof(ftcache_slot_range), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Bytes of a row; 0 if the pool's layers do not read this bank.
    pub row_bytes: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes from the start of the arena to slot 0.
    pub offset: u64,
    /// Bytes after the last slot.
    pub tail_pad_bytes: u64,
    /// Bytes of the whole arena.
    pub arena_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_slot_range {}

/// Some slots of one pool: the answer to which slots a staging buffer lies on.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_run {
    /// sizeof(ftcache_slot_run), set by the caller.
    pub struct_size: u32,
    /// The pool.
    pub pool: u32,
    /// The first slot.
    pub first: u32,
    /// How many; 0 if the buffer lies on none.
    pub count: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_slot_run {}

/// How many misses of a layer's hybrid steps are fetched.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_layer_fetch {
    /// sizeof(ftcache_layer_fetch), set by the caller.
    pub struct_size: u32,
    /// An ftcache_fetch_rule; FTCACHE_FETCH_RULE_DEFAULT if all are fetched or none, or if the layer has no slots.
    pub fetch_rule: u32,
    /// Its fraction in 65,536ths, for the rules that have one.
    pub fetch_q16: u32,
    /// The most that are fetched; 0 means no limit but for FTCACHE_FETCH_RULE_UP_TO, where it is 0.
    pub fetch_most: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_layer_fetch {}

/// What settings come to for a model. It never changes: any number of threads may ask it at once, and it may be freed
/// while caches that were made of it live on.
pub struct ftcache_configuration {
    pub(crate) configuration: Configuration,
    /// How many lines there are for a user, counted once since that takes texts.
    note_count: u32,
}

impl ftcache_configuration {
    /// A handle for C.
    pub(crate) fn boxed(configuration: Configuration) -> *mut Self {
        let note_count = lines(&configuration).len() as u32;
        Box::into_raw(Box::new(Self { configuration, note_count }))
    }

    fn geometry(&self) -> &Geometry {
        self.configuration.geometry()
    }
}

/// Makes a configuration, or says which two numbers conflict. Pure: touches no device, and the model may be freed
/// afterwards. Allocates; waits for nothing.
///
/// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
///
/// # Safety
///
/// model came from ftcache_model_new; settings points to a struct of its struct_size, and its pointers to as
/// many values as it says; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_new(
    model: *const ftcache_model,
    settings: *const ftcache_settings,
    out: *mut *mut ftcache_configuration,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: a handle of ours by the caller's word.
        let model = unsafe { required(model, "model") }?;
        // SAFETY: points to a struct of its size by the caller's word.
        let settings = unsafe { read_sized(settings, "settings") }?;
        let model = model.build()?;
        // SAFETY: its pointers are as the header says, by the caller's word.
        let settings = unsafe { settings_of(&settings, &model) }?;
        *out = ftcache_configuration::boxed(Configuration::new(model, settings)?);
        Ok(())
    })
}

/// The same settings with another budget, to rebuild a cache with: what was lowered comes back if there is room.
/// Allocates; waits for nothing.
///
/// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
///
/// # Safety
///
/// configuration came from this library; budget is a text as in ftcache_settings, a number of bytes among
/// them; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_with_budget(
    configuration: *const ftcache_configuration,
    budget: *const c_char,
    out: *mut *mut ftcache_configuration,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        // SAFETY: a text by the caller's word.
        let budget = unsafe { text(budget, "budget") }?.ok_or_else(|| Failure::argument("budget is NULL"))?;
        *out = ftcache_configuration::boxed(configuration.with_budget(parse_budget(budget)?)?);
        Ok(())
    })
}

/// What the configuration came to. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_get(
    configuration: *const ftcache_configuration,
    report: *mut ftcache_configuration_report,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let &ftcache_configuration { ref configuration, note_count } =
            unsafe { required(configuration, "configuration") }?;
        let (geometry, set_aside) = (configuration.geometry(), configuration.set_aside());
        let staging = configuration.staging();
        let value = ftcache_configuration_report {
            struct_size: 0,
            pool_count: geometry.pools().len() as u32,
            bank_count: geometry.model().bank_count() as u32,
            cached_layer_count: geometry.pools().iter().map(|pool| pool.layers().len() as u32).sum(),
            request_count: configuration.request_count(),
            request_limit: geometry.request_limit().unwrap_or(0),
            buffer_count: staging.map_or(0, |staging| staging.buffer_count()),
            is_borrowed: u32::from(staging.is_some_and(|staging| staging.is_borrowed())),
            overlap_off: u32::from(configuration.overlap_off().is_some()),
            on_demand_tokens: geometry.on_demand_tokens(),
            slot_count: geometry.slot_count(),
            stable_slot_count: staging.map_or(geometry.slot_count(), |staging| staging.stable_slots(geometry)),
            arena_bytes: geometry.total_bytes(),
            pad_bytes: geometry.pad_bytes(),
            staging_bytes: set_aside.staging.iter().sum(),
            resident_bytes: set_aside.resident,
            table_bytes: set_aside.tables,
            total_bytes: set_aside.total(),
            left_bytes: configuration.left_bytes().unwrap_or(0),
            pinned_bytes: configuration.pinned_bytes(),
            droppable_bytes: configuration.droppable_bytes(),
            note_count,
            strategy: match configuration.strategy() {
                Strategy::Offload => ftcache_strategy::Offload,
                Strategy::Hybrid => ftcache_strategy::Hybrid,
                Strategy::Cpu => ftcache_strategy::Cpu,
            } as u32,
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// What a user should know: settings that are less than they were asked for, then notes.
pub(crate) fn lines(configuration: &Configuration) -> Vec<String> {
    let lowered = configuration.lowered().into_iter().map(|one| {
        let reason = one.reason.map_or(String::new(), |reason| format!(": {reason}"));
        format!("{} is {}, not {}{reason}", one.setting, one.effective, one.asked)
    });
    lowered.chain(configuration.notes().iter().map(Note::to_string)).collect()
}

/// Every setting as it was asked for and as it is in effect, with the reason where they differ, then notes: one a line,
/// for people and logs. Allocates; waits for nothing.
///
/// The text is cut to fit and ended by a zero. *needed is set to the bytes of all of it, its ending zero included; it
/// may be NULL, and buffer may be NULL if capacity is 0.
///
/// # Safety
///
/// configuration came from this library; buffer points to capacity writable bytes; needed is NULL or points
/// to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_text(
    configuration: *const ftcache_configuration,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        let mut text = String::new();
        for one in configuration.effective() {
            let reason = one.reason.map_or(String::new(), |reason| format!(" ({reason})"));
            let asked = if one.asked == one.effective { String::new() } else { format!(", asked for {}", one.asked) };
            text.push_str(&format!("{}: {}{asked}{reason}\n", one.setting, one.effective));
        }
        for (layer, why) in configuration.declined() {
            text.push_str(&format!("layer {layer} has no slots: {why}\n"));
        }
        for note in configuration.notes() {
            text.push_str(&format!("note: {note}\n"));
        }
        // SAFETY: the caller gives `capacity` writable bytes, and a number, as the header says.
        unsafe { write_text(&text, buffer, capacity, needed) }
    })
}

/// Whether a layer has slots, and why if it has none: state is set to an ftcache_layer_state. Allocates nothing, waits
/// for nothing.
///
/// # Safety
///
/// configuration came from this library; state points to a uint32_t.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_layer_state(
    configuration: *const ftcache_configuration,
    layer: u32,
    state: *mut u32,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        // SAFETY: points to a `u32` by the caller's word.
        let state = unsafe { required_mut(state, "state") }?;
        *state = layer_state(configuration, layer)? as u32;
        Ok(())
    })
}

pub(crate) fn layer_state(configuration: &Configuration, layer: u32) -> Result<ftcache_layer_state, Failure> {
    let layer = known_layer(configuration.geometry(), layer)?;
    let declined = configuration.declined().into_iter().find(|(declined, _)| *declined == layer);
    Ok(match declined {
        None => ftcache_layer_state::Cached,
        Some((_, Declined::Slotless)) => ftcache_layer_state::Slotless,
        Some((_, Declined::Cpu)) => ftcache_layer_state::Cpu,
        Some((_, Declined::Resident)) => ftcache_layer_state::Resident,
    })
}

/// How many misses of a layer's hybrid steps are fetched, where a step does not say so itself: by the settings, or by
/// what was measured with experts of its kind. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; fetch points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_layer_fetch_get(
    configuration: *const ftcache_configuration,
    layer: u32,
    fetch: *mut ftcache_layer_fetch,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        let effective = configuration.fetch(known_layer(configuration.geometry(), layer)?);
        let (rule, fraction) = match effective.map(|fetch| fetch.rule) {
            None => (ftcache_fetch_rule::Default, None),
            Some(FetchRule::UpTo(_)) => (ftcache_fetch_rule::UpTo, None),
            Some(FetchRule::MinWait(fraction)) => (ftcache_fetch_rule::MinWait, Some(fraction)),
            Some(FetchRule::PreferFetch(fraction)) => (ftcache_fetch_rule::PreferFetch, Some(fraction)),
            Some(FetchRule::Carry(fraction)) => (ftcache_fetch_rule::Carry, Some(fraction)),
        };
        let most = effective.and_then(|fetch| match fetch.rule {
            FetchRule::UpTo(most) => Some(most),
            _ => fetch.most,
        });
        let value = ftcache_layer_fetch {
            struct_size: 0,
            fetch_rule: rule as u32,
            fetch_q16: fraction.map_or(0, |fraction| fraction.q16()),
            fetch_most: most.unwrap_or(0),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(fetch, "fetch", value) }
    })
}

/// What one pool came to. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_pool_get(
    configuration: *const ftcache_configuration,
    pool: u32,
    report: *mut ftcache_pool_report,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = unsafe { required(configuration, "configuration") }?.geometry();
        let pool = known_pool(geometry, pool)?;
        let value = ftcache_pool_report {
            struct_size: 0,
            slot_count: pool.slot_count(),
            layer_count: pool.layers().len() as u32,
            min_slots: pool.bounds().min_slots,
            max_slots: pool.bounds().max_slots,
            reserved: 0,
            slot_bytes: pool.slot_bytes(),
            pool_bytes: pool.pool_bytes(),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// The pool that serves a layer. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; pool points to a uint32_t.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_layer_pool(
    configuration: *const ftcache_configuration,
    layer: u32,
    pool: *mut u32,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = unsafe { required(configuration, "configuration") }?.geometry();
        // SAFETY: points to a `u32` by the caller's word.
        let pool = unsafe { required_mut(pool, "pool") }?;
        let serving = geometry.pool_of_layer(known_layer(geometry, layer)?);
        *pool = serving.ok_or_else(|| Failure::range(format!("layer {layer} holds no slots")))?.get();
        Ok(())
    })
}

/// Where the slots of one pool lie in one bank's arena. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; range points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_slot_range_get(
    configuration: *const ftcache_configuration,
    pool: u32,
    bank: u32,
    range: *mut ftcache_slot_range,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = unsafe { required(configuration, "configuration") }?.geometry();
        let pool = known_pool(geometry, pool)?;
        let bank = BankId::new(bank);
        let bank_count = geometry.model().bank_count();
        let slots = pool.ranges().get(bank.index());
        let slots = slots.ok_or_else(|| Failure::range(format!("no bank {bank}: the model has {bank_count} banks")))?;
        let value = ftcache_slot_range {
            struct_size: 0,
            slot_count: pool.slot_count(),
            row_bytes: slots.row_bytes,
            stride: slots.stride,
            offset: slots.offset,
            tail_pad_bytes: slots.tail_pad_bytes,
            arena_bytes: geometry.arena_bytes()[bank.index()],
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(range, "range", value) }
    })
}

/// Which slots a staging buffer (0 or 1) lies on, run by run: an engine that copies by itself finds its rows gone there
/// after the buffer was filled. count is 0 past the last run, and where the buffer has memory of its own. Allocates
/// nothing, waits for nothing.
///
/// # Safety
///
/// configuration came from this library; run points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_buffer_run_get(
    configuration: *const ftcache_configuration,
    buffer: u32,
    index: u32,
    run: *mut ftcache_slot_run,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        let staging = configuration.staging().filter(|staging| buffer < staging.buffer_count());
        let buffer_count = configuration.staging().map_or(0, |staging| staging.buffer_count());
        let staging =
            staging.ok_or_else(|| Failure::range(format!("no staging buffer {buffer}: there are {buffer_count}")))?;
        let found = staging.invalidates(buffer as usize).get(index as usize);
        let value = ftcache_slot_run {
            struct_size: 0,
            pool: found.map_or(0, |run| run.pool.get()),
            first: found.map_or(SlotId::new(0), |run| run.first).get(),
            count: found.map_or(0, |run| run.count),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(run, "run", value) }
    })
}

/// Frees a configuration; NULL is accepted. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_configuration_free(configuration: Option<Box<ftcache_configuration>>) {
    let _ = guard(|| {
        drop(configuration);
        Ok(())
    });
}

fn known_pool(geometry: &Geometry, pool: u32) -> Result<&Pool, Failure> {
    let pool_count = geometry.pools().len();
    let known = geometry.pools().get(PoolId::new(pool).index());
    known.ok_or_else(|| Failure::range(format!("no pool {pool}: there are {pool_count} pools")))
}

fn known_layer(geometry: &Geometry, layer: u32) -> Result<LayerId, Failure> {
    let layer_count = geometry.model().layer_count();
    if layer as usize >= layer_count {
        return Err(Failure::range(format!("no layer {layer}: the model has {layer_count} layers")));
    }
    Ok(LayerId::new(layer))
}
