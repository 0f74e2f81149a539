// Kernels that test what runs kernels: each does one thing right, or wrong in the way its arguments say.
#include "ranges.h"
#include "self_test.h"

using namespace ftcache;
using namespace ftcache::emu_test;

using Shared = Array<u32, 1024>;

// Sums of the input, one a block, by halving.
FTC_KERNEL(emu_test_sum, Numbers) {
    FTC_SHARED(Shared, sums);
    const u32 thread = thread_index(), threads = thread_count();
    u32 sum = 0;
    for (u64 at = u64(block_index()) * threads + thread; at < args.count; at += u64(threads) * block_count()) {
        sum += args.input[at];
    }
    sums[thread] = sum;
    barrier<0>();
    for (u32 half = threads / 2; half > 0; half /= 2) {
        if (thread < half) {
            sums[thread] += u32(sums[thread + half]);
        }
        barrier<1>();
    }
    if (thread == 0) {
        args.output[block_index()] = u32(sums[0]);
    }
}

FTC_KERNEL(emu_test_touch, OneTouch) {
    if (thread_index() != args.thread) {
        return;
    }
    u64 value = 0;
    if (args.is_write != 0) {
        switch (args.bytes) {
            case 1:
                cast<u8>(args.memory, args.offset)[0] = u8(7);
                break;
            case 4:
                cast<u32>(args.memory, args.offset)[0] = 7;
                break;
            default:
                cast<u64>(args.memory, args.offset)[0] = u64(7);
        }
    } else {
        switch (args.bytes) {
            case 1:
                value = cast<u8>(args.memory, args.offset)[0];
                break;
            case 4:
                value = cast<u32>(args.memory, args.offset)[0];
                break;
            default:
                value = load_fresh(Pointer<const Quad>(cast<Quad>(args.memory, args.offset))).words[0];
        }
    }
    args.output[0] = static_cast<u32>(value);
}

// Threads that do not meet where they should: by `choice`.
FTC_KERNEL(emu_test_meet, Meeting) {
    const u32 thread = thread_index();
    switch (args.choice) {
        case 0:
            if (thread == args.thread) {
                barrier<5>();
            } else {
                barrier<6>();
            }
            break;
        case 1:
            if (thread != args.thread) {
                barrier<5>();
            }
            break;
        case 2:
            if (thread != args.thread) {
                warp_sync();
            }
            break;
        case 3:
            if (thread == args.thread) {
                warp_ballot(true);
            } else {
                warp_sync();
            }
            break;
        case 4:
            if (thread == args.thread) {
                barrier<5>();
            } else {
                warp_sync();
                barrier<5>();
            }
            break;
        default:
            barrier<5>();
            warp_sync();
            barrier<200>();
    }
}

FTC_KERNEL(emu_test_warp, Numbers) {
    const u32 thread = thread_index(), lane = thread % WARP;
    const u32 value = args.input[thread];
    const u32 odd = warp_ballot(value % 2 == 1);
    const u32 other = warp_from(value, (lane + 1) % WARP);
    const u32 up = warp_up(value, 3);
    const u32 sum = warp_sum(value);
    const Pointer<u32> mine = args.output + thread * 7;
    mine[0] = odd;
    mine[1] = other;
    mine[2] = up;
    mine[3] = sum;
    mine[4] = count_ones(value);
    mine[5] = leading_zeros(value);
    mine[6] = lowest_one(value);
}

