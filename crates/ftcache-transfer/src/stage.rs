//! Prefill: whole layers staged in two buffers, while the layer before them computes.
//!
//! Residency says what goes where and holds the calls to their order; here it becomes copies and events.
//!
//! ```text
//! compute  begun |          wait ready 0 | layer 0 | released 0 |  wait ready 1 | layer 1 | ... | wait copies | zeros
//! copy     wait begun | fill 0 | ready 0 | fill 1 | ready 1 | wait released 0 | fill 0 | ready 0 | ...
//! ```
//!
//! A chunk's copies wait for everything that the compute stream was given before it, since borrowed buffers lie on
//! slots; a fill waits until its buffer was released; compute waits for the fill. Steps may be admitted meanwhile,
//! over any streams: a fill may gather a row whose slot such a step overwrites, or has just filled, so each waits for
//! the other.
//!
//! Bytes of another layout are never left where a kernel may look: gaps and pads of a buffer are zeroed when it is
//! filled, and what a chunk leaves on slots when it ends.

use ftcache_policy::{BankId, Geometry, PoolId, SlotRange, Staging};
use ftcache_residency::StagePlan;

use crate::apply::{Copies, create_events};
use crate::loader::Places;
use crate::{Device, DeviceError, DeviceSpan, Event, Loader, Memory, RowCopy, StageFailure, Stream, Streams};

/// The buffers of a cache, and the chunk that is open.
#[derive(Debug)]
pub(crate) struct Stage {
    staging: Staging,
    /// Each bank's buffers where they are not borrowed; `None` for a bank that no layer reads.
    dedicated: Vec<Option<Memory>>,
    events: StageEvents,
    /// `holds[buffer]`.
    holds: [Holds; 2],
    /// `layouts[buffer][pool]`: whose layouts the buffer was filled with in this chunk.
    layouts: [Vec<bool>; 2],
    chunk: Option<OpenChunk>,
}

/// What lies in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// What was there before any fill: zeros, or the slots under it.
    Nothing,
    /// Rows of a pool's layout.
    Layer(PoolId),
    /// A fill that failed may have left anything.
    Anything,
}

#[derive(Debug)]
struct StageEvents {
    /// What the compute stream was given before the chunk, and at its end what the copy stream was.
    begun: Event,
    ready: [Event; 2],
    released: [Event; 2],
    /// The copies of the last step that was admitted in the chunk over another stream.
    loaded: Event,
}

#[derive(Debug)]
struct OpenChunk {
    streams: Streams,
    /// Buffers with a fill that the compute stream has not been told to wait for.
    unawaited: [bool; 2],
    /// Buffers that were released, so that `released` was recorded.
    released: [bool; 2],
    /// Buffers with a fill at all, so that `ready` was recorded.
    filled: [bool; 2],
    /// Whether a step has copied over another stream since the last fill.
    loaded: bool,
}

impl Stage {
    fn new(device: &mut impl Device, staging: Staging, alignment: u64, pool_count: usize) -> Result<Self, DeviceError> {
        let [begun, ready0, ready1, released0, released1, loaded] = create_events(device)?;
        let events = StageEvents { begun, ready: [ready0, ready1], released: [released0, released1], loaded };
        let mut stage = Self {
            staging,
            dedicated: Vec::new(),
            events,
            holds: [Holds::Nothing; 2],
            layouts: std::array::from_fn(|_| Vec::with_capacity(pool_count)),
            chunk: None,
        };
        for bytes in stage.staging.added_bytes() {
            match (bytes > 0).then(|| device.allocate(bytes, alignment)).transpose() {
                Ok(memory) => stage.dedicated.push(memory),
                Err(error) => {
                    stage.free(device);
                    return Err(error);
                }
            }
        }
        Ok(stage)
    }

