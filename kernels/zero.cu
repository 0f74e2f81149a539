// Zeros over rows, gaps and pads of several banks in one launch. Chunks of rows are dealt to the blocks; no barrier.
#include "common.h"

namespace ftcache {

template <class T>
FTC_DEVICE void zero_words(Pointer<u8> target, u32 bytes, const T& zero, const Place& at) {
    for (u32 word = at.thread; word < bytes / sizeof(T); word += at.threads) {
        cast<T>(target, u64(word) * sizeof(T))[0] = zero;
    }
}

FTC_DEVICE void zero_bytes(Pointer<u8> target, u32 bytes, const Place& at) {
    const u32 past = static_cast<u32>(address_of(target) % sizeof(Quad));
    const u32 head = least(bytes, past == 0 ? 0 : static_cast<u32>(sizeof(Quad)) - past);
    const u32 body = (bytes - head) / sizeof(Quad) * sizeof(Quad);
    zero_words(target, head, u8(0), at);
    zero_words(target + head, body, Quad{{0, 0, 0, 0}}, at);
    zero_words(target + (head + body), bytes - head - body, u8(0), at);
}

FTC_KERNEL(ftcache_zero, Zero) {
    const Place at = here();
    const bool tells = at.thread == 0 && block_index() == 0;
    if (args.header != nullptr && (!is_current(args.header, args.generation, args.layer, tells) ||
                                   !is_guarded(args.header, args.pools, args.guard, args.layer, tells))) {
        return;
    }
    FTC_ROLL
    for (u32 index = 0; index < args.span_count; ++index) {
        const ZeroSpan span = args.spans[index];
        const u64 of_row = chunks_of(span.row_bytes);
        FTC_ROLL
        for (u64 work = block_index(); work < span.row_count * of_row; work += block_count()) {
            const u64 offset = work % of_row * CHUNK_BYTES;
            const u32 bytes = static_cast<u32>(least(span.row_bytes - offset, u64(CHUNK_BYTES)));
            zero_bytes(span.base + work / of_row * span.stride + offset, bytes, at);
        }
    }
}

}  // namespace ftcache
