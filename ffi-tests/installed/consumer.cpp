#if __has_include("ftcache.hpp")
#include "ftcache.hpp"
#endif
#include "consumer.c"