    pub(crate) fn free(&mut self, device: &mut impl Device) {
        self.dedicated.drain(..).flatten().for_each(|memory| device.free(memory));
        let StageEvents { begun, ready, released, loaded } = self.events;
        let events = [begun, loaded].into_iter().chain(ready).chain(released);
        events.for_each(|event| device.destroy_event(event));
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(crate) fn has_open_chunk(&self) -> bool {
        self.chunk.is_some()
    }
}

impl Places {
    /// The first row of a buffer in a bank, for layers of a pool, or `None` if they do not read the bank.
    fn staged(&self, range: &SlotRange, bank: BankId, buffer: usize) -> Option<DeviceSpan> {
        let stage = self.stage.as_ref()?;
        let memory = match stage.dedicated[bank.index()] {
            Some(memory) => memory,
            None => self.arenas.memory(bank)?,
        };
        let offset = stage.staging.ranges()[bank.index()].buffer_stride * buffer as u64;
        (range.row_bytes > 0).then_some(DeviceSpan { memory, offset, stride: range.stride })
    }
}

/// Rows of one bank to be zeroed: gaps, pads, what a chunk leaves on slots.
pub(crate) struct ClearSpan {
    pub(crate) bank: BankId,
    pub(crate) span: DeviceSpan,
    pub(crate) row_bytes: u64,
    pub(crate) row_count: u64,
}

impl Places {
    /// The gaps between the rows of a buffer that is filled with a layer of a pool, and the pad after them.
    pub(crate) fn around<'a>(
        &'a self,
        geometry: &'a Geometry,
        pool: PoolId,
        buffer: usize,
    ) -> impl Iterator<Item = ClearSpan> + 'a {
        let staging = self.stage.as_ref().map(|stage| &stage.staging);
        let expert_count = u64::from(geometry.model().expert_count());
        let banks = geometry.model().bank_ids().zip(geometry.pool(pool).ranges());
        let spans = banks.filter_map(move |(bank, range)| {
            let rows = self.staged(range, bank, buffer)?;
            let gap = range.stride - range.row_bytes;
            let end = expert_count * range.stride;
            // Where no pad lies between the buffers, a row like the last one follows it.
            let pad = range.tail_pad_bytes.min(staging?.ranges()[bank.index()].buffer_stride - end);
            let gaps = DeviceSpan { offset: rows.offset + range.row_bytes, ..rows };
            let after = DeviceSpan { offset: rows.offset + end, stride: pad, ..rows };
            Some([
                ClearSpan { bank, span: gaps, row_bytes: gap, row_count: expert_count },
                ClearSpan { bank, span: after, row_bytes: pad, row_count: 1 },
            ])
        });
        spans.flatten().filter(|span| span.row_bytes > 0)
    }

    /// Borrowed buffers with layers of these pools, where the slots under them could not hold such rows.
    pub(crate) fn under_buffers<'a>(
        &'a self,
        geometry: &'a Geometry,
        staged: impl Fn(usize, usize) -> bool + 'a,
    ) -> impl Iterator<Item = ClearSpan> + 'a {
        let stage = self.stage.as_ref().filter(|stage| stage.staging.is_borrowed());
        // Where there is one buffer, the slots under a second are in use.
        let buffer_count = stage.map_or(0, |stage| stage.staging.buffer_count() as usize);
        let buffers = (0..buffer_count).flat_map(move |buffer| {
            let ranges = stage.map_or(&[][..], |stage| stage.staging.ranges());
            geometry.model().bank_ids().zip(ranges).map(move |(bank, range)| (buffer, bank, range))
        });
        buffers.filter_map(move |(buffer, bank, range)| {
            let memory = self.arenas.memory(bank)?;
            let begin = range.buffer_stride * buffer as u64;
            let end = (begin + range.buffer_stride).min(geometry.arena_bytes()[bank.index()]);
            let is_left = begin < end && !fits_slots(geometry, bank, (begin, end), |pool| staged(buffer, pool));
            let span = DeviceSpan { memory, offset: begin, stride: end.saturating_sub(begin) };
            is_left.then_some(ClearSpan { bank, span, row_bytes: end.saturating_sub(begin), row_count: 1 })
        })
    }

    /// Whether bytes of another layout may lie in a buffer, whatever it was filled with before.
    pub(crate) fn may_ever_hold_another(&self, geometry: &Geometry, pool: PoolId, buffer: usize) -> bool {
        let Some(Stage { staging, .. }) = &self.stage else { return false };
        let mut pools = (0..geometry.pools().len()).map(PoolId::from_index);
        !pools.all(|other| is_alike(geometry, other, pool))
            || staging.is_borrowed() && !fits_buffer(geometry, staging, pool, buffer)
    }
}

