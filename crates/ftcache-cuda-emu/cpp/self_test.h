// Arguments of the kernels that test what runs kernels.
#pragma once

#include "engine.h"

namespace ftcache::emu_test {

struct Numbers {
    Pointer<u32> input;
    Pointer<u32> output;
    u64 count;
    // What it means is the kernel's.
    u64 choice;
};

// One access by one thread: of `bytes`, `offset` bytes into `memory`, of which `count` words are declared.
struct OneTouch {
    Pointer<u8> memory;
    Pointer<u32> output;
    u64 count;
    u64 offset;
    u32 bytes;
    u32 is_write;
    u32 thread;
    u32 may_write;
};

struct Meeting {
    Pointer<u32> memory;
    u64 count;
    u32 choice;
    u32 thread;
};

inline void describe(const Numbers& args, emu::Sink& sink) {
    sink.items("input", args.input, args.count, emu::READ);
    sink.items("output", args.output, args.count, emu::READ | emu::WRITE);
}

inline void describe(const OneTouch& args, emu::Sink& sink) {
    sink.items("memory", args.memory, 4 * args.count, args.may_write != 0 ? emu::READ | emu::WRITE : emu::READ);
    sink.items("output", args.output, 1, emu::WRITE);
}

inline void describe(const Meeting& args, emu::Sink& sink) {
    sink.items("memory", args.memory, args.count, emu::READ | emu::WRITE);
}

}  // namespace ftcache::emu_test
