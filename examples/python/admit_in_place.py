"""Admits a decode step in place: a router's int32 buffer goes in as expert ids and comes back as slots.

A buffer is anything with torch's data_ptr(), shape, stride() and element_size(), in host memory: topk_ids on the CPU
is one. FTCACHE_LIBRARY names the shared library.
"""
import ctypes as c
import os

u32, u64, i64, pointer = c.c_uint32, c.c_uint64, c.c_int64, c.c_void_p
library = c.CDLL(os.environ["FTCACHE_LIBRARY"])
library.ftcache_last_error.restype = c.c_char_p


def struct(**fields):
    """A struct of ftcache.h, or its beginning: the library reads what a shorter one lacks as zeros."""
    kind = type("Struct", (c.Structure,), {"_fields_": [("struct_size", u32), *fields.items()]})
    return lambda **values: kind(struct_size=c.sizeof(kind), **values)


ModelConfig = struct(layer_count=u32, expert_count=u32, top_k=u32, one_quantisation=u32, reserved=u32)
Layer = struct(bank_count=u32, row_bytes=c.POINTER(u64), tag=pointer, tag_bytes=u64)
Settings = struct(scope=u32, budget_bytes=u64, slot_count=u64, budget=c.c_char_p, free_bytes=u64, reserves=pointer,
                  reserve_count=u64, request_count=u32, lower_requests=u32, batch_sizes=pointer, batch_size_count=u64,
                  slot_limit=u32, staging=u32)
STAGING_NOWHERE = 2
HostRows = struct(reserved=u32, base=pointer, bytes=u64)
Step = struct(layer=u32)
Routes = struct(id_bytes=u32, ids=pointer, row_count=u64, row_width=u64, row_stride_bytes=u64)
Slots = struct(slot_bytes=u32, slots=pointer, row_stride_bytes=u64, absent_slot=i64, cpu_slot=i64)


def call(function, *arguments):
    """Calls a function that returns a status; one that is not OK raises, with the library's message."""
    values = [c.byref(value) if isinstance(value, c.Structure) else value for value in arguments]
    if status := getattr(library, function)(*values):
        raise RuntimeError(f"{function}: status {status}: {library.ftcache_last_error().decode()}")


class Cache:
    """Slots for a model's experts. banks[layer] is a list of bytearrays, each one row for every expert."""

    def __init__(self, banks, expert_count, top_k, slot_count):
        model, configuration, self.handle, self.banks = pointer(), pointer(), pointer(), banks
        try:
            call("ftcache_model_new", ModelConfig(layer_count=len(banks), expert_count=expert_count, top_k=top_k,
                                                  one_quantisation=1), c.byref(model))
            for layer, arrays in enumerate(banks):
                row_bytes = (u64 * len(arrays))(*(len(array) // expert_count for array in arrays))
                call("ftcache_model_layer_set", model, u32(layer), Layer(bank_count=len(arrays), row_bytes=row_bytes))
            settings = Settings(slot_count=slot_count, staging=STAGING_NOWHERE)
            call("ftcache_configuration_new", model, settings, c.byref(configuration))
            call("ftcache_new", configuration, None, c.byref(self.handle))
        finally:
            library.ftcache_configuration_free(configuration)
            library.ftcache_model_free(model)
        for layer, arrays in enumerate(banks):
            for bank, array in enumerate(arrays):
                rows = HostRows(base=c.addressof(c.c_char.from_buffer(array)), bytes=len(array))
                call("ftcache_attach", self.handle, u32(layer), u32(bank), rows)

    def admit(self, layer, ids):
        """Copies the rows that are missing, then overwrites each id of a two-dimensional buffer by its slot."""
        bytes_of_id, address = ids.element_size(), ids.data_ptr()
        stride = ids.stride(0) * bytes_of_id  # topk_ids may be a view of all experts, sorted
        routes = Routes(id_bytes=bytes_of_id, ids=address, row_count=ids.shape[0], row_width=ids.shape[1],
                        row_stride_bytes=stride)
        slots = Slots(slot_bytes=bytes_of_id, slots=address, row_stride_bytes=stride, absent_slot=-1, cpu_slot=-1)
        call("ftcache_load", self.handle, Step(layer=layer), routes, None, slots)

    def close(self):
        library.ftcache_free(self.handle)
        self.handle = pointer()
