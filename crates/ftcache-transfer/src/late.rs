//! Copies behind a step, which nobody waits for, and those of hints, which a step may: on a stream of their own each,
//! and each flight with an event.

use std::collections::VecDeque;

use ftcache_residency::LatePlan;

use crate::{ApplyError, Device, DeviceError, Event, Loader, Stream, Streams};

/// Each has an event of the driver's, and is looked for one after another.
const MOST_FLIGHTS: usize = 1024;

/// Who copies are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// A step that is over.
    Later,
    /// One that is to come.
    Hints,
}

/// A stream of late copies and what is on its way.
#[derive(Debug)]
pub(crate) struct Late {
    stream: Stream,
    /// What orders others behind all that is on its way.
    fence: Event,
    /// Events that no flight has.
    idle: Vec<Event>,
    /// Flights in the order in which they land.
    flights: VecDeque<(u64, Event)>,
}

impl Late {
    fn new(device: &mut impl Device, flight_count: usize) -> Result<Self, DeviceError> {
        let stream = device.create_stream()?;
        let mut late = Self { stream, fence: Event(0), idle: Vec::new(), flights: VecDeque::new() };
        for _ in 0..flight_count.saturating_add(1) {
            match device.create_event() {
                Ok(event) => late.idle.push(event),
                Err(error) => {
                    late.idle.drain(..).for_each(|event| device.destroy_event(event));
                    device.destroy_stream(stream);
                    return Err(error);
                }
            }
        }
        late.fence = late.idle.pop().expect("one more than there are flights");
        late.flights.reserve(flight_count);
        Ok(late)
    }

    pub(crate) fn free(&mut self, device: &mut impl Device) {
        let flown = self.flights.drain(..).map(|(_, event)| event);
        flown.chain(self.idle.drain(..)).chain([self.fence]).for_each(|event| device.destroy_event(event));
        device.destroy_stream(self.stream);
    }
}

/// Late copies of which one was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateFailure {
    /// What was refused.
    pub error: ApplyError,
    /// Whether others may be on their way, so that the flight lands yet; else none is.
    pub on_its_way: bool,
}

impl<D: Device> Loader<D> {
    /// Lets the loader copy behind steps, with at most so many flights on their way.
    ///
    /// # Errors
    ///
    /// No flights, flights that were set before, or the device's own; nothing stays behind then.
    pub fn set_late(&mut self, flight_count: usize) -> Result<(), DeviceError> {
        self.set_flights(For::Later, flight_count)
    }

    /// Lets the loader copy ahead of steps by hints, with at most so many flights on their way.
    ///
    /// # Errors
    ///
    /// As [`set_late`](Self::set_late).
    pub fn set_hints(&mut self, flight_count: usize) -> Result<(), DeviceError> {
        self.set_flights(For::Hints, flight_count)
    }

    fn set_flights(&mut self, of: For, flight_count: usize) -> Result<(), DeviceError> {
        let operation = match of {
            For::Later => "late copies",
            For::Hints => "copies of hints",
        };
        let refused = |reason: &str| DeviceError::Failed { operation, bytes: 0, reason: reason.to_owned() };
        if !(1..=MOST_FLIGHTS).contains(&flight_count) {
            return Err(refused(&format!("{flight_count} flights at once; it must be 1 to {MOST_FLIGHTS}")));
        }
        if self.flights(of).is_some() {
            return Err(refused("they were set before"));
        }
        let late = Late::new(&mut self.device, flight_count)?;
        *self.flights(of) = Some(late);
        Ok(())
    }

    fn flights(&mut self, of: For) -> &mut Option<Late> {
        match of {
            For::Later => &mut self.late,
            For::Hints => &mut self.hints,
        }
    }

    /// Whether another flight behind a step may take off.
    pub fn may_take_off(&self) -> bool {
        self.late.as_ref().is_some_and(|late| !late.idle.is_empty())
    }

    /// Whether hints were set.
    pub fn has_hints(&self) -> bool {
        self.hints.is_some()
    }

    /// Whether another flight of a hint may take off.
    pub fn may_hint(&self) -> bool {
        self.hints.as_ref().is_some_and(|hints| !hints.idle.is_empty())
    }

    /// The compute stream of the last call, which a hint's copies come behind.
    pub fn compute(&self) -> Option<Stream> {
        self.compute
    }

    /// Enqueues the copies of a flight, behind what the compute stream was given until now. Nothing waits for them.
    /// Returns the bytes they move.
    ///
    /// # Errors
    ///
    /// The first copy that the device refuses.
    ///
    /// # Panics
    ///
    /// If no flight may take off ([`may_take_off`](Self::may_take_off)), or a bank of the layer is not attached.
    pub fn copy_late(&mut self, streams: Streams, plan: &LatePlan) -> Result<u64, LateFailure> {
        self.fly(For::Later, Some(streams.compute), plan)
    }

