//! Prefill in device mode: a layer staged by launches, of which none is told who is resident.
//!
//! The host keeps no state of a chunk here, so that one may be captured; the order of its calls is the engine's. Where
//! bytes of another layout may ever lie, zeros are put each time.
//!
//! *Unsafe*, relying on the promises of `launches.rs`.

use bytemuck::{Pod, Zeroable};
use ftcache_policy::{BankId, Geometry, LayerId, PoolId, TableShape};
use ftcache_residency::Cache;

use super::DeviceModeError;
use super::abi::{self, Kernel};
use super::launches::{DeviceMode, engaged};
use super::tables::launch;
use crate::loader::Places;
use crate::stage::ClearSpan;
use crate::{Device, Loader, Memory, Stream};

/// What staging needs in device memory. Layers stand in a row, and of each the buffers.
#[derive(Debug)]
pub(super) struct StageTables {
    pub(super) memory: Memory,
    buffer_count: u32,
    /// Bytes from the start to: rows from slots, rows from the host, banks that ship whole, all banks, lists.
    from_slots: u64,
    from_host: u64,
    whole: u64,
    all: u64,
    /// `Lists[buffer]`, then `Entry[buffer][2][expert]`: hits, misses.
    lists: u64,
    entries: u64,
    /// What must be withheld while buffers lie on slots.
    guard: abi::Guard,
    /// Whether any bank ships whole, and whether any does not.
    has_whole: bool,
    has_parts: bool,
}

impl StageTables {
    /// Which of the tables' rows is a layer's in a buffer.
    fn index(&self, layer: LayerId, buffer: u32) -> Result<u64, DeviceModeError> {
        let buffer_count = self.buffer_count;
        if buffer >= buffer_count {
            return Err(DeviceModeError::UnknownBuffer { buffer, buffer_count });
        }
        Ok(u64::from(layer.get()) * u64::from(buffer_count) + u64::from(buffer))
    }
}

/// Numbers of hits and misses of the layer that a buffer was filled with last.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Lists {
    hit_count: u32,
    miss_count: u32,
}

// As a plan sets it aside.
const _: () = assert!(TableShape::STAGE_LISTS_BYTES == size_of::<Lists>() as u64);

impl<D: Device> Loader<D> {
    /// Enqueues that slots under borrowed staging buffers are freed and handed out to nobody: before a chunk's first
    /// layer is staged, and behind all that reads those slots.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, no staging buffers, or the device's own.
    pub fn begin_chunk_on_device(&mut self, stream: Stream) -> Result<(), DeviceModeError> {
        self.withhold_for_chunk(stream, true)
    }

    /// Enqueues that they are handed out again, and zeros where bytes of another layout may be left: behind all that
    /// reads the buffers.
    ///
    /// # Errors
    ///
    /// As [`begin_chunk_on_device`](Self::begin_chunk_on_device).
    pub fn end_chunk_on_device(&mut self, stream: Stream) -> Result<(), DeviceModeError> {
        self.zero_on_device(stream, LayerId::new(0), |geometry, places| places.under_buffers(geometry, |_, _| true))?;
        self.withhold_for_chunk(stream, false)
    }

    fn withhold_for_chunk(&mut self, stream: Stream, begins: bool) -> Result<(), DeviceModeError> {
        let mode = engaged(&self.mode)?;
        let stage = self.places.as_ref().map_err(Clone::clone)?.stage.as_ref();
        let staging = stage.ok_or(DeviceModeError::NoStaging)?.staging();
        // The pool that tells for all of them comes last, so that half a begin or end is none and may be tried again.
        let last = PoolId::new(mode.stage()?.guard.pool);
        let others = (0..self.geometry.pools().len()).map(PoolId::from_index).filter(|&pool| pool != last);
        for pool in others.chain([last]) {
            let stable_from = if staging.is_borrowed() { staging.stable_from(pool) } else { 0 };
            if stable_from > 0 {
                let withheld = if begins { stable_from } else { 0 };
                mode.tables.withhold(&mut self.device, stream, pool, withheld)?;
            }
        }
        Ok(())
    }

