//! A step: routes in, slots out.

use std::ffi::c_void;

use ftcache_core::{Error, LayerId, SlotId, Stream, Streams};

use crate::boundary::{Failure, SizedStruct, read_sized, reserved};
use crate::cache::{enter, ftcache};
use crate::status::ftcache_status;

/// The routes of one step as the router left them: row_count rows (tokens) of row_width ids.
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
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_routes {}

/// Where a slot for each route is written, in the routes' rows and order. This may be the ids' own memory.
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
    /// What is written for a route that is absent: a number of slot_bytes bytes that is no slot of the pool, since no
    /// slot is given out twice.
    pub absent_slot: i64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_slots {}

/// The engine's own streams. FTCACHE_DEVICE_HOST has the default stream alone, so both are NULL there.
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

/// Makes the experts of a step resident and writes a slot for each route, local to the pool of the layer.
///
/// Any number of routes is one step: an expert that is routed to twice has one slot and is copied once, and no slot
/// that the step uses is given to another expert. Copies are enqueued on the copy stream, behind what the compute
/// stream was given before; what the compute stream is given afterwards comes behind the copies. A step that names
/// another compute stream than the one before comes behind that one, which must be alive still. Nothing is waited
/// for; a step without a miss enqueues nothing, and allocates nothing if it is no wider than an earlier one or than
/// the requests of the geometry. Not to be called while a stream is being captured.
///
/// streams may be NULL: the default stream then does both.
///
/// On FTCACHE_STATUS_OUT_OF_RANGE, FTCACHE_STATUS_STEP_TOO_WIDE and FTCACHE_STATUS_NOT_ATTACHED nothing has changed. On
/// FTCACHE_STATUS_DEVICE the slots of the step's misses are free, and the step may be tried again. In every case but
/// FTCACHE_STATUS_OK the caller's slots are as they were.
///
/// # Safety
///
/// cache came from ftcache_new; routes, streams and slots point to structs of their struct_size, and the memory that
/// they name is readable and writable as they say.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_load(
    cache: *mut ftcache,
    layer: u32,
    routes: *const ftcache_routes,
    streams: *const ftcache_streams,
    slots: *const ftcache_slots,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        // SAFETY: points to a struct of its size by the caller's word.
        let routes = unsafe { read_sized(routes, "routes") }?;
        // SAFETY: as above.
        let slots = unsafe { read_sized(slots, "slots") }?;
        let streams = match streams.is_null() {
            true => Streams::one(Stream::DEFAULT),
            // SAFETY: as above.
            false => own_streams(&unsafe { read_sized(streams, "streams") }?)?,
        };
        reserved(routes.reserved, "routes->reserved")?;
        let has_absent = match routes.has_absent {
            0 => false,
            1 => true,
            other => return Err(Failure::argument(format!("routes->has_absent is {other}, not 0 or 1"))),
        };
        let ids = Grid::new(
            "routes->ids",
            "routes->id_bytes",
            routes.ids,
            routes.id_bytes,
            &routes,
            routes.row_stride_bytes,
        )?;
        let out = Grid::new(
            "slots->slots",
            "slots->slot_bytes",
            slots.slots,
            slots.slot_bytes,
            &routes,
            slots.row_stride_bytes,
        )?;
        let layer = LayerId::new(layer);
        let pool = cache.residency().pool_of(layer).map_err(Error::from)?;
        let slot_count = cache.residency().slot_count(pool);
        if has_absent {
            let absent = slots.absent_slot;
            if (0..i64::from(slot_count)).contains(&absent) {
                return Err(Failure::argument(format!("slots->absent_slot is {absent}, a slot of pool {pool}")));
            }
            // Cut to four bytes, it could come out as a slot.
            if out.value_bytes == 4 && i32::try_from(absent).is_err() {
                return Err(Failure::argument(format!("slots->absent_slot is {absent}, too much for 4 bytes")));
            }
        }
        // SAFETY: the ids are readable as `routes` says, by the caller's word.
        let values = ids.offsets().map(|offset| unsafe { ids.read(offset) });
        let placed = cache.load_ids(streams, layer, values, has_absent.then_some(routes.absent_id))?;
        for (offset, slot) in out.offsets().zip(placed) {
            let value = if *slot == SlotId::ABSENT { slots.absent_slot } else { i64::from(slot.get()) };
            // SAFETY: the slots are writable as `slots` says, by the caller's word.
            unsafe { out.write(offset, value) };
        }
        Ok(())
    })
}

fn own_streams(streams: &ftcache_streams) -> Result<Streams, Failure> {
    reserved(streams.reserved, "streams->reserved")?;
    let stream = |handle: *mut c_void| {
        // SAFETY: by the header, a stream that is named is the device's and stays alive; the host device looks it up.
        unsafe { Stream::from_raw(handle as u64) }
    };
    let compute = stream(streams.compute);
    let copy = if streams.copy.is_null() { compute } else { stream(streams.copy) };
    Ok(Streams { compute, copy })
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
        name: &str,
        bytes_name: &str,
        base: *const c_void,
        value_bytes: u32,
        routes: &ftcache_routes,
        row_stride: u64,
    ) -> Result<Self, Failure> {
        let value_bytes = match value_bytes {
            0 | 4 => 4,
            8 => 8,
            other => return Err(Failure::argument(format!("{bytes_name} is {other}, not 4 or 8"))),
        };
        // Rows of nothing are nothing, however many.
        let row_count = if routes.row_width == 0 { 0 } else { routes.row_count };
        let row_width = routes.row_width;
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
