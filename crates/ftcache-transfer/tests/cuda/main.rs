//! The CUDA device on the emulated driver; and on a GPU, where only right behaviour is needed and `FTCACHE_TEST_GPU` is
//! set.

#![cfg(feature = "cuda")]

#[path = "../../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;

mod batches;
mod blocking;
mod boundaries;
mod context;
mod copies;
mod driver;
mod kernels;
mod late;
mod memory;
mod order;
mod probe;
mod raw;
mod register;
mod streams;
mod support;
mod words;