    /// The same for a hint, behind what the compute stream of the last call was given: the copies of that step are
    /// among it, so no copy of a hint is before them. Steps may come behind them; see [`apply`](Self::apply).
    ///
    /// # Errors
    ///
    /// As [`copy_late`](Self::copy_late).
    ///
    /// # Panics
    ///
    /// If no flight may take off ([`may_hint`](Self::may_hint)), or a bank of the layer is not attached.
    pub fn copy_hinted(&mut self, plan: &LatePlan) -> Result<u64, LateFailure> {
        self.fly(For::Hints, self.compute, plan)
    }

    fn fly(&mut self, of: For, compute: Option<Stream>, plan: &LatePlan) -> Result<u64, LateFailure> {
        let layer = plan.layer();
        let failed = |bank, source, on_its_way| {
            let slots = plan.copies().iter().map(|copy| copy.slot).collect();
            LateFailure { error: ApplyError { layer, bank, slots, source }, on_its_way }
        };
        let stream = self.flights(of).as_ref().expect("such flights are set").stream;
        let places = self.places.as_ref().map_err(|lack| failed(None, lack.clone(), false))?;
        let mut copies = std::mem::take(&mut self.copies);
        self.push_runs(&mut copies, places, (layer, plan.pool()), || plan.runs());
        let moved = copies.bytes();
        // Without the wait the rows would land under kernels that still read the slots' old owners.
        let fenced = match compute {
            Some(compute) => {
                let recorded = self.device.record(self.fences.release, compute);
                recorded.and_then(|()| self.device.wait(stream, self.fences.release))
            }
            // Everything was waited for since the last step.
            None => Ok(()),
        };
        let fenced = fenced.and_then(|()| self.before_slots_change(stream)).map_err(|error| failed(None, error, false));
        let enqueued = fenced
            .and_then(|()| self.enqueue(stream, &copies).map_err(|(bank, error)| failed(Some(bank), error, true)));
        self.copies = copies;
        if enqueued.as_ref().is_err_and(|failure| !failure.on_its_way) {
            return enqueued.map(|()| 0);
        }
        let late = self.flights(of).as_mut().expect("such flights are set");
        let event = late.idle.pop().expect("a flight may take off");
        if let Err(error) = self.device.record(event, stream) {
            self.flights(of).as_mut().expect("such flights are set").idle.push(event);
            // Nobody could tell when they have landed, so it is waited for. A device that cannot do that does no more
            // work.
            let _ = self.device.synchronize(stream);
            return Err(failed(None, error, false));
        }
        self.flights(of).as_mut().expect("such flights are set").flights.push_back((plan.flight(), event));
        enqueued.map(|()| moved)
    }

    /// The number of the first flight whose copies are done, once; `None` if there is none. Waits for nothing.
    ///
    /// # Errors
    ///
    /// The device's own.
    pub fn next_landed(&mut self) -> Result<Option<u64>, DeviceError> {
        for late in [&mut self.late, &mut self.hints].into_iter().flatten() {
            // Those of one stream are copied in order, so none of them lands before the first.
            let Some(&(flight, event)) = late.flights.front() else { continue };
            if self.device.has_passed(event)? {
                late.flights.pop_front();
                late.idle.push(event);
                return Ok(Some(flight));
            }
        }
        Ok(None)
    }

    /// Orders a stream behind every late copy that is on its way, and every one of a hint.
    pub(crate) fn after_late_copies(&mut self, stream: Stream) -> Result<(), DeviceError> {
        for late in [&self.late, &self.hints].into_iter().flatten().filter(|late| !late.flights.is_empty()) {
            self.device.record(late.fence, late.stream)?;
            self.device.wait(stream, late.fence)?;
        }
        Ok(())
    }

    /// Orders a compute stream behind a flight of a hint, and with it the copies that come behind that stream.
    pub(crate) fn after_hint(&mut self, compute: Stream, flight: u64) -> Result<(), DeviceError> {
        let Some(hints) = &self.hints else { return Ok(()) };
        // Numbers ascend, and one that is not among them has landed.
        let Some(&(_, event)) = hints.flights.iter().find(|&&(number, _)| number == flight) else { return Ok(()) };
        // Without this kernels would read slots whose rows are still on their way; or a row that comes late would land
        // on that of an expert which was given its slot since.
        self.device.wait(compute, event)?;
        // A fill of an open chunk may gather from them.
        self.after_slots_changed(compute)
    }
}
