//! The cache: made of a configuration on a device or without one, given its rows, asked where slots lie.

use std::ffi::{c_char, c_void};
use std::path::Path;

use ftcache_core::{
    AnyDevice, BounceSize, Cache, Configuration, CudaContext, CudaDevice, CudaDriver, DeviceReading, ExpertId,
    HostDevice, LaterLimits, LayerId, Loader, Planner, reserved_routes, residency,
};

use crate::boundary::{Guarded, SizedStruct, array, guard, read_sized, required, required_mut, reserved, text};
use crate::configuration::{ftcache_configuration, ftcache_layer_state, layer_state, lines};
use crate::failure::Failure;
use crate::log::{Log, ftcache_log};
use crate::plan::Views;
use crate::settings::not_a;
use crate::status::ftcache_status;
use crate::step::Parted;

/// What holds the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_device {
    /// Ordinary memory: no GPU is needed, and every copy is done when the call returns. It has the default stream
    /// alone, and no kernels.
    Host = 0,
    /// A device of the CUDA driver, which is looked up at run time.
    Cuda = 1,
    /// None: the engine holds the slots and copies by itself. See ftcache_admit.
    None = 2,
}

/// Which context of the CUDA driver a cache works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_context {
    /// The primary one of cuda_ordinal, as the CUDA runtime uses it. It is kept alive as long as the cache.
    Primary = 0,
    /// The one that is current to the thread that makes the cache. It must outlive the cache.
    Current = 1,
}

/// Device memory of the engine's for one bank's arena. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_arena {
    /// The device address.
    pub address: *mut c_void,
    /// Its bytes: at least the arena_bytes of the bank.
    pub bytes: u64,
}

/// How a cache is made. All zeros is a cache in ordinary memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_config {
    /// sizeof(ftcache_config).
    pub struct_size: u32,
    /// An ftcache_device.
    pub device: u32,
    /// FTCACHE_DEVICE_HOST: bytes that it may have, for trying out small ones; 0 means as many as there are.
    pub device_bytes: u64,
    /// FTCACHE_DEVICE_CUDA: the device's number.
    pub cuda_ordinal: u32,
    /// FTCACHE_DEVICE_CUDA: an ftcache_context.
    pub cuda_context: u32,
    /// FTCACHE_DEVICE_CUDA: the driver's library; NULL means the system's, libcuda.so.1 or nvcuda.dll.
    pub cuda_driver: *const c_char,
    /// Device memory of the engine's, one entry for each bank, filled with zeros here and used until the cache is
    /// freed; NULL if the cache is to allocate. Entries of banks that no layer reads are not looked at.
    pub arenas: *const ftcache_arena,
    /// How many.
    pub arena_count: u64,
    /// Entries of a bounce buffer: pinned memory through which rows go that the device cannot read where they lie. 0:
    /// there is none, and such rows are refused when they are attached.
    pub bounce_entry_count: u32,
    /// Threads that fill them; 0 means 2.
    pub bounce_thread_count: u32,
    /// Bytes of an entry; 0 means 1 MiB.
    pub bounce_entry_bytes: u64,
    /// Routes of the widest step with a token and of the widest verify step: room for them is made beforehand, so that
    /// they allocate nothing.
    pub remembered_routes: u64,
    /// Hybrid steps may fetch behind them so many bytes of what they leave to the CPU; 0 means none. When such rows
    /// land is a matter of time: ranks that are to stay alike must not use this.
    pub later_step_bytes: u64,
    /// Steps whose rows may be on their way behind them at once: 1 to 1024.
    pub later_flight_count: u32,
    /// An ftcache_log_level.
    pub log_level: u32,
    /// Takes what the library has to say of this cache; NULL if log_level is FTCACHE_LOG_LEVEL_OFF.
    pub log: ftcache_log,
    /// Given to it. It must stay valid until the cache is freed.
    pub log_user: *mut c_void,
    /// FTCACHE_DEVICE_CUDA: bytes that are copied to find out whether a small entry makes a batch of copies wait; 0:
    /// that is not measured, and rows below 256 KiB go alone. 67108864 is enough.
    pub probe_bytes: u64,
    /// Hints whose rows may be on their way at once, up to 1024; 0: there are none. FTCACHE_DEVICE_NONE: hints for
    /// which room is made beforehand, and any number may be on their way.
    pub hint_flight_count: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer and of the callback, and
// that another value is a function is the caller's word.
unsafe impl SizedStruct for ftcache_config {}

