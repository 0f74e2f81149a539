// What kernels are written in: CUDA for nvcc, and for the host compiler the same words from `emulated.h`, where every
// access is checked.
//
// A kernel is `FTC_KERNEL(name, Args) { ... }` with one parameter, `args`, by value. It touches memory only through
// `Pointer` and `Array`, so that the emulated one can see each access; it meets the other threads of its block only at
// `barrier<ID>()` and those of its warp only in the calls named `warp_...`, which all 32 lanes make together. The
// number of a barrier is its own in its kernel: tests leave each out in turn.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ftcache {

using i32 = int32_t;
using i64 = int64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

}  // namespace ftcache

#ifdef __CUDACC__

#define FTC_DEVICE __device__ __forceinline__
// Blocks of up to 1,024 threads, of which one is enough for a multiprocessor: at most 64 registers each. Without the
// one, the compiler makes room for two on some devices, and spills.
#define FTC_KERNEL(name, Args) \
    extern "C" __global__ void __launch_bounds__(1024, 1) name(const __grid_constant__ Args args)
// Shared memory of a fixed size: one object of a type.
#define FTC_SHARED(Type, name) __shared__ Type name
// Shared memory whose bytes the launch tells, aligned to 16.
#define FTC_DYNAMIC_SHARED(name)                    \
    extern __shared__ uint4 ftc_dynamic_shared[]; \
    const Pointer<u8> name = reinterpret_cast<u8*>(ftc_dynamic_shared)
#define FTC_UNROLL _Pragma("unroll")
// Before a loop of few or many turns: unrolled, it would only fill the instruction cache.
#define FTC_ROLL _Pragma("unroll 1")
// One member of the object that a `Pointer` points to.
#define FTC_FIELD(pointer, member) ((pointer)->member)

namespace ftcache {

template <class T>
using Pointer = T*;

// An array in shared memory.
template <class T, u32 N>
struct Array {
    T items[N];
    FTC_DEVICE T& operator[](u32 index) { return items[index]; }
    FTC_DEVICE Pointer<T> pointer() { return items; }
};

// One number in shared memory.
template <class T>
struct Cell {
    T item;
    FTC_DEVICE operator T() const { return item; }
    FTC_DEVICE Cell& operator=(T value) {
        item = value;
        return *this;
    }
    FTC_DEVICE T* operator&() { return &item; }
};

constexpr u32 WARP = 32;

FTC_DEVICE u32 thread_index() { return threadIdx.x; }
FTC_DEVICE u32 thread_count() { return blockDim.x; }
FTC_DEVICE u32 block_index() { return blockIdx.x; }
FTC_DEVICE u32 block_count() { return gridDim.x; }

// All threads of the block get here before one goes on, and what they wrote before, all see after.
template <u32 ID>
FTC_DEVICE void barrier() {
    __syncthreads();
}

// Calls of all lanes of a warp together. The first alone orders memory: what lanes wrote before it, all lanes see after.
FTC_DEVICE void warp_sync() { __syncwarp(); }

// Bit i: what lane i says.
FTC_DEVICE u32 warp_ballot(bool value) { return __ballot_sync(~0u, value); }
// What that lane gives.
FTC_DEVICE u32 warp_from(u32 value, u32 lane) { return __shfl_sync(~0u, value, lane); }
// What the lane so many below gives; a lane without one gets its own.
FTC_DEVICE u32 warp_up(u32 value, u32 delta) { return __shfl_up_sync(~0u, value, delta); }
// The sum over the lanes.
FTC_DEVICE u32 warp_sum(u32 value) { return __reduce_add_sync(~0u, value); }

FTC_DEVICE u32 count_ones(u32 bits) { return __popc(bits); }
// Bits below the first that is set, from the highest; 64 of none.
FTC_DEVICE u32 leading_zeros(u64 value) { return __clzll(static_cast<long long>(value)); }
// The lowest bit that is set.
FTC_DEVICE u32 lowest_one(u32 bits) { return __ffs(static_cast<int>(bits)) - 1; }

FTC_DEVICE void atomic_add(u32* place, u32 value) { atomicAdd(place, value); }
FTC_DEVICE void atomic_add(u64* place, u64 value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(value));
}
FTC_DEVICE void atomic_min(u64* place, u64 value) {
    atomicMin(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(value));
}

// The same memory as another type, `bytes` further on.
template <class T>
FTC_DEVICE Pointer<T> cast(Pointer<u8> base, u64 bytes) {
    return reinterpret_cast<T*>(base + bytes);
}
// The address as a number, to look at its alignment.
template <class T>
FTC_DEVICE u64 address_of(Pointer<T> pointer) {
    return reinterpret_cast<u64>(pointer);
}

// 16 bytes that move in one access.
struct alignas(16) Quad {
    u32 words[4];
};

// Read once, of memory that the host writes: not from a cache.
FTC_DEVICE Quad load_fresh(Pointer<const Quad> place) {
    const uint4 quad = __ldcv(reinterpret_cast<const uint4*>(place));
    return Quad{{quad.x, quad.y, quad.z, quad.w}};
}
FTC_DEVICE u32 load_fresh(Pointer<const u32> place) { return *static_cast<const volatile u32*>(place); }
FTC_DEVICE u8 load_fresh(Pointer<const u8> place) { return *static_cast<const volatile u8*>(place); }

// Written for the host to see, number by number, or by it. What was written before a fence is seen before what is
// written after it, and what is read after one is no older than what was read before.
FTC_DEVICE void store_for_host(u32* place, u32 value) { *static_cast<volatile u32*>(place) = value; }
FTC_DEVICE void store_for_host(u64* place, u64 value) { *static_cast<volatile u64*>(place) = value; }
FTC_DEVICE void store_for_host(i64* place, i64 value) { *static_cast<volatile i64*>(place) = value; }
FTC_DEVICE u32 load_for_host(const u32* place) { return *static_cast<const volatile u32*>(place); }
FTC_DEVICE u64 load_for_host(const u64* place) { return *static_cast<const volatile u64*>(place); }
FTC_DEVICE void fence_for_host() { __threadfence_system(); }

// Called in a loop that waits for the host.
FTC_DEVICE void pause() { __nanosleep(200); }

}  // namespace ftcache

#else
#include "emulated.h"
#endif
