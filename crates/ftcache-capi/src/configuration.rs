//! The configuration: settings in, pools, staging and every byte to set aside out, before anything is allocated.

use std::ffi::{c_char, c_void};

use ftcache_core::policy::{
    Admission, CpuLayers, Declined, Fetch, FetchChoice, FetchRule, Fraction, Note, Reserve, Settings, StagingPlace,
    Strategy, StrategyChoice, TagLimit, parse_budget,
};
use ftcache_core::{BankId, Budget, Configuration, Constraints, FetchOrder, Geometry, LayerId, Pool, PoolId, Scope};
use ftcache_core::{SlotId, TailPad};

use crate::boundary::{
    SizedStruct, array, flag, guard, read_sized, required, required_mut, text, write_sized, write_text,
};
use crate::failure::Failure;
use crate::model::ftcache_model;
use crate::status::ftcache_status;

/// Which layers share a pool of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_scope {
    /// All layers of equal row bytes and equal tag.
    Unified = 0,
    /// None: each layer has its own.
    PerLayer = 1,
}

/// How many bytes follow a pool's last slot, for kernels that read past a row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_tail_pad {
    /// As many as the row has, up to 512.
    Row = 0,
    /// tail_pad_bytes.
    Bytes = 1,
}

/// Where prefill stages whole layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_staging {
    /// On top of the first pools' slots, which lose what they hold while a chunk is open.
    Borrowed = 0,
    /// In memory of its own, so that prefill leaves the decode set alone.
    Dedicated = 1,
    /// Nowhere: small chunks are admitted on demand, and the others are the engine's.
    Nowhere = 2,
}

/// Where the experts of a decode step that are not resident are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_strategy {
    /// On the device, once their rows are copied: every miss is fetched.
    Offload = 0,
    /// On the device those that are fetched, on the CPU the others.
    Hybrid = 1,
    /// On the CPU, resident or not: slots serve prefill alone.
    Cpu = 2,
}

/// How many misses of a hybrid step are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_fetch_rule {
    /// Not said: in a step, as the configuration says.
    Default = 0,
    /// Up to fetch_most.
    UpTo = 1,
    /// The number at which neither link nor CPU waits longer than it must: of n in 0..=m the one with the least
    /// max(n (65536 - q), (m - n) q) for q = fetch_q16, ties to the lower. A few misses that recur may never be
    /// fetched.
    MinWait = 2,
    /// fetch_q16 of them, rounded up.
    PreferFetch = 3,
    /// fetch_q16 of them; what is left below one is carried to the layer's next step, so that misses that recur are
    /// fetched in the end.
    Carry = 4,
}

/// Which of the misses of a hybrid step are fetched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_fetch_order {
    /// The most recently active, ties to the lower id.
    Recency = 0,
    /// The lowest id.
    Lowest = 1,
}

/// Where steps are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_admission {
    /// On the host: the device keeps no tables.
    Host = 0,
    /// On the device, for engines that capture decode into a graph: its tables are among what is set aside.
    Device = 1,
}

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

/// Bytes of the device that the engine needs for something else. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_reserve {
    /// What for: "kv", "transients", "weights". Copied.
    pub name: *const c_char,
    /// Bytes.
    pub bytes: u64,
}

/// The most slots that kernels of one quantisation index in a pool. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_tag_limit {
    /// The quantisation tag. Copied.
    pub tag: *const c_void,
    /// Its bytes.
    pub tag_bytes: u64,
    /// Slots.
    pub slots: u64,
}

