// What several kernels do: launches that come too late, scans over a block, rows of any alignment.
#pragma once

#include "abi.h"

namespace ftcache {

constexpr u32 WARPS_MAX = 32;

FTC_DEVICE u32 least(u32 a, u32 b) { return a < b ? a : b; }
FTC_DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// Where a thread stands.
struct Place {
    u32 thread, threads, lane, warp, warps;
};

FTC_DEVICE Place here() {
    const u32 thread = thread_index(), threads = thread_count();
    return Place{thread, threads, thread % WARP, thread / WARP, threads / WARP};
}

// Bits of the lanes below.
FTC_DEVICE u32 lanes_below(u32 lane) { return (1u << lane) - 1; }

// What is wrong with a launch.
struct Trouble {
    u32 code;
    u32 layer;
    u64 step;
    u64 position;
    i64 value;
    u64 needed;
    u64 given;
};

// Tells the host of a launch that was refused: the first since it looked in full, later ones as a count. For one thread
// of a launch. Launches of one cache are in one order, so no two are here at once.
FTC_DEVICE void report(Pointer<Header> header, const Trouble& trouble) {
    const Pointer<Fault> fault = FTC_FIELD(header, fault);
    const u64 count = load_for_host(&FTC_FIELD(fault, count));
    if (load_for_host(&FTC_FIELD(fault, told)) == count) {
        store_for_host(&FTC_FIELD(fault, code), trouble.code);
        store_for_host(&FTC_FIELD(fault, layer), trouble.layer);
        store_for_host(&FTC_FIELD(fault, step), trouble.step);
        store_for_host(&FTC_FIELD(fault, position), trouble.position);
        store_for_host(&FTC_FIELD(fault, value), trouble.value);
        store_for_host(&FTC_FIELD(fault, needed), trouble.needed);
        store_for_host(&FTC_FIELD(fault, given), trouble.given);
        // Without this the host could read a count whose numbers have not arrived.
        fence_for_host();
    }
    store_for_host(&FTC_FIELD(fault, count), count + 1);
}

// Whether a launch is of the cache as it is. If not, nothing but the header may be looked at: the rest may be gone.
FTC_DEVICE bool is_current(Pointer<Header> header, u64 generation, u32 layer, bool tells) {
    const u64 current = FTC_FIELD(header, generation);
    if (current == generation) {
        return true;
    }
    if (tells) {
        const u32 code = current == WITH_HOST ? HOST_MODE : STALE_GENERATION;
        report(header, Trouble{code, layer, FTC_FIELD(header, step), 0, static_cast<i64>(generation), current, 0});
    }
    return false;
}

// What lies before a warp, and in all, of what each warp of the block has counted. For whole warps, after a barrier.
struct Share {
    u32 before, total;
};

// The sum over this lane and those below.
FTC_DEVICE u32 warp_scan(u32 value, u32 lane) {
    FTC_UNROLL
    for (u32 delta = 1; delta < WARP; delta *= 2) {
        const u32 below = warp_up(value, delta);
        value += lane >= delta ? below : 0;
    }
    return value;
}

using WarpCounts = Array<u32, WARPS_MAX>;

FTC_DEVICE Share share_of(WarpCounts& counts, const Place& at) {
    const u32 mine = at.lane < at.warps ? static_cast<u32>(counts[at.lane]) : 0;
    const u32 up_to = warp_scan(mine, at.lane);
    return Share{warp_from(up_to - mine, at.warp), warp_from(up_to, WARP - 1)};
}

// Items that a block goes through in order: each warp has neighbouring ones, 32 at a time.
struct Range {
    u32 first, tiles;
};

FTC_DEVICE Range range_of(u32 count, const Place& at) {
    const u32 tiles = (count + at.threads - 1) / at.threads;
    return Range{at.warp * tiles * WARP, tiles};
}

// Frees a slot of a pool, whatever it holds. A pinned one is freed too; its expert stays marked.
FTC_DEVICE void free_slot(const Tables& tables, const PoolRange& pool, u32 slot, u32 why) {
    const u64 place = u64(pool.first) + slot;
    const u32 owner = tables.owner[place];
    if (owner == NOBODY) {
        return;
    }
    tables.place[owner] = ABSENT_FIRST + why;
    tables.owner[place] = NOBODY;
    tables.stamp[place] = u64(0);
    if (tables.pinned[place] != 0) {
        tables.pinned[place] = u8(0);
        atomic_add(&FTC_FIELD(tables.pools + pool.pool, pinned_count), ~u32(0));
    }
}

// Bytes that one block moves at a time.
constexpr u32 CHUNK_BYTES = 16 * 1024;
// Accesses that a thread has on their way at once: with the 512 threads of a gather, all of a chunk of 16-byte words.
constexpr u32 IN_FLIGHT_LOADS = 2;

template <bool FROM_HOST, class T>
FTC_DEVICE T load_word(Pointer<u8> base, u64 offset) {
    if constexpr (FROM_HOST) {
        return load_fresh(Pointer<const T>(cast<T>(base, offset)));
    } else {
        return cast<T>(base, offset)[0];
    }
}

// So many words of one width, all threads of the block together.
template <bool FROM_HOST, class T>
FTC_DEVICE void copy_words(Pointer<u8> target, Pointer<u8> source, u32 count, const Place& at) {
    for (u32 base = 0; base < count; base += at.threads * IN_FLIGHT_LOADS) {
        T words[IN_FLIGHT_LOADS];
        FTC_UNROLL
        for (u32 k = 0; k < IN_FLIGHT_LOADS; ++k) {
            const u32 word = base + k * at.threads + at.thread;
            if (word < count) {
                words[k] = load_word<FROM_HOST, T>(source, u64(word) * sizeof(T));
            }
        }
        FTC_UNROLL
        for (u32 k = 0; k < IN_FLIGHT_LOADS; ++k) {
            const u32 word = base + k * at.threads + at.thread;
            if (word < count) {
                cast<T>(target, u64(word) * sizeof(T))[0] = words[k];
            }
        }
    }
}

// Bytes of any alignment in words of one width: both sides lie alike against it. What lies before the first whole word
// and after the last goes byte by byte.
template <bool FROM_HOST, class T>
FTC_DEVICE void copy_alike(Pointer<u8> target, Pointer<u8> source, u32 bytes, const Place& at) {
    const u32 past = static_cast<u32>(address_of(target) % sizeof(T));
    const u32 head = least(bytes, past == 0 ? 0 : static_cast<u32>(sizeof(T)) - past);
    const u32 words = (bytes - head) / sizeof(T);
    const u32 body = words * static_cast<u32>(sizeof(T));
    copy_words<FROM_HOST, T>(target + head, source + head, words, at);
    FTC_ROLL
    for (u32 edge = at.thread; edge < bytes - body; edge += at.threads) {
        const u32 offset = edge < head ? edge : edge + body;
        target[offset] = load_word<FROM_HOST, u8>(source, offset);
    }
}

// Up to CHUNK_BYTES from anywhere to anywhere, in words of 16 or 4 bytes where both sides allow it.
template <bool FROM_HOST>
FTC_DEVICE void copy_bytes(Pointer<u8> target, Pointer<u8> source, u32 bytes, const Place& at) {
    const u64 unlike = address_of(target) ^ address_of(source);
    if (unlike % sizeof(Quad) == 0) {
        copy_alike<FROM_HOST, Quad>(target, source, bytes, at);
    } else if (unlike % sizeof(u32) == 0) {
        copy_alike<FROM_HOST, u32>(target, source, bytes, at);
    } else {
        copy_words<FROM_HOST, u8>(target, source, bytes, at);
    }
}

FTC_DEVICE u64 chunks_of(u64 row_bytes) { return (row_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES; }

// Rows of every bank, cut into chunks of one row of one bank, numbered row by row and dealt to the blocks in turn, so
// that neighbouring blocks have neighbouring chunks and the link sees long runs. Calls `visit(bank, row, offset,
// bytes)`.
template <class Bank, class Visit>
FTC_DEVICE void each_chunk(Pointer<Bank> banks, u32 bank_count, u64 row_count, Visit visit) {
    u64 chunks = 0;
    FTC_ROLL
    for (u32 bank = 0; bank < bank_count; ++bank) {
        chunks += chunks_of(FTC_FIELD(banks + bank, row_bytes));
    }
    FTC_ROLL
    for (u64 work = block_index(); work < row_count * chunks; work += block_count()) {
        u64 chunk = work % chunks;
        FTC_ROLL
        for (u32 index = 0; index < bank_count; ++index) {
            const Bank bank = banks[index];
            const u64 of_row = chunks_of(bank.row_bytes);
            if (chunk >= of_row) {
                chunk -= of_row;
                continue;
            }
            const u64 offset = chunk * CHUNK_BYTES;
            visit(bank, work / chunks, offset, static_cast<u32>(least(bank.row_bytes - offset, u64(CHUNK_BYTES))));
            break;
        }
    }
}

// Whether the chunk is open without which a buffer lies on slots that are in use. For all threads; one of them tells.
FTC_DEVICE bool is_guarded(Pointer<Header> header, Pointer<PoolState> pools, const Guard& guard, u32 layer,
                           bool tells) {
    if (guard.withheld == 0) {
        return true;
    }
    const u32 withheld = FTC_FIELD(pools + guard.pool, withheld);
    if (withheld >= guard.withheld) {
        return true;
    }
    if (tells) {
        report(header, Trouble{NO_CHUNK, layer, FTC_FIELD(header, step), 0, 0, guard.withheld, withheld});
    }
    return false;
}

}  // namespace ftcache
