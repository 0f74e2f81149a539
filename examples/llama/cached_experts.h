// Everything that this engine does with ftcache, in planner mode: the slots are ours, and so are the copies.

#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "experts.h"
#include "ftcache.h"
#include "ggml.h"
#include "trace.h"

namespace example {

// Memory as a device's allocator gives it.
struct alignas(64) Line {
    char bytes[64];
};

struct Memory {
    std::vector<Line> lines;
    explicit Memory(uint64_t bytes) : lines((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
    char *at(uint64_t offset) { return reinterpret_cast<char *>(lines.data()) + offset; }
};

struct CacheOptions {
    uint64_t slot_count = 0;
    ftcache_scope scope = FTCACHE_SCOPE_UNIFIED;
    Prefill prefill = Prefill::kStaged;
};

// The experts' rows in slots, and multiplies that read them there.
class CachedExperts : public Hook {
public:
    CachedExperts(const Experts &model, const CacheOptions &options, Trace &recorded)
        : experts(model), prefill(options.prefill), trace(recorded) {
        ftcache_configuration *configuration = configure(options);
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
        if (redirected.node != nullptr) fail("%s: was asked for and not computed", redirected.node->name);
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

    // The multiply that is about to be computed, what it read, and what it reads meanwhile.
    struct Redirected {
        ggml_tensor *node, *weights, *ids;
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
    Redirected redirected = {};

    uint64_t steps = 0, hits = 0, misses = 0, parts = 0, copied_bytes = 0, slots_compared = 0;
    uint64_t staged_rows = 0, gathered_rows = 0;

    ftcache_configuration *configure(const CacheOptions &options) const {
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
        settings.slot_count = options.slot_count;
        settings.scope = options.scope;
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
        if (node->type != GGML_TYPE_I32 || node->ne[0] != experts.top_k) {
            fail("%s: %" PRId64 " ids of %s a row; %u of i32 are expected", node->name, node->ne[0],
                 ggml_type_name(node->type), experts.top_k);
        }
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
        if (answered != slots.size()) {
            fail("layer %u: %" PRIu64 " of %zu routes have a slot", layer, answered, slots.size());
        }
        steps++;
        if (part_count > 1) parts += part_count;
        // The graph multiplies a layer at once; of a step in parts only the last one's rows are sure to be in slots.
        if (part_count == 1) slot_of_route = std::move(slots);
    }

    // Makes the copies of the open plan.
    void carry_out(uint32_t layer) {
        auto plan = sized<ftcache_plan>();
        check(ftcache_plan_get(cache, &plan), "plan");
        if (plan.layer != layer || plan.pool != pool_of[layer]) {
            fail("layer %u of pool %u: the plan is for layer %u of pool %u", layer, pool_of[layer], plan.layer,
                 plan.pool);
        }
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
            const int32_t *row = ids(node, static_cast<uint32_t>(route / experts.top_k));
            const auto expert = static_cast<uint32_t>(row[route % experts.top_k]);
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

    // A row in a slot or in a staging buffer, whose number is `index`.
    void compare(const char *held, uint32_t layer, uint32_t bank, uint32_t expert, const char *what,
                 uint32_t index) const {
        const uint64_t row_bytes = experts.row_bytes(layer, bank);
        if (row_bytes == 0 || std::memcmp(held, experts.row(layer, bank, expert), row_bytes) == 0) return;
        uint64_t byte = 0;
        while (held[byte] == experts.row(layer, bank, expert)[byte]) byte++;
        fail("token %u: %s %u bank %s: byte %" PRIu64 " of %" PRIu64 " is not that of layer %u expert %u",
             batch.first_token, what, index, experts.banks[bank].c_str(), byte, row_bytes, layer, expert);
    }

    // Lets a multiply read our rows: slots with slot numbers, or a staged layer with the router's own ids.
    void redirect(ggml_tensor *node) {
        const auto [layer, bank] = experts.place.at(node->src[0]);
        redirected = {node, node->src[0], node->src[2], *node->src[0], *node->src[2]};
        ggml_tensor &weights = redirected.our_weights, &ids = redirected.our_ids;
        if (is_staged) {
            weights.data = staging[buffer][bank].at(0);
        } else if (!slot_of_route.empty()) {
            const uint32_t pool = pool_of[layer];
            weights.data = slot(pool, bank, 0);
            weights.ne[2] = static_cast<int64_t>(owners[pool].size());
            weights.nb[2] = ranges[pool][bank].stride;
            weights.nb[3] = owners[pool].size() * ranges[pool][bank].stride;
            ids.data = slot_of_route.data();
            ids.nb[1] = experts.top_k * sizeof(int32_t);
            ids.nb[2] = ids.nb[3] = slot_of_route.size() * sizeof(int32_t);
        } else {
            mapped_multiplies++;
            return;
        }
        node->src[0] = &weights;
        node->src[2] = &ids;
        cached_multiplies++;
    }

    // llama.cpp uses a graph again where it can, so the node is left as it was.
    void restore(ggml_tensor *node) {
        node->src[0] = redirected.weights;
        node->src[2] = redirected.ids;
        redirected.node = nullptr;
        const uint32_t layer = experts.place.at(node->src[0]).first;
        if (--multiplies_left > 0 || !is_staged) return;
        check(ftcache_chunk_release(cache, layer), "chunk release");
        const auto next = static_cast<uint32_t>(layer + staging.size());
        if (next < experts.layers.size()) stage(next);
    }
};

}  // namespace example
