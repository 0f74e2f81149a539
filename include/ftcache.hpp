/* ftcache.hpp: ftcache.h for C++17: handles that free themselves, results that cannot be overlooked.
 *
 * Written by hand over ftcache.h, which stays the manual: what a function does, waits for and requires stands there,
 * and a method of the same name does no more. There is nothing to link but the library itself.
 *
 *     ftc::result<ftc::cache> make_cache(const ftc::model &model, uint64_t budget_bytes) {
 *         auto settings = ftc::sized<ftcache_settings>();
 *         settings.budget_bytes = budget_bytes;
 *         auto configuration = ftc::configuration::make(model, settings);
 *         if (!configuration) return configuration.error();   // its status, and the reason in one line
 *         auto config = ftc::sized<ftcache_config>();
 *         config.device = FTCACHE_DEVICE_HOST;                // or FTCACHE_DEVICE_CUDA
 *         return ftc::cache::make(*configuration, &config);   // the configuration frees itself
 *     }
 *
 *     // One step of one layer: a slot for each of the token_count rows of top_k ids, in place of the ids.
 *     ftc::result<void> step(ftc::cache &cache, uint32_t layer, int32_t *ids, uint64_t token_count, uint64_t top_k) {
 *         auto what = ftc::sized<ftcache_step>();
 *         what.layer = layer;
 *         const auto slots = ftc::slots_of(ids);
 *         return cache.load(what, ftc::routes_of(ids, token_count, top_k), nullptr, &slots);
 *     }
 *
 * Names      The namespace is ftc, since ftcache is the handle's type in C. ftcache_model_layer_set is layer_set of
 *            ftc::model, ftcache_configuration_text is text of ftc::configuration, ftcache_load is load of
 *            ftc::cache. Others are make, for each _new; report_get of ftc::configuration and ftc::recorder, for
 *            ftcache_configuration_get and ftcache_recorder_get; and register_memory and unregister_memory, since
 *            register is a keyword.
 * Structs    Those of ftcache.h, none of its own in their place. ftc::sized<T>() is one of zeros that knows its size.
 *            routes_of and slots_of fill the two that are needed at every step.
 * Errors     A method that can be refused returns an ftc::result: a value, or an ftc::error with the status and a
 *            copy of the message of that very call. To ask for a value that is not there, or for an error, ends the
 *            program with the message, in every build. Nothing throws but an allocation of the standard library, and
 *            only where exceptions are on: -fno-exceptions and -fno-rtti will do.
 * Handles    ftc::model, ftc::configuration, ftc::cache and ftc::recorder are moved and not copied, and free what they
 *            hold. One that was moved from is empty: its methods are refused ("cache is NULL"). get() lends the C
 *            handle, release() gives it away, and a constructor takes one over.
 * Lifetime   A cache must go before what it uses: attached rows, streams, arenas, a current context. Members of a
 *            class are destroyed from the last to the first, so declare the cache behind them.
 * Log        log and log_user of ftcache_config are a function and a pointer, as in C; a lambda without captures will
 *            do. The function must not throw, nor call the cache. What log_user points to must stay where it is until
 *            the cache is freed, also when the ftc::cache is moved.
 * Threads    As for the C handles. Methods of ftc::configuration are const and may be called at once; those of
 *            ftc::cache are not, the ones that only ask among them.
 * Memory     Steps that succeed allocate nothing here either. A refusal allocates its message; where that is too
 *            much, call ftcache.h with get().
 * Spans      Arrays are taken as ftc::span: a pointer and a count, or whatever has data() and size(). It owns
 *            nothing.
 * Compilers  C++17 by gcc, clang, MinGW-w64, hipcc and nvcc, C++20 by the first three. Microsoft's has not seen it.
 */

#ifndef FTCACHE_HPP
#define FTCACHE_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ftcache.h"

namespace ftc {

// Why a call was refused.
struct error {
    // Never FTCACHE_STATUS_OK in a result that has an error.
    ::ftcache_status status = FTCACHE_STATUS_OK;
    // One line, with the thing and both numbers.
    std::string message;
};

namespace detail {

// Not an assert: a value that is not there must not be used in a release build either.
[[noreturn]] inline void stop(const char *what, const char *message) noexcept {
    std::fprintf(stderr, "%s%s\n", what, message);
    std::abort();
}

}  // namespace detail

// A value, or the error in its place.
template <typename T>
class [[nodiscard]] result {
public:
    result(T value) : value_(std::move(value)) {}
    result(ftc::error refusal) : error_(std::move(refusal)) {
        if (error_.status == FTCACHE_STATUS_OK) detail::stop("ftc::result: an error has the status of success", "");
    }

