//! What did not succeed, as C is told it: a status by which code can tell errors apart, and the message.

use ftcache_core::policy::{BytesError, ConfigurationError, CpuLayersError, CurvesError, ProfileError, RatesError};
use ftcache_core::transfer::{ArenaError, AttachError, LinkError, LoadArenaError, RegisterError};
use ftcache_core::{
    BankError, DeviceError, DeviceModeError, DriverError, EnsureError, Error, EvictionError, GeometryError, PinError,
    PlannerError, PoolsError, RebuildError, SnapshotError, StageError,
};

use ftcache_trace::TraceError;

use crate::status::ftcache_status;

/// What a body returns when it does not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: ftcache_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: ftcache_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// A parameter that cannot be taken.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(ftcache_status::InvalidArgument, message)
    }

    /// Something that does not exist.
    pub(crate) fn range(message: impl Into<String>) -> Self {
        Self::new(ftcache_status::OutOfRange, message)
    }

    /// Something that cannot be done with such a cache.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ftcache_status::Unsupported, message)
    }
}

fn of_device(error: &DeviceError) -> ftcache_status {
    match error {
        DeviceError::OutOfMemory { .. } => ftcache_status::OutOfMemory,
        DeviceError::UnknownHandle { .. } | DeviceError::Arena { .. } | DeviceError::ArenaAlignment { .. } => {
            ftcache_status::InvalidArgument
        }
        DeviceError::Capturing { .. } | DeviceError::OnDevice { .. } => ftcache_status::OutOfOrder,
        DeviceError::NoKernels { .. } => ftcache_status::Unsupported,
        _ => ftcache_status::Device,
    }
}

fn of_step(error: &EnsureError) -> ftcache_status {
    match error {
        EnsureError::StepTooWide { .. } => ftcache_status::StepTooWide,
        EnsureError::AbsentId { .. } | EnsureError::TokenReused { .. } => ftcache_status::InvalidArgument,
        EnsureError::InFlight { .. } => ftcache_status::InFlight,
        EnsureError::AnswerGone { .. } | EnsureError::NothingToAccept { .. } => ftcache_status::OutOfOrder,
        EnsureError::LastStep { .. } => ftcache_status::Unsatisfiable,
        _ => ftcache_status::OutOfRange,
    }
}

fn of_bank(error: &BankError) -> ftcache_status {
    match error {
        BankError::NotAttached { .. } => ftcache_status::NotAttached,
        BankError::UnknownLayer { .. } | BankError::UnknownBank { .. } => ftcache_status::OutOfRange,
        _ => ftcache_status::InvalidArgument,
    }
}

fn of_pin(error: &PinError) -> ftcache_status {
    match error {
        PinError::Unknown(_) => ftcache_status::OutOfRange,
        _ => ftcache_status::Unsatisfiable,
    }
}

fn of_stage(error: &StageError) -> ftcache_status {
    match error {
        StageError::Layer(error) => of_step(error),
        StageError::NoStaging | StageError::NoOverlap => ftcache_status::Unsupported,
        StageError::OtherPools { .. } => ftcache_status::InvalidArgument,
        _ => ftcache_status::OutOfOrder,
    }
}

fn of_pools(error: &PoolsError) -> ftcache_status {
    match error {
        PoolsError::Pinned(error) => of_pin(error),
        PoolsError::ChunkOpen => ftcache_status::OutOfOrder,
        _ => ftcache_status::InvalidArgument,
    }
}

fn of_snapshot(error: &SnapshotError) -> ftcache_status {
    match error {
        SnapshotError::NotEmpty { .. } | SnapshotError::ChunkOpen => ftcache_status::OutOfOrder,
        SnapshotError::LastStep(_) => ftcache_status::Unsatisfiable,
        _ => ftcache_status::InvalidArgument,
    }
}

fn of_device_mode(error: &DeviceModeError) -> ftcache_status {
    match error {
        DeviceModeError::Device(error) => of_device(error),
        DeviceModeError::Step(error) => of_step(error),
        DeviceModeError::Bank(error) => of_bank(error),
        DeviceModeError::NotDirect { .. } | DeviceModeError::NoStaging | DeviceModeError::Unsupported { .. } => {
            ftcache_status::Unsupported
        }
        DeviceModeError::OnDevice | DeviceModeError::OnHost | DeviceModeError::ChunkOpen => ftcache_status::OutOfOrder,
        DeviceModeError::UnknownBuffer { .. } => ftcache_status::OutOfRange,
        _ => ftcache_status::InvalidArgument,
    }
}

