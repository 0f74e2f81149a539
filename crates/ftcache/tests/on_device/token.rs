//! A decode token in a graph: for each layer its routes are admitted and gathered, and a kernel of the engine's reads
//! the slots.
//!
//! *Unsafe*, relying on two promises: device memory of the emulated driver is memory of this process, and what a kernel
//! of the engine's touches it has declared, so that it runs when its turn has come.

use ftcache::{DeviceAnswers, DeviceIds, DeviceRows, DeviceStep, ExpertId, IdWidth, Step, Stream};

use crate::engine::{Buffer, ok};
use crate::rig::{ABSENT, CPU, Rig, row};

/// Over which streams a token goes, and whether they are ordered as they must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    OneStream,
    /// Gathers go over a second stream, between their admission and the reader.
    Joined,
    /// The reader does not wait for the gather; the second stream is joined at the end.
    ReadsEarly,
    /// The gather does not wait for its admission.
    GathersEarly,
    /// The next layer's admission waits for the gather, and nothing else does.
    AdmissionJoins,
}

/// What is captured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Routes of a step.
    pub(crate) count: usize,
    pub(crate) in_place: bool,
    pub(crate) order: Order,
    /// Whether a kernel of the engine's reads the slots.
    pub(crate) reads: bool,
}

impl Shape {
    pub(crate) fn of(count: usize) -> Self {
        Self { count, in_place: true, order: Order::OneStream, reads: true }
    }
}

pub(crate) struct Token {
    pub(crate) exec: u64,
    /// One a layer.
    pub(crate) steps: Vec<Step>,
    shape: Shape,
    routes: Buffer,
    pub(crate) answers: Buffer,
    /// What the engine's kernels have read: for each step, route and bank a row, or zeros.
    outputs: Buffer,
}

impl Token {
    /// Room for the routes and answers of these steps.
    pub(crate) fn room(rig: &Rig, steps: &[Step], shape: Shape) -> Self {
        let routes = rig.engine.memory((4 * shape.count * steps.len()).max(1));
        let answers = if shape.in_place { routes } else { rig.engine.memory(routes.bytes) };
        let row_bytes = |step: &Step| rig.model().layer(step.layer).row_bytes().iter().sum::<u64>() as usize;
        let outputs = shape.count * steps.iter().map(row_bytes).sum::<usize>();
        let outputs = rig.engine.memory(outputs.max(1));
        Self { exec: 0, steps: steps.to_vec(), shape, routes, answers, outputs }
    }

    /// A graph of these steps, over the rig's stream.
    pub(crate) fn capture(rig: &mut Rig, steps: &[Step], shape: Shape) -> Self {
        let mut token = Self::room(rig, steps, shape);
        token.capture_anew(rig);
        token
    }

    /// Another graph over the same buffers.
    pub(crate) fn capture_anew(&mut self, rig: &mut Rig) {
        rig.engine.begin_capture(rig.stream);
        self.enqueue(rig);
        self.exec = rig.engine.end_capture(rig.stream);
    }

    /// A step as the cache is told of it.
    pub(crate) fn told(&self, index: usize) -> DeviceStep {
        let bytes = 4 * self.shape.count;
        let rows = |buffer: Buffer| {
            // SAFETY: in memory of the engine's, which goes after the cache.
            unsafe { DeviceRows::from_raw(buffer.address + (index * bytes) as u64, 0) }
        };
        let ids = DeviceIds {
            rows: rows(self.routes),
            row_count: 1,
            per_row: self.shape.count as u32,
            width: IdWidth::Four,
            absent: Some(ABSENT),
        };
        let slots = (!self.shape.in_place).then(|| rows(self.answers));
        let answers = DeviceAnswers { slots, cpu: CPU, absent: ABSENT, map: None };
        DeviceStep { answers, ..DeviceStep::new(self.steps[index], ids) }
    }

