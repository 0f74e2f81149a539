//! What the tests of ftcache share: the slow and obvious model that decides what is right, the golden vectors, and
//! seeded inputs. Sees policy only, so that it cannot agree with the code by being the code.

#![forbid(unsafe_code)]

pub mod generators;
pub mod golden;
pub mod reference;

pub use generators::Rng;
