// What rustc's thread sanitizer calls and gcc's runtime does not have under these names. The calls below are intercepted by
// that runtime, so nothing goes unseen.

#include <string.h>

void *__tsan_memcpy(void *target, const void *source, size_t bytes);
void *__tsan_memmove(void *target, const void *source, size_t bytes);
void *__tsan_memset(void *target, int value, size_t bytes);

void *__tsan_memcpy(void *target, const void *source, size_t bytes) { return memcpy(target, source, bytes); }
void *__tsan_memmove(void *target, const void *source, size_t bytes) { return memmove(target, source, bytes); }
void *__tsan_memset(void *target, int value, size_t bytes) { return memset(target, value, bytes); }
