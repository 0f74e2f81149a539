// llama.cpp decodes a mixture-of-experts model out of the slots of an ftcache in planner mode.
//
// Nothing in llama.cpp is changed. Its graph callback gives us each layer's selected experts once they are computed; the
// cache plans; we copy rows out of the model file, where llama.cpp has mapped it, to slots of our own; and the multiplies
// that follow read those slots in place of the experts' tensors. A pass without a cache goes before: it shows where the
// expert tensors are, and its logits are what the second pass must come to, to the bit.
//
// After every step each slot is compared with its expert's row in every bank, and each route with the expert in its slot.
// The first difference ends the program with status 1.

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ftcache.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

namespace {

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fputs("llama_cache: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
    std::exit(1);
}

void check(ftcache_status status, const char *what) {
    if (status != FTCACHE_STATUS_OK) fail("%s: %s", what, ftcache_last_error());
}

// A struct of the header, ready to be filled in.
template <typename T> T sized() {
    T value = {};
    value.struct_size = sizeof value;
    return value;
}

// How a prompt goes through the cache.
enum class Prefill {
    kStaged,  // Long ones as chunks of whole layers, short ones as steps: what an engine does.
    kParts,   // One step a layer, in parts that fit, for an engine without room to stage.
    kTokens,  // Token by token, as decode does: what `ftcache replay` does with a trace.
};

struct Arguments {
    std::string model;
    uint64_t slot_count = 0;
    ftcache_scope scope = FTCACHE_SCOPE_UNIFIED;
    Prefill prefill = Prefill::kStaged;
    const char *trace = nullptr;
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

std::vector<Batch> batches(Prefill prefill) {
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

// Memory as a device's allocator gives it.
struct alignas(64) Line {
    char bytes[64];
};

struct Memory {
    std::vector<Line> lines;
    explicit Memory(uint64_t bytes) : lines((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
    char *at(uint64_t offset) { return reinterpret_cast<char *>(lines.data()) + offset; }
};

// What is called for the nodes of a graph; see ggml_backend_sched_eval_callback.
struct Hook {
    virtual ~Hook() = default;
    // Before the node is computed, perhaps with others before it: true if it must be computed before those that follow.
    virtual bool before(ggml_tensor *node) = 0;
    // Once it is, if so.
    virtual void after(ggml_tensor *node) = 0;
};

bool on_node(ggml_tensor *node, bool ask, void *user) {
    Hook *hook = static_cast<Hook *>(user);
    if (ask) return hook->before(node);
    hook->after(node);
    return true;
}

// The layer of a node of selected experts, as llama.cpp numbers it, or -1.
int routes_layer(const ggml_tensor *node) {
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
            if (static_cast<unsigned char>(c) >= ' ') name += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
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

// The second pass: everything that this engine does with ftcache.
class CachedExperts : public Hook {
public:
    CachedExperts(const Experts &model, const Arguments &arguments, Trace &recorded)
        : experts(model), prefill(arguments.prefill), trace(recorded) {
        ftcache_configuration *configuration = configure(arguments);
        auto report = sized<ftcache_configuration_report>();
        check(ftcache_configuration_get(configuration, &report), "configuration report");
        on_demand_tokens = report.on_demand_tokens;
        lay_out(configuration, report);
        auto config = sized<ftcache_config>();
        config.device = FTCACHE_DEVICE_NONE;
        check(ftcache_new(configuration, &config, &cache), "cache");
        ftcache_configuration_free(configuration);
    }

    ~CachedExperts() override { ftcache_free(cache); }
    CachedExperts(const CachedExperts &) = delete;
    CachedExperts &operator=(const CachedExperts &) = delete;

    // Before and after each llama_decode.
    void begin(const Batch &next) {
        batch = next;
        is_staged = prefill == Prefill::kStaged && batch.is_prompt && batch.token_count > on_demand_tokens;
        if (!is_staged) return;
        check(ftcache_chunk_begin(cache, nullptr), "chunk begin");
        for (uint32_t layer = 0; layer < std::min(staging.size(), experts.layers.size()); layer++) stage(layer);
    }

    void end() {
        if (!redirected.empty()) fail("a multiply was asked for and not computed");
        if (!is_staged) return;
        auto report = sized<ftcache_chunk_report>();
        check(ftcache_chunk_end(cache, &report), "chunk end");
        if (report.layers != experts.layers.size()) {
            fail("%" PRIu64 " layers were staged; the model has %zu", report.layers, experts.layers.size());
        }
        is_staged = false;
    }

    bool before(ggml_tensor *node) override {
        if (routes_layer(node) >= 0) return true;
        if (node->op != GGML_OP_MUL_MAT_ID) return false;
        redirect(node);
        return true;
    }

    void after(ggml_tensor *node) override {
        if (node->op == GGML_OP_MUL_MAT_ID) {
            restore(node);
            return;
        }
        const int number = routes_layer(node);
        const auto is_it = [&](const Experts::Layer &layer) { return layer.number == number; };
        const auto layer = std::find_if(experts.layers.begin(), experts.layers.end(), is_it);
        if (layer == experts.layers.end()) fail("%s: no layer of experts", node->name);
        take_routes(static_cast<uint32_t>(layer - experts.layers.begin()), node);
    }

    // The summary, once the library has counted the same.
    std::string summary() const {
        auto stats = sized<ftcache_stats>();
        check(ftcache_stats_get(cache, &stats), "statistics");
        if (stats.steps != steps || stats.hits != hits || stats.misses != misses) {
            fail("the library counted %" PRIu64 " hits and %" PRIu64 " misses in %" PRIu64 " steps; we %" PRIu64
                 " and %" PRIu64 " in %" PRIu64, stats.hits, stats.misses, stats.steps, hits, misses, steps);
        }
        std::string text = std::to_string(experts.layers.size()) + " layers of " +
                           std::to_string(experts.expert_count) + " experts, slots ";
        for (uint32_t pool = 0; pool < owners.size(); pool++) {
            text += (pool == 0 ? "" : " + ") + std::to_string(owners[pool].size());
        }
        text += ": " + std::to_string(hits) + " hits and " + std::to_string(misses) + " misses in " +
                std::to_string(steps) + " steps, " + std::to_string(copied_bytes) + " bytes copied, " +
                std::to_string(slots_compared) + " slots compared";
        if (staged_rows > 0) {
            text += "; staged " + std::to_string(staged_rows) + " rows, " + std::to_string(gathered_rows) +
                    " of them out of slots, all compared";
        }
        if (parts > 0) text += "; " + std::to_string(parts) + " parts of steps that were too wide";
        return text;
    }

    // Multiplies that read slots or staged rows, and those that read the mapped file.
    uint64_t cached_multiplies = 0, mapped_multiplies = 0;

private:
    // Where one bank's slots of a pool lie: slot i at offset + i * stride of the bank's arena.
    struct Range {
        uint64_t offset, stride;
    };

    // Whose rows a slot holds, by our own account.
    struct Owner {
        bool is_there;
        uint32_t layer, expert;
    };

    // What a multiply read before it was redirected, and the tensors that it reads meanwhile.
    struct Redirected {
        ggml_tensor *weights, *ids;
        ggml_tensor our_weights, our_ids;
    };

    const Experts &experts;
    const Prefill prefill;
    Trace &trace;
    ftcache *cache = nullptr;
    uint32_t on_demand_tokens = 0;

    std::vector<Memory> arenas;                // by bank
    std::vector<std::vector<Range>> ranges;    // by pool and bank
    std::vector<std::vector<Owner>> owners;    // by pool and slot
    std::vector<uint32_t> pool_of;             // by layer
    std::vector<std::vector<Memory>> staging;  // by buffer and bank

    Batch batch = {0, 0, false};
    bool is_staged = false;
    uint32_t buffer = 0;                 // of the staged layer in use
    uint32_t multiplies_left = 0;        // of the layer in use
    std::vector<int32_t> slot_of_route;  // of the layer in use; empty where its multiplies cannot read slots
    std::map<const ggml_tensor *, std::unique_ptr<Redirected>> redirected;

    uint64_t steps = 0, hits = 0, misses = 0, parts = 0, copied_bytes = 0, slots_compared = 0;
    uint64_t staged_rows = 0, gathered_rows = 0;

    ftcache_configuration *configure(const Arguments &arguments) const {
        auto model_config = sized<ftcache_model_config>();
        model_config.layer_count = static_cast<uint32_t>(experts.layers.size());
        model_config.expert_count = experts.expert_count;
        model_config.top_k = experts.top_k;
        ftcache_model *model = nullptr;
        check(ftcache_model_new(&model_config, &model), "model");
        for (uint32_t layer = 0; layer < experts.layers.size(); layer++) {
            std::vector<uint64_t> row_bytes;
            for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
                row_bytes.push_back(experts.row_bytes(layer, bank));
            }
            const std::string tag = experts.tag(layer);
            auto layer_config = sized<ftcache_layer>();
            layer_config.bank_count = static_cast<uint32_t>(row_bytes.size());
            layer_config.row_bytes = row_bytes.data();
            layer_config.tag = tag.data();
            layer_config.tag_bytes = tag.size();
            check(ftcache_model_layer_set(model, layer, &layer_config), "layer");
        }
        auto settings = sized<ftcache_settings>();
        settings.slot_count = arguments.slot_count;
        settings.scope = arguments.scope;
        // What ggml aligns tensors to.
        settings.alignment = 32;
        // Buffers of their own leave the slots of decode alone.
        settings.staging = prefill == Prefill::kStaged ? FTCACHE_STAGING_DEDICATED : FTCACHE_STAGING_NOWHERE;
        // A small model has small rows, and its residents are to be gathered all the same.
        if (settings.staging == FTCACHE_STAGING_DEDICATED) settings.small_row_bytes = 1;
        ftcache_configuration *configuration = nullptr;
        check(ftcache_configuration_new(model, &settings, &configuration), "configuration");
        ftcache_model_free(model);
        return configuration;
    }

    // Our memory for slots and staging, as large as the configuration says. A GPU engine allocates it on the device.
    void lay_out(const ftcache_configuration *configuration, const ftcache_configuration_report &report) {
        ranges.resize(report.pool_count);
        for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
            uint64_t arena_bytes = 0;
            for (uint32_t pool = 0; pool < report.pool_count; pool++) {
                auto range = sized<ftcache_slot_range>();
                check(ftcache_configuration_slot_range_get(configuration, pool, bank, &range), "slot range");
                ranges[pool].push_back({range.offset, range.stride});
                arena_bytes = range.arena_bytes;
            }
            arenas.emplace_back(arena_bytes);
        }
        for (uint32_t layer = 0; layer < experts.layers.size(); layer++) {
            uint32_t pool = 0;
            check(ftcache_configuration_layer_pool(configuration, layer, &pool), "pool of a layer");
            pool_of.push_back(pool);
        }
        for (uint32_t pool = 0; pool < report.pool_count; pool++) {
            auto pool_report = sized<ftcache_pool_report>();
            check(ftcache_configuration_pool_get(configuration, pool, &pool_report), "pool");
            owners.emplace_back(pool_report.slot_count, Owner{false, 0, 0});
            const auto first = std::find(pool_of.begin(), pool_of.end(), pool) - pool_of.begin();
            std::printf("pool %u: %u slots for %u layers of %s, %" PRIu64 " bytes each\n", pool, pool_report.slot_count,
                        pool_report.layer_count, experts.tag(static_cast<uint32_t>(first)).c_str(),
                        pool_report.slot_bytes);
        }
        for (uint32_t index = 0; index < report.buffer_count; index++) {
            staging.emplace_back();
            for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
                uint64_t most = 0;
                for (uint32_t layer = 0; layer < experts.layers.size(); layer++) {
                    most = std::max(most, experts.row_bytes(layer, bank));
                }
                staging.back().emplace_back(most * experts.expert_count);
            }
        }
    }

    char *slot(uint32_t pool, uint32_t bank, uint32_t index) {
        const Range &range = ranges[pool][bank];
        return arenas[bank].at(range.offset + index * range.stride);
    }

    // One layer's routes are known: its rows must be in place before its multiplies run.
    void take_routes(uint32_t layer, const ggml_tensor *node) {
        const auto row_count = static_cast<uint32_t>(node->ne[1]);
        for (uint32_t row = 0; row < row_count; row++) {
            // The last layer runs for the tokens alone whose logits are asked for: the batch's last ones.
            trace.set(batch.first_token + batch.token_count - row_count + row, layer, ids(node, row));
        }
        multiplies_left = 0;
        for (const ggml_tensor *weights : experts.layers[layer].weights) multiplies_left += weights != nullptr;
        slot_of_route.clear();
        if (is_staged) {
            check(ftcache_chunk_wait(cache, layer, &buffer), "chunk wait");
            compare_staged(layer);
        } else {
            admit(layer, node);
        }
        compare_slots();
    }

    static const int32_t *ids(const ggml_tensor *node, uint32_t row) {
        return reinterpret_cast<const int32_t *>(static_cast<const char *>(node->data) + row * node->nb[1]);
    }

    void admit(uint32_t layer, const ggml_tensor *node) {
        auto step = sized<ftcache_step>();
        step.layer = layer;
        step.phase = batch.is_prompt && prefill != Prefill::kTokens ? FTCACHE_PHASE_PREFILL : FTCACHE_PHASE_DECODE;
        auto routes = sized<ftcache_routes>();
        routes.ids = node->data;
        routes.row_count = static_cast<uint64_t>(node->ne[1]);
        routes.row_width = static_cast<uint64_t>(node->ne[0]);
        // The node is a view of an arg-sort of all experts, so its rows lie that far apart.
        routes.row_stride_bytes = node->nb[1];
        std::vector<int32_t> slots(routes.row_count * routes.row_width);
        auto answer = sized<ftcache_slots>();
        answer.slots = slots.data();
        answer.absent_slot = answer.cpu_slot = -1;

        uint32_t part_count = 1;
        if (prefill == Prefill::kParts) check(ftcache_partition(cache, &step, &routes, &part_count), "partition");
        uint64_t answered = 0;
        for (uint32_t part = 0; part < part_count; part++) {
            if (prefill == Prefill::kParts) {
                check(ftcache_admit_part(cache, part, &answer), "admit a part");
            } else {
                check(ftcache_admit(cache, &step, &routes, &answer), "admit");
            }
            carry_out(layer);
            answered += check_routes(layer, node, slots);
            if (part_count > 1) compare_slots();
        }
        if (answered != slots.size()) fail("layer %u: %" PRIu64 " of %zu routes have a slot", layer, answered, slots.size());
        steps++;
        if (part_count > 1) parts += part_count;
        // The graph multiplies a layer at once; of a step in parts only the last one's rows are sure to be in slots.
        if (part_count == 1) slot_of_route = std::move(slots);
    }

    // Makes the copies of the open plan.
    void carry_out(uint32_t layer) {
        auto plan = sized<ftcache_plan>();
        check(ftcache_plan_get(cache, &plan), "plan");
        if (plan.layer != layer || plan.pool != pool_of[layer]) fail("layer %u: the plan is layer %u's", layer, plan.layer);
        hits += plan.distinct_count - plan.miss_count;
        misses += plan.miss_count;
        for (uint64_t i = 0; i < plan.run_count; i++) copy_run(layer, plan.runs[i]);
        for (uint64_t i = 0; i < plan.copy_count; i++) {
            owners[plan.pool].at(plan.copies[i].slot) = {true, layer, plan.copies[i].row};
        }
        check(ftcache_commit(cache), "commit");
    }

    void copy_run(uint32_t layer, const ftcache_run &run) {
        const uint32_t pool = pool_of[layer];
        for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
            const uint64_t row_bytes = experts.row_bytes(layer, bank);
            if (row_bytes == 0) continue;
            copied_bytes += run.count * row_bytes;
            if (ranges[pool][bank].stride == row_bytes) {
                std::memcpy(slot(pool, bank, run.slot), experts.row(layer, bank, run.row), run.count * row_bytes);
                continue;
            }
            for (uint32_t i = 0; i < run.count; i++) {
                std::memcpy(slot(pool, bank, run.slot + i), experts.row(layer, bank, run.row + i), row_bytes);
            }
        }
    }

    // Stages a whole layer: residents out of their slots, the others out of the file.
    void stage(uint32_t layer) {
        check(ftcache_chunk_prefetch(cache, layer), "chunk prefetch");
        for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
            const uint64_t row_bytes = experts.row_bytes(layer, bank);
            if (row_bytes == 0) continue;
            auto plan = sized<ftcache_stage_plan>();
            check(ftcache_stage_plan_get(cache, bank, &plan), "stage plan");
            Memory &target = staging[plan.buffer][bank];
            for (uint64_t i = 0; i < plan.gather_count; i++) {
                const ftcache_copy &gather = plan.gathers[i];
                std::memcpy(target.at(gather.row * row_bytes), slot(plan.pool, bank, gather.slot), row_bytes);
            }
            for (uint64_t i = 0; i < plan.fetch_count; i++) {
                const ftcache_run &run = plan.fetches[i];
                std::memcpy(target.at(run.row * row_bytes), experts.row(layer, bank, run.row), run.count * row_bytes);
                copied_bytes += run.count * row_bytes;
            }
            if (bank == 0) gathered_rows += plan.gather_count;
        }
        check(ftcache_commit(cache), "commit of a staged layer");
    }

