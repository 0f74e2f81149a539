/* ftcache.h: a GPU expert-slot cache for mixture-of-experts inference.
 *
 * Written by `cargo xtask header` from crates/ftcache-capi; changes belong there.
 *
 * A model's experts do not fit in device memory. Their rows lie in host memory, and a bounded number of slots on the
 * device hold the experts that the router keeps asking for. In order:
 *
 *   1. describe the model:    ftcache_model_new, ftcache_model_layer_set
 *   2. plan slots for bytes:  ftcache_geometry_new, ftcache_geometry_get
 *   3. make the cache:        ftcache_new, ftcache_attach for every layer and bank
 *   4. at every step:         ftcache_load, then kernels that read ftcache_slot_span_get
 *   5. see how it goes:       ftcache_stats_get, ftcache_layer_stats_get
 *
 * Conventions
 *
 * A function that can be refused returns an ftcache_status; ftcache_last_error has the reason in one line. Nothing unwinds
 * into the caller, and nothing is written to stderr but the message of a panic, which is a fault of ours.
 *
 * A struct begins with its struct_size: set it to sizeof, the rest to zeros, then what is wanted. A library of another
 * version reads a shorter struct as followed by zeros, and accepts a longer one whose unknown tail is zeros.
 *
 * A pointer must not be NULL unless its sentence says that it may. What a function is given stays the caller's; what a
 * _new gives out is freed by its _free, which accepts NULL.
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
    // may be tried again.
    FTCACHE_STATUS_DEVICE = 7,
    // Another thread is inside a call on the same handle. Nothing has changed.
    FTCACHE_STATUS_BUSY = 8,
    // An earlier call on this handle panicked; only ftcache_free works.
    FTCACHE_STATUS_POISONED = 9,
    // A fault of ours. The handle, if one was given, is poisoned: half-changed maps must not feed a multiply.
    FTCACHE_STATUS_PANICKED = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_status ftcache_status;
#else
typedef int32_t ftcache_status;
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

// What holds the slots.
enum ftcache_device
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Ordinary memory: no GPU is needed, and every copy is done when the call returns. It has the default stream
    // alone.
    FTCACHE_DEVICE_HOST = 0,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ftcache_device ftcache_device;
#else
typedef uint32_t ftcache_device;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A cache of one model's experts on one device. Handles share nothing, so a draft model makes its own or has none.
//
// One thread at a time: a second one that comes in is given FTCACHE_STATUS_BUSY. Any thread may be that one.
typedef struct ftcache ftcache;

// Pools and arenas for a budget. It never changes: any number of threads may ask it at once, and it may be freed while
// caches that were made of it live on.
typedef struct ftcache_geometry ftcache_geometry;

// A model's description, filled layer by layer.
//
// One thread at a time. It may be freed once every geometry that is wanted has been made of it.
typedef struct ftcache_model ftcache_model;

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

// What is wanted of a geometry. Exactly one of budget_bytes and slot_count is not 0.
typedef struct ftcache_geometry_config {
    // sizeof(ftcache_geometry_config).
    uint32_t struct_size;
    // An ftcache_scope.
    uint32_t scope;
    // Bytes over all arenas, pads included; never exceeded, and no pool could take one more slot.
    uint64_t budget_bytes;
    // Slots over all pools.
    uint64_t slot_count;
    // Requests decoded at once; each pool gets at least what one step of them can need. 0 means 1.
    uint32_t request_count;
    // The most slots that the engine's kernels index in one pool. 0 means no limit.
    uint32_t slot_limit;
    // Slot strides and pool offsets are multiples of this power of two. 0 means 1: rows without gaps.
    uint64_t alignment;
    // Bytes between the end of a row and the next slot.
    uint64_t slot_pad_bytes;
    // An ftcache_tail_pad.
    uint32_t tail_pad;
    // 0.
    uint32_t reserved;
    // Bytes after a pool's last slot, if tail_pad is FTCACHE_TAIL_PAD_BYTES.
    uint64_t tail_pad_bytes;
} ftcache_geometry_config;

// What a geometry came to.
typedef struct ftcache_geometry_report {
    // sizeof(ftcache_geometry_report), set by the caller.
    uint32_t struct_size;
    // Pools, numbered from 0 in the order in which they lie in the arenas.
    uint32_t pool_count;
    // Banks: the most that any layer has.
    uint32_t bank_count;
    // Requests that can be decoded at once; 0 if any number can.
    uint32_t request_limit;
    // Slots over all pools.
    uint64_t slot_count;
    // Bytes of all arenas: what the engine sets aside on the device.
    uint64_t total_bytes;
    // Of these, bytes that hold no row.
    uint64_t pad_bytes;
} ftcache_geometry_report;

// One pool of a geometry.
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

// How a cache is made.
typedef struct ftcache_config {
    // sizeof(ftcache_config).
    uint32_t struct_size;
    // An ftcache_device.
    uint32_t device;
    // Bytes that the device may have, for trying out small ones; 0 means as many as there are.
    uint64_t device_bytes;
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

// The slots of one pool in one bank: slot i lies at address + i * stride.
typedef struct ftcache_slot_span {
    // sizeof(ftcache_slot_span), set by the caller.
    uint32_t struct_size;
    // Slots.
    uint32_t slot_count;
    // Device address of slot 0, a multiple of the geometry's alignment and of 64 if no pool lies before. It does not
    // move as long as the cache lives.
    void *address;
    // Bytes from one slot to the next.
    uint64_t stride;
    // Bytes of a row.
    uint64_t row_bytes;
} ftcache_slot_span;

// The routes of one step as the router left them: row_count rows (tokens) of row_width ids.
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
    // 0.
    uint32_t reserved;
} ftcache_routes;

// The engine's own streams. FTCACHE_DEVICE_HOST has the default stream alone, so both are NULL there.
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

// Where a slot for each route is written, in the routes' rows and order. This may be the ids' own memory.
typedef struct ftcache_slots {
    // sizeof(ftcache_slots).
    uint32_t struct_size;
    // Bytes of a slot number: 4 or 8; 0 means 4.
    uint32_t slot_bytes;
    // The first slot number. May be NULL if there are no routes. Any alignment.
    void *slots;
    // Bytes from one row's first slot to the next row's; 0 means rows without gaps.
    uint64_t row_stride_bytes;
    // What is written for a route that is absent: a number of slot_bytes bytes that is no slot of the pool, since no
    // slot is given out twice.
    int64_t absent_slot;
} ftcache_slots;

// What the steps since the start, or since ftcache_stats_reset, came to.
typedef struct ftcache_stats {
    // sizeof(ftcache_stats), set by the caller.
    uint32_t struct_size;
    // 0.
    uint32_t reserved;
    // Steps whose rows were copied; one a call, whatever its width.
    uint64_t steps;
    // Routes, duplicates included, absent ones not.
    uint64_t routes;
    // Distinct experts, summed over steps: hits and misses together.
    uint64_t distinct;
    // Distinct experts that were resident before their step.
    uint64_t hits;
    // Distinct experts that were not.
    uint64_t misses;
    // Misses that took a slot from another expert.
    uint64_t evictions;
    // Bytes copied from the host to slots.
    uint64_t bytes;
} ftcache_stats;

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
//
// Requires: config points to a struct of its struct_size; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_model_new(const struct ftcache_model_config *config,
                                 struct ftcache_model **out);

// Sets what one layer's kernels read; again to replace it.
//
// Requires: model came from ftcache_model_new; layer_config points to a struct of its struct_size, and its pointers to as many
// values as it says.
FTCACHE_MUST_USE
ftcache_status ftcache_model_layer_set(struct ftcache_model *model,
                                       uint32_t layer,
                                       const struct ftcache_layer *layer_config);

// Frees a model; NULL is accepted. Geometries that were made of it stay.
void ftcache_model_free(struct ftcache_model *model);

// Makes a geometry, or says which two numbers conflict. Pure: touches no device, and the model may be freed
// afterwards.
//
// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_geometry_free.
//
// Requires: model came from ftcache_model_new; config points to a struct of its struct_size; out points to a pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_geometry_new(const struct ftcache_model *model,
                                    const struct ftcache_geometry_config *config,
                                    struct ftcache_geometry **out);

// What the geometry came to.
//
// Requires: geometry came from ftcache_geometry_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_geometry_get(const struct ftcache_geometry *geometry,
                                    struct ftcache_geometry_report *report);

// What one pool came to.
//
// Requires: geometry came from ftcache_geometry_new; report points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_geometry_pool_get(const struct ftcache_geometry *geometry,
                                         uint32_t pool,
                                         struct ftcache_pool_report *report);

// The pool that serves a layer.
//
// Requires: geometry came from ftcache_geometry_new; pool points to a uint32_t.
FTCACHE_MUST_USE
ftcache_status ftcache_geometry_layer_pool(const struct ftcache_geometry *geometry,
                                           uint32_t layer,
                                           uint32_t *pool);

// Where the slots of one pool lie in one bank's arena.
//
// Requires: geometry came from ftcache_geometry_new; range points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_geometry_slot_range_get(const struct ftcache_geometry *geometry,
                                               uint32_t pool,
                                               uint32_t bank,
                                               struct ftcache_slot_range *range);

// Frees a geometry; NULL is accepted.
void ftcache_geometry_free(struct ftcache_geometry *geometry);

// Makes a cache: allocates every slot on the device, filled with zeros. Allocates; may block.
//
// config may be NULL for the defaults. The geometry may be freed afterwards. *out is set to NULL if this does not
// succeed; else the caller frees it with ftcache_free.
//
// Requires: geometry came from ftcache_geometry_new; config is NULL or points to a struct of its struct_size; out points to a
// pointer.
FTCACHE_MUST_USE
ftcache_status ftcache_new(const struct ftcache_geometry *geometry,
                           const struct ftcache_config *config,
                           struct ftcache **out);

// Attaches the rows of one bank of a layer, in any order; again after they have moved, with the same bytes.
//
// The rows stay the caller's. They must stay readable and unchanged until they are attached anew or the cache is
// freed, and until every stream that they are copied on has been synchronised. A bank whose row_bytes is 0 has none.
//
// Requires: cache came from ftcache_new; rows points to a struct of its struct_size, and base to as many bytes as it says.
FTCACHE_MUST_USE
ftcache_status ftcache_attach(struct ftcache *cache,
                              uint32_t layer,
                              uint32_t bank,
                              const struct ftcache_host_rows *rows);

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

// Frees a cache and its slots, once what is enqueued is done; NULL is accepted. No other call may be inside it.
void ftcache_free(struct ftcache *cache);

// Makes the experts of a step resident and writes a slot for each route, local to the pool of the layer.
//
// Any number of routes is one step: an expert that is routed to twice has one slot and is copied once, and no slot
// that the step uses is given to another expert. Copies are enqueued on the copy stream, behind what the compute
// stream was given before; what the compute stream is given afterwards comes behind the copies. A step that names
// another compute stream than the one before comes behind that one, which must be alive still. Nothing is waited
// for; a step without a miss enqueues nothing, and allocates nothing if it is no wider than an earlier one or than
// the requests of the geometry. Not to be called while a stream is being captured.
//
// streams may be NULL: the default stream then does both.
//
// On FTCACHE_STATUS_OUT_OF_RANGE, FTCACHE_STATUS_STEP_TOO_WIDE and FTCACHE_STATUS_NOT_ATTACHED nothing has changed. On
// FTCACHE_STATUS_DEVICE the slots of the step's misses are free, and the step may be tried again. In every case but
// FTCACHE_STATUS_OK the caller's slots are as they were.
//
// Requires: cache came from ftcache_new; routes, streams and slots point to structs of their struct_size, and the memory that
// they name is readable and writable as they say.
FTCACHE_MUST_USE
ftcache_status ftcache_load(struct ftcache *cache,
                            uint32_t layer,
                            const struct ftcache_routes *routes,
                            const struct ftcache_streams *streams,
                            const struct ftcache_slots *slots);

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

// Statistics of one pool: the sum over its layers. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new; stats points to a struct of its struct_size.
FTCACHE_MUST_USE
ftcache_status ftcache_pool_stats_get(struct ftcache *cache,
                                      uint32_t pool,
                                      struct ftcache_stats *stats);

// Starts the statistics over. Slots stay as they are. Allocates nothing, waits for nothing.
//
// Requires: cache came from ftcache_new.
FTCACHE_MUST_USE ftcache_status ftcache_stats_reset(struct ftcache *cache);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FTCACHE_H */
