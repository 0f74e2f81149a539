//! What an admission takes, by requests and misses: by replays of a graph that holds nothing but admissions, and one by
//! one with a wait after each.
//!
//! Answers go beside the routes, so that the next replay finds the routes as they were; that it misses as often is what
//! [`Walk`] is for. Before anything is timed, two rounds are decided on the host too and the residencies compared;
//! after it, the device's own counters must say that each launch missed as often as it was to. Under other rules than
//! LRU a walk misses as often as it does, and the counters say how often that was.
//!
//! *Unsafe*, relying on one promise: routes and answers of a walk lie in memory that goes after its graph, and giving
//! it back waits for everything enqueued.

use std::time::Instant;

use ftcache_policy::{Eviction, PoolId};
use ftcache_residency::{Cache, Phase, Plan, Stats, Step};
use ftcache_transfer::{
    CudaDevice, Device, DeviceAnswers, DeviceIds, DeviceReading, DeviceRows, DeviceStep, DeviceTables, IdWidth, Stream,
};

use crate::driver::{Cuda, DeviceBytes};
use crate::walk::{Room, Walk};
use crate::{Effort, Outcome, in_words};

/// Steps are counted from here on, so that none of the rows has stamps of fewer digits than others: a selection takes a
/// pass for each eight bits, and these are three up to 2^24. A long decode is there after a few minutes.
const FIRST_STEP: u64 = 1 << 20;
/// A run of one count of threads takes two or three million.
const LAST_STEP: u64 = (1 << 24) - 1;
/// Where one step's routes begin, and flashlib's too: kernels may want that of addresses.
const ALIGNMENT: usize = 16;

/// One row's numbers. Times are in microseconds, one for each repeat.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    /// Of a step, by graph replay.
    pub(crate) graph: Vec<f64>,
    /// Of a step that is launched and waited for.
    pub(crate) wait: Vec<f64>,
    /// Admissions in the graph.
    pub(crate) graph_steps: u32,
    /// What the device counted while all that was timed.
    pub(crate) counted: Stats,
}

/// A device with tables.
pub(crate) struct Bench<'a> {
    cuda: &'a Cuda,
    device: CudaDevice,
    tables: DeviceTables,
    stream: Stream,
    /// Whose residency is on the device.
    ours: Cache,
    /// That decides on the host.
    host: Cache,
    plan: Plan,
}

