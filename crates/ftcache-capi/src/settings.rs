//! Settings: what is wanted of a configuration.

use std::ffi::{c_char, c_void};

use ftcache_core::policy::{
    Admission, CpuCode, CpuLayers, Fetch, FetchChoice, FetchRule, Fraction, Model, Pair, Point, Rates, Reserve,
    Rounding, Settings, StagingPlace, Strategy, StrategyChoice, TagLimit, parse_budget,
};
use ftcache_core::{Budget, Constraints, Eviction, FetchOrder, LayerId, Scope, TailPad};

use crate::boundary::{SizedStruct, array, flag, text};
use crate::failure::Failure;
use crate::split::read_split;

/// Which layers share a pool of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_scope {
    /// All layers of equal row bytes and equal tag.
    Unified = 0,
    /// None: each layer has its own.
    PerLayer = 1,
}

/// How slots are divided between pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_split {
    /// As many per layer in every pool as the bounds allow.
    Equal = 0,
    /// By how often the experts of a pool's layers were used: use_counts.
    Profile = 1,
    /// So that the fewest bytes are fetched, by what each layer missed with so many slots: miss_counts.
    Curve = 2,
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
    /// On the CPU, resident or not: slots serve prefill alone, and lie in one pool.
    Cpu = 2,
    /// As rates recommend; ftcache_configuration_get has what that is.
    Measured = 3,
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
    /// Those that a hybrid step routed to most recently, ties to the lower id.
    Recency = 0,
    /// The lowest id.
    Lowest = 1,
}

/// Which rule says who goes. Free slots go first, then what prefill, rejected drafts or wasted hints brought and no step
/// has used since; ties go to the lower slot. All but LRU count uses: of decode steps when they are admitted, of drafts
/// when they are accepted, of prefill never. They keep the counts in host memory, and in device mode on the device too:
/// some 300 bytes an expert for FTCACHE_EVICTION_LEARNED, which wants no more than 65,536 experts a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_eviction {
    /// The least recently used: exact.
    Lru = 0,
    /// The least share of its layer's uses of late: a use counts half after 64 steps of its layer.
    Lfu = 1,
    /// The same with a half of 16 steps, over the number of layers until the expert's layer comes again: what the next
    /// layers are about to ask for stays.
    Cyclic = 2,
    /// The same with six halves from 1 to 1,024 steps and with what followed the layer's last routes before, each as
    /// much as it has said of the uses so far.
    Learned = 3,
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

/// A quantisation tag. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_tag {
    /// The tag; NULL stands for layers without one. Copied.
    pub tag: *const c_void,
    /// Its bytes.
    pub tag_bytes: u64,
}

/// What was measured with experts of one quantisation and size, in bytes a second; `ftcache probe` writes such figures.
/// This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_rate {
    /// The quantisation tag; NULL for layers without one. Copied.
    pub tag: *const c_void,
    /// Its bytes.
    pub tag_bytes: u64,
    /// Bytes of one expert. The figures stand for experts of half to twice this size.
    pub expert_bytes: u64,
    /// Over the link while the CPU rests.
    pub link: f64,
    /// By the CPU while the link rests; 0 if it has no code for the quantisation.
    pub cpu: f64,
    /// Over the link while both work; 0 if that was not measured.
    pub contended_link: f64,
    /// By the CPU while both work; 0 if that was not measured.
    pub contended_cpu: f64,
}

