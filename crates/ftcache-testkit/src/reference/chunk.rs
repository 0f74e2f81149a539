//! A prefill chunk: layers staged in buffers, one after another, and the slots that lie under borrowed buffers.
//!
//! Nothing is filled here, so a staged layer is ready at once.

use std::collections::BTreeSet;

use super::{Cause, Reference, Refusal};

/// Where a chunk stages its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// How many there are: one, or two that take turns.
    pub count: usize,
    /// For each pool the first slot that lies under no buffer; `None` if the buffers have bytes of their own.
    pub stable_from: Option<Vec<u32>>,
}

/// How a layer gets into a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    /// The buffer.
    pub buffer: usize,
    /// `(slot, row)` of each resident expert, ascending by row.
    pub gathers: Vec<(u32, u32)>,
    /// `(first row, rows)` of the others, each run as long as can be.
    pub runs: Vec<(u32, u32)>,
}

/// An open chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) stable_from: Option<Vec<u32>>,
    buffers: Vec<Buffer>,
    staged: BTreeSet<u32>,
    last_taken: Option<usize>,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    Free,
    Ready(u32),
    InUse(u32),
}

impl Buffer {
    fn layer(self) -> Option<u32> {
        match self {
            Self::Free => None,
            Self::Ready(layer) | Self::InUse(layer) => Some(layer),
        }
    }
}

impl Reference {
    /// Opens a chunk. Slots under borrowed buffers are freed, those in flight at once, and no step takes them until the
    /// chunk ends.
    ///
    /// # Errors
    ///
    /// An open chunk.
    pub fn begin_chunk(&mut self, buffers: &Buffers) -> Result<(), Refusal> {
        self.assert_closed();
        if self.chunk.is_some() {
            return Err(Refusal::ChunkOpen);
        }
        self.offered = None;
        if let Some(stable_from) = &buffers.stable_from {
            self.remembered.clear();
            assert_eq!(stable_from.len(), self.pools.len(), "one bound a pool");
            for (pool, &bound) in stable_from.iter().enumerate() {
                assert!(bound as usize <= self.pools[pool].len(), "pool {pool} has no such slot");
                for slot in 0..bound {
                    self.free(pool as u32, slot, Cause::Staging);
                    self.set_down(pool as u32, slot);
                }
            }
        }
        self.chunk = Some(Chunk {
            stable_from: buffers.stable_from.clone(),
            buffers: vec![Buffer::Free; buffers.count],
            staged: BTreeSet::new(),
            last_taken: None,
        });
        Ok(())
    }

    /// Stages a layer in a free buffer, of two the one that was not taken last. No stamp changes.
    ///
    /// # Errors
    ///
    /// In this order: no chunk, one buffer, no such layer, a layer without slots, a layer that was staged before, no
    /// free buffer.
    pub fn prefetch(&mut self, layer: u32) -> Result<StagePlan, Refusal> {
        let Some(chunk) = &self.chunk else { return Err(Refusal::NoChunk) };
        if chunk.buffers.len() == 1 {
            return Err(Refusal::NoOverlap);
        }
        let next = if chunk.last_taken == Some(0) { 1 } else { 0 };
        let is_other = chunk.buffers[next] != Buffer::Free && chunk.buffers[1 - next] == Buffer::Free;
        self.stage(layer, if is_other { 1 - next } else { next })
    }

    /// Stages a layer in the first buffer, and in no other. No stamp changes.
    ///
    /// # Errors
    ///
    /// As [`prefetch`](Self::prefetch), but that one buffer is enough.
    pub fn materialize(&mut self, layer: u32) -> Result<StagePlan, Refusal> {
        self.stage(layer, 0)
    }

    fn stage(&mut self, layer: u32, buffer: usize) -> Result<StagePlan, Refusal> {
        self.assert_closed();
        let Some(chunk) = &self.chunk else { return Err(Refusal::NoChunk) };
        self.pool_of(layer)?;
        if chunk.staged.contains(&layer) {
            return Err(Refusal::StagedBefore(layer));
        }
        if let Some(held) = chunk.buffers[buffer].layer() {
            return Err(Refusal::NotReleased(buffer, held));
        }
        let mut plan = StagePlan { buffer, gathers: Vec::new(), runs: Vec::new() };
        for expert in 0..self.expert_count {
            if let Some(slot) = self.slot_of(layer, expert) {
                plan.gathers.push((slot, expert));
                continue;
            }
            match plan.runs.last_mut() {
                Some((first, count)) if *first + *count == expert => *count += 1,
                _ => plan.runs.push((expert, 1)),
            }
        }
        let chunk = self.chunk.as_mut().expect("it is open");
        chunk.staged.insert(layer);
        chunk.buffers[buffer] = Buffer::Ready(layer);
        chunk.last_taken = Some(buffer);
        Ok(plan)
    }

    /// Starts to use a staged layer, and says in which buffer it is.
    ///
    /// # Errors
    ///
    /// No chunk, a layer that is in no buffer, one that was waited for before.
    pub fn wait(&mut self, layer: u32) -> Result<usize, Refusal> {
        self.turn(layer, Buffer::Ready(layer), Buffer::InUse(layer), Refusal::NotReady(layer))
    }

    /// Ends the use of a staged layer, and says which buffer is free again.
    ///
    /// # Errors
    ///
    /// No chunk, a layer that is in no buffer, one that was not waited for.
    pub fn release(&mut self, layer: u32) -> Result<usize, Refusal> {
        self.turn(layer, Buffer::InUse(layer), Buffer::Free, Refusal::NotInUse(layer))
    }

    /// Closes the chunk and gives back what it withheld, free.
    ///
    /// # Errors
    ///
    /// No chunk, or a buffer that was not released.
    pub fn end_chunk(&mut self) -> Result<(), Refusal> {
        self.assert_closed();
        let Some(chunk) = &self.chunk else { return Err(Refusal::NoChunk) };
        for (index, buffer) in chunk.buffers.iter().enumerate() {
            if let Some(layer) = buffer.layer() {
                return Err(Refusal::NotReleased(index, layer));
            }
        }
        self.abandon_chunk()
    }

    /// Closes the chunk whatever its buffers hold, and gives back what it withheld, free.
    ///
    /// # Errors
    ///
    /// No chunk.
    pub fn abandon_chunk(&mut self) -> Result<(), Refusal> {
        self.assert_closed();
        self.chunk.take().ok_or(Refusal::NoChunk)?;
        self.offered = None;
        Ok(())
    }

    /// Whether a chunk is open.
    pub fn is_chunk_open(&self) -> bool {
        self.chunk.is_some()
    }

    /// Takes the buffer that is in one state into another.
    fn turn(&mut self, layer: u32, from: Buffer, to: Buffer, wrong: Refusal) -> Result<usize, Refusal> {
        self.assert_closed();
        let Some(chunk) = &mut self.chunk else { return Err(Refusal::NoChunk) };
        let held = chunk.buffers.iter().position(|buffer| buffer.layer() == Some(layer));
        let buffer = held.ok_or(Refusal::NotStaged(layer))?;
        if chunk.buffers[buffer] != from {
            return Err(wrong);
        }
        chunk.buffers[buffer] = to;
        Ok(buffer)
    }
}