/// Whether a layer of a pool in a borrowed buffer lies just as the rows of the slots under it would.
fn fits_buffer(geometry: &Geometry, staging: &Staging, pool: PoolId, buffer: usize) -> bool {
    geometry.model().bank_ids().zip(staging.ranges()).all(|(bank, range)| {
        let begin = range.buffer_stride * buffer as u64;
        fits_slots(geometry, bank, (begin, begin + range.buffer_stride), |staged| staged == pool.index())
    })
}

/// Whether rows of two pools look alike: of one layout, at one stride.
fn is_alike(geometry: &Geometry, one: PoolId, other: PoolId) -> bool {
    let strides = |pool: PoolId| geometry.pool(pool).ranges().iter().map(|range| range.stride);
    let key = |pool: PoolId| geometry.model().layer(geometry.pool(pool).layers()[0]);
    key(one) == key(other) && strides(one).eq(strides(other))
}

/// Whether rows of these pools' layouts, from `begin` on, lie just as the rows of the slots there would.
fn fits_slots(geometry: &Geometry, bank: BankId, (begin, end): (u64, u64), staged: impl Fn(usize) -> bool) -> bool {
    let pools = geometry.pools();
    let range = |pool: usize| pools[pool].ranges()[bank.index()];
    let layers = || (0..pools.len()).filter(|&pool| staged(pool) && range(pool).row_bytes > 0);
    (0..pools.len()).all(|under| {
        let slots = range(under);
        let past = slots.offset + slots.stride * u64::from(pools[under].slot_count());
        let outside = slots.row_bytes == 0 || past + slots.tail_pad_bytes <= begin || end <= slots.offset;
        // A pool that ends under the buffer has rows on its pad.
        let like = |pool: usize| {
            let alike = is_alike(geometry, PoolId::from_index(pool), PoolId::from_index(under));
            alike && begin >= slots.offset && (begin - slots.offset) % slots.stride == 0 && past >= end
        };
        outside || layers().all(like)
    })
}

impl<D: Device> Loader<D> {
    /// Gives the loader staging buffers; those that are not borrowed are allocated.
    ///
    /// # Errors
    ///
    /// The device's, what it lacks if it holds no slots, a chunk that is open, or a residency that is on the device.
    /// The buffers that were there stay.
    pub fn set_staging(&mut self, staging: Staging) -> Result<(), DeviceError> {
        self.check_with_host("staging buffers")?;
        let alignment = self.geometry.constraints().alignment.max(64);
        let places = self.places.as_mut().map_err(|lack| lack.clone())?;
        if places.stage.as_ref().is_some_and(|stage| stage.chunk.is_some()) {
            return Err(misuse("a chunk is open"));
        }
        let stage = Stage::new(&mut self.device, staging, alignment, self.geometry.pools().len())?;
        if let Some(mut before) = places.stage.replace(stage) {
            before.free(&mut self.device);
        }
        if let Some(mode) = &mut self.mode {
            mode.set_stale();
        }
        Ok(())
    }

    /// The staging buffers.
    pub fn staging(&self) -> Option<&Staging> {
        Some(&self.places.as_ref().ok()?.stage.as_ref()?.staging)
    }

    /// Where a layer of a pool lies in a bank when it is staged in a buffer, as many rows as it has experts; `None`
    /// if the pool's layers do not read the bank, or there are no buffers.
    ///
    /// # Panics
    ///
    /// If there is no such pool, bank or buffer.
    pub fn staged(&self, pool: PoolId, bank: BankId, buffer: usize) -> Option<DeviceSpan> {
        let places = self.places.as_ref().ok()?;
        assert!(buffer < places.stage.as_ref()?.staging.buffer_count() as usize, "no buffer {buffer}");
        places.staged(&self.geometry.pool(pool).ranges()[bank.index()], bank, buffer)
    }

