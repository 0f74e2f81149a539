//! Device memory, and what an address is.

use std::ffi::{c_int, c_void};

use crate::codes::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::session::{in_context, put};
use crate::worlds;

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    in_context("cuMemAlloc_v2", |session| {
        session.unsafe_in_capture()?;
        if bytes == 0 || address.is_null() {
            return Err(session.refuse(INVALID_VALUE, "no bytes or nowhere to say where"));
        }
        let context = session.context;
        let base = session.memory.allocate(bytes as u64, context).ok_or(OUT_OF_MEMORY)?;
        session.history.forget_range(base, bytes as u64);
        put(address, base)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    in_context("cuMemFree_v2", |session| {
        // Freeing nothing is no mistake of anybody's.
        if address == 0 {
            return Ok(());
        }
        session.unsafe_in_capture()?;
        let context = session.context;
        let live = session.memory.holding(address).filter(|live| live.base == address && live.context == context);
        let Some(bytes) = live.map(|live| live.bytes) else {
            return Err(session
                .refuse(INVALID_VALUE, &format!("{address:#x} is not the base of an allocation of this context")));
        };
        session.wait_for_context()?;
        let mut damage = Vec::new();
        if !session.memory.free(address, &mut damage) {
            return Err(session.refuse(INVALID_VALUE, &format!("{address:#x} was freed by two threads at a time")));
        }
        session.history.forget_range(address, bytes);
        session.words.retain(|word, _| *word < address || *word >= address + bytes);
        damage.into_iter().for_each(|text| session.violation(text));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    in_context("cuMemGetInfo_v2", |session| {
        let (limit, used) = (session.memory.limit_bytes, session.memory.used_bytes);
        put(free, limit.saturating_sub(used) as usize)?;
        put(total, limit as usize)
    })
}

/// What is known of an address: context, memory type, device, base, bytes.
struct Place {
    context: u64,
    memory_type: u32,
    ordinal: i32,
    base: u64,
    bytes: u64,
}

fn place_in(state: &crate::state::State, address: u64) -> Option<Place> {
    let ordinal = state.ordinal;
    if let Some(live) = state.memory.holding(address) {
        // CU_MEMORYTYPE_DEVICE
        return Some(Place { context: live.context, memory_type: 2, ordinal, base: live.base, bytes: live.bytes });
    }
    let pinned = state.host.holding(address)?;
    // CU_MEMORYTYPE_HOST
    Some(Place { context: pinned.context, memory_type: 1, ordinal, base: pinned.base, bytes: pinned.bytes })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: u64) -> c_int {
    let mut elsewhere = false;
    let code = in_context("cuPointerGetAttribute", |session| match place_in(session, address) {
        Some(place) => tell(data, attribute, address, &place),
        None => {
            elsewhere = true;
            Err(INVALID_VALUE)
        }
    });
    if !elsewhere {
        return code;
    }
    // An address of another device; locks of two worlds are never held together.
    let found = worlds::all_worlds().into_iter().find_map(|(_, world)| place_in(&world.lock(), address));
    found.map_or(code, |place| tell(data, attribute, address, &place).err().unwrap_or(0))
}

fn tell(data: *mut c_void, attribute: c_int, address: u64, place: &Place) -> Result<(), i32> {
    match attribute {
        1 => put(data.cast::<u64>(), place.context),
        2 => put(data.cast::<u32>(), place.memory_type),
        // CU_POINTER_ATTRIBUTE_DEVICE_POINTER: addresses are unified.
        3 => put(data.cast::<u64>(), address),
        // CU_POINTER_ATTRIBUTE_HOST_POINTER
        4 if place.memory_type == 1 => put(data.cast::<u64>(), address),
        4 => Err(INVALID_VALUE),
        // CU_POINTER_ATTRIBUTE_IS_MANAGED
        8 => put(data.cast::<u32>(), 0),
        9 => put(data.cast::<i32>(), place.ordinal),
        11 => put(data.cast::<u64>(), place.base),
        12 => put(data.cast::<usize>(), place.bytes as usize),
        // CU_POINTER_ATTRIBUTE_MAPPED
        13 => put(data.cast::<u32>(), 1),
        _ => Err(NOT_SUPPORTED),
    }
}
