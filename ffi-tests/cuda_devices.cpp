// Several models and devices in one process: a target model of many layers and a draft model of one, on one device and
// on two. Each handle does what it does alone, and no call leaves another context current than it found.
//
// Functions that begin with a number are faults of other caches, which a handle for each model and device rules out.

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "emulator.h"

namespace {

emulator emulated;
cuda devices[2];

void *current_context() {
    void *context = nullptr;
    CUDA(devices[0].context_get_current(&context));
    return context;
}

template <class Call>
auto kept(Call call, const char *text, int line) {
    void *const before = current_context();
    const auto answer = call();
    void *const after = current_context();
    if (before != after) {
        fprintf(stderr, "cuda_devices.cpp:%d: %s\n  found context %p and left %p\n", line, text, before, after);
        exit(1);
    }
    return answer;
}

// A call of the library, which leaves this thread's current context as it was.
#define KEPT(call) kept([&] { return (call); }, #call, __LINE__)
#define KEPT_OK(call) CHECK(KEPT(call) == FTCACHE_STATUS_OK)

#define KEPT_REFUSED(call, status, message)                                                                            \
    refused(KEPT(call), FTCACHE_STATUS_##status, std::string(message).c_str(), __FILE__, __LINE__)

// Another context while this lives.
class in_context {
  public:
    explicit in_context(void *context) : before_(current_context()) { CUDA(devices[0].context_set_current(context)); }
    ~in_context() { CUDA(devices[0].context_set_current(before_)); }
    in_context(const in_context &) = delete;
    in_context &operator=(const in_context &) = delete;

  private:
    void *before_;
};

struct dice {
    uint64_t state;
    uint32_t below(uint32_t bound) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return uint32_t(state >> 33) % bound;
    }
};

enum { SHAPE_BANKS = 2 };

struct shape {
    uint32_t layers, experts, top_k;
    uint64_t row_bytes[SHAPE_BANKS];
    unsigned char salt;
};

const shape TARGET = {12, 64, 8, {96, 4}, 3};
const shape DRAFT = {1, 16, 4, {40, 2}, 5};

unsigned char byte_of(const shape &model, uint32_t layer, uint32_t bank, uint32_t expert, uint64_t at) {
    return static_cast<unsigned char>(model.salt + layer * 7 + bank * 31 + expert * 3 + at * 11);
}

ftcache_model *model_of(const shape &model) {
    SIZED(ftcache_model_config, config);
    config.layer_count = model.layers;
    config.expert_count = model.experts;
    config.top_k = model.top_k;
    ftcache_model *out = nullptr;
    KEPT_OK(ftcache_model_new(&config, &out));
    for (uint32_t layer = 0; layer < model.layers; layer++) {
        SIZED(ftcache_layer, key);
        key.bank_count = SHAPE_BANKS;
        key.row_bytes = model.row_bytes;
        key.tag = "q4";
        key.tag_bytes = 2;
        KEPT_OK(ftcache_model_layer_set(out, layer, &key));
    }
    return out;
}

ftcache_status try_configuration(const shape &model, const ftcache_settings &settings, ftcache_configuration **out) {
    ftcache_model *described = model_of(model);
    const ftcache_status status = KEPT(ftcache_configuration_new(described, &settings, out));
    ftcache_model_free(described);
    return status;
}

ftcache_configuration *configuration_for(const shape &model, const ftcache_settings &settings) {
    ftcache_configuration *configuration = nullptr;
    CHECK(try_configuration(model, settings, &configuration) == FTCACHE_STATUS_OK);
    return configuration;
}

ftcache_config config_on(int ordinal) {
    SIZED(ftcache_config, config);
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_ordinal = uint32_t(ordinal);
    config.cuda_driver = cuda_path();
    return config;
}

// One model on one device: its rows, its streams and its cache.
class engine {
  public:
    // In the device's primary context, or in one of the caller's.
    engine(const shape &model, int ordinal, const ftcache_settings &settings, void *own_context = nullptr)
        : model_(model), ordinal_(ordinal), context_(own_context ? own_context : devices[ordinal].context) {
        {
            const in_context here(context_);
            compute_ = cuda_stream(&devices[ordinal]);
            copy_ = cuda_stream(&devices[ordinal]);
        }
        ftcache_configuration *configuration = configuration_for(model, settings);
        ftcache_config config = config_on(ordinal);
        if (own_context) {
            config.cuda_context = FTCACHE_CONTEXT_CURRENT;
            const in_context here(context_);
            KEPT_OK(ftcache_new(configuration, &config, &cache_));
        } else {
            KEPT_OK(ftcache_new(configuration, &config, &cache_));
        }
        KEPT((ftcache_configuration_free(configuration), 0));
        for (uint32_t layer = 0; layer < model.layers; layer++) {
            for (uint32_t bank = 0; bank < SHAPE_BANKS; bank++) rows_.push_back(new_rows(layer, bank));
        }
    }

    ~engine() {
        KEPT((ftcache_free(cache_), 0));
        for (unsigned char *rows : rows_) free(rows);
        const in_context here(context_);
        CUDA(devices[ordinal_].stream_destroy(compute_));
        CUDA(devices[ordinal_].stream_destroy(copy_));
    }

    engine(const engine &) = delete;
    engine &operator=(const engine &) = delete;

    ftcache *cache() const { return cache_; }
    const shape &model() const { return model_; }