    /// Enqueues that a layer is staged in a buffer: hits from their slots, misses from the host, in lists that the
    /// device makes. Behind what reads the buffer's last layer. A buffer on slots is not filled unless a chunk is open,
    /// which [`take_faults`](Self::take_faults) tells.
    ///
    /// # Errors
    ///
    /// A residency that is with the host; an unknown layer or one without slots; no such buffer; the device's own.
    pub fn stage_on_device(
        &mut self,
        stream: Stream,
        residency: &Cache,
        layer: LayerId,
        buffer: u32,
    ) -> Result<(), DeviceModeError> {
        let pool = residency.pool_of(layer)?;
        self.check_residency(residency)?;
        let bank_count = self.geometry.model().bank_count() as u32;
        let index = engaged(&self.mode)?.stage()?.index(layer, buffer)?;
        self.clear_around_on_device(stream, (layer, pool), buffer as usize)?;
        let mode = engaged(&self.mode)?;
        let stage = mode.stage()?;
        let base = self.device.address(stage.memory)?;
        let experts = residency.expert_count();
        let list = base + stage.lists + u64::from(buffer) * size_of::<Lists>() as u64;
        let of_entries = u64::from(experts) * size_of::<abi::Entry>() as u64;
        let entries = base + stage.entries + 2 * u64::from(buffer) * of_entries;
        if stage.has_parts {
            let counts = (list, list + std::mem::offset_of!(Lists, miss_count) as u64);
            let told = abi::CompactHits {
                tables: mode.tables.told(),
                generation: mode.tables.generation(),
                guard: stage.guard,
                layer: layer.get(),
                reserved: 0,
                hit_count: counts.0,
                hits: entries,
                miss_count: counts.1,
                misses: entries + of_entries,
            };
            // SAFETY: tables and lists of ours.
            unsafe { launch(&mut self.device, stream, Kernel::CompactHits, (1, 1024, 0), &told) }?;
            let of_layer = index * u64::from(bank_count) * size_of::<abi::BankRows>() as u64;
            let gather = mode.gather(layer, bank_count, experts);
            let from_slots =
                abi::Gather { entry_count: counts.0, entries, banks: base + stage.from_slots + of_layer, ..gather };
            // SAFETY: tables of ours, slots, buffers.
            unsafe { launch(&mut self.device, stream, Kernel::GatherSlots, mode.spread(), &from_slots) }?;
            let from_host = abi::Gather {
                entry_count: counts.1,
                entries: entries + of_entries,
                banks: base + stage.from_host + of_layer,
                ..gather
            };
            // SAFETY: tables of ours, rows that are attached, buffers.
            unsafe { launch(&mut self.device, stream, Kernel::GatherRows, mode.spread(), &from_host) }?;
        }
        if stage.has_whole {
            self.launch_materialize(stream, residency, layer, index, base + stage.whole)?;
        }
        Ok(())
    }

    /// Enqueues that a layer is staged in a buffer in one launch: where there is one buffer, or nothing to overlap
    /// with.
    ///
    /// # Errors
    ///
    /// As [`stage_on_device`](Self::stage_on_device).
    pub fn materialize_on_device(
        &mut self,
        stream: Stream,
        residency: &Cache,
        layer: LayerId,
        buffer: u32,
    ) -> Result<(), DeviceModeError> {
        let pool = residency.pool_of(layer)?;
        self.check_residency(residency)?;
        let stage = engaged(&self.mode)?.stage()?;
        let (index, memory, all) = (stage.index(layer, buffer)?, stage.memory, stage.all);
        self.clear_around_on_device(stream, (layer, pool), buffer as usize)?;
        let base = self.device.address(memory)?;
        self.launch_materialize(stream, residency, layer, index, base + all)
    }

