//! What a device is made with, how its batch calls work, and what it holds: both sides of the control calls know these.

/// The driver's version where settings do not say otherwise: CUDA 13.0.
pub(crate) const DRIVER_VERSION: i32 = 13_000;

/// How the batch calls of a device work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batch {
    /// As the manual says.
    #[default]
    Right,
    /// One byte of this copy arrives wrong.
    WrongBytes {
        /// The index of the copy.
        entry: usize,
    },
    /// The bytes before and behind this copy's target are spoiled, as far as they are of the same allocation.
    TouchesNeighbours {
        /// The index of the copy.
        entry: usize,
    },
    /// The call does nothing and gives this code.
    Fails {
        /// A `CUresult`.
        code: i32,
    },
    /// A batch with a copy of fewer bytes than this is done when the call returns, and so blocks.
    BlocksOnSmallEntries {
        /// The least size that does not block.
        below_bytes: u64,
    },
}

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Chooses every order, pattern and split.
    pub seed: u64,
    /// The device's memory.
    pub memory_bytes: u64,
    /// Operations are done as they are enqueued, where they can be; otherwise only when something waits.
    pub eager: bool,
    /// Registrations may hold this much in all.
    pub register_limit_bytes: Option<u64>,
    /// One registration may hold this much.
    pub register_call_max_bytes: Option<u64>,
    /// One refused registration makes every later one fail.
    pub register_poisoned_after_refusal: bool,
    /// What one host thread has waited for, all know. Otherwise a thread knows what it has waited for itself, what was
    /// known when it first called, and what [`hand_over`](crate::client::EmulatedDevice::hand_over) told it.
    pub threads_share_order: bool,
    /// How long a wait looks for a word that nobody raises. A device would wait for ever; here it is a violation and
    /// the context is lost, so that a test says why it hangs.
    pub word_patience_ms: u64,
    /// How batch calls work.
    pub batch: Batch,
    /// Values of device attributes, by number, in place of the usual ones.
    pub attributes: Vec<(i32, i32)>,
    /// The version of the driver as far as modules go: 12080 is that of CUDA 12.8. `cuDriverGetVersion` is of no device
    /// and says the same for all.
    pub driver_version: i32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            memory_bytes: 1 << 30,
            eager: false,
            register_limit_bytes: None,
            register_call_max_bytes: None,
            register_poisoned_after_refusal: false,
            threads_share_order: false,
            word_patience_ms: 10_000,
            batch: Batch::Right,
            attributes: Vec::new(),
            driver_version: DRIVER_VERSION,
        }
    }
}

/// What a device holds just now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live allocations of device memory.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// The most that was ever allocated at a time.
    pub peak_bytes: u64,
    /// Registered ranges of host memory.
    pub registrations: u64,
    /// Their bytes.
    pub registered_bytes: u64,
    /// Host memory allocated by the driver.
    pub host_allocations: u64,
    /// Streams made and not destroyed.
    pub streams: u64,
    /// Events made and not destroyed.
    pub events: u64,
    /// Graphs.
    pub graphs: u64,
    /// Graphs that can be launched.
    pub graph_execs: u64,
    /// Modules loaded and not unloaded.
    pub modules: u64,
    /// Contexts made by `cuCtxCreate`.
    pub contexts: u64,
    /// Times the primary context is retained.
    pub primary_retains: u64,
    /// Copies ever enqueued with a side in memory that the driver does not know.
    pub pageable_copies: u64,
    /// Operations enqueued and not done.
    pub queued: u64,
}

/// [`Config`] as it crosses into the library.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawConfig {
    pub(crate) seed: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) register_limit_bytes: u64,
    pub(crate) register_call_max_bytes: u64,
    pub(crate) word_patience_ms: u64,
    pub(crate) eager: u32,
    pub(crate) register_poisoned_after_refusal: u32,
    pub(crate) threads_share_order: u32,
    pub(crate) driver_version: i32,
    pub(crate) batch: u32,
    pub(crate) batch_value: u64,
    pub(crate) attributes: *const [i32; 2],
    pub(crate) attribute_count: usize,
}

impl Batch {
    pub(crate) fn to_raw(self) -> (u32, u64) {
        match self {
            Batch::Right => (0, 0),
            Batch::WrongBytes { entry } => (1, entry as u64),
            Batch::TouchesNeighbours { entry } => (2, entry as u64),
            Batch::Fails { code } => (3, u64::from(code.cast_unsigned())),
            Batch::BlocksOnSmallEntries { below_bytes } => (4, below_bytes),
        }
    }

    pub(crate) fn from_raw(kind: u32, value: u64) -> Self {
        match kind {
            1 => Batch::WrongBytes { entry: value as usize },
            2 => Batch::TouchesNeighbours { entry: value as usize },
            3 => Batch::Fails { code: (value as u32).cast_signed() },
            4 => Batch::BlocksOnSmallEntries { below_bytes: value },
            _ => Batch::Right,
        }
    }
}

impl RawConfig {
    /// The attributes are those of the config, and are lent to it.
    pub(crate) fn new(config: &Config, attributes: &[[i32; 2]]) -> Self {
        let (batch, batch_value) = config.batch.to_raw();
        Self {
            seed: config.seed,
            memory_bytes: config.memory_bytes,
            register_limit_bytes: config.register_limit_bytes.unwrap_or(u64::MAX),
            register_call_max_bytes: config.register_call_max_bytes.unwrap_or(u64::MAX),
            word_patience_ms: config.word_patience_ms,
            eager: config.eager.into(),
            register_poisoned_after_refusal: config.register_poisoned_after_refusal.into(),
            threads_share_order: config.threads_share_order.into(),
            driver_version: config.driver_version,
            batch,
            batch_value,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
        }
    }
}