    explicit operator bool() const noexcept { return error_.status == FTCACHE_STATUS_OK; }

    T &value() & noexcept {
        expect_value();
        return value_;
    }
    const T &value() const & noexcept {
        expect_value();
        return value_;
    }
    // By value: a reference into a result that goes at the end of the line would dangle.
    T value() && {
        expect_value();
        return std::move(value_);
    }

    T &operator*() & noexcept { return value(); }
    const T &operator*() const & noexcept { return value(); }
    T operator*() && { return std::move(*this).value(); }
    T *operator->() noexcept { return &value(); }
    const T *operator->() const noexcept { return &value(); }

    const ftc::error &error() const & noexcept {
        expect_error();
        return error_;
    }
    ftc::error error() && {
        expect_error();
        return std::move(error_);
    }

private:
    void expect_value() const noexcept {
        if (!*this) detail::stop("ftc::result has no value: ", error_.message.c_str());
    }
    void expect_error() const noexcept {
        if (*this) detail::stop("ftc::result has no error", "");
    }

    T value_{};
    ftc::error error_;
};

// Success, or an error.
template <>
class [[nodiscard]] result<void> {
public:
    result() noexcept = default;
    result(ftc::error refusal) : error_(std::move(refusal)) {
        if (error_.status == FTCACHE_STATUS_OK) detail::stop("ftc::result: an error has the status of success", "");
    }

    explicit operator bool() const noexcept { return error_.status == FTCACHE_STATUS_OK; }

    // For calls that cannot be refused: ends the program if one was.
    void value() const noexcept {
        if (!*this) detail::stop("ftc::result has no value: ", error_.message.c_str());
    }
    void operator*() const noexcept { value(); }

    const ftc::error &error() const & noexcept {
        expect_error();
        return error_;
    }
    ftc::error error() && {
        expect_error();
        return std::move(error_);
    }

private:
    void expect_error() const noexcept {
        if (*this) detail::stop("ftc::result has no error", "");
    }