    fn launch_materialize(
        &mut self,
        stream: Stream,
        residency: &Cache,
        layer: LayerId,
        index: u64,
        banks: u64,
    ) -> Result<(), DeviceModeError> {
        let bank_count = self.geometry.model().bank_count() as u32;
        let mode = engaged(&self.mode)?;
        let guard = mode.stage()?.guard;
        let expert_count = residency.expert_count();
        let place =
            mode.tables.told().place + u64::from(layer.get()) * u64::from(expert_count) * size_of::<u32>() as u64;
        let told = abi::Materialize {
            header: mode.tables.header_address(),
            generation: mode.tables.generation(),
            pools: mode.tables.told().pools,
            guard,
            place,
            banks: banks + index * u64::from(bank_count) * size_of::<abi::StageBank>() as u64,
            expert_count,
            bank_count,
            layer: layer.get(),
            reserved: 0,
        };
        // SAFETY: tables of ours, rows that are attached, slots, buffers.
        Ok(unsafe { launch(&mut self.device, stream, Kernel::Materialize, mode.spread(), &told) }?)
    }

    /// Zeros around the rows of a buffer, if bytes of another layout may ever lie there: what a captured launch finds
    /// is not known when it is captured.
    fn clear_around_on_device(
        &mut self,
        stream: Stream,
        (layer, pool): (LayerId, PoolId),
        buffer: usize,
    ) -> Result<(), DeviceModeError> {
        let places = self.places.as_ref().map_err(Clone::clone)?;
        if places.may_ever_hold_another(&self.geometry, pool, buffer) {
            self.zero_on_device(stream, layer, |geometry, places| places.around(geometry, pool, buffer))?;
        }
        Ok(())
    }

