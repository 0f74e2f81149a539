//! What an engine says of a step whose routes lie on the device: where, in which form, and where the answer goes.
//!
//! *Unsafe* only in saying that an address is the engine's to give.

use bytemuck::Zeroable;
use ftcache_policy::{FetchOrder, FetchRule};
use ftcache_residency::{Cache, Misses, Phase, Step};

use super::DeviceModeError;
use super::abi;
use super::tables::DeviceTables;

/// Neighbouring numbers in rows, in memory of the engine's on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceRows {
    address: u64,
    stride: u64,
}

impl DeviceRows {
    /// Rows of which the first lies at an address, and each `stride` bytes after the one before; 0 for rows without
    /// gaps.
    ///
    /// # Safety
    ///
    /// As many rows and numbers as a step says lie there, in memory of the device or in pinned memory that it
    /// reaches at this address; and stay there until every launch that was told of them is done, which for one that was
    /// captured is when its graph is launched no more. Nobody else writes them meanwhile but in the order of its
    /// streams.
    pub const unsafe fn from_raw(address: u64, stride: u64) -> Self {
        Self { address, stride }
    }
}

/// Bytes of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdWidth {
    /// 32 bits, signed.
    Four,
    /// 64 bits, signed.
    Eight,
}

impl IdWidth {
    fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    fn holds(self, value: i64) -> bool {
        self == Self::Eight || i32::try_from(value).is_ok()
    }
}

/// The routes of a step, as they lie in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceIds {
    /// Where. A view of an arg-sort's result has a stride of as many ids as the layer has experts.
    pub rows: DeviceRows,
    /// Rows, such as one for each request.
    pub row_count: u64,
    /// Routes of a row.
    pub per_row: u32,
    /// Bytes of an id.
    pub width: IdWidth,
    /// The id of a route that is not for this device.
    pub absent: Option<i64>,
}

/// Where the answer goes and what it says of routes that have no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceAnswers {
    /// Where slots go, one for each route, as wide as its id; `None`: in place of the routes. Other rows than the
    /// routes' must not overlap them.
    pub slots: Option<DeviceRows>,
    /// What stands for a route that the CPU computes.
    pub cpu: i64,
    /// What stands for a route that is not for this device.
    pub absent: i64,
    /// One row of as many 32-bit numbers as the layer has experts: for each its slot, or -1.
    pub map: Option<DeviceRows>,
}

impl Default for DeviceAnswers {
    /// In place of the routes, and -1 where there is no slot.
    fn default() -> Self {
        Self { slots: None, cpu: -1, absent: -1, map: None }
    }
}

/// Numbers of the engine's, one for each route, to be split by where the route is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceWeights {
    /// Where they lie.
    pub source: DeviceRows,
    /// Where those of routes with a slot go, and zeros for others; it may be the source.
    pub device: Option<DeviceRows>,
    /// Where those of routes that the CPU computes go, and zeros for others; it may be the source instead.
    pub cpu: Option<DeviceRows>,
    /// Bytes of each: 2 or 4. They are copied as they are.
    pub bytes: u32,
}

/// What a hybrid step says beside its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceSplit {
    /// Where the experts go that the CPU computes, one for each route, as wide as its id.
    pub cpu_ids: Option<DeviceRows>,
    /// What stands there for routes that the CPU does not compute.
    pub cpu_none: i64,
    /// Weights to be split.
    pub weights: Option<DeviceWeights>,
}

impl Default for DeviceSplit {
    /// Nothing beside the slots.
    fn default() -> Self {
        Self { cpu_ids: None, cpu_none: -1, weights: None }
    }
}

/// A step whose routes lie on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStep {
    /// Its layer, phase, and what becomes of misses. It has no token and is no verify step; those are for the host.
    pub step: Step,
    /// Its routes.
    pub ids: DeviceIds,
    /// Where the answer goes.
    pub answers: DeviceAnswers,
    /// What a hybrid step says beside; not looked at otherwise.
    pub split: DeviceSplit,
}

