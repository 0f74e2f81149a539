// What a graph of llama.cpp tells of a model's experts. Knows nothing of a cache.

#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace example {

// What is called for the nodes of a graph; see ggml_backend_sched_eval_callback.
struct Hook {
    virtual ~Hook() = default;
    // Before the node is computed, perhaps with others before it: true if it must be computed before those that follow.
    virtual bool before(ggml_tensor *node) = 0;
    // Once it is, if so.
    virtual void after(ggml_tensor *node) = 0;
};

inline bool on_node(ggml_tensor *node, bool ask, void *user) {
    Hook *hook = static_cast<Hook *>(user);
    if (ask) return hook->before(node);
    hook->after(node);
    return true;
}

// The layer of a node of selected experts, as llama.cpp numbers it, or -1.
inline int routes_layer(const ggml_tensor *node) {
    int layer = -1;
    return std::sscanf(node->name, "ffn_moe_topk-%d", &layer) == 1 ? layer : -1;
}

// The experts' tensors, as the graph of the first pass names them.
struct Experts : Hook {
    struct Layer {
        int number;                          // llama.cpp's; dense layers have one too
        std::vector<ggml_tensor *> weights;  // by bank; nullptr where the layer does not read it
    };

    uint32_t expert_count = 0, top_k = 0;
    std::vector<std::string> banks;
    std::vector<Layer> layers;
    // The layer and the bank of a tensor.
    std::map<const ggml_tensor *, std::pair<uint32_t, uint32_t>> place;

    bool before(ggml_tensor *node) override {
        if (routes_layer(node) >= 0) top_k = std::max(top_k, static_cast<uint32_t>(node->ne[0]));
        if (node->op == GGML_OP_MUL_MAT_ID) meet(node->src[0]);
        return false;
    }

    void after(ggml_tensor *) override {}

    void meet(ggml_tensor *weights) {
        int number = -1;
        char bank[GGML_MAX_NAME] = {};
        if (std::sscanf(weights->name, "blk.%d.%[a-z_].weight", &number, bank) != 2) {
            fail("%s: not a name of an expert tensor", weights->name);
        }
        if (found[number].emplace(bank, weights).second &&
            std::find(banks.begin(), banks.end(), bank) == banks.end()) {
            banks.push_back(bank);
        }
    }

    // Once a graph was seen: layers in order, and whether the rows lie as a cache can take them.
    void settle() {
        for (const auto &[number, tensors] : found) {
            Layer layer = {number, {}};
            for (const std::string &bank : banks) {
                const auto tensor = tensors.find(bank);
                layer.weights.push_back(tensor == tensors.end() ? nullptr : tensor->second);
            }
            for (uint32_t bank = 0; bank < banks.size(); bank++) {
                const ggml_tensor *weights = layer.weights[bank];
                if (weights == nullptr) continue;
                if (expert_count == 0) expert_count = static_cast<uint32_t>(weights->ne[2]);
                if (weights->ne[2] != expert_count) {
                    fail("%s: %" PRId64 " experts; others have %u", weights->name, weights->ne[2], expert_count);
                }
                if (!ggml_is_contiguous(weights)) fail("%s: rows are not one after another", weights->name);
                if (!ggml_backend_buffer_is_host(weights->buffer)) fail("%s: not in host memory", weights->name);
                place[weights] = {static_cast<uint32_t>(layers.size()), bank};
            }
            layers.push_back(layer);
        }
        if (layers.empty()) fail("the model has no layer of experts");
    }

    // One expert's bytes in one bank; 0 where the layer does not read it.
    uint64_t row_bytes(uint32_t layer, uint32_t bank) const {
        const ggml_tensor *weights = layers[layer].weights[bank];
        return weights == nullptr ? 0 : weights->nb[2];
    }

    const char *row(uint32_t layer, uint32_t bank, uint32_t expert) const {
        const ggml_tensor *weights = layers[layer].weights[bank];
        return static_cast<const char *>(weights->data) + expert * weights->nb[2];
    }

    // The quantisation of a layer, which differs where any bank's does.
    std::string tag(uint32_t layer) const {
        std::string tag;
        for (const ggml_tensor *weights : layers[layer].weights) {
            if (!tag.empty()) tag += ',';
            tag += weights == nullptr ? "-" : ggml_type_name(weights->type);
        }
        return tag;
    }

    uint64_t bytes() const {
        uint64_t bytes = 0;
        for (const auto &entry : place) bytes += ggml_nbytes(entry.first);
        return bytes;
    }

private:
    std::map<int, std::map<std::string, ggml_tensor *>> found;
};

// Whether every expert tensor lies in a mapping of a model file, so that nobody has copied it.
inline bool is_mapped(const Experts &experts) {
    std::FILE *maps = std::fopen("/proc/self/maps", "r");
    if (maps == nullptr) return false;
    std::vector<std::pair<uintptr_t, uintptr_t>> files;
    char line[4096];
    while (std::fgets(line, sizeof line, maps) != nullptr) {
        uintptr_t begin = 0, end = 0;
        const bool is_range = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2;
        if (is_range && std::strstr(line, ".gguf") != nullptr) files.emplace_back(begin, end);
    }
    std::fclose(maps);
    return std::all_of(experts.place.begin(), experts.place.end(), [&](const auto &entry) {
        const auto begin = reinterpret_cast<uintptr_t>(entry.first->data), end = begin + ggml_nbytes(entry.first);
        return std::any_of(files.begin(), files.end(),
                           [&](const auto &file) { return file.first <= begin && end <= file.second; });
    });
}

}  // namespace example
