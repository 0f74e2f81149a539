// A small mixture-of-experts decoder that reads its expert rows from the slots of an ftcache, and beside it the same
// decoder with every row resident. Both start from the same seeds and never exchange a number, so one wrong row, or one
// that arrives late, makes them part ways; every layer's output is compared to the bit.
//
// What an engine does with ftcache is in `CachedExperts`. The rest is a plain decoder: embedding, attention over all
// earlier tokens, a router, top-k SwiGLU experts, and sampling with a seed. It decodes a batch of two requests, and the
// layers have rows of two widths, so that there are two pools.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "ftcache.h"

namespace {

constexpr uint32_t kLayers = 6;
constexpr uint32_t kExperts = 48;
constexpr uint32_t kTopK = 4;
constexpr uint32_t kWidth = 64;
constexpr uint32_t kVocabulary = 256;
constexpr uint32_t kRequests = 2;
constexpr uint32_t kTokens = 200;

// Feed-forward width of a layer's experts: two kinds of layers, so two row widths in each bank.
constexpr uint32_t feed_forward(uint32_t layer) { return layer % 3 == 0 ? 96 : 48; }

enum Bank : uint32_t { kGateUp, kDown, kScale, kBankCount };

uint64_t row_floats(uint32_t layer, uint32_t bank) {
    switch (bank) {
    case kGateUp: return 2ull * feed_forward(layer) * kWidth;
    case kDown: return 1ull * kWidth * feed_forward(layer);
    default: return 1;  // A scale an expert: a bank like any other, with rows of four bytes.
    }
}

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "mini_engine: %s: %s\n", what, ftcache_last_error());
    std::exit(1);
}

void check(ftcache_status status, const char *what) {
    if (status != FTCACHE_STATUS_OK) fail(what);
}

// SplitMix64; the same weights and the same samples on every machine.
struct Random {
    uint64_t state;
    uint64_t bits() {
        uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    float unit() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
    std::vector<float> uniform(size_t count, float scale) {
        std::vector<float> values(count);
        for (float &value : values) value = (2 * unit() - 1) * scale;
        return values;
    }
};

// The weights that both decoders share: dense ones, and every expert's rows in host memory.
struct Model {
    std::vector<float> embedding, router[kLayers], query[kLayers], key[kLayers], value[kLayers];
    std::vector<float> bank[kLayers][kBankCount];

    explicit Model(uint64_t seed) {
        Random random{seed};
        const float scale = 1.7f / std::sqrt(static_cast<float>(kWidth));
        embedding = random.uniform(size_t{kVocabulary} * kWidth, 1);
        for (uint32_t layer = 0; layer < kLayers; layer++) {
            router[layer] = random.uniform(size_t{kExperts} * kWidth, scale);
            query[layer] = random.uniform(size_t{kWidth} * kWidth, scale);
            key[layer] = random.uniform(size_t{kWidth} * kWidth, scale);
            value[layer] = random.uniform(size_t{kWidth} * kWidth, scale);
            for (uint32_t b = 0; b < kBankCount; b++) {
                bank[layer][b] = random.uniform(kExperts * row_floats(layer, b), b == kScale ? 1 : scale);
            }
        }
    }

    uint64_t expert_bytes() const {
        uint64_t bytes = 0;
        for (const auto &layer : bank)
            for (const auto &rows : layer) bytes += rows.size() * sizeof(float);
        return bytes;
    }
};

// One expert's row in each bank, wherever it lies.
struct ExpertRows {
    const float *bank[kBankCount];
};

// Where a decoder gets the rows of a step from. `sorted[request]` are a layer's experts by falling router logit; the
// first kTopK of each are the routes.
struct Experts {
    virtual ~Experts() = default;
    virtual std::vector<ExpertRows> rows(uint32_t layer, const int32_t (&sorted)[kRequests][kExperts]) = 0;
};

struct ResidentExperts : Experts {
    const Model &model;
    explicit ResidentExperts(const Model &m) : model(m) {}
    std::vector<ExpertRows> rows(uint32_t layer, const int32_t (&sorted)[kRequests][kExperts]) override {
        std::vector<ExpertRows> rows;
        for (const auto &request : sorted) {
            for (uint32_t k = 0; k < kTopK; k++) {
                ExpertRows expert;
                for (uint32_t b = 0; b < kBankCount; b++) {
                    expert.bank[b] = &model.bank[layer][b][static_cast<size_t>(request[k]) * row_floats(layer, b)];
                }
                rows.push_back(expert);
            }
        }
        return rows;
    }
};

// Everything that this engine does with ftcache.
struct CachedExperts : Experts {
    ftcache *cache = nullptr;
    uint32_t pool_of_layer[kLayers];
    std::vector<ftcache_slot_span> span;  // [pool][bank]