/// What is wanted. All zeros but for a budget is a good beginning: one request, unified pools, borrowed staging with
/// overlap, every miss fetched, admission on the host.
///
/// Exactly one of budget, budget_bytes and slot_count is set. A byte budget covers the arenas with their pads and the
/// layers that lie on the device as a whole; dedicated staging and tables come on top. Nothing that is asked for is
/// lowered unless a field allows it, and then the report says so.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_settings {
    /// sizeof(ftcache_settings).
    pub struct_size: u32,
    /// An ftcache_scope.
    pub scope: u32,
    /// Bytes; never exceeded, and no pool could take one more slot.
    pub budget_bytes: u64,
    /// Slots over all pools.
    pub slot_count: u64,
    /// The budget as people write it: "12GiB", "480*18874368", "0.9*free" (of free_bytes), "rest" (what reserves,
    /// tables and dedicated staging leave of it). NULL if one of the two above is set.
    pub budget: *const c_char,
    /// Free bytes of the device; 0 if that is not known. If it is, what does not fit is refused.
    pub free_bytes: u64,
    /// What else the engine needs of them; NULL if nothing.
    pub reserves: *const ftcache_reserve,
    /// How many.
    pub reserve_count: u64,
    /// Requests decoded at once; each pool gets at least what one step of them can need. 0 means 1.
    pub request_count: u32,
    /// 1: decode as many requests at once as fit, if that is fewer. 0: that is refused.
    pub lower_requests: u32,
    /// Batch sizes that the engine would capture as graphs; the report says which fit. NULL if none.
    pub batch_sizes: *const u32,
    /// How many.
    pub batch_size_count: u64,
    /// The most slots that the engine's kernels index in one pool. 0 means no limit.
    pub slot_limit: u32,
    /// An ftcache_staging.
    pub staging: u32,
    /// Further limits, for kernels of single quantisations; NULL if none.
    pub tag_limits: *const ftcache_tag_limit,
    /// How many.
    pub tag_limit_count: u64,
    /// Layers that hold no slots; NULL if none.
    pub slotless_layers: *const u32,
    /// How many.
    pub slotless_layer_count: u64,
    /// Layers that lie on the device as a whole, within the budget; NULL if none.
    pub resident_layers: *const u32,
    /// How many.
    pub resident_layer_count: u64,
    /// Layers that decode on the CPU: "3,7,11" are these, "8" so many from both ends, "0.5" a share of all, "auto" as
    /// many as pinnable_bytes makes it. NULL means none.
    pub cpu_layers: *const c_char,
    /// What the host may pin; 0 if that is not known.
    pub pinnable_bytes: u64,
    /// 1: layers are staged one after the other. 0: one while the one before it computes, if two fit; the report says
    /// if they do not.
    pub no_overlap: u32,
    /// An ftcache_admission.
    pub admission: u32,
    /// Banks with rows narrower than this are staged whole. 0 means 256 KiB.
    pub small_row_bytes: u64,
    /// An ftcache_strategy.
    pub strategy: u32,
    /// An ftcache_fetch_rule, which a hybrid strategy needs.
    pub fetch_rule: u32,
    /// A fraction in 65,536ths, for the rules that have one.
    pub fetch_q16: u32,
    /// The most misses of a step that are fetched; 0 means no limit but for FTCACHE_FETCH_RULE_UP_TO, where it is 0.
    pub fetch_most: u32,
    /// An ftcache_fetch_order.
    pub fetch_order: u32,
    /// An ftcache_tail_pad.
    pub tail_pad: u32,
    /// Slot strides and pool offsets are multiples of this power of two. 0 means 1: rows without gaps.
    pub alignment: u64,
    /// Bytes between the end of a row and the next slot.
    pub slot_pad_bytes: u64,
    /// Bytes after a pool's last slot, if tail_pad is FTCACHE_TAIL_PAD_BYTES.
    pub tail_pad_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_settings {}

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
    /// Notes and lowered settings: lines of ftcache_configuration_text.
    pub note_count: u32,
    /// 0.
    pub reserved: u32,
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

/// What settings come to for a model. It never changes: any number of threads may ask it at once, and it may be freed
/// while caches that were made of it live on.
pub struct ftcache_configuration {
    pub(crate) configuration: Configuration,
}

impl ftcache_configuration {
    fn geometry(&self) -> &Geometry {
        self.configuration.geometry()
    }
}