    /// Enqueues all steps.
    pub(crate) fn enqueue(&self, rig: &mut Rig) {
        let main = rig.stream;
        let side = if self.shape.order == Order::OneStream { main } else { rig.engine.stream() };
        for (index, step) in self.steps.iter().enumerate() {
            if self.shape.order == Order::GathersEarly {
                rig.engine.order(main, side);
            }
            rig.cache.admit_on_device(main, &self.told(index)).unwrap();
            if matches!(self.shape.order, Order::Joined | Order::ReadsEarly | Order::AdmissionJoins) {
                rig.engine.order(main, side);
            }
            rig.cache.gather_on_device(side, step.layer).unwrap();
            if matches!(self.shape.order, Order::Joined | Order::GathersEarly) {
                rig.engine.order(side, main);
            }
            if self.shape.reads {
                self.read_slots(rig, index, main);
            }
            if self.shape.order == Order::AdmissionJoins {
                rig.engine.order(side, main);
            }
        }
        if self.shape.order == Order::ReadsEarly {
            rig.engine.order(side, main);
        }
    }

    /// The engine's kernel: the rows of each route's slot, bank by bank, to the output.
    fn read_slots(&self, rig: &Rig, index: usize, stream: Stream) {
        let (layer, count) = (self.steps[index].layer, self.shape.count);
        let pool = rig.twin.residency().pool_of(layer).unwrap();
        let banks = rig.model().bank_ids().filter_map(|bank| rig.cache.slots(pool, bank).unwrap());
        let banks: Vec<ftcache::SlotSpan> = banks.collect();
        let answers = (self.answers.address + (4 * count * index) as u64, 4 * count as u64);
        let (begin, bytes) = self.output_of(rig, index);
        let output = (self.outputs.address + begin as u64, bytes as u64);
        let mut reads = vec![answers];
        reads.extend(banks.iter().map(|span| (span.address, span.stride * u64::from(span.slot_count))));
        let body = move || {
            let mut at = output.0;
            for route in 0..count as u64 {
                // SAFETY: declared as read.
                let slot = unsafe { ((answers.0 + 4 * route) as *const i32).read_unaligned() };
                for span in &banks {
                    let (target, bytes) = (at as *mut u8, span.row_bytes as usize);
                    if i64::from(slot) == CPU || i64::from(slot) == ABSENT {
                        // SAFETY: declared as written.
                        unsafe { target.write_bytes(0, bytes) };
                    } else {
                        assert!((0..i64::from(span.slot_count)).contains(&i64::from(slot)), "slot {slot}");
                        let source = (span.address + slot as u64 * span.stride) as *const u8;
                        // SAFETY: declared as read and as written.
                        unsafe { target.copy_from_nonoverlapping(source, bytes) };
                    }
                    at += span.row_bytes;
                }
            }
        };
        let _entered = rig.engine.enter();
        ok(rig.emulated().launch_often(stream.raw(), &reads, &[output], body));
    }

    /// Where a step's output lies.
    fn output_of(&self, rig: &Rig, index: usize) -> (usize, usize) {
        let of =
            |step: &Step| self.shape.count * rig.model().layer(step.layer).row_bytes().iter().sum::<u64>() as usize;
        (self.steps[..index].iter().map(of).sum(), of(&self.steps[index]))
    }

    /// What a step's output is to be.
    fn expected_output(&self, rig: &Rig, index: usize, ids: &[i64], slots: &[i64]) -> Vec<u8> {
        let layer = self.steps[index].layer;
        let mut output = Vec::new();
        for (&id, &slot) in ids.iter().zip(slots) {
            for bank in rig.model().bank_ids() {
                let row_bytes = rig.model().row_bytes(layer, bank);
                match slot {
                    CPU | ABSENT => output.extend(vec![0; row_bytes as usize]),
                    _ => output.extend(row(layer.get(), ExpertId::new(id as u32).get(), bank.get(), row_bytes)),
                }
            }
        }
        output
    }