    ftc::error error_;
};

// Values that lie one after the other and belong to somebody else: std::span of C++20, as far as it is needed here.
template <typename T>
class span {
public:
    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N>
    constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    // By the address of an array, so that a derived class is not taken for its base.
    template <typename Container, typename Data = decltype(std::declval<Container &>().data()),
              typename = decltype(std::declval<Container &>().size()),
              typename = std::enable_if_t<std::is_convertible_v<std::remove_pointer_t<Data> (*)[], T (*)[]>>>
    constexpr span(Container &&container) noexcept(noexcept(container.data()))
        : data_(container.data()), size_(container.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t at) const noexcept {
        if (at >= size_) detail::stop("ftc::span: an index is past the end", "");
        return data_[at];
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// A struct of ftcache.h, all zeros but for its size.
template <typename T>
[[nodiscard]] constexpr T sized() noexcept {
    T made{};
    made.struct_size = static_cast<uint32_t>(sizeof(T));
    return made;
}

// Rows of ids without gaps.
template <typename Id>
[[nodiscard]] constexpr ::ftcache_routes routes_of(const Id *ids, uint64_t row_count, uint64_t row_width) noexcept {
    static_assert(std::is_integral_v<Id> && std::is_signed_v<Id> && (sizeof(Id) == 4 || sizeof(Id) == 8),
                  "ids are signed integers of 4 or 8 bytes");
    auto routes = sized<::ftcache_routes>();
    routes.id_bytes = static_cast<uint32_t>(sizeof(Id));
    routes.ids = ids;
    routes.row_count = row_count;
    routes.row_width = row_width;
    return routes;
}

// Slots without gaps, -1 for absent routes and for those of the CPU. In place of routes with gaps, row_stride_bytes is
// to be that of the routes.
template <typename Slot>
[[nodiscard]] constexpr ::ftcache_slots slots_of(Slot *slots) noexcept {
    static_assert(std::is_integral_v<Slot> && std::is_signed_v<Slot> && (sizeof(Slot) == 4 || sizeof(Slot) == 8),
                  "slot numbers are signed integers of 4 or 8 bytes");
    auto written = sized<::ftcache_slots>();
    written.slot_bytes = static_cast<uint32_t>(sizeof(Slot));
    written.slots = slots;
    written.absent_slot = -1;
    written.cpu_slot = -1;
    return written;
}

// The arrays of plans and reports, which are the library's and valid until the next call on the handle.
[[nodiscard]] inline span<const ::ftcache_copy> copies_of(const ::ftcache_plan &plan) noexcept {
    return {plan.copies, static_cast<std::size_t>(plan.copy_count)};
}
[[nodiscard]] inline span<const ::ftcache_run> runs_of(const ::ftcache_plan &plan) noexcept {
    return {plan.runs, static_cast<std::size_t>(plan.run_count)};
}
[[nodiscard]] inline span<const uint32_t> left_of(const ::ftcache_plan &plan) noexcept {
    return {plan.left, static_cast<std::size_t>(plan.left_count)};
}
[[nodiscard]] inline span<const ::ftcache_copy> gathers_of(const ::ftcache_stage_plan &plan) noexcept {
    return {plan.gathers, static_cast<std::size_t>(plan.gather_count)};
}
[[nodiscard]] inline span<const ::ftcache_run> fetches_of(const ::ftcache_stage_plan &plan) noexcept {
    return {plan.fetches, static_cast<std::size_t>(plan.fetch_count)};
}
[[nodiscard]] inline span<const ::ftcache_move> moves_of(const ::ftcache_rebuild_report &report) noexcept {
    return {report.moves, static_cast<std::size_t>(report.move_count)};
}

// How a layer that was read from files is kept, and why if it is not pinned.
struct layer_kept {
    ::ftcache_residence residence = FTCACHE_RESIDENCE_PAGEABLE;
    std::string text;
};

// How many arenas do not lie on the device, and the rate of each.
struct arenas_measured {
    uint32_t spilled = 0;
    std::string text;
};

namespace detail {

// The message is copied at once: the next call on this thread replaces it.
inline ftc::error refusal(::ftcache_status status) { return {status, ::ftcache_last_error()}; }

inline result<void> outcome(::ftcache_status status) {
    if (status != FTCACHE_STATUS_OK) return refusal(status);
    return {};
}

// A struct that the call fills.
template <typename T, typename Call>
result<T> filled(Call call) {
    T value = sized<T>();
    const ::ftcache_status status = call(&value);
    if (status != FTCACHE_STATUS_OK) return refusal(status);
    return value;
}

// A number that the call sets.
template <typename T, typename Call>
result<T> number(Call call) {
    T value{};
    const ::ftcache_status status = call(&value);
    if (status != FTCACHE_STATUS_OK) return refusal(status);
    return value;
}

// A handle that the call gives out.
template <typename Owner, typename Call>
result<Owner> made(Call call) {
    typename Owner::c_type *out = nullptr;
    const ::ftcache_status status = call(&out);
    if (status != FTCACHE_STATUS_OK) return refusal(status);
    return Owner(out);
}

// The whole of a text whose length the call tells. Most fit at once.
template <typename Call>
result<std::string> text(Call call) {
    std::string whole(1023, '\0');
    for (;;) {
        std::size_t needed = 0;
        // The ending zero goes where the string keeps its own.
        const ::ftcache_status status = call(&whole[0], whole.size() + 1, &needed);
        if (status != FTCACHE_STATUS_OK) return refusal(status);
        const bool is_whole = needed <= whole.size() + 1;
        whole.resize(needed == 0 ? 0 : needed - 1);
        if (is_whole) return whole;
    }
}

// For texts whose length is not told: lines that are longer together are cut.
constexpr std::size_t text_capacity = 4096;

inline ftc::error unequal(const char *one, std::size_t one_count, const char *other, std::size_t other_count) {
    return {FTCACHE_STATUS_INVALID_ARGUMENT, std::string(one) + " has " + std::to_string(one_count) + " numbers, " +
                                                 other + " " + std::to_string(other_count)};
}

inline void free_handle(::ftcache_model *handle) noexcept { ::ftcache_model_free(handle); }
inline void free_handle(::ftcache_configuration *handle) noexcept { ::ftcache_configuration_free(handle); }
inline void free_handle(::ftcache *handle) noexcept { ::ftcache_free(handle); }
inline void free_handle(::ftcache_recorder *handle) noexcept { ::ftcache_recorder_free(handle); }

// What the three have in common: at most one C handle, freed once.
template <typename T>
class handle {
public:
    using c_type = T;

    handle() noexcept = default;
    // Takes over what a _new of ftcache.h gave out, or NULL.
    explicit handle(T *owned) noexcept : handle_(owned) {}
    handle(handle &&other) noexcept : handle_(other.release()) {}
    handle &operator=(handle &&other) noexcept {
        // Taken before the own one is freed, so that a move to itself changes nothing.
        T *taken = other.release();
        free_handle(std::exchange(handle_, taken));
        return *this;
    }
    ~handle() { free_handle(handle_); }

    // The C handle, which stays this one's; NULL if it is empty.
    [[nodiscard]] T *get() const noexcept { return handle_; }
    // The C handle, which is the caller's to free.
    [[nodiscard]] T *release() noexcept { return std::exchange(handle_, nullptr); }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
    T *handle_ = nullptr;
};

}  // namespace detail

// The version that the library was built with.
[[nodiscard]] inline uint32_t abi_version() noexcept { return ::ftcache_abi_version(); }

// Whether the library that is linked or loaded serves this header.
inline result<void> abi_check() {
    if (abi_version() >= FTCACHE_ABI_VERSION) return {};
    return ftc::error{FTCACHE_STATUS_UNSUPPORTED, "the library has ABI version " + std::to_string(abi_version()) +
                                                      "; ftcache.h has " + std::to_string(FTCACHE_ABI_VERSION)};
}

// The message of the last call on this thread that was refused, valid until the next call. An ftc::error has a copy.
[[nodiscard]] inline const char *last_error() noexcept { return ::ftcache_last_error(); }

// The same, cut to fit; returns the bytes that all of it needs.
inline std::size_t last_error_copy(span<char> buffer) noexcept {
    return ::ftcache_last_error_copy(buffer.data(), buffer.size());
}

class model : public detail::handle<::ftcache_model> {
public:
    using detail::handle<::ftcache_model>::handle;

    static result<model> make(const ::ftcache_model_config &config) {
        return detail::made<model>([&](::ftcache_model **out) { return ::ftcache_model_new(&config, out); });
    }

    result<void> layer_set(uint32_t layer, const ::ftcache_layer &layer_config) {
        return detail::outcome(::ftcache_model_layer_set(get(), layer, &layer_config));
    }

    // Fills the numbers, layers times (experts + 1) of them, and returns the name of the recorded model.
    result<std::string> miss_counts(const char *path, span<uint64_t> counts) const {
        return detail::text([&](char *buffer, std::size_t capacity, std::size_t *needed) {
            return ::ftcache_model_miss_counts(get(), path, counts.data(), counts.size(), buffer, capacity, needed);
        });
    }
};

class configuration : public detail::handle<::ftcache_configuration> {
public:
    using detail::handle<::ftcache_configuration>::handle;

    static result<configuration> make(const ftc::model &model, const ::ftcache_settings &settings) {
        return detail::made<configuration>(
            [&](::ftcache_configuration **out) { return ::ftcache_configuration_new(model.get(), &settings, out); });
    }

    result<configuration> with_budget(const char *budget) const {
        return detail::made<configuration>(
            [&](::ftcache_configuration **out) { return ::ftcache_configuration_with_budget(get(), budget, out); });
    }

    result<configuration> with_budget(uint64_t bytes) const { return with_budget(std::to_string(bytes).c_str()); }

    result<::ftcache_configuration_report> report_get() const {
        return detail::filled<::ftcache_configuration_report>(
            [&](auto *report) { return ::ftcache_configuration_get(get(), report); });
    }

    result<std::string> text() const {
        return detail::text([&](char *buffer, std::size_t capacity, std::size_t *needed) {
            return ::ftcache_configuration_text(get(), buffer, capacity, needed);
        });
    }

    result<::ftcache_layer_state> layer_state(uint32_t layer) const {
        const auto state = detail::number<uint32_t>(
            [&](uint32_t *out) { return ::ftcache_configuration_layer_state(get(), layer, out); });
        if (!state) return state.error();
        return static_cast<::ftcache_layer_state>(*state);
    }

    result<::ftcache_layer_fetch> layer_fetch_get(uint32_t layer) const {
        return detail::filled<::ftcache_layer_fetch>(
            [&](auto *fetch) { return ::ftcache_configuration_layer_fetch_get(get(), layer, fetch); });
    }

    result<::ftcache_pool_report> pool_get(uint32_t pool) const {
        return detail::filled<::ftcache_pool_report>(
            [&](auto *report) { return ::ftcache_configuration_pool_get(get(), pool, report); });
    }

    result<uint32_t> layer_pool(uint32_t layer) const {
        return detail::number<uint32_t>(
            [&](uint32_t *pool) { return ::ftcache_configuration_layer_pool(get(), layer, pool); });
    }

    result<::ftcache_slot_range> slot_range_get(uint32_t pool, uint32_t bank) const {
        return detail::filled<::ftcache_slot_range>(
            [&](auto *range) { return ::ftcache_configuration_slot_range_get(get(), pool, bank, range); });
    }

    result<::ftcache_slot_run> buffer_run_get(uint32_t buffer, uint32_t index) const {
        return detail::filled<::ftcache_slot_run>(
            [&](auto *run) { return ::ftcache_configuration_buffer_run_get(get(), buffer, index, run); });
    }
};

class cache : public detail::handle<::ftcache> {
public:
    using detail::handle<::ftcache>::handle;

    // config may be NULL for the defaults.
    static result<cache> make(const ftc::configuration &configuration, const ::ftcache_config *config = nullptr) {
        return detail::made<cache>(
            [&](::ftcache **out) { return ::ftcache_new(configuration.get(), config, out); });
    }

    // Rows.

    result<void> attach(uint32_t layer, uint32_t bank, const ::ftcache_host_rows &rows) {
        return detail::outcome(::ftcache_attach(get(), layer, bank, &rows));
    }

    result<void> register_memory(const void *base, uint64_t bytes, bool read_only = false, uint64_t part_bytes = 0) {
        return detail::outcome(::ftcache_register(get(), base, bytes, read_only ? 1 : 0, part_bytes));
    }

    result<void> unregister_memory(const void *base) { return detail::outcome(::ftcache_unregister(get(), base)); }

    // options may be NULL.
    result<::ftcache_file_report> load_files(span<const char *const> paths, span<const ::ftcache_file_bank> banks,
                                             const ::ftcache_file_options *options = nullptr) {
        return detail::filled<::ftcache_file_report>([&](auto *report) {
            return ::ftcache_load_files(get(), paths.data(), paths.size(), banks.data(), banks.size(), options, report);
        });
    }

    // The text is cut at 4,095 bytes.
    result<layer_kept> layer_residence(uint32_t layer) {
        char buffer[detail::text_capacity];
        uint32_t residence = 0;
        const ::ftcache_status status =
            ::ftcache_layer_residence(get(), layer, &residence, buffer, sizeof buffer);
        if (status != FTCACHE_STATUS_OK) return detail::refusal(status);
        return layer_kept{static_cast<::ftcache_residence>(residence), buffer};
    }

    // What is in effect.

    result<::ftcache_report> report_get() {
        return detail::filled<::ftcache_report>([&](auto *report) { return ::ftcache_report_get(get(), report); });
    }

    result<::ftcache_layer_report> layer_get(uint32_t layer) {
        return detail::filled<::ftcache_layer_report>(
            [&](auto *report) { return ::ftcache_layer_get(get(), layer, report); });
    }

    result<ftc::configuration> configuration_of() {
        return detail::made<ftc::configuration>(
            [&](::ftcache_configuration **out) { return ::ftcache_configuration_of(get(), out); });
    }

    result<::ftcache_slot_owner> slot_owner_get(uint32_t pool, uint32_t slot) {
        return detail::filled<::ftcache_slot_owner>(
            [&](auto *owner) { return ::ftcache_slot_owner_get(get(), pool, slot, owner); });
    }

    result<::ftcache_slot_span> slot_span_get(uint32_t pool, uint32_t bank) {
        return detail::filled<::ftcache_slot_span>(
            [&](auto *slots) { return ::ftcache_slot_span_get(get(), pool, bank, slots); });
    }

    result<uint64_t> generation() {
        return detail::number<uint64_t>([&](uint64_t *out) { return ::ftcache_generation(get(), out); });
    }

    result<::ftcache_device_facts> device_facts_get() {
        return detail::filled<::ftcache_device_facts>(
            [&](auto *facts) { return ::ftcache_device_facts_get(get(), facts); });
    }

    result<std::string> device_text() {
        return detail::text([&](char *buffer, std::size_t capacity, std::size_t *needed) {
            return ::ftcache_device_text(get(), buffer, capacity, needed);
        });
    }

    // The text is cut at 4,095 bytes.
    result<arenas_measured> arenas_measure() {
        char buffer[detail::text_capacity];
        uint32_t spilled = 0;
        const ::ftcache_status status = ::ftcache_arenas_measure(get(), &spilled, buffer, sizeof buffer);
        if (status != FTCACHE_STATUS_OK) return detail::refusal(status);
        return arenas_measured{spilled, buffer};
    }

    // Steps. streams and slots may be NULL.

    result<void> load(const ::ftcache_step &step, const ::ftcache_routes &routes, const ::ftcache_streams *streams,
                      const ::ftcache_slots *slots) {
        return detail::outcome(::ftcache_load(get(), &step, &routes, streams, slots));
    }

    result<uint32_t> partition(const ::ftcache_step &step, const ::ftcache_routes &routes) {
        return detail::number<uint32_t>(
            [&](uint32_t *part_count) { return ::ftcache_partition(get(), &step, &routes, part_count); });
    }

    result<void> load_part(uint32_t part, const ::ftcache_streams *streams, const ::ftcache_slots *slots) {
        return detail::outcome(::ftcache_load_part(get(), part, streams, slots));
    }

    result<void> accept(uint32_t layer, span<const uint32_t> experts) {
        return detail::outcome(::ftcache_accept(get(), layer, experts.data(), experts.size()));
    }

    result<uint64_t> land() {
        return detail::number<uint64_t>([&](uint64_t *landed) { return ::ftcache_land(get(), landed); });
    }

    result<void> check() { return detail::outcome(::ftcache_check(get())); }

    result<void> synchronize() { return detail::outcome(::ftcache_synchronize(get())); }

    // Hints. 0 cancels all.

    result<::ftcache_hint_report> hint(uint32_t layer, const ::ftcache_routes &routes, uint64_t budget) {
        return detail::filled<::ftcache_hint_report>(
            [&](auto *report) { return ::ftcache_hint(get(), layer, &routes, budget, report); });
    }

    result<uint64_t> cancel_hint(uint64_t hint) {
        return detail::number<uint64_t>([&](uint64_t *wasted) { return ::ftcache_cancel_hint(get(), hint, wasted); });
    }

    result<::ftcache_hint_stats> hint_stats_get() {
        return detail::filled<::ftcache_hint_stats>(
            [&](auto *stats) { return ::ftcache_hint_stats_get(get(), stats); });
    }

    result<::ftcache_hint_stats> layer_hint_stats_get(uint32_t layer) {
        return detail::filled<::ftcache_hint_stats>(
            [&](auto *stats) { return ::ftcache_layer_hint_stats_get(get(), layer, stats); });
    }

    // Slots that are freed, experts that are kept.

    result<void> forget(uint32_t pool, uint32_t slot) { return detail::outcome(::ftcache_forget(get(), pool, slot)); }

    result<void> forget_layer(uint32_t layer) { return detail::outcome(::ftcache_forget_layer(get(), layer)); }

    // Frees every slot, as ftcache_reset. To free the cache, assign an empty one.
    result<void> reset() { return detail::outcome(::ftcache_reset(get())); }

    // Expert experts[i] of layer layers[i].
    result<void> pin(span<const uint32_t> layers, span<const uint32_t> experts) {
        if (layers.size() != experts.size()) {
            return detail::unequal("layers", layers.size(), "experts", experts.size());
        }
        return detail::outcome(::ftcache_pin(get(), layers.data(), experts.data(), layers.size()));
    }

    result<void> unpin(span<const uint32_t> layers, span<const uint32_t> experts) {
        if (layers.size() != experts.size()) {
            return detail::unequal("layers", layers.size(), "experts", experts.size());
        }
        return detail::outcome(::ftcache_unpin(get(), layers.data(), experts.data(), layers.size()));
    }

    // Plans. slots may be NULL.

    result<void> admit(const ::ftcache_step &step, const ::ftcache_routes &routes, const ::ftcache_slots *slots) {
        return detail::outcome(::ftcache_admit(get(), &step, &routes, slots));
    }

    result<void> admit_part(uint32_t part, const ::ftcache_slots *slots) {
        return detail::outcome(::ftcache_admit_part(get(), part, slots));
    }

    // The flight, for land_flight.
    result<uint64_t> admit_later(uint64_t most) {
        return detail::number<uint64_t>(
            [&](uint64_t *flight) { return ::ftcache_admit_later(get(), most, flight); });
    }

    result<::ftcache_hint_report> admit_hint(uint32_t layer, const ::ftcache_routes &routes, uint64_t budget) {
        return detail::filled<::ftcache_hint_report>(
            [&](auto *report) { return ::ftcache_admit_hint(get(), layer, &routes, budget, report); });
    }

    result<uint64_t> land_flight(uint64_t flight) {
        return detail::number<uint64_t>(
            [&](uint64_t *landed) { return ::ftcache_land_flight(get(), flight, landed); });
    }

    result<void> commit() { return detail::outcome(::ftcache_commit(get())); }

    result<void> abort() { return detail::outcome(::ftcache_abort(get())); }

    result<::ftcache_plan> plan_get() {
        return detail::filled<::ftcache_plan>([&](auto *plan) { return ::ftcache_plan_get(get(), plan); });
    }

    result<std::string> plan_text() {
        return detail::text([&](char *buffer, std::size_t capacity, std::size_t *needed) {
            return ::ftcache_plan_text(get(), buffer, capacity, needed);
        });
    }

    result<void> plan_map(span<int32_t> map, int32_t absent) {
        return detail::outcome(::ftcache_plan_map(get(), map.data(), map.size(), absent));
    }

    result<void> plan_cpu_experts(span<int32_t> experts, int32_t none) {
        return detail::outcome(::ftcache_plan_cpu_experts(get(), experts.data(), experts.size(), none));
    }

    // All three of one length.
    result<void> plan_split_weights(span<const float> weights, span<float> device_weights, span<float> cpu_weights) {
        if (device_weights.size() != weights.size()) {
            return detail::unequal("weights", weights.size(), "device_weights", device_weights.size());
        }
        if (cpu_weights.size() != weights.size()) {
            return detail::unequal("weights", weights.size(), "cpu_weights", cpu_weights.size());
        }
        return detail::outcome(::ftcache_plan_split_weights(get(), weights.data(), device_weights.data(),
                                                            cpu_weights.data(), weights.size()));
    }

    result<span<const ::ftcache_placement>> placements_get() {
        const ::ftcache_placement *placements = nullptr;
        uint64_t count = 0;
        const ::ftcache_status status = ::ftcache_placements_get(get(), &placements, &count);
        if (status != FTCACHE_STATUS_OK) return detail::refusal(status);
        return span<const ::ftcache_placement>(placements, static_cast<std::size_t>(count));
    }

    // Device mode. stream is the driver's own handle.

    // options may be NULL.
    result<void> device_enter(const ::ftcache_device_options *options = nullptr) {
        return detail::outcome(::ftcache_device_enter(get(), options));
    }

    result<void> device_leave() { return detail::outcome(::ftcache_device_leave(get())); }

    result<void> device_admit(void *stream, const ::ftcache_device_step &step) {
        return detail::outcome(::ftcache_device_admit(get(), stream, &step));
    }

    result<void> device_gather(void *stream, uint32_t layer) {
        return detail::outcome(::ftcache_device_gather(get(), stream, layer));
    }

    result<void> device_gather_after(void *stream, uint32_t layer, const uint32_t *word, uint32_t value) {
        return detail::outcome(::ftcache_device_gather_after(get(), stream, layer, word, value));
    }

    result<void> device_reset(void *stream) { return detail::outcome(::ftcache_device_reset(get(), stream)); }

    result<void> device_chunk_begin(void *stream) {
        return detail::outcome(::ftcache_device_chunk_begin(get(), stream));
    }

    result<void> device_chunk_stage(void *stream, uint32_t layer, uint32_t buffer) {
        return detail::outcome(::ftcache_device_chunk_stage(get(), stream, layer, buffer));
    }

    result<void> device_chunk_materialize(void *stream, uint32_t layer, uint32_t buffer) {
        return detail::outcome(::ftcache_device_chunk_materialize(get(), stream, layer, buffer));
    }

    result<void> device_chunk_end(void *stream) { return detail::outcome(::ftcache_device_chunk_end(get(), stream)); }

    result<void> device_reading_request(void *stream) {
        return detail::outcome(::ftcache_device_reading_request(get(), stream));
    }

    result<::ftcache_device_reading> device_reading_get() {
        return detail::filled<::ftcache_device_reading>(
            [&](auto *reading) { return ::ftcache_device_reading_get(get(), reading); });
    }

    // Empty if there is no reading.
    result<std::optional<::ftcache_stats>> device_phase_stats_get(uint32_t layer, ::ftcache_phase phase) {
        uint32_t is_there = 0;
        auto stats = sized<::ftcache_stats>();
        const ::ftcache_status status = ::ftcache_device_phase_stats_get(get(), layer, phase, &is_there, &stats);
        if (status != FTCACHE_STATUS_OK) return detail::refusal(status);
        return is_there == 1 ? std::optional<::ftcache_stats>(stats) : std::nullopt;
    }

    result<::ftcache_plan> device_plan_get(uint32_t layer) {
        return detail::filled<::ftcache_plan>(
            [&](auto *plan) { return ::ftcache_device_plan_get(get(), layer, plan); });
    }

    // Prefill.

    // streams may be NULL.
    result<void> chunk_begin(const ::ftcache_streams *streams) {
        return detail::outcome(::ftcache_chunk_begin(get(), streams));
    }

    result<void> chunk_prefetch(uint32_t layer) { return detail::outcome(::ftcache_chunk_prefetch(get(), layer)); }

    result<void> chunk_materialize(uint32_t layer) {
        return detail::outcome(::ftcache_chunk_materialize(get(), layer));
    }

    result<::ftcache_stage_plan> stage_plan_get(uint32_t bank) {
        return detail::filled<::ftcache_stage_plan>(
            [&](auto *plan) { return ::ftcache_stage_plan_get(get(), bank, plan); });
    }

    // The buffer, for staged_span_get.
    result<uint32_t> chunk_wait(uint32_t layer) {
        return detail::number<uint32_t>([&](uint32_t *buffer) { return ::ftcache_chunk_wait(get(), layer, buffer); });
    }

    result<void> chunk_release(uint32_t layer) { return detail::outcome(::ftcache_chunk_release(get(), layer)); }

    result<::ftcache_chunk_report> chunk_end() {
        return detail::filled<::ftcache_chunk_report>([&](auto *report) { return ::ftcache_chunk_end(get(), report); });
    }

    result<::ftcache_chunk_report> chunk_abandon() {
        return detail::filled<::ftcache_chunk_report>(
            [&](auto *report) { return ::ftcache_chunk_abandon(get(), report); });
    }

    result<::ftcache_chunk_report> chunk_total_get() {
        return detail::filled<::ftcache_chunk_report>(
            [&](auto *report) { return ::ftcache_chunk_total_get(get(), report); });
    }

    result<::ftcache_slot_span> staged_span_get(uint32_t layer, uint32_t bank, uint32_t buffer) {
        return detail::filled<::ftcache_slot_span>(
            [&](auto *rows) { return ::ftcache_staged_span_get(get(), layer, bank, buffer, rows); });
    }

    // Statistics.

    result<::ftcache_stats> stats_get() {
        return detail::filled<::ftcache_stats>([&](auto *stats) { return ::ftcache_stats_get(get(), stats); });
    }

    result<::ftcache_stats> layer_stats_get(uint32_t layer) {
        return detail::filled<::ftcache_stats>(
            [&](auto *stats) { return ::ftcache_layer_stats_get(get(), layer, stats); });
    }

    result<::ftcache_stats> phase_stats_get(uint32_t layer, ::ftcache_phase phase) {
        return detail::filled<::ftcache_stats>(
            [&](auto *stats) { return ::ftcache_phase_stats_get(get(), layer, phase, stats); });
    }

    result<::ftcache_stats> pool_stats_get(uint32_t pool) {
        return detail::filled<::ftcache_stats>(
            [&](auto *stats) { return ::ftcache_pool_stats_get(get(), pool, stats); });
    }

    result<std::string> stats_json() {
        return detail::text([&](char *buffer, std::size_t capacity, std::size_t *needed) {
            return ::ftcache_stats_json(get(), buffer, capacity, needed);
        });
    }

    result<void> stats_reset() { return detail::outcome(::ftcache_stats_reset(get())); }

    result<uint64_t> digest() {
        return detail::number<uint64_t>([&](uint64_t *out) { return ::ftcache_digest(get(), out); });
    }

    // Other slots, and warm start.

    result<::ftcache_rebuild_report> rebuild(const ftc::configuration &configuration, bool keep, uint64_t most_bytes) {
        return detail::filled<::ftcache_rebuild_report>([&](auto *report) {
            return ::ftcache_rebuild(get(), configuration.get(), keep ? 1 : 0, most_bytes, report);
        });
    }

    result<std::vector<unsigned char>> residents_get(uint64_t fingerprint) {
        std::vector<unsigned char> bytes;
        for (;;) {
            std::size_t needed = 0;
            const ::ftcache_status status =
                ::ftcache_residents_get(get(), fingerprint, bytes.data(), bytes.size(), &needed);
            if (status != FTCACHE_STATUS_OK) return detail::refusal(status);
            const bool is_whole = needed <= bytes.size();
            bytes.resize(needed);
            if (is_whole) return bytes;
        }
    }

    // streams may be NULL. The bytes that were enqueued.
    result<uint64_t> bring_back(const ::ftcache_streams *streams, span<const unsigned char> bytes,
                                uint64_t fingerprint) {
        return detail::number<uint64_t>([&](uint64_t *copied) {
            return ::ftcache_bring_back(get(), streams, bytes.data(), bytes.size(), fingerprint, copied);
        });
    }
};

class recorder : public detail::handle<::ftcache_recorder> {
public:
    using detail::handle<::ftcache_recorder>::handle;

    static result<recorder> make(const ::ftcache_recorder_config &config) {
        return detail::made<recorder>([&](::ftcache_recorder **out) { return ::ftcache_recorder_new(&config, out); });
    }

    result<void> begin(uint64_t request, uint32_t phase) {
        return detail::outcome(::ftcache_recorder_begin(get(), request, phase));
    }

    result<void> record(uint32_t layer, const ::ftcache_routes &routes) {
        return detail::outcome(::ftcache_recorder_record(get(), layer, &routes));
    }

    result<::ftcache_recorder_report> report_get() {
        return detail::filled<::ftcache_recorder_report>(
            [&](auto *report) { return ::ftcache_recorder_get(get(), report); });
    }

    result<void> write(const char *path) { return detail::outcome(::ftcache_recorder_write(get(), path)); }
};

}  // namespace ftc

#endif  // FTCACHE_HPP
