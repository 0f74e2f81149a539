/* ftcache.h: a GPU expert-slot cache for mixture-of-experts inference.
 *
 * Written by `cargo xtask header` from crates/ftcache-capi; changes belong there.
 *
 * A model's experts do not fit in device memory. Their rows lie in host memory, and a bounded number of slots on the
 * device hold the experts that the router keeps asking for. Every step names the experts that one layer routed to; the
 * cache answers with a slot for each, and copies what is missing.
 *
 * CONTENTS
 *
 *   1  Simple use           the cache holds the slots and copies
 *   2  Planner mode         the engine holds the slots and copies
 *   3  Device mode          routes stay on the device; decode is captured into a graph
 *   4  Further              hybrid steps, prefill, rebuild, warm start, several devices
 *   5  Conventions          errors, structs, pointers, streams, threads, allocation
 *
 * 1  SIMPLE USE
 *
 *    describe the model      ftcache_model_new, ftcache_model_layer_set
 *    plan slots for bytes    ftcache_configuration_new, ftcache_configuration_get
 *    make the cache          ftcache_new, ftcache_attach for every layer and bank
 *    at every step           ftcache_load, then kernels that read ftcache_slot_span_get of the layer's pool
 *                            (ftcache_configuration_layer_pool)
 *    see how it goes         ftcache_report_get, ftcache_stats_get, ftcache_check
 *
 *     ftcache *make_cache(const ftcache_model *model, uint64_t budget_bytes) {
 *         ftcache_settings settings = {0};
 *         ftcache_configuration *configuration = NULL;
 *         ftcache_config config = {0};
 *         ftcache *cache = NULL;
 *
 *         settings.struct_size = sizeof settings;
 *         settings.budget_bytes = budget_bytes;
 *         settings.request_count = 4;                       // decoded at once
 *         if (ftcache_configuration_new(model, &settings, &configuration) != FTCACHE_STATUS_OK) return NULL;
 *
 *         config.struct_size = sizeof config;
 *         config.device = FTCACHE_DEVICE_HOST;              // or FTCACHE_DEVICE_CUDA
 *         if (ftcache_new(configuration, &config, &cache) != FTCACHE_STATUS_OK) cache = NULL;
 *         ftcache_configuration_free(configuration);
 *         return cache;                                     // NULL: ftcache_last_error has the reason
 *     }
 *
 *     // One step of one layer: a slot for each of the token_count rows of top_k ids, in place of the ids.
 *     ftcache_status step(ftcache *cache, uint32_t layer, int32_t *ids, uint64_t token_count, uint64_t top_k,
 *                         const ftcache_streams *streams) {
 *         ftcache_step what = {0};
 *         ftcache_routes routes = {0};
 *         ftcache_slots slots = {0};
 *         what.struct_size = sizeof what;
 *         what.layer = layer;
 *         routes.struct_size = sizeof routes;
 *         routes.ids = ids;
 *         routes.row_count = token_count;
 *         routes.row_width = top_k;
 *         slots.struct_size = sizeof slots;
 *         slots.slots = ids;
 *         slots.absent_slot = slots.cpu_slot = -1;
 *         return ftcache_load(cache, &what, &routes, streams, &slots);
 *     }
 *
 * A bank is one array over a layer's experts: gate_up, down, or a side tensor such as scales. A slot is the same index
 * in every bank of its pool, so that base + slot * stride is an expert's row for any kernel. Layers of equal row bytes
 * and equal tag may share a pool.
 *
 * 2  PLANNER MODE
 *
 * An engine that copies by itself, or whose memory is not to be touched, makes the cache with FTCACHE_DEVICE_NONE and
 * attaches nothing. ftcache_admit decides the same as ftcache_load would, to the bit, and moves nothing:
 *
 *     ftcache *make_planner(const ftcache_configuration *configuration) {
 *         ftcache_config config = {0};
 *         ftcache *cache = NULL;
 *         config.struct_size = sizeof config;
 *         config.device = FTCACHE_DEVICE_NONE;
 *         return ftcache_new(configuration, &config, &cache) == FTCACHE_STATUS_OK ? cache : NULL;
 *     }
 *
 *     // One step: decides, copies what is missing (copy_row is the engine's), and says so.
 *     ftcache_status planned_step(ftcache *cache, const ftcache_step *step, const ftcache_routes *routes,
 *                                 const ftcache_slots *slots) {
 *         ftcache_plan plan = {0};
 *         ftcache_status status = ftcache_admit(cache, step, routes, slots);
 *         uint64_t i;
 *         if (status != FTCACHE_STATUS_OK) return status;   // nothing has changed
 *         plan.struct_size = sizeof plan;
 *         status = ftcache_plan_get(cache, &plan);
 *         if (status != FTCACHE_STATUS_OK) return status;
 *         for (i = 0; i < plan.copy_count && !plan.is_repeat; i++) {
 *             // In every bank that the layer reads.
 *             if (copy_row(plan.pool, plan.copies[i].slot, plan.layer, plan.copies[i].row) != 0) {
 *                 return ftcache_abort(cache);              // none of these slots is ever taken for a hit
 *             }
 *         }
 *         return ftcache_commit(cache);
 *     }
 *
 * ftcache_plan_get also has the copies as runs of neighbouring rows, ftcache_plan_map the answer as a map of experts.
 * Prefill (ftcache_chunk_prefetch, ftcache_stage_plan_get) and warm start (ftcache_bring_back, ftcache_placements_get)
 * open plans in the same way.
 *
 * 3  DEVICE MODE
 *
 * The settings say FTCACHE_ADMISSION_DEVICE. Once ftcache_device_enter has moved the residency to the device,
 * admission is a kernel. Both calls only enqueue, and may be captured; a graph is replayed with new routes in the same
 * buffer, as often as there are tokens, with no call between:
 *
 *     // Enqueues one layer's step on a stream that may be being captured. ids is device memory: token_count rows of
 *     // top_k ids, which become slots.
 *     ftcache_status captured_step(ftcache *cache, void *stream, uint32_t layer, int32_t *ids, uint64_t token_count,
 *                                  uint32_t top_k) {
 *         ftcache_step what = {0};
 *         ftcache_device_step step = {0};
 *         ftcache_status status;
 *         what.struct_size = sizeof what;
 *         what.layer = layer;
 *         step.struct_size = sizeof step;
 *         step.step = &what;
 *         step.ids.address = ids;
 *         step.row_count = token_count;
 *         step.row_width = top_k;
 *         step.absent_slot = step.cpu_slot = -1;
 *         step.cpu_none = -1;
 *         status = ftcache_device_admit(cache, stream, &step);
 *         if (status != FTCACHE_STATUS_OK) return status;
 *         return ftcache_device_gather(cache, stream, layer);
 *     }
 *
 * The rows must be pinned (ftcache_register, or by the engine). What a launch was refused for is told by
 * ftcache_check: an id that is no expert, a step wider than its pool, a graph of before a rebuild.
 * ftcache_device_leave brings the residency back, as if every step had been loaded from the host.
 *
 * 4  FURTHER
 *
 *    Hybrid     strategy, fetch_rule of ftcache_settings: a CPU computes the misses that are not fetched. cpu_slot
 *               marks their routes; ftcache_plan_cpu_experts and ftcache_plan_split_weights say what it computes. With
 *               later_step_bytes of ftcache_config, what it computed now is fetched behind the step.
 *    Hints      ftcache_hint: experts that the next step of a layer is expected to route to are copied ahead of it,
 *               within a budget, to slots that no step needs. ftcache_hint_stats_get says what that was worth.
 *    Prefill    ftcache_chunk_begin .. ftcache_chunk_end: whole layers are staged, one while the other computes. A
 *               chunk of up to on_demand_tokens is loaded as a step of FTCACHE_PHASE_PREFILL instead.
 *    Verify     FTCACHE_PHASE_VERIFY and ftcache_accept: rejected drafts leave no trace in the order of victims.
 *    Too wide   ftcache_partition: a step of more experts than its pool has slots, in parts that fit.
 *    Rebuild    ftcache_configuration_with_budget, ftcache_rebuild: other slots while the cache lives.
 *    Warm start ftcache_residents_get, ftcache_bring_back.
 *    Files      ftcache_load_files: banks read and pinned by the library.
 *    Recorder   ftcache_recorder_new, ftcache_recorder_record: routing kept in bounded memory, for `ftcache replay`.
 *    Devices    One handle for each model and device. Handles share nothing: each has its budget, its streams and its
 *               log. A draft model makes its own, or has none. Nothing is inherited, and there is no state of the
 *               process.
 *
 * 5  CONVENTIONS
 *
 * Errors     A function that can be refused returns an ftcache_status; ftcache_last_error has the reason in one line,
 *            with the thing and both numbers. Nothing unwinds into the caller, and nothing is written to stderr but
 *            the message of a panic, which is a fault of ours. Nothing is lowered or switched off unless a field
 *            allows it, and then ftcache_configuration_text says so.
 * Structs    A struct begins with its struct_size: set it to sizeof, the rest to zeros, then what is wanted. A library
 *            of another version reads a shorter struct as followed by zeros, and accepts a longer one whose unknown
 *            tail is zeros. Those of which it is said will not grow.
 * Pointers   A pointer must not be NULL unless its sentence says that it may. What a function is given stays the
 *            caller's and is read before it returns, unless it says otherwise; what a _new gives out is freed by its
 *            _free, which accepts NULL.
 * Streams    The driver's own handles: a CUstream, a cudaStream_t. Each function that enqueues says where, and what it
 *            waits for. No call leaves another context or device current than it found.
 * Threads    One thread at a time inside a cache: a second one is given FTCACHE_STATUS_BUSY. A model is one thread's
 *            at a time. A configuration may be asked by any number at once. Different handles are independent.
 * Memory     Functions that are called at every step allocate nothing and wait for nothing; each of the others says
 *            what it does. The library allocates by malloc, and its own allocations are small and at set-up: there are
 *            no hooks.
 * Capture    While a stream of the thread is being captured, only what says that it may be captured and what enqueues
 *            nothing (plans, statistics) is to be called. Calls that are given such a stream refuse it; the others
 *            cannot see it.
 *
 * Linking    libftcache.a may stand in one program with another Rust archive if both were built by the same toolchain;
 *            they then share one standard library, and with it the panic hook. Beside one of another toolchain, link
 *            the shared library, which exports nothing but what is declared here. Neither links CUDA: the driver is
 *            looked for when a cache is made. `cargo xtask install` writes ftcache.pc and a CMake package, which list
 *            the system libraries. ftcache.hpp is the same in C++17.
 *
 * Copies are not measured by asking for them: ftcache_device_facts_get says how they go, and the program `ftcache
 * probe` measures a machine.
 */

#ifndef FTCACHE_H
#define FTCACHE_H

#include <stddef.h>
#include <stdint.h>

/* A status that nobody looks at hides a step whose rows are missing. */
#if defined(__GNUC__) || defined(__clang__)
#define FTCACHE_MUST_USE __attribute__((warn_unused_result))
#else
#define FTCACHE_MUST_USE
#endif

// The version of this header. It grows when something is added; what is there keeps its meaning.
#define FTCACHE_ABI_VERSION 1

// What a call came to. Numbers never change their meaning.
enum ftcache_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    FTCACHE_STATUS_OK = 0,
    // A NULL, a size or a value that the call cannot take; the message names the parameter. Nothing has changed.
    FTCACHE_STATUS_INVALID_ARGUMENT = 1,
    // A layer, bank, pool, slot or expert that does not exist. Nothing has changed.
    FTCACHE_STATUS_OUT_OF_RANGE = 2,
    // A model or geometry that cannot be had; the message gives what is needed and what is given.
    FTCACHE_STATUS_UNSATISFIABLE = 3,
    // More distinct experts in a step than the pool has slots. Nothing has changed.
    FTCACHE_STATUS_STEP_TOO_WIDE = 4,
    // The layer has a bank without rows. Nothing has changed.
    FTCACHE_STATUS_NOT_ATTACHED = 5,
    // The device has not the memory. Nothing stays allocated.
    FTCACHE_STATUS_OUT_OF_MEMORY = 6,
    // The device did not do what was asked. After ftcache_load the slots that the message names are free, and the step
    // may be tried again. Where a call says that it tells of earlier ones, this one has changed nothing.
    FTCACHE_STATUS_DEVICE = 7,
    // Another call is inside the same handle, on another thread or on this one from a callback. Nothing has changed.
    FTCACHE_STATUS_BUSY = 8,
    // An earlier call on this handle panicked; only ftcache_free works.
    FTCACHE_STATUS_POISONED = 9,
    // A fault of ours. The handle, if one was given, is poisoned: half-changed maps must not feed a multiply.
    FTCACHE_STATUS_PANICKED = 10,
    // The cache, its device or its driver cannot do that at all: a cache without a device copies nothing, a host
    // device runs no kernels. Nothing has changed.
    FTCACHE_STATUS_UNSUPPORTED = 11,
    // The call is out of order: a plan or a chunk is open or is not, the cache is in device mode or is not, a stream
    // is being captured. Nothing has changed.
    FTCACHE_STATUS_OUT_OF_ORDER = 12,
    // The row of an expert is on its way behind an earlier step, so that a step that fetches every miss has to wait
    // for it, and so has what would give its slot to another: try again once it has landed. Nothing has changed.
    FTCACHE_STATUS_IN_FLIGHT = 13,
    // A rebuild left no slots. Another, of fewer bytes, may bring some back; every call that needs slots says so until
    // then.
    FTCACHE_STATUS_UNAVAILABLE = 14,
    // Launches on the device were refused since the last look: they wrote -1 for every route and left the maps as they
    // were.
    FTCACHE_STATUS_LAUNCH_REFUSED = 15,
    // A file could not be read, or host memory could not be had or pinned.
    FTCACHE_STATUS_HOST = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_status ftcache_status;