    void attach(uint32_t layer, uint32_t bank) {
        SIZED(ftcache_host_rows, rows);
        rows.base = rows_[layer * SHAPE_BANKS + bank];
        rows.bytes = model_.row_bytes[bank] * model_.experts;
        KEPT_OK(ftcache_register(cache_, rows.base, rows.bytes, 0, 0));
        KEPT_OK(ftcache_attach(cache_, layer, bank, &rows));
    }

    void attach_all() {
        for (uint32_t layer = 0; layer < model_.layers; layer++) {
            for (uint32_t bank = 0; bank < SHAPE_BANKS; bank++) attach(layer, bank);
        }
    }

    ftcache_status load(uint32_t layer, uint32_t phase, const std::vector<int32_t> &ids, std::vector<int32_t> &slots) {
        SIZED(ftcache_step, step);
        step.layer = layer;
        step.phase = phase;
        ftcache_routes routes = routes_of(ids.data(), ids.size());
        slots.assign(ids.size(), -7);
        const ftcache_slots answer = slots_of(slots.data());
        const ftcache_streams streams = {sizeof streams, 0, compute_, copy_};
        return KEPT(ftcache_load(cache_, &step, &routes, &streams, &answer));
    }

    // What lies at a place of the device, once everything is done.
    std::vector<unsigned char> bytes_at(const ftcache_slot_span &span, uint32_t index) const {
        std::vector<unsigned char> bytes(span.row_bytes);
        const in_context here(context_);
        cuda_read(&devices[ordinal_], bytes.data(), static_cast<unsigned char *>(span.address) + index * span.stride,
                  bytes.size());
        return bytes;
    }

    void check_row(const ftcache_slot_span &span, uint32_t index, uint32_t layer, uint32_t bank,
                   uint32_t expert) const {
        CHECK(span.row_bytes == model_.row_bytes[bank] && index < span.slot_count);
        const std::vector<unsigned char> bytes = bytes_at(span, index);
        for (uint64_t at = 0; at < bytes.size(); at++) CHECK(bytes[at] == byte_of(model_, layer, bank, expert, at));
    }

    void check_slots(uint32_t layer, const std::vector<int32_t> &ids, const std::vector<int32_t> &slots) const {
        KEPT_OK(ftcache_synchronize(cache_));
        for (uint32_t bank = 0; bank < SHAPE_BANKS; bank++) {
            SIZED(ftcache_slot_span, span);
            KEPT_OK(ftcache_slot_span_get(cache_, 0, bank, &span));
            for (size_t i = 0; i < ids.size(); i++) {
                check_row(span, uint32_t(slots[i]), layer, bank, uint32_t(ids[i]));
            }
        }
    }

    void synchronize() const {
        const in_context here(context_);
        cuda_synchronize(&devices[ordinal_], compute_);
    }

    ftcache_streams streams() const { return {sizeof(ftcache_streams), 0, compute_, copy_}; }

    ftcache_stats stats() const {
        SIZED(ftcache_stats, stats);
        KEPT_OK(ftcache_stats_get(cache_, &stats));
        return stats;
    }

    // In device mode: one step, one chunk, one reading.
    void walk_device_mode(const std::vector<int32_t> &ids) const {
        const size_t bytes = ids.size() * sizeof ids[0];
        int32_t *there = nullptr;
        {
            const in_context here(context_);
            there = static_cast<int32_t *>(cuda_allocate(&devices[ordinal_], bytes));
            cuda_write(&devices[ordinal_], compute_, there, ids.data(), bytes);
        }
        const ftcache_step what = step_of(0);
        SIZED(ftcache_device_step, step);
        step.step = &what;
        step.ids.address = there;
        step.row_count = 1;
        step.row_width = uint32_t(ids.size());
        step.absent_slot = step.cpu_slot = step.cpu_none = -1;
        KEPT_OK(ftcache_device_enter(cache_, nullptr));
        KEPT_OK(ftcache_device_admit(cache_, compute_, &step));
        KEPT_OK(ftcache_device_gather(cache_, compute_, 0));
        SIZED(ftcache_plan, plan);
        KEPT_OK(ftcache_device_plan_get(cache_, 0, &plan));
        CHECK(plan.distinct_count == 4);
        KEPT_OK(ftcache_device_reading_request(cache_, compute_));
        KEPT_OK(ftcache_synchronize(cache_));
        SIZED(ftcache_device_reading, reading);
        KEPT_OK(ftcache_device_reading_get(cache_, &reading));
        CHECK(reading.is_there == 1);
        uint32_t is_there = 0;
        SIZED(ftcache_stats, stats);
        KEPT_OK(ftcache_device_phase_stats_get(cache_, 0, FTCACHE_PHASE_DECODE, &is_there, &stats));
        CHECK(is_there == 1);
        std::vector<int32_t> slots(ids.size());
        {
            const in_context here(context_);
            cuda_read(&devices[ordinal_], slots.data(), there, bytes);
        }
        check_slots(0, ids, slots);
        KEPT_OK(ftcache_device_chunk_begin(cache_, compute_));
        KEPT_OK(ftcache_device_chunk_stage(cache_, compute_, 0, 0));
        KEPT_OK(ftcache_device_chunk_end(cache_, compute_));
        KEPT_OK(ftcache_device_chunk_begin(cache_, compute_));
        KEPT_OK(ftcache_device_chunk_materialize(cache_, compute_, 0, 0));
        KEPT_OK(ftcache_device_chunk_end(cache_, compute_));
        KEPT_OK(ftcache_device_reset(cache_, compute_));
        KEPT_OK(ftcache_check(cache_));
        KEPT_OK(ftcache_device_leave(cache_));
        const in_context here(context_);
        CUDA(devices[ordinal_].free_memory(cuda_address(uintptr_t(there))));
    }

