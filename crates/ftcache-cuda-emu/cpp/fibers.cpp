// The threads of a block: fibers of one thread of the process, in an order that the launch's seed chooses.
//
// A thread runs until it meets others: at a barrier, in a warp's call, or in a pause. Then some thread that can go on
// does, by a direct switch. Blocks are run one after another, in an order of the seed too. When no thread can go on and
// not all have returned, they wait for each other in vain, and the launch ends with a report.
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "switch.h"

namespace ftcache::emu {

// One word, so that the faster kind of thread-local storage has room for it in a library that is loaded late.
#if defined(__GLIBC__)
static thread_local Engine* engine_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;
#else
static thread_local Engine* engine_of_thread = nullptr;
#endif

constexpr u64 STACK_BYTES = 64 * 1024;

Engine* current() { return engine_of_thread; }

static Engine& engine() {
    Engine* engine = engine_of_thread;
    if (engine == nullptr) {
        fputs("a kernel's words are used where no kernel runs\n", stderr);
        abort();
    }
    return *engine;
}

static u64 now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<u64>(now.tv_sec) * 1000000000 + static_cast<u64>(now.tv_nsec);
}

void report(Engine& engine, const char* format, ...) {
    if (engine.outcome.report_count == REPORTS_MAX) {
        engine.outcome.more += 1;
        return;
    }
    char* text = engine.reports[engine.outcome.report_count];
    engine.outcome.report_count += 1;
    const int head = snprintf(text, REPORT_BYTES, "kernel %s, block %u", engine.name, engine.block);
    va_list values;
    va_start(values, format);
    vsnprintf(text + head, REPORT_BYTES - static_cast<size_t>(head), format, values);
    va_end(values);
}

void end_launch(Engine& engine) {
    engine.outcome.ended = 1;
    void* left;
    ftcache_emu_switch(&left, engine.home);
    __builtin_unreachable();
}

// The stack of the thread that goes on now.
static void* choose(Engine& engine) {
    if (engine.ready_count == 0 && engine.paused_count > 0) {
        const u64 now = now_ns();
        if (engine.waiting_since_ns == 0) {
            engine.waiting_since_ns = now;
        } else if (now - engine.waiting_since_ns > engine.request.patience_ns) {
            report(engine, ", thread %u: has waited %llu ms for the host", engine.paused[0],
                   static_cast<unsigned long long>(engine.request.patience_ns / 1000000));
            engine.outcome.ended = 1;
            return engine.home;
        }
        sched_yield();
        for (u32 at = 0; at < engine.paused_count; ++at) {
            engine.ready[at] = engine.paused[at];
            engine.fibers[engine.paused[at]].at = At::READY;
        }
        engine.ready_count = engine.paused_count;
        engine.paused_count = 0;
    }
    if (engine.ready_count == 0) {
        engine.running = NOBODY_RUNS;
        return engine.home;
    }
    // Within a window at the end: of one, a warp that has met goes on at once; of all, threads are mixed at random.
    const u32 window = engine.ready_count < engine.window ? engine.ready_count : engine.window;
    const u32 last = engine.ready_count - 1;
    const u32 at = window == 1 ? last : last - engine.below(window);
    const u16 next = engine.ready[at];
    engine.ready[at] = engine.ready[last];
    engine.ready_count = last;
    engine.running = next;
    return engine.fibers[next].stack;
}

// Goes on with another thread until this one is chosen.
static void go_on(Engine& engine) {
    const u32 mine = engine.running;
    void* next = choose(engine);
    if (engine.running != mine || engine.outcome.ended != 0) {
        ftcache_emu_switch(&engine.fibers[mine].stack, next);
    }
}

static void shuffle(Engine& engine, u16* threads, u32 count) {
    for (u32 left = count; left > 1; --left) {
        const u32 at = engine.below(left);
        const u16 other = threads[at];
        threads[at] = threads[left - 1];
        threads[left - 1] = other;
    }
}

// All threads of the block, in an order of their own: in most launches warp by warp, as that is much the fastest.
static void make_all_ready(Engine& engine) {
    const u32 threads = engine.request.threads;
    for (u32 thread = 0; thread < threads; ++thread) {
        engine.fibers[thread].at = At::READY;
        engine.ready[thread] = static_cast<u16>(thread);
    }
    engine.ready_count = threads;
    if (!engine.by_warps) {
        shuffle(engine, engine.ready, threads);
        return;
    }
    u16 warps[WARPS_MOST];
    for (u32 warp = 0; warp < threads / 32; ++warp) {
        warps[warp] = static_cast<u16>(warp);
    }
    shuffle(engine, warps, threads / 32);
    for (u32 warp = 0; warp < threads / 32; ++warp) {
        u16* lanes = engine.ready + 32 * warp;
        for (u32 lane = 0; lane < 32; ++lane) {
            lanes[lane] = static_cast<u16>(32 * warps[warp] + lane);
        }
        shuffle(engine, lanes, 32);
    }
}