    // Each route that has a slot has one that holds its expert; returns how many have.
    uint64_t check_routes(uint32_t layer, const ggml_tensor *node, const std::vector<int32_t> &slots) const {
        const std::vector<Owner> &pool = owners[pool_of[layer]];
        uint64_t answered = 0;
        for (uint64_t route = 0; route < slots.size(); route++) {
            const int32_t held = slots[route];
            if (held == -1) continue;
            const auto expert = static_cast<uint32_t>(ids(node, static_cast<uint32_t>(route / trace.top_k))[route % trace.top_k]);
            const Owner &owner = pool.at(static_cast<size_t>(held));
            if (!owner.is_there || owner.layer != layer || owner.expert != expert) {
                fail("token %u layer %u: the slot %d of route %" PRIu64 " to expert %u has layer %u expert %u",
                     batch.first_token, layer, held, route, expert, owner.layer, owner.expert);
            }
            answered++;
        }
        return answered;
    }

    // Every slot that holds an expert, to the byte, in every bank.
    void compare_slots() {
        uint64_t resident_count = 0;
        for (uint32_t pool = 0; pool < owners.size(); pool++) {
            for (uint32_t index = 0; index < owners[pool].size(); index++) {
                const Owner &owner = owners[pool][index];
                if (!owner.is_there) continue;
                resident_count++;
                for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
                    compare(slot(pool, bank, index), owner.layer, bank, owner.expert, "slot", index);
                }
            }
        }
        slots_compared += resident_count;
        auto report = sized<ftcache_report>();
        check(ftcache_report_get(cache, &report), "report");
        if (report.resident_count != resident_count) {
            fail("the library has %" PRIu64 " residents; we have %" PRIu64, report.resident_count, resident_count);
        }
    }

