// Rows from device memory, such as slots: see gather.h.
#include "gather.h"

namespace ftcache {

FTC_KERNEL(ftcache_gather_slots, Gather) { gather<false>(args); }

}  // namespace ftcache