#else
typedef int32_t ftcache_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which tokens stay in a recorder that is full.
enum ftcache_keep
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Those that came first: a run from its start.
    FTCACHE_KEEP_FIRST = 0,
    // Those that came last: what led to now.
    FTCACHE_KEEP_LAST = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_keep ftcache_keep;
#else
typedef uint32_t ftcache_keep;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which layers share a pool of slots.
enum ftcache_scope
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // All layers of equal row bytes and equal tag.
    FTCACHE_SCOPE_UNIFIED = 0,
    // None: each layer has its own.
    FTCACHE_SCOPE_PER_LAYER = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_scope ftcache_scope;
#else
typedef uint32_t ftcache_scope;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How slots are divided between pools.
enum ftcache_split
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As many per layer in every pool as the bounds allow.
    FTCACHE_SPLIT_EQUAL = 0,
    // By how often the experts of a pool's layers were used: use_counts.
    FTCACHE_SPLIT_PROFILE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_split ftcache_split;
#else
typedef uint32_t ftcache_split;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How many bytes follow a pool's last slot, for kernels that read past a row's end.
enum ftcache_tail_pad
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As many as the row has, up to 512.
    FTCACHE_TAIL_PAD_ROW = 0,
    // tail_pad_bytes.
    FTCACHE_TAIL_PAD_BYTES = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_tail_pad ftcache_tail_pad;
#else
typedef uint32_t ftcache_tail_pad;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where prefill stages whole layers.
enum ftcache_staging
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // On top of the first pools' slots, which lose what they hold while a chunk is open.
    FTCACHE_STAGING_BORROWED = 0,
    // In memory of its own, so that prefill leaves the decode set alone.
    FTCACHE_STAGING_DEDICATED = 1,
    // Nowhere: small chunks are admitted on demand, and the others are the engine's.
    FTCACHE_STAGING_NOWHERE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_staging ftcache_staging;
#else
typedef uint32_t ftcache_staging;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where the experts of a decode step that are not resident are computed.
enum ftcache_strategy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // On the device, once their rows are copied: every miss is fetched.
    FTCACHE_STRATEGY_OFFLOAD = 0,
    // On the device those that are fetched, on the CPU the others.
    FTCACHE_STRATEGY_HYBRID = 1,
    // On the CPU, resident or not: slots serve prefill alone, and lie in one pool.
    FTCACHE_STRATEGY_CPU = 2,
    // As rates recommend; ftcache_configuration_get has what that is.
    FTCACHE_STRATEGY_MEASURED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_strategy ftcache_strategy;
#else
typedef uint32_t ftcache_strategy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How many misses of a hybrid step are fetched.
enum ftcache_fetch_rule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Not said: in a step, as the configuration says.
    FTCACHE_FETCH_RULE_DEFAULT = 0,
    // Up to fetch_most.
    FTCACHE_FETCH_RULE_UP_TO = 1,
    // The number at which neither link nor CPU waits longer than it must: of n in 0..=m the one with the least
    // max(n (65536 - q), (m - n) q) for q = fetch_q16, ties to the lower. A few misses that recur may never be
    // fetched.
    FTCACHE_FETCH_RULE_MIN_WAIT = 2,
    // fetch_q16 of them, rounded up.
    FTCACHE_FETCH_RULE_PREFER_FETCH = 3,
    // fetch_q16 of them; what is left below one is carried to the layer's next step, so that misses that recur are
    // fetched in the end.
    FTCACHE_FETCH_RULE_CARRY = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_fetch_rule ftcache_fetch_rule;
#else
typedef uint32_t ftcache_fetch_rule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which of the misses of a hybrid step are fetched first.
enum ftcache_fetch_order
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Those that a hybrid step routed to most recently, ties to the lower id.
    FTCACHE_FETCH_ORDER_RECENCY = 0,
    // The lowest id.
    FTCACHE_FETCH_ORDER_LOWEST = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_fetch_order ftcache_fetch_order;
#else
typedef uint32_t ftcache_fetch_order;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where steps are admitted.
enum ftcache_admission
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // On the host: the device keeps no tables.
    FTCACHE_ADMISSION_HOST = 0,
    // On the device, for engines that capture decode into a graph: its tables are among what is set aside.
    FTCACHE_ADMISSION_DEVICE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_admission ftcache_admission;
#else
typedef uint32_t ftcache_admission;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which rule says who goes. Free slots go first, then what prefill, rejected drafts or wasted hints brought and no step
// has used since; ties go to the lower slot. All but LRU count uses: of decode steps when they are admitted, of drafts
// when they are accepted, of prefill never. They keep the counts in host memory, and in device mode on the device: some
// 300 bytes an expert for FTCACHE_EVICTION_LEARNED, which wants no more than 65,536 experts a layer.
enum ftcache_eviction
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The least recently used: exact.
    FTCACHE_EVICTION_LRU = 0,
    // The least share of its layer's uses of late: a use counts half after 64 steps of its layer.
    FTCACHE_EVICTION_LFU = 1,
    // The same with a half of 16 steps, over the number of layers until the expert's layer comes again: what the next
    // layers are about to ask for stays.
    FTCACHE_EVICTION_CYCLIC = 2,
    // The same with six halves from 1 to 1,024 steps and with what followed the layer's last routes before, each as
    // much as it has said of the uses so far.
    FTCACHE_EVICTION_LEARNED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_eviction ftcache_eviction;
#else
typedef uint32_t ftcache_eviction;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a layer has slots, or has none.
enum ftcache_layer_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It has slots.
    FTCACHE_LAYER_STATE_CACHED = 0,
    // It is among slotless_layers.
    FTCACHE_LAYER_STATE_SLOTLESS = 1,
    // It decodes on the CPU.
    FTCACHE_LAYER_STATE_CPU = 2,
    // It lies on the device as a whole.
    FTCACHE_LAYER_STATE_RESIDENT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_layer_state ftcache_layer_state;
#else
typedef uint32_t ftcache_layer_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much a message matters.
enum ftcache_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing is told.
    FTCACHE_LOG_LEVEL_OFF = 0,
    // What went wrong where no call could return it.
    FTCACHE_LOG_LEVEL_ERROR = 1,
    // What is not as it was asked for, and works all the same: a fallback, with its reason, once.
    FTCACHE_LOG_LEVEL_WARNING = 2,
    // What was found and chosen, when a cache is made or rebuilt.
    FTCACHE_LOG_LEVEL_INFO = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_log_level ftcache_log_level;
#else
typedef uint32_t ftcache_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What holds the slots.
enum ftcache_device
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Ordinary memory: no GPU is needed, and every copy is done when the call returns. It has the default stream
    // alone, and no kernels.
    FTCACHE_DEVICE_HOST = 0,
    // A device of the CUDA driver, which is looked up at run time.
    FTCACHE_DEVICE_CUDA = 1,
    // None: the engine holds the slots and copies by itself. See ftcache_admit.
    FTCACHE_DEVICE_NONE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_device ftcache_device;
#else
typedef uint32_t ftcache_device;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which context of the CUDA driver a cache works in.
enum ftcache_context
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The primary one of cuda_ordinal, as the CUDA runtime uses it. It is kept alive as long as the cache.
    FTCACHE_CONTEXT_PRIMARY = 0,
    // The one that is current to the thread that makes the cache. It must outlive the cache.
    FTCACHE_CONTEXT_CURRENT = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_context ftcache_context;
#else
typedef uint32_t ftcache_context;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Whether reads go past the system's page cache.
enum ftcache_direct
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Where the file system has it; the text of the load says where it has not, and why.
    FTCACHE_DIRECT_TRY = 0,
    // Never.
    FTCACHE_DIRECT_NEVER = 1,
    // Always, or it is an error.
    FTCACHE_DIRECT_REQUIRE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_direct ftcache_direct;
#else
typedef uint32_t ftcache_direct;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What follows when pinning is refused.
enum ftcache_refusal
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // An error; everything is undone.
    FTCACHE_REFUSAL_FAIL = 0,
    // The layer stays unpinned, and so do those after it: it goes through the bounce buffer, or is for the CPU.
    FTCACHE_REFUSAL_SERVE = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_refusal ftcache_refusal;
#else
typedef uint32_t ftcache_refusal;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the memory of a layer is kept.
enum ftcache_residence
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The system may page it out.
    FTCACHE_RESIDENCE_PAGEABLE = 0,
    // Locked in memory, unknown to the device.
    FTCACHE_RESIDENCE_LOCKED = 1,
    // Registered with the device.
    FTCACHE_RESIDENCE_PINNED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_residence ftcache_residence;
#else
typedef uint32_t ftcache_residence;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a step is for, which decides what it leaves in the order of victims.
enum ftcache_phase
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A token of each request: what is routed to has been used.
    FTCACHE_PHASE_DECODE = 0,
    // Drafted tokens: hits keep their place in the order of victims, since a draft may be rejected. ftcache_accept
    // says what was used in the end.
    FTCACHE_PHASE_VERIFY = 1,
    // A prompt: hits keep their place, and misses are the first to go after free slots, so that a prompt costs the
    // decode set no more than it must.
    FTCACHE_PHASE_PREFILL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_phase ftcache_phase;
#else
typedef uint32_t ftcache_phase;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What becomes of the experts of a step that are in no slot.
enum ftcache_misses
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // As the configuration's strategy says, in every phase.
    FTCACHE_MISSES_DEFAULT = 0,
    // All are fetched.
    FTCACHE_MISSES_FETCHED = 1,
    // Some are fetched, and the CPU computes the others: by the fields of the step, or if its fetch_rule is not set by
    // the configuration's.
    FTCACHE_MISSES_HYBRID = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_misses ftcache_misses;
#else
typedef uint32_t ftcache_misses;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What became of the residents when the slots were rebuilt.
enum ftcache_rebuilt
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // They are where they were, or moved within the same memory.
    FTCACHE_REBUILT_IN_PLACE = 0,
    // They moved to new memory, beside which the old one lay for a moment.
    FTCACHE_REBUILT_BESIDE = 1,
    // None was kept, as none was to be.
    FTCACHE_REBUILT_COLD_AS_ASKED = 2,
    // None was kept: the old and the new slots together are more than most_bytes.
    FTCACHE_REBUILT_COLD_TOO_LARGE = 3,
    // None was kept: the device had not the memory for both.
    FTCACHE_REBUILT_COLD_OUT_OF_MEMORY = 4,
    // None was kept: the memory is the engine's, and pools lie elsewhere in it now.
    FTCACHE_REBUILT_COLD_POOLS_MOVED = 5,
    // None was kept: a row could not be moved.
    FTCACHE_REBUILT_COLD_FAILED = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_rebuilt ftcache_rebuilt;
#else
typedef uint32_t ftcache_rebuilt;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A cache of one model's experts on one device. Handles share nothing, so a draft model makes its own or has none.
//
// One thread at a time: a second one that comes in is given FTCACHE_STATUS_BUSY. Any thread may be that one. It may
// outlive the configuration that it was made of, and must not outlive its streams, its device memory or, if that is
// current, its context.
typedef struct ftcache ftcache;

// What settings come to for a model. It never changes: any number of threads may ask it at once, and it may be freed
// while caches that were made of it live on.
typedef struct ftcache_configuration ftcache_configuration;

// A model's description, filled layer by layer.
//
// One thread at a time. It may be freed once every configuration that is wanted has been made of it.
typedef struct ftcache_model ftcache_model;

// Records which experts each token was routed to, layer by layer. It has nothing to do with a cache, and is safe to
// leave on: memory is bounded, and no input stops it.
//
// One thread at a time inside it: a second one is given FTCACHE_STATUS_BUSY, and its step is not recorded.
typedef struct ftcache_recorder ftcache_recorder;

// What a model has.
typedef struct ftcache_model_config {
    // sizeof(ftcache_model_config).
    uint32_t struct_size;
    // Mixture-of-experts layers, numbered from 0 in the order in which a token walks them. Dense layers do not count.
    uint32_t layer_count;
    // Experts of a layer.
    uint32_t expert_count;
    // Experts that a token is routed to in each layer.
    uint32_t top_k;
    // 1 if all layers have one quantisation, so that layers without a tag and of equal bytes are alike; 0 if each
    // layer's tag tells it.
    uint32_t one_quantisation;
    // 0.
    uint32_t reserved;
} ftcache_model_config;

// What one layer's kernels read.
typedef struct ftcache_layer {
    // sizeof(ftcache_layer).
    uint32_t struct_size;
    // Banks of the layer: entries of row_bytes.
    uint32_t bank_count;
    // Bytes of one expert's row in each bank; 0 for a bank that this layer does not read. Copied.
    const uint64_t *row_bytes;
    // The quantisation, as any bytes; layers of equal bytes and different tags never share slots. NULL: no tag.
    // Copied.
    const void *tag;
    // Bytes of the tag.
    uint64_t tag_bytes;
} ftcache_layer;

