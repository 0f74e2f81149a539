// What is decoded, and the record of what it was routed to.

#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "experts.h"
#include "llama.h"

namespace example {

// How a prompt goes through the cache.
enum class Prefill {
    kStaged,  // Long ones as chunks of whole layers, short ones as steps: what an engine does.
    kParts,   // One step a layer, in parts that fit, for an engine without room to stage.
    kTokens,  // Token by token, as decode does: what `ftcache replay` does with a trace.
};

// One call of llama_decode.
struct Batch {
    uint32_t first_token, token_count;
    bool is_prompt;
};

// Runs of tokens of one kind, as the trace has them.
struct Segment {
    const char *name, *phase;
    uint32_t token_count;
};

// Two turns: a prompt that is narrow enough for a step, and one that routes to more experts than its pool has slots.
constexpr Segment kSegments[] = {
    {"first prompt", "prefill", 3},
    {"first answer", "decode", 60},
    {"second prompt", "prefill", 24},
    {"second answer", "decode", 60},
};

inline std::vector<Batch> batches(Prefill prefill) {
    std::vector<Batch> batches;
    uint32_t token = 0;
    for (const Segment &segment : kSegments) {
        const bool is_prompt = std::strcmp(segment.phase, "prefill") == 0;
        const uint32_t width = is_prompt && prefill != Prefill::kTokens ? segment.token_count : 1;
        for (uint32_t done = 0; done < segment.token_count; done += width, token += width) {
            batches.push_back({token, width, is_prompt});
        }
    }
    return batches;
}

// SplitMix64; the same prompts and samples on every machine.
struct Random {
    uint64_t state;
    uint64_t bits() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
};

// What each token was routed to: ids [token][layer][k], as the ftr1 format has them.
struct Trace {
    static constexpr uint16_t kAbsent = 65535;
    uint32_t layer_count, top_k;
    std::vector<uint16_t> ids;

    Trace(const Experts &experts, uint32_t token_count)
        : layer_count(static_cast<uint32_t>(experts.layers.size())), top_k(experts.top_k),
          ids(uint64_t{token_count} * layer_count * top_k, kAbsent) {}

    void set(uint32_t token, uint32_t layer, const int32_t *row) {
        uint16_t *cell = &ids[(uint64_t{token} * layer_count + layer) * top_k];
        for (uint32_t k = 0; k < top_k; k++) cell[k] = static_cast<uint16_t>(row[k]);
    }

    void write(const char *path, const Experts &experts, const std::string &model) const {
        uint64_t token_count = 0, absent = 0;
        std::string segments, numbers, bytes, name;
        for (const Segment &segment : kSegments) {
            segments += (segments.empty() ? "" : ",") + std::string("{\"start\":") + std::to_string(token_count) +
                        ",\"tokens\":" + std::to_string(segment.token_count) + ",\"phase\":\"" + segment.phase +
                        "\",\"name\":\"" + segment.name + "\"}";
            token_count += segment.token_count;
        }
        for (uint64_t cell = 0; cell < ids.size(); cell += top_k) absent += ids[cell] == kAbsent;
        for (uint32_t layer = 0; layer < layer_count; layer++) {
            uint64_t expert_bytes = 0;
            for (uint32_t bank = 0; bank < experts.banks.size(); bank++) expert_bytes += experts.row_bytes(layer, bank);
            bytes += (layer == 0 ? "" : ",") + std::to_string(expert_bytes);
            numbers += (layer == 0 ? "" : ",") + std::to_string(experts.layers[layer].number);
        }
        for (const char c : model) {
            if (static_cast<unsigned char>(c) < ' ') continue;
            if (c == '"' || c == '\\') name += '\\';
            name += c;
        }
        std::FILE *file = std::fopen(path, "wb");
        if (file == nullptr) fail("%s: cannot be written", path);
        std::fprintf(file,
                     "{\"format\":\"ftr1\",\"dtype\":\"u16le\",\"order\":\"token,layer,k\",\"tokens\":%" PRIu64
                     ",\"layers\":%u,\"top_k\":%u,\"experts\":%u,\"absent_cells\":%" PRIu64
                     ",\"model\":\"%s\",\"source\":\"llama.cpp %s\",\"expert_bytes\":[%s],\"layer_numbers\":[%s],"
                     "\"segments\":[%s]}\n",
                     token_count, layer_count, top_k, experts.expert_count, absent, name.c_str(), llama_version(),
                     bytes.c_str(), numbers.c_str(), segments.c_str());
        for (const uint16_t id : ids) {
            std::fputc(id & 255, file);
            std::fputc(id >> 8, file);
        }
        if (std::ferror(file) | std::fclose(file)) fail("%s: cannot be written", path);
    }
};

}  // namespace example
