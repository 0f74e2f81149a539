//! Recorded routing of mixture-of-experts models: which experts each token used, layer by layer. Recorded, read,
//! written and made up from a seed.
//!
//! A trace is a [`Header`] and, for each token and layer, one **cell**: the `top_k` expert ids that the router chose.
//! This crate knows files, ids and how many of them a cache of some size would miss; it has never heard of a pool, a
//! plan or a device.
//!
//! # The form `ftr1`
//!
//! One line of JSON, a newline, then little-endian 16-bit ids `[token][layer][k]`, in the router's order. The same
//! bytes lie plain (`.ftr`) or under zstd (`.ftr.zst`); the first bytes tell which, never the name. A cell without
//! data is whole: all its ids are [`ABSENT`]. Everything that can be checked is checked, on the way in and on the way
//! out by the same code, and an error says where and both numbers.
//!
//! - [`TraceReader`] reads token by token in bounded memory, [`TraceWriter`] writes so;
//! - [`Trace`] is a whole one in memory, and [`Events`] are its steps as a cache meets them;
//! - [`ByteReplay`] says how a cache of so many bytes would have done, Belady's among them;
//! - [`MissCurve`] and [`LayerCurves`] count what an LRU cache of every size misses on them, [`Optimum`] what any
//!   cache must;
//! - [`Synthetic`] makes one from a seed, for tests that must not depend on a recording;
//! - [`Recorder`] makes one in a running engine;
//! - [`read_route_csv`] and [`read_jsonl`] make one of the lines of text that engines log;
//! - [`Survey`] says what one is like: how unevenly experts are used, and how soon again.
//!
//! ```
//! use ftcache_trace::{Form, Synthetic, Trace, TraceReader};
//!
//! // Two requests of 32 tokens over 4 layers of 16 experts, top-2.
//! let synthetic = Synthetic { tokens: 64, layers: 4, experts: 16, top_k: 2, requests: 2, ..Synthetic::default() };
//! let trace = synthetic.trace()?;
//! let file = trace.write(Vec::new(), Form::Zstd)?;
//! assert_eq!(Trace::read(file.as_slice())?, trace);
//!
//! // Token by token: `ids` holds 4 layers of 2 ids.
//! let mut reader = TraceReader::new(file.as_slice())?;
//! let mut ids = Vec::new();
//! let mut token = 0;
//! while reader.next_token(&mut ids)? {
//!     let layer_3 = &ids[3 * 2..][..2];
//!     assert_eq!(trace.cell(token, 3), Some(layer_3));
//!     token += 1;
//! }
//! assert_eq!(token, 64);
//! # Ok::<(), ftcache_trace::TraceError>(())
//! ```

#![forbid(unsafe_code)]

mod bytes;
mod cells;
mod curve;
mod error;
mod events;
mod format;
mod frames;
mod import;
mod optimum;
mod random;
mod reader;
mod recency;
mod recorder;
mod survey;
mod synthetic;
mod trace;
mod uses;
mod writer;

pub use bytes::{ByteCounts, ByteHits, BytePolicy, ByteReplay, ByteScope};
pub use curve::{LayerCurves, MissCurve};
pub use error::{Place, TraceError};
pub use events::{Event, Events};
pub use format::{ABSENT, Form, Header, MAX_HEADER_BYTES, MAX_TOKEN_BYTES, OtherShape, Phase, Segment, Shape};
pub use import::{ImportError, JsonlOptions, Wrong, read_jsonl, read_route_csv};
pub use optimum::Optimum;
pub use reader::TraceReader;
pub use recorder::{Keep, Recorder, RecorderOptions};
pub use survey::{LayerSurvey, Reuse, Survey};
pub use synthetic::Synthetic;
pub use trace::Trace;
pub use writer::TraceWriter;