/// A cache of one model's experts on one device. Handles share nothing, so a draft model makes its own or has none.
///
/// One thread at a time: a second one that comes in is given FTCACHE_STATUS_BUSY. Any thread may be that one. It may
/// outlive the configuration that it was made of, and must not outlive its streams, its device memory or, if that is
/// current, its context.
pub struct ftcache {
    pub(crate) handle: Guarded<Handle>,
    pub(crate) log: Option<Log>,
}

/// What is behind a handle.
pub(crate) struct Handle {
    pub(crate) engine: Engine,
    /// What is in effect.
    pub(crate) configuration: Configuration,
    /// `states[layer]`, and how many notes the configuration has: for calls that allocate nothing.
    pub(crate) states: Vec<ftcache_layer_state>,
    pub(crate) note_count: u32,
    /// The parts of the step that was last partitioned.
    pub(crate) parts: Parted,
    pub(crate) routes: Vec<ExpertId>,
    pub(crate) views: Views,
    /// Reused for what comes back from device mode.
    pub(crate) reading: DeviceReading,
    /// As the cache was made with.
    pub(crate) hint_flight_count: u32,
}

/// Who moves the rows.
pub(crate) enum Engine {
    /// A device of ours.
    Device(Box<Cache<AnyDevice>>),
    /// The engine, by our plans.
    Planner(Box<Planner>),
}

impl Handle {
    /// Who is where.
    pub(crate) fn residency(&self) -> &residency::Cache {
        match &self.engine {
            Engine::Device(cache) => cache.residency(),
            Engine::Planner(planner) => planner.cache(),
        }
    }

    /// The cache with a device.
    pub(crate) fn on_device(&mut self) -> Result<&mut Cache<AnyDevice>, Failure> {
        match &mut self.engine {
            Engine::Device(cache) => Ok(cache),
            Engine::Planner(_) => Err(Failure::unsupported("the cache has no device: the engine copies by itself")),
        }
    }

    /// The cache without one.
    pub(crate) fn planner(&mut self) -> Result<&mut Planner, Failure> {
        match &mut self.engine {
            Engine::Planner(planner) => Ok(planner),
            Engine::Device(_) => {
                Err(Failure::unsupported("the cache copies by itself: plans are for FTCACHE_DEVICE_NONE"))
            }
        }
    }
}

/// Opens the CUDA device that a config asks for.
fn cuda_device(config: &ftcache_config) -> Result<CudaDevice, Failure> {
    // SAFETY: a text by the caller's word.
    let driver = match unsafe { text(config.cuda_driver, "config->cuda_driver") }? {
        None => CudaDriver::open()?,
        // SAFETY: by the header, what is named is a CUDA driver.
        Some(path) => unsafe { CudaDriver::open_at(Path::new(path)) }?,
    };
    let context = match config.cuda_context {
        context if context == ftcache_context::Primary as u32 => {
            let ordinal = i32::try_from(config.cuda_ordinal);
            let none = |_| Failure::range(format!("config->cuda_ordinal is {}", config.cuda_ordinal));
            CudaContext::Primary(ordinal.map_err(none)?)
        }
        context if context == ftcache_context::Current as u32 => CudaContext::Current,
        other => return Err(not_a("config->cuda_context", other, "ftcache_context")),
    };
    let mut device = CudaDevice::new(driver, context)?;
    device.probe_batches(config.probe_bytes)?;
    Ok(device)
}

/// Makes the cache on a device, and everything that a config asks of it.
fn make(configuration: &Configuration, config: &ftcache_config, device: AnyDevice) -> Result<Engine, Failure> {
    let geometry = configuration.geometry().clone();
    // SAFETY: as many arenas as the count says, by the caller's word.
    let arenas = unsafe { array(config.arenas, config.arena_count, "config->arenas") }?;
    let mut cache = match arenas {
        [] => Cache::new(geometry, device)?,
        _ => {
            let arenas: Vec<(u64, u64)> = arenas.iter().map(|arena| (arena.address as u64, arena.bytes)).collect();
            // SAFETY: by the header, they are memory of the device that is the cache's until it is freed.
            Cache::with_loader(unsafe { Loader::in_memory(geometry, device, &arenas) }?)
        }
    };
    cache.set_eviction(configuration.eviction())?;
    if config.bounce_entry_count > 0 {
        let default = BounceSize::default();
        cache.set_bounce(BounceSize {
            entry_count: config.bounce_entry_count,
            entry_bytes: if config.bounce_entry_bytes > 0 { config.bounce_entry_bytes } else { default.entry_bytes },
            thread_count: if config.bounce_thread_count > 0 {
                config.bounce_thread_count
            } else {
                default.thread_count
            },
        })?;
    }
    cache.stage_as(configuration)?;
    if config.remembered_routes > 0 {
        cache.reserve_remembered(routes_of(config)?);
    }
    if config.later_step_bytes > 0 {
        let limits = LaterLimits { step_bytes: config.later_step_bytes, flight_count: config.later_flight_count };
        cache.set_later(limits)?;
    }
    if config.hint_flight_count > 0 {
        cache.set_hints(config.hint_flight_count)?;
    }
    Ok(Engine::Device(Box::new(cache)))
}

