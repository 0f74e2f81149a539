// What a launch may touch, and whether two of its threads touch the same place without order.
//
// Each access is looked for in the ranges that the launch declared, or in the block's shared memory. Then it is
// compared with those that are remembered of the place: of another thread, one of the two writes, they are not both
// atomic, and no barrier lies between, nor a warp_sync if they are of one warp. Other calls of a warp order nothing:
// the programming guide promises no order of memory for votes and shuffles. Blocks have no order at all.
//
// Places are words of four bytes, and bytes where something smaller is touched. Nothing is cleared between launches:
// epochs grow, and what is remembered with an old one counts for nothing.
#include "engine.h"

namespace ftcache::emu {

// Memory for so many pages is kept from launch to launch.
constexpr u64 PAGES_KEPT = 1 << 15;
constexpr u32 RACES_TOLD = 3;
constexpr u8 MANY = 8;
using Text = unsigned long long;

static u64 hash_of(u64 key) {
    const u64 mixed = key * 0x9E3779B97F4A7C15ull;
    return mixed ^ (mixed >> 29);
}

static void forget_pages(PageTable& table) {
    for (u64 at = 0; at < table.capacity; ++at) {
        if (table.slots[at] != nullptr) {
            free(table.slots[at]->bytes);
            free(table.slots[at]);
        }
    }
    free(table.slots);
    memset(static_cast<void*>(&table), 0, sizeof(table));
}

static void* made(void* memory) {
    if (memory == nullptr) {
        fputs("no memory to remember accesses in\n", stderr);
        abort();
    }
    return memory;
}

static Page** place_of(PageTable& table, u64 key) {
    u64 at = hash_of(key) % table.capacity;
    while (table.slots[at] != nullptr && table.slots[at]->key != key) {
        at = at + 1 == table.capacity ? 0 : at + 1;
    }
    return &table.slots[at];
}

static Page* page_of(PageTable& table, u64 key) {
    PageTable::Recent& recent = table.recent[key % PageTable::RECENT];
    if (recent.key == key && recent.page != nullptr) {
        return recent.page;
    }
    if (2 * (table.count + 1) > table.capacity) {
        PageTable old = table;
        table.capacity = old.capacity == 0 ? 1024 : 2 * old.capacity;
        table.slots = static_cast<Page**>(made(calloc(table.capacity, sizeof(Page*))));
        for (u64 at = 0; at < old.capacity; ++at) {
            if (old.slots[at] != nullptr) {
                *place_of(table, old.slots[at]->key) = old.slots[at];
            }
        }
        free(old.slots);
    }
    Page** place = place_of(table, key);
    if (*place == nullptr) {
        *place = static_cast<Page*>(made(calloc(1, sizeof(Page))));
        (*place)->key = key;
        table.count += 1;
    }
    recent = PageTable::Recent{key, *place};
    return *place;
}

static const char* word_for(Access access) {
    return access == READ ? "reads" : access == WRITE ? "writes" : "changes atomically";
}

// Says where an address is: how far from the nearest range that the launch may touch, or from an object.
static void describe_place(Engine& engine, u64 address, char* text, size_t bytes) {
    const u64 arena = reinterpret_cast<u64>(engine.arena);
    if (address - arena < ARENA_BYTES) {
        for (u32 at = 0; at < engine.object_count; ++at) {
            const Object& object = engine.objects[at];
            if (address - arena - object.offset < object.bytes) {
                snprintf(text, bytes, "%u bytes into a shared object of %u",
                         static_cast<u32>(address - arena) - object.offset, object.bytes);
                return;
            }
        }
        snprintf(text, bytes, "%lld bytes into dynamic shared memory, which has %u",
                 static_cast<long long>(address - arena) - ZONE, engine.request.shared_bytes);
        return;
    }
    const Range* nearest = nullptr;
    u64 least = ~u64(0);
    for (u64 at = 0; at < engine.range_count; ++at) {
        const Range& range = engine.ranges[at];
        const u64 far = address < range.base ? range.base - address : address < range.end() ? 0 : address - range.end();
        if (far < least) {
            least = far;
            nearest = &range;
        }
    }
    if (nearest == nullptr) {
        snprintf(text, bytes, "and the launch may touch nothing");
        return;
    }
    const int head = snprintf(text, bytes, "%lld bytes into %s at %#llx, which has %llu bytes",
                              static_cast<long long>(address - nearest->base), nearest->name,
                              static_cast<Text>(nearest->base), static_cast<Text>(nearest->row_bytes));
    text += head;
    bytes -= static_cast<size_t>(head);
    if (nearest->rows > 1) {
        snprintf(text, bytes, " in each of %llu rows, %llu apart%s", static_cast<Text>(nearest->rows),
                 static_cast<Text>(nearest->stride), (nearest->access & WRITE) != 0 ? "" : ", and may only be read");
    } else if ((nearest->access & WRITE) == 0) {
        snprintf(text, bytes, " and may only be read");
    }
}

[[noreturn]] static void refuse(Engine& engine, u64 address, u32 bytes, Access access, const char* what) {
    char place[256];
    describe_place(engine, address, place, sizeof(place));
    report(engine, ", thread %u: %s %u bytes at %#llx, %s: %s", engine.running, word_for(access), bytes,
           static_cast<Text>(address), what, place);
    end_launch(engine);
}

void outside_of_array(u64 index, u64 count) {
    Engine& engine = *current();
    report(engine, ", thread %u: item %llu of an array of %llu in shared memory", engine.running,
           static_cast<Text>(index), static_cast<Text>(count));
    end_launch(engine);
}

static bool may_touch(Engine& engine, u64 address, u32 bytes, Access access) {
    // Atomics write what they have read.
    const u32 needed = access == READ ? READ : WRITE;
    u32& recent = engine.recent_range[(address >> 10) % 64];
    if (recent < engine.range_count) {
        const Range& range = engine.ranges[recent];
        if ((range.access & needed) != 0 && range.holds(address, bytes)) {
            return true;
        }
    }
    u64 low = 0, high = engine.range_count;
    while (low < high) {
        const u64 middle = (low + high) / 2;
        if (engine.ranges[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // Ranges may overlap; `reach` says how far those up to one go.
    for (u64 at = low; at > 0 && engine.reach[at - 1] > address; --at) {
        const Range& range = engine.ranges[at - 1];
        if ((range.access & needed) != 0 && range.holds(address, bytes)) {
            recent = static_cast<u32>(at - 1);
            return true;
        }
    }
    return false;
}

static bool is_in_object(const Engine& engine, u64 offset, u32 bytes) {
    if (offset >= ZONE && offset + bytes <= ZONE + engine.request.shared_bytes) {
        return true;
    }
    for (u32 at = 0; at < engine.object_count; ++at) {
        const Object& object = engine.objects[at];
        if (offset >= object.offset && offset + bytes <= object.offset + object.bytes) {
            return true;
        }
    }
    return false;
}

// Kinds that are in conflict with an access.
static u32 against(Access access) {
    return access == READ ? WRITE | ATOMIC : access == WRITE ? READ | WRITE | ATOMIC : READ | WRITE;
}

constexpr u32 NO_CONFLICT = ~0u, ANOTHER_BLOCK = ~0u - 1;

struct Conflict {
    u32 thread;
    u32 kinds;
};

static void open_cells(const Engine& engine, Cells& cells) {
    if (cells.epoch == engine.epoch) {
        return;
    }
    if (cells.epoch < engine.floor_epoch) {
        cells.before = cells.kinds = 0;
    } else if (cells.epoch < engine.block_epoch) {
        cells.before |= cells.kinds;
        cells.kinds = 0;
    }
    cells.slots[0] = cells.slots[1] = Slot{};
    cells.epoch = engine.epoch;
}

// Whether an access conflicts with what is remembered of a place.
static Conflict conflict_of(const Engine& engine, Cells& cells, Access access) {
    open_cells(engine, cells);
    const u32 wrong = against(access);
    if ((cells.before & wrong) != 0) {
        return Conflict{ANOTHER_BLOCK, cells.before & wrong};
    }
    for (const Slot& slot : cells.slots) {
        if ((slot.ever & wrong) == 0) {
            continue;
        }
        if (slot.thread / 32 != engine.running / 32) {
            return Conflict{slot.thread, slot.ever & wrong};
        }
        const bool other = slot.thread != engine.running || (slot.now & MANY) != 0;
        if (slot.epoch == engine.warps[engine.running / 32].epoch && other && (slot.now & wrong) != 0) {
            return Conflict{slot.thread, slot.now & wrong};
        }
    }
    return Conflict{NO_CONFLICT, 0};
}

static void remember(const Engine& engine, Cells& cells, Access access) {
    const u8 kind = static_cast<u8>(access);
    const u16 thread = static_cast<u16>(engine.running);
    const u32 epoch = engine.warps[engine.running / 32].epoch;
    cells.kinds |= kind;
    for (Slot& slot : cells.slots) {
        if (slot.ever == 0) {
            slot = Slot{epoch, thread, kind, kind};
            return;
        }
        if (slot.thread / 32 != thread / 32) {
            continue;
        }
        slot.ever |= kind;
        if (slot.epoch != epoch) {
            slot = Slot{epoch, thread, slot.ever, kind};
        } else {
            slot.now |= slot.thread == thread ? kind : kind | MANY;
            slot.thread = thread;
        }
        return;
    }
}

static void report_race(Engine& engine, const Conflict& conflict, u64 address, Access access) {
    engine.race_count += 1;
    if (engine.race_count > RACES_TOLD) {
        engine.outcome.more += 1;
        return;
    }
    char place[256], other[48];
    describe_place(engine, address, place, sizeof(place));
    if (conflict.thread == ANOTHER_BLOCK) {
        snprintf(other, sizeof(other), "a thread of another block");
    } else {
        snprintf(other, sizeof(other), "thread %u", conflict.thread);
    }
    const char* how = (conflict.kinds & WRITE) != 0 ? "writes" : (conflict.kinds & READ) != 0 ? "reads" : "changes";
    report(engine, ": race: thread %u %s and %s %s what lies at %#llx, unordered after %llu barriers: %s",
           engine.running, word_for(access), other, how, static_cast<Text>(address),
           static_cast<Text>(engine.block_barriers), place);
}

// Compares an access with what is remembered of a place, and remembers it.
static void meet(Engine& engine, Cells& cells, u64 address, Access access) {
    const Conflict conflict = conflict_of(engine, cells, access);
    if (conflict.thread != NO_CONFLICT) {
        report_race(engine, conflict, address, access);
    }
    remember(engine, cells, access);
}

static void touch_page(Engine& engine, Page& page, u64 address, u32 bytes, Access access) {
    const u32 offset = static_cast<u32>(address % PAGE);
    const bool is_quad = bytes == 16 && offset % 16 == 0;
    if (page.launch != engine.launch) {
        page.launch = engine.launch;
        page.unit = is_quad ? 16 : 4;
        page.has_bytes = false;
    }
    if (page.unit == 16 && !is_quad) {
        for (u32 word = WORDS; word-- > 0;) {
            page.words[word] = page.words[word / 4];
        }
        page.unit = 4;
    }
    if (bytes >= 4) {
        for (u32 at = offset / page.unit; at <= (offset + bytes - 1) / page.unit; ++at) {
            meet(engine, page.words[at], address - offset + at * page.unit, access);
        }
        for (u32 at = offset; page.has_bytes && at < offset + bytes; ++at) {
            const Conflict conflict = conflict_of(engine, page.bytes->cells[at], access);
            if (conflict.thread != NO_CONFLICT) {
                report_race(engine, conflict, address - offset + at, access);
                return;
            }
        }
        return;
    }
    if (page.bytes == nullptr) {
        page.bytes = static_cast<Bytes*>(made(calloc(1, sizeof(Bytes))));
    }
    page.has_bytes = true;
    for (u32 at = offset; at < offset + bytes; ++at) {
        const Conflict conflict = conflict_of(engine, page.words[at / 4], access);
        if (conflict.thread != NO_CONFLICT) {
            report_race(engine, conflict, address - offset + at, access);
        }
        meet(engine, page.bytes->cells[at], address - offset + at, access);
    }
}

void touch(u64 address, u32 bytes, u32 alignment, Access access) {
    Engine* running = current();
    if (running == nullptr) {
        fputs("a kernel's memory is touched where no kernel runs\n", stderr);
        abort();
    }
    Engine& engine = *running;
    const u64 offset = address - reinterpret_cast<u64>(engine.arena);
    const bool shared = offset < ARENA_BYTES;
    if (address % alignment != 0) {
        refuse(engine, address, bytes, access, "misaligned");
    }
    if (shared ? !is_in_object(engine, offset, bytes) : !may_touch(engine, address, bytes, access)) {
        refuse(engine, address, bytes, access, "which the launch may not");
    }
    engine.floor_epoch = shared ? engine.block_epoch : engine.launch_epoch;
    // A piece of each page; what is longer than an access of the device is a struct that is read item by item.
    while (bytes > 0) {
        const u32 left = PAGE - static_cast<u32>(address % PAGE);
        const u32 piece = bytes < left ? bytes : left;
        Page* page = shared ? &engine.shared_pages[(address - reinterpret_cast<u64>(engine.arena)) / PAGE]
                            : page_of(engine.pages, address / PAGE);
        touch_page(engine, *page, address, piece, access);
        address += piece;
        bytes -= piece;
    }
}

Pointer<u8> dynamic_shared() { return Pointer<u8>::at(reinterpret_cast<u64>(current()->arena) + ZONE); }

static void poison(Engine& engine, u32 from, u32 to) {
    for (u32 at = from; at < to; ++at) {
        engine.arena[at] = engine.tile[at % 256];
    }
}

void* shared_object(const char* key, u64 bytes, u64 alignment) {
    Engine& engine = *current();
    for (u32 at = 0; at < engine.object_count; ++at) {
        if (engine.objects[at].key == key) {
            return engine.arena + engine.objects[at].offset;
        }
    }
    u64 in_use = engine.request.shared_bytes + bytes;
    for (u32 at = 0; at < engine.object_count; ++at) {
        in_use += engine.objects[at].bytes;
    }
    if (in_use > SHARED_MAX || engine.object_count == OBJECTS_MAX || alignment > ZONE) {
        report(engine, ": %llu bytes of shared memory in %u objects aligned to %llu; %u in %u aligned to %u there are",
               static_cast<Text>(in_use), engine.object_count + 1, static_cast<Text>(alignment), SHARED_MAX,
               OBJECTS_MAX, ZONE);
        end_launch(engine);
    }
    const u32 offset = engine.arena_used;
    const u32 end = (offset + static_cast<u32>(bytes) + ZONE - 1) / ZONE * ZONE + ZONE;
    engine.objects[engine.object_count] = Object{key, offset, static_cast<u32>(bytes)};
    engine.object_count += 1;
    engine.arena_used = end;
    poison(engine, offset, end);
    return engine.arena + offset;
}

static int by_base(const void* a, const void* b) {
    const u64 first = static_cast<const Range*>(a)->base, second = static_cast<const Range*>(b)->base;
    return first < second ? -1 : first > second;
}

void begin_memory(Engine& engine) {
    const u64 count = engine.request.range_count;
    free(engine.ranges);
    free(engine.reach);
    engine.ranges = static_cast<Range*>(made(malloc((count + 1) * sizeof(Range))));
    engine.reach = static_cast<u64*>(made(malloc((count + 1) * sizeof(u64))));
    engine.range_count = count;
    if (count > 0) {
        memcpy(static_cast<void*>(engine.ranges), engine.request.ranges, count * sizeof(Range));
        qsort(engine.ranges, count, sizeof(Range), by_base);
    }
    for (u64 at = 0; at < count; ++at) {
        const u64 end = engine.ranges[at].end();
        engine.reach[at] = at > 0 && engine.reach[at - 1] > end ? engine.reach[at - 1] : end;
    }
    memset(engine.recent_range, 0, sizeof(engine.recent_range));
    if (engine.pages.count > PAGES_KEPT) {
        forget_pages(engine.pages);
    }
    if (engine.shared_pages == nullptr || engine.epoch > 0xF0000000u) {
        // Before epochs come to their end, all that was remembered with one goes.
        forget_pages(engine.pages);
        if (engine.shared_pages != nullptr) {
            for (u32 at = 0; at <= ARENA_BYTES / PAGE; ++at) {
                free(engine.shared_pages[at].bytes);
            }
        }
        free(engine.shared_pages);
        engine.shared_pages = static_cast<Page*>(made(calloc(ARENA_BYTES / PAGE + 1, sizeof(Page))));
        engine.epoch = engine.launch = 0;
    }
    engine.launch += 1;
    engine.launch_epoch = engine.epoch + 1;
    engine.race_count = 0;
    engine.object_count = 0;
    engine.arena_used = ((ZONE + engine.request.shared_bytes + ZONE - 1) / ZONE + 1) * ZONE;
    for (u32 at = 0; at < 256; ++at) {
        // No zeros: what is not written must not look as if it had been cleared.
        engine.tile[at] = static_cast<u8>(1 + engine.below(255));
    }
}

void begin_block_memory(Engine& engine) {
    engine.epoch += 1;
    engine.block_epoch = engine.epoch;
    poison(engine, 0, engine.arena_used);
}

static void check_zone(Engine& engine, u32 from, u32 to) {
    for (u32 at = from; at < to; ++at) {
        if (engine.arena[at] != engine.tile[at % 256]) {
            report(engine, ": shared memory was written behind an object's end, at offset %u", at);
            return;
        }
    }
}

void end_block_memory(Engine& engine) {
    u32 end = ZONE + engine.request.shared_bytes;
    check_zone(engine, 0, ZONE);
    for (u32 at = 0; at < engine.object_count; ++at) {
        check_zone(engine, end, engine.objects[at].offset);
        end = engine.objects[at].offset + engine.objects[at].bytes;
    }
    check_zone(engine, end, engine.arena_used);
}

void free_memory(Engine& engine) {
    forget_pages(engine.pages);
    free(engine.ranges);
    free(engine.reach);
    if (engine.shared_pages != nullptr) {
        for (u32 at = 0; at <= ARENA_BYTES / PAGE; ++at) {
            free(engine.shared_pages[at].bytes);
        }
    }
    free(engine.shared_pages);
}

}  // namespace ftcache::emu