    fn open_chunk(&mut self) -> Result<(&mut D, &mut Stage), DeviceError> {
        let places = self.places.as_mut().map_err(|lack| lack.clone())?;
        let open = places.stage.as_mut().filter(|stage| stage.chunk.is_some());
        Ok((&mut self.device, open.ok_or_else(|| misuse("no chunk is open"))?))
    }

    /// Opens a chunk: its copies come behind everything that the compute stream was given before.
    ///
    /// # Errors
    ///
    /// No buffers, a chunk that is open, or the device's own.
    pub fn begin_chunk(&mut self, streams: Streams) -> Result<(), DeviceError> {
        self.take_over(streams.compute)?;
        // Without this a row could land in a buffer that lies on the slot it was for.
        self.after_late_copies(streams.copy)?;
        let pool_count = self.geometry.pools().len();
        let places = self.places.as_mut().map_err(|lack| lack.clone())?;
        let stage = places.stage.as_mut().ok_or_else(|| misuse("there are no staging buffers"))?;
        if stage.chunk.is_some() {
            return Err(misuse("a chunk is open"));
        }
        if streams.are_two() {
            // Without this a fill would land on slots that kernels still read.
            self.device.record(stage.events.begun, streams.compute)?;
            self.device.wait(streams.copy, stage.events.begun)?;
        }
        for layouts in &mut stage.layouts {
            layouts.clear();
            layouts.resize(pool_count, false);
        }
        let (unawaited, released, filled) = ([false; 2], [false; 2], [false; 2]);
        stage.chunk = Some(OpenChunk { streams, unawaited, released, filled, loaded: false });
        Ok(())
    }

    /// Whether the streams of the open chunk can be given work: no graph is being captured on them.
    ///
    /// # Errors
    ///
    /// No chunk is open, a stream that is being captured, or the device's own.
    pub fn check_chunk(&self) -> Result<(), DeviceError> {
        let places = self.places.as_ref().map_err(Clone::clone)?;
        let chunk = places.stage.as_ref().and_then(|stage| stage.chunk.as_ref());
        let streams = chunk.ok_or_else(|| misuse("no chunk is open"))?.streams;
        self.device.check_stream(streams.compute)?;
        if streams.are_two() { self.device.check_stream(streams.copy) } else { Ok(()) }
    }

    /// Enqueues the copies that stage a layer. Returns the bytes from the host and those from slots.
    ///
    /// # Errors
    ///
    /// No chunk is open, or the first copy that the device refuses: the plan is to be aborted, and may be made again.
    ///
    /// # Panics
    ///
    /// If a bank of the plan's layer is not attached; see [`check_layer`](Self::check_layer).
    pub fn stage(&mut self, plan: &StagePlan) -> Result<(u64, u64), StageFailure> {
        let (layer, buffer, pool) = (plan.layer(), plan.buffer(), plan.pool());
        let failed = |bank, source| StageFailure { layer, bank, buffer, source };
        let at_fence = |source| failed(None, source);
        let (device, stage) = self.open_chunk().map_err(at_fence)?;
        let events = &stage.events;
        let chunk = stage.chunk.as_mut().expect("it is open");
        let copy = chunk.streams.copy;
        if chunk.streams.are_two() && chunk.released[buffer] {
            // Without this the rows would land under kernels that still read the buffer's last layer.
            device.wait(copy, events.released[buffer]).map_err(at_fence)?;
        }
        if chunk.loaded {
            // Without this a row could be gathered from a slot before it has arrived there.
            device.wait(copy, events.loaded).map_err(at_fence)?;
            chunk.loaded = false;
        }
        // From here on something may be on its way, whatever fails below.
        (chunk.filled[buffer], chunk.unawaited[buffer]) = (true, true);
        stage.layouts[buffer][pool.index()] = true;
        let holds = std::mem::replace(&mut stage.holds[buffer], Holds::Layer(pool));
        let ready = events.ready[buffer];

        let mut copies = std::mem::take(&mut self.copies);
        copies.clear();
        let bytes = self.push_stage(&mut copies, plan);
        let mut outcome = Ok(());
        if self.may_hold_another(holds, pool, buffer) {
            outcome = self.clear_around(copy, pool, buffer).map_err(|(bank, error)| failed(Some(bank), error));
        }
        if outcome.is_ok() {
            outcome = self.enqueue(copy, &copies).map_err(|(bank, error)| failed(Some(bank), error));
        }
        self.copies = copies;
        if outcome.is_err() {
            self.open_chunk().map_err(at_fence)?.1.holds[buffer] = Holds::Anything;
        }
        // After a copy that failed, too: what is on its way must have landed before the buffer is used for anything.
        outcome.and(self.device.record(ready, copy).map_err(at_fence)).map(|()| bytes)
    }