/// A walk's routes on the device, and room for the answers.
struct Placed<'a> {
    routes: DeviceBytes<'a>,
    answers: DeviceBytes<'a>,
    /// Bytes from step to step, on either side.
    stride: usize,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cuda: &'a Cuda, room: Room, eviction: Eviction) -> Outcome<Self> {
        let pools = vec![Some(PoolId::new(0)); room.layer_count as usize];
        let mut ours = Cache::with_pools(room.expert_count, &pools, &[room.slot_count]).map_err(in_words)?;
        ours.skip_to(FIRST_STEP);
        ours.set_eviction(eviction).map_err(in_words)?;
        let mut device = cuda.device()?;
        let stream = device.create_stream().map_err(in_words)?;
        let mut tables = DeviceTables::new(&mut device, ours.layer_count()).map_err(in_words)?;
        if let Err(error) = tables.engage(&mut device, &ours) {
            // The first word of the two is the one to tell.
            let _ = tables.free(&mut device);
            return Err(error.to_string());
        }
        let host = ours.clone();
        Ok(Self { cuda, device, tables, stream, ours, host, plan: Plan::new() })
    }

    /// What the kernels run from.
    pub(crate) fn image(&self) -> String {
        self.device.kernel_image().map_or_else(String::new, ToString::to_string)
    }

    pub(crate) fn set_threads(&mut self, threads: u32) -> Outcome {
        self.tables.set_threads(threads).map_err(in_words)
    }

    /// # Errors
    ///
    /// The device's own, or that it decided otherwise than the host, or missed more or less than it was to.
    pub(crate) fn time(&mut self, walk: &Walk, effort: &Effort) -> Outcome<Timed> {
        let cuda = self.cuda;
        let placed = place(cuda, self.stream, walk)?;
        self.warm(walk, &placed)?;
        let rounds = effort.graph_steps.div_ceil(walk.step_count());
        let stream = self.stream;
        let graph = cuda.capture(stream, || (0..rounds).try_for_each(|_| self.round(walk, &placed)))?;
        let graph_steps = rounds * walk.step_count();
        let before = self.counted()?;
        let mut launch_count = 0_u32;
        let mut replay = || {
            launch_count += 1;
            graph.launch(stream)
        };
        let times = effort.time(cuda, stream, &mut replay)?;
        drop(graph);
        let wait = (0..effort.repeats).map(|_| self.wait(walk, &placed)).collect::<Outcome<Vec<f64>>>()?;
        let counted = difference(&self.counted()?, &before);
        if let Some(fault) = self.tables.take_faults() {
            return Err(format!("launches were refused: {fault}"));
        }
        let steps =
            u64::from(launch_count) * u64::from(graph_steps) + u64::from(effort.repeats) * u64::from(walk.step_count());
        check_counted(walk, steps, &counted, self.host.eviction())?;
        let step = self.reading()?.step;
        if step > LAST_STEP {
            return Err(format!(
                "step {step} is past {LAST_STEP}, where stamps get longer: ask for fewer threads at once"
            ));
        }
        let graph = times.iter().map(|seconds| seconds * 1e6 / f64::from(graph_steps)).collect();
        Ok(Timed { graph, wait, graph_steps, counted })
    }

    /// The reading that was just asked for.
    fn reading(&self) -> Outcome<DeviceReading> {
        self.tables.reading().ok_or_else(|| "a reading is not whole, though its stream was synchronised".to_owned())
    }

    /// From empty slots to the walk's steady state, on both sides.
    fn warm(&mut self, walk: &Walk, placed: &Placed<'_>) -> Outcome {
        self.forget_scores()?;
        self.tables.reset(&mut self.device, self.stream).map_err(in_words)?;
        self.host.reset();
        self.read()?;
        self.host.skip_to(self.reading()?.step);
        for round in 0..2 {
            self.round(walk, placed)?;
            for step in 0..walk.step_count() {
                let routes = walk.routes(step);
                let ticket = self.host.ensure(walk.layer(step), &routes, &mut self.plan).map_err(in_words)?;
                ticket.commit();
                let misses_are_known = round == 1 && self.host.eviction() == Eviction::Lru;
                if misses_are_known && self.plan.miss_count() != walk.misses as usize {
                    let (found, wanted) = (self.plan.miss_count(), walk.misses);
                    return Err(format!(
                        "step {step} of the walk misses {found} and not {wanted}: a bug of this program"
                    ));
                }
            }
        }
        self.read()?;
        if let Some(fault) = self.tables.take_faults() {
            return Err(format!("launches were refused: {fault}"));
        }
        let reading = self.reading()?;
        let (found, wanted) = ((reading.step, reading.digest), (self.host.step(), self.host.digest()));
        if found == wanted {
            return Ok(());
        }
        let ((step, digest), (host_step, host_digest)) = (found, wanted);
        Err(format!(
            "the device is at step {step} with a residency of digest {digest:#018x}, the host at {host_step} with \
             {host_digest:#018x}: they decided differently"
        ))
    }

    /// Starts scores over on both sides: what was timed, the device has counted alone.
    fn forget_scores(&mut self) -> Outcome {
        let rule = self.host.eviction();
        if rule == Eviction::Lru {
            return Ok(());
        }
        self.tables.disengage(&mut self.device, &mut self.ours).map_err(in_words)?;
        self.ours.set_eviction(rule).map_err(in_words)?;
        self.host.set_eviction(rule).map_err(in_words)?;
        self.tables.engage(&mut self.device, &self.ours).map_err(in_words)
    }

    /// Enqueues all steps of a walk.
    fn round(&mut self, walk: &Walk, placed: &Placed<'_>) -> Outcome {
        (0..walk.step_count()).try_for_each(|step| self.admit(walk, placed, step))
    }

    fn admit(&mut self, walk: &Walk, placed: &Placed<'_>, step: u32) -> Outcome {
        let offset = u64::from(step) * placed.stride as u64;
        // SAFETY: routes of every step lie there until the graph is gone and everything is done.
        let rows = unsafe { DeviceRows::from_raw(placed.routes.address + offset, 0) };
        // SAFETY: as above, as much room.
        let slots = unsafe { DeviceRows::from_raw(placed.answers.address + offset, 0) };
        let (row_count, width) = (walk.requests.into(), IdWidth::Four);
        let ids = DeviceIds { rows, row_count, per_row: walk.top_k, width, absent: None };
        let answers = DeviceAnswers { slots: Some(slots), ..DeviceAnswers::default() };
        let told = DeviceStep { answers, ..DeviceStep::new(Step::new(walk.layer(step)), ids) };
        self.tables.admit(&mut self.device, self.stream, &self.ours, &told).map_err(in_words)
    }

    /// Microseconds of a step that is launched and waited for, on the host's clock: the median of a round.
    fn wait(&mut self, walk: &Walk, placed: &Placed<'_>) -> Outcome<f64> {
        let one = |step| {
            let start = Instant::now();
            self.admit(walk, placed, step)?;
            self.cuda.synchronize(self.stream)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let times = (0..walk.step_count()).map(one).collect::<Outcome<Vec<f64>>>()?;
        Ok(crate::report::median(&times))
    }

    fn read(&mut self) -> Outcome {
        self.tables.request_reading(&mut self.device, self.stream).map_err(in_words)?;
        self.cuda.synchronize(self.stream)
    }

    /// All decode steps so far.
    fn counted(&mut self) -> Outcome<Stats> {
        self.read()?;
        let mut sum = Stats::default();
        for layer in self.reading()?.stats {
            let Stats { steps, routes, distinct, misses, evictions, .. } = layer[Phase::Decode as usize];
            sum.steps += steps;
            sum.routes += routes;
            sum.distinct += distinct;
            sum.misses += misses;
            sum.evictions += evictions;
        }
        Ok(sum)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.tables.free(&mut self.device);
        self.device.destroy_stream(self.stream);
    }
}