static void begin_thread() {
    Engine& engine = *engine_of_thread;
    engine.body(engine.request.args);
    engine.fibers[engine.running].at = At::RETURNED;
    engine.returned_count += 1;
    go_on(engine);
    __builtin_unreachable();
}

void meet_block(u32 id) {
    Engine& now = engine();
    if ((now.request.skipped[id / 64] >> (id % 64) & 1) != 0) {
        return;
    }
    now.outcome.barrier_ids[id / 64] |= u64(1) << (id % 64);
    const u32 mine = now.running;
    if (now.waiting_count == 0) {
        now.barrier_id = id;
        now.barrier_thread = mine;
    } else if (now.barrier_id != id) {
        report(now, ": thread %u is at barrier %u while thread %u is at barrier %u", mine, id, now.barrier_thread,
               now.barrier_id);
        end_launch(now);
    }
    now.waiting_count += 1;
    now.fibers[mine].at = At::BARRIER;
    if (now.waiting_count == now.request.threads) {
        now.waiting_count = 0;
        now.block_barriers += 1;
        now.epoch += 1;
        now.waiting_since_ns = 0;
        make_all_ready(now);
    }
    go_on(now);
}

static const char* name_of(Call call) {
    switch (call) {
        case BALLOT:
            return "warp_ballot";
        case FROM:
            return "warp_from";
        case UP:
            return "warp_up";
        case SUM:
            return "warp_sum";
        default:
            return "warp_sync";
    }
}

static void answer(Warp& warp) {
    u32 all = 0;
    for (u32 lane = 0; lane < 32; ++lane) {
        all = warp.call == SUM ? all + warp.values[lane] : all | (warp.values[lane] & 1) << lane;
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        const u32 extra = warp.extras[lane];
        const u32 from = warp.call == FROM ? extra % 32 : extra > lane ? lane : lane - extra;
        warp.results[lane] = warp.call == FROM || warp.call == UP ? warp.values[from] : all;
    }
}

u32 meet_warp(Call call, u32 line, u32 value, u32 extra) {
    Engine& now = engine();
    const u32 mine = now.running, lane = mine % 32;
    Warp& warp = now.warps[mine / 32];
    if (warp.arrived == 0) {
        warp.call = call;
        warp.line = line;
    } else if (warp.call != call || warp.line != line) {
        report(now, ": thread %u is at %s in line %u while others of warp %u are at %s in line %u", mine,
               name_of(call), line, mine / 32, name_of(warp.call), warp.line);
        end_launch(now);
    }
    warp.values[lane] = value;
    warp.extras[lane] = extra;
    warp.arrived += 1;
    now.fibers[mine].at = At::WARP_CALL;
    if (warp.arrived == 32) {
        warp.arrived = 0;
        warp.epoch += call == SYNC;
        answer(warp);
        u16* lanes = now.ready + now.ready_count;
        for (u32 other = 0; other < 32; ++other) {
            lanes[other] = static_cast<u16>(mine - lane + other);
            now.fibers[lanes[other]].at = At::READY;
        }
        shuffle(now, lanes, 32);
        now.ready_count += 32;
    }
    go_on(now);
    return warp.results[lane];
}

void wait_a_while() {
    Engine& now = engine();
    now.fibers[now.running].at = At::PAUSED;
    now.paused[now.paused_count] = static_cast<u16>(now.running);
    now.paused_count += 1;
    go_on(now);
}

u32 thread_index() { return engine().running; }
u32 thread_count() { return engine().request.threads; }
u32 block_index() { return engine().block; }
u32 block_count() { return engine().request.blocks; }

