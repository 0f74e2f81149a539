//! Routes in and slots out, as they lie in the caller's memory.

use std::ffi::c_void;

use ftcache_core::residency::{Misses, Plan};
use ftcache_core::{LayerId, Step};

use crate::boundary::{SizedStruct, flag, read_sized, reserved};
use crate::cache::Handle;
use crate::failure::Failure;

/// The routes of one step as the router left them, in host memory: row_count rows (tokens) of row_width ids.
///
/// Rows may lie any distance apart: a view of an arg-sort result has row_stride_bytes of 4 * expert_count.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_routes {
    /// sizeof(ftcache_routes).
    pub struct_size: u32,
    /// Bytes of an id, read as a signed integer: 4 or 8; 0 means 4.
    pub id_bytes: u32,
    /// The first id. May be NULL if there are no routes. Any alignment.
    pub ids: *const c_void,
    /// Rows.
    pub row_count: u64,
    /// Ids in a row.
    pub row_width: u64,
    /// Bytes from one row's first id to the next row's; 0 means rows without gaps.
    pub row_stride_bytes: u64,
    /// The id of a route that is not for this device, if has_absent is 1. It must not be an expert's.
    pub absent_id: i64,
    /// 1 if ids may be absent_id; 0 if every id must be an expert.
    pub has_absent: u32,
    /// Where whole experts are divided between ranks: the number of this rank's first one.
    pub first_expert: u32,
    /// Experts of a layer over all ranks, if ids count those: this cache's are as many as its model has, from
    /// first_expert on, and routes to others are absent. Rank r of n then owns those from r * whole_count / n on. 0:
    /// every id is this cache's.
    pub whole_count: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_routes {}

/// Where a slot for each route is written, in host memory, in the routes' rows and order. This may be the ids' own
/// memory: row_stride_bytes and slot_bytes are then those of the routes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slots {
    /// sizeof(ftcache_slots).
    pub struct_size: u32,
    /// Bytes of a slot number: 4 or 8; 0 means 4.
    pub slot_bytes: u32,
    /// The first slot number. May be NULL if there are no routes. Any alignment.
    pub slots: *mut c_void,
    /// Bytes from one row's first slot to the next row's; 0 means rows without gaps.
    pub row_stride_bytes: u64,
    /// What is written for a route that is absent, or in another part of a partitioned step. It must not be the number
    /// of a slot of the pool, which is checked where it may be written. -1 is what most kernels skip.
    pub absent_slot: i64,
    /// What is written for a route that the CPU computes, in a hybrid step: as above.
    pub cpu_slot: i64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_slots {}

/// Routes and slots of one call, checked before anything is decided.
pub(crate) struct Call {
    pub(crate) ids: Ids,
    pub(crate) out: Option<Out>,
}

/// Ids in the caller's memory, and which of them are this cache's.
pub(crate) struct Ids {
    grid: Grid,
    absent: Option<i64>,
    rank: Option<Rank>,
}

/// The experts of one rank among all.
#[derive(Debug, Clone, Copy)]
struct Rank {
    first: u32,
    whole: u32,
    own: u32,
}

/// Where slots go, and what stands for a route that has none.
pub(crate) struct Out {
    grid: Grid,
    absent: i64,
    cpu: i64,
}

/// Rows and routes of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    row_count: u64,
    row_width: u64,
}

impl Out {
    /// # Safety
    ///
    /// `slots` is NULL or points to a struct of its size.
    pub(crate) unsafe fn read(
        slots: *const ftcache_slots,
        shape: Shape,
        handle: &Handle,
        step: &Step,
        may_be_absent: bool,
    ) -> Result<Option<Self>, Failure> {
        if slots.is_null() {
            return Ok(None);
        }
        // SAFETY: by this function's own promise.
        let slots = unsafe { read_sized(slots, "slots") }?;
        let names = ("slots->slots", "slots->slot_bytes");
        let grid = Grid::new(names, slots.slots, slots.slot_bytes, shape, slots.row_stride_bytes)?;
        let residency = handle.residency();
        let pool = residency.pool_of(step.layer)?;
        let slot_count = residency.slot_count(pool);
        let check = |name: &str, value: i64| {
            if (0..i64::from(slot_count)).contains(&value) {
                return Err(Failure::argument(format!("slots->{name} is {value}, a slot of pool {pool}")));
            }
            // Cut to four bytes, it could come out as a slot.
            if grid.value_bytes == 4 && i32::try_from(value).is_err() {
                return Err(Failure::argument(format!("slots->{name} is {value}, too much for 4 bytes")));
            }
            Ok(())
        };
        if may_be_absent {
            check("absent_slot", slots.absent_slot)?;
        }
        if step.misses != Misses::Fetched {
            check("cpu_slot", slots.cpu_slot)?;
        }
        Ok(Some(Self { grid, absent: slots.absent_slot, cpu: slots.cpu_slot }))
    }