// Bytes of the device that the engine needs for something else. This struct will not grow.
typedef struct ftcache_reserve {
    // What for: "kv", "transients", "weights". Copied.
    const char *name;
    // Bytes.
    uint64_t bytes;
} ftcache_reserve;

// The most slots that kernels of one quantisation index in a pool. This struct will not grow.
typedef struct ftcache_tag_limit {
    // The quantisation tag. Copied.
    const void *tag;
    // Its bytes.
    uint64_t tag_bytes;
    // Slots.
    uint64_t slots;
} ftcache_tag_limit;

// What was measured with experts of one quantisation and size, in bytes a second; `ftcache probe` writes such figures.
// This struct will not grow.
typedef struct ftcache_rate {
    // The quantisation tag; NULL for layers without one. Copied.
    const void *tag;
    // Its bytes.
    uint64_t tag_bytes;
    // Bytes of one expert. The figures stand for experts of half to twice this size.
    uint64_t expert_bytes;
    // Over the link while the CPU rests.
    double link;
    // By the CPU while the link rests; 0 if it has no code for the quantisation.
    double cpu;
    // Over the link while both work; 0 if that was not measured.
    double contended_link;
    // By the CPU while both work; 0 if that was not measured.
    double contended_cpu;
} ftcache_rate;

// A quantisation tag. This struct will not grow.
typedef struct ftcache_tag {
    // The tag; NULL stands for layers without one. Copied.
    const void *tag;
    // Its bytes.
    uint64_t tag_bytes;
} ftcache_tag;

// What is wanted. All zeros but for a budget is a good beginning: one request, unified pools, borrowed staging with
// overlap, every miss fetched, admission on the host, eviction by LRU.
//
// Exactly one of budget, budget_bytes and slot_count is set. A byte budget covers the arenas with their pads and the
// layers that lie on the device as a whole; dedicated staging and tables come on top. Nothing that is asked for is
// lowered unless a field allows it, and then the report says so; overlap alone goes off by itself (overlap_off).
typedef struct ftcache_settings {
    // sizeof(ftcache_settings).
    uint32_t struct_size;
    // An ftcache_scope.
    uint32_t scope;
    // Bytes; never exceeded, and no pool could take one more slot.
    uint64_t budget_bytes;
    // Slots over all pools.
    uint64_t slot_count;
    // The budget as people write it: "12GiB", "480*18874368" (so many times so many bytes), "0.9*free" (of
    // free_bytes), "rest" (what reserves, tables and dedicated staging leave of it). NULL if one of the two above is
    // set.
    const char *budget;
    // Free bytes of the device; 0 if that is not known. If it is, what does not fit is refused.
    uint64_t free_bytes;
    // What else the engine needs of them; NULL if nothing.
    const struct ftcache_reserve *reserves;
    // How many.
    uint64_t reserve_count;
    // Requests decoded at once; each pool gets at least what one step of them can need. 0 means 1. For verify steps
    // each drafted token counts as a request: 3 requests with 2 drafts are 9. Wider steps are refused, and may be
    // parted.
    uint32_t request_count;
    // 1: decode as many requests at once as fit, if that is fewer. 0: that is refused.
    uint32_t lower_requests;
    // Batch sizes that the engine would capture as graphs; the report says which fit. NULL if none.
    const uint32_t *batch_sizes;
    // How many.
    uint64_t batch_size_count;
    // The most slots that the engine's kernels index in one pool. 0 means no limit.
    uint32_t slot_limit;
    // An ftcache_staging.
    uint32_t staging;
    // Further limits, for kernels of single quantisations; NULL if none.
    const struct ftcache_tag_limit *tag_limits;
    // How many.
    uint64_t tag_limit_count;
    // Layers that hold no slots; NULL if none.
    const uint32_t *slotless_layers;
    // How many.
    uint64_t slotless_layer_count;
    // Layers that lie on the device as a whole, within the budget; NULL if none.
    const uint32_t *resident_layers;
    // How many.
    uint64_t resident_layer_count;
    // Layers that decode on the CPU: "3,7,11" are these, "8" so many from both ends, "0.5" a share of all, "auto" as
    // many as pinnable_bytes makes it. NULL means none.
    const char *cpu_layers;
    // What the host may pin; 0 if that is not known.
    uint64_t pinnable_bytes;
    // 1: layers are staged one after the other. 0: one while the one before it computes, if two fit; the report says
    // if they do not.
    uint32_t no_overlap;
    // An ftcache_admission.
    uint32_t admission;
    // Banks with rows narrower than this are staged whole from the host, residents too; 0 means 256 KiB. Refused with
    // FTCACHE_STAGING_NOWHERE.
    uint64_t small_row_bytes;
    // An ftcache_strategy.
    uint32_t strategy;
    // An ftcache_fetch_rule. A hybrid strategy needs one, or rates: by these it is FTCACHE_FETCH_RULE_CARRY.
    uint32_t fetch_rule;
    // A fraction in 65,536ths, for the rules that have one; 0 if fetch_measured is 1.
    uint32_t fetch_q16;
    // The most misses of a step that are fetched; 0 means no limit but for FTCACHE_FETCH_RULE_UP_TO, where it is 0.
    uint32_t fetch_most;
    // An ftcache_fetch_order.
    uint32_t fetch_order;
    // An ftcache_tail_pad.
    uint32_t tail_pad;
    // Slot strides and pool offsets are multiples of this power of two. 0 means 1: rows without gaps.
    uint64_t alignment;
    // Bytes between the end of a row and the next slot.
    uint64_t slot_pad_bytes;
    // Bytes after a pool's last slot, if tail_pad is FTCACHE_TAIL_PAD_BYTES.
    uint64_t tail_pad_bytes;
    // An ftcache_split.
    uint32_t split;
    // 1: use_counts of a model of another name are refused. 0: they are noted.
    uint32_t refuse_other_model;
    // FTCACHE_SPLIT_PROFILE: how often each expert was used, [layer][expert], in any unit, as each layer is scaled by
    // itself. NULL for another split. Copied.
    const double *use_counts;
    // How many: layers times experts.
    uint64_t use_count_count;
    // The model that was counted, as whoever counted named it; NULL if that is not known.
    const char *use_counts_model;
    // This model by the same naming; NULL if it is not to be compared.
    const char *model_name;
    // What this machine was measured to do; NULL if that is not known.
    const struct ftcache_rate *rates;
    // How many.
    uint64_t rate_count;
    // The device on which they were measured. NULL if there are none.
    const char *rates_device;
    // This device by the same naming, since rates of another are refused. NULL if there are none.
    const char *device_name;
    // 1: the fraction of fetch_rule is each layer's by the rates.
    uint32_t fetch_measured;
    // An ftcache_eviction. Every rule but LRU is refused with FTCACHE_STRATEGY_CPU.
    uint32_t eviction;
    // Tags that the CPU can compute; NULL if it can compute all.
    const struct ftcache_tag *cpu_tags;
    // How many.
    uint64_t cpu_tag_count;
} ftcache_settings;

// What a configuration came to.
typedef struct ftcache_configuration_report {
    // sizeof(ftcache_configuration_report), set by the caller.
    uint32_t struct_size;
    // Pools, numbered from 0 in the order in which they lie in the arenas.
    uint32_t pool_count;
    // Banks: the most that any layer has.
    uint32_t bank_count;
    // Layers that hold slots.
    uint32_t cached_layer_count;
    // Requests decoded at once: as many as asked for unless lower_requests allowed fewer.
    uint32_t request_count;
    // Requests that the pools could serve at once; 0 if any number.
    uint32_t request_limit;
    // Staging buffers: 2 overlap, 1 does not, 0 if nothing is staged.
    uint32_t buffer_count;
    // 1 if they lie on slots.
    uint32_t is_borrowed;
    // 1 if overlap was asked for and is off; the reason is in the text.
    uint32_t overlap_off;
    // The most tokens of a prefill chunk that is better admitted on demand than staged.
    uint32_t on_demand_tokens;
    // Slots over all pools.
    uint64_t slot_count;
    // Of these, slots that keep what they hold while a chunk is staged.
    uint64_t stable_slot_count;
    // Bytes of all arenas.
    uint64_t arena_bytes;
    // Of these, bytes that hold no row.
    uint64_t pad_bytes;
    // Bytes of dedicated staging, pads included; 0 where it is borrowed.
    uint64_t staging_bytes;
    // Bytes of layers that lie on the device as a whole: the engine's to place.
    uint64_t resident_bytes;
    // Bytes of the tables of admission on the device.
    uint64_t table_bytes;
    // All of it: what the engine sets aside on the device before it sizes its KV pool.
    uint64_t total_bytes;
    // What is left of free_bytes after reserves and that; 0 if free_bytes was not given.
    uint64_t left_bytes;
    // Bytes of the host that should be pinned.
    uint64_t pinned_bytes;
    // Bytes of the host that may be dropped once they are copied.
    uint64_t droppable_bytes;
    // Settings that are less than was asked for, as others allowed, and notes: lines of ftcache_configuration_text.
    uint32_t note_count;
    // The ftcache_strategy in effect.
    uint32_t strategy;
} ftcache_configuration_report;

// How many misses of a layer's hybrid steps are fetched.
typedef struct ftcache_layer_fetch {
    // sizeof(ftcache_layer_fetch), set by the caller.
    uint32_t struct_size;
    // An ftcache_fetch_rule; FTCACHE_FETCH_RULE_DEFAULT if all are fetched or none, or if the layer has no slots.
    uint32_t fetch_rule;
    // Its fraction in 65,536ths, for the rules that have one.
    uint32_t fetch_q16;
    // The most that are fetched; 0 means no limit but for FTCACHE_FETCH_RULE_UP_TO, where it is 0.
    uint32_t fetch_most;
} ftcache_layer_fetch;

// One pool.
typedef struct ftcache_pool_report {
    // sizeof(ftcache_pool_report), set by the caller.
    uint32_t struct_size;
    // Slots.
    uint32_t slot_count;
    // Layers that share them.
    uint32_t layer_count;
    // The least slots it could have had.
    uint32_t min_slots;
    // The most.
    uint32_t max_slots;
    // 0.
    uint32_t reserved;
    // Bytes of one slot over all banks, pads between slots included.
    uint64_t slot_bytes;
    // Bytes of the pool over all banks, pads included.
    uint64_t pool_bytes;
} ftcache_pool_report;

// Where the slots of one pool lie in one bank's arena.
typedef struct ftcache_slot_range {
    // sizeof(ftcache_slot_range), set by the caller.
    uint32_t struct_size;
    // Slots.
    uint32_t slot_count;
    // Bytes of a row; 0 if the pool's layers do not read this bank.
    uint64_t row_bytes;
    // Bytes from one slot to the next.
    uint64_t stride;
    // Bytes from the start of the arena to slot 0.
    uint64_t offset;
    // Bytes after the last slot.
    uint64_t tail_pad_bytes;
    // Bytes of the whole arena.
    uint64_t arena_bytes;
} ftcache_slot_range;

// Some slots of one pool: the answer to which slots a staging buffer lies on.
typedef struct ftcache_slot_run {
    // sizeof(ftcache_slot_run), set by the caller.
    uint32_t struct_size;
    // The pool.
    uint32_t pool;
    // The first slot.
    uint32_t first;
    // How many; 0 if the buffer lies on none.
    uint32_t count;
} ftcache_slot_run;

// Device memory of the engine's for one bank's arena. This struct will not grow.
typedef struct ftcache_arena {
    // The device address.
    void *address;
    // Its bytes: at least the arena_bytes of the bank.
    uint64_t bytes;
} ftcache_arena;

// Takes a message: one line, ended by a zero, valid during the call. level is an ftcache_log_level.
//
// It is called by the thread that is inside a call on the handle, once that call has done its work and before it
// returns, and by no other. It may call into other handles; its own says FTCACHE_STATUS_BUSY, and is not to be called
// into from ftcache_free. It must return.
typedef void (*ftcache_log)(void *user, uint32_t level, const char *message);

// How a cache is made. All zeros is a cache in ordinary memory.
typedef struct ftcache_config {
    // sizeof(ftcache_config).
    uint32_t struct_size;
    // An ftcache_device.
    uint32_t device;
    // FTCACHE_DEVICE_HOST: bytes that it may have, for trying out small ones; 0 means as many as there are.
    uint64_t device_bytes;
    // FTCACHE_DEVICE_CUDA: the device's number.
    uint32_t cuda_ordinal;
    // FTCACHE_DEVICE_CUDA: an ftcache_context.
    uint32_t cuda_context;
    // FTCACHE_DEVICE_CUDA: the driver's library; NULL means the system's, libcuda.so.1 or nvcuda.dll.
    const char *cuda_driver;
    // Device memory of the engine's, one entry for each bank, filled with zeros here and used until the cache is
    // freed; NULL if the cache is to allocate. Entries of banks that no layer reads are not looked at.
    const struct ftcache_arena *arenas;
    // How many.
    uint64_t arena_count;
    // Entries of a bounce buffer: pinned memory through which rows go that the device cannot read where they lie. 0:
    // there is none, and such rows are refused when they are attached.
    uint32_t bounce_entry_count;
    // Threads that fill them; 0 means 2.
    uint32_t bounce_thread_count;
    // Bytes of an entry; 0 means 1 MiB.
    uint64_t bounce_entry_bytes;
    // Routes of the widest step with a token and of the widest verify step: room for them is made beforehand, so that
    // they allocate nothing.
    uint64_t remembered_routes;
    // Hybrid steps may fetch behind them so many bytes of what they leave to the CPU; 0 means none. When such rows
    // land is a matter of time: ranks that are to stay alike must not use this.
    uint64_t later_step_bytes;
    // Steps whose rows may be on their way behind them at once: 1 to 1024.
    uint32_t later_flight_count;
    // An ftcache_log_level.
    uint32_t log_level;
    // Takes what the library has to say of this cache; NULL if log_level is FTCACHE_LOG_LEVEL_OFF.
    ftcache_log log;
    // Given to it. It must stay valid until the cache is freed.
    void *log_user;
    // FTCACHE_DEVICE_CUDA: bytes that are copied to find out whether a small entry makes a batch of copies wait; 0:
    // that is not measured, and rows below 256 KiB go alone. 67108864 is enough.
    uint64_t probe_bytes;
    // Hints whose rows may be on their way at once, up to 1024; 0: there are none. FTCACHE_DEVICE_NONE: hints for
    // which room is made beforehand, and any number may be on their way.
    uint32_t hint_flight_count;
    // 0.
    uint32_t reserved;
} ftcache_config;

