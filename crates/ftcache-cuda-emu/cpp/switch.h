// Going from one stack to another: saves what a function call must keep on the stack that is left, stores that stack's
// pointer, and takes up another.
#pragma once

#include "engine.h"

#if defined(__x86_64__) && !defined(FTC_PORTABLE_SWITCH)

extern "C" void ftcache_emu_switch(void** from, void* to) __asm__("ftcache_emu_switch");

// A jump in place of a return: the processor expects returns where calls were, and would be wrong each time.
__asm__(
    ".text\n"
    "ftcache_emu_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    popq %rcx\n"
    "    jmpq *%rcx\n");

namespace ftcache::emu {

// A stack on which a switch begins `entry`. `top` is aligned to 16.
inline void* new_stack(u8* top, void (*entry)()) {
    // Six registers and the entry: behind them the stack is as after a call.
    u64* words = reinterpret_cast<u64*>(top) - 8;
    memset(words, 0, 64);
    words[6] = reinterpret_cast<u64>(entry);
    return words;
}

}  // namespace ftcache::emu

#elif defined(__aarch64__) && !defined(FTC_PORTABLE_SWITCH)

extern "C" void ftcache_emu_switch(void** from, void* to) __asm__("ftcache_emu_switch");

__asm__(
    ".text\n"
    ".p2align 2\n"
    "ftcache_emu_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp]\n"
    "    stp x21, x22, [sp, #16]\n"
    "    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n"
    "    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n"
    "    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x19, x20, [sp]\n"
    "    ldp x21, x22, [sp, #16]\n"
    "    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n"
    "    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n"
    "    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n");

namespace ftcache::emu {

inline void* new_stack(u8* top, void (*entry)()) {
    u64* words = reinterpret_cast<u64*>(top) - 20;
    memset(words, 0, 160);
    // x30, where the switch returns to.
    words[11] = reinterpret_cast<u64>(entry);
    return words;
}

}  // namespace ftcache::emu

#else

#include <ucontext.h>

// Slower by a call of the system each time.
inline void ftcache_emu_switch(void** from, void* to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

namespace ftcache::emu {

inline void* new_stack(u8* top, void (*entry)()) {
    const u64 room = (sizeof(ucontext_t) + 63) / 64 * 64;
    ucontext_t* context = reinterpret_cast<ucontext_t*>(top - room);
    getcontext(context);
    // All of a fiber's stack but its lowest part, which is more than a kernel needs.
    context->uc_stack.ss_sp = top - room - 48 * 1024;
    context->uc_stack.ss_size = 48 * 1024;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

}  // namespace ftcache::emu

#endif