    /// # Safety
    ///
    /// The slots' memory is writable.
    pub(crate) unsafe fn write(&self, plan: &Plan) {
        for (offset, value) in self.grid.offsets().zip(plan.slot_numbers(self.absent, self.cpu)) {
            // SAFETY: by this function's own promise, and the offset is the grid's.
            unsafe { self.grid.write(offset, value) };
        }
    }
}

impl Call {
    /// # Safety
    ///
    /// `routes` and `slots` point to structs of their size, or `slots` is NULL.
    pub(crate) unsafe fn read(
        routes: *const ftcache_routes,
        slots: *const ftcache_slots,
        handle: &Handle,
        step: &Step,
    ) -> Result<Self, Failure> {
        // SAFETY: by this function's own promise.
        let ids = unsafe { Ids::read(routes, handle, step.layer) }?;
        // SAFETY: as above.
        let out = unsafe { Out::read(slots, ids.shape(), handle, step, ids.may_be_absent()) }?;
        if let Some(out) = &out {
            out.grid.check_place(&ids.grid)?;
        }
        Ok(Self { ids, out })
    }
}

/// What stands for a route to another rank's expert once ids are this cache's.
const ELSEWHERE: i64 = -1;

impl Ids {
    /// # Safety
    ///
    /// `routes` points to a struct of its size, and its ids are readable as it says.
    pub(crate) unsafe fn read(routes: *const ftcache_routes, handle: &Handle, layer: LayerId) -> Result<Self, Failure> {
        // SAFETY: by this function's own promise.
        let routes = unsafe { read_sized(routes, "routes") }?;
        reserved(routes.reserved, "routes->reserved")?;
        let absent = flag(routes.has_absent, "routes->has_absent")?.then_some(routes.absent_id);
        let shape = Shape { row_count: routes.row_count, row_width: routes.row_width };
        let names = ("routes->ids", "routes->id_bytes");
        let grid = Grid::new(names, routes.ids, routes.id_bytes, shape, routes.row_stride_bytes)?;
        let (first, whole, own) = (routes.first_expert, routes.whole_count, handle.residency().expert_count());
        if whole == 0 {
            return match first {
                0 => Ok(Self { grid, absent, rank: None }),
                _ => Err(Failure::argument(format!("routes->first_expert is {first}, and whole_count is 0"))),
            };
        }
        if u64::from(first) + u64::from(own) > u64::from(whole) {
            let message = format!("routes->first_expert is {first}, and {own} from there on are not among {whole}");
            return Err(Failure::argument(message));
        }
        if let Some(id) = absent.filter(|id| (0..i64::from(whole)).contains(id)) {
            return Err(Failure::argument(format!("routes->absent_id is {id}, an expert of 0..{whole}")));
        }
        // An id that is nobody's must not pass for another rank's.
        for (route, offset) in grid.offsets().enumerate() {
            // SAFETY: the ids are readable, by this function's own promise.
            let id = unsafe { grid.read(offset) };
            if Some(id) != absent && !(0..i64::from(whole)).contains(&id) {
                let message = format!("layer {layer}: route {route} is {id}, which is no expert of 0..{whole}");
                return Err(Failure::range(message));
            }
        }
        Ok(Self { grid, absent, rank: Some(Rank { first, whole, own }) })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.grid.shape()
    }

    pub(crate) fn may_be_absent(&self) -> bool {
        self.absent.is_some() || self.rank.is_some_and(|rank| rank.own < rank.whole)
    }

    /// The id that stands for an absent route among [`values`](Self::values).
    pub(crate) fn absent_value(&self) -> Option<i64> {
        if self.rank.is_some() { Some(ELSEWHERE) } else { self.absent }
    }

    /// Every id, as this cache counts its experts.
    ///
    /// # Safety
    ///
    /// The ids' memory is readable.
    pub(crate) unsafe fn values(&self) -> impl Iterator<Item = i64> + '_ {
        self.grid.offsets().map(|offset| {
            // SAFETY: by this function's own promise, and the offset is the grid's.
            let id = unsafe { self.grid.read(offset) };
            let Some(Rank { first, own, .. }) = self.rank else { return id };
            // It was seen to be one of all ranks' experts, or the absent one, which may be any number.
            let local = if Some(id) == self.absent { ELSEWHERE } else { id - i64::from(first) };
            if (0..i64::from(own)).contains(&local) { local } else { ELSEWHERE }
        })
    }
}