/// # Safety
///
/// The pointers of `given` are as the header says of them.
unsafe fn settings_of(given: &ftcache_settings) -> Result<Settings, Failure> {
    // SAFETY: a text by the caller's word.
    let budget = unsafe { text(given.budget, "settings->budget") }?;
    let budget = match (budget, given.budget_bytes, given.slot_count) {
        (Some(written), 0, 0) => parse_budget(written)?,
        (None, bytes @ 1.., 0) => Budget::Bytes(bytes),
        (None, 0, slots @ 1..) => Budget::Slots(slots),
        (None, 0, 0) => {
            return Err(Failure::argument("settings have none of budget, budget_bytes and slot_count"));
        }
        (written, bytes, slots) => {
            let written = written.map_or("NULL".to_owned(), |budget| format!("{budget:?}"));
            let message = format!(
                "settings have budget {written}, budget_bytes {bytes} and slot_count {slots}; one of them is to be set"
            );
            return Err(Failure::argument(message));
        }
    };
    let mut settings = Settings::new(Constraints::new(budget));
    let constraints = &mut settings.constraints;
    constraints.scope = match given.scope {
        scope if scope == ftcache_scope::Unified as u32 => Scope::Unified,
        scope if scope == ftcache_scope::PerLayer as u32 => Scope::PerLayer,
        other => return Err(not_a("settings->scope", other, "ftcache_scope")),
    };
    match given.tail_pad {
        rule if rule == ftcache_tail_pad::Row as u32 && given.tail_pad_bytes > 0 => {
            let message = format!(
                "settings->tail_pad_bytes is {}, which counts only if tail_pad is FTCACHE_TAIL_PAD_BYTES",
                given.tail_pad_bytes
            );
            return Err(Failure::argument(message));
        }
        rule if rule == ftcache_tail_pad::Row as u32 => {}
        rule if rule == ftcache_tail_pad::Bytes as u32 => constraints.tail_pad = TailPad::Bytes(given.tail_pad_bytes),
        other => return Err(not_a("settings->tail_pad", other, "ftcache_tail_pad")),
    }
    constraints.request_count = given.request_count.max(1);
    constraints.slot_limit = (given.slot_limit > 0).then_some(given.slot_limit);
    constraints.alignment = given.alignment.max(1);
    constraints.slot_pad_bytes = given.slot_pad_bytes;
    // SAFETY: as many numbers as the count says, by the caller's word.
    let layers = |layers, count, name| unsafe { layers_of(layers, count, name) };
    constraints.slotless_layers =
        layers(given.slotless_layers, given.slotless_layer_count, "settings->slotless_layers")?;
    settings.resident_layers = layers(given.resident_layers, given.resident_layer_count, "settings->resident_layers")?;
    // SAFETY: as many limits as the count says, by the caller's word.
    let limits = unsafe { array(given.tag_limits, given.tag_limit_count, "settings->tag_limits") }?;
    for limit in limits {
        // SAFETY: as many bytes as it says, by the caller's word.
        let tag = unsafe { array(limit.tag.cast::<u8>(), limit.tag_bytes, "settings->tag_limits->tag") }?;
        let slots = u32::try_from(limit.slots).unwrap_or(u32::MAX);
        settings.constraints.tag_limits.push(TagLimit { tag: tag.to_vec(), slots });
    }
    // SAFETY: as many reserves as the count says, by the caller's word.
    let reserves = unsafe { array(given.reserves, given.reserve_count, "settings->reserves") }?;
    for reserve in reserves {
        // SAFETY: a text by the caller's word.
        let name = unsafe { text(reserve.name, "settings->reserves->name") }?;
        let name = name.ok_or_else(|| Failure::argument("settings->reserves->name is NULL"))?.to_owned();
        settings.reserves.push(Reserve { name, bytes: reserve.bytes });
    }
    settings.free_bytes = (given.free_bytes > 0).then_some(given.free_bytes);
    settings.lower_requests = flag(given.lower_requests, "settings->lower_requests")?;
    // SAFETY: as many sizes as the count says, by the caller's word.
    settings.batch_sizes =
        unsafe { array(given.batch_sizes, given.batch_size_count, "settings->batch_sizes") }?.to_vec();
    settings.staging = match given.staging {
        place if place == ftcache_staging::Borrowed as u32 => StagingPlace::Borrowed,
        place if place == ftcache_staging::Dedicated as u32 => StagingPlace::Dedicated,
        place if place == ftcache_staging::Nowhere as u32 => StagingPlace::Nowhere,
        other => return Err(not_a("settings->staging", other, "ftcache_staging")),
    };
    // Overlap is what zeros ask for, and without staging there is none to ask for.
    settings.overlap = !flag(given.no_overlap, "settings->no_overlap")? && settings.staging != StagingPlace::Nowhere;
    settings.small_row_bytes = (given.small_row_bytes > 0).then_some(given.small_row_bytes);
    settings.admission = match given.admission {
        place if place == ftcache_admission::Host as u32 => Admission::Host,
        place if place == ftcache_admission::Device as u32 => Admission::Device,
        other => return Err(not_a("settings->admission", other, "ftcache_admission")),
    };
    settings.strategy = StrategyChoice::Fixed(match given.strategy {
        strategy if strategy == ftcache_strategy::Offload as u32 => Strategy::Offload,
        strategy if strategy == ftcache_strategy::Hybrid as u32 => Strategy::Hybrid,
        strategy if strategy == ftcache_strategy::Cpu as u32 => Strategy::Cpu,
        other => return Err(not_a("settings->strategy", other, "ftcache_strategy")),
    });
    let fetch = FetchFields { of: "settings", rule: given.fetch_rule, q16: given.fetch_q16, most: given.fetch_most };
    settings.fetch = fetch.read()?.map(FetchChoice::Fixed);
    settings.fetch_order = match fetch_order(given.fetch_order, "settings->fetch_order")? {
        FetchOrder::Recency => None,
        other => Some(other),
    };
    // SAFETY: a text by the caller's word.
    if let Some(written) = unsafe { text(given.cpu_layers, "settings->cpu_layers") }? {
        settings.cpu_layers = CpuLayers::parse(written)?;
    }
    settings.pinnable_bytes = (given.pinnable_bytes > 0).then_some(given.pinnable_bytes);
    Ok(settings)
}