/// As many as a loader takes, behind steps and of hints.
const FLIGHTS_MOST: u32 = 1024;

fn routes_of(config: &ftcache_config) -> Result<usize, Failure> {
    // Every layer remembers as many: a mistaken count should not become an allocation.
    let most = 1 << 16;
    if config.remembered_routes > most {
        let message = format!("config->remembered_routes is {}; at most {most}", config.remembered_routes);
        return Err(Failure::argument(message));
    }
    Ok(config.remembered_routes as usize)
}

/// Refuses what a config asks for and such a device has not.
fn check_fields(config: &ftcache_config) -> Result<(), Failure> {
    let (host, cuda) = (config.device == ftcache_device::Host as u32, config.device == ftcache_device::Cuda as u32);
    let device = host || cuda;
    let set = [
        ("device_bytes", config.device_bytes > 0, host),
        ("cuda_ordinal", config.cuda_ordinal > 0, cuda),
        ("cuda_context", config.cuda_context > 0, cuda),
        ("cuda_driver", !config.cuda_driver.is_null(), cuda),
        ("probe_bytes", config.probe_bytes > 0, cuda),
        ("arenas", config.arena_count > 0, device),
        ("bounce_entry_count", config.bounce_entry_count > 0, device),
        ("bounce_entry_bytes", config.bounce_entry_bytes > 0, config.bounce_entry_count > 0),
        ("bounce_thread_count", config.bounce_thread_count > 0, config.bounce_entry_count > 0),
        ("later_step_bytes", config.later_step_bytes > 0, device),
        ("later_flight_count", config.later_flight_count > 0, config.later_step_bytes > 0),
    ];
    if !(device || config.device == ftcache_device::None as u32) {
        return Err(not_a("config->device", config.device, "ftcache_device"));
    }
    if config.later_step_bytes > 0 && !(1..=FLIGHTS_MOST).contains(&config.later_flight_count) {
        let given = config.later_flight_count;
        let message = format!("config->later_flight_count is {given}; it must be 1 to {FLIGHTS_MOST}");
        return Err(Failure::argument(message));
    }
    if config.hint_flight_count > FLIGHTS_MOST {
        let message = format!("config->hint_flight_count is {}; at most {FLIGHTS_MOST}", config.hint_flight_count);
        return Err(Failure::argument(message));
    }
    reserved(config.reserved, "config->reserved")?;
    match set.iter().find(|(_, set, used)| *set && !used) {
        Some((name, ..)) => Err(Failure::argument(format!("config->{name} is set, and would have no effect"))),
        None => Ok(()),
    }
}

/// Makes a cache: allocates every slot on the device, filled with zeros, loads what the device needs and probes it.
/// Allocates; may block; works on streams of its own. Not to be called while a stream of the thread is being captured.
///
/// config may be NULL for the defaults. The configuration may be freed afterwards. *out is set to NULL if this does not
/// succeed; else the caller frees it with ftcache_free.
///
/// # Safety
///
/// configuration came from this library; config is NULL or points to a struct of its struct_size, and its
/// pointers to what it says, which stays so until the cache is freed; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_new(
    configuration: *const ftcache_configuration,
    config: *const ftcache_config,
    out: *mut *mut ftcache,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        let config = match config.is_null() {
            // SAFETY: any bytes are a value of it, all zeros too (`SizedStruct`).
            true => unsafe { std::mem::zeroed() },
            // SAFETY: points to a struct of its size by the caller's word.
            false => unsafe { read_sized(config, "config") }?,
        };
        check_fields(&config)?;
        // SAFETY: by the header, the callback may be called with `log_user` until the cache is freed.
        let log = unsafe { Log::new(config.log, config.log_user, config.log_level) }?;
        let make = || -> Result<Handle, Failure> {
            let engine = match config.device {
                device if device == ftcache_device::Host as u32 => {
                    let mut device = HostDevice::new();
                    if config.device_bytes > 0 {
                        device = device.with_limit(config.device_bytes);
                    }
                    make(configuration, &config, device.into())?
                }
                device if device == ftcache_device::Cuda as u32 => {
                    make(configuration, &config, cuda_device(&config)?.into())?
                }
                device if device == ftcache_device::None as u32 => plan_only(configuration, &config)?,
                other => return Err(not_a("config->device", other, "ftcache_device")),
            };
            let mut handle = Handle {
                engine,
                configuration: configuration.clone(),
                states: Vec::new(),
                note_count: 0,
                parts: Parted::default(),
                routes: Vec::with_capacity(configuration.geometry().model().expert_count() as usize),
                views: Views::default(),
                reading: DeviceReading::default(),
                hint_flight_count: config.hint_flight_count,
            };
            handle.configure(configuration);
            Ok(handle)
        };
        let handle = match &log {
            Some(log) => log.within(make),
            None => make(),
        }?;
        *out = Box::into_raw(Box::new(ftcache { handle: Guarded::new(handle), log }));
        Ok(())
    })
}