fn place<'a>(cuda: &'a Cuda, stream: Stream, walk: &Walk) -> Outcome<Placed<'a>> {
    let stride = (walk.route_count() as usize * size_of::<i32>()).next_multiple_of(ALIGNMENT);
    let bytes = walk.step_count() as usize * stride;
    let mut ids = vec![-1; bytes / size_of::<i32>()];
    for (step, row) in (0..).zip(ids.chunks_exact_mut(stride / size_of::<i32>())) {
        row.iter_mut().zip(walk.routes(step)).for_each(|(id, route)| *id = route.get() as i32);
    }
    let (routes, answers) = (cuda.memory(bytes)?, cuda.memory(bytes)?);
    routes.write(stream, &ids)?;
    Ok(Placed { routes, answers, stride })
}

fn difference(after: &Stats, before: &Stats) -> Stats {
    Stats {
        steps: after.steps - before.steps,
        routes: after.routes - before.routes,
        distinct: after.distinct - before.distinct,
        misses: after.misses - before.misses,
        evictions: after.evictions - before.evictions,
        ..Stats::default()
    }
}

/// Whether the device counted what so many steps of a walk are. How often they miss is known under LRU alone.
fn check_counted(walk: &Walk, steps: u64, counted: &Stats, eviction: Eviction) -> Outcome {
    let of = |each: u32| steps * u64::from(each);
    let misses = if eviction == Eviction::Lru { of(walk.misses) } else { counted.misses };
    let checks = [
        ("steps", counted.steps, steps),
        ("routes", counted.routes, of(walk.route_count())),
        ("distinct experts", counted.distinct, of(walk.distinct())),
        ("misses", counted.misses, misses),
        ("evictions", counted.evictions, misses),
    ];
    match checks.into_iter().find(|(_, found, wanted)| found != wanted) {
        Some((what, found, wanted)) => Err(format!("the device counted {found} {what} and not {wanted}")),
        None => Ok(()),
    }
}
