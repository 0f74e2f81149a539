// The list of kernels, and what Rust calls: `kernels.rs` has the same types.
#include "abi_list.h"
#include "kernel_list.h"
#include "ranges.h"
#include "self_test.h"

namespace ftcache {

#define FTC_DECLARE(name, Args) extern "C" void emulated_##name(const Args& args);
FTC_KERNELS(FTC_DECLARE)
FTC_SELF_TESTS(FTC_DECLARE)
#undef FTC_DECLARE

namespace emu {

struct Kernel {
    const char* name;
    u64 args_bytes;
    void (*body)(const void* args);
    void (*describe)(const void* args, Sink& sink);
};

#define FTC_ENTRY(name, Args)                                                                               \
    Kernel{#name, sizeof(Args), [](const void* args) { emulated_##name(*static_cast<const Args*>(args)); }, \
           [](const void* args, Sink& sink) { describe(*static_cast<const Args*>(args), sink); }},
static const Kernel KERNELS[] = {FTC_KERNELS(FTC_ENTRY) FTC_SELF_TESTS(FTC_ENTRY)};
#undef FTC_ENTRY

constexpr u32 KERNEL_COUNT = sizeof(KERNELS) / sizeof(KERNELS[0]);

extern "C" {

u32 ftcache_emu_kernel_count() { return KERNEL_COUNT; }

const char* ftcache_emu_kernel(u32 kernel, u64* args_bytes) {
    *args_bytes = KERNELS[kernel].args_bytes;
    return KERNELS[kernel].name;
}

void ftcache_emu_kernel_describe(u32 kernel, const void* args, Sink* sink) { KERNELS[kernel].describe(args, *sink); }

Engine* ftcache_emu_engine_new() { return new_engine(); }

void ftcache_emu_engine_free(Engine* engine) { free_engine(engine); }

void ftcache_emu_engine_run(Engine* engine, const Request* request, Outcome* outcome) {
    engine->request = *request;
    engine->name = KERNELS[request->kernel].name;
    engine->body = KERNELS[request->kernel].body;
    run(*engine);
    *outcome = engine->outcome;
}

const char* ftcache_emu_engine_report(const Engine* engine, u32 report) { return engine->reports[report]; }

void ftcache_emu_numbers(void (*take)(void* data, const char* name, u64 value), void* data) {
#define FTC_TELL(S)                           \
    take(data, #S, sizeof(S));                \
    for (const Field& field : S##_FIELDS) {   \
        take(data, field.name, field.offset); \
    }
    FTC_STRUCTS(FTC_TELL)
#undef FTC_TELL
    for (const Number& number : CONSTANTS) {
        take(data, number.name, number.value);
    }
}

}  // extern "C"

}  // namespace emu

}  // namespace ftcache