/// Room in a planner's residency for two flights, one behind a step and another before it has landed, and for those of
/// hints.
pub(crate) fn reserve_planned(cache: &mut residency::Cache, hint_flight_count: u32) {
    cache.reserve_hints(2 + hint_flight_count as usize);
}

/// A residency whose rows the engine moves.
fn plan_only(configuration: &Configuration, config: &ftcache_config) -> Result<Engine, Failure> {
    let geometry = configuration.geometry();
    let mut cache = residency::Cache::new(geometry);
    cache.set_eviction(configuration.eviction())?;
    cache.reserve(reserved_routes(geometry));
    reserve_planned(&mut cache, config.hint_flight_count);
    if let Some(staging) = configuration.staging() {
        cache.set_staging(staging.clone(), configuration.small_row_bytes())?;
    }
    if config.remembered_routes > 0 {
        cache.reserve_remembered(routes_of(config)?);
    }
    Ok(Engine::Planner(Box::new(Planner::new(cache))))
}

impl Handle {
    /// Takes a configuration as the one in effect, and tells what was made and what is not as it was asked for.
    pub(crate) fn configure(&mut self, configuration: &Configuration) {
        self.configuration = configuration.clone();
        let layers = configuration.geometry().model().layer_ids();
        let state = |layer: LayerId| layer_state(configuration, layer.get()).expect("a layer of the model");
        self.states = layers.map(state).collect();
        let lines = lines(configuration);
        self.note_count = lines.len() as u32;
        let geometry = self.configuration.geometry();
        let device = match &self.engine {
            Engine::Device(cache) => ftcache_core::Device::name(cache.device()),
            Engine::Planner(_) => "no device".to_owned(),
        };
        let (slots, bytes) = (geometry.slot_count(), geometry.total_bytes());
        tracing::info!(slots, bytes, pools = geometry.pools().len(), "a cache on {device}");
        for line in lines {
            tracing::warn!("{line}");
        }
    }
}

/// Whether anything that was enqueued has failed since the last look, a launch in device mode that was refused among
/// it. Allocates nothing where all is well; waits for nothing, so what is on its way may fail yet.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_check(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| match &mut handle.engine {
        Engine::Device(cache) => Ok(cache.check_device()?),
        Engine::Planner(_) => Ok(()),
    })
}

/// Returns when everything that was enqueued on any stream is done. Streams of earlier steps may be destroyed then.
/// Waits for all of it; allocates nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_synchronize(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| match &mut handle.engine {
        Engine::Device(cache) => Ok(cache.synchronize_all()?),
        Engine::Planner(_) => Ok(()),
    })
}

/// Frees a cache and its slots; NULL is accepted. Waits for everything enqueued. No other call may be inside it.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_free(cache: Option<Box<ftcache>>) {
    let _ = guard(|| {
        let Some(cache) = cache else { return Ok(()) };
        let ftcache { handle, log } = *cache;
        match log {
            Some(log) => log.within(|| drop(handle)),
            None => drop(handle),
        }
        Ok(())
    });
}

/// Runs a body inside a handle that must not be NULL, with what it says told to the handle's callback.
pub(crate) fn enter(cache: Option<&ftcache>, body: impl FnOnce(&mut Handle) -> Result<(), Failure>) -> ftcache_status {
    match cache {
        Some(ftcache { handle, log: None }) => handle.enter(body),
        Some(ftcache { handle, log: Some(log) }) => handle.enter(|handle| log.within(|| body(handle))),
        None => guard(|| Err(Failure::argument("cache is NULL"))),
    }
}
