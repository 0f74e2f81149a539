// Sizes, offsets and numbers that programs were compiled with. A change here breaks them.

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)

SIZE(ftcache_status, 4);

SIZE(ftcache_model_config, 24);
AT(ftcache_model_config, struct_size, 0);
AT(ftcache_model_config, layer_count, 4);
AT(ftcache_model_config, expert_count, 8);
AT(ftcache_model_config, top_k, 12);
AT(ftcache_model_config, one_quantisation, 16);
AT(ftcache_model_config, reserved, 20);

SIZE(ftcache_layer, 32);
AT(ftcache_layer, struct_size, 0);
AT(ftcache_layer, bank_count, 4);
AT(ftcache_layer, row_bytes, 8);
AT(ftcache_layer, tag, 16);
AT(ftcache_layer, tag_bytes, 24);

SIZE(ftcache_geometry_config, 64);
AT(ftcache_geometry_config, struct_size, 0);
AT(ftcache_geometry_config, scope, 4);
AT(ftcache_geometry_config, budget_bytes, 8);
AT(ftcache_geometry_config, slot_count, 16);
AT(ftcache_geometry_config, request_count, 24);
AT(ftcache_geometry_config, slot_limit, 28);
AT(ftcache_geometry_config, alignment, 32);
AT(ftcache_geometry_config, slot_pad_bytes, 40);
AT(ftcache_geometry_config, tail_pad, 48);
AT(ftcache_geometry_config, reserved, 52);
AT(ftcache_geometry_config, tail_pad_bytes, 56);

SIZE(ftcache_geometry_report, 40);
AT(ftcache_geometry_report, struct_size, 0);
AT(ftcache_geometry_report, pool_count, 4);
AT(ftcache_geometry_report, bank_count, 8);
AT(ftcache_geometry_report, request_limit, 12);
AT(ftcache_geometry_report, slot_count, 16);
AT(ftcache_geometry_report, total_bytes, 24);
AT(ftcache_geometry_report, pad_bytes, 32);

SIZE(ftcache_pool_report, 40);
AT(ftcache_pool_report, struct_size, 0);
AT(ftcache_pool_report, slot_count, 4);
AT(ftcache_pool_report, layer_count, 8);
AT(ftcache_pool_report, min_slots, 12);
AT(ftcache_pool_report, max_slots, 16);
AT(ftcache_pool_report, reserved, 20);
AT(ftcache_pool_report, slot_bytes, 24);
AT(ftcache_pool_report, pool_bytes, 32);

SIZE(ftcache_slot_range, 48);
AT(ftcache_slot_range, struct_size, 0);
AT(ftcache_slot_range, slot_count, 4);
AT(ftcache_slot_range, row_bytes, 8);
AT(ftcache_slot_range, stride, 16);
AT(ftcache_slot_range, offset, 24);
AT(ftcache_slot_range, tail_pad_bytes, 32);
AT(ftcache_slot_range, arena_bytes, 40);

SIZE(ftcache_config, 16);
AT(ftcache_config, struct_size, 0);
AT(ftcache_config, device, 4);
AT(ftcache_config, device_bytes, 8);

SIZE(ftcache_host_rows, 32);
AT(ftcache_host_rows, struct_size, 0);
AT(ftcache_host_rows, reserved, 4);
AT(ftcache_host_rows, base, 8);
AT(ftcache_host_rows, bytes, 16);
AT(ftcache_host_rows, stride, 24);

SIZE(ftcache_slot_span, 32);
AT(ftcache_slot_span, struct_size, 0);
AT(ftcache_slot_span, slot_count, 4);
AT(ftcache_slot_span, address, 8);
AT(ftcache_slot_span, stride, 16);
AT(ftcache_slot_span, row_bytes, 24);

SIZE(ftcache_routes, 56);
AT(ftcache_routes, struct_size, 0);
AT(ftcache_routes, id_bytes, 4);
AT(ftcache_routes, ids, 8);
AT(ftcache_routes, row_count, 16);
AT(ftcache_routes, row_width, 24);
AT(ftcache_routes, row_stride_bytes, 32);
AT(ftcache_routes, absent_id, 40);
AT(ftcache_routes, has_absent, 48);
AT(ftcache_routes, reserved, 52);

SIZE(ftcache_streams, 24);
AT(ftcache_streams, struct_size, 0);
AT(ftcache_streams, reserved, 4);
AT(ftcache_streams, compute, 8);
AT(ftcache_streams, copy, 16);

SIZE(ftcache_slots, 32);
AT(ftcache_slots, struct_size, 0);
AT(ftcache_slots, slot_bytes, 4);
AT(ftcache_slots, slots, 8);
AT(ftcache_slots, row_stride_bytes, 16);
AT(ftcache_slots, absent_slot, 24);

SIZE(ftcache_stats, 64);
AT(ftcache_stats, struct_size, 0);
AT(ftcache_stats, reserved, 4);
AT(ftcache_stats, steps, 8);
AT(ftcache_stats, routes, 16);
AT(ftcache_stats, distinct, 24);
AT(ftcache_stats, hits, 32);
AT(ftcache_stats, misses, 40);
AT(ftcache_stats, evictions, 48);
AT(ftcache_stats, bytes, 56);

_Static_assert(FTCACHE_STATUS_OK == 0, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_INVALID_ARGUMENT == 1, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_OUT_OF_RANGE == 2, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_UNSATISFIABLE == 3, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_STEP_TOO_WIDE == 4, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_NOT_ATTACHED == 5, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_OUT_OF_MEMORY == 6, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_DEVICE == 7, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_BUSY == 8, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_POISONED == 9, "numbers never change their meaning");
_Static_assert(FTCACHE_STATUS_PANICKED == 10, "numbers never change their meaning");
_Static_assert(FTCACHE_SCOPE_UNIFIED == 0, "numbers never change their meaning");
_Static_assert(FTCACHE_SCOPE_PER_LAYER == 1, "numbers never change their meaning");
_Static_assert(FTCACHE_TAIL_PAD_ROW == 0, "numbers never change their meaning");
_Static_assert(FTCACHE_TAIL_PAD_BYTES == 1, "numbers never change their meaning");
_Static_assert(FTCACHE_DEVICE_HOST == 0, "numbers never change their meaning");

int main(void) { return 0; }