    CachedExperts(const Model &model, uint64_t budget_bytes) {
        // Describe the model.
        ftcache_model_config model_config = {};
        model_config.struct_size = sizeof model_config;
        model_config.layer_count = kLayers;
        model_config.expert_count = kExperts;
        model_config.top_k = kTopK;
        ftcache_model *description = nullptr;
        check(ftcache_model_new(&model_config, &description), "model");
        for (uint32_t layer = 0; layer < kLayers; layer++) {
            uint64_t row_bytes[kBankCount];
            for (uint32_t b = 0; b < kBankCount; b++) row_bytes[b] = row_floats(layer, b) * sizeof(float);
            ftcache_layer layer_config = {};
            layer_config.struct_size = sizeof layer_config;
            layer_config.bank_count = kBankCount;
            layer_config.row_bytes = row_bytes;
            layer_config.tag = "F32";
            layer_config.tag_bytes = 3;
            check(ftcache_model_layer_set(description, layer, &layer_config), "layer");
        }

        // Plan slots for the bytes we can spare, and see what came of it.
        ftcache_settings settings = {};
        settings.struct_size = sizeof settings;
        settings.budget_bytes = budget_bytes;
        settings.request_count = kRequests;
        settings.alignment = sizeof(float);
        settings.staging = FTCACHE_STAGING_NOWHERE;  // We have no prefill.
        ftcache_configuration *configuration = nullptr;
        check(ftcache_configuration_new(description, &settings, &configuration), "configuration");
        ftcache_model_free(description);
        ftcache_configuration_report report = {};
        report.struct_size = sizeof report;
        check(ftcache_configuration_get(configuration, &report), "configuration report");
        std::printf("cache: %llu slots in %u pools, %llu of %llu bytes\n",
                    static_cast<unsigned long long>(report.slot_count), report.pool_count,
                    static_cast<unsigned long long>(report.total_bytes), static_cast<unsigned long long>(budget_bytes));
        for (uint32_t layer = 0; layer < kLayers; layer++) {
            check(ftcache_configuration_layer_pool(configuration, layer, &pool_of_layer[layer]), "pool of a layer");
        }

        // Make the cache and tell it where the rows lie. They stay ours.
        check(ftcache_new(configuration, nullptr, &cache), "cache");
        ftcache_configuration_free(configuration);
        for (uint32_t layer = 0; layer < kLayers; layer++) {
            for (uint32_t b = 0; b < kBankCount; b++) {
                ftcache_host_rows rows = {};
                rows.struct_size = sizeof rows;
                rows.base = model.bank[layer][b].data();
                rows.bytes = model.bank[layer][b].size() * sizeof(float);
                check(ftcache_attach(cache, layer, b, &rows), "attach");
            }
        }
        // Slots never move, so their addresses are asked for once.
        for (uint32_t pool = 0; pool < report.pool_count; pool++) {
            for (uint32_t b = 0; b < kBankCount; b++) {
                ftcache_slot_span slots = {};
                slots.struct_size = sizeof slots;
                check(ftcache_slot_span_get(cache, pool, b, &slots), "slots");
                span.push_back(slots);
            }
        }
    }

    ~CachedExperts() override { ftcache_free(cache); }
    CachedExperts(const CachedExperts &) = delete;
    CachedExperts &operator=(const CachedExperts &) = delete;

