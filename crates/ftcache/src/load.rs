//! A step: routes in, slots out, the missing rows on their way.

use ftcache_policy::{ExpertId, LayerId, SlotId};
use ftcache_residency as residency;
use ftcache_residency::{Parts, Step};
use ftcache_transfer::{Device, Stream, Streams};

use crate::{Cache, Error};

impl<D: Device> Cache<D> {
    /// Makes the experts of a step resident over the default stream. Returns a slot for each route, in route order.
    ///
    /// Kernels that are enqueued afterwards on that stream see every row. See [`load_on`](Self::load_on).
    ///
    /// # Errors
    ///
    /// As [`load_on`](Self::load_on).
    pub fn load(&mut self, step: impl Into<Step>, routes: &[ExpertId]) -> Result<&[SlotId], Error> {
        self.load_on(Streams::one(Stream::DEFAULT), step, routes)
    }

    /// Makes the experts of a step resident. Returns a slot for each route, in route order, local to the layer's pool;
    /// [`SlotId::ABSENT`] for a route that is [`ExpertId::ABSENT`], and in a hybrid step [`SlotId::CPU`] for one to an
    /// expert that is not fetched.
    ///
    /// A layer alone stands for a decode step whose misses are all fetched. A step that is asked for again under its
    /// token enqueues nothing: its rows are on their way.
    ///
    /// Nothing is waited for: copies are enqueued on the copy stream, behind what the compute stream was given before,
    /// and what the compute stream is given afterwards comes behind the copies. A step without a miss enqueues nothing;
    /// it allocates nothing once there was one as wide, or if it is no wider than the requests of the geometry (up to
    /// 65,536 routes).
    ///
    /// A step that names another compute stream than the call before orders it behind that one, which must be alive
    /// still; [`synchronize_all`](Self::synchronize_all) ends that.
    ///
    /// # Errors
    ///
    /// An unknown layer, expert or stream, more distinct experts than there are slots for, a token that stands for
    /// another step, a layer that is not attached, a stream that is being captured, or a cache without slots: the
    /// cache is as it was. A copy that the device refused: the slots of this step's misses are free, and the step may
    /// be tried again. What failed behind an earlier step is told first: this one has changed nothing then.
    pub fn load_on(
        &mut self,
        streams: Streams,
        step: impl Into<Step>,
        routes: &[ExpertId],
    ) -> Result<&[SlotId], Error> {
        let step = step.into();
        self.check_step(streams, step.layer)?;
        self.load_checked(streams, step, routes)?;
        Ok(self.plan.slots())
    }

    /// Before anything is decided: what can be seen to fail must not take slots from what is there.
    fn check_step(&self, streams: Streams, layer: LayerId) -> Result<(), Error> {
        self.check_attached(layer)?;
        self.check_with_host()?;
        self.check_streams(streams)
    }

    /// Whether there are slots, and streams of the device that no graph is being captured on.
    pub(crate) fn check_streams(&self, streams: Streams) -> Result<(), Error> {
        self.check_slots()?;
        self.device().check_stream(streams.compute)?;
        if streams.copy != streams.compute {
            self.device().check_stream(streams.copy)?;
        }
        Ok(())
    }

    fn load_checked(&mut self, streams: Streams, step: Step, routes: &[ExpertId]) -> Result<(), Error> {
        self.land()?;
        let ticket = self.residency.ensure(step, routes, &mut self.plan)?;
        if ticket.plan().is_repeat() {
            ticket.commit();
            // Its rows are on their way, perhaps behind another compute stream.
            return Ok(self.loader.take_over(streams.compute)?);
        }
        match self.loader.apply(streams, ticket.plan()) {
            Ok(bytes) => {
                let expert_bytes = self.loader.geometry().model().layer(step.layer).expert_bytes();
                debug_assert_eq!(
                    bytes,
                    ticket.plan().copies().len() as u64 * expert_bytes,
                    "what Stats::of_layer says"
                );
                ticket.commit();
                self.fetch_later(streams);
                Ok(())
            }
            Err(error) => {
                ticket.abort();
                Err(error.into())
            }
        }
    }

    /// As [`load_on`](Self::load_on), for ids in an engine's own form: any integers, in any memory order.
    ///
    /// An id equal to `absent` is a route that is not for this device.
    ///
    /// # Errors
    ///
    /// As [`load_on`](Self::load_on); an id that is neither an expert nor `absent`, with its value and position; an
    /// `absent` that is an expert's id.
    pub fn load_ids(
        &mut self,
        streams: Streams,
        step: impl Into<Step>,
        ids: impl IntoIterator<Item = i64>,
        absent: Option<i64>,
    ) -> Result<&[SlotId], Error> {
        let step = step.into();
        self.check_step(streams, step.layer)?;
        let mut routes = std::mem::take(&mut self.routes);
        let read = self.residency.read_ids(step.layer, ids, absent, &mut routes).map_err(Error::from);
        let loaded = read.and_then(|()| self.load_checked(streams, step, &routes));
        self.routes = routes;
        loaded.map(|()| self.plan.slots())
    }

    /// Parts a step that is wider than its pool by experts, each part to be loaded in turn; see
    /// [`residency::Cache::partition`].
    ///
    /// # Errors
    ///
    /// As [`residency::Cache::partition`]; a residency that is on the device.
    pub fn partition(&mut self, step: impl Into<Step>, routes: &[ExpertId], parts: &mut Parts) -> Result<(), Error> {
        self.check_with_host()?;
        Ok(self.residency.partition(step, routes, parts)?)
    }

    /// Makes room for steps of `route_count` routes with tokens, and for verify steps and their acceptance, which then
    /// allocate nothing from the first on: every layer remembers one of each.
    pub fn reserve_remembered(&mut self, route_count: usize) {
        self.residency.reserve_remembered(route_count);
        self.plan.reserve(route_count);
    }

    /// Ends a verify step once it is known which drafts were accepted; see [`residency::Cache::accept`].
    ///
    /// # Errors
    ///
    /// As those of [`residency::Cache::accept`].
    pub fn accept(&mut self, layer: LayerId, accepted: &[ExpertId]) -> Result<(), Error> {
        self.check_with_host()?;
        Ok(self.residency.accept(layer, accepted)?)
    }

    /// What the last step decided.
    pub fn plan(&self) -> &residency::Plan {
        &self.plan
    }
}