/// What is wanted. All zeros but for a budget is a good beginning: one request, unified pools, borrowed staging with
/// overlap, every miss fetched, admission on the host, eviction by LRU.
///
/// Exactly one of budget, budget_bytes and slot_count is set. A byte budget covers the arenas with their pads and the
/// layers that lie on the device as a whole; dedicated staging and tables come on top. Nothing that is asked for is
/// lowered unless a field allows it, and then the report says so; overlap alone goes off by itself (overlap_off).
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
    /// The budget as people write it: "12GiB", "480*18874368" (so many times so many bytes), "0.9*free" (of
    /// free_bytes), "rest" (what reserves, tables and dedicated staging leave of it). NULL if one of the two above is
    /// set.
    pub budget: *const c_char,
    /// Free bytes of the device; 0 if that is not known. If it is, what does not fit is refused.
    pub free_bytes: u64,
    /// What else the engine needs of them; NULL if nothing.
    pub reserves: *const ftcache_reserve,
    /// How many.
    pub reserve_count: u64,
    /// Requests decoded at once; each pool gets at least what one step of them can need. 0 means 1. For verify steps
    /// each drafted token counts as a request: 3 requests with 2 drafts are 9. Wider steps are refused, and may be
    /// parted.
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
    /// Banks with rows narrower than this are staged whole from the host, residents too; 0 means 256 KiB. Refused with
    /// FTCACHE_STAGING_NOWHERE.
    pub small_row_bytes: u64,
    /// An ftcache_strategy.
    pub strategy: u32,
    /// An ftcache_fetch_rule. A hybrid strategy needs one, or rates: by these it is FTCACHE_FETCH_RULE_CARRY.
    pub fetch_rule: u32,
    /// A fraction in 65,536ths, for the rules that have one; 0 if fetch_measured is 1.
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
    /// An ftcache_split.
    pub split: u32,
    /// 1: use_counts or miss_counts of a model of another name are refused. 0: they are noted.
    pub refuse_other_model: u32,
    /// FTCACHE_SPLIT_PROFILE: how often each expert was used, [layer][expert], in any unit, as each layer is scaled by
    /// itself. NULL for another split. Copied.
    pub use_counts: *const f64,
    /// How many: layers times experts.
    pub use_count_count: u64,
    /// The model that was counted, as whoever counted named it; NULL if that is not known.
    pub use_counts_model: *const c_char,
    /// This model by the same naming; NULL if it is not to be compared.
    pub model_name: *const c_char,
    /// What this machine was measured to do; NULL if that is not known.
    pub rates: *const ftcache_rate,
    /// How many.
    pub rate_count: u64,
    /// The device on which they were measured. NULL if there are none.
    pub rates_device: *const c_char,
    /// This device by the same naming, since rates of another are refused. NULL if there are none.
    pub device_name: *const c_char,
    /// 1: the fraction of fetch_rule is each layer's by the rates.
    pub fetch_measured: u32,
    /// An ftcache_eviction. Every rule but LRU is refused with FTCACHE_STRATEGY_CPU.
    pub eviction: u32,
    /// Tags that the CPU can compute; NULL if it can compute all.
    pub cpu_tags: *const ftcache_tag,
    /// How many.
    pub cpu_tag_count: u64,
    /// FTCACHE_SPLIT_CURVE: how often each layer missed with so many slots of its own, [layer][slots] from none to all
    /// experts, never more with a slot more; all layers were counted over the same steps. ftcache_model_miss_counts has
    /// them of a recording. NULL for another split. Copied.
    pub miss_counts: *const u64,
    /// How many: layers times (experts + 1).
    pub miss_count_count: u64,
    /// The model that was counted, as whoever counted named it; NULL if that is not known.
    pub miss_counts_model: *const c_char,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_settings {}

/// # Safety
///
/// The pointers of `given` are as the header says of them.
pub(crate) unsafe fn settings_of(given: &ftcache_settings, model: &Model) -> Result<Settings, Failure> {
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
        let tag = unsafe { tag_of(limit.tag, limit.tag_bytes, "settings->tag_limits->tag") }?;
        let slots = u32::try_from(limit.slots).unwrap_or(u32::MAX);
        settings.constraints.tag_limits.push(TagLimit { tag, slots });
    }
    // SAFETY: as many reserves as the count says, by the caller's word.
    let reserves = unsafe { array(given.reserves, given.reserve_count, "settings->reserves") }?;
    for (index, reserve) in reserves.iter().enumerate() {
        // SAFETY: a text by the caller's word.
        let name = unsafe { text(reserve.name, "settings->reserves->name") }?;
        let name =
            name.ok_or_else(|| Failure::argument(format!("settings->reserves[{index}].name is NULL")))?.to_owned();
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
    settings.strategy = match given.strategy {
        strategy if strategy == ftcache_strategy::Offload as u32 => StrategyChoice::Fixed(Strategy::Offload),
        strategy if strategy == ftcache_strategy::Hybrid as u32 => StrategyChoice::Fixed(Strategy::Hybrid),
        strategy if strategy == ftcache_strategy::Cpu as u32 => StrategyChoice::Fixed(Strategy::Cpu),
        strategy if strategy == ftcache_strategy::Measured as u32 => StrategyChoice::Measured,
        other => return Err(not_a("settings->strategy", other, "ftcache_strategy")),
    };
    let fetch = FetchFields { of: "settings", rule: given.fetch_rule, q16: given.fetch_q16, most: given.fetch_most };
    settings.fetch = if flag(given.fetch_measured, "settings->fetch_measured")? {
        Some(fetch.read_measured()?)
    } else {
        fetch.read()?.map(FetchChoice::Fixed)
    };
    settings.fetch_order = match fetch_order(given.fetch_order, "settings->fetch_order")? {
        FetchOrder::Recency => None,
        other => Some(other),
    };
    // SAFETY: a text by the caller's word.
    if let Some(written) = unsafe { text(given.cpu_layers, "settings->cpu_layers") }? {
        settings.cpu_layers = CpuLayers::parse(written)?;
    }
    settings.pinnable_bytes = (given.pinnable_bytes > 0).then_some(given.pinnable_bytes);
    settings.eviction = match given.eviction {
        rule if rule == ftcache_eviction::Lru as u32 => Eviction::Lru,
        rule if rule == ftcache_eviction::Lfu as u32 => Eviction::Lfu,
        rule if rule == ftcache_eviction::Cyclic as u32 => Eviction::Cyclic,
        rule if rule == ftcache_eviction::Learned as u32 => Eviction::Learned,
        other => return Err(not_a("settings->eviction", other, "ftcache_eviction")),
    };
    // SAFETY: pointers as the header says of them, by the caller's word.
    unsafe { read_split(given, model, &mut settings) }?;
    // SAFETY: as above.
    unsafe { read_rates(given, &mut settings) }?;
    Ok(settings)
}