/// Every id of routes as the router left them, row by row, and how many a row has.
///
/// # Safety
///
/// `routes` points to a struct of its size, and its ids are readable as it says, through the iterator's life.
pub(crate) unsafe fn ids_of(routes: *const ftcache_routes) -> Result<(u64, impl Iterator<Item = i64>), Failure> {
    // SAFETY: by this function's own promise.
    let routes = unsafe { read_sized(routes, "routes") }?;
    let shape = Shape { row_count: routes.row_count, row_width: routes.row_width };
    let names = ("routes->ids", "routes->id_bytes");
    let grid = Grid::new(names, routes.ids, routes.id_bytes, shape, routes.row_stride_bytes)?;
    // SAFETY: by this function's own promise, and the offset is the grid's.
    Ok((routes.row_width, grid.offsets().map(move |offset| unsafe { grid.read(offset) })))
}

/// Rows of integers in the caller's memory.
struct Grid {
    base: *mut u8,
    value_bytes: usize,
    row_count: usize,
    row_width: usize,
    row_stride: usize,
}

impl Grid {
    /// Checks everything about a grid that can be checked without looking at its memory.
    fn new(
        (name, bytes_name): (&str, &str),
        base: *const c_void,
        value_bytes: u32,
        Shape { row_count, row_width }: Shape,
        row_stride: u64,
    ) -> Result<Self, Failure> {
        let value_bytes = match value_bytes {
            0 | 4 => 4,
            8 => 8,
            other => return Err(Failure::argument(format!("{bytes_name} is {other}, not 4 or 8"))),
        };
        // Rows of nothing are nothing, however many.
        let row_count = if row_width == 0 { 0 } else { row_count };
        let packed = row_width.checked_mul(value_bytes);
        let row_stride = if row_stride == 0 { packed } else { Some(row_stride) };
        let extent = row_stride.and_then(|stride| stride.checked_mul(row_count.max(1))).zip(packed);
        let extent = extent.and_then(|(rows, row)| rows.checked_add(row)).filter(|&bytes| bytes <= isize::MAX as u64);
        let (Some(_), Some(row_stride), Some(packed)) = (extent, row_stride, packed) else {
            return Err(Failure::argument(format!("{name}: {row_count} rows of {row_width} do not fit in memory")));
        };
        if row_count > 1 && row_stride < packed {
            let message = format!("{name}: a row stride of {row_stride} bytes is less than the row's {packed}");
            return Err(Failure::argument(message));
        }
        if base.is_null() && row_count > 0 && row_width > 0 {
            return Err(Failure::argument(format!("{name} is NULL, with {row_count} rows of {row_width}")));
        }
        Ok(Self {
            base: base.cast_mut().cast(),
            value_bytes: value_bytes as usize,
            row_count: row_count as usize,
            row_width: row_width as usize,
            row_stride: row_stride as usize,
        })
    }

    fn shape(&self) -> Shape {
        Shape { row_count: self.row_count as u64, row_width: self.row_width as u64 }
    }

    /// Slots in the ids' own memory lie as the ids do: with other rows they would overwrite one another's.
    fn check_place(&self, ids: &Self) -> Result<(), Failure> {
        if self.base != ids.base || self.row_count == 0 {
            return Ok(());
        }
        if self.value_bytes != ids.value_bytes {
            let (slot, id) = (self.value_bytes, ids.value_bytes);
            let message = format!("slots->slots is routes->ids, with slots of {slot} bytes in place of ids of {id}");
            return Err(Failure::argument(message));
        }
        if self.row_count > 1 && self.row_stride != ids.row_stride {
            let message = format!(
                "slots->slots is routes->ids, with rows {} bytes apart in place of rows {} bytes apart",
                self.row_stride, ids.row_stride
            );
            return Err(Failure::argument(message));
        }
        Ok(())
    }

    /// Byte offset of each value, row by row.
    fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (width, stride, bytes) = (self.row_width, self.row_stride, self.value_bytes);
        (0..self.row_count).flat_map(move |row| (0..width).map(move |column| row * stride + column * bytes))
    }

    /// # Safety
    ///
    /// The grid's memory is readable, and `offset` came from `offsets`.
    unsafe fn read(&self, offset: usize) -> i64 {
        let at = self.base.wrapping_add(offset);
        match self.value_bytes {
            // SAFETY: by this function's own promise; any alignment.
            4 => i64::from(unsafe { at.cast::<i32>().read_unaligned() }),
            // SAFETY: as above.
            _ => unsafe { at.cast::<i64>().read_unaligned() },
        }
    }

    /// # Safety
    ///
    /// The grid's memory is writable, and `offset` came from `offsets`.
    unsafe fn write(&self, offset: usize, value: i64) {
        let at = self.base.wrapping_add(offset);
        match self.value_bytes {
            // SAFETY: by this function's own promise; any alignment.
            4 => unsafe { at.cast::<i32>().write_unaligned(value as i32) },
            // SAFETY: as above.
            _ => unsafe { at.cast::<i64>().write_unaligned(value) },
        }
    }
}