    void compare_staged(uint32_t layer) {
        for (uint32_t bank = 0; bank < experts.banks.size(); bank++) {
            for (uint32_t expert = 0; expert < experts.expert_count; expert++) {
                const uint64_t offset = expert * experts.row_bytes(layer, bank);
                compare(staging[buffer][bank].at(offset), layer, bank, expert, "staging buffer", buffer);
            }
        }
        staged_rows += experts.expert_count;
    }

    void compare(const char *held, uint32_t layer, uint32_t bank, uint32_t expert, const char *what, uint32_t index) const {
        const uint64_t row_bytes = experts.row_bytes(layer, bank);
        if (row_bytes == 0 || std::memcmp(held, experts.row(layer, bank, expert), row_bytes) == 0) return;
        uint64_t byte = 0;
        while (held[byte] == experts.row(layer, bank, expert)[byte]) byte++;
        fail("token %u: %s %u bank %s: byte %" PRIu64 " of %" PRIu64 " is not that of layer %u expert %u", batch.first_token,
             what, index, experts.banks[bank].c_str(), byte, row_bytes, layer, expert);
    }

    // Lets a multiply read our rows: slots with slot numbers, or a staged layer with the router's own ids.
    void redirect(ggml_tensor *node) {
        const auto [layer, bank] = experts.place.at(node->src[0]);
        auto ours = std::make_unique<Redirected>();
        ours->weights = node->src[0];
        ours->ids = node->src[2];
        ours->our_weights = *node->src[0];
        ours->our_ids = *node->src[2];
        if (is_staged) {
            ours->our_weights.data = staging[buffer][bank].at(0);
            cached_multiplies++;
        } else if (!slot_of_route.empty()) {
            const uint32_t pool = pool_of[layer];
            ours->our_weights.data = slot(pool, bank, 0);
            ours->our_weights.ne[2] = static_cast<int64_t>(owners[pool].size());
            ours->our_weights.nb[2] = ranges[pool][bank].stride;
            ours->our_weights.nb[3] = owners[pool].size() * ranges[pool][bank].stride;
            ours->our_ids.data = slot_of_route.data();
            ours->our_ids.nb[1] = trace.top_k * sizeof(int32_t);
            ours->our_ids.nb[2] = ours->our_ids.nb[3] = slot_of_route.size() * sizeof(int32_t);
            cached_multiplies++;
        } else {
            mapped_multiplies++;
        }
        node->src[0] = &ours->our_weights;
        node->src[2] = &ours->our_ids;
        redirected[node] = std::move(ours);
    }