    /// Launches the graph once for each token: `tokens[token][step]` are its routes. Nothing is waited for but at the
    /// end, and no call is made but those that move routes and results. Then every slot and every row that was read is
    /// compared with the twin's.
    #[track_caller]
    pub(crate) fn replay(&self, rig: &mut Rig, tokens: &[Vec<Vec<i64>>], at: &str) {
        let (bytes, output_bytes) = (4 * self.shape.count * self.steps.len(), self.outputs.bytes);
        let upload = rig.engine.pinned((tokens.len() * bytes).max(1));
        let (found, read) =
            (rig.engine.pinned((tokens.len() * bytes).max(1)), rig.engine.pinned(tokens.len() * output_bytes));
        let ids = tokens.iter().flatten().flatten();
        let image: Vec<u8> = ids.flat_map(|&id| (id as i32).to_le_bytes()).collect();
        assert_eq!(image.len(), tokens.len() * bytes);
        rig.engine.put(upload, 0, &image);
        let (stream, raw) = (rig.stream, rig.engine.raw);
        {
            let _entered = rig.engine.enter();
            let emulated = rig.emulated();
            let watched = || (emulated.blocking_calls(), emulated.counts().peak_bytes, emulated.counts().registrations);
            let (calls, before) = (emulated.calls_total(), watched());
            for token in 0..tokens.len() {
                rig.engine.upload(stream, upload, token * bytes, self.routes, 0, bytes);
                ok((raw.cuGraphLaunch)(self.exec, stream.raw()));
                rig.engine.download(stream, self.answers, 0, found, token * bytes, bytes);
                rig.engine.download(stream, self.outputs, 0, read, token * output_bytes, output_bytes);
            }
            assert_eq!(emulated.calls_total() - calls, 4 * tokens.len() as u64, "{at}: four calls a token");
            assert_eq!(watched(), before, "{at}: nothing waits, nothing is allocated");
        }
        rig.engine.sync(stream);
        for (number, token) in tokens.iter().enumerate() {
            let outputs = rig.engine.get(read, number * output_bytes, output_bytes);
            for (index, ids) in token.iter().enumerate() {
                let at = format!("{at}: token {number} layer {}", self.steps[index].layer);
                let expected = rig.on_host(self.steps[index], ids).unwrap_or_else(|error| panic!("{at}: {error}"));
                let begin = number * bytes + 4 * self.shape.count * index;
                let slots = rig.engine.get(found, begin, 4 * self.shape.count);
                let slot = |bytes: &[u8]| i64::from(i32::from_le_bytes(bytes.try_into().unwrap()));
                let slots: Vec<i64> = slots.chunks_exact(4).map(slot).collect();
                assert_eq!(slots, expected, "{at}: {}", rig.twin.plan());
                if self.shape.reads {
                    let (begin, bytes) = self.output_of(rig, index);
                    let wanted = self.expected_output(rig, index, ids, &slots);
                    assert_eq!(outputs[begin..begin + bytes], wanted, "{at}: what the engine's kernel has read");
                }
            }
        }
    }

    /// Puts the routes of one token where the graph finds them.
    pub(crate) fn put(&self, rig: &Rig, routes: &[Vec<i64>]) {
        let image: Vec<u8> = routes.iter().flatten().flat_map(|&id| (id as i32).to_le_bytes()).collect();
        assert_eq!(image.len(), 4 * self.shape.count * self.steps.len());
        let upload = rig.engine.pinned(image.len());
        rig.engine.put(upload, 0, &image);
        let _entered = rig.engine.enter();
        rig.engine.upload(rig.stream, upload, 0, self.routes, 0, image.len());
    }

    /// The answers of the last token, step by step.
    pub(crate) fn answers(&self, rig: &Rig) -> Vec<Vec<i64>> {
        rig.engine.sync(rig.stream);
        let answers = rig.engine.read(self.answers.address, 4 * self.shape.count * self.steps.len());
        let slots = answers.chunks_exact(4).map(|slot| i64::from(i32::from_le_bytes(slot.try_into().unwrap())));
        let slots: Vec<i64> = slots.collect();
        slots.chunks(self.shape.count).map(<[i64]>::to_vec).collect()
    }

    /// Launches the graph once. Returns the answers, step by step.
    #[track_caller]
    pub(crate) fn launch(&self, rig: &mut Rig, routes: &[Vec<i64>]) -> Vec<Vec<i64>> {
        self.put(rig, routes);
        rig.engine.launch(self.exec, rig.stream);
        self.answers(rig)
    }

    /// The twin's answers to the same.
    #[track_caller]
    pub(crate) fn on_host(&self, rig: &mut Rig, routes: &[Vec<i64>]) -> Vec<Vec<i64>> {
        self.steps.iter().zip(routes).map(|(&step, ids)| rig.on_host(step, ids).unwrap()).collect()
    }
}