impl DeviceStep {
    /// A step whose routes are rewritten to slots in place.
    pub fn new(step: impl Into<Step>, ids: DeviceIds) -> Self {
        let (answers, split) = (DeviceAnswers::default(), DeviceSplit::default());
        Self { step: step.into(), ids, answers, split }
    }
}

/// A step as its kernel is told of it. One that is not hybrid has only the admission.
pub(super) struct Told {
    pub(super) told: abi::HybridAdmission,
    pub(super) is_hybrid: bool,
}

/// The most routes: positions are 32 bits.
const ROUTES_MAX: u64 = 1 << 31;

impl DeviceTables {
    /// Checks a step and puts it into the kernel's words.
    pub(super) fn tell(&self, residency: &Cache, asked: &DeviceStep) -> Result<Told, DeviceModeError> {
        let DeviceStep { step, ids, answers, split } = asked;
        let Step { layer, phase, token, misses, continues } = *step;
        let pool = residency.pool_of(layer)?;
        let unsupported = |what| Err(DeviceModeError::Unsupported { layer, what });
        if token.is_some() {
            return unsupported("a step token");
        }
        if phase == Phase::Verify {
            return unsupported("a verify step");
        }
        if continues {
            return unsupported("a step in parts");
        }
        let expert_count = residency.expert_count();
        let range = self.pool_range(pool);
        let slot_count = range.slot_count;
        let Some(width) = ids.row_count.checked_mul(u64::from(ids.per_row)).filter(|&count| count <= ROUTES_MAX) else {
            let given = ids.row_count.saturating_mul(u64::from(ids.per_row));
            return Err(DeviceModeError::TooManyRoutes { given, most: ROUTES_MAX });
        };
        if let Some(id) = ids.absent.filter(|id| (0..i64::from(expert_count)).contains(id)) {
            return Err(ftcache_residency::EnsureError::AbsentId { id, expert_count }.into());
        }
        let id_bytes = ids.width.bytes();
        let shape = Shape { row_count: ids.row_count, per_row: ids.per_row, is_empty: width == 0 };
        let route_stride = shape.stride("routes", ids.rows, id_bytes)?;
        let target = match answers.slots {
            Some(rows) => (rows.address, shape.stride("slots", rows, id_bytes)?),
            None => (ids.rows.address, route_stride),
        };
        // A value that no route can be given is nobody's.
        let written = [
            ("the value for the CPU", answers.cpu, matches!(misses, Misses::Hybrid { .. })),
            ("the value for absent routes", answers.absent, ids.absent.is_some()),
        ];
        for (what, value, _) in written.into_iter().filter(|&(_, _, is_used)| is_used) {
            if (0..i64::from(slot_count)).contains(&value) {
                return Err(DeviceModeError::ValueIsSlot { what, value, slot_count });
            }
            check_fits(what, value, ids.width)?;
        }
        if let Some(map) = answers.map {
            check_address("the map", map.address, 4)?;
        }
        let admission = abi::Admission {
            tables: self.told(),
            generation: self.generation(),
            pool: range,
            layer: layer.get(),
            phase: phase as u32,
            routes: abi::Routes {
                base: ids.rows.address,
                row_count: ids.row_count,
                row_stride: route_stride,
                per_row: ids.per_row,
                id_bytes,
                absent: ids.absent.unwrap_or(0),
                has_absent: ids.absent.is_some().into(),
                reserved: 0,
            },
            answers: abi::Answers {
                base: target.0,
                row_stride: target.1,
                cpu: answers.cpu,
                absent: answers.absent,
                map: answers.map.map_or(0, |map| map.address),
            },
            scratch: self.scratch(),
        };
        let Misses::Hybrid { fetch, order } = misses else {
            return Ok(Told {
                told: abi::HybridAdmission { admission, ..abi::HybridAdmission::zeroed() },
                is_hybrid: false,
            });
        };
        let (rule, number) = match fetch.rule {
            FetchRule::UpTo(most) => (abi::UP_TO, most),
            FetchRule::MinWait(fraction) => (abi::MIN_WAIT, fraction.q16()),
            FetchRule::PreferFetch(fraction) => (abi::PREFER_FETCH, fraction.q16()),
            FetchRule::Carry(fraction) => (abi::CARRY, fraction.q16()),
        };
        let order = match order {
            FetchOrder::Recency => abi::BY_RECENCY,
            FetchOrder::LowestId => abi::LOWEST_ID,
        };
        let (mut cpu_ids, mut cpu_ids_stride) = (0, 0);
        if let Some(rows) = split.cpu_ids {
            (cpu_ids, cpu_ids_stride) = (rows.address, shape.stride("CPU experts", rows, id_bytes)?);
            let (what, value) = ("the value for no CPU expert", split.cpu_none);
            if (0..i64::from(expert_count)).contains(&value) {
                return Err(DeviceModeError::ValueIsExpert { what, value, expert_count });
            }
            check_fits(what, value, ids.width)?;
            if cpu_ids == target.0 && width > 0 {
                return Err(DeviceModeError::SamePlace { one: "slots", other: "CPU experts" });
            }
        }
        let weights = split.weights.map_or(Ok(abi::Weights::zeroed()), |weights| shape.weights(&weights))?;
        let told = abi::HybridAdmission {
            admission,
            fetch: abi::FetchRule { rule, order, number, most: fetch.most.unwrap_or(u32::MAX) },
            cpu_ids,
            cpu_ids_stride,
            cpu_none: split.cpu_none,
            weights,
        };
        Ok(Told { told, is_hybrid: true })
    }
}