    /// The copies of a stage plan. Returns the bytes from the host and those from slots.
    fn push_stage(&self, copies: &mut Copies, plan: &StagePlan) -> (u64, u64) {
        let places = self.places.as_ref().expect("a chunk is open");
        let (pool, layer) = (plan.pool(), plan.layer());
        let (mut fetched, mut gathered) = (0, 0);
        for (bank, range) in self.geometry.model().bank_ids().zip(self.geometry.pool(pool).ranges()) {
            let Some(buffer) = places.staged(range, bank, plan.buffer()) else { continue };
            let row_bytes = range.row_bytes;
            let row = |row: u32| DeviceSpan { offset: buffer.offset + u64::from(row) * buffer.stride, ..buffer };
            let mut gathers = plan.bank_gathers(row_bytes).iter().peekable();
            while let Some(first) = gathers.next() {
                let mut row_count = 1;
                // Neighbours on both sides go together.
                let follows = |count: u32| (first.row.get() + count, first.slot.get() + count);
                while gathers.next_if(|next| (next.row.get(), next.slot.get()) == follows(row_count)).is_some() {
                    row_count += 1;
                }
                let source =
                    places.arenas.slots(&self.geometry, pool, bank, first.slot).expect("the pool reads this bank");
                let (target, row_count) = (row(first.row.get()), u64::from(row_count));
                copies.push(bank, true, RowCopy { source: source.into(), target, row_bytes, row_count });
                gathered += row_bytes * row_count;
            }
            for run in plan.bank_runs(row_bytes) {
                let rows = self.banks.rows(layer, bank, run.row.get());
                let (source, direct) = rows.expect("the layer's banks are attached");
                let (target, row_count) = (row(run.row.get()), u64::from(run.count));
                copies.push(bank, direct, RowCopy { source: source.into(), target, row_bytes, row_count });
                fetched += row_bytes * row_count;
            }
        }
        (fetched, gathered)
    }

    /// Whether bytes of another layout may lie in a buffer that is filled with a layer of a pool.
    fn may_hold_another(&self, holds: Holds, pool: PoolId, buffer: usize) -> bool {
        let places = self.places.as_ref().expect("a chunk is open");
        let staging = &places.stage.as_ref().expect("a chunk is open").staging;
        match holds {
            Holds::Anything => true,
            Holds::Layer(before) => !is_alike(&self.geometry, before, pool),
            Holds::Nothing => staging.is_borrowed() && !fits_buffer(&self.geometry, staging, pool, buffer),
        }
    }

    /// Zeros over the gaps between the rows of a buffer and over the pad after them, which hold another layout's bytes.
    fn clear_around(&mut self, stream: Stream, pool: PoolId, buffer: usize) -> Result<(), (BankId, DeviceError)> {
        let Self { device, geometry, places, .. } = self;
        for clear in places.as_ref().expect("a chunk is open").around(geometry, pool, buffer) {
            let cleared = device.clear_rows(stream, &clear.span, clear.row_bytes, clear.row_count);
            cleared.map_err(|error| (clear.bank, error))?;
        }
        Ok(())
    }

