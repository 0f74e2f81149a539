//! A CUDA driver in host memory, for tests without a GPU: stricter than a real one, so that what a real one lets pass
//! by luck fails here, for some seed or for all, and is reported.
//!
//! **What it models**, after the driver API manual: contexts and the stack of each thread; device memory with its
//! bounds, between red zones, poisoned when fresh and when freed; registered and allocated host memory; copies of
//! lines, rows and batches, fills; streams, the legacy stream and that of each thread, events, words that streams wait
//! for and write, host functions; capture and graphs; modules and launches of kernels; and faults, at once or late.
//! Nothing runs until something waits. What runs then, in which order and in how many pieces, a seed chooses among all
//! that is legal.
//!
//! **Kernels** are those of `kernels/`, compiled as C++ into this library and run by name: an image is looked at only
//! to tell whether a driver would take it. Each thread of a block is a fiber, in an order of the seed, on the thread
//! that waits. A launch may touch what its arguments mean (`cpp/ranges.h`), and every access is checked.
//!
//! **What it reports.** *Races*: two operations touch the same bytes, one of them writes, and nothing orders them.
//! They are found when work is enqueued, by vector clocks, and so for any seed. *Violations*: a handle that is stale
//! or of another device, a range outside of its allocation, host memory that is partly registered, calls that no
//! capture permits, and whatever else the manual forbids; of kernels, accesses that are not the launch's or not
//! aligned, threads that do not meet, and threads that touch the same place without a barrier. *Damage*: writes beside
//! an allocation or after it was freed.
//!
//! **What it cannot show.** Time and bandwidth: an event's time counts operations. Caches and coherence: a write is
//! seen at once. Order between host threads by means of the host, unless the test says so (`hand_over`); and order
//! that a host raising a word gives to the work behind it, beyond that it has not begun before. What a program does to
//! memory behind the driver's back is seen only if the test declares it (`host_access`). Two devices share no memory
//! and no events, so what goes from one to another is refused. Of a GPU's memory model only this: what one thread
//! writes, others see at once, and whether they may rely on it is checked. Kernels that are not in `kernels/` a test
//! declares (`launch`); its own accesses are not seen. Child graphs, batches and pageable memory in a capture are
//! refused.
//!
//! The library is loaded in the driver's place, as `libcuda.so.1`; tests link this crate for [`client`] only, which
//! steers the loaded copy.
//!
//! - `api`: the exported calls, by subject; `session`: what every call begins with; `control`: the control calls
//! - `worlds`: devices, handles, threads; `settings`: what one is made with; `state`: all of one
//! - `launches`: kernels in streams; `images`: what modules are loaded from; `kernels`: the calls into `cpp/`
//! - `enqueue`: order and conflicts, with `clock`, `rows` and `history`; `drain`: doing work; `operation`: one piece
//! - `capture`: graphs; `memory`, `host_memory`: the two kinds of it

mod api;
mod capture;
pub mod client;
mod clock;
mod codes;
mod control;
mod drain;
mod enqueue;
mod history;
mod host_memory;
mod images;
mod kernels;
mod launches;
mod memory;
mod operation;
mod random;
mod rows;
mod session;
mod settings;
mod state;
mod worlds;
