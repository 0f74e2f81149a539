//! Ways in for routing that others recorded: lines of text, plain or under zstd, become a [`Trace`](crate::Trace).
//!
//! Both forms are read line by line; what is held is the ids, two bytes each, since a prompt's lines may come layer by
//! layer while a trace lies token by token. Every error names the line, and the token and layer as the file has them.

mod error;
mod grid;
mod jsonl;
mod lines;
mod route_csv;

pub use error::{ImportError, Wrong};
pub use jsonl::{JsonlOptions, read_jsonl};
pub use route_csv::read_route_csv;
