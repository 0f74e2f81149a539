//! Device mode: steps that are admitted by kernels, from routes that never leave the device, so that an engine may
//! capture its decode into a graph.
//!
//! ```text
//! enter_device_mode                                   the residency moves to the device
//!   capture: router | admit_on_device | gather_on_device | kernels that read the slots | ... next layer
//!   launch the graph as often as there are tokens     routes in, slots out, in the same buffers
//!   check_device                                      what a launch was refused for
//! leave_device_mode                                   the residency comes back, as if the steps had been admitted here
//! ```
//!
//! What a graph holds stays good until the slots are rebuilt or the staging buffers are others; a launch that comes too
//! late answers -1 for every route and is told of by [`Cache::check_device`]. Once the cache is gone, no graph that
//! holds its launches may be launched any more.

use ftcache_policy::LayerId;
use ftcache_transfer::{
    Device, DeviceModeError, DeviceModeOptions, DevicePlan, DeviceReading, DeviceStep, HostWord, Stream,
};

use crate::{Cache, Error};

impl<D: Device> Cache<D> {
    /// Moves the residency to the device. From now on steps are admitted there, and what would decide here is refused,
    /// until it is [taken back](Self::leave_device_mode). Waits for everything enqueued, so that rows on their way
    /// behind steps or ahead of them have landed; answers under step tokens are given no more, and open hints end.
    ///
    /// # Errors
    ///
    /// A residency that is there already, an open chunk, a layer with slots whose rows are not attached or not pinned,
    /// with its number, a device without kernels, memory that it has not, or a cache without slots. The residency is
    /// with the host then.
    pub fn enter_device_mode(&mut self, options: DeviceModeOptions) -> Result<(), Error> {
        self.check_slots()?;
        self.check_with_host()?;
        self.loader.synchronize_all()?;
        self.land()?;
        self.loader.enter_device_mode(&self.residency, options)?;
        // Kernels know nothing of them: what they have brought is resident like others there.
        self.residency.cancel_hints();
        Ok(())
    }

    /// Takes the residency back with all that was decided on the device. Waits for everything enqueued.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, a chunk on borrowed buffers that has not ended, or the device's own: it is on
    /// the device still.
    pub fn leave_device_mode(&mut self) -> Result<(), Error> {
        Ok(self.loader.leave_device_mode(&mut self.residency)?)
    }

    /// Whether the residency is on the device. What [`residency`](Self::residency) and the statistics tell is then of
    /// the time when it went there; see [`reading`](Self::reading).
    pub fn is_in_device_mode(&self) -> bool {
        self.loader.is_in_device_mode()
    }

    /// Enqueues the admission of a step whose routes lie on the device: one launch, which may be captured. The routes
    /// are rewritten to slots, or the slots written elsewhere, as the step says. What is missing is copied by
    /// [`gather_on_device`](Self::gather_on_device), over the same stream or one that is ordered behind it.
    ///
    /// The answer is what [`load_on`](Self::load_on) would have given. A step that cannot be admitted answers -1 for
    /// every route and leaves the residency as it was; [`check_device`](Self::check_device) tells.
    ///
    /// All launches of a cache are to be in one order: over one stream, or over several that the engine orders by
    /// events, which may be recorded in the capture.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, a layer or shapes that no launch has, or the device's own: nothing is
    /// enqueued.
    pub fn admit_on_device(&mut self, stream: Stream, step: &DeviceStep) -> Result<(), Error> {
        Ok(self.loader.admit_on_device(stream, &self.residency, step)?)
    }

    /// Enqueues the copies that the layer's last admission decided on, in all banks: one launch, which may be captured.
    /// Kernels that read the slots come behind it, and so does the next admission of the layer's pool, which may give
    /// the slots to others.
    ///
    /// # Errors
    ///
    /// As [`admit_on_device`](Self::admit_on_device).
    pub fn gather_on_device(&mut self, stream: Stream, layer: LayerId) -> Result<(), Error> {
        Ok(self.loader.gather_on_device(stream, &self.residency, layer)?)
    }

