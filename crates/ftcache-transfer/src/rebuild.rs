//! Other slots for the same model, and residents that are put back: rows that move on the device, or come from the
//! host.

use std::fmt;

use ftcache_policy::{BankId, Geometry, LayerId, Pool, PoolId};
use ftcache_residency::{Move, Placement};

use crate::apply::Copies;
use crate::arena::Arenas;
use crate::loader::Places;
use crate::{BringBackFailure, Device, DeviceError, DeviceSpan, Loader, RebuildError, RowCopy, Stream, Streams};

/// What became of the residents when the slots were rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebuilt {
    /// They moved within the same memory.
    InPlace,
    /// They moved to new memory, beside which the old one lay for a moment.
    Beside,
    /// None was kept.
    Cold(ColdReason),
}

/// Why no resident was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColdReason {
    /// None was to be.
    NothingToKeep,
    /// The old and the new slots together are more than was allowed.
    TooLarge {
        /// Bytes of both.
        needed: u64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// The device had not the memory for both.
    OutOfMemory(DeviceError),
    /// The memory is the caller's, and pools lie elsewhere in it now.
    PoolsMoved {
        /// The first such pool.
        pool: PoolId,
    },
    /// A row could not be moved.
    Failed(DeviceError),
}

impl fmt::Display for ColdReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToKeep => write!(f, "no resident was to be kept"),
            Self::TooLarge { needed, allowed } => {
                write!(f, "the old and the new slots together are {needed} bytes; {allowed} are allowed")
            }
            Self::OutOfMemory(error) => write!(f, "{error}"),
            Self::PoolsMoved { pool } => write!(f, "pool {pool} lies elsewhere in the caller's memory now"),
            Self::Failed(error) => write!(f, "a row could not be moved: {error}"),
        }
    }
}

impl<D: Device> Loader<D> {
    /// Exchanges the slots for those of another geometry of the same model, and moves residents there.
    ///
    /// Waits until nothing is on its way. Residents move beside the old slots if both together take no more than
    /// `most_bytes` and the device has them; else the old slots are freed first, and the new ones are empty. In
    /// memory of the caller's they stay where they are if their pools do. Staging buffers go, and are to be set anew.
    ///
    /// # Errors
    ///
    /// See [`RebuildError`]: what is left is in its name. A geometry that does not fit the caller's memory, or an open
    /// chunk, is refused before anything is touched.
    pub fn rebuild(&mut self, geometry: Geometry, moves: &[Move], most_bytes: u64) -> Result<Rebuilt, RebuildError> {
        self.check_with_host("rebuild").map_err(RebuildError::Refused)?;
        self.check_rebuild(&geometry).map_err(RebuildError::Refused)?;
        self.synchronize_all().map_err(RebuildError::Refused)?;
        let Ok(places) = &mut self.places else { return self.allocate_anew(geometry, ColdReason::NothingToKeep) };
        if let Some(mut stage) = places.stage.take() {
            stage.free(&mut self.device);
        }
        if places.arenas.arenas().iter().flatten().any(|arena| arena.adopted) {
            return Ok(self.rebuild_in_place(geometry, moves));
        }
        if moves.is_empty() {
            return self.allocate_anew(geometry, ColdReason::NothingToKeep);
        }
        let (old, new) = (self.geometry.total_bytes(), geometry.total_bytes());
        let needed = old.saturating_add(new);
        if needed > most_bytes {
            return self.allocate_anew(geometry, ColdReason::TooLarge { needed, allowed: most_bytes });
        }
        let arenas = match Arenas::allocate(&mut self.device, &geometry) {
            Ok(arenas) => arenas,
            Err(error) => return self.allocate_anew(geometry, ColdReason::OutOfMemory(error)),
        };
        let moved = self.move_rows(&geometry, &arenas, moves);
        self.geometry = geometry;
        let new = Places { arenas, stage: None };
        if let Ok(mut old) = std::mem::replace(&mut self.places, Ok(new)) {
            old.arenas.free(&mut self.device);
        }
        Ok(moved.map_or_else(|error| Rebuilt::Cold(ColdReason::Failed(error)), |()| Rebuilt::Beside))
    }

