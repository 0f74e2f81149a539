// The C++ wrapper in use, without a GPU: handles, results, and that every method hands its arguments on as they are.

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include "check.h"
#include "ftcache.hpp"

// Of hpp_second.cpp.
ftc::result<ftc::cache> made_elsewhere(const ftc::configuration &configuration);

namespace {

template <typename Result>
bool refused_with(const Result &given, ftcache_status status, const char *message) {
    if (!given && given.error().status == status && given.error().message == message) return true;
    if (given) {
        std::fprintf(stderr, "  not refused\n");
    } else {
        std::fprintf(stderr, "  refused with %d, \"%s\"\n", static_cast<int>(given.error().status),
                     given.error().message.c_str());
    }
    return false;
}

#define REFUSED_WITH(call, status, message) CHECK(refused_with((call), FTCACHE_STATUS_##status, (message)))

ftc::model wrapped_model() {
    auto config = ftc::sized<ftcache_model_config>();
    config.layer_count = LAYERS;
    config.expert_count = EXPERTS;
    config.top_k = TOP_K;
    auto model = ftc::model::make(config);
    CHECK(model);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const std::array<uint64_t, BANKS> row_bytes = {row_bytes_of(layer, 0), row_bytes_of(layer, 1)};
        auto key = ftc::sized<ftcache_layer>();
        key.bank_count = BANKS;
        key.row_bytes = row_bytes.data();
        key.tag = "q";
        key.tag_bytes = 1;
        CHECK(model->layer_set(layer, key));
    }
    return std::move(model).value();
}

ftc::configuration wrapped_configuration(const ftcache_settings &settings) {
    return ftc::configuration::make(wrapped_model(), settings).value();
}

void attach(ftc::cache &cache) {
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t bank = 0; bank < BANKS; bank++) {
            fill_rows(layer, bank);
            auto rows = ftc::sized<ftcache_host_rows>();
            rows.base = host_rows[layer][bank];
            rows.bytes = sizeof host_rows[layer][bank];
            rows.stride = HOST_STRIDE;
            CHECK(cache.attach(layer, bank, rows));
        }
    }
}

// On the host, every row attached. Pool 0 is the wide layer's, pool 1 that of the other two.
ftc::cache wrapped_cache(const ftcache_settings &settings, const ftcache_config *config = nullptr) {
    auto cache = ftc::cache::make(wrapped_configuration(settings), config).value();
    attach(cache);
    return cache;
}

ftc::cache planner(const ftcache_settings &settings) {
    auto config = ftc::sized<ftcache_config>();
    config.device = FTCACHE_DEVICE_NONE;
    return ftc::cache::make(wrapped_configuration(settings), &config).value();
}

// Slots of one row of routes.
template <std::size_t N>
std::array<int32_t, N> loaded(ftc::cache &cache, uint32_t layer, const std::array<int32_t, N> &ids) {
    std::array<int32_t, N> slot{};
    const auto slots = ftc::slots_of(slot.data());
    CHECK(cache.load(step_of(layer), ftc::routes_of(ids.data(), 1, N), nullptr, &slots));
    return slot;
}

// Handles.

template <typename Handle>
constexpr bool is_moved_and_not_copied =
    std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle> &&
    !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>;

static_assert(is_moved_and_not_copied<ftc::model> && is_moved_and_not_copied<ftc::configuration> &&
              is_moved_and_not_copied<ftc::cache>);
// A C pointer is taken over only where that is written, and a handle is no pointer by itself.
static_assert(!std::is_convertible_v<ftcache *, ftc::cache> && std::is_constructible_v<ftc::cache, ftcache *>);
static_assert(!std::is_convertible_v<ftc::cache, ftcache *> && !std::is_convertible_v<ftc::cache, bool>);
static_assert(!std::is_copy_constructible_v<ftc::result<ftc::cache>> && sizeof(ftc::cache) == sizeof(void *));

template <typename Handle>
void moves_leave_the_source_empty(Handle handle) {
    auto *raw = handle.get();
    CHECK(raw != nullptr && handle);
    Handle moved(std::move(handle));
    CHECK(handle.get() == nullptr && !handle && moved.get() == raw);
    Handle assigned;
    CHECK(!assigned);
    assigned = std::move(moved);
    CHECK(!moved && assigned.get() == raw);
    // By another name, or the compiler sees it and warns.
    Handle &same = assigned;
    assigned = std::move(same);
    CHECK(assigned.get() == raw);
    CHECK(assigned.release() == raw && !assigned);
    // Taken over again, to be freed once.
    Handle adopted(raw);
    CHECK(adopted.get() == raw);
    std::swap(adopted, assigned);
    CHECK(!adopted && assigned.get() == raw);
    // Into one that holds something: freed then, which a sanitizer sees if it is not.
    assigned = Handle();
    CHECK(!assigned);
}