/// The shape that routes share with all that stands beside them.
struct Shape {
    row_count: u64,
    per_row: u32,
    is_empty: bool,
}

impl Shape {
    /// The stride of rows of numbers, once address and stride are known to do.
    fn stride(&self, what: &'static str, rows: DeviceRows, width: u32) -> Result<u64, DeviceModeError> {
        let row_bytes = u64::from(self.per_row) * u64::from(width);
        let stride = if rows.stride == 0 { row_bytes } else { rows.stride };
        if self.is_empty {
            return Ok(stride);
        }
        check_address(what, rows.address, width)?;
        if !stride.is_multiple_of(u64::from(width)) {
            return Err(DeviceModeError::OddStride { what, stride, width });
        }
        if self.row_count > 1 && stride < row_bytes {
            return Err(DeviceModeError::Stride { what, stride, row_bytes });
        }
        Ok(stride)
    }

    fn weights(&self, weights: &DeviceWeights) -> Result<abi::Weights, DeviceModeError> {
        let DeviceWeights { source, device, cpu, bytes } = *weights;
        if !matches!(bytes, 2 | 4) {
            return Err(DeviceModeError::WeightBytes { given: bytes });
        }
        let place = |what, rows: Option<DeviceRows>| match rows {
            Some(rows) => Ok((rows.address, self.stride(what, rows, bytes)?)),
            None => Ok::<_, DeviceModeError>((0, 0)),
        };
        let source_stride = self.stride("weights", source, bytes)?;
        let (device, device_stride) = place("the device's weights", device)?;
        let (cpu, cpu_stride) = place("the CPU's weights", cpu)?;
        if device == cpu && device != 0 && !self.is_empty {
            return Err(DeviceModeError::SamePlace { one: "the device's weights", other: "the CPU's weights" });
        }
        let source = source.address;
        Ok(abi::Weights { source, source_stride, device, device_stride, cpu, cpu_stride, bytes, reserved: 0 })
    }
}

fn check_address(what: &'static str, address: u64, width: u32) -> Result<(), DeviceModeError> {
    if address == 0 {
        return Err(DeviceModeError::NoAddress { what });
    }
    if !address.is_multiple_of(u64::from(width)) {
        return Err(DeviceModeError::Misaligned { what, address, width });
    }
    Ok(())
}

fn check_fits(what: &'static str, value: i64, width: IdWidth) -> Result<(), DeviceModeError> {
    if width.holds(value) { Ok(()) } else { Err(DeviceModeError::ValueTooWide { what, value, width: width.bytes() }) }
}
