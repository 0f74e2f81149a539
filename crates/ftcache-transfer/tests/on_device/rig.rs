//! A residency on the host and its twin on the device, given the same steps.
//!
//! *Unsafe*, relying on one promise: the rows that a step is told of lie in the rig's own memory, which is synchronised
//! before it is read or freed.

use ftcache_policy::{Eviction, ExpertId, LayerId, SlotId};
use ftcache_residency::{Cache, EnsureError, Misses, Phase, Plan, Step};
use ftcache_transfer::{
    CudaDevice, Device, DeviceAnswers, DeviceIds, DeviceModeError, DeviceRows, DeviceSplit, DeviceStep, DeviceTables,
    DeviceWeights, FaultReport, IdWidth, Memory, Stream,
};

use crate::cuda_world::CudaWorld;

/// Values that stand for no slot, one for each meaning.
pub(crate) const CPU: i64 = -7;
pub(crate) const ABSENT: i64 = -9;

/// How routes lie on the device and what is asked beside the slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub(crate) width: IdWidth,
    /// Routes of a row; the last row of a step may be short, and is then filled with absent ones.
    pub(crate) per_row: u32,
    /// Ids from the end of a row to the next row.
    pub(crate) gap: u32,
    pub(crate) in_place: bool,
    pub(crate) map: bool,
    pub(crate) split: bool,
    pub(crate) weight_bytes: u32,
}

impl Form {
    /// Routes in one column, rewritten in place.
    pub(crate) const PLAIN: Self =
        Self { width: IdWidth::Four, per_row: 1, gap: 0, in_place: true, map: false, split: false, weight_bytes: 0 };
}

impl Default for Form {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// What the device said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    pub(crate) slots: Vec<i64>,
    pub(crate) cpu_ids: Vec<i64>,
    pub(crate) map: Vec<i32>,
    pub(crate) device_weights: Vec<u32>,
    pub(crate) cpu_weights: Vec<u32>,
}

pub(crate) struct Rig {
    pub(crate) world: CudaWorld,
    pub(crate) device: CudaDevice,
    pub(crate) tables: DeviceTables,
    /// Whose residency is on the device.
    pub(crate) twin: Cache,
    /// That decides on the host.
    pub(crate) host: Cache,
    pub(crate) plan: Plan,
    pub(crate) stream: Stream,
    pub(crate) memory: Memory,
    memory_bytes: u64,
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.tables.free(&mut self.device).unwrap();
        self.device.free(self.memory);
        self.device.destroy_stream(self.stream);
    }
}

fn id_bytes(width: IdWidth) -> usize {
    match width {
        IdWidth::Four => 4,
        IdWidth::Eight => 8,
    }
}

/// Where the numbers of a step lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) form: Form,
    pub(crate) base: u64,
    route_count: usize,
    row_count: u64,
    per_row: usize,
    /// Bytes from row to row of ids, and of weights.
    pub(crate) stride: u64,
    weight_stride: u64,
    experts: usize,
    /// Routes, slots, CPU experts, map, weights, weights of the device; and the end.
    pub(crate) begins: [u64; 7],
}

const NOISE: u8 = 0x5A;

impl Layout {
    fn new(base: u64, route_count: usize, form: Form, expert_count: u32) -> Self {
        let per_row = form.per_row.max(1) as usize;
        let row_count = route_count.div_ceil(per_row) as u64;
        let stride = ((per_row + form.gap as usize) * id_bytes(form.width)) as u64;
        let weight_stride = (per_row * form.weight_bytes as usize) as u64;
        let experts = expert_count as usize;
        let ids = (row_count * stride).next_multiple_of(16);
        let weights = (row_count * weight_stride).next_multiple_of(16);
        let parts = [ids, ids, ids, (4 * experts as u64).next_multiple_of(16), weights, weights];
        let mut begins = [base; 7];
        for (part, bytes) in parts.into_iter().enumerate() {
            begins[part + 1] = begins[part] + bytes;
        }
        Self { form, base, route_count, row_count, per_row, stride, weight_stride, experts, begins }
    }

    /// Where the bytes behind it end.
    pub(crate) fn end(&self) -> u64 {
        self.begins[6] + 16
    }

