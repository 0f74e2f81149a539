"""Writes the GGUF headers that the tests of ftcache-model read, with PyPI's gguf: what our reader reads, others wrote.

A header is everything before the tensor data. A test copies one and sets the file's length to the bytes that
`headers.json` names, which makes a sparse model of zeros. `ggml_types.json` is the type table of the same package.

    pip install gguf==0.19.0
    python write_models.py            # writes next to this file
    python write_models.py FOLDER     # writes into FOLDER
    python write_models.py --check    # exit 1, naming the file, if a committed one is not what would be written
"""
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

GGUF_VERSION = "0.19.0"
ALIGNMENT = gguf.GGUF_DEFAULT_ALIGNMENT


def padded(count, alignment=ALIGNMENT):
    return (count + alignment - 1) // alignment * alignment


class Header:
    """One model, of one file or of several."""

    def __init__(self, name, arch, alignment=ALIGNMENT, **options):
        self.name, self.alignment = name, alignment
        self.writer = gguf.GGUFWriter(f"{name}.gguf", arch, **options)
        if alignment != ALIGNMENT:
            self.writer.add_custom_alignment(alignment)

    def tensor(self, name, shape, ggml_type):
        """`shape` in elements, as numpy orders them: the experts come first."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
        rows = tuple(shape[:-1]) + (shape[-1] // block * block_bytes,)
        self.writer.add_tensor_info(name, rows, np.dtype(np.uint8), int(np.prod(rows)), raw_dtype=ggml_type)

    def write(self, folder, sizes):
        writer = self.writer
        paths = writer.format_shard_names(Path(folder) / f"{self.name}.gguf")
        data = [sum(padded(info.nbytes, self.alignment) for info in tensors.values()) for tensors in writer.tensors]
        writer.write_header_to_file(Path(folder) / f"{self.name}.gguf")
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        for path, data_bytes in zip(paths, data):
            header = path.read_bytes()
            header += bytes(padded(len(header), self.alignment) - len(header))
            path.unlink()
            (path.parent / f"{path.name}-header").write_bytes(header)
            sizes[path.name] = len(header) + data_bytes


def mixed_quant():
    """47 layers of 256 experts, top-10: Q4_K on 39 and BF16 on 8 of them."""
    header = Header("mixed_quant", "qwen3moe")
    expert_count, hidden, inner = 256, 3072, 1024
    writer = header.writer
    writer.add_block_count(48)
    writer.add_expert_count(expert_count)
    writer.add_expert_used_count(10)
    writer.add_embedding_length(hidden)
    writer.add_expert_feed_forward_length(inner)
    for block in range(1, 48):
        ggml_type = T.BF16 if block % 6 == 1 else T.Q4_K
        header.tensor(f"blk.{block}.ffn_gate_exps.weight", (expert_count, inner, hidden), ggml_type)
        header.tensor(f"blk.{block}.ffn_up_exps.weight", (expert_count, inner, hidden), ggml_type)
        header.tensor(f"blk.{block}.ffn_down_exps.weight", (expert_count, hidden, inner), ggml_type)
    return header


def fused_biases():
    """Fused gate_up and biases, a tokenizer, every kind of metadata value, and an alignment of 64."""
    header = Header("fused_biases", "gpt-oss", alignment=64)
    expert_count, hidden, inner = 8, 64, 96
    writer = header.writer
    writer.add_name("Fused Biases")
    writer.add_block_count(4)
    writer.add_expert_count(expert_count)
    writer.add_expert_used_count(4)
    writer.add_token_list([f"token {index}" for index in range(200)])
    writer.add_token_scores([float(index) for index in range(200)])
    writer.add_token_types([1] * 200)
    values = [
        ("u8", 200, V.UINT8), ("i8", -100, V.INT8), ("u16", 60000, V.UINT16), ("i16", -30000, V.INT16),
        ("u32", 4000000000, V.UINT32), ("i32", -2000000000, V.INT32), ("f32", 0.5, V.FLOAT32), ("bool", True, V.BOOL),
        ("string", "a string", V.STRING), ("u64", 1 << 63, V.UINT64), ("i64", -(1 << 62), V.INT64),
        ("f64", 0.25, V.FLOAT64),
    ]
    for name, value, value_type in values:
        writer.add_key_value(f"test.{name}", value, value_type)
    writer.add_key_value("test.integers", [3, -4, 5], V.ARRAY)
    writer.add_key_value("test.nested", [[1, 2], [3], [4, 5, 6]], V.ARRAY)
    writer.add_key_value("test.nested_strings", [[["a"], ["bc", "d"]], [["e"]]], V.ARRAY)
    header.tensor("token_embd.weight", (200, hidden), T.F16)
    for block in range(4):
        header.tensor(f"blk.{block}.attn_norm.weight", (hidden,), T.F32)
        if block == 0:
            header.tensor(f"blk.{block}.ffn_gate.weight", (inner, hidden), T.Q8_0)
            continue
        header.tensor(f"blk.{block}.ffn_gate_inp.weight", (expert_count, hidden), T.F32)
        header.tensor(f"blk.{block}.ffn_gate_inp.bias", (expert_count,), T.F32)
        header.tensor(f"blk.{block}.ffn_down_exps.weight", (expert_count, hidden, inner), T.MXFP4)
        header.tensor(f"blk.{block}.ffn_down_exps.bias", (expert_count, hidden), T.F32)
        header.tensor(f"blk.{block}.ffn_gate_up_exps.weight", (expert_count, 2 * inner, hidden), T.MXFP4)
        header.tensor(f"blk.{block}.ffn_gate_up_exps.bias", (expert_count, 2 * inner), T.F32)
    return header


def scales():
    """NVFP4 with a scale per expert and tensor, shared experts, and a second layer whose down is wider."""
    header = Header("scales", "qwen3moe")
    expert_count, hidden, inner = 8, 128, 64
    writer = header.writer
    writer.add_block_count(2)
    writer.add_expert_count(expert_count)
    writer.add_expert_used_count(2)
    for block in range(2):
        header.tensor(f"blk.{block}.ffn_gate_inp.weight", (expert_count, hidden), T.F32)
        header.tensor(f"blk.{block}.exp_probs_b.bias", (expert_count,), T.F32)
        header.tensor(f"blk.{block}.ffn_norm_exps.weight", (hidden,), T.F32)
        for role, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            ggml_type = T.Q8_0 if (role, block) == ("down", 1) else T.NVFP4
            header.tensor(f"blk.{block}.ffn_{role}_shexp.weight", (rows, columns), T.Q8_0)
            header.tensor(f"blk.{block}.ffn_{role}_exps.weight", (expert_count, rows, columns), ggml_type)
            if ggml_type == T.NVFP4:
                header.tensor(f"blk.{block}.ffn_{role}_exps.scale", (expert_count,), T.F32)
                header.tensor(f"blk.{block}.ffn_{role}_exps.input_scale", (expert_count,), T.F32)
    return header


def every_type():
    """One layer a type, of one bank: 4 experts of 2 rows of 256 elements."""
    header = Header("every_type", "qwen3moe")
    writer = header.writer
    writer.add_block_count(len(T))
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    for block, ggml_type in enumerate(T):
        header.tensor(f"blk.{block}.ffn_up_exps.weight", (4, 2, 256), ggml_type)
    return header


def split():
    """Three shards of at most 5 tensors, a layer over two of them."""
    header = Header("split", "qwen3moe", split_max_tensors=5)
    expert_count, hidden, inner = 8, 256, 512
    writer = header.writer
    writer.add_block_count(4)
    writer.add_expert_count(expert_count)
    writer.add_expert_used_count(2)
    for block in range(4):
        header.tensor(f"blk.{block}.ffn_gate_exps.weight", (expert_count, inner, hidden), T.Q4_K)
        header.tensor(f"blk.{block}.ffn_up_exps.weight", (expert_count, inner, hidden), T.Q4_K)
        header.tensor(f"blk.{block}.ffn_down_exps.weight", (expert_count, hidden, inner), T.Q6_K)
    return header


def separate():
    """The old form: a tensor an expert."""
    header = Header("separate", "llama")
    writer = header.writer
    writer.add_block_count(2)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    for block in range(2):
        for expert in range(4):
            header.tensor(f"blk.{block}.ffn_gate.{expert}.weight", (64, 32), T.Q4_0)
            header.tensor(f"blk.{block}.ffn_down.{expert}.weight", (32, 64), T.Q5_0)
            header.tensor(f"blk.{block}.ffn_up.{expert}.weight", (64, 32), T.Q4_0)
    return header


def tinymoe():
    """The model of traces/tinymoe-8l64e.ftr.zst, in F16."""
    header = Header("tinymoe", "qwen3moe")
    expert_count, hidden, inner = 64, 128, 64
    writer = header.writer
    writer.add_name("tinymoe-13.7M (trained for this file; see README)")
    writer.add_block_count(8)
    writer.add_expert_count(expert_count)
    writer.add_expert_used_count(6)
    for block in range(8):
        for role, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            header.tensor(f"blk.{block}.ffn_{role}_exps.weight", (expert_count, rows, columns), T.F16)
    return header


def dense():
    """No experts at all."""
    header = Header("dense", "llama")
    writer = header.writer
    writer.add_block_count(2)
    for block in range(2):
        for role, rows, columns in (("gate", 64, 32), ("up", 64, 32), ("down", 32, 64)):
            header.tensor(f"blk.{block}.ffn_{role}.weight", (rows, columns), T.Q8_0)
    return header


def write_all(folder):
    sizes = {}
    for model in (mixed_quant, fused_biases, scales, every_type, split, separate, tinymoe, dense):
        model().write(folder, sizes)
    types = [
        {"id": int(ggml_type), "name": ggml_type.name, "block_elements": block, "block_bytes": block_bytes}
        for ggml_type, (block, block_bytes) in sorted(gguf.GGML_QUANT_SIZES.items())
    ]
    lines = ",\n".join("  " + json.dumps(row) for row in types)
    (folder / "ggml_types.json").write_text(f"[\n{lines}\n]\n")
    (folder / "headers.json").write_text(json.dumps(sizes, indent=2, sort_keys=True) + "\n")


def fixtures(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".gguf-header")}


def check(folder):
    with tempfile.TemporaryDirectory() as temporary:
        write_all(Path(temporary))
        written, committed = fixtures(Path(temporary)), fixtures(folder)
    different = sorted(
        name for name in written.keys() | committed.keys() if written.get(name) != committed.get(name)
    )
    for name in different:
        why = "is not written any more" if name not in written else "is missing" if name not in committed else "differs"
        print(f"{folder / name}: {why}; run write_models.py", file=sys.stderr)
    return 1 if different else 0


def main(arguments):
    if version("gguf") != GGUF_VERSION:
        print(f"gguf {version('gguf')} is installed; {GGUF_VERSION} is needed", file=sys.stderr)
        return 2
    here = Path(__file__).parent
    if arguments == ["--check"]:
        return check(here)
    folder = Path(arguments[0]) if arguments else here
    folder.mkdir(parents=True, exist_ok=True)
    write_all(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