    fn check_rebuild(&self, geometry: &Geometry) -> Result<(), DeviceError> {
        let Ok(places) = &self.places else { return Ok(()) };
        if places.stage.as_ref().is_some_and(crate::stage::Stage::has_open_chunk) {
            let reason = "a prefill chunk is open".to_owned();
            return Err(DeviceError::Failed { operation: "rebuild", bytes: geometry.total_bytes(), reason });
        }
        for (bank, (arena, &needed)) in places.arenas.arenas().iter().zip(geometry.arena_bytes()).enumerate() {
            if let Some(arena) = arena.filter(|arena| arena.adopted && arena.bytes < needed) {
                return Err(DeviceError::Arena { bank: BankId::from_index(bank), needed, given: arena.bytes });
            }
        }
        Ok(())
    }

    /// Frees the old slots, then allocates the new ones; if those cannot be had, the old ones again.
    fn allocate_anew(&mut self, geometry: Geometry, reason: ColdReason) -> Result<Rebuilt, RebuildError> {
        let had_slots = match &mut self.places {
            Ok(places) => {
                places.arenas.free(&mut self.device);
                true
            }
            Err(_) => false,
        };
        let lack = match Arenas::allocate(&mut self.device, &geometry) {
            Ok(arenas) => {
                self.places = Ok(Places { arenas, stage: None });
                self.geometry = geometry;
                return Ok(Rebuilt::Cold(reason));
            }
            Err(lack) => lack,
        };
        if had_slots && let Ok(arenas) = Arenas::allocate(&mut self.device, &self.geometry) {
            self.places = Ok(Places { arenas, stage: None });
            return Err(RebuildError::Restored(lack));
        }
        self.places = Err(lack.clone());
        Err(RebuildError::Emptied(lack))
    }

    /// Moves residents from the old slots to others on the device, and waits for it.
    fn move_rows(&mut self, geometry: &Geometry, arenas: &Arenas, moves: &[Move]) -> Result<(), DeviceError> {
        let places = self.places.as_ref().map_err(Clone::clone)?;
        let mut copies = std::mem::take(&mut self.copies);
        copies.clear();
        for &Move { layer, from, to, .. } in moves {
            for bank in geometry.model().bank_ids() {
                let row_bytes = geometry.model().row_bytes(layer, bank);
                let Some(target) = arenas.slots(geometry, to.0, bank, to.1) else { continue };
                let source = places.arenas.slots(&self.geometry, from.0, bank, from.1);
                let source = source.expect("a layer's banks are the same in every geometry");
                if (source.memory, source.offset) != (target.memory, target.offset) {
                    copies.push(bank, true, RowCopy { source: source.into(), target, row_bytes, row_count: 1 });
                }
            }
        }
        let enqueued = self.on_own_stream(|loader, stream| loader.enqueue(stream, &copies).map_err(|(_, error)| error));
        self.copies = copies;
        enqueued
    }