// Says why nobody can go on.
static void report_standstill(Engine& engine) {
    u32 returned = NOBODY_RUNS, waiting = NOBODY_RUNS;
    for (u32 thread = 0; thread < engine.request.threads; ++thread) {
        const At at = engine.fibers[thread].at;
        if (at == At::RETURNED) {
            returned = thread;
        } else if (at == At::BARRIER) {
            waiting = thread;
        }
    }
    for (u32 thread = 0; thread < engine.request.threads; ++thread) {
        if (engine.fibers[thread].at != At::WARP_CALL) {
            continue;
        }
        const Warp& warp = engine.warps[thread / 32];
        for (u32 other = thread / 32 * 32; other < thread / 32 * 32 + 32; ++other) {
            const At at = engine.fibers[other].at;
            if (at == At::WARP_CALL) {
                continue;
            }
            if (at == At::BARRIER) {
                report(engine, ": thread %u is at %s in line %u while thread %u of its warp is at barrier %u", thread,
                       name_of(warp.call), warp.line, other, engine.barrier_id);
            } else {
                report(engine, ": thread %u is at %s in line %u while thread %u of its warp has returned", thread,
                       name_of(warp.call), warp.line, other);
            }
            return;
        }
    }
    report(engine, ": thread %u has returned while thread %u waits at barrier %u", returned, waiting,
           engine.barrier_id);
}

static void run_block(Engine& engine, u32 block) {
    const u32 threads = engine.request.threads;
    engine.block = block;
    engine.paused_count = engine.returned_count = engine.waiting_count = 0;
    engine.block_barriers = 0;
    engine.waiting_since_ns = 0;
    for (u32 warp = 0; warp < threads / 32; ++warp) {
        engine.warps[warp].arrived = engine.warps[warp].epoch = 0;
    }
    begin_block_memory(engine);
    for (u32 thread = 0; thread < threads; ++thread) {
        // Tops at different places of their pages, or they would all want the same few lines of the caches.
        u8* top = engine.stacks + (thread + 1) * engine.stack_pitch - thread % 32 * 128;
        engine.fibers[thread] = Fiber{new_stack(top, begin_thread), At::READY};
    }
    make_all_ready(engine);
    ftcache_emu_switch(&engine.home, choose(engine));
    engine.running = NOBODY_RUNS;
    if (engine.outcome.ended == 0 && engine.returned_count < threads) {
        report_standstill(engine);
        engine.outcome.ended = 1;
    }
    end_block_memory(engine);
    if (engine.block_barriers > engine.outcome.barriers) {
        engine.outcome.barriers = engine.block_barriers;
    }
}

void run(Engine& engine) {
    engine.outcome = Outcome{};
    engine.random = engine.request.seed;
    engine.running = NOBODY_RUNS;
    engine.block = 0;
    // Threads that have just met, or any: cheap orders more often than dear ones.
    const u32 windows[] = {1, 1, 1, 8, 32, 1, 64, THREADS_MAX};
    const u32 manner = engine.below(8);
    engine.window = windows[manner];
    engine.by_warps = manner < 5;
    begin_memory(engine);
    engine_of_thread = &engine;
    // A walk over all blocks from some one on, with some stride.
    const u32 blocks = engine.request.blocks;
    const u32 first = engine.below(blocks);
    u32 stride = 1 + engine.below(blocks);
    for (u32 a = stride, b = blocks; a != 1;) {
        const u32 rest = b % a;
        if (rest == 0) {
            // They have a divisor in common: another stride.
            stride = stride == 1 ? 1 : stride - 1;
            a = stride, b = blocks;
        } else {
            b = a, a = rest;
        }
    }
    u64 block = first;
    for (u32 done = 0; done < blocks && engine.outcome.ended == 0; ++done) {
        run_block(engine, static_cast<u32>(block));
        block = (block + stride) % blocks;
    }
    engine_of_thread = nullptr;
}

Engine* new_engine() {
    Engine* engine = static_cast<Engine*>(aligned_alloc(256, (sizeof(Engine) + 255) / 256 * 256));
    const u64 page = static_cast<u64>(sysconf(_SC_PAGESIZE));
    const u64 pitch = (STACK_BYTES + page - 1) / page * page + page;
    void* stacks = mmap(nullptr, THREADS_MAX * pitch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (engine == nullptr || stacks == MAP_FAILED) {
        fputs("no memory for the threads of a block\n", stderr);
        abort();
    }
    memset(static_cast<void*>(engine), 0, sizeof(Engine));
    engine->stacks = static_cast<u8*>(stacks);
    engine->stack_pitch = pitch;
    // A stack that overflows must not run into its neighbour.
    for (u32 thread = 0; thread < THREADS_MAX; ++thread) {
        mprotect(engine->stacks + thread * pitch, page, PROT_NONE);
    }
    return engine;
}

void free_engine(Engine* engine) {
    free_memory(*engine);
    munmap(engine->stacks, THREADS_MAX * engine->stack_pitch);
    free(engine);
}

}  // namespace ftcache::emu