// One bank of one layer in the caller's memory: a row for each expert.
typedef struct ftcache_host_rows {
    // sizeof(ftcache_host_rows).
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // The first expert's row. Any alignment.
    const void *base;
    // Bytes from base that may be read.
    uint64_t bytes;
    // Bytes from one expert's row to the next; 0 means rows without gaps.
    uint64_t stride;
} ftcache_host_rows;

// Where one row lies. This struct will not grow.
typedef struct ftcache_file_row {
    // Index in the list of files.
    uint64_t file;
    // Bytes from the file's start.
    uint64_t offset;
} ftcache_file_row;

// One bank of one layer, and where its rows lie. This struct will not grow.
typedef struct ftcache_file_bank {
    // The layer.
    uint32_t layer;
    // The bank.
    uint32_t bank;
    // Where all rows lie one after the other, as a tensor of a GGUF file does; not looked at if rows is not NULL.
    struct ftcache_file_row first;
    // One entry for each expert, if every row lies somewhere of its own, as those of a safetensors file do; else NULL.
    const struct ftcache_file_row *rows;
} ftcache_file_bank;

// Told how far a load is, by the thread that called. Returns 0 to go on; anything else stops the load.
typedef uint32_t (*ftcache_progress)(void *user, uint64_t read_bytes, uint64_t total_bytes, uint64_t pinned_bytes);

// How banks are read and pinned. All zeros pins every layer, with four threads that read past the page cache where
// they can.
typedef struct ftcache_file_options {
    // sizeof(ftcache_file_options).
    uint32_t struct_size;
    // Threads that read; 0 means 4.
    uint32_t reader_count;
    // An ftcache_direct.
    uint32_t direct;
    // An ftcache_refusal.
    uint32_t refusal;
    // 1: nothing is pinned.
    uint32_t no_pinning;
    // 1: what is not pinned is locked in memory, where the system allows it.
    uint32_t lock;
    // The most bytes that are pinned, layer by layer in the order of banks; 0 means no limit.
    uint64_t pin_bytes;
    // Layers that the CPU computes, which are never pinned; NULL if none.
    const uint32_t *cpu_layers;
    // How many.
    uint64_t cpu_layer_count;
    // NULL if nothing is to be told.
    ftcache_progress progress;
    // Given to it.
    void *progress_user;
} ftcache_file_options;

// What a load came to.
typedef struct ftcache_file_report {
    // sizeof(ftcache_file_report), set by the caller.
    uint32_t struct_size;
    // Layers that were read.
    uint32_t layer_count;
    // Of these, layers that are pinned.
    uint32_t pinned_layer_count;
    // Of these, layers that are locked and not pinned.
    uint32_t locked_layer_count;
    // Bytes of all rows.
    uint64_t bytes;
    // Bytes of the pages that are pinned.
    uint64_t pinned_bytes;
    // Microseconds until the last byte was read.
    uint64_t read_us;
    // Microseconds spent in pinning, most of it while others read.
    uint64_t pin_us;
    // Microseconds from the start to the end.
    uint64_t total_us;
} ftcache_file_report;

// What is in effect: whether the cache serves anything, and how.
typedef struct ftcache_report {
    // sizeof(ftcache_report), set by the caller.
    uint32_t struct_size;
    // 1 if at least one layer is served: it has slots and, unless the engine copies by itself, all its rows are
    // attached.
    uint32_t is_engaged;
    // Layers that hold slots.
    uint32_t cached_layer_count;
    // Of these, layers whose rows are attached in every bank; all of them where the engine copies by itself.
    uint32_t ready_layer_count;
    // Layers without slots; ftcache_layer_get has the reason of each.
    uint32_t declined_layer_count;
    // An ftcache_device.
    uint32_t device;
    // 1 if the residency is on the device: see ftcache_device_enter.
    uint32_t is_in_device_mode;
    // Notes and settings that are not in effect as asked for.
    uint32_t note_count;
    // Counts the rebuilds: with each, addresses that were handed out before are void.
    uint64_t generation;
    // Slots over all pools.
    uint64_t slot_count;
    // Experts that are in one. In device mode, of the time when the residency went there.
    uint64_t resident_count;
    // The last step.
    uint64_t step;
} ftcache_report;

// How one layer is served.
typedef struct ftcache_layer_report {
    // sizeof(ftcache_layer_report), set by the caller.
    uint32_t struct_size;
    // An ftcache_layer_state.
    uint32_t state;
    // The pool that serves it, if it has slots.
    uint32_t pool;
    // 1 if every bank that it reads has rows; where the engine copies by itself, if it has slots.
    uint32_t is_attached;
    // 1 if the device reads all of them where they lie; 0 if some go through the bounce buffer, or none are attached.
    uint32_t is_direct;
    // 0.
    uint32_t reserved;
} ftcache_layer_report;

// The slots of one pool in one bank: slot i lies at address + i * stride.
typedef struct ftcache_slot_span {
    // sizeof(ftcache_slot_span), set by the caller.
    uint32_t struct_size;
    // Slots.
    uint32_t slot_count;
    // Device address of slot 0, a multiple of the settings' alignment; in memory that the cache allocated also of 64,
    // if no pool lies before. It does not move until the cache is rebuilt: see ftcache_generation.
    void *address;
    // Bytes from one slot to the next.
    uint64_t stride;
    // Bytes of a row.
    uint64_t row_bytes;
} ftcache_slot_span;

// Whose row a slot holds.
typedef struct ftcache_slot_owner {
    // sizeof(ftcache_slot_owner), set by the caller.
    uint32_t struct_size;
    // 1 if the slot holds a row; 0 if it is free, or if its row is on its way behind a step.
    uint32_t is_there;
    // The expert's layer.
    uint32_t layer;
    // The expert.
    uint32_t expert;
} ftcache_slot_owner;

// One call for one layer. All zeros but for the layer is a decode step as the configuration says.
typedef struct ftcache_step {
    // sizeof(ftcache_step).
    uint32_t struct_size;
    // The layer.
    uint32_t layer;
    // An ftcache_phase.
    uint32_t phase;
    // An ftcache_misses.
    uint32_t misses;
    // The engine's name for the step, if has_token is 1. A second call for this layer with the same token, before
    // another admission of the layer and before anything was freed by a call, has the same answer and changes nothing:
    // for the two or three multiplies that read one route tensor.
    uint64_t token;
    // 1 if token counts.
    uint32_t has_token;
    // An ftcache_fetch_rule, for FTCACHE_MISSES_HYBRID.
    uint32_t fetch_rule;
    // As in ftcache_settings.
    uint32_t fetch_q16;
    // As in ftcache_settings.
    uint32_t fetch_most;
    // An ftcache_fetch_order, for FTCACHE_MISSES_HYBRID.
    uint32_t fetch_order;
    // 0.
    uint32_t reserved;
} ftcache_step;

// The routes of one step as the router left them, in host memory: row_count rows (tokens) of row_width ids.
//
// Rows may lie any distance apart: a view of an arg-sort result has row_stride_bytes of 4 * expert_count.
typedef struct ftcache_routes {
    // sizeof(ftcache_routes).
    uint32_t struct_size;
    // Bytes of an id, read as a signed integer: 4 or 8; 0 means 4.
    uint32_t id_bytes;
    // The first id. May be NULL if there are no routes. Any alignment.
    const void *ids;
    // Rows.
    uint64_t row_count;
    // Ids in a row.
    uint64_t row_width;
    // Bytes from one row's first id to the next row's; 0 means rows without gaps.
    uint64_t row_stride_bytes;
    // The id of a route that is not for this device, if has_absent is 1. It must not be an expert's.
    int64_t absent_id;
    // 1 if ids may be absent_id; 0 if every id must be an expert.
    uint32_t has_absent;
    // Where whole experts are divided between ranks: the number of this rank's first one.
    uint32_t first_expert;
    // Experts of a layer over all ranks, if ids count those: this cache's are as many as its model has, from
    // first_expert on, and routes to others are absent. Rank r of n then owns those from r * whole_count / n on. 0:
    // every id is this cache's.
    uint32_t whole_count;
    // 0.
    uint32_t reserved;
} ftcache_routes;

// The engine's own streams. A struct of zeros, or NULL in its place, is the default stream for both, which is the only
// one that FTCACHE_DEVICE_HOST has. The driver's per-thread default stream is refused.
typedef struct ftcache_streams {
    // sizeof(ftcache_streams).
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Where the kernels run that read the slots: the driver's handle, NULL for the default stream.
    void *compute;
    // Where rows are copied; NULL for the compute stream itself.
    void *copy;
} ftcache_streams;

// Where a slot for each route is written, in host memory, in the routes' rows and order. This may be the ids' own
// memory: row_stride_bytes and slot_bytes are then those of the routes.
typedef struct ftcache_slots {
    // sizeof(ftcache_slots).
    uint32_t struct_size;
    // Bytes of a slot number: 4 or 8; 0 means 4.
    uint32_t slot_bytes;
    // The first slot number. May be NULL if there are no routes. Any alignment.
    void *slots;
    // Bytes from one row's first slot to the next row's; 0 means rows without gaps.
    uint64_t row_stride_bytes;
    // What is written for a route that is absent, or in another part of a partitioned step. It must not be the number
    // of a slot of the pool, which is checked where it may be written. -1 is what most kernels skip.
    int64_t absent_slot;
    // What is written for a route that the CPU computes, in a hybrid step: as above.
    int64_t cpu_slot;
} ftcache_slots;

// One row to one slot, in every bank that the layer reads. This struct will not grow.
typedef struct ftcache_copy {
    // Where it goes, local to the plan's pool.
    uint32_t slot;
    // The expert, which is the row in the layer's banks.
    uint32_t row;
} ftcache_copy;

// Neighbouring rows to neighbouring slots: one copy for each bank whose rows and slots lie without gaps. This struct
// will not grow.
typedef struct ftcache_run {
    // The first slot.
    uint32_t slot;
    // The first row.
    uint32_t row;
    // Rows and slots.
    uint32_t count;
} ftcache_run;

// What a step decided. The arrays are the library's, and valid until the next call on the handle.
typedef struct ftcache_plan {
    // sizeof(ftcache_plan), set by the caller.
    uint32_t struct_size;
    // The layer.
    uint32_t layer;
    // Its pool.
    uint32_t pool;
    // 1 if this plan is open.
    uint32_t is_open;
    // 1 if this is the answer to an earlier call with the same token: its copies were made then, and are not to be
    // made again.
    uint32_t is_repeat;
    // Distinct experts of the step; of the step before, for a plan of ftcache_admit_later or ftcache_admit_hint, as
    // are miss_count, step and left.
    uint32_t distinct_count;
    // Of these, those that were in no slot.
    uint32_t miss_count;
    // Of the copies, those whose slot another expert lost.
    uint32_t eviction_count;
    // The number of the step.
    uint64_t step;
    // The rows to copy, in the order in which victims were taken.
    const struct ftcache_copy *copies;
    // How many.
    uint64_t copy_count;
    // The same rows as the fewest runs, ascending by row.
    const struct ftcache_run *runs;
    // How many.
    uint64_t run_count;
    // The experts that are left to the CPU, most wanted first.
    const uint32_t *left;
    // How many.
    uint64_t left_count;
    // Not 0: the step's copies and its kernels come behind the copies of this hint (ftcache_admit_hint) and of those
    // before it, which bring rows that the step uses or were to bring some to slots that it takes. ftcache_load has
    // seen to it.
    uint64_t awaits_flight;
} ftcache_plan;

// One row of a resident on its way back. This struct will not grow.
typedef struct ftcache_placement {
    // The layer.
    uint32_t layer;
    // The expert, which is the row in the layer's banks.
    uint32_t row;
    // The layer's pool.
    uint32_t pool;
    // Where the row goes, local to the pool.
    uint32_t slot;
} ftcache_placement;

