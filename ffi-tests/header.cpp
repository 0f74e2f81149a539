#include "ftcache.h"
#include "ftcache.h"