pub(crate) fn not_a(name: &str, given: u32, what: &str) -> Failure {
    Failure::argument(format!("{name} is {given}, not an {what}"))
}

/// # Safety
///
/// `layers` is NULL or points to `count` numbers.
unsafe fn layers_of(layers: *const u32, count: u64, name: &str) -> Result<Vec<LayerId>, Failure> {
    // SAFETY: by this function's own promise.
    Ok(unsafe { array(layers, count, name) }?.iter().copied().map(LayerId::new).collect())
}

/// The three fields that say how many misses are fetched.
pub(crate) struct FetchFields {
    /// The struct that they are of.
    pub(crate) of: &'static str,
    pub(crate) rule: u32,
    pub(crate) q16: u32,
    pub(crate) most: u32,
}

impl FetchFields {
    /// How many misses are fetched; `None` if that is not said.
    pub(crate) fn read(&self) -> Result<Option<Fetch>, Failure> {
        let Self { of, rule, q16, most } = *self;
        let fraction = || {
            let fraction = Fraction::from_q16(q16);
            fraction.ok_or_else(|| Failure::argument(format!("{of}->fetch_q16 is {q16}; 65536 is the whole")))
        };
        let without_fraction = rule == ftcache_fetch_rule::Default as u32 || rule == ftcache_fetch_rule::UpTo as u32;
        if without_fraction && q16 > 0 {
            return Err(Failure::argument(format!("{of}->fetch_q16 is {q16}, and fetch_rule {rule} has no fraction")));
        }
        let rule = match rule {
            rule if rule == ftcache_fetch_rule::Default as u32 => {
                return match most {
                    0 => Ok(None),
                    _ => Err(Failure::argument(format!("{of}->fetch_most is {most}, without a fetch_rule"))),
                };
            }
            rule if rule == ftcache_fetch_rule::UpTo as u32 => {
                return Ok(Some(Fetch { rule: FetchRule::UpTo(most), most: None }));
            }
            rule if rule == ftcache_fetch_rule::MinWait as u32 => FetchRule::MinWait(fraction()?),
            rule if rule == ftcache_fetch_rule::PreferFetch as u32 => FetchRule::PreferFetch(fraction()?),
            rule if rule == ftcache_fetch_rule::Carry as u32 => FetchRule::Carry(fraction()?),
            other => return Err(not_a(&format!("{of}->fetch_rule"), other, "ftcache_fetch_rule")),
        };
        Ok(Some(Fetch { rule, most: (most > 0).then_some(most) }))
    }
}