// What a hint came to. Each of its ids is counted once, but for absent ones.
typedef struct ftcache_hint_report {
    // sizeof(ftcache_hint_report), set by the caller.
    uint32_t struct_size;
    // Ids of experts that are in a slot or on their way to one, those named twice among them: they cost nothing.
    uint32_t present;
    // Ids whose rows are copied.
    uint32_t started;
    // Ids that are not, since the budget was spent.
    uint32_t over_budget;
    // Ids that are not, since no slot was left that a hint may take.
    uint32_t no_slot;
    // Ids that are not, since as many hints as there may be (hint_flight_count of ftcache_config) were on their way.
    uint32_t held_back;
    // Its number, for ftcache_cancel_hint; of FTCACHE_DEVICE_NONE, that of its flight too. None is 0.
    uint64_t hint;
    // Bytes that are copied.
    uint64_t bytes;
} ftcache_hint_report;

// What became of the rows of hints, since the cache was made or rebuilt: started are useful, late, wasted and open
// ones together. A step counts as if there were no hints: an expert that one has brought is a hit, and so is one that
// a step waits for; one that a hybrid step leaves to the CPU on its way is a miss.
typedef struct ftcache_hint_stats {
    // sizeof(ftcache_hint_stats), set by the caller.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Rows that were copied.
    uint64_t started;
    // Those that took the slot of another expert.
    uint64_t evictions;
    // Rows that were there when the next step of their layer routed to them.
    uint64_t useful;
    // Rows that were on their way then.
    uint64_t late;
    // Rows that it did not route to, that a step took the slot of before, or that were cancelled, freed by a call or
    // refused by the device.
    uint64_t wasted;
    // Rows whose step has not come.
    uint64_t open;
    // Bytes of those that were started.
    uint64_t started_bytes;
    // Bytes of the useful ones.
    uint64_t useful_bytes;
    // Bytes of the late ones.
    uint64_t late_bytes;
    // Bytes of the wasted ones.
    uint64_t wasted_bytes;
} ftcache_hint_stats;

// How device mode is entered. All zeros is what was measured to do well.
typedef struct ftcache_device_options {
    // sizeof(ftcache_device_options).
    uint32_t struct_size;
    // Threads of an admission: a multiple of 32 up to 1024; 0 means 1024.
    uint32_t admission_threads;
    // Blocks of a gather, of 512 threads each; 0 means 64. They take that much of the device from kernels that run
    // meanwhile.
    uint32_t gather_blocks;
    // 0.
    uint32_t reserved;
    // How often a word is looked at that ftcache_device_gather_after waits for, a microsecond or so apart; 0 means
    // 10000000.
    uint64_t word_looks;
} ftcache_device_options;

// Rows of numbers in device memory, or in pinned memory that the device reaches at this address. This struct will not
// grow.
typedef struct ftcache_device_rows {
    // The device address of the first number; NULL if there are none.
    void *address;
    // Bytes from row to row; 0 means rows without gaps.
    uint64_t stride;
} ftcache_device_rows;

// A step whose routes lie in device memory. Its addresses are read by the launch, and if that is captured by every
// replay: they must stay valid until then, and the numbers there are the launch's to read and write in the order of
// its stream.
typedef struct ftcache_device_step {
    // sizeof(ftcache_device_step).
    uint32_t struct_size;
    // Bytes of an id, and of a slot: 4 or 8; 0 means 4.
    uint32_t id_bytes;
    // What the step is: without a token, and no verify step. NULL is not accepted.
    const struct ftcache_step *step;
    // The routes, row by row.
    struct ftcache_device_rows ids;
    // Rows, such as one for each request.
    uint64_t row_count;
    // Routes of a row.
    uint32_t row_width;
    // 1 if ids may be absent_id.
    uint32_t has_absent;
    // The id of a route that is not for this device.
    int64_t absent_id;
    // Where slots go; NULL: in place of the routes. Other rows than the routes' must not overlap them.
    struct ftcache_device_rows slots;
    // What is written for an absent route. No slot of the pool; -1 is what most kernels skip.
    int64_t absent_slot;
    // What is written for a route that the CPU computes, in a hybrid step. No slot of the pool.
    int64_t cpu_slot;
    // One 32-bit number for each expert of the layer, or NULL: its slot, or -1. Residents that the step does not route
    // to have theirs too.
    int32_t *map;
    // Hybrid: where the experts go that the CPU computes, one for each route, as wide as its id; NULL if not wanted.
    struct ftcache_device_rows cpu_ids;
    // Hybrid: what stands there for the other routes. No expert of the layer.
    int64_t cpu_none;
    // Hybrid: numbers of the engine's, one for each route, to be split by where the route is computed; NULL if not
    // wanted.
    struct ftcache_device_rows weights;
    // Where those of routes with a slot go, and zeros for others; it may be the weights' own place.
    struct ftcache_device_rows device_weights;
    // Where those of routes that the CPU computes go, and zeros for others; it may be the weights' own place instead.
    struct ftcache_device_rows cpu_weights;
    // Bytes of each: 2 or 4.
    uint32_t weight_bytes;
    // 0.
    uint32_t reserved;
} ftcache_device_step;

// What can be read of a residency on the device.
typedef struct ftcache_device_reading {
    // sizeof(ftcache_device_reading), set by the caller.
    uint32_t struct_size;
    // 1 if there is a reading; 0 if none was asked for, or it is being written.
    uint32_t is_there;
    // The generation of launches it is of, as messages name it: each rebuild and each change of staging counts it up,
    // while ftcache_generation counts rebuilds alone.
    uint64_t generation;
    // The last step.
    uint64_t step;
    // As ftcache_digest.
    uint64_t digest;
    // Experts in slots.
    uint64_t resident_count;
} ftcache_device_reading;

// What the steps since the start, or since ftcache_stats_reset, came to. In device mode, until the residency went
// there: see ftcache_device_reading_get.
typedef struct ftcache_stats {
    // sizeof(ftcache_stats), set by the caller.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Steps whose rows were copied, or whose plan is open; one a call, whatever its width.
    uint64_t steps;
    // Routes, duplicates included, absent ones not.
    uint64_t routes;
    // Of these, those to experts that were resident before their step.
    uint64_t hit_routes;
    // Distinct experts, summed over steps: hits and misses together.
    uint64_t distinct;
    // Distinct experts that were resident before their step.
    uint64_t hits;
    // Distinct experts that were not: fetched and left to the CPU together.
    uint64_t misses;
    // Misses that were fetched.
    uint64_t fetched;
    // Misses that were left to the CPU.
    uint64_t left;
    // Fetched ones that took a slot from another expert.
    uint64_t evictions;
    // Misses that no step had routed to before.
    uint64_t cold_misses;
    // Misses that had lost their slot to another expert: more slots would have kept them.
    uint64_t capacity_misses;
    // Misses that had lost their slot to a staging buffer.
    uint64_t staging_misses;
    // Misses whose slot had been freed by a call: forgotten, aborted or rebuilt.
    uint64_t freed_misses;
    // Misses that had been left to the CPU the last time too, or whose row was on its way.
    uint64_t cpu_misses;
    // Steps refused because they were too wide, which are counted nowhere else.
    uint64_t refused;
    // Bytes of what was fetched: copied from the host to slots by steps, or by the engine's commits.
    uint64_t bytes;
} ftcache_stats;

// How a layer comes to lie in a staging buffer, in one bank. The arrays are the library's, and valid until the next
// call on the handle.
typedef struct ftcache_stage_plan {
    // sizeof(ftcache_stage_plan), set by the caller.
    uint32_t struct_size;
    // The layer.
    uint32_t layer;
    // Its pool.
    uint32_t pool;
    // The buffer, 0 or 1.
    uint32_t buffer;
    // Rows that lie in slots: from slot to the buffer's row.
    const struct ftcache_copy *gathers;
    // How many.
    uint64_t gather_count;
    // Rows that come from the host: count rows from row on; slot has no meaning.
    const struct ftcache_run *fetches;
    // How many.
    uint64_t fetch_count;
} ftcache_stage_plan;

// What a prefill chunk came to, or all of them.
typedef struct ftcache_chunk_report {
    // sizeof(ftcache_chunk_report), set by the caller.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Chunks.
    uint64_t chunks;
    // Layers staged.
    uint64_t layers;
    // Experts that were in slots. Their rows came from there, but in banks of small rows, which are staged whole from
    // the host.
    uint64_t gathered;
    // Experts that were in no slot.
    uint64_t fetched;
    // Experts that lost their slot to a staging buffer.
    uint64_t lost;
    // Bytes copied from the host; 0 where the engine copies by itself.
    uint64_t fetched_bytes;
    // Bytes copied from slots; 0 where the engine copies by itself.
    uint64_t gathered_bytes;
} ftcache_chunk_report;

// A resident from its old slot to its new one. This struct will not grow.
typedef struct ftcache_move {
    // The layer.
    uint32_t layer;
    // The expert.
    uint32_t expert;
    // Its pool before.
    uint32_t from_pool;
    // Its slot in that.
    uint32_t from_slot;
    // Its pool now.
    uint32_t to_pool;
    // Its slot in that.
    uint32_t to_slot;
} ftcache_move;

// What a rebuild came to.
typedef struct ftcache_rebuild_report {
    // sizeof(ftcache_rebuild_report), set by the caller.
    uint32_t struct_size;
    // An ftcache_rebuilt.
    uint32_t rebuilt;
    // Residents that are in a slot still.
    uint64_t kept;
    // Staging buffers that there are now.
    uint32_t buffer_count;
    // 1 if staging was asked for and could not be had with these slots.
    uint32_t staging_lost;
    // FTCACHE_DEVICE_NONE: the rows that the engine has to move before the next step, from slot to slot; all pools
    // that keep their slots in place move nothing. The library's, and valid until the next call on the handle.
    const struct ftcache_move *moves;
    // How many.
    uint64_t move_count;
} ftcache_rebuild_report;

// What was found out about the device.
typedef struct ftcache_device_facts {
    // sizeof(ftcache_device_facts), set by the caller.
    uint32_t struct_size;
    // The CUDA device's number; 0 on the host.
    uint32_t ordinal;
    // The newest CUDA version that the driver serves, 1000 times the major version and 10 times the minor; 0 on the
    // host.
    uint32_t driver_version;
    // Compute capability, 10 times the major version and the minor; 0 on the host.
    uint32_t capability;
    // Bytes of device memory; 0 on the host.
    uint64_t memory_bytes;
    // Free bytes of it; 0 if that is not known.
    uint64_t free_bytes;
    // 1 if streams wait for words of the host's by themselves, which a bounce buffer needs.
    uint32_t waits_for_words;
    // 1 if memory that is mapped read-only can be registered.
    uint32_t registers_read_only;
    // 1 if rows are copied in batches, 0 if one by one; the text has the reason.
    uint32_t copies_in_batches;
    // 0.
    uint32_t reserved;
    // In batches, entries narrower than this go alone, since a batch with one makes the call wait.
    uint64_t alone_below_bytes;
} ftcache_device_facts;

// What a recorder is told of the model, and how much it keeps.
typedef struct ftcache_recorder_config {
    // sizeof(ftcache_recorder_config).
    uint32_t struct_size;
    // An ftcache_keep.
    uint32_t keep;
    // Mixture-of-experts layers, numbered from 0.
    uint32_t layer_count;
    // Experts of a layer.
    uint32_t expert_count;
    // Experts that a token is routed to in each layer.
    uint32_t top_k;
    // 0.
    uint32_t reserved;
    // Bytes for tokens, taken at the start and never more: each token takes 2 * layer_count * top_k + 24.
    uint64_t capacity_bytes;
    // The model's name, for people; NULL if it has none. Copied.
    const char *model;
} ftcache_recorder_config;

// How a recorder is doing.
typedef struct ftcache_recorder_report {
    // sizeof(ftcache_recorder_report), set by the caller.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Tokens that are held.
    uint64_t tokens;
    // Tokens that fit.
    uint64_t room;
    // Tokens that came and are not held.
    uint64_t dropped;
    // Calls and cells that made no sense and were left out: a layer out of the model, a step of another width, an
    // expert twice or past the last one.
    uint64_t refused;
} ftcache_recorder_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version that the library was built with, to be compared with FTCACHE_ABI_VERSION.
//
// A library of a higher version serves this header; one of a lower version does not.
uint32_t ftcache_abi_version(void);

// The message of the last call on this thread that did not return FTCACHE_STATUS_OK: one line, with the thing and both
// numbers. Never NULL; empty if there was none.
//
// The text is owned by the library and valid until the next call on this thread.
const char *ftcache_last_error(void);

// Copies the message of ftcache_last_error to a buffer of the caller, cut to fit and always ended by a zero.
//
// Returns the bytes that the whole message needs, its ending zero included. buffer may be NULL if capacity is 0.
//
// Requires: buffer points to capacity writable bytes.
size_t ftcache_last_error_copy(char *buffer, size_t capacity);

// Begins a model. *out is set to NULL if this does not succeed; else the caller frees it with ftcache_model_free.
// Allocates; waits for nothing.
//
// Requires: config points to a struct of its struct_size; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_model_new(const struct ftcache_model_config *config,
                                 struct ftcache_model **out);

// Sets what one layer's kernels read; again to replace it. Allocates; waits for nothing.
//
// Requires: model came from ftcache_model_new; layer_config points to a struct of its struct_size, and its pointers to
// as many values as it says.
FTCACHE_MUST_USE
ftcache_status ftcache_model_layer_set(struct ftcache_model *model,
                                       uint32_t layer,
                                       const struct ftcache_layer *layer_config);

