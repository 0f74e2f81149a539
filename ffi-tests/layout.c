// Sizes, offsets and numbers that programs were compiled with. A change here breaks them.

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)

SIZE(ftcache_status, 4);
SIZE(ftcache_model_config, 24);
AT(ftcache_model_config, one_quantisation, 16);
SIZE(ftcache_layer, 32);
AT(ftcache_layer, row_bytes, 8);
AT(ftcache_layer, tag_bytes, 24);
SIZE(ftcache_geometry_config, 64);
AT(ftcache_geometry_config, budget_bytes, 8);
AT(ftcache_geometry_config, request_count, 24);
AT(ftcache_geometry_config, tail_pad_bytes, 56);
SIZE(ftcache_geometry_report, 40);
AT(ftcache_geometry_report, slot_count, 16);
SIZE(ftcache_pool_report, 40);
AT(ftcache_pool_report, slot_bytes, 24);
SIZE(ftcache_slot_range, 48);
AT(ftcache_slot_range, arena_bytes, 40);
SIZE(ftcache_config, 16);
SIZE(ftcache_host_rows, 32);
AT(ftcache_host_rows, stride, 24);
SIZE(ftcache_slot_span, 32);
AT(ftcache_slot_span, address, 8);
SIZE(ftcache_routes, 56);
AT(ftcache_routes, row_count, 16);
AT(ftcache_routes, absent_id, 40);
AT(ftcache_routes, has_absent, 48);
SIZE(ftcache_slots, 32);
AT(ftcache_slots, absent_slot, 24);
SIZE(ftcache_streams, 24);
SIZE(ftcache_stats, 64);
AT(ftcache_stats, bytes, 56);

_Static_assert(FTCACHE_STATUS_OK == 0, "zero is success");
_Static_assert(FTCACHE_STATUS_PANICKED == 10, "numbers never change their meaning");
_Static_assert(FTCACHE_SCOPE_PER_LAYER == 1 && FTCACHE_TAIL_PAD_BYTES == 1 && FTCACHE_DEVICE_HOST == 0, "so do these");

int main(void) { return 0; }