    // The rows of one layer come from a file instead.
    void walk_files() const {
        const std::string path =
            (std::filesystem::temp_directory_path() / ("ftcache_rows_" + std::to_string(uintptr_t(this)))).string();
        FILE *file = fopen(path.c_str(), "wb");
        CHECK(file != nullptr);
        ftcache_file_bank banks[SHAPE_BANKS] = {};
        for (uint32_t bank = 0; bank < SHAPE_BANKS; bank++) {
            const uint64_t bytes = model_.row_bytes[bank] * model_.experts;
            banks[bank].bank = bank;
            banks[bank].first.offset = uint64_t(ftell(file));
            CHECK(fwrite(rows_[bank], 1, bytes, file) == bytes);
        }
        CHECK(fclose(file) == 0);
        const char *const paths[] = {path.c_str()};
        SIZED(ftcache_file_report, report);
        KEPT_OK(ftcache_load_files(cache_, paths, 1, banks, SHAPE_BANKS, nullptr, &report));
        CHECK(report.layer_count == 1 && report.pinned_layer_count == 1);
        CHECK(remove(path.c_str()) == 0);
        uint32_t residence = 9;
        char text[256];
        KEPT_OK(ftcache_layer_residence(cache_, 0, &residence, text, sizeof text));
        CHECK(residence == FTCACHE_RESIDENCE_PINNED);
    }

    // The rows of one bank are unpinned, and pinned again.
    void walk_attachments() const {
        SIZED(ftcache_host_rows, rows);
        rows.base = rows_[0];
        rows.bytes = model_.row_bytes[0] * model_.experts;
        KEPT_OK(ftcache_unregister(cache_, rows.base));
        KEPT_REFUSED(ftcache_attach(cache_, 0, 0, &rows), INVALID_ARGUMENT,
                "layer 0 bank 0: the rows are not pinned, and there is no bounce buffer");
        KEPT_OK(ftcache_register(cache_, rows.base, rows.bytes, 0, 0));
        KEPT_OK(ftcache_attach(cache_, 0, 0, &rows));
    }

  private:
    // Pages of their own: two registrations never share one.
    unsigned char *new_rows(uint32_t layer, uint32_t bank) const {
        const uint64_t bytes = model_.row_bytes[bank] * model_.experts;
        auto *rows = static_cast<unsigned char *>(aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
        CHECK(rows != nullptr);
        for (uint32_t expert = 0; expert < model_.experts; expert++) {
            for (uint64_t at = 0; at < model_.row_bytes[bank]; at++) {
                rows[expert * model_.row_bytes[bank] + at] = byte_of(model_, layer, bank, expert, at);
            }
        }
        return rows;
    }

    shape model_;
    int ordinal_;
    void *context_;
    void *compute_ = nullptr, *copy_ = nullptr;
    ftcache *cache_ = nullptr;
    std::vector<unsigned char *> rows_;
};

// What a handle answered: every slot, and after every step the digest.
struct record {
    std::vector<int32_t> slots;
    std::vector<uint64_t> digests;
    ftcache_stats stats;