// Frees a model; NULL is accepted. Configurations that were made of it stay. Waits for nothing.
void ftcache_model_free(struct ftcache_model *model);

// Makes a configuration, or says which two numbers conflict. Pure: touches no device, and the model may be freed
// afterwards. Allocates; waits for nothing.
//
// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
//
// Requires: model came from ftcache_model_new; settings points to a struct of its struct_size, and its pointers to as
// many values as it says; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_new(const struct ftcache_model *model,
                                         const struct ftcache_settings *settings,
                                         struct ftcache_configuration **out);

// The same settings with another budget, to rebuild a cache with: what was lowered comes back if there is room.
// Allocates; waits for nothing.
//
// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
//
// Requires: configuration came from this library; budget is a text as in ftcache_settings, a number of bytes among
// them; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_with_budget(const struct ftcache_configuration *configuration,
                                                 const char *budget,
                                                 struct ftcache_configuration **out);

// What the configuration came to. Allocates nothing, waits for nothing.
//
// Requires: configuration came from this library; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_get(const struct ftcache_configuration *configuration,
                                         struct ftcache_configuration_report *report);

// Every setting as it was asked for and as it is in effect, with the reason where they differ, then notes: one a line,
// for people and logs. Allocates; waits for nothing.
//
// The text is cut to fit and ended by a zero. *needed is set to the bytes of all of it, its ending zero included; it
// may be NULL, and buffer may be NULL if capacity is 0.
//
// Requires: configuration came from this library; buffer points to capacity writable bytes; needed is NULL or points
// to a number.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_text(const struct ftcache_configuration *configuration,
                                          char *buffer,
                                          size_t capacity,
                                          size_t *needed);

// Whether a layer has slots, and why if it has none: state is set to an ftcache_layer_state. Allocates nothing, waits
// for nothing.
//
// Requires: configuration came from this library; state points to a uint32_t.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_layer_state(const struct ftcache_configuration *configuration,
                                                 uint32_t layer,
                                                 uint32_t *state);

// How many misses of a layer's hybrid steps are fetched, where a step does not say so itself: by the settings, or by
// what was measured with experts of its kind. Allocates nothing, waits for nothing.
//
// Requires: configuration came from this library; fetch points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_layer_fetch_get(const struct ftcache_configuration *configuration,
                                                     uint32_t layer,
                                                     struct ftcache_layer_fetch *fetch);

// What one pool came to. Allocates nothing, waits for nothing.
//
// Requires: configuration came from this library; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_pool_get(const struct ftcache_configuration *configuration,
                                              uint32_t pool,
                                              struct ftcache_pool_report *report);

// The pool that serves a layer. Allocates nothing, waits for nothing.
//
// Requires: configuration came from this library; pool points to a uint32_t.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_layer_pool(const struct ftcache_configuration *configuration,
                                                uint32_t layer,
                                                uint32_t *pool);

// Where the slots of one pool lie in one bank's arena. Allocates nothing, waits for nothing.
//
// Requires: configuration came from this library; range points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_slot_range_get(const struct ftcache_configuration *configuration,
                                                    uint32_t pool,
                                                    uint32_t bank,
                                                    struct ftcache_slot_range *range);

// Which slots a staging buffer (0 or 1) lies on, run by run: an engine that copies by itself finds its rows gone there
// after the buffer was filled. count is 0 past the last run, and where the buffer has memory of its own. Allocates
// nothing, waits for nothing.
//
// Requires: configuration came from this library; run points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_configuration_buffer_run_get(const struct ftcache_configuration *configuration,
                                                    uint32_t buffer,
                                                    uint32_t index,
                                                    struct ftcache_slot_run *run);

// Frees a configuration; NULL is accepted. Waits for nothing.
void ftcache_configuration_free(struct ftcache_configuration *configuration);

// Makes a cache: allocates every slot on the device, filled with zeros, loads what the device needs and probes it.
// Allocates; may block; works on streams of its own. Not to be called while a stream of the thread is being captured.
//
// config may be NULL for the defaults. The configuration may be freed afterwards. *out is set to NULL if this does not
// succeed; else the caller frees it with ftcache_free.
//
// Requires: configuration came from this library; config is NULL or points to a struct of its struct_size, and its
// pointers to what it says, which stays so until the cache is freed; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_new(const struct ftcache_configuration *configuration,
                           const struct ftcache_config *config,
                           struct ftcache **out);

// Whether anything that was enqueued has failed since the last look, a launch in device mode that was refused among
// it. Allocates nothing where all is well; waits for nothing, so what is on its way may fail yet.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_check(struct ftcache *cache);

// Returns when everything that was enqueued on any stream is done. Streams of earlier steps may be destroyed then.
// Waits for all of it; allocates nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_synchronize(struct ftcache *cache);

// Frees a cache and its slots; NULL is accepted. Waits for everything enqueued. No other call may be inside it.
void ftcache_free(struct ftcache *cache);

// Attaches the rows of one bank of a layer, in any order; again after they have moved, with the same bytes. Waits for
// what is enqueued if rows were attached before, else for nothing; may allocate.
//
// The rows stay the caller's. They must stay readable and unchanged until they are attached anew or the cache is
// freed, and until every stream that they are copied on has been synchronised. A bank whose row_bytes is 0 has none.
// Rows that the device cannot read where they lie (pageable memory on CUDA) go through the bounce buffer, and are
// refused if there is none: ftcache_register pins them.
//
// Requires: cache came from ftcache_new; rows points to a struct of its struct_size, and base to as many bytes as it
// says.
FTCACHE_MUST_USE
ftcache_status ftcache_attach(struct ftcache *cache,
                              uint32_t layer,
                              uint32_t bank,
                              const struct ftcache_host_rows *rows);

// Pins host memory of the engine's where it lies, before rows in it are attached. May allocate; blocks while the
// system pins.
//
// part_bytes not 0: in parts of so many bytes, where one call would be refused; a multiple of the page size, from a
// base that is one. Of 0 bytes nothing is pinned, and there is nothing to unregister. read_only 1: for memory that is
// mapped read-only, such as a model file. It ends with ftcache_unregister or ftcache_free, and must stay mapped until
// then. Memory that the engine pinned by itself needs no call.
//
// Requires: cache came from ftcache_new; base points to bytes bytes that stay mapped until they are unregistered.
FTCACHE_MUST_USE
ftcache_status ftcache_register(struct ftcache *cache,
                                const void *base,
                                uint64_t bytes,
                                uint32_t read_only,
                                uint64_t part_bytes);

// Ends what ftcache_register began at base. Waits for everything enqueued. Rows in it must be attached anew, from
// elsewhere, before they are copied again. May allocate.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_unregister(struct ftcache *cache, const void *base);

// Reads banks from files into memory of the library's, pins them, attaches them and keeps them until the cache is
// freed. May be called again for others. Allocates and blocks; uses threads of its own while it lasts.
//
// Layers that could not be pinned go through the bounce buffer; where there is none they are not attached, and are for
// the CPU: ftcache_layer_get says so. options may be NULL; report is NULL or set to what it came to. On any error
// nothing is left of it.
//
// Requires: cache came from ftcache_new; paths points to path_count texts, banks to bank_count entries that are as
// they say; options and report are NULL or point to structs of their struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_load_files(struct ftcache *cache,
                                  const char *const *paths,
                                  uint64_t path_count,
                                  const struct ftcache_file_bank *banks,
                                  uint64_t bank_count,
                                  const struct ftcache_file_options *options,
                                  struct ftcache_file_report *report);

// How a layer that was read from files is kept: residence is set to an ftcache_residence. The text says why, if it is
// not pinned; it is cut to fit and ended by a zero, and buffer may be NULL if capacity is 0. Allocates; waits for
// nothing.
//
// Requires: cache came from ftcache_new; residence points to a uint32_t; buffer points to capacity writable bytes.
FTCACHE_MUST_USE
ftcache_status ftcache_layer_residence(struct ftcache *cache,
                                       uint32_t layer,
                                       uint32_t *residence,
                                       char *buffer,
                                       size_t capacity);

// What is in effect. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_report_get(struct ftcache *cache, struct ftcache_report *report);

// How one layer is served. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_layer_get(struct ftcache *cache,
                                 uint32_t layer,
                                 struct ftcache_layer_report *report);

// The configuration that is in effect, to be asked like any other or to be rebuilt with another budget. Allocates;
// waits for nothing.
//
// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
//
// Requires: cache came from ftcache_new; out points to a pointer.
FTCACHE_MUST_USE ftcache_status ftcache_configuration_of(struct ftcache *cache, struct ftcache_configuration **out);

// Where the slots of one pool lie in one bank, for the engine's kernels. Allocates nothing, waits for nothing.
//
// address is NULL and row_bytes 0 if the pool's layers do not read that bank.
//
// Requires: cache came from ftcache_new; span points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_slot_span_get(struct ftcache *cache,
                                     uint32_t pool,
                                     uint32_t bank,
                                     struct ftcache_slot_span *span);

// Whose row a slot holds, for engines that keep something of their own beside each. In device mode, of the time when
// the residency went there. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; owner points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_slot_owner_get(struct ftcache *cache,
                                      uint32_t pool,
                                      uint32_t slot,
                                      struct ftcache_slot_owner *owner);

// Frees one slot: its expert is copied anew when it is next routed to. Slots that were forgotten are taken first.
//
// Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_forget(struct ftcache *cache, uint32_t pool, uint32_t slot);

// Frees every slot that holds an expert of a layer. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_forget_layer(struct ftcache *cache, uint32_t layer);

// Frees every slot. Statistics go on. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_reset(struct ftcache *cache);

// Pins experts: once in a slot, they are never victims. Allocates; waits for nothing.
//
// layers and experts are of count numbers each: expert experts[i] of layer layers[i]. Every pool keeps as many slots
// for others as one step of the configured requests can need; if it would not, none is pinned.
//
// Requires: cache came from ftcache_new; layers and experts point to count numbers each.
FTCACHE_MUST_USE
ftcache_status ftcache_pin(struct ftcache *cache,
                           const uint32_t *layers,
                           const uint32_t *experts,
                           uint64_t count);

// Makes experts victims like others again; ones that are not pinned stay as they are. May allocate; waits for nothing.
//
// Requires: cache came from ftcache_new; layers and experts point to count numbers each.
FTCACHE_MUST_USE
ftcache_status ftcache_unpin(struct ftcache *cache,
                             const uint32_t *layers,
                             const uint32_t *experts,
                             uint64_t count);

// Makes the experts of a step resident and writes a slot for each route, local to the pool of the layer.
//
// Any number of routes is one step: an expert that is routed to twice has one slot and is copied once, and no slot
// that the step uses is given to another expert. Copies are enqueued on the copy stream, behind what the compute
// stream was given before; what the compute stream is given afterwards comes behind the copies. A step that names
// another compute stream than the one before comes behind that one, which must be alive still. Nothing is waited
// for; a step without a miss enqueues nothing, and allocates nothing if it is no wider than an earlier one or than
// the requests of the configuration. Not to be called while a stream is being captured: that is refused.
//
// streams may be NULL: the default stream then does both. slots may be NULL: ftcache_plan_get and its neighbours then
// tell what was decided.
//
// On FTCACHE_STATUS_DEVICE the slots of the step's misses are free, and the step may be tried again; but if the
// message begins with "behind an earlier step", this one has changed nothing. On any other status nothing has changed.
// In every case but FTCACHE_STATUS_OK the caller's slots are as they were.
//
// Requires: cache came from ftcache_new; step, routes, streams and slots point to structs of their struct_size, and
// the memory that they name is readable and writable as they say.
FTCACHE_MUST_USE
ftcache_status ftcache_load(struct ftcache *cache,
                            const struct ftcache_step *step,
                            const struct ftcache_routes *routes,
                            const struct ftcache_streams *streams,
                            const struct ftcache_slots *slots);

// Opens the plan of a step, for FTCACHE_DEVICE_NONE: decides as ftcache_load does, writes a slot for each route, and
// moves nothing. The engine makes the copies of ftcache_plan_get, in every bank, then calls ftcache_commit; or
// ftcache_abort, if it could not. One plan is open at a time: until then, what would change the residency is refused.
// A repeat under a step token opens a plan too (is_repeat): its copies were made before, and it is only to be
// committed; aborting it frees their slots.
//
// Touches no device and waits for nothing; allocates nothing if the step is no wider than an earlier one or than the
// requests of the configuration. slots may be NULL.
//
// Requires: As for ftcache_load.
FTCACHE_MUST_USE
ftcache_status ftcache_admit(struct ftcache *cache,
                             const struct ftcache_step *step,
                             const struct ftcache_routes *routes,
                             const struct ftcache_slots *slots);

// Parts a step that is wider than its pool by experts, so that each part fits and each expert is fetched once; a step
// that fits is one part. Admits nothing. *part_count is set to their number, 0 if no route is present. Allocates
// nothing once there was a step as wide; waits for nothing.
//
// The parts are loaded (or admitted) one after another, each once the kernels of the one before are enqueued. If
// something else is admitted or freed between two of them, the rest is right still, but an expert may be fetched
// again, and statistics count another step.
//
// Requires: cache came from ftcache_new; step and routes point to structs of their struct_size, and the memory that
// routes names is readable as it says; part_count points to a uint32_t.
FTCACHE_MUST_USE
ftcache_status ftcache_partition(struct ftcache *cache,
                                 const struct ftcache_step *step,
                                 const struct ftcache_routes *routes,
                                 uint32_t *part_count);