void handles_move() {
    moves_leave_the_source_empty(wrapped_model());
    moves_leave_the_source_empty(wrapped_configuration(settings_of(8)));
    moves_leave_the_source_empty(wrapped_cache(settings_of(8)));

    // One that is assigned to frees what it held, and takes the other's.
    auto wide = wrapped_cache(settings_of(9));
    auto narrow = wrapped_cache(settings_of(8));
    narrow = std::move(wide);
    CHECK(narrow.report_get()->slot_count == 9);
    REFUSED_WITH(wide.report_get(), INVALID_ARGUMENT, "cache is NULL");
    REFUSED_WITH(wide.stats_json(), INVALID_ARGUMENT, "cache is NULL");
    REFUSED_WITH(ftc::configuration().text(), INVALID_ARGUMENT, "configuration is NULL");
    REFUSED_WITH(ftc::configuration::make(ftc::model(), settings_of(8)), INVALID_ARGUMENT, "model is NULL");
    REFUSED_WITH(ftc::cache::make(ftc::configuration()), INVALID_ARGUMENT, "configuration is NULL");
}

// Results.

void results_hold_one_or_the_other() {
    ftc::result<std::string> text(std::string("rows"));
    CHECK(text && *text == "rows" && text->size() == 4);
    *text = "slots";
    CHECK(std::move(text).value() == "slots");
    static_assert(std::is_same_v<decltype(std::declval<ftc::result<std::string>>().value()), std::string>);
    static_assert(!std::is_convertible_v<ftc::result<uint32_t>, bool>);

    // A message is that of its own call, whatever came after it.
    auto cache = wrapped_cache(settings_of(8));
    const auto first = cache.forget(0, 3);
    const auto second = cache.forget_layer(3);
    REFUSED_WITH(first, OUT_OF_RANGE, "no slot 3: pool 0 has 3 slots");
    REFUSED_WITH(second, OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    CHECK(cache.check());
    cache.check().value();
    REFUSED_WITH(second, OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    CHECK(std::string(ftc::last_error()) == "no layer 3: the cache has 3 layers");
    char cut[9];
    CHECK(ftc::last_error_copy(cut) == sizeof "no layer 3: the cache has 3 layers");
    CHECK(std::string(cut) == "no layer");
    const ftc::error taken = cache.forget(2, 0).error();
    CHECK(taken.status == FTCACHE_STATUS_OUT_OF_RANGE && taken.message == "no pool 2: the cache has 2 pools");

    // An error goes up through results of other kinds.
    const ftc::result<uint64_t> passed = second.error();
    REFUSED_WITH(passed, OUT_OF_RANGE, "no layer 3: the cache has 3 layers");

    CHECK(ftc::abi_check() && ftc::abi_version() == FTCACHE_ABI_VERSION);
}

// What ends the program must say so on stderr, which CTest reads.
extern "C" void ended(int) { std::_Exit(0); }

int misuse(const std::string &what) {
    std::signal(SIGABRT, ended);
    auto cache = wrapped_cache(settings_of(8));
    auto number = cache.digest();
    const auto none = cache.configuration_of()->layer_pool(3);
    if (what == "value") return static_cast<int>(*none);
    if (what == "arrow") return static_cast<int>(ftc::cache::make(ftc::configuration())->get() != nullptr);
    if (what == "void") cache.forget(0, 3).value();
    if (what == "error") return static_cast<int>(number.error().status);
    if (what == "void_error") return static_cast<int>(cache.check().error().status);
    if (what == "success") return static_cast<bool>(ftc::result<void>(ftc::error{}));
    if (what == "span") return static_cast<int>(ftc::span<const int32_t>(nullptr, 0)[0]);
    return 1;
}

// Spans.

void spans_come_from_arrays_and_containers() {
    std::vector<uint32_t> vector = {1, 2, 3};
    const std::array<uint32_t, 2> array = {4, 5};
    uint32_t plain[] = {6};
    const auto sum = [](ftc::span<const uint32_t> values) {
        uint32_t sum = 0;
        for (uint32_t value : values) sum += value;
        return sum;
    };
    CHECK(sum(vector) == 6 && sum(array) == 9 && sum(plain) == 6 && sum({vector.data(), 2}) == 3 && sum({}) == 0);
    ftc::span<uint32_t> own = vector;
    own[2] = 7;
    const ftc::span<const uint32_t> view = own;
    CHECK(vector[2] == 7 && view.data() == vector.data() && view.size() == 3 && !view.empty() && view[1] == 2);
    // Neither another type nor a const one as if it could be written.
    static_assert(!std::is_constructible_v<ftc::span<const uint64_t>, std::vector<uint32_t> &>);
    static_assert(!std::is_constructible_v<ftc::span<uint32_t>, const std::vector<uint32_t> &>);
}

// The whole way.

void a_configuration_answers() {
    const auto configuration = wrapped_configuration(settings_of(8));
    const auto report = configuration.report_get();
    CHECK(report && report->slot_count == 8 && report->pool_count == 2 && report->struct_size == sizeof *report);
    CHECK(*configuration.layer_pool(1) == 0 && *configuration.layer_pool(2) == 1);
    CHECK(*configuration.layer_state(2) == FTCACHE_LAYER_STATE_CACHED);
    CHECK(configuration.layer_fetch_get(2)->fetch_rule == FTCACHE_FETCH_RULE_DEFAULT);
    CHECK(configuration.pool_get(0)->slot_count == 3 && configuration.pool_get(1)->layer_count == 2);
    CHECK(configuration.slot_range_get(0, 0)->row_bytes == 40 && configuration.slot_range_get(0, 1)->row_bytes == 2);
    CHECK(configuration.slot_range_get(1, 0)->row_bytes == 24);
    REFUSED_WITH(configuration.layer_pool(3), OUT_OF_RANGE, "no layer 3: the model has 3 layers");
    REFUSED_WITH(configuration.slot_range_get(0, 2), OUT_OF_RANGE, "no bank 2: the model has 2 banks");
    REFUSED_WITH(configuration.with_budget("7 bananas"), INVALID_ARGUMENT,
            "\"7 bananas\" is not a byte count such as 12GiB, 12GB or 9059696640");

    size_t needed = 0;
    OK(ftcache_configuration_text(configuration.get(), nullptr, 0, &needed));
    std::vector<char> whole(needed);
    OK(ftcache_configuration_text(configuration.get(), whole.data(), whole.size(), nullptr));
    CHECK(*configuration.text() == whole.data() && configuration.text()->size() == needed - 1);

    auto slotless = settings_of(8);
    const uint32_t without[] = {2};
    slotless.slotless_layers = without;
    slotless.slotless_layer_count = 1;
    CHECK(*wrapped_configuration(slotless).layer_state(2) == FTCACHE_LAYER_STATE_SLOTLESS);

    // Borrowed staging: a buffer on each pool.
    auto borrowed = settings_of(24);
    borrowed.staging = FTCACHE_STAGING_BORROWED;
    const auto staged = wrapped_configuration(borrowed);
    CHECK(staged.report_get()->buffer_count == 2);
    const auto run = staged.buffer_run_get(0, 0), other = staged.buffer_run_get(1, 0);
    CHECK(run->pool == 0 && run->count == 8 && other->pool == 1 && other->count == 15);
    CHECK(staged.buffer_run_get(0, 1)->count == 0);
    REFUSED_WITH(staged.buffer_run_get(2, 0), OUT_OF_RANGE, "no staging buffer 2: there are 2");
}

void a_step_fills_the_slots_it_names() {
    auto cache = made_elsewhere(wrapped_configuration(settings_of(8))).value();
    const std::array<int32_t, 1> id = {0};
    REFUSED_WITH(cache.load(step_of(0), ftc::routes_of(id.data(), 1, 1), nullptr, nullptr), NOT_ATTACHED,
            "layer 0 bank 0 is not attached");
    attach(cache);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const auto slot = loaded<3>(cache, layer, {5, 2, 5});
        CHECK(slot[0] == slot[2] && slot_holds(cache.get(), layer, slot[0], 5));
        CHECK(slot_holds(cache.get(), layer, slot[1], 2));
    }
    CHECK(cache.slot_span_get(0, 0)->row_bytes == 40 && cache.slot_span_get(0, 1)->row_bytes == 2);
    CHECK(cache.slot_span_get(1, 0)->row_bytes == 24);

    const auto stats = cache.stats_get();
    CHECK(stats->steps == 3 && stats->routes == 9 && stats->misses == 6 && stats->bytes == 2 * (26 + 42 + 26));
    CHECK(cache.layer_stats_get(1)->bytes == 2 * 42 && cache.pool_stats_get(1)->steps == 2);
    CHECK(cache.phase_stats_get(1, FTCACHE_PHASE_DECODE)->steps == 1);
    CHECK(cache.phase_stats_get(1, FTCACHE_PHASE_PREFILL)->steps == 0);
    CHECK(cache.layer_get(1)->pool == 0 && cache.layer_get(2)->pool == 1 && cache.layer_get(1)->is_attached == 1);
    CHECK(cache.report_get()->resident_count == 6 && cache.report_get()->step == 3 && cache.generation().value() == 0);

    // 64-bit ids in place, two rows of one.
    int64_t in_place[] = {2, 5};
    const auto slots = ftc::slots_of(in_place);
    CHECK(cache.load(step_of(2), ftc::routes_of(in_place, 2, 1), nullptr, &slots));
    CHECK(slot_holds(cache.get(), 2, static_cast<int32_t>(in_place[1]), 5));
    CHECK(cache.layer_stats_get(2)->hits == 2);

    const std::array<int32_t, 4> wide = {0, 1, 2, 3};
    REFUSED_WITH(cache.load(step_of(1), ftc::routes_of(wide.data(), 2, 2), nullptr, nullptr), STEP_TOO_WIDE,
            "layer 1 routes to 4 distinct experts; pool 0 has 3 slots");
    auto streams = ftc::sized<ftcache_streams>();
    streams.copy = reinterpret_cast<void *>(uintptr_t{78});
    REFUSED_WITH(cache.load(step_of(1), ftc::routes_of(wide.data(), 1, 2), &streams, nullptr), INVALID_ARGUMENT,
            "stream 78 is not of this device");

    // Pool 1, slot of layer 0: another order of the two numbers is another slot.
    const auto slot = loaded<1>(cache, 0, {5});
    const auto before = cache.digest();
    CHECK(cache.forget(1, static_cast<uint32_t>(slot[0])) && *cache.digest() != *before);
    loaded<1>(cache, 0, {5});
    CHECK(cache.layer_stats_get(0)->freed_misses == 1);
    CHECK(cache.forget_layer(0) && cache.report_get()->resident_count == 4);
    CHECK(cache.reset() && cache.report_get()->resident_count == 0);
    CHECK(cache.stats_reset() && cache.stats_get()->steps == 0);
    CHECK(cache.synchronize());

    // The configuration that is in effect is its own handle.
    auto effective = cache.configuration_of();
    cache = ftc::cache();
    CHECK(effective->report_get()->slot_count == 8);
}

void texts_are_whole() {
    auto cache = wrapped_cache(settings_of(8));
    loaded<2>(cache, 1, {3, 4});
    CHECK(*cache.plan_text() == "step 1 pool 0: routes [3, 4] -> slots [0, 1]; copy 3 -> slot 0; copy 4 -> slot 1");
    // Longer than the first guess at its length.
    const auto json = cache.stats_json();
    size_t needed = 0;
    char first[2];
    OK(ftcache_stats_json(cache.get(), first, sizeof first, &needed));
    std::vector<char> whole(needed);
    OK(ftcache_stats_json(cache.get(), whole.data(), whole.size(), nullptr));
    CHECK(needed > 1024 && json && *json == whole.data() && json->size() == needed - 1);
    CHECK(json->front() == '{' && json->back() == '}' && json->find("\"total\"") != std::string::npos);
    CHECK(cache.device_text()->find('\n') != std::string::npos && cache.device_text()->find('\0') == std::string::npos);
    CHECK(cache.device_facts_get()->ordinal == 0 && cache.device_facts_get()->capability == 0);
}

using told = std::vector<std::pair<uint32_t, std::string>>;

void a_log_is_a_function_and_a_pointer() {
    told log;
    auto config = ftc::sized<ftcache_config>();
    config.log_level = FTCACHE_LOG_LEVEL_INFO;
    config.log = [](void *user, uint32_t level, const char *message) {
        static_cast<told *>(user)->emplace_back(level, message);
    };
    config.log_user = &log;
    auto made = ftc::cache::make(wrapped_configuration(settings_of(8)), &config);
    const auto first = std::make_pair<uint32_t, std::string>(FTCACHE_LOG_LEVEL_INFO,
                                                             "a cache on host memory; slots: 8; bytes: 324; pools: 2");
    CHECK(made && !log.empty() && log.front() == first);
    // A rebuild is told too, after the handle was moved.
    ftc::cache cache = std::move(made).value();
    log.clear();
    CHECK(cache.rebuild(*cache.configuration_of(), false, 0));
    CHECK(std::count(log.begin(), log.end(), first) == 1);
}

// Kept, left and parted.

void pins_verify_steps_and_parts() {
    auto cache = wrapped_cache(settings_of(8));
    const std::vector<uint32_t> layers = {0, 2}, experts = {5, 6}, one = {0};
    CHECK(cache.pin(layers, experts));
    loaded<1>(cache, 0, {5});
    for (int32_t id : {0, 1, 2, 3, 4, 6, 7}) loaded<1>(cache, 0, {id});
    loaded<1>(cache, 0, {5});
    CHECK(cache.layer_stats_get(0)->hits == 1);
    CHECK(cache.unpin(layers, experts));
    for (int32_t id : {0, 1, 2, 3, 4, 6, 7}) loaded<1>(cache, 0, {id});
    loaded<1>(cache, 0, {5});
    CHECK(cache.layer_stats_get(0)->hits == 1);
    REFUSED_WITH(cache.pin(layers, one), INVALID_ARGUMENT, "layers has 2 numbers, experts 1");
    REFUSED_WITH(cache.unpin(one, experts), INVALID_ARGUMENT, "layers has 1 numbers, experts 2");
    REFUSED_WITH(cache.pin(experts, layers), OUT_OF_RANGE, "no layer 5: the cache has 3 layers");

    // Six experts over three slots.
    const std::array<int32_t, 6> wide = {0, 1, 2, 3, 4, 5};
    const auto parts = cache.partition(step_of(1), ftc::routes_of(wide.data(), 3, 2));
    CHECK(parts && *parts == 2);
    uint32_t seen = 0;
    for (uint32_t part = 0; part < *parts; part++) {
        std::array<int32_t, 6> slot;
        const auto slots = ftc::slots_of(slot.data());
        CHECK(cache.load_part(part, nullptr, &slots));
        for (std::size_t at = 0; at < slot.size(); at++) {
            if (slot[at] == -1) continue;
            CHECK(slot_holds(cache.get(), 1, slot[at], static_cast<uint32_t>(wide[at])));
            seen |= 1u << at;
        }
    }
    CHECK(seen == 63);
    REFUSED_WITH(cache.load_part(2, nullptr, nullptr), OUT_OF_RANGE, "no part 2: the step has 2 parts");

    // Drafts 1 and 2 hit, and only 1 is accepted: 2 is the next victim, then 0.
    CHECK(cache.reset());
    for (int32_t id : {1, 2, 0}) loaded<1>(cache, 1, {id});
    auto verify = step_of(1);
    verify.phase = FTCACHE_PHASE_VERIFY;
    const int32_t drafts[] = {1, 2};
    CHECK(cache.load(verify, ftc::routes_of(drafts, 1, 2), nullptr, nullptr));
    const uint32_t accepted[] = {1};
    CHECK(cache.accept(1, accepted));
    loaded<1>(cache, 1, {7});
    const auto plan = cache.plan_get();
    CHECK(plan && plan->eviction_count == 1 && ftc::copies_of(*plan).size() == 1);
    const auto hits = cache.layer_stats_get(1)->hits;
    loaded<1>(cache, 1, {1});
    loaded<1>(cache, 1, {0});
    CHECK(cache.layer_stats_get(1)->hits == hits + 2);
    loaded<1>(cache, 1, {2});
    CHECK(cache.layer_stats_get(1)->hits == hits + 2);
}

void the_cpu_computes_what_is_left() {
    auto settings = settings_of(8);
    settings.strategy = FTCACHE_STRATEGY_HYBRID;
    settings.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    settings.fetch_most = 1;
    auto cache = wrapped_cache(settings);
    const std::array<int32_t, 2> ids = {6, 4};
    const auto slot = loaded<2>(cache, 0, ids);
    // One is fetched, the other left; ties go to the lower id.
    CHECK(slot[0] == -1 && slot_holds(cache.get(), 0, slot[1], 4));
    const auto plan = cache.plan_get();
    CHECK(plan->layer == 0 && plan->pool == 1 && plan->miss_count == 2);
    CHECK(ftc::copies_of(*plan).size() == 1 && ftc::copies_of(*plan)[0].row == 4);
    CHECK(ftc::runs_of(*plan).size() == 1 && ftc::runs_of(*plan)[0].count == 1);
    CHECK(ftc::left_of(*plan).size() == 1 && ftc::left_of(*plan)[0] == 6);

    std::array<int32_t, EXPERTS> map;
    CHECK(cache.plan_map(map, -9));
    CHECK(map[4] == slot[1] && map[6] == -9 && map[0] == -9);
    std::array<int32_t, 2> on_cpu;
    CHECK(cache.plan_cpu_experts(on_cpu, -5) && on_cpu[0] == 6 && on_cpu[1] == -5);
    const std::array<float, 2> weights = {0.25f, 0.75f};
    std::array<float, 2> device_weights, cpu_weights;
    CHECK(cache.plan_split_weights(weights, device_weights, cpu_weights));
    CHECK(device_weights[0] == 0.0f && device_weights[1] == 0.75f && cpu_weights[0] == 0.25f && cpu_weights[1] == 0.0f);
    std::array<float, 1> narrow;
    REFUSED_WITH(cache.plan_split_weights(weights, narrow, cpu_weights), INVALID_ARGUMENT,
            "weights has 2 numbers, device_weights 1");
    REFUSED_WITH(cache.plan_split_weights(weights, device_weights, narrow), INVALID_ARGUMENT,
            "weights has 2 numbers, cpu_weights 1");
    CHECK(*cache.land() == 0);
}

// Planner mode.

void a_planner_decides_and_moves_nothing() {
    auto same = wrapped_cache(settings_of(8));
    auto cache = planner(settings_of(8));
    int32_t slot[2];
    const int32_t ids[] = {3, 4};
    const auto slots = ftc::slots_of(slot);
    REFUSED_WITH(cache.commit(), OUT_OF_ORDER, "no plan is open");
    CHECK(cache.admit(step_of(1), ftc::routes_of(ids, 1, 2), &slots));
    const auto plan = cache.plan_get();
    CHECK(plan && plan->is_open == 1 && plan->layer == 1 && plan->pool == 0);
    const auto copies = ftc::copies_of(*plan);
    CHECK(copies.size() == 2 && copies[0].row == 3 && copies[1].row == 4);
    CHECK(copies[0].slot == static_cast<uint32_t>(slot[0]) && copies[1].slot == static_cast<uint32_t>(slot[1]));
    const auto runs = ftc::runs_of(*plan);
    CHECK(runs.size() == 1 && runs[0].row == 3 && runs[0].count == 2 && ftc::left_of(*plan).empty());
    CHECK(cache.commit());
    const auto wanted = loaded<2>(same, 1, {3, 4});
    CHECK(wanted[0] == slot[0] && wanted[1] == slot[1] && *same.digest() == *cache.digest());

    // Aborted: its slots are free, and the step is not counted.
    const int32_t others[] = {0, 1};
    CHECK(cache.admit(step_of(1), ftc::routes_of(others, 1, 2), nullptr));
    CHECK(cache.abort() && cache.stats_get()->steps == 1 && cache.report_get()->resident_count < 3);

    const std::array<int32_t, 6> wide = {0, 1, 2, 3, 4, 5};
    CHECK(*cache.partition(step_of(1), ftc::routes_of(wide.data(), 3, 2)) == 2);
    for (uint32_t part = 0; part < 2; part++) {
        CHECK(cache.admit_part(part, nullptr));
        CHECK(cache.commit());
    }
    CHECK(cache.stats_get()->steps == 2);

    // What a hybrid step has left, behind it.
    auto settings = settings_of(8);
    settings.strategy = FTCACHE_STRATEGY_HYBRID;
    settings.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    settings.fetch_most = 1;
    auto hybrid = planner(settings);
    CHECK(hybrid.admit(step_of(0), ftc::routes_of(ids, 1, 2), nullptr));
    CHECK(hybrid.commit());
    const auto flight = hybrid.admit_later(1);
    CHECK(flight && ftc::copies_of(*hybrid.plan_get()).size() == 1);
    CHECK(hybrid.commit());
    CHECK(*hybrid.land_flight(*flight) == 1 && hybrid.report_get()->resident_count == 2);

    // What a hint brings is there at its step.
    const auto hint = hybrid.admit_hint(2, ftc::routes_of(ids, 1, 2), 26);
    CHECK(hint && hint->started == 1 && hint->over_budget == 1 && hint->bytes == 26);
    CHECK(hybrid.plan_get()->layer == 2 && ftc::copies_of(*hybrid.plan_get()).size() == 1);
    CHECK(hybrid.commit());
    CHECK(*hybrid.land_flight(hint->hint) == 1);
    CHECK(hybrid.admit(step_of(2), ftc::routes_of(ids, 1, 1), nullptr));
    CHECK(hybrid.plan_get()->miss_count == 0 && hybrid.plan_get()->awaits_flight == 0 && hybrid.commit());
    CHECK(hybrid.layer_hint_stats_get(2)->useful == 1 && hybrid.layer_hint_stats_get(1)->started == 0);
}

// Hints of a cache that copies.

void hints_are_copied_ahead() {
    ftcache_config config{};
    config.struct_size = sizeof config;
    config.hint_flight_count = 2;
    auto cache = wrapped_cache(settings_of(8), &config);
    const int32_t ids[] = {3, 4, 5};
    const auto first = cache.hint(0, ftc::routes_of(ids, 1, 3), 2 * 26);
    CHECK(first && first->started == 2 && first->over_budget == 1 && first->hint > 0);
    const auto slots = loaded<1>(cache, 0, {3});
    CHECK(slot_holds(cache.get(), 0, slots[0], 3) && cache.stats_get()->hits == 1);
    const auto second = cache.hint(0, ftc::routes_of(ids, 1, 3), 1000);
    CHECK(second && second->present == 2 && second->started == 1);
    CHECK(*cache.cancel_hint(second->hint) == 1 && *cache.cancel_hint(0) == 0);
    const auto stats = cache.hint_stats_get();
    CHECK(stats && stats->started == 3 && stats->useful == 1 && stats->wasted == 2 && stats->wasted_bytes == 52);
    REFUSED_WITH(wrapped_cache(settings_of(8)).hint(0, ftc::routes_of(ids, 1, 3), 1), UNSUPPORTED,
                 "the cache takes no hints: no flights were set for them");
}

// Prefill.

void a_chunk_stages_whole_layers() {
    auto settings = settings_of(8);
    settings.staging = FTCACHE_STAGING_DEDICATED;
    auto cache = wrapped_cache(settings);
    loaded<1>(cache, 0, {6});
    CHECK(cache.chunk_begin(nullptr));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        CHECK(cache.chunk_prefetch(layer));
        const auto buffer = cache.chunk_wait(layer);
        CHECK(buffer && *buffer < 2);
        for (uint32_t bank = 0; bank < BANKS; bank++) {
            const auto rows = cache.staged_span_get(layer, bank, *buffer);
            CHECK(rows && rows->slot_count == EXPERTS && rows->row_bytes == row_bytes_of(layer, bank));
            for (uint32_t expert = 0; expert < EXPERTS; expert++) {
                const auto *row = static_cast<const unsigned char *>(rows->address) + expert * rows->stride;
                CHECK(row[0] == byte_of(layer, bank, expert, 0) && row[1] == byte_of(layer, bank, expert, 1));
            }
        }
        CHECK(cache.chunk_release(layer));
    }
    const auto report = cache.chunk_end();
    CHECK(report && report->chunks == 1 && report->layers == 3);
    CHECK(cache.chunk_begin(nullptr));
    REFUSED_WITH(cache.chunk_begin(nullptr), OUT_OF_ORDER, "a prefill chunk is open");
    CHECK(cache.chunk_materialize(1) && *cache.chunk_wait(1) == 0);
    CHECK(cache.chunk_abandon()->layers == 1);
    CHECK(cache.chunk_total_get()->layers == 4);

    // Where the engine copies: what lies in a slot, and what comes from the host.
    settings.small_row_bytes = 1;
    auto plans = planner(settings);
    const int32_t id[] = {6};
    CHECK(plans.admit(step_of(0), ftc::routes_of(id, 1, 1), nullptr));
    CHECK(plans.commit() && plans.chunk_begin(nullptr) && plans.chunk_prefetch(0));
    const auto plan = plans.stage_plan_get(0);
    uint32_t rows = 0;
    CHECK(plan && plan->layer == 0 && ftc::gathers_of(*plan).size() == 1 && ftc::gathers_of(*plan)[0].row == 6);
    for (const auto &run : ftc::fetches_of(*plan)) rows += run.count;
    CHECK(rows == EXPERTS - 1);
    CHECK(plans.commit() && plans.chunk_wait(0) && plans.chunk_release(0) && plans.chunk_end()->layers == 1);
}