    /// Zeros over rows of every span, as many in a launch as one takes.
    fn zero_on_device<'a, I: Iterator<Item = ClearSpan>>(
        &'a mut self,
        stream: Stream,
        layer: LayerId,
        spans: impl Fn(&'a Geometry, &'a Places) -> I,
    ) -> Result<(), DeviceModeError> {
        let Self { device, geometry, places, mode, .. } = self;
        let (geometry, places) = (&*geometry, places.as_ref().map_err(|lack| lack.clone())?);
        let mode = engaged(mode)?;
        let (shape, header, generation) = (mode.spread(), mode.tables.header_address(), mode.tables.generation());
        let (pools, guard) = (mode.tables.told().pools, mode.stage()?.guard);
        let nothing = abi::ZeroSpan { base: 0, stride: 0, row_bytes: 0, row_count: 0 };
        let most = abi::ZERO_SPANS_MAX as usize;
        for launched in (0..).step_by(most) {
            let mut told = abi::Zero {
                spans: [nothing; abi::ZERO_SPANS_MAX as usize],
                span_count: 0,
                layer: layer.get(),
                header,
                generation,
                pools,
                guard,
            };
            for ClearSpan { span, row_bytes, row_count, .. } in spans(geometry, places).skip(launched).take(most) {
                let base = device.address(span.memory)? + span.offset;
                told.spans[told.span_count as usize] =
                    abi::ZeroSpan { base, stride: span.stride, row_bytes, row_count };
                told.span_count += 1;
            }
            if told.span_count == 0 {
                break;
            }
            // SAFETY: slots and buffers.
            unsafe { launch(device, stream, Kernel::Zero, shape, &told) }?;
        }
        Ok(())
    }

    /// Writes what staging needs, where there are buffers, over what was there if it is as large.
    pub(super) fn fill_stage(&mut self, mode: &mut DeviceMode, residency: &Cache) -> Result<(), DeviceModeError> {
        let places = self.places.as_ref().map_err(Clone::clone)?;
        let staging = places.stage.as_ref().map(|stage| stage.staging());
        if (mode.is_stale || staging.is_none())
            && let Some(stage) = mode.stage.take()
        {
            self.device.free(stage.memory);
        }
        let Some(staging) = staging else { return Ok(()) };
        let buffer_count = staging.buffer_count();
        // One pool tells for all of them.
        let pools = (0..self.geometry.pools().len()).map(PoolId::from_index);
        let stable_from = |pool| if staging.is_borrowed() { staging.stable_from(pool) } else { 0 };
        let under = pools.map(|pool| abi::Guard { pool: pool.get(), withheld: stable_from(pool) });
        let guard = under.max_by_key(|guard| guard.withheld).expect("a geometry has pools");
        let small_row_bytes = residency.small_row_bytes();
        let (mut from_slots, mut from_host) = (Vec::new(), Vec::new());
        let (mut whole, mut all) = (Vec::new(), Vec::new());
        for layer in (0..residency.layer_count()).map(LayerId::from_index) {
            for buffer in 0..buffer_count as usize {
                for bank in self.geometry.model().bank_ids() {
                    let rows = self.bank_rows_of(residency, layer, bank)?;
                    let bank = self.stage_bank(residency, layer, bank, buffer, rows)?;
                    let ships_whole = bank.row_bytes < small_row_bytes;
                    let none = abi::StageBank { row_bytes: 0, ..bank };
                    let parts = if ships_whole { none } else { bank };
                    from_slots.push(abi::BankRows {
                        source: parts.slots,
                        source_stride: parts.slot_stride,
                        source_rows: parts.slot_count,
                        ..rows_to_buffer(&parts, residency.expert_count())
                    });
                    from_host.push(abi::BankRows {
                        source: parts.host,
                        source_stride: parts.host_stride,
                        source_rows: residency.expert_count(),
                        ..rows_to_buffer(&parts, residency.expert_count())
                    });
                    whole.push(if ships_whole { abi::StageBank { whole: 1, ..bank } } else { none });
                    all.push(abi::StageBank { whole: ships_whole.into(), ..bank });
                }
            }
        }
        let parts: [&[u8]; 4] = [
            bytemuck::cast_slice(&from_slots),
            bytemuck::cast_slice(&from_host),
            bytemuck::cast_slice(&whole),
            bytemuck::cast_slice(&all),
        ];
        let mut end = 0;
        let begins = parts.map(|part| {
            let begin = end;
            end += part.len() as u64;
            begin
        });
        let (lists, of_lists) = (end, u64::from(buffer_count) * size_of::<Lists>() as u64);
        let entries = lists + of_lists;
        let of_entries = 2 * u64::from(residency.expert_count()) * size_of::<abi::Entry>() as u64;
        let bytes = entries + u64::from(buffer_count) * of_entries;
        let memory = match mode.stage.take() {
            Some(stage) => stage.memory,
            None => self.device.allocate(bytes, 64)?,
        };
        mode.stage = Some(StageTables {
            memory,
            buffer_count,
            from_slots: begins[0],
            from_host: begins[1],
            whole: begins[2],
            all: begins[3],
            lists,
            entries,
            guard,
            has_whole: whole.iter().any(|bank| bank.row_bytes > 0),
            has_parts: from_host.iter().any(|bank| bank.row_bytes > 0),
        });
        for (part, begin) in parts.into_iter().zip(begins) {
            self.device.write(memory, begin, part)?;
        }
        Ok(())
    }

    fn stage_bank(
        &self,
        residency: &Cache,
        layer: LayerId,
        bank: BankId,
        buffer: usize,
        rows: abi::BankRows,
    ) -> Result<abi::StageBank, DeviceModeError> {
        let abi::BankRows { source, source_stride, target, target_stride, row_bytes, target_rows, .. } = rows;
        let mut told = abi::StageBank {
            host: source,
            host_stride: source_stride,
            slots: target,
            slot_stride: target_stride,
            target: 0,
            target_stride: 0,
            row_bytes,
            slot_count: target_rows,
            whole: 0,
        };
        let Ok(pool) = residency.pool_of(layer) else { return Ok(told) };
        if let Some(staged) = self.staged(pool, bank, buffer) {
            told.target = self.device.address(staged.memory)? + staged.offset;
            told.target_stride = staged.stride;
        }
        Ok(told)
    }
}

/// Rows of a bank to a buffer, from wherever.
fn rows_to_buffer(bank: &abi::StageBank, expert_count: u32) -> abi::BankRows {
    abi::BankRows {
        source: 0,
        source_stride: 0,
        target: bank.target,
        target_stride: bank.target_stride,
        row_bytes: bank.row_bytes,
        source_rows: 0,
        target_rows: expert_count,
    }
}
