//! An allocator that counts: a file of its own, for the tests that are programs of their own and include it. The crate
//! beside it has no `unsafe`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what its thread asks for, so that tests beside it do not disturb.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // A thread that is going away has no counter any more, and nobody who looks at it.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: our caller made the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: our caller made the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count_one();
        // SAFETY: our caller made the promises of `realloc`, and the memory came from the system's allocator.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: our caller made the promises of `dealloc`, and the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during a call.
pub(crate) fn allocations(call: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    call();
    COUNT.get() - before
}
