// Uses a handle that was freed, which the header forbids: the address sanitizer has to see it inside the library, or it sees
// nothing there.

#include "check.h"

int main(void) {
    ftcache *cache = new_cache(8);
    ftcache_free(cache);
    (void)stats_of(cache);
    return 0;
}