    /// Its bytes before the step: routes and weights, and noise wherever nothing is to be read.
    pub(crate) fn image(&self, ids: &[i64]) -> Vec<u8> {
        assert_eq!(ids.len(), self.route_count);
        let (width, weight_bytes) = (id_bytes(self.form.width), self.form.weight_bytes as usize);
        let mut image = vec![NOISE; (self.end() - self.base) as usize];
        for route in 0..self.row_count as usize * self.per_row {
            let (row, column) = (route / self.per_row, route % self.per_row);
            let id = ids.get(route).copied().unwrap_or(ABSENT);
            let at = row * self.stride as usize + column * width;
            image[at..at + width].copy_from_slice(&id.to_le_bytes()[..width]);
            let first = (self.begins[4] - self.base) as usize;
            let at = first + row * self.weight_stride as usize + column * weight_bytes;
            image[at..at + weight_bytes].copy_from_slice(&weight(route).to_le_bytes()[..weight_bytes]);
        }
        image
    }

    /// What the bytes after a step say, in route order. What is not to be written is as it was.
    #[track_caller]
    pub(crate) fn answer(&self, step: Step, before: &[u8], after: &[u8]) -> Answer {
        let (form, begins) = (self.form, self.begins.map(|begin| (begin - self.base) as usize));
        let width = id_bytes(form.width);
        let numbers = |begin: usize, stride: u64, bytes: usize| -> Vec<u64> {
            let number = |route: usize| {
                let at = begin + route / self.per_row * stride as usize + route % self.per_row * bytes;
                let mut number = [0; 8];
                number[..bytes].copy_from_slice(&after[at..at + bytes]);
                u64::from_le_bytes(number)
            };
            (0..self.route_count).map(number).collect()
        };
        let signed = |begin: usize| -> Vec<i64> {
            let shift = 64 - 8 * width as u32;
            numbers(begin, self.stride, width).iter().map(|&id| (id << shift) as i64 >> shift).collect()
        };
        let mut answer = Answer { slots: signed(begins[usize::from(!form.in_place)]), ..Answer::default() };
        if form.map {
            let map = after[begins[3]..].chunks_exact(4).take(self.experts);
            answer.map = map.map(|slot| i32::from_le_bytes(slot.try_into().unwrap())).collect();
        }
        if matches!(step.misses, Misses::Hybrid { .. }) && form.split {
            answer.cpu_ids = signed(begins[2]);
            if form.weight_bytes > 0 {
                let of = |begin| numbers(begin, self.weight_stride, form.weight_bytes as usize);
                answer.device_weights = of(begins[5]).iter().map(|&weight| weight as u32).collect();
                answer.cpu_weights = of(begins[4]).iter().map(|&weight| weight as u32).collect();
            }
        }
        let (per_row, stride) = (self.per_row * width, self.stride as usize);
        for begin in &begins[..3] {
            for row in 0..self.row_count as usize {
                let gap = begin + row * stride + per_row..begin + (row + 1) * stride;
                assert!(after[gap].iter().all(|&byte| byte == NOISE), "bytes after row {row} at {begin}");
            }
        }
        if !form.in_place {
            assert_eq!(after[..begins[1]], before[..begins[1]], "the routes");
        }
        assert!(after[begins[6]..].iter().all(|&byte| byte == NOISE), "bytes behind everything");
        answer
    }
}

impl Rig {
    pub(crate) fn new(seed: u64, residency: Cache) -> Self {
        Self::in_world(CudaWorld::new(seed), residency)
    }

    pub(crate) fn in_world(world: CudaWorld, residency: Cache) -> Self {
        let mut device = world.device();
        let mut tables = DeviceTables::new(&mut device, residency.layer_count()).unwrap();
        let stream = device.create_stream().unwrap();
        let memory_bytes = 1 << 16;
        let memory = device.allocate(memory_bytes, 256).unwrap();
        tables.engage(&mut device, &residency).unwrap();
        let (host, plan) = (residency.clone(), Plan::new());
        Self { world, device, tables, twin: residency, host, plan, stream, memory, memory_bytes }
    }

    /// Makes room for so many bytes. What lay there is lost.
    pub(crate) fn room(&mut self, bytes: u64) {
        if bytes > self.memory_bytes {
            self.device.free(self.memory);
            self.memory_bytes = bytes.next_multiple_of(4096);
            self.memory = self.device.allocate(self.memory_bytes, 256).unwrap();
        }
    }

