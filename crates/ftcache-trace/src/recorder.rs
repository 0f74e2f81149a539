//! Records routing in a running engine: bounded memory, no lock, no input that stops it.
//!
//! The engine calls [`record`](Recorder::record) where its router's choices reach the host, once a layer and step. All
//! memory is taken at the start; a call copies ids and no more. What does not fit is counted and left out, what makes
//! no sense is counted and left out: an observer must not end what it observes.
//!
//! Waiting for a writer was ruled out, and so was writing from the call: either can stall a step by a disk.

use std::collections::VecDeque;

use serde_json::json;

use crate::{ABSENT, Header, Phase, Segment, Shape, Trace, TraceError};

/// What a recorder is told of the model, and what it does when it is full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderOptions {
    /// The model, for people.
    pub model: String,
    /// Mixture-of-experts layers, counted from 0.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a token is routed to in a layer.
    pub top_k: u32,
    /// Bytes of one expert, by layer.
    pub expert_bytes: Option<Vec<u64>>,
    /// The model's own number of each layer.
    pub layer_numbers: Option<Vec<u32>>,
    /// Which tokens stay when not all of them fit.
    pub keep: Keep,
}

impl RecorderOptions {
    /// Of a model of which nothing else is known; the first tokens stay.
    pub fn new(model: impl Into<String>, layers: u32, experts: u32, top_k: u32) -> Self {
        let model = model.into();
        Self { model, layers, experts, top_k, expert_bytes: None, layer_numbers: None, keep: Keep::First }
    }
}

/// Which tokens stay in a full recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// Those that came first: a run from its start.
    #[default]
    First,
    /// Those that came last: what led to now. Each new token takes the place of the oldest.
    Last,
}

/// A recorder of routing.
///
/// **Threads.** It may move between threads, and one thread at a time calls it: that is what `&mut` says, and there is
/// no lock in it. Threads that share one put it behind a lock of their own and, where they must not wait, skip what
/// `try_lock` does not give. Threads that serve different requests rather have one each.
///
/// **Order.** The layers of a step come in ascending order, each once. A layer that is not above the one before starts
/// the next step: so does the same layer twice. A layer that is left out, or whose call is refused, leaves absent
/// cells.
///
/// ```
/// use ftcache_trace::{Phase, Recorder, RecorderOptions};
///
/// // Two layers of eight experts, top-2; 1 MiB.
/// let mut recorder = Recorder::new(RecorderOptions::new("toy", 2, 8, 2), 1 << 20)?;
/// recorder.begin(7, Phase::Prefill);
/// // A step of two tokens: the ids of the first, then those of the second.
/// recorder.record(0, &[5, 2, 0, 7]);
/// recorder.record(1, &[3, 1, 4, 6]);
/// recorder.begin(7, Phase::Decode);
/// recorder.record(0, &[5, 1]);
/// recorder.record(1, &[2, 3]);
///
/// let trace = recorder.trace()?;
/// assert_eq!(trace.header().tokens, 3);
/// assert_eq!(trace.cell(1, 1), Some(&[4, 6][..]));
/// # Ok::<(), ftcache_trace::TraceError>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    options: RecorderOptions,
    /// Tokens that fit.
    room: usize,
    /// A token `t` lies at `t % room`; `[token][layer][k]`.
    ids: Vec<u16>,
    /// Where segments start: ascending, and only the first may start before `held()` does.
    starts: VecDeque<Start>,
    /// Tokens that came, whether they stayed or not.
    tokens: u64,
    /// The tokens of the current step are `tokens - width..tokens`.
    width: usize,
    /// The layer of the current step that came last; none before the first.
    layer: Option<u32>,
    refused: u64,
    /// `seen[id] == cell` says that the id was met in the current cell.
    seen: Vec<u64>,
    cell: u64,
}

#[derive(Debug, Clone, Copy)]
struct Start {
    token: u64,
    request: u64,
    phase: Phase,
}

impl Recorder {
    /// A recorder that takes `capacity_bytes` for tokens now, and nothing later.
    ///
    /// A token takes `layers * top_k * 2` bytes and the 24 of a segment's start, should it be one: a million tokens of
    /// 48 layers of top-8 take 792 MB.
    ///
    /// # Errors
    ///
    /// Sizes that no trace can have, a capacity below one token, or memory that there is not.
    pub fn new(options: RecorderOptions, capacity_bytes: usize) -> Result<Self, TraceError> {
        let shape = Shape { tokens: 1, layers: options.layers, top_k: options.top_k, experts: options.experts };
        header(&options, shape, vec![Segment::new("", Phase::Decode, 0, 1)]).check()?;
        let token_bytes = shape.token_ids() * size_of::<u16>() + size_of::<Start>();
        let room = capacity_bytes / token_bytes;
        if room == 0 {
            return Err(TraceError::NoRoom { capacity_bytes, token_bytes });
        }
        let no_memory = |_| TraceError::NoMemory { bytes: capacity_bytes };
        let mut ids = Vec::new();
        ids.try_reserve_exact(room * shape.token_ids()).map_err(no_memory)?;
        // Written now, so that no step pays for the first touch of a page.
        ids.resize(room * shape.token_ids(), ABSENT);
        let mut starts = VecDeque::new();
        starts.try_reserve_exact(room + 1).map_err(no_memory)?;
        starts.push_back(Start { token: 0, request: 0, phase: Phase::Decode });
        let seen = vec![0; options.experts as usize];
        Ok(Self { options, room, ids, starts, tokens: 0, width: 0, layer: None, refused: 0, seen, cell: 0 })
    }

