// The wrapper alone, twice in a row, with its templates made: that it compiles is the test.

#include "ftcache.hpp"
#include "ftcache.hpp"

template class ftc::result<uint32_t>;
template class ftc::result<std::string>;
template class ftc::result<ftcache_stats>;
template class ftc::result<ftc::cache>;
template class ftc::span<uint32_t>;
template class ftc::span<const char *const>;

ftcache_routes routes_of_both_widths(const int32_t *narrow, const int64_t *wide);
ftcache_slots slots_of_both_widths(int32_t *narrow, int64_t *wide);
ftc::result<uint64_t> spans_of_containers(ftc::cache &cache, std::vector<uint32_t> &experts, const std::string &bytes);

ftcache_routes routes_of_both_widths(const int32_t *narrow, const int64_t *wide) {
    return narrow != nullptr ? ftc::routes_of(narrow, 1, 2) : ftc::routes_of(wide, 1, 2);
}

ftcache_slots slots_of_both_widths(int32_t *narrow, int64_t *wide) {
    return narrow != nullptr ? ftc::slots_of(narrow) : ftc::slots_of(wide);
}

ftc::result<uint64_t> spans_of_containers(ftc::cache &cache, std::vector<uint32_t> &experts, const std::string &bytes) {
    static_assert(ftc::sized<ftcache_step>().struct_size == sizeof(ftcache_step), "a constant");
    const uint32_t layers[] = {1, 2};
    if (auto pinned = cache.pin(layers, experts); !pinned) return std::move(pinned).error();
    return cache.bring_back(nullptr, {reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size()}, 1);
}