// Other slots, and another run.

void rebuilt_and_brought_back() {
    auto cache = wrapped_cache(settings_of(8));
    loaded<2>(cache, 1, {3, 4});
    const auto narrow = wrapped_configuration(settings_of(7));
    const auto kept = cache.rebuild(narrow, true, 1 << 20);
    CHECK(kept && kept->kept == 2 && *cache.generation() == 1 && cache.report_get()->slot_count == 7);
    const auto slot = loaded<2>(cache, 1, {3, 4});
    CHECK(cache.stats_get()->hits == 2 && slot_holds(cache.get(), 1, slot[0], 3));

    // By a budget, of the configuration in effect.
    const auto budget = std::to_string(narrow.report_get()->total_bytes);
    const auto same = cache.configuration_of()->with_budget(budget.c_str());
    CHECK(same && same->report_get()->slot_count == 7);
    const auto cold = cache.rebuild(*same, false, 0);
    CHECK(cold && cold->rebuilt == FTCACHE_REBUILT_COLD_AS_ASKED && cold->kept == 0 && *cache.generation() == 2);
    REFUSED_WITH(cache.rebuild(ftc::configuration(), false, 0), INVALID_ARGUMENT, "configuration is NULL");

    loaded<2>(cache, 1, {3, 4});
    loaded<1>(cache, 0, {7});
    const auto residents = cache.residents_get(42);
    CHECK(residents && !residents->empty());
    auto later = wrapped_cache(settings_of(8));
    CHECK(!later.bring_back(nullptr, *residents, 43));
    CHECK(*later.bring_back(nullptr, *residents, 42) == 42 + 42 + 26);
    loaded<2>(later, 1, {3, 4});
    CHECK(later.stats_get()->hits == 2);

    auto plans = planner(settings_of(8));
    CHECK(*plans.bring_back(nullptr, *residents, 42) == 0);
    const auto placements = plans.placements_get();
    CHECK(placements && placements->size() == 3);
    CHECK(std::count_if(placements->begin(), placements->end(),
                        [](const ftcache_placement &at) { return at.layer == 0 && at.row == 7 && at.pool == 1; }) == 1);
    CHECK(plans.commit());

    // The rows of a planner's residents are the engine's to move.
    const auto moved = plans.rebuild(wrapped_configuration(settings_of(14)), true, 1 << 20);
    CHECK(moved && ftc::moves_of(*moved).size() == moved->move_count);
}