    bool operator==(const record &other) const {
        return slots == other.slots && digests == other.digests && memcmp(&stats, &other.stats, sizeof stats) == 0;
    }
};

// One token, or up to three; low ids more often than others.
std::vector<int32_t> random_ids(const shape &model, dice &random) {
    std::vector<int32_t> ids;
    for (uint32_t tokens = 1 + random.below(3); tokens > 0; tokens--) {
        for (uint32_t i = 0; i < model.top_k; i++) {
            const uint32_t first = random.below(model.experts), second = random.below(model.experts);
            ids.push_back(int32_t(first < second ? first : second));
        }
    }
    return ids;
}

void drive(engine &of, dice &random, uint32_t step_count, record &told) {
    for (uint32_t step = 0; step < step_count; step++) {
        const uint32_t layer = step % of.model().layers;
        const std::vector<int32_t> ids = random_ids(of.model(), random);
        std::vector<int32_t> slots;
        CHECK(of.load(layer, FTCACHE_PHASE_DECODE, ids, slots) == FTCACHE_STATUS_OK);
        told.slots.insert(told.slots.end(), slots.begin(), slots.end());
        uint64_t digest = 0;
        KEPT_OK(ftcache_digest(of.cache(), &digest));
        told.digests.push_back(digest);
        if (step % 16 == 0) of.check_slots(layer, ids, slots);
        // What is refused has its message on this thread alone.
        KEPT_REFUSED(ftcache_forget(of.cache(), 7, 0), OUT_OF_RANGE, "no pool 7: the cache has 1 pools");
    }
    told.stats = of.stats();
}

struct part {
    shape model;
    int ordinal;
    uint64_t slot_count;
    uint64_t seed;
};

ftcache_settings slots_for_three(uint64_t slot_count) {
    ftcache_settings settings = settings_of(slot_count);
    settings.request_count = 3;
    return settings;
}

// From the first call to the last, with that context current.
record run(const part &what, void *context, uint32_t step_count) {
    const in_context here(context);
    engine one(what.model, what.ordinal, slots_for_three(what.slot_count));
    one.attach_all();
    dice random = {what.seed};
    record told = {};
    drive(one, random, step_count, told);
    return told;
}

void check_devices() {
    for (int ordinal = 0; ordinal < 2; ordinal++) {
        emulated.hand_over(ordinal);
        emulator_check_empty(&emulated, ordinal, 1);
    }
}

const uint32_t STEPS = 240;

void each_does_what_it_does_alone() {
    const std::vector<part> parts = {
        {TARGET, 0, 300, 11}, {DRAFT, 0, 12, 22}, {TARGET, 1, 250, 33}, {DRAFT, 1, 14, 44}};
    std::vector<record> alone;
    for (const part &what : parts) {
        alone.push_back(run(what, devices[what.ordinal].context, STEPS));
        CHECK(alone.back().stats.hits > 0 && alone.back().stats.evictions > 0);
    }
    CHECK(!(alone[0] == alone[2]) && !(alone[1] == alone[3]));
    for (uint32_t round = 0; round < 3; round++) {
        std::vector<record> together(parts.size());
        std::vector<std::thread> threads;
        for (size_t i = 0; i < parts.size(); i++) {
            // None is current, its own device's, the other's.
            const uint32_t which = (round + uint32_t(i)) % 3;
            const int owner = which == 1 ? parts[i].ordinal : 1 - parts[i].ordinal;
            void *const context = which == 0 ? nullptr : devices[owner].context;
            threads.emplace_back([&parts, &together, context, i] {
                CHECK(current_context() == nullptr);
                together[i] = run(parts[i], context, STEPS);
                CHECK(current_context() == nullptr);
            });
        }
        for (std::thread &thread : threads) thread.join();
        for (size_t i = 0; i < parts.size(); i++) CHECK(together[i] == alone[i]);
        check_devices();
    }
}

// Steps of both in turn on one thread, whatever is current between them.
void turns_on_one_thread() {
    const part target = {TARGET, 0, 300, 11}, draft = {DRAFT, 1, 12, 22};
    const record target_alone = run(target, nullptr, STEPS), draft_alone = run(draft, nullptr, STEPS);
    void *const contexts[] = {nullptr, devices[0].context, devices[1].context};
    record target_told = {}, draft_told = {};
    {
        engine first(TARGET, 0, slots_for_three(300)), second(DRAFT, 1, slots_for_three(12));
        first.attach_all();
        second.attach_all();
        dice first_random = {target.seed}, second_random = {draft.seed};
        // A whole pass over the layers, so that the next begins with layer 0.
        for (uint32_t turn = 0; turn < STEPS / TARGET.layers; turn++) {
            const in_context here(contexts[turn % 3]);
            drive(first, first_random, TARGET.layers, target_told);
            drive(second, second_random, TARGET.layers, draft_told);
        }
    }
    CHECK(target_told == target_alone && draft_told == draft_alone);
    check_devices();
}

// What no other test here calls of all that touches a device.
void walk_the_other_calls() {
    ftcache_settings settings = settings_of(16);
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    engine one(DRAFT, 0, settings);
    ftcache *const cache = one.cache();
    const ftcache_streams streams = one.streams();
    const std::vector<int32_t> ids = {3, 1, 4, 15};
    std::vector<int32_t> slots;
    char text[4096];
    size_t needed = 0;
    uint32_t spilled = 9;
    KEPT_OK(ftcache_arenas_measure(cache, &spilled, text, sizeof text));
    KEPT_OK(ftcache_device_text(cache, text, sizeof text, &needed));
    SIZED(ftcache_device_facts, facts);
    KEPT_OK(ftcache_device_facts_get(cache, &facts));
    one.attach_all();
    {
        const ftcache_step step = step_of(0);
        const ftcache_routes routes = routes_of(ids.data(), ids.size());
        uint32_t part_count = 0;
        slots.assign(ids.size(), -7);
        const ftcache_slots answer = slots_of(slots.data());
        KEPT_OK(ftcache_partition(cache, &step, &routes, &part_count));
        CHECK(part_count == 1);
        KEPT_OK(ftcache_load_part(cache, 0, &streams, &answer));
        one.check_slots(0, ids, slots);
    }
    CHECK(one.load(0, FTCACHE_PHASE_VERIFY, {7, 8}, slots) == FTCACHE_STATUS_OK);
    const uint32_t layer = 0, expert = 7;
    KEPT_OK(ftcache_accept(cache, 0, &expert, 1));
    KEPT_OK(ftcache_pin(cache, &layer, &expert, 1));
    KEPT_OK(ftcache_unpin(cache, &layer, &expert, 1));
    KEPT_OK(ftcache_land(cache, nullptr));
    KEPT_OK(ftcache_check(cache));
    std::vector<unsigned char> residents(4096);
    KEPT_OK(ftcache_residents_get(cache, 77, residents.data(), residents.size(), &needed));
    KEPT_OK(ftcache_reset(cache));
    uint64_t copied = 0;
    KEPT_OK(ftcache_bring_back(cache, &streams, residents.data(), needed, 77, &copied));
    CHECK(copied == 6 * (40 + 2));
    CHECK(one.load(0, FTCACHE_PHASE_DECODE, {7, 8, 15}, slots) == FTCACHE_STATUS_OK && one.stats().misses == 6);
    one.check_slots(0, {7, 8, 15}, slots);
    KEPT_OK(ftcache_chunk_begin(cache, &streams));
    KEPT_OK(ftcache_chunk_materialize(cache, 0));
    KEPT_OK(ftcache_chunk_abandon(cache, nullptr));
    KEPT_OK(ftcache_synchronize(cache));
    one.walk_device_mode(ids);
    ftcache_configuration *smaller = nullptr, *now = nullptr;
    KEPT_OK(ftcache_configuration_of(cache, &now));
    KEPT_OK(ftcache_configuration_with_budget(now, "800", &smaller));
    SIZED(ftcache_rebuild_report, rebuilt);
    KEPT_OK(ftcache_rebuild(cache, smaller, 1, 1 << 20, &rebuilt));
    KEPT((ftcache_configuration_free(now), ftcache_configuration_free(smaller), 0));
    CHECK(one.load(0, FTCACHE_PHASE_DECODE, ids, slots) == FTCACHE_STATUS_OK);
    one.check_slots(0, ids, slots);
    one.walk_attachments();
    one.walk_files();
    KEPT_OK(ftcache_reset(cache));
    CHECK(one.load(0, FTCACHE_PHASE_DECODE, ids, slots) == FTCACHE_STATUS_OK);
    one.check_slots(0, ids, slots);
    KEPT_OK(ftcache_synchronize(cache));
}

void no_call_leaves_another_context() {
    void *const contexts[] = {nullptr, devices[0].context, devices[1].context};
    for (void *context : contexts) {
        const in_context here(context);
        walk_the_other_calls();
        check_devices();
    }
}

// Two of one device, beside its primary one.
void contexts_of_the_callers() {
    int (*create)(void **, unsigned, int), (*destroy)(void *);
    cuda_symbol(&devices[0], "cuCtxCreate_v2", &create);
    cuda_symbol(&devices[0], "cuCtxDestroy_v2", &destroy);
    void *contexts[2];
    for (void *&context : contexts) {
        CUDA(create(&context, 0, 0));
        CUDA(devices[0].context_set_current(nullptr));
    }
    const part target = {TARGET, 0, 300, 11};
    const record alone = run(target, nullptr, STEPS / 2);
    record told[2] = {};
    {
        engine first(TARGET, 0, slots_for_three(300), contexts[0]);
        engine second(TARGET, 0, slots_for_three(300), contexts[1]);
        dice random[2] = {{target.seed}, {target.seed}};
        first.attach_all();
        second.attach_all();
        for (uint32_t turn = 0; turn < STEPS / 2 / TARGET.layers; turn++) {
            const in_context here(turn % 3 == 0 ? nullptr : contexts[turn % 3 - 1]);
            drive(first, random[0], TARGET.layers, told[0]);
            drive(second, random[1], TARGET.layers, told[1]);
        }
        // The streams of one are not the other's, for which nothing changes.
        const int32_t ids[] = {3, 4};
        int32_t answer[] = {-7, -7};
        const ftcache_step step = step_of(0);
        const ftcache_routes routes = routes_of(ids, 2);
        const ftcache_slots places = slots_of(answer);
        const ftcache_streams streams = second.streams();
        const std::string name = std::to_string(uintptr_t(streams.compute));
        KEPT_REFUSED(ftcache_load(first.cache(), &step, &routes, &streams, &places), INVALID_ARGUMENT,
                "stream " + name + " is not of this device");
        CHECK(answer[0] == -7);
        told[0].stats = first.stats();
    }
    CHECK(told[0] == alone && told[1] == alone);
    for (void *context : contexts) CUDA(destroy(context));
    check_devices();
}

void take_line(void *user, uint32_t level, const char *message) {
    CHECK(level >= FTCACHE_LOG_LEVEL_ERROR && level <= FTCACHE_LOG_LEVEL_INFO && message[0] != 0);
    ++*static_cast<int *>(user);
}

void each_has_its_own_log() {
    int lines[2] = {0, 0};
    ftcache *caches[2] = {nullptr, nullptr};
    ftcache_configuration *configuration = configuration_for(DRAFT, settings_of(12));
    for (int i = 0; i < 2; i++) {
        ftcache_config config = config_on(0);
        config.log_level = FTCACHE_LOG_LEVEL_INFO;
        config.log = take_line;
        config.log_user = &lines[i];
        KEPT_OK(ftcache_new(configuration, &config, &caches[i]));
        CHECK(lines[i] > 0);
    }
    CHECK(lines[0] == lines[1]);
    KEPT((ftcache_free(caches[0]), 0));
    const int told = lines[0];
    SIZED(ftcache_rebuild_report, report);
    KEPT_OK(ftcache_rebuild(caches[1], configuration, 0, 0, &report));
    CHECK(lines[0] == told && lines[1] > told);
    KEPT((ftcache_free(caches[1]), 0));
    ftcache_configuration_free(configuration);
    check_devices();
}

// A draft copied the target's parameters, and the one cache of the process was rebuilt for it.
void b55_a_draft_leaves_the_target_alone() {
    const part target = {TARGET, 0, 300, 11};
    const record alone = run(target, devices[0].context, STEPS);
    record told = {};
    {
        engine one(TARGET, 0, slots_for_three(300));
        one.attach_all();
        dice random = {target.seed};
        drive(one, random, STEPS / 4, told);
        for (uint32_t i = 0; i < 2; i++) {
            const ftcache_stats before = one.stats();
            uint64_t digest_before = 0, digest_after = 1;
            KEPT_OK(ftcache_digest(one.cache(), &digest_before));
            {
                engine other(DRAFT, 0, slots_for_three(12));
                other.attach_all();
                dice drafts = {99};
                record unread = {};
                drive(other, drafts, 20, unread);
                drive(one, random, STEPS / 4, told);
                drive(other, drafts, 20, unread);
            }
            if (i == 0) {
                // Opened and closed with nothing between.
                const ftcache_stats open = one.stats();
                KEPT_OK(ftcache_digest(one.cache(), &digest_before));
                { engine other(DRAFT, 0, slots_for_three(12)); }
                const ftcache_stats closed = one.stats();
                KEPT_OK(ftcache_digest(one.cache(), &digest_after));
                CHECK(digest_before == digest_after && memcmp(&open, &closed, sizeof open) == 0);
                CHECK(open.steps == before.steps + STEPS / 4);
            }
        }
        drive(one, random, STEPS / 4, told);
    }
    CHECK(told == alone);
    check_devices();
}

// A draft inherited the target's 96 slots.
void b56_a_draft_has_the_slots_that_it_asked_for() {
    ftcache_configuration *configuration = nullptr;
    CHECK(try_configuration(DRAFT, settings_of(96), &configuration) == FTCACHE_STATUS_UNSATISFIABLE);
    CHECK(strcmp(ftcache_last_error(), "the pools can use 16 slots; 96 are given") == 0);
    CHECK(configuration == nullptr);
    {
        engine target(TARGET, 0, settings_of(96)), draft(DRAFT, 0, settings_of(8));
        SIZED(ftcache_report, of_target);
        SIZED(ftcache_report, of_draft);
        KEPT_OK(ftcache_report_get(target.cache(), &of_target));
        KEPT_OK(ftcache_report_get(draft.cache(), &of_draft));
        CHECK(of_target.slot_count == 96 && of_target.cached_layer_count == 12);
        CHECK(of_draft.slot_count == 8 && of_draft.cached_layer_count == 1);
    }
    check_devices();
}

// 64 more slots went to device 0, with room beside it.
void b57_each_device_has_its_budget() {
    const emulator_counts before = emulator_counts_of(&emulated, 0);
    ftcache_settings settings = settings_of(0);
    settings.budget_bytes = 64 << 10;
    ftcache_configuration *configuration = configuration_for(TARGET, settings);
    SIZED(ftcache_configuration_report, report);
    KEPT_OK(ftcache_configuration_get(configuration, &report));
    CHECK(report.arena_bytes <= 64 << 10 && report.arena_bytes + 100 > 64 << 10);
    {
        engine second(TARGET, 1, settings);
        const emulator_counts after = emulator_counts_of(&emulated, 0);
        CHECK(memcmp(&before, &after, sizeof before) == 0);
        const emulator_counts there = emulator_counts_of(&emulated, 1);
        CHECK(there.allocated_bytes >= report.arena_bytes);
        // The first has no room, which is nothing to the second.
        emulated.set_memory_bytes(0, 50000);
        ftcache *cache = nullptr;
        const ftcache_config config = config_on(0);
        KEPT_REFUSED(ftcache_new(configuration, &config, &cache), OUT_OF_MEMORY,
                "62880 bytes of device memory wanted; 50000 are free");
        CHECK(cache == nullptr);
        emulated.set_memory_bytes(0, 1 << 30);
        const emulator_counts refused = emulator_counts_of(&emulated, 0);
        CHECK(refused.allocations == 0 && refused.streams == 0 && refused.events == 0 && refused.primary_retains == 1);
        SIZED(ftcache_device_facts, facts);
        KEPT_OK(ftcache_device_facts_get(second.cache(), &facts));
        CHECK(facts.ordinal == 1 && facts.free_bytes == (1u << 30) - there.allocated_bytes);
    }
    ftcache_configuration_free(configuration);
    check_devices();
}

// "-1 is automatic" was resolved in one place only, and was 0 elsewhere.
void b59_what_cannot_be_resolved_is_refused() {
    const struct { const char *budget, *cpu_layers; ftcache_status status; const char *message; } cases[] = {
        {"rest", nullptr, FTCACHE_STATUS_UNSATISFIABLE, "a budget of rest: how much memory is free is not known"},
        {"0.9*free", nullptr, FTCACHE_STATUS_UNSATISFIABLE,
         "a budget of 0.9*free: how much memory is free is not known"},
        {"-1", nullptr, FTCACHE_STATUS_INVALID_ARGUMENT,
         "\"-1\" is not a byte count such as 12GiB, 12GB or 9059696640"},
        {"auto", nullptr, FTCACHE_STATUS_INVALID_ARGUMENT,
         "\"auto\" is not a byte count such as 12GiB, 12GB or 9059696640"},
        {"64KiB", "auto", FTCACHE_STATUS_UNSATISFIABLE, "auto goes by what can be pinned, which is not known"},
    };
    for (const auto &one : cases) {
        ftcache_configuration *configuration = nullptr;
        ftcache_settings settings = settings_of(0);
        settings.budget = one.budget;
        settings.cpu_layers = one.cpu_layers;
        const ftcache_status status = try_configuration(TARGET, settings, &configuration);
        CHECK(status == one.status && strcmp(ftcache_last_error(), one.message) == 0);
        CHECK(configuration == nullptr);
    }
}

std::string text_of(const ftcache_configuration *configuration) {
    size_t needed = 0;
    KEPT_OK(ftcache_configuration_text(configuration, nullptr, 0, &needed));
    std::string text(needed, ' ');
    KEPT_OK(ftcache_configuration_text(configuration, &text[0], text.size(), nullptr));
    text.pop_back();
    return text;
}

// Eligibility looked at the router's device, and the cache was off without a word.
void b60_what_is_declined_says_why() {
    const uint32_t slotless[] = {1}, resident[] = {2};
    ftcache_settings settings = settings_of(0);
    settings.budget_bytes = 64 << 10;
    settings.slotless_layers = slotless;
    settings.slotless_layer_count = 1;
    settings.resident_layers = resident;
    settings.resident_layer_count = 1;
    settings.cpu_layers = "3,4";
    {
        engine one(TARGET, 0, settings);
        one.attach(0, 0);
        one.attach(0, 1);
        const uint32_t states[] = {FTCACHE_LAYER_STATE_CACHED,   FTCACHE_LAYER_STATE_SLOTLESS,
                                   FTCACHE_LAYER_STATE_RESIDENT, FTCACHE_LAYER_STATE_CPU,
                                   FTCACHE_LAYER_STATE_CPU,      FTCACHE_LAYER_STATE_CACHED};
        for (uint32_t layer = 0; layer < 6; layer++) {
            SIZED(ftcache_layer_report, report);
            KEPT_OK(ftcache_layer_get(one.cache(), layer, &report));
            CHECK(report.state == states[layer]);
            CHECK(report.is_attached == (layer == 0) && report.is_direct == (layer == 0));
        }
        SIZED(ftcache_report, report);
        KEPT_OK(ftcache_report_get(one.cache(), &report));
        CHECK(report.cached_layer_count == 8 && report.declined_layer_count == 4 && report.ready_layer_count == 1);
        std::vector<int32_t> slots;
        for (uint32_t layer = 1; layer < 5; layer++) {
            CHECK(one.load(layer, FTCACHE_PHASE_DECODE, {0}, slots) == FTCACHE_STATUS_OUT_OF_RANGE);
            const std::string name = "layer " + std::to_string(layer);
            CHECK(ftcache_last_error() == name + " holds no slots: it decodes elsewhere");
            CHECK(slots == std::vector<int32_t>{-7});
        }
        CHECK(one.load(5, FTCACHE_PHASE_DECODE, {0}, slots) == FTCACHE_STATUS_NOT_ATTACHED);
        CHECK(strcmp(ftcache_last_error(), "layer 5 bank 0 is not attached") == 0);
        ftcache_configuration *configuration = nullptr;
        KEPT_OK(ftcache_configuration_of(one.cache(), &configuration));
        const std::string text = text_of(configuration);
        for (const char *line : {"\nlayer 1 has no slots: it is to hold none\n",
                                 "\nlayer 2 has no slots: on the device as a whole\n",
                                 "\nlayer 3 has no slots: decodes on the CPU\n",
                                 "\nlayer 4 has no slots: decodes on the CPU\n"}) {
            CHECK(text.find(line) != std::string::npos);
        }
        CHECK(text.find("layer 5") == std::string::npos);
        ftcache_configuration_free(configuration);
    }
    check_devices();
}

// A setting was taken and had no effect: the same memory and speed at every value.
void b62_whether_anything_is_served_is_a_call() {
    {
        engine one(DRAFT, 1, settings_of(8));
        SIZED(ftcache_report, report);
        for (uint32_t attached = 0; attached <= SHAPE_BANKS; attached++) {
            KEPT_OK(ftcache_report_get(one.cache(), &report));
            const uint32_t all = attached == SHAPE_BANKS;
            CHECK(report.is_engaged == all && report.ready_layer_count == all && report.cached_layer_count == 1);
            CHECK(report.device == FTCACHE_DEVICE_CUDA);
            if (!all) one.attach(0, attached);
        }
    }
    // Where nothing would be served there is no cache.
    const uint32_t layer = 0;
    ftcache_settings settings = settings_of(8);
    ftcache_configuration *configuration = nullptr;
    settings.slotless_layers = &layer;
    settings.slotless_layer_count = 1;
    CHECK(try_configuration(DRAFT, settings, &configuration) == FTCACHE_STATUS_UNSATISFIABLE);
    CHECK(strcmp(ftcache_last_error(), "none of 1 layers holds slots: there is nothing to cache") == 0);
    CHECK(configuration == nullptr);
    check_devices();
}

// A whole chunk, each layer staged in turn; every row of every layer is looked at.
void stage_all(engine &one, uint32_t buffer_count) {
    const uint32_t layers = one.model().layers;
    const ftcache_streams streams = one.streams();
    KEPT_OK(ftcache_chunk_begin(one.cache(), &streams));
    if (buffer_count == 2) KEPT_OK(ftcache_chunk_prefetch(one.cache(), 0));
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint32_t buffer = 9;
        if (buffer_count == 1) KEPT_OK(ftcache_chunk_materialize(one.cache(), layer));
        if (buffer_count == 2 && layer + 1 < layers) KEPT_OK(ftcache_chunk_prefetch(one.cache(), layer + 1));
        KEPT_OK(ftcache_chunk_wait(one.cache(), layer, &buffer));
        CHECK(buffer == (buffer_count == 2 ? layer % 2 : 0));
        one.synchronize();
        for (uint32_t bank = 0; bank < SHAPE_BANKS; bank++) {
            SIZED(ftcache_slot_span, span);
            KEPT_OK(ftcache_staged_span_get(one.cache(), layer, bank, buffer, &span));
            CHECK(span.slot_count == one.model().experts);
            for (uint32_t expert = 0; expert < span.slot_count; expert++) {
                one.check_row(span, expert, layer, bank, expert);
            }
        }
        KEPT_OK(ftcache_chunk_release(one.cache(), layer));
    }
    SIZED(ftcache_chunk_report, report);
    KEPT_OK(ftcache_chunk_end(one.cache(), &report));
    CHECK(report.chunks == 1 && report.layers == layers);
}

// The threshold lay above the largest chunk, so that the path behind it never ran.
void b63_both_ways_of_prefill_run_at_the_smallest_sizes() {
    const struct { shape model; uint64_t slot_count; uint32_t buffers, on_demand; } cases[] = {
        {{1, 1, 1, {1, 1}, 9}, 1, 1, 0}, {DRAFT, 16, 1, 3}, {TARGET, 70, 1, 7}, {TARGET, 130, 2, 7},
    };
    for (const auto &one : cases) {
        ftcache_settings settings = settings_of(one.slot_count);
        settings.staging = FTCACHE_STAGING_BORROWED;
        ftcache_configuration *configuration = configuration_for(one.model, settings);
        SIZED(ftcache_configuration_report, report);
        KEPT_OK(ftcache_configuration_get(configuration, &report));
        ftcache_configuration_free(configuration);
        CHECK(report.buffer_count == one.buffers && report.on_demand_tokens == one.on_demand);
        engine cache(one.model, 0, settings);
        cache.attach_all();
        for (uint32_t tokens = 1; tokens <= report.on_demand_tokens; tokens++) {
            std::vector<int32_t> ids, slots;
            for (uint32_t i = 0; i < tokens * one.model.top_k; i++) {
                ids.push_back(int32_t((i * 3 + tokens) % one.model.experts));
            }
            CHECK(cache.load(one.model.layers - 1, FTCACHE_PHASE_PREFILL, ids, slots) == FTCACHE_STATUS_OK);
            cache.check_slots(one.model.layers - 1, ids, slots);
        }
        stage_all(cache, report.buffer_count);
    }
    ftcache_settings settings = settings_of(8);
    settings.staging = FTCACHE_STAGING_BORROWED;
    ftcache_configuration *configuration = nullptr;
    CHECK(try_configuration(DRAFT, settings, &configuration) == FTCACHE_STATUS_UNSATISFIABLE);
    CHECK(strcmp(ftcache_last_error(), "one whole layer needs 680 bytes of bank 0 to be staged; its arena has 360; "
                                       "16 slots would do") == 0);
    check_devices();
}

// To attach layers in another order, the whole model was read at once.
void b64_layers_are_attached_one_by_one_in_any_order() {
    const part target = {TARGET, 0, 300, 11};
    const record alone = run(target, devices[0].context, STEPS);
    record told = {};
    {
        engine one(TARGET, 0, slots_for_three(300));
        const emulator_counts before = emulator_counts_of(&emulated, 0);
        // 7 has no divisor in common with the count, so that every bank comes once.
        const uint32_t count = TARGET.layers * SHAPE_BANKS;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t at = (i * 7 + 5) % count;
            SIZED(ftcache_report, report);
            KEPT_OK(ftcache_report_get(one.cache(), &report));
            CHECK(report.ready_layer_count < TARGET.layers);
            one.attach(at / SHAPE_BANKS, at % SHAPE_BANKS);
            const emulator_counts now = emulator_counts_of(&emulated, 0);
            CHECK(now.registrations == before.registrations + i + 1);
            CHECK(now.allocated_bytes == before.allocated_bytes && now.host_allocations == before.host_allocations);
        }
        dice random = {target.seed};
        drive(one, random, STEPS, told);
    }
    CHECK(told == alone);
    check_devices();
}

}  // namespace

int main() {
    emulated = emulator_open();
    for (int ordinal = 0; ordinal < 2; ordinal++) devices[ordinal] = cuda_open_at(ordinal);
    CUDA(devices[0].context_set_current(nullptr));
    each_does_what_it_does_alone();
    turns_on_one_thread();
    no_call_leaves_another_context();
    contexts_of_the_callers();
    each_has_its_own_log();
    b55_a_draft_leaves_the_target_alone();
    b56_a_draft_has_the_slots_that_it_asked_for();
    b57_each_device_has_its_budget();
    b59_what_cannot_be_resolved_is_refused();
    b60_what_is_declined_says_why();
    b62_whether_anything_is_served_is_a_call();
    b63_both_ways_of_prefill_run_at_the_smallest_sizes();
    b64_layers_are_attached_one_by_one_in_any_order();
    for (cuda &device : devices) cuda_close(&device, nullptr, nullptr);
    return 0;
}