    // llama.cpp uses a graph again where it can, so that the node is left as it was.
    void restore(ggml_tensor *node) {
        const auto ours = redirected.find(node);
        node->src[0] = ours->second->weights;
        node->src[2] = ours->second->ids;
        const uint32_t layer = experts.place.at(node->src[0]).first;
        redirected.erase(ours);
        if (--multiplies_left > 0 || !is_staged) return;
        check(ftcache_chunk_release(cache, layer), "chunk release");
        const auto next = static_cast<uint32_t>(layer + staging.size());
        if (next < experts.layers.size()) stage(next);
    }
};

using Logits = std::vector<float>;

llama_token sample(const Logits &logits, Random &random) {
    const float most = *std::max_element(logits.begin(), logits.end());
    std::vector<double> weights;
    double sum = 0;
    for (const float logit : logits) {
        if (!std::isfinite(logit)) fail("a logit is no number");
        weights.push_back(std::exp(2.0 * (static_cast<double>(logit) - static_cast<double>(most))));
        sum += weights.back();
    }
    double rest = random.unit() * sum;
    for (size_t token = 0; token < weights.size(); token++) {
        rest -= weights[token];
        if (rest < 0) return static_cast<llama_token>(token);
    }
    return static_cast<llama_token>(weights.size() - 1);
}