    /// The address of a byte of the rig's memory.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.device.address(self.memory).unwrap() + offset
    }

    pub(crate) fn rows_at(&self, offset: u64, stride: u64) -> DeviceRows {
        let address = self.address(offset);
        // SAFETY: in the rig's memory, with room made for it.
        unsafe { DeviceRows::from_raw(address, stride) }
    }

    /// A layout of a step's numbers from an offset on.
    pub(crate) fn layout(&self, base: u64, route_count: usize, form: Form) -> Layout {
        Layout::new(base, route_count, form, self.host.expert_count())
    }

    /// A step over numbers that lie so.
    pub(crate) fn told(&self, step: Step, layout: &Layout) -> DeviceStep {
        let Layout { form, stride, weight_stride, begins, .. } = *layout;
        let ids = DeviceIds {
            rows: self.rows_at(begins[0], stride),
            row_count: layout.row_count,
            per_row: layout.per_row as u32,
            width: form.width,
            absent: Some(ABSENT),
        };
        let mut told = DeviceStep::new(step, ids);
        told.answers = DeviceAnswers {
            slots: (!form.in_place).then(|| self.rows_at(begins[1], stride)),
            cpu: CPU,
            absent: ABSENT,
            map: form.map.then(|| self.rows_at(begins[3], 0)),
        };
        if form.split {
            let weights = (form.weight_bytes > 0).then(|| DeviceWeights {
                source: self.rows_at(begins[4], weight_stride),
                device: Some(self.rows_at(begins[5], weight_stride)),
                // In place of the source, so that the order of reading and writing shows.
                cpu: Some(self.rows_at(begins[4], weight_stride)),
                bytes: form.weight_bytes,
            });
            let cpu_ids = Some(self.rows_at(begins[2], stride));
            told.split = DeviceSplit { cpu_ids, cpu_none: -1, weights };
        }
        told
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.device.write(self.memory, offset, bytes).unwrap();
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut target = vec![0; bytes as usize];
        self.device.read(self.memory, offset, &mut target).unwrap();
        target
    }

    /// Admits a step on the device from routes in this form. Returns the answer, in route order.
    pub(crate) fn admit(&mut self, step: Step, ids: &[i64], form: Form) -> Result<Answer, DeviceModeError> {
        let layout = self.layout(0, ids.len(), form);
        self.room(layout.end());
        let image = layout.image(ids);
        self.write(0, &image);
        let told = self.told(step, &layout);
        self.tables.admit(&mut self.device, self.stream, &self.twin, &told)?;
        let after = self.read(0, layout.end());
        Ok(layout.answer(step, &image, &after))
    }

    /// What the host would have answered, once it has admitted the step.
    pub(crate) fn expected(&mut self, step: Step, ids: &[i64], form: Form) -> Result<Answer, EnsureError> {
        let id = |id: i64| u32::try_from(id).map_or(ExpertId::ABSENT, ExpertId::new);
        let routes: Vec<ExpertId> = ids.iter().map(|&route| id(route)).collect();
        self.host.ensure(step, &routes, &mut self.plan)?.commit();
        let slot = |slot: &SlotId| match *slot {
            SlotId::ABSENT => ABSENT,
            SlotId::CPU => CPU,
            slot => i64::from(slot.get()),
        };
        let mut answer = Answer { slots: self.plan.slots().iter().map(slot).collect(), ..Answer::default() };
        if form.map {
            let experts = (0..self.host.expert_count()).map(ExpertId::new);
            let slot = |expert| self.host.slot_of(step.layer, expert).map_or(-1, |slot| slot.get() as i32);
            answer.map = experts.map(slot).collect();
        }
        if matches!(step.misses, Misses::Hybrid { .. }) && form.split {
            let cpu = |expert: Option<ExpertId>| expert.map_or(-1, |expert| i64::from(expert.get()));
            answer.cpu_ids = self.plan.cpu_experts().map(cpu).collect();
            if form.weight_bytes > 0 {
                let mask = if form.weight_bytes == 2 { 0xFFFF } else { u32::MAX };
                let part = |wanted: fn(SlotId) -> bool| {
                    let split = |(at, slot): (usize, &SlotId)| if wanted(*slot) { weight(at) & mask } else { 0 };
                    self.plan.slots().iter().enumerate().map(split).collect()
                };
                answer.device_weights = part(SlotId::is_slot);
                answer.cpu_weights = part(|slot| slot == SlotId::CPU);
            }
        }
        Ok(answer)
    }

    /// Admits a step on both sides: the same answer, the same copies, or refused by both with the state unchanged.
    /// Returns the device's answer.
    #[track_caller]
    pub(crate) fn step(&mut self, step: Step, ids: &[i64], form: Form, at: &str) -> Answer {
        let answer = self.admit(step, ids, form).unwrap_or_else(|error| panic!("{at}: {error}"));
        match self.expected(step, ids, form) {
            Ok(expected) => {
                assert_eq!(answer, expected, "{at}: {}", self.plan);
                let plan = self.tables.plan(&mut self.device, step.layer).unwrap();
                let counts = (plan.step, plan.distinct as usize, plan.misses as usize);
                let expected = (self.host.step(), self.plan.distinct_count(), self.plan.miss_count());
                assert_eq!(counts, expected, "{at}: {}", self.plan);
                assert_eq!(plan.copies, self.plan.copies(), "{at}: {}", self.plan);
                let faults = self.tables.take_faults();
                assert_eq!(faults, None, "{at}");
            }
            Err(error) => {
                assert!(answer.slots.iter().all(|&slot| slot == -1), "{at}: {error}, and {:?}", answer.slots);
                assert!(answer.map.iter().all(|&slot| slot == -1), "{at}: {error}");
                assert!(answer.cpu_ids.iter().all(|&id| id == -1), "{at}: {error}");
                let fault = self.tables.take_faults().unwrap_or_else(|| panic!("{at}: {error}, and no fault"));
                assert_eq!((fault.count, fault.step), (1, self.host.step()), "{at}: {error}");
                same_words(&fault, &error, at);
                assert!(self.tables.plan(&mut self.device, step.layer).unwrap().copies.is_empty(), "{at}: {error}");
            }
        }
        answer
    }

    /// Brings the twin back and compares all of it; then it goes on on the device.
    #[track_caller]
    pub(crate) fn compare(&mut self, at: &str) {
        self.tables.request_reading(&mut self.device, self.stream).unwrap();
        self.device.synchronize(self.stream).unwrap();
        let reading = self.tables.reading().expect(at);
        self.tables.disengage(&mut self.device, &mut self.twin).unwrap_or_else(|error| panic!("{at}: {error}"));
        self.twin.check().unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
        assert_eq!(self.twin.state().unwrap(), self.host.state().unwrap(), "{at}");
        assert_eq!((reading.step, reading.digest), (self.host.step(), self.host.digest()), "{at}");
        let layers = (0..self.host.layer_count()).map(LayerId::from_index);
        for (layer, read) in layers.zip(&reading.stats) {
            assert_eq!(*read, Phase::ALL.map(|phase| self.host.phase_stats(layer, phase)), "{at}: layer {layer}");
        }
        self.tables.engage(&mut self.device, &self.twin).unwrap();
    }

    /// Chooses victims by another rule from now on, on both sides.
    pub(crate) fn change_rule(&mut self, rule: Eviction) {
        self.tables.disengage(&mut self.device, &mut self.twin).unwrap();
        self.twin.set_eviction(rule).unwrap();
        self.host.set_eviction(rule).unwrap();
        self.tables.engage(&mut self.device, &self.twin).unwrap();
    }

    /// Nothing raced, was misused, damaged or left behind.
    #[track_caller]
    pub(crate) fn end(self) {
        let world = CudaWorld { driver: self.world.driver.clone(), ordinal: self.world.ordinal, emulated: None };
        let mut this = self;
        let emulated = this.world.emulated.take();
        drop(this);
        CudaWorld { emulated, ..world }.check_gone();
    }
}

/// A route's weight, of which both halves tell.
fn weight(route: usize) -> u32 {
    (route as u32 + 1).wrapping_mul(0x9E37_79B1) | 1
}

/// Whether a launch was refused for what the host refuses, with the same numbers.
fn same_words(fault: &FaultReport, error: &EnsureError, at: &str) {
    use ftcache_transfer::Fault;
    let same = match (&fault.first, error) {
        (
            Fault::StepTooWide { layer, needed, given },
            EnsureError::StepTooWide { layer: of, needed: n, given: g, .. },
        ) => (layer, *needed, *given) == (of, *n as u64, *g as u64),
        (Fault::LastStep { layer: _ }, EnsureError::LastStep { .. }) => true,
        _ => false,
    };
    assert!(same, "{at}: {fault}; the host says: {error}");
}