    /// Lets the compute stream wait until a buffer is filled.
    ///
    /// # Errors
    ///
    /// No chunk is open, or the device's own.
    pub fn await_staged(&mut self, buffer: usize) -> Result<(), DeviceError> {
        let (device, stage) = self.open_chunk()?;
        let chunk = stage.chunk.as_mut().expect("it is open");
        if chunk.streams.are_two() && chunk.unawaited[buffer] {
            // Without this kernels would read rows that are still on their way.
            device.wait(chunk.streams.compute, stage.events.ready[buffer])?;
        }
        chunk.unawaited[buffer] = false;
        Ok(())
    }

    /// Lets the next fill of a buffer wait for what the compute stream was given until now.
    ///
    /// # Errors
    ///
    /// No chunk is open, or the device's own.
    pub fn release_staged(&mut self, buffer: usize) -> Result<(), DeviceError> {
        let (device, stage) = self.open_chunk()?;
        let chunk = stage.chunk.as_mut().expect("it is open");
        if chunk.streams.are_two() {
            device.record(stage.events.released[buffer], chunk.streams.compute)?;
        }
        chunk.released[buffer] = true;
        Ok(())
    }

    /// Ends a chunk: what the compute stream is given next comes behind every fill, and finds no bytes of another
    /// layout on slots.
    ///
    /// # Errors
    ///
    /// No chunk is open, or the device's own: the chunk is open still.
    pub fn end_chunk(&mut self) -> Result<(), DeviceError> {
        // Steps in the chunk may have had another compute stream: those after it come behind this one.
        let (_, stage) = self.open_chunk()?;
        let streams = stage.chunk.as_ref().expect("it is open").streams;
        self.take_over(streams.compute)?;
        if streams.are_two() {
            // Without this a step could fill slots while rows that the chunk staged, or late ones that it came
            // behind, are still on their way there.
            let (device, stage) = self.open_chunk()?;
            device.record(stage.events.begun, streams.copy)?;
            device.wait(streams.compute, stage.events.begun)?;
        }
        self.clear_slots()?;
        let (_, stage) = self.open_chunk()?;
        stage.chunk = None;
        if stage.staging.is_borrowed() {
            // Slots are filled over it next.
            stage.holds = [Holds::Nothing; 2];
        }
        Ok(())
    }

    /// Zeros over borrowed buffers that hold rows which the slots under them could not hold.
    fn clear_slots(&mut self) -> Result<(), DeviceError> {
        let Self { device, geometry, places, .. } = self;
        let Ok(places @ Places { stage: Some(Stage { layouts, chunk: Some(chunk), .. }), .. }) = &*places else {
            return Err(misuse("no chunk is open"));
        };
        // A buffer that was not filled has none.
        for clear in places.under_buffers(geometry, |buffer, pool| layouts[buffer][pool]) {
            device.clear_rows(chunk.streams.compute, &clear.span, clear.row_bytes, clear.row_count)?;
        }
        Ok(())
    }

    /// Called before slots are overwritten on a stream: fills of an open chunk may gather from them.
    pub(crate) fn before_slots_change(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let Ok(Places { stage: Some(stage), .. }) = &self.places else { return Ok(()) };
        let Some(chunk) = stage.chunk.as_ref().filter(|chunk| chunk.streams.copy != stream) else { return Ok(()) };
        for buffer in [0, 1] {
            if chunk.filled[buffer] {
                // Without this a row could be overwritten before it was gathered.
                self.device.wait(stream, stage.events.ready[buffer])?;
            }
        }
        Ok(())
    }

    /// Called after slots were overwritten on a stream: the next fill of an open chunk may gather from them.
    pub(crate) fn after_slots_changed(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let Ok(Places { stage: Some(stage), .. }) = &mut self.places else { return Ok(()) };
        let Some(chunk) = stage.chunk.as_mut().filter(|chunk| chunk.streams.copy != stream) else { return Ok(()) };
        self.device.record(stage.events.loaded, stream)?;
        chunk.loaded = true;
        Ok(())
    }
}

fn misuse(reason: &str) -> DeviceError {
    DeviceError::Failed { operation: "prefill chunk", bytes: 0, reason: reason.to_owned() }
}