// Decodes all batches in a context of its own, and returns the logits after each.
std::vector<Logits> decode(llama_model *model, const std::vector<Batch> &batches, Hook &hook, CachedExperts *cached) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = 2;
    params.op_offload = false;
    params.cb_eval = on_node;
    params.cb_eval_user_data = &hook;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) fail("llama.cpp makes no context");
    const auto vocabulary = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    Random prompts{1}, samples{2};
    std::vector<Logits> all;
    for (const Batch &batch : batches) {
        std::vector<llama_token> tokens(batch.token_count);
        for (llama_token &token : tokens) {
            token = batch.is_prompt ? static_cast<llama_token>(prompts.bits() % vocabulary) : sample(all.back(), samples);
        }
        if (cached != nullptr) cached->begin(batch);
        if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))) != 0) {
            fail("llama.cpp does not decode token %u", batch.first_token);
        }
        if (cached != nullptr) cached->end();
        const float *logits = llama_get_logits_ith(context, -1);
        all.emplace_back(logits, logits + vocabulary);
    }
    llama_free(context);
    return all;
}

// Whether every expert tensor lies in a mapping of a model file, so that nobody has copied it.
bool is_mapped(const Experts &experts) {
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

Arguments read_arguments(int count, char **words) {
    Arguments arguments;
    const auto usage = [] {
        fail("usage: llama_cache MODEL.gguf --slots N [--scope unified|per-layer] [--prefill staged|parts|tokens] "
             "[--trace FILE.ftr]");
    };
    if (count < 2) usage();
    arguments.model = words[1];
    for (int i = 2; i < count; i += 2) {
        if (i + 1 == count) usage();
        const std::string name = words[i], value = words[i + 1];
        if (name == "--slots") {
            arguments.slot_count = std::strtoull(value.c_str(), nullptr, 10);
        } else if (name == "--trace") {
            arguments.trace = words[i + 1];
        } else if (name == "--scope" && (value == "unified" || value == "per-layer")) {
            arguments.scope = value == "unified" ? FTCACHE_SCOPE_UNIFIED : FTCACHE_SCOPE_PER_LAYER;
        } else if (name == "--prefill" && (value == "staged" || value == "parts" || value == "tokens")) {
            arguments.prefill = value == "staged"  ? Prefill::kStaged
                                : value == "parts" ? Prefill::kParts
                                                   : Prefill::kTokens;
        } else {
            usage();
        }
    }
    if (arguments.slot_count == 0) usage();
    return arguments;
}

}  // namespace

