// What ends the program: a call that was refused, or something that is not as it should be.

#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "ftcache.h"

namespace example {

[[noreturn]] inline __attribute__((format(printf, 1, 2))) void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fflush(stdout);
    std::fputs("llama_cache: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
    std::exit(1);
}

inline void check(ftcache_status status, const char *what) {
    if (status != FTCACHE_STATUS_OK) fail("%s: %s", what, ftcache_last_error());
}

// A struct of the header, ready to be filled in.
template <typename T> T sized() {
    T value = {};
    value.struct_size = sizeof value;
    return value;
}

}  // namespace example