void banks_are_read_from_files() {
    char path[] = "hpp_rows_XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0);
    std::vector<unsigned char> bytes(24 * EXPERTS);
    for (uint32_t expert = 0; expert < EXPERTS; expert++) {
        for (uint64_t at = 0; at < 24; at++) bytes[expert * 24 + at] = byte_of(2, 0, expert, at);
    }
    CHECK(write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) && close(file) == 0);

    auto cache = wrapped_cache(settings_of(8));
    const std::vector<const char *> paths = {path};
    ftcache_file_bank bank{};
    bank.layer = 2;
    const auto report = cache.load_files(paths, {&bank, 1});
    CHECK(report && report->layer_count == 1 && report->bytes == bytes.size());
    const auto residence = cache.layer_residence(2);
    CHECK(residence && residence->residence == FTCACHE_RESIDENCE_PINNED && residence->text.empty());
    CHECK(slot_holds(cache.get(), 2, loaded<1>(cache, 2, {5})[0], 5));
    auto options = ftc::sized<ftcache_file_options>();
    options.no_pinning = 1;
    CHECK(cache.load_files(paths, {&bank, 1}, &options)->pinned_layer_count == 0);
    CHECK(cache.layer_residence(2)->residence == FTCACHE_RESIDENCE_PAGEABLE);
    CHECK(std::remove(path) == 0);
    CHECK(cache.load_files(paths, {&bank, 1}).error().status == FTCACHE_STATUS_HOST);
}

