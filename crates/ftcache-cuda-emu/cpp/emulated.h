// What kernels are written in, for the host compiler: the words of `kernels/device.h`, with every access checked and
// every thread of a block a fiber of one thread of the process.
//
// What follows is a face only. `memory.cpp` checks accesses and `fibers.cpp` meets threads; an access that is not
// allowed ends the launch and does not return here.
#pragma once

#include <string.h>

#include <type_traits>

#define FTC_DEVICE inline
// The one parameter is by value for the kernel too: nothing can write to it. Names of their own, since the C interface
// of the library has some that kernels have.
#define FTC_KERNEL(name, Args)                         \
    extern "C" void emulated_##name(const Args& args); \
    extern "C" void emulated_##name(const Args& args)
#define FTC_SHARED(Type, name) \
    static char name##_key;    \
    Type& name = *static_cast<Type*>(::ftcache::emu::shared_object(&name##_key, sizeof(Type), alignof(Type)))
#define FTC_DYNAMIC_SHARED(name) const ::ftcache::Pointer<::ftcache::u8> name = ::ftcache::emu::dynamic_shared()
#define FTC_UNROLL
#define FTC_ROLL
#define FTC_FIELD(pointer, member)                                                      \
    ::ftcache::emu::field<decltype(::ftcache::emu::Target<decltype(pointer)>::member)>( \
        pointer, offsetof(::ftcache::emu::Target<decltype(pointer)>, member))

namespace ftcache {

template <class T>
class Pointer;

namespace emu {

enum Access : u32 { READ = 1, WRITE = 2, ATOMIC = 4 };

// Checks an access of the thread that runs, and remembers it.
void touch(u64 address, u32 bytes, u32 alignment, Access access);
// Ends the launch: there is no such item in an array of shared memory.
[[noreturn]] void outside_of_array(u64 index, u64 count);
// One object of shared memory for each block; the key is its declaration's.
void* shared_object(const char* key, u64 bytes, u64 alignment);
Pointer<u8> dynamic_shared();

void meet_block(u32 id);
enum Call : u32 { BALLOT, FROM, UP, SUM, SYNC };
u32 meet_warp(Call call, u32 line, u32 value, u32 extra);
void wait_a_while();

u32 thread_index();
u32 thread_count();
u32 block_index();
u32 block_count();

template <class T>
T load(u64 address, Access access = READ) {
    touch(address, sizeof(T), alignof(T), access);
    T value;
    memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
    return value;
}

template <class T>
void store(u64 address, const T& value, Access access = WRITE) {
    touch(address, sizeof(T), alignof(T), access);
    memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

// One item in memory, on its way to being read or written. It cannot be kept.
template <class T>
class Ref {
public:
    using Value = std::remove_const_t<T>;

    explicit Ref(u64 address) : address(address) {}
    Ref(const Ref&) = default;

    operator Value() const&& { return load<Value>(address); }
    Pointer<T> operator&() const&& { return Pointer<T>::at(address); }

    void operator=(const Value& value) const&& { put(value); }
    void operator=(const Ref& other) const&& { put(load<Value>(other.address)); }
    void operator+=(const Value& value) const&& { put(load<Value>(address) + value); }
    void operator-=(const Value& value) const&& { put(load<Value>(address) - value); }
    void operator|=(const Value& value) const&& { put(load<Value>(address) | value); }
    void operator&=(const Value& value) const&& { put(load<Value>(address) & value); }

private:
    u64 address;

    void put(const Value& value) const {
        static_assert(!std::is_const_v<T>, "this memory is only read");
        store<Value>(address, value);
    }
};

}  // namespace emu

// An address of the device.
template <class T>
class Pointer {
public:
    using Item = T;

    Pointer() = default;
    constexpr Pointer(decltype(nullptr)) : address(0) {}
    template <class U, std::enable_if_t<std::is_same_v<const U, T>, int> = 0>
    constexpr Pointer(Pointer<U> other) : address(other.raw()) {}
    static constexpr Pointer at(u64 address) {
        Pointer pointer(nullptr);
        pointer.address = address;
        return pointer;
    }

    constexpr u64 raw() const { return address; }

    emu::Ref<T> operator[](i64 index) const { return emu::Ref<T>(address + static_cast<u64>(index) * sizeof(T)); }
    emu::Ref<T> operator*() const { return emu::Ref<T>(address); }
    Pointer operator+(i64 count) const { return at(address + static_cast<u64>(count) * sizeof(T)); }
    Pointer operator-(i64 count) const { return *this + -count; }
    Pointer& operator+=(i64 count) { return *this = *this + count; }
    explicit operator bool() const { return address != 0; }
    bool operator==(const Pointer& other) const { return address == other.address; }
    bool operator!=(const Pointer& other) const { return address != other.address; }

private:
    u64 address;
};

static_assert(sizeof(Pointer<u8>) == 8 && std::is_trivially_copyable_v<Pointer<u8>>, "an address and no more");

namespace emu {

template <class P>
using Target = std::remove_const_t<typename std::decay_t<P>::Item>;

template <class Member, class T>
auto field(Pointer<T> pointer, u64 offset) {
    return Ref<std::conditional_t<std::is_const_v<T>, const Member, Member>>(pointer.raw() + offset);
}

}  // namespace emu

template <class T, u32 N>
struct Array {
    T items[N];
    emu::Ref<T> operator[](u32 index) {
        if (index >= N) {
            emu::outside_of_array(index, N);
        }
        return emu::Ref<T>(reinterpret_cast<u64>(items) + u64(index) * sizeof(T));
    }
    Pointer<T> pointer() { return Pointer<T>::at(reinterpret_cast<u64>(items)); }
};

template <class T>
struct Cell {
    T item;
    Cell() = default;
    Cell(const Cell&) = delete;
    operator T() const { return emu::load<T>(reinterpret_cast<u64>(&item)); }
    Cell& operator=(T value) {
        emu::store<T>(reinterpret_cast<u64>(&item), value);
        return *this;
    }
    Cell& operator=(const Cell& other) { return *this = static_cast<T>(other); }
    Pointer<T> operator&() { return Pointer<T>::at(reinterpret_cast<u64>(&item)); }
};

constexpr u32 WARP = 32;

inline u32 thread_index() { return emu::thread_index(); }
inline u32 thread_count() { return emu::thread_count(); }
inline u32 block_index() { return emu::block_index(); }
inline u32 block_count() { return emu::block_count(); }

template <u32 ID>
void barrier() {
    static_assert(ID < 256, "barriers are numbered below 256");
    emu::meet_block(ID);
}

// Where the call stands is how lanes that are at different calls are told.
inline u32 warp_ballot(bool value, u32 line = __builtin_LINE()) { return emu::meet_warp(emu::BALLOT, line, value, 0); }
inline u32 warp_from(u32 value, u32 lane, u32 line = __builtin_LINE()) {
    return emu::meet_warp(emu::FROM, line, value, lane);
}
inline u32 warp_up(u32 value, u32 delta, u32 line = __builtin_LINE()) {
    return emu::meet_warp(emu::UP, line, value, delta);
}
inline u32 warp_sum(u32 value, u32 line = __builtin_LINE()) { return emu::meet_warp(emu::SUM, line, value, 0); }
inline void warp_sync(u32 line = __builtin_LINE()) { emu::meet_warp(emu::SYNC, line, 0, 0); }

inline u32 count_ones(u32 bits) { return static_cast<u32>(__builtin_popcount(bits)); }
inline u32 leading_zeros(u64 value) { return value == 0 ? 64 : static_cast<u32>(__builtin_clzll(value)); }
inline u32 lowest_one(u32 bits) { return static_cast<u32>(__builtin_ffs(static_cast<int>(bits))) - 1; }

inline void atomic_add(Pointer<u32> place, u32 value) {
    const u32 sum = emu::load<u32>(place.raw(), emu::ATOMIC) + value;
    memcpy(reinterpret_cast<void*>(place.raw()), &sum, sizeof(sum));
}
inline void atomic_add(Pointer<u64> place, u64 value) {
    const u64 sum = emu::load<u64>(place.raw(), emu::ATOMIC) + value;
    memcpy(reinterpret_cast<void*>(place.raw()), &sum, sizeof(sum));
}
inline void atomic_min(Pointer<u64> place, u64 value) {
    const u64 before = emu::load<u64>(place.raw(), emu::ATOMIC);
    const u64 least = value < before ? value : before;
    memcpy(reinterpret_cast<void*>(place.raw()), &least, sizeof(least));
}

template <class T>
Pointer<T> cast(Pointer<u8> base, u64 bytes) {
    return Pointer<T>::at(base.raw() + bytes);
}
template <class T>
u64 address_of(Pointer<T> pointer) {
    return pointer.raw();
}

struct alignas(16) Quad {
    u32 words[4];
};

namespace emu {

// Threads of the host write and read these meanwhile.
template <class T>
T load_shared_with_host(u64 address) {
    touch(address, sizeof(T), alignof(T), READ);
    return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}

// What the host and several blocks may write at once, number by number.
template <class T>
T load_number(u64 address) {
    touch(address, sizeof(T), alignof(T), ATOMIC);
    return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}

template <class T>
void store_number(u64 address, T value) {
    touch(address, sizeof(T), alignof(T), ATOMIC);
    __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
}

}  // namespace emu

inline Quad load_fresh(Pointer<const Quad> place) { return emu::load<Quad>(place.raw()); }
inline u32 load_fresh(Pointer<const u32> place) { return emu::load_shared_with_host<u32>(place.raw()); }
inline u8 load_fresh(Pointer<const u8> place) { return emu::load_shared_with_host<u8>(place.raw()); }

inline void store_for_host(Pointer<u32> place, u32 value) { emu::store_number(place.raw(), value); }
inline void store_for_host(Pointer<u64> place, u64 value) { emu::store_number(place.raw(), value); }
inline void store_for_host(Pointer<i64> place, i64 value) { emu::store_number(place.raw(), value); }
inline u32 load_for_host(Pointer<u32> place) { return emu::load_number<u32>(place.raw()); }
inline u64 load_for_host(Pointer<u64> place) { return emu::load_number<u64>(place.raw()); }
inline void fence_for_host() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void pause() { emu::wait_a_while(); }

}  // namespace ftcache