/// # Safety
///
/// The pointers of `given` are as the header says of them.
unsafe fn read_rates(given: &ftcache_settings, settings: &mut Settings) -> Result<(), Failure> {
    // SAFETY: texts by the caller's word.
    let name = |pointer, name| unsafe { text(pointer, name) };
    let measured_on = name(given.rates_device, "settings->rates_device")?;
    settings.device = name(given.device_name, "settings->device_name")?.map(str::to_owned);
    // SAFETY: as many tags as the count says, by the caller's word.
    let tags = unsafe { array(given.cpu_tags, given.cpu_tag_count, "settings->cpu_tags") }?;
    if !tags.is_empty() {
        // SAFETY: as many bytes as each says, by the caller's word.
        let tags = tags.iter().map(|one| unsafe { tag_of(one.tag, one.tag_bytes, "settings->cpu_tags->tag") });
        settings.cpu_code = CpuCode::Tags(tags.collect::<Result<_, Failure>>()?);
    }
    // SAFETY: as many rates as the count says, by the caller's word.
    let rates = unsafe { array(given.rates, given.rate_count, "settings->rates") }?;
    if rates.is_empty() {
        return match measured_on {
            None => Ok(()),
            Some(device) => Err(Failure::argument(format!("settings->rates_device is {device:?}, without rates"))),
        };
    }
    let measured_on = measured_on
        .ok_or_else(|| Failure::argument(format!("settings->rates_device is NULL, with {} rates", rates.len())))?;
    let mut points = Vec::with_capacity(rates.len());
    for (index, rate) in rates.iter().enumerate() {
        let contended = match (rate.contended_link == 0.0, rate.contended_cpu == 0.0) {
            (true, true) => None,
            (false, false) => Some(Pair { link: rate.contended_link, cpu: rate.contended_cpu }),
            _ => {
                let message = format!(
                    "settings->rates[{index}] has a contended_link of {} and a contended_cpu of {}; both are measured, \
                     or neither",
                    rate.contended_link, rate.contended_cpu
                );
                return Err(Failure::argument(message));
            }
        };
        points.push(Point {
            // SAFETY: as many bytes as it says, by the caller's word.
            tag: unsafe { tag_of(rate.tag, rate.tag_bytes, "settings->rates->tag") }?,
            expert_bytes: rate.expert_bytes,
            link: rate.link,
            cpu: (rate.cpu != 0.0).then_some(rate.cpu),
            contended,
        });
    }
    settings.rates = Some(Rates::new(measured_on, points)?);
    Ok(())
}

/// # Safety
///
/// `tag` is NULL or points to `tag_bytes` bytes.
unsafe fn tag_of(tag: *const c_void, tag_bytes: u64, name: &str) -> Result<Vec<u8>, Failure> {
    // SAFETY: by this function's own promise.
    Ok(unsafe { array(tag.cast::<u8>(), tag_bytes, name) }?.to_vec())
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

    /// As many as the rates say, rounded by the rule.
    fn read_measured(&self) -> Result<FetchChoice, Failure> {
        let Self { of, rule, q16, most } = *self;
        if q16 > 0 {
            return Err(Failure::argument(format!("{of}->fetch_q16 is {q16}, and fetch_measured is 1")));
        }
        let rounding = match rule {
            rule if rule == ftcache_fetch_rule::MinWait as u32 => Rounding::MinWait,
            rule if rule == ftcache_fetch_rule::PreferFetch as u32 => Rounding::PreferFetch,
            rule if rule == ftcache_fetch_rule::Carry as u32 => Rounding::Carry,
            other => {
                return Err(Failure::argument(format!("{of}->fetch_rule is {other}, which no measured fraction fits")));
            }
        };
        Ok(FetchChoice::Measured { rounding, most: (most > 0).then_some(most) })
    }
}

pub(crate) fn fetch_order(order: u32, name: &str) -> Result<FetchOrder, Failure> {
    match order {
        order if order == ftcache_fetch_order::Recency as u32 => Ok(FetchOrder::Recency),
        order if order == ftcache_fetch_order::Lowest as u32 => Ok(FetchOrder::LowestId),
        other => Err(not_a(name, other, "ftcache_fetch_order")),
    }
}