    /// Gives a stream of our own some work and waits for it: on the default stream it would stand in the way of
    /// others'.
    fn on_own_stream(
        &mut self,
        work: impl FnOnce(&mut Self, Stream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let stream = self.device.create_stream()?;
        let enqueued = work(self, stream);
        let done = self.device.synchronize(stream);
        self.device.destroy_stream(stream);
        enqueued.and(done)
    }

    /// In memory of the caller's. Whatever is not a resident's row is zeroed where pools lie elsewhere now.
    fn rebuild_in_place(&mut self, geometry: Geometry, moves: &[Move]) -> Rebuilt {
        let moved = self.pool_that_moved(&geometry, moves);
        let kept = match moved {
            None if moves.is_empty() => Err(ColdReason::NothingToKeep),
            None => {
                let arenas = self.places.as_ref().expect("there are slots").arenas.clone();
                self.move_rows(&geometry, &arenas, moves).map_err(ColdReason::Failed)
            }
            Some(pool) => Err(ColdReason::PoolsMoved { pool }),
        };
        let old = std::mem::replace(&mut self.geometry, geometry);
        let cleared = self.clear_changed(&old, kept.is_ok());
        match (kept, cleared) {
            (Ok(()), Ok(())) => Rebuilt::InPlace,
            (Err(reason), Ok(())) => Rebuilt::Cold(reason),
            // Bytes of another layout may be left, which is what is to be known.
            (_, Err(error)) => Rebuilt::Cold(ColdReason::Failed(error)),
        }
    }

    /// The first pool with survivors that does not lie where it lay.
    fn pool_that_moved(&self, geometry: &Geometry, moves: &[Move]) -> Option<PoolId> {
        let mut pools: Vec<(PoolId, PoolId)> = moves.iter().map(|moved| (moved.from.0, moved.to.0)).collect();
        pools.sort_unstable();
        pools.dedup();
        let lies_elsewhere = |&(from, to): &(PoolId, PoolId)| {
            let places = |geometry: &Geometry, pool: PoolId| -> Vec<(u64, u64)> {
                geometry.pool(pool).ranges().iter().map(|range| (range.offset, range.stride)).collect()
            };
            from != to || places(&self.geometry, from) != places(geometry, to)
        };
        pools.into_iter().find(lies_elsewhere).map(|(_, to)| to)
    }

    /// Zeros over what other slots left: everything, or what lies outside the pools that stayed.
    fn clear_changed(&mut self, old: &Geometry, keep: bool) -> Result<(), DeviceError> {
        self.on_own_stream(|loader, stream| loader.enqueue_clears(stream, old, keep))
    }

    fn enqueue_clears(&mut self, stream: Stream, old: &Geometry, keep: bool) -> Result<(), DeviceError> {
        let places = self.places.as_ref().map_err(Clone::clone)?;
        for (bank, &bytes) in self.geometry.arena_bytes().iter().enumerate() {
            let Some(memory) = places.arenas.memory(BankId::from_index(bank)) else { continue };
            // Slots that both have, of pools that lie where they lay, ascending.
            let mut kept: Vec<(u64, u64)> = Vec::new();
            for (pool, before) in self.geometry.pools().iter().zip(old.pools()).filter(|_| keep) {
                let (range, was) = (pool.ranges()[bank], before.ranges()[bank]);
                let key = |geometry: &Geometry, pool: &Pool| geometry.model().layer(pool.layers()[0]).clone();
                let lies_there = (range.offset, range.stride) == (was.offset, was.stride);
                if lies_there && key(&self.geometry, pool) == key(old, before) {
                    let slots = u64::from(pool.slot_count().min(before.slot_count()));
                    kept.push((range.offset, range.offset + slots * range.stride));
                }
            }
            kept.push((bytes, bytes));
            let mut begin = 0;
            for (first, past) in kept {
                if begin < first {
                    let span = DeviceSpan { memory, offset: begin, stride: first - begin };
                    self.device.clear_rows(stream, &span, first - begin, 1)?;
                }
                begin = past;
            }
        }
        Ok(())
    }

    /// Enqueues the copies that bring residents back to their slots. Returns the bytes they move.
    ///
    /// # Errors
    ///
    /// The first copy that the device refuses: none of the slots may be read then.
    ///
    /// # Panics
    ///
    /// If a bank of a layer is not attached; see [`check_layer`](Self::check_layer).
    pub fn bring_back(&mut self, streams: Streams, placements: &[Placement]) -> Result<u64, BringBackFailure> {
        let layer = placements.first().map_or(LayerId::new(0), |placement| placement.layer);
        let failed = |layer, bank, source| BringBackFailure { layer, bank, source };
        self.take_over(streams.compute).map_err(|error| failed(layer, None, error))?;
        let mut moved = 0;
        let mut copies: Copies = std::mem::take(&mut self.copies);
        let mut outcome = Ok(());
        let mut placements = placements.to_vec();
        placements.sort_unstable_by_key(|placement| (placement.layer, placement.pool, placement.slot));
        for group in placements.chunk_by(|one, other| one.layer == other.layer) {
            let layer = group[0].layer;
            copies.clear();
            match &self.places {
                Ok(places) => {
                    for &Placement { row, pool, slot, .. } in group {
                        for bank in self.geometry.model().bank_ids() {
                            self.push_rows(&mut copies, places, (layer, bank), row.get(), (pool, slot), 1);
                        }
                    }
                }
                Err(lack) => {
                    outcome = Err(failed(layer, None, lack.clone()));
                    break;
                }
            }
            if let Err((bank, error)) = self.copy_between(streams, &mut copies) {
                outcome = Err(failed(layer, bank, error));
                break;
            }
            moved += copies.bytes();
        }
        self.copies = copies;
        outcome.map(|()| moved)
    }
}