void a_recording_divides_slots() {
    auto config = ftc::sized<ftcache_recorder_config>();
    config.layer_count = LAYERS;
    config.expert_count = EXPERTS;
    config.top_k = TOP_K;
    config.capacity_bytes = 4096;
    config.model = "toy";
    auto recorder = ftc::recorder::make(config);
    CHECK(recorder && recorder->begin(7, FTCACHE_PHASE_DECODE));
    // Layer 2 alone: two experts, and two others.
    for (const std::array<int32_t, TOP_K> ids : {std::array<int32_t, TOP_K>{1, 2}, {3, 4}, {1, 2}}) {
        CHECK(recorder->record(2, ftc::routes_of(ids.data(), 1, TOP_K)));
    }
    CHECK(recorder->report_get().value().tokens == 3 && recorder->write("hpp_trace.ftr"));
    std::vector<uint64_t> counts(LAYERS * (EXPERTS + 1), 7);
    const auto model = wrapped_model();
    const auto name = model.miss_counts("hpp_trace.ftr", counts);
    CHECK(std::remove("hpp_trace.ftr") == 0 && name && *name == "toy");
    CHECK(counts[0] == 0 && counts[18] == 6 && counts[20] == 6 && counts[22] == 4 && counts[26] == 4);

    auto settings = settings_of(8);
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.split = FTCACHE_SPLIT_CURVE;
    settings.miss_counts = counts.data();
    settings.miss_count_count = counts.size();
    settings.miss_counts_model = name->c_str();
    const auto configuration = ftc::configuration::make(model, settings);
    CHECK(configuration && configuration->pool_get(configuration->layer_pool(2).value()).value().slot_count == 4);
    REFUSED_WITH(model.miss_counts("hpp_trace.ftr", {counts.data(), 26}), INVALID_ARGUMENT,
                 "miss_counts has 26 counts; 3 layers of 8 experts need 27");
}