pub(crate) fn fetch_order(order: u32, name: &str) -> Result<FetchOrder, Failure> {
    match order {
        order if order == ftcache_fetch_order::Recency as u32 => Ok(FetchOrder::Recency),
        order if order == ftcache_fetch_order::Lowest as u32 => Ok(FetchOrder::LowestId),
        other => Err(not_a(name, other, "ftcache_fetch_order")),
    }
}

/// Makes a configuration, or says which two numbers conflict. Pure: touches no device, and the model may be freed
/// afterwards.
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
        // SAFETY: its pointers are as the header says, by the caller's word.
        let settings = unsafe { settings_of(&settings) }?;
        let configuration = Configuration::new(model.build()?, settings)?;
        *out = Box::into_raw(Box::new(ftcache_configuration { configuration }));
        Ok(())
    })
}

/// The same settings with another budget, to rebuild a cache with: what was lowered comes back if there is room.
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
        let configuration = configuration.with_budget(parse_budget(budget)?)?;
        *out = Box::into_raw(Box::new(ftcache_configuration { configuration }));
        Ok(())
    })
}

/// What the configuration came to.
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
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
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
            note_count: lines(configuration).len() as u32,
            reserved: 0,
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// What a user should know: settings that are not in effect as they were asked for, then notes.
pub(crate) fn lines(configuration: &Configuration) -> Vec<String> {
    let differing = configuration.effective().into_iter().filter(|one| one.asked != one.effective);
    let differing = differing.map(|one| {
        let reason = one.reason.map_or(String::new(), |reason| format!(": {reason}"));
        format!("{} is {}, not {}{reason}", one.setting, one.effective, one.asked)
    });
    differing.chain(configuration.notes().iter().map(Note::to_string)).collect()
}

/// Every setting as it was asked for and as it is in effect, with the reason where they differ, then notes: one a line,
/// for people and logs.
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

/// Whether a layer has slots, and why if it has none: state is set to an ftcache_layer_state.
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
    let layer_count = configuration.geometry().model().layer_count();
    if layer as usize >= layer_count {
        return Err(Failure::range(format!("no layer {layer}: the model has {layer_count} layers")));
    }
    let layer = LayerId::new(layer);
    let declined = configuration.declined().into_iter().find(|(declined, _)| *declined == layer);
    Ok(match declined {
        None => ftcache_layer_state::Cached,
        Some((_, Declined::Slotless)) => ftcache_layer_state::Slotless,
        Some((_, Declined::Cpu)) => ftcache_layer_state::Cpu,
        Some((_, Declined::Resident)) => ftcache_layer_state::Resident,
    })
}

/// What one pool came to.
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

/// The pool that serves a layer.
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
        let layer_count = geometry.model().layer_count();
        if layer as usize >= layer_count {
            return Err(Failure::range(format!("no layer {layer}: the model has {layer_count} layers")));
        }
        let serving = geometry.pool_of_layer(LayerId::new(layer));
        *pool = serving.ok_or_else(|| Failure::range(format!("layer {layer} holds no slots")))?.get();
        Ok(())
    })
}

/// Where the slots of one pool lie in one bank's arena.
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
/// after the buffer was filled. count is 0 past the last run, and where the buffer has memory of its own.
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

/// Frees a configuration; NULL is accepted.
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
