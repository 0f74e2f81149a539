//! A step: routes in, slots out, the missing rows on their way.

use ftcache_policy::{ExpertId, LayerId, SlotId};
use ftcache_residency as residency;
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
    pub fn load(&mut self, layer: LayerId, routes: &[ExpertId]) -> Result<&[SlotId], Error> {
        self.load_on(Streams::one(Stream::DEFAULT), layer, routes)
    }

    /// Makes the experts of a step resident. Returns a slot for each route, in route order, local to the layer's pool;
    /// [`SlotId::ABSENT`] for a route that is [`ExpertId::ABSENT`].
    ///
    /// Nothing is waited for: copies are enqueued on the copy stream, behind what the compute stream was given before,
    /// and what the compute stream is given afterwards comes behind the copies. A step without a miss enqueues nothing,
    /// so all steps that share a pool are to name one compute stream: another is not ordered behind rows on their way.
    /// Such a step allocates nothing once there was one as wide, or if it is no wider than the requests of the geometry
    /// (up to 65,536 routes).
    ///
    /// # Errors
    ///
    /// An unknown layer, expert or stream, more distinct experts than the pool has slots, or a layer that is not attached:
    /// the cache is as it was. A copy that the device refused: the slots of this step's misses are free, and the step may
    /// be tried again.
    pub fn load_on(&mut self, streams: Streams, layer: LayerId, routes: &[ExpertId]) -> Result<&[SlotId], Error> {
        self.check_step(streams, layer)?;
        self.load_checked(streams, layer, routes)?;
        Ok(self.plan.slots())
    }

    /// Before anything is decided: what can be seen to fail must not take slots from what is there.
    fn check_step(&self, streams: Streams, layer: LayerId) -> Result<(), Error> {
        self.check_attached(layer)?;
        self.device().check_stream(streams.compute)?;
        Ok(self.device().check_stream(streams.copy)?)
    }

    fn load_checked(&mut self, streams: Streams, layer: LayerId, routes: &[ExpertId]) -> Result<(), Error> {
        let ticket = self.residency.ensure(layer, routes, &mut self.plan)?;
        match self.loader.apply(streams, ticket.plan()) {
            Ok(bytes) => {
                ticket.commit();
                self.bytes_of_layer[layer.index()] += bytes;
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
        layer: LayerId,
        ids: impl IntoIterator<Item = i64>,
        absent: Option<i64>,
    ) -> Result<&[SlotId], Error> {
        self.check_step(streams, layer)?;
        let expert_count = self.geometry().model().expert_count();
        if let Some(id) = absent.filter(|id| (0..i64::from(expert_count)).contains(id)) {
            return Err(Error::AbsentId { id, expert_count });
        }
        let mut routes = std::mem::take(&mut self.routes);
        let read = read_ids(&mut routes, layer, expert_count, ids, absent);
        let loaded = read.and_then(|()| self.load_checked(streams, layer, &routes));
        self.routes = routes;
        loaded.map(|()| self.plan.slots())
    }

    /// What the last step decided.
    pub fn plan(&self) -> &residency::Plan {
        &self.plan
    }
}

fn read_ids(
    routes: &mut Vec<ExpertId>,
    layer: LayerId,
    expert_count: u32,
    ids: impl IntoIterator<Item = i64>,
    absent: Option<i64>,
) -> Result<(), Error> {
    routes.clear();
    for (route, id) in ids.into_iter().enumerate() {
        if Some(id) == absent {
            routes.push(ExpertId::ABSENT);
            continue;
        }
        match u32::try_from(id) {
            Ok(expert) if expert < expert_count => routes.push(ExpertId::new(expert)),
            _ => return Err(Error::UnknownId { layer, route, id, expert_count }),
        }
    }
    Ok(())
}
