// A whole layer in one piece: each row of each bank from its slot if it has one, else from pinned host memory. For
// prefill without overlap, and for engines that stage in a capture. Chunks are dealt to blocks as in gather.h; no
// barrier. Slots under the target must have been freed before (invalidate.cu), so that no row is read while it is
// overwritten.
#include "common.h"

namespace ftcache {

FTC_KERNEL(ftcache_materialize, Materialize) {
    const Place at = here();
    const bool tells = at.thread == 0 && block_index() == 0;
    if (!is_current(args.header, args.generation, args.layer, tells) ||
        !is_guarded(args.header, args.pools, args.guard, args.layer, tells)) {
        return;
    }
    const auto move = [&](const StageBank& rows, u64 row, u64 offset, u32 bytes) {
        const u32 place = rows.whole != 0 ? NOBODY : u32(args.place[row]);
        const Pointer<u8> source =
            place < PLACE_LIMIT ? rows.slots + place * rows.slot_stride : rows.host + row * rows.host_stride;
        copy_bytes<true>(rows.target + row * rows.target_stride + offset, source + offset, bytes, at);
    };
    each_chunk(args.banks, args.bank_count, args.expert_count, move);
}

}  // namespace ftcache