int main(int count, char **words) {
    const Arguments arguments = read_arguments(count, words);
    if (ftcache_abi_version() < FTCACHE_ABI_VERSION) fail("the library is older than the header");
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    }, nullptr);
    llama_backend_init();

    llama_model_params params = llama_model_default_params();
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    params.n_gpu_layers = 0;
    // Repacked tensors are copies, in another order of bytes: no expert's row can be taken out of them.
    params.use_extra_bufts = false;
    llama_model *model = llama_model_load_from_file(arguments.model.c_str(), params);
    if (model == nullptr) fail("%s: llama.cpp does not load it", arguments.model.c_str());
    char name[256] = {};
    if (llama_model_meta_val_str(model, "general.name", name, sizeof name) < 0) std::strcpy(name, "unnamed");

    const std::vector<Batch> work = batches(arguments.prefill);
    Experts experts;
    const std::vector<Logits> expected = decode(model, work, experts, nullptr);
    experts.settle();
    std::string banks;
    for (const std::string &bank : experts.banks) banks += (banks.empty() ? "" : ", ") + bank;
    std::printf("llama.cpp %s, model %s: %zu layers of %u experts, top-%u, banks %s\n", llama_version(), name,
                experts.layers.size(), experts.expert_count, experts.top_k, banks.c_str());
#ifdef __linux__
    if (!is_mapped(experts)) fail("an expert tensor lies outside the mapping of the model file");
    std::printf("%" PRIu64 " bytes of expert rows, read where llama.cpp has mapped the file\n", experts.bytes());
#endif

    const uint32_t token_count = work.back().first_token + work.back().token_count;
    Trace trace(experts, token_count);
    CachedExperts cached(experts, arguments, trace);
    const std::vector<Logits> logits = decode(model, work, cached, &cached);
    for (size_t batch = 0; batch < work.size(); batch++) {
        if (std::memcmp(logits[batch].data(), expected[batch].data(), expected[batch].size() * sizeof(float)) != 0) {
            fail("token %u: logits differ from those of the pass without a cache", work[batch].first_token);
        }
    }
    if (arguments.trace != nullptr) trace.write(arguments.trace, experts, name);
    std::printf("%" PRIu64 " multiplies read cached rows, %" PRIu64 " the file; logits of %zu batches, %u tokens, equal to the "
                "bit\n", cached.cached_multiplies, cached.mapped_multiplies, work.size(), token_count);
    std::printf("%s\n", cached.summary().c_str());
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