fn of_arena(error: &ArenaError) -> ftcache_status {
    match error {
        ArenaError::Device(error) => of_device(error),
        ArenaError::UnknownFile { .. } | ArenaError::UnknownCpuLayer { .. } => ftcache_status::OutOfRange,
        ArenaError::NoBanks
        | ArenaError::DuplicateBank { .. }
        | ArenaError::EmptyBank { .. }
        | ArenaError::TooLarge { .. }
        | ArenaError::EmptyPiece { .. }
        | ArenaError::Gap { .. }
        | ArenaError::Overlap { .. }
        | ArenaError::Outside { .. } => ftcache_status::InvalidArgument,
        _ => ftcache_status::Host,
    }
}

fn status_of(error: &Error) -> ftcache_status {
    match error {
        Error::Ensure(error) => of_step(error),
        Error::Pin(error) => of_pin(error),
        Error::Bank(error) => of_bank(error),
        Error::Device(error) => of_device(error),
        Error::Apply(error) | Error::Later(error) => of_device(&error.source),
        Error::LoadArena(LoadArenaError::Arena(error)) => of_arena(error),
        Error::LoadArena(LoadArenaError::Attach(AttachError::Bank(error))) => of_bank(error),
        Error::LoadArena(LoadArenaError::Attach(AttachError::Device(error))) => of_device(error),
        Error::Chunk(error) => of_stage(error),
        Error::Stage(error) => of_device(&error.source),
        Error::Pools(error) => of_pools(error),
        Error::Rebuild(RebuildError::Refused(error) | RebuildError::Restored(error) | RebuildError::Emptied(error)) => {
            of_device(error)
        }
        Error::Snapshot(error) => of_snapshot(error),
        Error::BringBack(error) => of_device(&error.source),
        Error::DeviceMode(error) => of_device_mode(error),
        Error::Fault(_) => ftcache_status::LaunchRefused,
        Error::Unavailable(_) => ftcache_status::Unavailable,
        Error::NoHints => ftcache_status::Unsupported,
        Error::UnknownPool { .. } | Error::UnknownSlot { .. } => ftcache_status::OutOfRange,
        Error::OtherLayouts | Error::RowBytes { .. } | Error::Eviction(_) => ftcache_status::InvalidArgument,
        _ => ftcache_status::Device,
    }
}

/// An error whose status depends on which one it is.
macro_rules! by {
    ($($error:ty => $status:expr),* $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let status: fn(&$error) -> ftcache_status = $status;
                Self::new(status(&error), error.to_string())
            }
        })*
    };
}

by! {
    Error => status_of,
    EnsureError => of_step,
    PinError => of_pin,
    StageError => of_stage,
    PoolsError => of_pools,
    SnapshotError => of_snapshot,
    DeviceError => of_device,
    GeometryError => |_| ftcache_status::Unsatisfiable,
    ConfigurationError => |_| ftcache_status::Unsatisfiable,
    BytesError => |_| ftcache_status::InvalidArgument,
    EvictionError => |_| ftcache_status::InvalidArgument,
    CpuLayersError => |_| ftcache_status::InvalidArgument,
    ProfileError => |_| ftcache_status::InvalidArgument,
    CurvesError => |_| ftcache_status::InvalidArgument,
    RatesError => |_| ftcache_status::InvalidArgument,
    TraceError => |error| match error {
        // Nothing has been recorded yet.
        TraceError::Zero { key: "tokens" } => ftcache_status::OutOfOrder,
        TraceError::NoMemory { .. } | TraceError::Write { .. } => ftcache_status::Host,
        _ => ftcache_status::InvalidArgument,
    },
    DriverError => |error| match error {
        DriverError::NotFound { .. } | DriverError::MissingSymbol { .. } | DriverError::TooOld { .. } => {
            ftcache_status::Unsupported
        }
        DriverError::UnknownDevice { .. } => ftcache_status::OutOfRange,
        DriverError::NoContext => ftcache_status::OutOfOrder,
        _ => ftcache_status::Device,
    },
    ArenaError => of_arena,
    RegisterError => |error| match error {
        RegisterError::Device(error) => of_device(error),
        RegisterError::Overlap { .. } | RegisterError::TooLarge { .. } | RegisterError::Unknown { .. } => {
            ftcache_status::InvalidArgument
        }
        _ => ftcache_status::Host,
    },
    LinkError => |error| match error {
        LinkError::Attached { .. } => ftcache_status::OutOfOrder,
        LinkError::Device(error) => of_device(error),
        _ => ftcache_status::Device,
    },
    PlannerError => |error| match error {
        PlannerError::Ensure(error) => of_step(error),
        PlannerError::Stage(error) => of_stage(error),
        PlannerError::Snapshot(error) => of_snapshot(error),
        PlannerError::InFlight => ftcache_status::InFlight,
        _ => ftcache_status::OutOfOrder,
    },
}
