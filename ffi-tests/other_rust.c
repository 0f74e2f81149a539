// libftcache.a and another Rust archive, by the same toolchain, in one program: it links in either order, and both do
// their work before and after the other was used. The other one unwinds; of ftcache no call from C panics.

#include "check.h"

int32_t other_rust_catches(uint32_t value);

int main(void) {
    ftcache *cache;
    const int32_t ids[] = {5, 2};
    int32_t slot[2];
    ftcache_routes routes = routes_of(ids, 2);
    ftcache_slots slots = slots_of(slot);
    // "value 7", "value 1234".
    CHECK(other_rust_catches(7) == 7);
    cache = new_cache(8);
    OK(load(cache, 1, &routes, &slots));
    CHECK(slot_holds(cache, 1, slot[0], 5) && slot_holds(cache, 1, slot[1], 2));
    CHECK(other_rust_catches(1234) == 10);
    CHECK(ftcache_attach(cache, 9, 0, NULL) == FTCACHE_STATUS_INVALID_ARGUMENT);
    CHECK(strcmp(ftcache_last_error(), "rows is NULL") == 0);
    CHECK(slot_holds(cache, 1, slot[0], 5));
    ftcache_free(cache);
    return 0;
}