// Threads that touch the same place, by `choice`, with or without what orders them.
FTC_KERNEL(emu_test_race, Meeting) {
    FTC_SHARED(Shared, shared);
    FTC_SHARED(Cell<u32>, cell);
    const u32 thread = thread_index(), threads = thread_count();
    const u32 next = (thread + 1) % threads;
    const Pointer<u8> bytes = cast<u8>(Pointer<u8>::at(args.memory.raw()), 0);
    switch (args.choice) {
        case 0:
            // In shared memory, a barrier between.
            shared[thread] = thread;
            barrier<0>();
            args.memory[thread] = u32(shared[next]);
            break;
        case 1:
            // In the launch's memory.
            args.memory[thread] = thread;
            barrier<0>();
            shared[thread] = u32(args.memory[next]);
            break;
        case 2:
            // Read by all, written by one.
            shared[thread] = u32(args.memory[0]);
            barrier<0>();
            if (thread == args.thread) {
                args.memory[0] = 1;
            }
            break;
        case 3:
            // Within a warp: its neighbours' words.
            shared[thread] = thread;
            warp_sync();
            args.memory[thread] = u32(shared[thread ^ 1]);
            break;
        case 4:
            // A vote orders no memory.
            shared[thread] = thread;
            warp_ballot(true);
            args.memory[thread] = u32(shared[thread ^ 1]);
            break;
        case 5:
            // Atomics among themselves, and read behind a barrier.
            atomic_add(&args.memory[0], 1);
            if (thread == 0) {
                cell = 0;
            }
            barrier<0>();
            atomic_add(&cell, 2);
            barrier<1>();
            args.memory[1 + thread] = cell + u32(args.memory[0]);
            break;
        case 6:
            // Bytes of one word, by a thread each.
            bytes[thread] = u8(thread);
            barrier<0>();
            shared[thread] = u32(args.memory[thread / 4]);
            break;
        case 7:
            // The same word, from every block.
            if (thread == 0) {
                args.memory[0] = block_index();
            }
            break;
        case 8:
            // A quad by one thread, one of its words by another.
            if (thread == 0) {
                cast<Quad>(bytes, 0)[0] = Quad{{1, 2, 3, 4}};
            }
            barrier<0>();
            if (thread == 1) {
                args.memory[args.thread] = 9;
            }
            break;
        case 9:
            // Read by a warp, and then written by whoever of it came last.
            if (thread < WARP) {
                const u32 value = args.memory[0];
                atomic_add(&args.memory[1], 1);
                if (emu::load<u32>((args.memory + 1).raw(), emu::ATOMIC) == WARP) {
                    args.memory[0] = value;
                }
            }
            break;
        case 10:
        case 11:
        case 12:
            // Later is no order: a write and then an atomic, an atomic and then a read, a read and then an atomic.
            if (thread == 0 && args.choice == 10) {
                args.memory[0] = 1;
            } else if (thread == 0 && args.choice == 11) {
                atomic_add(&args.memory[0], 1);
            } else if (thread == 0) {
                shared[0] = u32(args.memory[0]);
            }
            warp_ballot(true);
            if (thread == 1 && args.choice == 11) {
                shared[1] = u32(args.memory[0]);
            } else if (thread == 1) {
                atomic_add(&args.memory[0], 1);
            }
            break;
        default:
            // Behind the end of an array.
            shared[1023 + thread / (threads - 1)] = 1;
    }
}

// What lies in shared memory at first.
FTC_KERNEL(emu_test_poison, Numbers) {
    FTC_SHARED(Shared, shared);
    FTC_DYNAMIC_SHARED(dynamic);
    const u32 thread = thread_index();
    args.output[2 * thread] = u32(shared[thread]);
    args.output[2 * thread + 1] = u32(cast<u32>(dynamic, 4 * thread)[0]);
    shared[thread] = 0;
    cast<u32>(dynamic, 4 * thread)[0] = 0;
}

// The order in which threads and blocks came: tickets are drawn from the input's first word.
FTC_KERNEL(emu_test_order, Numbers) {
    const u32 at = block_index() * thread_count() + thread_index();
    atomic_add(&args.output[0], 1);
    // Only here: a kernel could not rely on this.
    args.output[1 + at] = emu::load<u32>(args.output.raw(), emu::ATOMIC);
}

// Waits for the input's first word to reach `choice`.
FTC_KERNEL(emu_test_wait, Numbers) {
    if (thread_index() == 0) {
        while (load_fresh(Pointer<const u32>(args.input)) < args.choice) {
            pause();
        }
    }
    barrier<0>();
    args.output[thread_index()] = u32(args.input[1]);
}

// As much meeting as an admission has.
FTC_KERNEL(emu_test_speed, Numbers) {
    FTC_SHARED(Shared, shared);
    const u32 thread = thread_index(), threads = thread_count();
    u32 sum = args.input[thread];
    for (u32 round = 0; round < args.choice; ++round) {
        shared[thread] = sum;
        barrier<0>();
        sum += u32(shared[(thread + 17) % threads]);
        sum += warp_sum(sum % 8);
        sum += warp_up(sum, 1) % 4;
        if (round % 2 == 0) {
            sum += warp_ballot(sum % 2 == 0) % 16;
        }
        barrier<1>();
    }
    args.output[thread] = sum;
}
