"""Writes a small mixture-of-experts model that llama.cpp loads: random weights, the same bytes at every run.

The first layer's experts are F16. Those of the other layers are Q4_0 with a Q8_0 down, as recipes of mixed types have
it. So there are two layouts of an expert, and a cache makes two pools.

    pip install gguf==0.19.0
    python make_model.py MODEL.gguf
"""
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ARCH = "qwen3moe"
LAYERS, EXPERTS, TOP_K = 4, 32, 4
WIDTH, INNER, HEADS, HEAD_WIDTH, VOCABULARY, CONTEXT = 128, 96, 2, 64, 256, 512
ONES = ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm")


def expert_types(layer):
    if layer == 0:
        return {"gate": T.F16, "up": T.F16, "down": T.F16}
    return {"gate": T.Q4_0, "up": T.Q4_0, "down": T.Q8_0}


def write(path):
    # PCG64 by name: what `default_rng` is may change.
    random = np.random.Generator(np.random.PCG64(7))
    writer = gguf.GGUFWriter(path, ARCH)

    def tensor(name, shape, ggml_type=T.F32, scale=None):
        """`shape` as numpy orders it: the experts come first. The scale keeps a product's size near its input's."""
        values = random.uniform(-1, 1, shape).astype(np.float32)
        values *= np.float32((3 / shape[-1]) ** 0.5 if scale is None else scale)
        writer.add_tensor(name, gguf.quants.quantize(values, ggml_type), raw_dtype=ggml_type)

    writer.add_name("ftcache example")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    # Tokens are given as numbers.
    writer.add_tokenizer_model("none")

    tensor("token_embd.weight", (VOCABULARY, WIDTH), scale=1)
    tensor("output.weight", (VOCABULARY, WIDTH))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        for name in ONES:
            width = HEAD_WIDTH if name in ("attn_q_norm", "attn_k_norm") else WIDTH
            writer.add_tensor(f"{prefix}.{name}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            tensor(f"{prefix}.{name}.weight", (HEADS * HEAD_WIDTH, WIDTH))
        tensor(f"{prefix}.attn_output.weight", (WIDTH, HEADS * HEAD_WIDTH))
        # Rows of unlike length, so that some experts are asked for more often: else no expert comes back soon.
        router = random.uniform(-1, 1, (EXPERTS, WIDTH)) * random.uniform(0.05, 0.3, (EXPERTS, 1))
        writer.add_tensor(f"{prefix}.ffn_gate_inp.weight", router.astype(np.float32))
        for role, ggml_type in expert_types(layer).items():
            rows = (EXPERTS, WIDTH, INNER) if role == "down" else (EXPERTS, INNER, WIDTH)
            tensor(f"{prefix}.ffn_{role}_exps.weight", rows, ggml_type)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python make_model.py MODEL.gguf")
    write(sys.argv[1])