void memory_is_registered() {
    auto cache = ftc::cache::make(wrapped_configuration(settings_of(8))).value();
    CHECK(cache.arenas_measure()->spilled == 0 && cache.arenas_measure()->text.find("bank 0: 304 bytes at ") == 0);
    CHECK(cache.register_memory(host_rows, sizeof host_rows));
    CHECK(cache.register_memory(host_rows, 1, true).error().message.find("share bytes with 2304 at") !=
          std::string::npos);
    CHECK(cache.unregister_memory(host_rows));
    CHECK(cache.unregister_memory(host_rows).error().message.find("no registration begins at ") == 0);
    REFUSED_WITH(cache.layer_residence(2), OUT_OF_RANGE, "layer 2 was not read from files");
    // Device mode is tested on the emulated driver.
    REFUSED_WITH(cache.device_leave(), OUT_OF_ORDER, "the residency is with the host: enter device mode first");
}

}  // namespace

int main(int argument_count, char **arguments) {
    if (argument_count == 2) return misuse(arguments[1]);
    handles_move();
    results_hold_one_or_the_other();
    spans_come_from_arrays_and_containers();
    a_configuration_answers();
    a_step_fills_the_slots_it_names();
    texts_are_whole();
    a_log_is_a_function_and_a_pointer();
    pins_verify_steps_and_parts();
    the_cpu_computes_what_is_left();
    a_planner_decides_and_moves_nothing();
    hints_are_copied_ahead();
    a_chunk_stages_whole_layers();
    rebuilt_and_brought_back();
    banks_are_read_from_files();
    a_recording_divides_slots();
    memory_is_registered();
    return 0;
}