// As ftcache_load, for one part of the step that was last partitioned. Routes of other parts are written as absent.
// Enqueues, allocates and waits as that does.
//
// Requires: cache came from ftcache_new; streams and slots point to structs of their struct_size or are NULL, and the
// memory that slots names is writable as it says, for as many rows as the routes had.
FTCACHE_MUST_USE
ftcache_status ftcache_load_part(struct ftcache *cache,
                                 uint32_t part,
                                 const struct ftcache_streams *streams,
                                 const struct ftcache_slots *slots);

// As ftcache_admit, for one part of the step that was last partitioned. Routes of other parts are written as absent.
// Allocates and waits as that does.
//
// Requires: As for ftcache_load_part.
FTCACHE_MUST_USE
ftcache_status ftcache_admit_part(struct ftcache *cache,
                                  uint32_t part,
                                  const struct ftcache_slots *slots);

// Ends a verify step once it is known which drafts were accepted: these experts have been used, and are made the most
// recent, by a step number of their own. What was fetched for the others is the first to go after free slots. experts
// may hold one twice; each must be one that the step routed to. Once for each layer and verify step, one in parts too,
// whenever that is known: other steps may lie between. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; experts points to count numbers.
FTCACHE_MUST_USE
ftcache_status ftcache_accept(struct ftcache *cache,
                              uint32_t layer,
                              const uint32_t *experts,
                              uint64_t count);

// Makes resident what has arrived behind earlier hybrid steps (later_step_bytes of ftcache_config) and ahead of later
// ones (ftcache_hint). Every step does this first; on its own it is for an engine that looks at the residency between
// steps. landed is NULL or set to the number of rows. Allocates nothing, waits for nothing. What failed behind a step
// is told here, or by the next step.
//
// Requires: cache came from ftcache_new; landed is NULL or points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_land(struct ftcache *cache, uint64_t *landed);

// What the last step decided; while a plan of ftcache_admit_later or ftcache_admit_hint is open, what that one did.
// Waits for nothing; allocates nothing once there was a plan as long.
//
// Requires: cache came from ftcache_new; plan points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_plan_get(struct ftcache *cache, struct ftcache_plan *plan);

// The last plan in one line, for people and logs. The text is cut to fit and ended by a zero; *needed is set to the
// bytes of all of it, and may be NULL. Allocates; waits for nothing.
//
// Requires: cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
// number.
FTCACHE_MUST_USE ftcache_status ftcache_plan_text(struct ftcache *cache, char *buffer, size_t capacity, size_t *needed);

// The last plan as a map of the layer's experts, for kernels that take one: map[expert] is its slot, or absent if the
// step does not route to it or the CPU computes it. count is the number of experts. Allocates nothing, waits for
// nothing.
//
// Requires: cache came from ftcache_new; map points to count writable numbers.
FTCACHE_MUST_USE ftcache_status ftcache_plan_map(struct ftcache *cache, int32_t *map, uint64_t count, int32_t absent);

// The expert of each route of the last step that the CPU computes, in route order, and none for the others. count is
// the number of routes. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; experts points to count writable numbers.
FTCACHE_MUST_USE
ftcache_status ftcache_plan_cpu_experts(struct ftcache *cache,
                                        int32_t *experts,
                                        uint64_t count,
                                        int32_t none);

// Parts the routes' weights between device and CPU: each goes to the side that computes it, and is 0 on the other. An
// absent route's is 0 on both. count is the number of routes; the outputs may be the weights' own memory. Allocates
// nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; weights points to count numbers, device_weights and cpu_weights to count
// writable ones, and these two lie apart.
FTCACHE_MUST_USE
ftcache_status ftcache_plan_split_weights(struct ftcache *cache,
                                          const float *weights,
                                          float *device_weights,
                                          float *cpu_weights,
                                          uint64_t count);

// Ends the open plan as carried out: every row lies in its slot, or will for whatever reads it. Allocates nothing,
// waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_commit(struct ftcache *cache);

// Ends the open plan as not carried out: the slots that it would have filled are free. Old owners do not come back,
// since their rows may be overwritten; the step is in no statistics. What the router chose stays counted where victims
// go by use (ftcache_eviction). Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_abort(struct ftcache *cache);

// Opens the plan of up to most rows that the hybrid step before has left to the CPU, to be copied behind it, for
// FTCACHE_DEVICE_NONE: the rows of ftcache_plan_get. Committed, they are on their way, and their slots nobody's, until
// ftcache_land_flight; *flight is set to what that call is given. To be called right after that step's commit. May
// allocate; waits for nothing.
//
// Requires: cache came from ftcache_new; flight points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_admit_later(struct ftcache *cache, uint64_t most, uint64_t *flight);

// Makes the rows of a flight, or of a hint by its number, resident, for FTCACHE_DEVICE_NONE: their copies are done.
// landed is NULL or set to how many there are: none of a flight that is not on its way, and none that was forgotten.
// May allocate; waits for nothing.
//
// Requires: cache came from ftcache_new; landed is NULL or points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_land_flight(struct ftcache *cache, uint64_t flight, uint64_t *landed);

// Where residents come back to, for FTCACHE_DEVICE_NONE, while the plan of ftcache_bring_back is open. The array is
// the library's, and valid until the next call on the handle. Allocates nothing once there were as many; waits for
// nothing.
//
// Requires: cache came from ftcache_new; placements points to a pointer, and count to a number.
FTCACHE_MUST_USE
ftcache_status ftcache_placements_get(struct ftcache *cache,
                                      const struct ftcache_placement **placements,
                                      uint64_t *count);

// Starts to copy the rows of experts that the next step of a layer is expected to route to: as far as budget bytes go,
// rounded down to whole experts, in the order of routes, which should be the likeliest first. Speculative copies come
// behind all that steps need, and take nothing from them:
//
// - they are enqueued on a stream of their own, behind what the compute stream of the last step was given until now.
//   So this is to be called once a step is loaded and before its kernels are enqueued: the copies then go beside them;
// - no slot is taken that the last step uses, that is pinned or on its way, under a chunk's staging buffers, or whose
//   expert an earlier hint has named. Free slots go first, and then those that would go next;
// - until the layer's next step, or ftcache_cancel_hint, steps take what a hint brought only where they find no other
//   slot: no step fails for a hint. What the step did not route to is the first to go after free slots from then on.
//
// A step that routes to a row on its way hits it, and what its compute stream is given afterwards comes behind that
// copy; a hybrid step leaves it to the CPU. An id that was named before, by this hint or an earlier one, costs
// nothing, and belongs to the hint that named it last.
//
// report is NULL or set to what became of each id; absent ids are passed over. Needs hint_flight_count of
// ftcache_config. Not for device mode, and not to be called while the compute stream is being captured: both are
// refused. On FTCACHE_STATUS_DEVICE what was started counts as wasted, unless the message begins with "behind an
// earlier step": then nothing has changed, as on any other status. Allocates nothing if there are no more ids than a
// layer has experts, or than in an earlier call; waits for nothing.
//
// Requires: cache came from ftcache_new; routes points to a struct of its struct_size, and the memory that it names is
// readable as it says; report is NULL or points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_hint(struct ftcache *cache,
                            uint32_t layer,
                            const struct ftcache_routes *routes,
                            uint64_t budget,
                            struct ftcache_hint_report *report);

// Opens the plan of what a hint copies, for FTCACHE_DEVICE_NONE: decides as ftcache_hint does, and moves nothing. The
// engine makes the copies of ftcache_plan_get behind those of all steps so far and in the order of the hints, then
// calls ftcache_commit; or ftcache_abort, if it could not, which frees their slots. Committed, the rows are on their
// way until ftcache_land_flight is told the hint's number; a step that uses one before says so in awaits_flight of
// ftcache_plan. report is NULL or set as by ftcache_hint; nothing is held back here. Allocates nothing once as many
// rows were on their way, as hint_flight_count of ftcache_config makes room for; waits for nothing.
//
// Requires: As for ftcache_hint.
FTCACHE_MUST_USE
ftcache_status ftcache_admit_hint(struct ftcache *cache,
                                  uint32_t layer,
                                  const struct ftcache_routes *routes,
                                  uint64_t budget,
                                  struct ftcache_hint_report *report);

// Cancels a hint by its number, such as one that came of drafts which were rejected; 0 cancels all. Copies that the
// device was given are not taken back: what they bring is resident and the first to go. wasted is NULL or set to the
// rows that the hint had started and that count as wasted for it; none if it is not open, since its layer was stepped
// or it was cancelled. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; wasted is NULL or points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_cancel_hint(struct ftcache *cache, uint64_t hint, uint64_t *wasted);

// What became of hints over all layers: counted apart from steps, and not started over by ftcache_stats_reset.
// Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_hint_stats_get(struct ftcache *cache, struct ftcache_hint_stats *stats);

// The same of one layer's hints. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_layer_hint_stats_get(struct ftcache *cache,
                                            uint32_t layer,
                                            struct ftcache_hint_stats *stats);

// Moves the residency to the device, whose tables the settings set aside (FTCACHE_ADMISSION_DEVICE); without that they
// are allocated here, beyond total_bytes. From now on steps are admitted there, and what would decide on the host is
// refused, until ftcache_device_leave; hints that are open end. Loads the kernels, allocates, and waits for everything
// enqueued. options may be NULL.
//
// Every layer with slots must be attached, with rows that kernels read where they lie: pinned. A layer that is not is
// named.
//
//   ftcache_device_enter
//   capture: router | ftcache_device_admit | ftcache_device_gather | kernels that read the slots | ... next layer
//   launch the graph for every token                   routes in, slots out, in the same buffers
//   ftcache_check                                      what a launch was refused for
//   ftcache_device_leave                               the residency comes back, as if the steps had been loaded here
//
// What a graph holds stays good until the slots are rebuilt or the staging buffers are others; a launch that comes too
// late, or while the residency is with the host, writes -1 for every route. Once the cache is freed, no graph that
// holds its launches may be launched any more.
//
// Requires: cache came from ftcache_new; options is NULL or points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_device_enter(struct ftcache *cache,
                                    const struct ftcache_device_options *options);

// Takes the residency back with all that was decided on the device. Allocates; waits for everything enqueued.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_device_leave(struct ftcache *cache);

// Enqueues the admission of a step whose routes lie on the device: one launch, which may be captured. Allocates
// nothing, waits for nothing. The answer is what ftcache_load would have given.
//
// A step that cannot be admitted (an id that is no expert, more experts than slots, a graph of before a rebuild)
// writes -1 for every route and leaves the residency as it was; ftcache_check tells. All launches of a cache are to be
// in one order: over one stream, or over several that the engine orders by events, which may be recorded in the
// capture.
//
// Requires: cache came from ftcache_new; stream is the device's; step points to a struct of its struct_size and is as
// it says.
FTCACHE_MUST_USE
ftcache_status ftcache_device_admit(struct ftcache *cache,
                                    void *stream,
                                    const struct ftcache_device_step *step);

// Enqueues the copies that the layer's last admission decided on, in all banks: one launch, which may be captured.
// Kernels that read the slots come behind it, and so does the next admission of the layer's pool. Allocates nothing,
// waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE ftcache_status ftcache_device_gather(struct ftcache *cache, void *stream, uint32_t layer);

// The same once the host has raised a word to value or past it, counted around the end of 32 bits: for rows that the
// engine reads in late. The word lies in registered memory, and is raised after the rows were written. Allocates
// nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's; word points to an aligned uint32_t that stays there
// until every launch that was told of it is done, and is written atomically meanwhile.
FTCACHE_MUST_USE
ftcache_status ftcache_device_gather_after(struct ftcache *cache,
                                           void *stream,
                                           uint32_t layer,
                                           const uint32_t *word,
                                           uint32_t value);

// Enqueues that every slot is freed: one launch, which may be captured. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE ftcache_status ftcache_device_reset(struct ftcache *cache, void *stream);

// Enqueues the begin of a prefill chunk: slots under borrowed buffers are freed, and handed out to nobody until it
// ends. Comes behind all that reads those slots; the engine keeps the order of a chunk's calls and streams. May be
// captured. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE ftcache_status ftcache_device_chunk_begin(struct ftcache *cache, void *stream);

// Enqueues that a layer is staged in a buffer, hits from their slots and misses from the host. Comes behind all that
// reads the buffer's last layer. A borrowed buffer is not filled unless a chunk is open, which ftcache_check tells.
// May be captured. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE
ftcache_status ftcache_device_chunk_stage(struct ftcache *cache,
                                          void *stream,
                                          uint32_t layer,
                                          uint32_t buffer);

// The same in one launch, for a chunk that overlaps with nothing. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE
ftcache_status ftcache_device_chunk_materialize(struct ftcache *cache,
                                                void *stream,
                                                uint32_t layer,
                                                uint32_t buffer);

// Enqueues the end of a prefill chunk. Comes behind all that reads the buffers. May be captured. Allocates nothing,
// waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE ftcache_status ftcache_device_chunk_end(struct ftcache *cache, void *stream);

// Enqueues a reading of the residency on the device, for ftcache_device_reading_get. May be captured. Allocates
// nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stream is the device's.
FTCACHE_MUST_USE ftcache_status ftcache_device_reading_request(struct ftcache *cache, void *stream);