    std::vector<ExpertRows> rows(uint32_t layer, const int32_t (&sorted)[kRequests][kExperts]) override {
        // The routes are the heads of the sorted rows, so rows of kTopK ids lie kExperts ids apart.
        ftcache_routes routes = {};
        routes.struct_size = sizeof routes;
        routes.ids = sorted;
        routes.row_count = kRequests;
        routes.row_width = kTopK;
        routes.row_stride_bytes = sizeof sorted[0];
        int32_t slot_of_route[kRequests * kTopK];
        ftcache_slots slots = {};
        slots.struct_size = sizeof slots;
        slots.slots = slot_of_route;
        ftcache_step step = {};
        step.struct_size = sizeof step;
        step.layer = layer;
        check(ftcache_load(cache, &step, &routes, nullptr, &slots), "load");

        std::vector<ExpertRows> rows;
        for (int32_t slot : slot_of_route) {
            ExpertRows expert;
            for (uint32_t b = 0; b < kBankCount; b++) {
                const ftcache_slot_span &in = span[pool_of_layer[layer] * kBankCount + b];
                const char *row = static_cast<const char *>(in.address) + static_cast<uint64_t>(slot) * in.stride;
                expert.bank[b] = reinterpret_cast<const float *>(row);
            }
            rows.push_back(expert);
        }
        return rows;
    }
};

float dot(const float *a, const float *b, uint32_t count) {
    float sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

using Hidden = std::vector<float>;  // kWidth values

Hidden multiply(const std::vector<float> &matrix, const Hidden &x) {
    Hidden y(matrix.size() / x.size());
    for (size_t row = 0; row < y.size(); row++) y[row] = dot(&matrix[row * x.size()], x.data(), kWidth);
    return y;
}

Hidden normalised(const Hidden &x) {
    const float scale = 1 / std::sqrt(dot(x.data(), x.data(), kWidth) / kWidth + 1e-6f);
    Hidden y(x);
    for (float &value : y) value *= scale;
    return y;
}

void softmax(std::vector<float> &logits) {
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (float &logit : logits) sum += logit = std::exp(logit - most);
    for (float &logit : logits) logit /= sum;
}

// One expert's SwiGLU of `x`, times `weight` and the expert's scale, added to `out`.
void add_expert(const ExpertRows &expert, uint32_t feed_forward_width, const Hidden &x, float weight, Hidden &out) {
    std::vector<float> inner(feed_forward_width);
    const float *gate = expert.bank[kGateUp], *up = gate + size_t{feed_forward_width} * kWidth;
    for (uint32_t i = 0; i < feed_forward_width; i++) {
        const float g = dot(gate + size_t{i} * kWidth, x.data(), kWidth);
        inner[i] = g / (1 + std::exp(-g)) * dot(up + size_t{i} * kWidth, x.data(), kWidth);
    }
    for (uint32_t i = 0; i < kWidth; i++) {
        const float *row = expert.bank[kDown] + size_t{i} * feed_forward_width;
        out[i] += weight * expert.bank[kScale][0] * dot(row, inner.data(), feed_forward_width);
    }
}

// A decoder of kRequests requests at once.
struct Decoder {
    const Model &model;
    Experts &experts;
    std::vector<Hidden> keys[kLayers][kRequests], values[kLayers][kRequests];

    // One token of every request. `layer_out[layer][request]` is what each layer gave; returns the logits.
    std::vector<std::vector<float>> step(const uint32_t (&token)[kRequests], Hidden (&layer_out)[kLayers][kRequests]) {
        Hidden x[kRequests];
        for (uint32_t r = 0; r < kRequests; r++) {
            x[r].assign(&model.embedding[size_t{token[r]} * kWidth], &model.embedding[size_t{token[r]} * kWidth] + kWidth);
        }
        for (uint32_t layer = 0; layer < kLayers; layer++) {
            Hidden in[kRequests];
            int32_t sorted[kRequests][kExperts];
            std::vector<float> logits[kRequests];
            for (uint32_t r = 0; r < kRequests; r++) {
                attend(layer, r, x[r]);
                in[r] = normalised(x[r]);
                logits[r] = multiply(model.router[layer], in[r]);
                std::iota(sorted[r], sorted[r] + kExperts, 0);
                std::stable_sort(sorted[r], sorted[r] + kExperts,
                                 [&](int32_t a, int32_t b) { return logits[r][a] > logits[r][b]; });
            }
            const std::vector<ExpertRows> rows = experts.rows(layer, sorted);
            for (uint32_t r = 0; r < kRequests; r++) {
                std::vector<float> weights;
                for (uint32_t k = 0; k < kTopK; k++) weights.push_back(logits[r][sorted[r][k]]);
                softmax(weights);
                for (uint32_t k = 0; k < kTopK; k++) {
                    add_expert(rows[r * kTopK + k], feed_forward(layer), in[r], weights[k], x[r]);
                }
                layer_out[layer][r] = x[r];
            }
        }
        std::vector<std::vector<float>> logits;
        for (const Hidden &hidden : x) logits.push_back(multiply(model.embedding, normalised(hidden)));
        return logits;
    }

    void attend(uint32_t layer, uint32_t request, Hidden &x) {
        const Hidden in = normalised(x);
        const Hidden query = multiply(model.query[layer], in);
        auto &past_keys = keys[layer][request], &past_values = values[layer][request];
        past_keys.push_back(multiply(model.key[layer], in));
        past_values.push_back(multiply(model.value[layer], in));
        std::vector<float> share;
        for (const Hidden &key : past_keys) share.push_back(dot(query.data(), key.data(), kWidth) / kWidth);
        softmax(share);
        for (size_t past = 0; past < share.size(); past++) {
            for (uint32_t i = 0; i < kWidth; i++) x[i] += share[past] * past_values[past][i];
        }
    }
};

uint32_t sample(std::vector<float> logits, Random &random) {
    for (float &logit : logits) logit *= 0.25f;
    softmax(logits);
    float rest = random.unit();
    for (uint32_t token = 0; token < logits.size(); token++) {
        rest -= logits[token];
        if (rest < 0) return token;
    }
    return kVocabulary - 1;
}

bool equal_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void print_stats(const char *what, const ftcache_stats &stats) {
    std::printf("%s: %5.1f %% hits, %8.2f MiB moved in %llu steps\n", what,
                100.0 * static_cast<double>(stats.hits) / static_cast<double>(stats.distinct),
                static_cast<double>(stats.bytes) / 0x1p20, static_cast<unsigned long long>(stats.steps));
}

}  // namespace

int main() {
    if (ftcache_abi_version() < FTCACHE_ABI_VERSION) fail("the library is older than the header");
    const Model model(42);
    std::printf("model: %u layers of %u experts, top-%u, %llu bytes of expert rows\n", kLayers, kExperts, kTopK,
                static_cast<unsigned long long>(model.expert_bytes()));

    CachedExperts cached(model, model.expert_bytes() / 4);
    ResidentExperts resident(model);
    Decoder ours{model, cached, {}, {}}, reference{model, resident, {}, {}};
    Random our_random{7}, reference_random{7};
    uint32_t our_token[kRequests] = {1, 2}, reference_token[kRequests] = {1, 2};
    for (uint32_t token = 0; token < kTokens; token++) {
        Hidden our_out[kLayers][kRequests], reference_out[kLayers][kRequests];
        const auto our_logits = ours.step(our_token, our_out);
        const auto reference_logits = reference.step(reference_token, reference_out);
        for (uint32_t r = 0; r < kRequests; r++) {
            for (uint32_t layer = 0; layer < kLayers; layer++) {
                if (equal_bits(our_out[layer][r], reference_out[layer][r])) continue;
                std::printf("token %u request %u layer %u: outputs differ\n", token, r, layer);
                return 1;
            }
            if (!equal_bits(our_logits[r], reference_logits[r])) {
                std::printf("token %u request %u: logits differ\n", token, r);
                return 1;
            }
            our_token[r] = sample(our_logits[r], our_random);
            reference_token[r] = sample(reference_logits[r], reference_random);
        }
    }

    for (uint32_t layer = 0; layer < kLayers; layer++) {
        ftcache_stats stats = {};
        stats.struct_size = sizeof stats;
        check(ftcache_layer_stats_get(cached.cache, layer, &stats), "layer statistics");
        char name[32];
        std::snprintf(name, sizeof name, "layer %u", layer);
        print_stats(name, stats);
    }
    ftcache_stats stats = {};
    stats.struct_size = sizeof stats;
    check(ftcache_stats_get(cached.cache, &stats), "statistics");
    print_stats("total  ", stats);
    std::printf("%u tokens of %u requests: every layer's output equal to the bit\n", kTokens, kRequests);
    return 0;
}
