"""The shared library from ctypes, as an extension of a Python engine would try it first: examples/python, step by step.

Run by CTest, which sets FTCACHE_LIBRARY.
"""
import array
import ctypes as c
import json
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples" / "python"))
import admit_in_place as example  # noqa: E402

LAYERS, EXPERTS, TOP_K = 2, 8, 2
ROW_BYTES = (96, 2)

SlotSpan = example.struct(slot_count=c.c_uint32, address=c.c_void_p, stride=c.c_uint64, row_bytes=c.c_uint64)


class Int32Buffer:
    """As much of a two-dimensional torch.int32 tensor as the example asks of one."""

    def __init__(self, rows, row_elements=None, kind="i"):
        width = len(rows[0])
        self.shape = (len(rows), width)
        self.row_elements = row_elements or width
        self.values = array.array(kind, [99] * (self.row_elements * len(rows)))
        for index, row in enumerate(rows):
            self.values[index * self.row_elements : index * self.row_elements + width] = array.array(kind, row)

    def data_ptr(self):
        return self.values.buffer_info()[0]

    def stride(self, dimension):
        return (self.row_elements, 1)[dimension]

    def element_size(self):
        return self.values.itemsize

    def rows(self):
        return [list(self.values[at : at + self.shape[1]]) for at in range(0, len(self.values), self.row_elements)]


def row(layer, bank, expert):
    return bytes((1 + layer * 100 + bank * 50 + expert,)) * ROW_BYTES[bank]


def banks():
    return [
        [bytearray(b"".join(row(layer, bank, expert) for expert in range(EXPERTS))) for bank in range(len(ROW_BYTES))]
        for layer in range(LAYERS)
    ]


class AdmitsInPlace(unittest.TestCase):
    def setUp(self):
        self.cache = example.Cache(banks(), EXPERTS, TOP_K, slot_count=6)
        self.addCleanup(self.cache.close)

    def in_slot(self, bank, slot):
        span = SlotSpan()
        example.call("ftcache_slot_span_get", self.cache.handle, c.c_uint32(0), c.c_uint32(bank), span)
        self.assertEqual((span.slot_count, span.row_bytes), (6, ROW_BYTES[bank]))
        return c.string_at(span.address + slot * span.stride, span.row_bytes)

    def admit(self, layer, experts, slots, **buffer):
        """Admits rows of experts, and checks the slots that they become and what lies in them."""
        ids = Int32Buffer(experts, **buffer)
        self.cache.admit(layer, ids)
        self.assertEqual(ids.rows(), slots)
        for expert, slot in zip(sum(experts, []), sum(slots, [])):
            for bank in range(len(ROW_BYTES)):
                self.assertEqual(self.in_slot(bank, slot), row(layer, bank, expert))
        return ids

    def test_ids_become_slots_that_hold_their_rows(self):
        self.admit(0, [[5, 2], [2, 7]], [[1, 0], [0, 2]])
        self.admit(1, [[0, 1]], [[3, 4]])
        # Layer 0 was before layer 1: its experts are the victims, but for the one that comes again.
        self.admit(0, [[2, 3], [4, 6]], [[0, 5], [1, 2]])

    def test_a_view_of_sorted_experts_is_read_by_its_stride_and_nothing_else_of_it_is_written(self):
        ids = self.admit(0, [[5, 2], [2, 7]], [[1, 0], [0, 2]], row_elements=EXPERTS)
        for index in range(2):
            self.assertEqual(list(ids.values[index * EXPERTS + 2 : (index + 1) * EXPERTS]), [99] * (EXPERTS - 2))

    def test_torch_picks_int64(self):
        self.admit(1, [[7, 6]], [[1, 0]], kind="q")

    def test_a_stray_id_is_named_and_nothing_changes(self):
        ids = Int32Buffer([[1, 2], [8, 3]])
        told = "^ftcache_load: status 2: layer 0: route 2 is 8, which is no expert of 0..8$"
        with self.assertRaisesRegex(RuntimeError, told):
            self.cache.admit(0, ids)
        self.assertEqual(ids.rows(), [[1, 2], [8, 3]])
        self.admit(0, [[1, 2]], [[0, 1]])

    def test_statistics_are_json(self):
        self.admit(0, [[5, 2], [2, 7]], [[1, 0], [0, 2]])
        needed = c.c_size_t()
        example.call("ftcache_stats_json", self.cache.handle, None, c.c_size_t(0), c.byref(needed))
        text = c.create_string_buffer(needed.value)
        example.call("ftcache_stats_json", self.cache.handle, text, c.c_size_t(len(text)), None)
        told = json.loads(text.value)
        self.assertEqual(needed.value, len(text.value) + 1)
        decode = told["layers"][0]["phases"]["decode"]
        for counted in (told["total"], told["pools"][0], decode):
            numbers = [counted[name] for name in ("steps", "routes", "distinct", "misses", "fetched", "bytes")]
            self.assertEqual(numbers, [1, 4, 3, 3, 3, 3 * sum(ROW_BYTES)])

    def test_a_configuration_that_cannot_be_had_raises_and_leaves_nothing(self):
        with self.assertRaisesRegex(RuntimeError, r"^ftcache_configuration_new: status 3: .* 17 are given$"):
            example.Cache(banks(), EXPERTS, TOP_K, slot_count=17)

    def test_threads_of_an_interpreter_have_their_own_caches_and_messages(self):
        failures = []

        def run(number):
            cache = example.Cache(banks(), EXPERTS, TOP_K, slot_count=4 + number)
            try:
                for turn in range(200):
                    ids = Int32Buffer([[(turn + number) % EXPERTS, (turn * 3) % EXPERTS]])
                    cache.admit(turn % LAYERS, ids)
                    stray = Int32Buffer([[EXPERTS + number, 0]])
                    try:
                        cache.admit(0, stray)
                        failures.append("a stray id was taken")
                    except RuntimeError as error:
                        if f" {EXPERTS + number}" not in str(error):
                            failures.append(str(error))
            finally:
                cache.close()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()
