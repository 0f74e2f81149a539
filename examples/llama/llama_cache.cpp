// llama.cpp decodes a mixture-of-experts model out of the slots of an ftcache in planner mode.
//
// Nothing in llama.cpp is changed. Its graph callback gives us each layer's selected experts once they are computed;
// the cache plans; we copy rows out of the model file, where llama.cpp has mapped it, to slots of our own; and the
// multiplies that follow read those slots in place of the experts' tensors. A pass without a cache goes before: it
// shows where the expert tensors are, and its logits are what the second pass must come to, to the bit.
//
// After every step each slot is compared with its expert's row in every bank, and each route with the expert in its
// slot. The first difference ends the program with status 1. What an engine does with ftcache is in cached_experts.h.

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cached_experts.h"
#include "check.h"
#include "experts.h"
#include "ftcache.h"
#include "llama.h"
#include "trace.h"

using namespace example;

namespace {

struct Arguments {
    std::string model;
    CacheOptions cache;
    const char *trace = nullptr;
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
    // Several would wait for one another in every node of a small model, by turning around.
    params.n_threads = params.n_threads_batch = 1;
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
            const auto random = [&] { return static_cast<llama_token>(prompts.bits() % vocabulary); };
            token = batch.is_prompt ? random() : sample(all.back(), samples);
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
            arguments.cache.slot_count = std::strtoull(value.c_str(), nullptr, 10);
        } else if (name == "--trace") {
            arguments.trace = words[i + 1];
        } else if (name == "--scope" && (value == "unified" || value == "per-layer")) {
            arguments.cache.scope = value == "unified" ? FTCACHE_SCOPE_UNIFIED : FTCACHE_SCOPE_PER_LAYER;
        } else if (name == "--prefill" && (value == "staged" || value == "parts" || value == "tokens")) {
            arguments.cache.prefill = value == "staged"  ? Prefill::kStaged
                                : value == "parts" ? Prefill::kParts
                                                   : Prefill::kTokens;
        } else {
            usage();
        }
    }
    if (arguments.cache.slot_count == 0) usage();
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

    const std::vector<Batch> work = batches(arguments.cache.prefill);
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
    CachedExperts cached(experts, arguments.cache, trace);
    const std::vector<Logits> logits = decode(model, work, cached, &cached);
    for (size_t batch = 0; batch < work.size(); batch++) {
        if (std::memcmp(logits[batch].data(), expected[batch].data(), expected[batch].size() * sizeof(float)) != 0) {
            fail("token %u: logits differ from those of the pass without a cache", work[batch].first_token);
        }
    }
    if (arguments.trace != nullptr) trace.write(arguments.trace, experts, name);
    std::printf("%" PRIu64 " multiplies read cached rows, %" PRIu64 " the file; ", cached.cached_multiplies,
                cached.mapped_multiplies);
    std::printf("logits of %zu batches, %u tokens, equal to the bit\n", work.size(), token_count);
    std::printf("%s\n", cached.summary().c_str());
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