    /// The same once the host has raised a word, for rows that the engine reads in late; see
    /// [`Loader::gather_on_device_after`].
    ///
    /// [`Loader::gather_on_device_after`]: ftcache_transfer::Loader::gather_on_device_after
    ///
    /// # Errors
    ///
    /// As [`gather_on_device`](Self::gather_on_device); a word in memory that kernels cannot read.
    pub fn gather_on_device_after(&mut self, stream: Stream, layer: LayerId, word: HostWord) -> Result<(), Error> {
        Ok(self.loader.gather_on_device_after(stream, &self.residency, layer, word)?)
    }

    /// Enqueues that every slot is freed.
    ///
    /// # Errors
    ///
    /// A residency that is with the host; the device's own.
    pub fn reset_on_device(&mut self, stream: Stream) -> Result<(), Error> {
        Ok(self.loader.reset_on_device(stream)?)
    }

    /// Enqueues the begin of a prefill chunk: slots under borrowed buffers are freed, and handed out to nobody until
    /// it ends. Comes behind all that reads those slots; the engine keeps the order of a chunk's calls and streams.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, no staging buffers, or the device's own.
    pub fn begin_chunk_on_device(&mut self, stream: Stream) -> Result<(), Error> {
        Ok(self.loader.begin_chunk_on_device(stream)?)
    }

    /// Enqueues that a layer is staged in a buffer, hits from their slots and misses from the host. Comes behind all
    /// that reads the buffer's last layer. A buffer on slots is not filled unless a chunk is open, which
    /// [`check_device`](Self::check_device) tells.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, an unknown layer or buffer, no staging buffers, or the device's own.
    pub fn stage_on_device(&mut self, stream: Stream, layer: LayerId, buffer: u32) -> Result<(), Error> {
        Ok(self.loader.stage_on_device(stream, &self.residency, layer, buffer)?)
    }

    /// The same in one launch, for a chunk that overlaps with nothing.
    ///
    /// # Errors
    ///
    /// As [`stage_on_device`](Self::stage_on_device).
    pub fn materialize_on_device(&mut self, stream: Stream, layer: LayerId, buffer: u32) -> Result<(), Error> {
        Ok(self.loader.materialize_on_device(stream, &self.residency, layer, buffer)?)
    }

    /// Enqueues the end of a prefill chunk. Comes behind all that reads the buffers.
    ///
    /// # Errors
    ///
    /// As [`begin_chunk_on_device`](Self::begin_chunk_on_device).
    pub fn end_chunk_on_device(&mut self, stream: Stream) -> Result<(), Error> {
        Ok(self.loader.end_chunk_on_device(stream)?)
    }

    /// Enqueues a reading of the residency on the device: its step, digest and statistics.
    ///
    /// # Errors
    ///
    /// A residency that is with the host; the device's own.
    pub fn request_reading(&mut self, stream: Stream) -> Result<(), Error> {
        Ok(self.loader.request_reading(stream)?)
    }

    /// The last reading that was asked for, or `None` if there was none or it is being written. Waits for nothing.
    ///
    /// # Errors
    ///
    /// There never was device mode.
    pub fn reading(&self) -> Result<Option<DeviceReading>, Error> {
        Ok(self.loader.reading()?)
    }

    /// As [`reading`](Self::reading), into one that there is: nothing is allocated once it had as many layers. Whether
    /// it is one; if not, nothing is to be read of it.
    ///
    /// # Errors
    ///
    /// As [`reading`](Self::reading).
    pub fn read_into(&self, reading: &mut DeviceReading) -> Result<bool, Error> {
        Ok(self.loader.read_into(reading)?)
    }

    /// What the last admission of a layer on the device decided. Waits for everything enqueued: for tests, and for
    /// engines that copy by themselves.
    ///
    /// # Errors
    ///
    /// An unknown layer; a residency that is with the host; the device's own.
    pub fn plan_on_device(&mut self, layer: LayerId) -> Result<DevicePlan, Error> {
        self.residency.pool_of(layer)?;
        Ok(self.loader.plan_on_device(layer)?)
    }

    /// Whether the residency is with the host: what decides here must not while launches decide there.
    pub(crate) fn check_with_host(&self) -> Result<(), Error> {
        if self.is_in_device_mode() { Err(DeviceModeError::OnDevice.into()) } else { Ok(()) }
    }
}
