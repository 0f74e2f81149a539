// Rows from pinned host memory: see gather.h. The host's bytes are read past every cache, as it may have written them
// since the last launch.
#include "gather.h"

namespace ftcache {

FTC_KERNEL(ftcache_gather_rows, Gather) { gather<true>(args); }

}  // namespace ftcache
