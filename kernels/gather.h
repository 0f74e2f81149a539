// Rows of every bank in one launch, as a list on the device says.
//
// The work is cut into chunks (`each_chunk`). The grid is fixed and the list is not, so a captured launch serves any
// number of misses; a block that finds none returns after two reads. No barrier: blocks and threads share nothing.
//
// A link of 55 GB/s with 1.5 us of latency wants about 80 KB on its way: five blocks that each have a chunk of 16 KiB.
// The others hide what a block does between two chunks, which is to look up the next.
#pragma once

#include "common.h"

namespace ftcache {

template <bool FROM_HOST>
FTC_DEVICE void gather(const Gather& args) {
    const Place at = here();
    if (!is_current(args.header, args.generation, args.layer, at.thread == 0 && block_index() == 0)) {
        return;
    }
    const u32 count = least(u32(args.entry_count[0]), args.entry_max);
    if (count == 0) {
        return;
    }
    each_chunk(args.banks, args.bank_count, count, [&](const BankRows& rows, u64 index, u64 offset, u32 bytes) {
        const Entry entry = args.entries[index];
        copy_bytes<FROM_HOST>(rows.target + entry.target * rows.target_stride + offset,
                              rows.source + entry.source * rows.source_stride + offset, bytes, at);
    });
}

}  // namespace ftcache
