#include "ftcache.h"
#include "ftcache.h"

// An empty file is no C.
typedef ftcache_status header_alone;