// The last reading that was asked for. Allocates nothing after the first; waits for nothing: is_there is 0 while it is
// being written.
//
// Requires: cache came from ftcache_new; reading points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_device_reading_get(struct ftcache *cache,
                                          struct ftcache_device_reading *reading);

// Statistics of the steps of one phase of a layer, of the last reading; phase is an ftcache_phase. *is_there is set to
// 0 if there is no reading, and the statistics are zeros then. Allocates nothing after the first reading; waits for
// nothing.
//
// Requires: cache came from ftcache_new; is_there points to a uint32_t; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_device_phase_stats_get(struct ftcache *cache,
                                              uint32_t layer,
                                              uint32_t phase,
                                              uint32_t *is_there,
                                              struct ftcache_stats *stats);

// What the last admission of a layer on the device decided. Allocates; waits for everything enqueued: for tests, and
// for engines that copy by themselves. The arrays are the library's, and valid until the next call on the handle; what
// only the host knows of a plan (runs, left, evictions) is empty.
//
// Requires: cache came from ftcache_new; plan points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_device_plan_get(struct ftcache *cache,
                                       uint32_t layer,
                                       struct ftcache_plan *plan);

// Opens a prefill chunk over these streams. Slots under borrowed buffers are freed, and handed out to nobody until it
// ends; steps may be loaded meanwhile. Then, 0, 1, 2 ... being the layers that have slots, and while another computes:
//
//   ftcache_chunk_prefetch(0), ftcache_chunk_prefetch(1)
//   for each layer l: ftcache_chunk_wait(l), kernels over ftcache_staged_span_get,
//                     ftcache_chunk_release(l), ftcache_chunk_prefetch(l + 2)
//   ftcache_chunk_end
//
// With one buffer (buffer_count of the configuration), ftcache_chunk_materialize(l) before each wait, and no prefetch.
//
// The chunk's copies come behind everything that the compute stream was given before. Enqueues events, allocates
// nothing, waits for nothing. streams may be NULL, and is not looked at where the engine copies by itself; what that
// has on its way behind a step must have landed.
//
// Requires: cache came from ftcache_new; streams is NULL or points to a struct of its struct_size, and its streams
// live until everything was synchronised after the chunk.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_begin(struct ftcache *cache, const struct ftcache_streams *streams);

// Enqueues the copies that stage a layer in a free buffer, while another may be in use; rows of residents come from
// their slots. Where the engine copies by itself, it opens the plan of ftcache_stage_plan_get instead, to be made in
// every bank and then committed or aborted; what is committed holds its buffer until ftcache_chunk_wait and
// ftcache_chunk_release, here too. Each layer is staged at most once in a chunk. Allocates nothing, waits for nothing.
//
// On FTCACHE_STATUS_DEVICE the buffer is free, and the layer may be staged again.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_prefetch(struct ftcache *cache, uint32_t layer);

// As ftcache_chunk_prefetch, in the first buffer: for a chunk that does not overlap. Allocates nothing, waits for
// nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_materialize(struct ftcache *cache, uint32_t layer);

// How the layer that is being staged comes to lie in its buffer, in one bank, while the plan is open. Allocates
// nothing once there was one as long; waits for nothing.
//
// Requires: cache came from ftcache_new; plan points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_stage_plan_get(struct ftcache *cache,
                                      uint32_t bank,
                                      struct ftcache_stage_plan *plan);

// Begins the use of a staged layer: what the compute stream is given next comes behind its copies. *buffer is set to 0
// or 1, for ftcache_staged_span_get. Enqueues a wait; allocates nothing, waits for nothing on the host. After
// FTCACHE_STATUS_DEVICE from this call or from ftcache_chunk_release, the chunk is to be abandoned.
//
// Requires: cache came from ftcache_new; buffer points to a uint32_t.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_wait(struct ftcache *cache, uint32_t layer, uint32_t *buffer);

// Ends the use of a staged layer: the next fill of its buffer waits for what the compute stream was given until now.
// Enqueues an event; allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_release(struct ftcache *cache, uint32_t layer);

// Ends the chunk. What the compute stream is given next comes behind every copy of it; where staged rows of another
// layout lie on slots, zeros take their place. report is NULL or set to what it came to. Allocates nothing, waits for
// nothing.
//
// Requires: cache came from ftcache_new; report is NULL or points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_end(struct ftcache *cache, struct ftcache_chunk_report *report);

// Ends the chunk in the middle, whatever its buffers hold; as ftcache_chunk_end. Allocates nothing, waits for nothing.
//
// Requires: As for ftcache_chunk_end.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_abandon(struct ftcache *cache, struct ftcache_chunk_report *report);

// What all chunks that have ended came to, but for those of device mode. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_chunk_total_get(struct ftcache *cache, struct ftcache_chunk_report *report);

// Where a layer lies in a bank when it is staged in a buffer: expert i at address + i * stride; slot_count is the
// number of experts. address is NULL if the layer does not read the bank or there is no such buffer. Allocates
// nothing, waits for nothing. Where the engine copies by itself, its buffers are its own.
//
// Requires: cache came from ftcache_new; span points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_staged_span_get(struct ftcache *cache,
                                       uint32_t layer,
                                       uint32_t bank,
                                       uint32_t buffer,
                                       struct ftcache_slot_span *span);

// Statistics over all layers. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_stats_get(struct ftcache *cache, struct ftcache_stats *stats);

// Statistics of one layer. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_layer_stats_get(struct ftcache *cache,
                                       uint32_t layer,
                                       struct ftcache_stats *stats);

// Statistics of the steps of one phase of a layer; phase is an ftcache_phase. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_phase_stats_get(struct ftcache *cache,
                                       uint32_t layer,
                                       uint32_t phase,
                                       struct ftcache_stats *stats);

// Statistics of one pool: the sum over its layers. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_pool_stats_get(struct ftcache *cache,
                                      uint32_t pool,
                                      struct ftcache_stats *stats);

// Everything that is counted as one JSON object: "total", "pools", "layers" (each with its "phases"), "chunks",
// "later", "hints", "digest", "step", "generation". The text is cut to fit and ended by a zero; *needed is set to the
// bytes of all of it, and may be NULL. Allocates; waits for nothing.
//
// Requires: cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
// number.
FTCACHE_MUST_USE
ftcache_status ftcache_stats_json(struct ftcache *cache,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *needed);

// Starts the statistics over. Slots stay as they are. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_stats_reset(struct ftcache *cache);

// A number of 64 bits that stands for who is where, and for the order of victims: equal on ranks that decided alike.
// Costs a pass over the slots, and over what ftcache_eviction counts; allocates nothing, waits for nothing. In device
// mode, of the time when the residency went there: ftcache_device_reading_get has the device's.
//
// Requires: cache came from ftcache_new; digest points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_digest(struct ftcache *cache, uint64_t *digest);

// Counts the rebuilds: with each, addresses that were handed out before are void. Allocates nothing, waits for
// nothing.
//
// Requires: cache came from ftcache_new; generation points to a number.
FTCACHE_MUST_USE ftcache_status ftcache_generation(struct ftcache *cache, uint64_t *generation);

// Exchanges the slots and the staging for those of another configuration of the same model. Waits until nothing is on
// its way, and allocates: nobody may read the slots any more.
//
// keep 1: residents survive, the most recently used first. While they move, the old and the new slots lie beside each
// other: if that is more than most_bytes, or more than the device has, nobody survives, and the report says so.
// UINT64_MAX is no limit; 0 keeps nobody. In memory of the engine's nothing lies beside, and most_bytes does not
// count, nor where the engine copies by itself: it moves the rows of the report's moves, and must have landed what is
// on its way.
//
// Who survives is the most recently used under every rule for victims. What such a rule has counted goes on if the new
// configuration has the same, and starts over with another. Open hints end.
//
// Addresses that were handed out are void afterwards (ftcache_generation): spans and pools are to be asked for anew.
// So is every graph that holds launches of device mode. Pins and the order of steps go on; statistics start over.
// report may be NULL.
//
// If the configuration is refused, nothing has changed. If the device has not the memory, the old slots are there
// again and empty; or there are none, and every call that needs some says FTCACHE_STATUS_UNAVAILABLE until a rebuild
// brings some back.
//
// Requires: cache came from ftcache_new; configuration came from this library; report is NULL or points to a struct of
// its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_rebuild(struct ftcache *cache,
                               const struct ftcache_configuration *configuration,
                               uint32_t keep,
                               uint64_t most_bytes,
                               struct ftcache_rebuild_report *report);

// Who is in a slot, in the order of use, as bytes to be kept for a later run. fingerprint is the caller's: a hash of
// the model file and whatever else must be the same then.
//
// In device mode it is who was when the residency went there.
//
// *needed is set to their number. If capacity is less, nothing is written; buffer may be NULL if capacity is 0.
// Allocates; waits for nothing.
//
// Requires: cache came from ftcache_new; buffer points to capacity writable bytes; needed points to a number.
FTCACHE_MUST_USE
ftcache_status ftcache_residents_get(struct ftcache *cache,
                                     uint64_t fingerprint,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *needed);

// Brings residents back into an empty cache: of each pool's as many as it has slots, the most recently used. The bytes
// are those of ftcache_residents_get, and fingerprint what was given to it.
//
// Copies are enqueued on the copy stream, and what the compute stream is given next comes behind them; *copied is set
// to their bytes, and may be NULL. Where the engine copies by itself, it opens the plan of ftcache_placements_get
// instead, and *copied is set to 0. Allocates; waits for nothing.
//
// Requires: cache came from ftcache_new; streams is NULL or points to a struct of its struct_size; bytes points to
// count bytes; copied is NULL or points to a number.
FTCACHE_MUST_USE
ftcache_status ftcache_bring_back(struct ftcache *cache,
                                  const struct ftcache_streams *streams,
                                  const void *bytes,
                                  size_t count,
                                  uint64_t fingerprint,
                                  uint64_t *copied);

// What was found out about the device when the cache was made. Asks it for its free memory; allocates nothing, waits
// for nothing.
//
// Requires: cache came from ftcache_new; facts points to a struct of its struct_size.
FTCACHE_MUST_USE ftcache_status ftcache_device_facts_get(struct ftcache *cache, struct ftcache_device_facts *facts);

// The same for people, with the device's name and, if copies go one by one, the reason: one fact a line. The text is
// cut to fit and ended by a zero; *needed is set to the bytes of all of it, and may be NULL. Allocates; waits for
// nothing.
//
// Requires: cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
// number.
FTCACHE_MUST_USE
ftcache_status ftcache_device_text(struct ftcache *cache,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *needed);

// Measures whether every arena lies on the device, before any rows are attached: where device memory may overflow into
// the host's, one that does not is far slower, without an error. *spilled is set to the number of those that do not.
//
// Allocates up to 256 MiB of device memory for the moment; waits for everything enqueued. The text has each arena's
// rate; it is cut to fit and ended by a zero, and buffer may be NULL if capacity is 0.
//
// Requires: cache came from ftcache_new; spilled points to a uint32_t; buffer points to capacity writable bytes.
FTCACHE_MUST_USE
ftcache_status ftcache_arenas_measure(struct ftcache *cache,
                                      uint32_t *spilled,
                                      char *buffer,
                                      size_t capacity);

// Makes a recorder. Allocates; waits for nothing.
//
// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_recorder_free.
//
// Requires: config points to a struct of its struct_size; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_recorder_new(const struct ftcache_recorder_config *config,
                                    struct ftcache_recorder **out);

// Says that the next step is another request's, or another phase of one; phase is an ftcache_phase, of which drafts
// count as decode. Without it all is decode of request 0. Allocates nothing, waits for nothing.
//
// Requires: recorder came from ftcache_recorder_new.
FTCACHE_MUST_USE
ftcache_status ftcache_recorder_begin(struct ftcache_recorder *recorder,
                                      uint64_t request,
                                      uint32_t phase);

// Notes one layer's routes of one step, in the router's order: a row for each token. The layers of a step come in
// ascending order; one that is not above the one before starts the next step, and one that is left out is absent. An
// id that is no expert makes its token's cell absent. Allocates nothing once there was a step as wide; waits for
// nothing.
//
// Requires: recorder came from ftcache_recorder_new; routes points to a struct of its struct_size, and the memory that
// it names is readable as it says.
FTCACHE_MUST_USE
ftcache_status ftcache_recorder_record(struct ftcache_recorder *recorder,
                                       uint32_t layer,
                                       const struct ftcache_routes *routes);

// How a recorder is doing. Allocates nothing, waits for nothing.
//
// Requires: recorder came from ftcache_recorder_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_recorder_get(struct ftcache_recorder *recorder,
                                    struct ftcache_recorder_report *report);

// Writes what is held to a file that `ftcache replay` and `ftcache trace` read: compressed if the name ends with .zst.
// A file of that name is replaced; recording may go on. Allocates as much as is held, and blocks while it is written.
//
// Requires: recorder came from ftcache_recorder_new; path is a text.
FTCACHE_MUST_USE ftcache_status ftcache_recorder_write(struct ftcache_recorder *recorder, const char *path);

// Frees a recorder and what it holds; NULL is accepted. No other call may be inside it. Waits for nothing.
void ftcache_recorder_free(struct ftcache_recorder *recorder);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FTCACHE_H */