    /// Says that the next step starts a segment: another request, or another phase of one. Without it all is one
    /// segment, decode of request 0.
    ///
    /// Whatever layers follow are those of a new step.
    pub fn begin(&mut self, request: u64, phase: Phase) {
        self.layer = None;
        // A start behind a full recorder would name a segment without tokens.
        if self.options.keep == Keep::First && self.tokens >= self.room as u64 {
            return;
        }
        let start = Start { token: self.tokens, request, phase };
        match self.starts.back_mut() {
            Some(last) if last.token == self.tokens => *last = start,
            _ => self.starts.push_back(start),
        }
    }

    /// Notes one layer's routes of one step: `top_k` ids for each of its tokens, the router's first choice first.
    ///
    /// A step has as many tokens as its first layer brought. A call is refused whole whose layer is not one of the
    /// model's, whose ids are none or no multiple of `top_k`, or whose tokens are more or fewer than the step's. A
    /// cell with an id twice, or with one past the experts (a padded row), is refused alone and absent. Nothing is
    /// answered: see [`refused`](Self::refused) and [`dropped`](Self::dropped).
    pub fn record(&mut self, layer: u32, ids: &[u32]) {
        let top_k = self.options.top_k as usize;
        if layer >= self.options.layers || ids.is_empty() || !ids.len().is_multiple_of(top_k) {
            self.refused += 1;
            return;
        }
        let width = ids.len() / top_k;
        if self.layer.is_none_or(|last| layer <= last) {
            self.start_step(width);
        } else if width != self.width {
            self.refused += 1;
            return;
        }
        self.layer = Some(layer);

        let first = self.tokens - self.width as u64;
        let held = self.held();
        for (token, cell) in (first..).zip(ids.chunks_exact(top_k)) {
            self.cell += 1;
            if !self.is_cell(cell) {
                self.refused += 1;
            } else if held.contains(&token) {
                let start = self.place(token) + layer as usize * top_k;
                for (target, &id) in self.ids[start..start + top_k].iter_mut().zip(cell) {
                    *target = id as u16;
                }
            }
        }
    }

    /// Makes room for the tokens of a step, absent until their layers come.
    fn start_step(&mut self, width: usize) {
        self.tokens += width as u64;
        self.width = width;
        let held = self.held();
        let fresh = (self.tokens - width as u64).max(held.start)..held.end;
        let token_ids = self.options.layers as usize * self.options.top_k as usize;
        for token in fresh {
            let place = self.place(token);
            self.ids[place..place + token_ids].fill(ABSENT);
        }
        // A segment ends where the next starts; one that ends before what is held is gone.
        while self.starts.get(1).is_some_and(|next| next.token <= held.start) {
            self.starts.pop_front();
        }
    }

    fn is_cell(&mut self, cell: &[u32]) -> bool {
        cell.iter().all(|&id| match self.seen.get_mut(id as usize) {
            Some(seen) => std::mem::replace(seen, self.cell) != self.cell,
            None => false,
        })
    }

    /// The tokens that are there.
    fn held(&self) -> std::ops::Range<u64> {
        let room = self.room as u64;
        match self.options.keep {
            Keep::First => 0..self.tokens.min(room),
            Keep::Last => self.tokens.saturating_sub(room)..self.tokens,
        }
    }

    /// Where a held token's ids start.
    fn place(&self, token: u64) -> usize {
        (token % self.room as u64) as usize * self.options.layers as usize * self.options.top_k as usize
    }

    /// Tokens that are held.
    pub fn tokens(&self) -> u64 {
        let held = self.held();
        held.end - held.start
    }

    /// Tokens that fit.
    pub fn room(&self) -> u64 {
        self.room as u64
    }

    /// Tokens that came and are not held.
    pub fn dropped(&self) -> u64 {
        self.tokens - self.tokens()
    }

    /// Calls and cells that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What is held, as a trace; recording may go on. Segments are named `request-7-decode`; under `"recorder"` the
    /// header says what was dropped and refused.
    ///
    /// # Errors
    ///
    /// No token came, or memory that there is not: a trace has its own copy.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        let held = self.held();
        let (dropped, tokens) = (self.dropped(), self.tokens());
        let RecorderOptions { layers, top_k, experts, .. } = self.options;
        let shape = Shape { tokens, layers, top_k, experts };
        let ends = self.starts.iter().skip(1).map(|start| start.token).chain([u64::MAX]);
        let segments = self.starts.iter().zip(ends).filter_map(|(start, end)| {
            let (first, end) = (start.token.max(held.start), end.min(held.end));
            let name = format!("request-{}-{}", start.request, start.phase.name());
            (first < end).then(|| Segment::new(name, start.phase, first - held.start, end - first))
        });
        let mut header = header(&self.options, shape, segments.collect());
        header.check()?;
        let mut ids = Vec::new();
        let count = tokens as usize * shape.token_ids();
        ids.try_reserve_exact(count).map_err(|_| TraceError::NoMemory { bytes: count * size_of::<u16>() })?;
        // The oldest token first.
        let oldest = (held.start % self.room as u64) as usize * shape.token_ids();
        ids.extend(self.ids[oldest..].iter().chain(&self.ids[..oldest]).take(count));
        header.absent_cells = ids.chunks_exact(top_k as usize).filter(|cell| cell[0] == ABSENT).count() as u64;
        header.extra.insert("recorder".to_owned(), json!({ "dropped_tokens": dropped, "refused": self.refused }));
        Trace::new(header, ids)
    }
}

fn header(options: &RecorderOptions, shape: Shape, segments: Vec<Segment>) -> Header {
    let mut header = Header::new(options.model.clone(), shape, segments);
    header.expert_bytes.clone_from(&options.expert_bytes);
    header.layer_numbers.clone_from(&options.layer_numbers);
    header
}
