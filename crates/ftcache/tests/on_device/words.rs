//! Gathers that wait for a word of the host's: rows that the engine reads in once it sees what is missing.
//!
//! *Unsafe*, relying on one promise: rows are written before the word is raised that the gather waits for, and while
//! none is on its way.

use ftcache::DeviceModeOptions;
use insta::assert_snapshot;

use crate::engine::Pinned;
use crate::rig::{Form, Rig, Rows, few, layer};
use crate::shapes::{self, LAYOUTS};

/// A cache whose rows the engine reads in by and by.
struct Late {
    rig: Rig,
    /// Where they are to be.
    rows: Pinned,
    image: Vec<u8>,
    word: Pinned,
}

impl Late {
    fn new(seed: u64, word_looks: u64) -> Self {
        Self::with_options(seed, DeviceModeOptions { word_looks, ..few() })
    }

    fn with_options(seed: u64, options: DeviceModeOptions) -> Self {
        let geometry = ftcache::Geometry::new(shapes::model(6, 2, &[LAYOUTS[0]; 2]), shapes::slots(5)).unwrap();
        let mut rig = Rig::ruled(seed, geometry);
        let image = Rows::new(rig.model(), 1);
        let (rows, word) = (rig.engine.pinned(image.bytes().len()), rig.engine.pinned(4));
        image.attach_at(&mut rig.cache, rows);
        word.raise(0);
        rig.cache.enter_device_mode(options).unwrap();
        let late = Self { rig, rows, image: image.bytes().to_vec(), word };
        late.take_back();
        late
    }

    /// Lets there be no row.
    fn take_back(&self) {
        self.rig.engine.sync(self.rig.stream);
        // SAFETY: nothing is on its way.
        unsafe { self.rows.write(&vec![0xEE; self.image.len()]) };
    }

    /// An admission, and a gather that waits for the word to be at `value`.
    fn enqueue(&mut self, ids: &[i64], value: u32) {
        let rig = &mut self.rig;
        rig.upload(ids, Form::default());
        let told = rig.told(layer(0).into(), ids.len(), Form::default());
        rig.cache.admit_on_device(rig.stream, &told).unwrap();
        rig.cache.gather_on_device_after(rig.stream, layer(0), self.word.word(value)).unwrap();
    }

    /// Another thread reads the rows in, and raises the word, while this one waits for the step.
    fn read_in(&self, value: u32) {
        let Self { rig, rows, image, word } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(3));
                // SAFETY: what is on its way reads nothing before the word is raised.
                unsafe { rows.write(image) };
                word.raise(value);
            });
            rig.engine.sync(rig.stream);
        });
    }

    /// The twin's step, and the bytes of all residents.
    #[track_caller]
    fn check(&mut self, ids: &[i64], at: &str) {
        let slots = self.rig.answer(ids.len(), Form::default()).0;
        assert_eq!(slots, self.rig.on_host(layer(0).into(), ids).unwrap(), "{at}");
        self.rig.check_bytes(at);
        self.rig.cache.check_device().unwrap_or_else(|error| panic!("{at}: {error}"));
    }

    fn end(mut self) {
        self.rig.leave("at the end");
        self.rig.end();
    }
}

const PATIENT: u64 = u64::MAX;

#[test]
fn rows_that_are_read_in_late_are_in_their_slots_behind_the_gather() {
    for seed in 0..6 {
        let mut late = Late::new(seed, PATIENT);
        for (value, ids) in [(1, [1, 2]), (2, [2, 5]), (3, [0, 4])] {
            late.enqueue(&ids, value);
            late.read_in(value);
            late.check(&ids, &format!("seed {seed} word {value}"));
            late.take_back();
        }
        late.end();
    }
}

#[test]
fn a_word_is_counted_around_the_end_of_its_bits() {
    let mut late = Late::new(7, PATIENT);
    // At or past its value: what was raised further is enough, also past the end.
    for (before, value, after, ids) in [(u32::MAX - 1, u32::MAX, 2, [1, 2]), (2, 3, 1 << 30, [3, 4]), (9, 9, 9, [5, 0])]
    {
        late.word.raise(before);
        late.enqueue(&ids, value);
        late.read_in(after);
        late.check(&ids, &format!("{before} to {after}"));
    }
    late.end();
}

#[test]
fn a_step_without_a_miss_waits_for_no_word() {
    let mut late = Late::new(8, PATIENT);
    late.enqueue(&[1, 2], 1);
    late.read_in(1);
    late.check(&[1, 2], "two misses");
    // Nobody raises it any more.
    for ids in [&[2, 1, 2][..], &[], &[crate::rig::ABSENT]] {
        late.enqueue(ids, 5);
        late.check(ids, "no miss");
    }
    late.end();
}

#[test]
fn what_was_waited_for_in_vain_is_forgotten_and_told_of() {
    let mut late = Late::new(9, 20);
    late.enqueue(&[1, 2], 4);
    late.rig.engine.sync(late.rig.stream);
    let told = late.rig.cache.check_device().unwrap_err();
    assert_snapshot!(told, @"after step 1: layer 0: waited for the host's word to be 4; it is 0");
    // Nothing was copied, and what the step was given is free, as if its slots had been forgotten by a call.
    late.rig.on_host(layer(0).into(), &[1, 2]).unwrap();
    for slot in [0, 1].map(ftcache::SlotId::new) {
        late.rig.twin.forget(ftcache::PoolId::new(0), slot).unwrap();
    }
    late.rig.check_reading("not raised");
    let span = late.rig.cache.slots(ftcache::PoolId::new(0), ftcache::BankId::new(0)).unwrap().unwrap();
    assert_eq!(late.rig.engine.read(span.address, 96), [0; 96]);
    // The same experts miss again, and come this time.
    // SAFETY: nothing is on its way.
    unsafe { late.rows.write(&late.image) };
    late.word.raise(4);
    late.enqueue(&[1, 2], 4);
    late.check(&[1, 2], "tried again");
    late.end();
}

#[test]
fn a_wait_in_vain_is_told_of_behind_an_earlier_fault_and_leaves_no_hits() {
    let mut late = Late::new(12, 20);
    late.rig.upload(&[77], Form::default());
    let stray = late.rig.told(layer(1).into(), 1, Form::default());
    late.rig.cache.admit_on_device(late.rig.stream, &stray).unwrap();
    late.rig.engine.sync(late.rig.stream);
    late.enqueue(&[1, 2], 4);
    late.rig.engine.sync(late.rig.stream);
    let told = late.rig.cache.check_device().unwrap_err();
    assert_snapshot!(told, @"after step 0: layer 1, route 0: 77 is none of its 6 experts; 1 more launch was refused");
    late.rig.on_host(layer(0).into(), &[1, 2]).unwrap();
    for slot in [0, 1].map(ftcache::SlotId::new) {
        late.rig.twin.forget(ftcache::PoolId::new(0), slot).unwrap();
    }
    late.rig.check_reading("two faults");
    late.end();
}

#[test]
fn a_graph_waits_for_the_word_at_each_launch() {
    let mut late = Late::new(10, PATIENT);
    let told = late.rig.told(layer(0).into(), 2, Form::default());
    let stream = late.rig.stream;
    late.rig.engine.begin_capture(stream);
    late.rig.cache.admit_on_device(stream, &told).unwrap();
    late.rig.cache.gather_on_device_after(stream, layer(0), late.word.word(1)).unwrap();
    let exec = late.rig.engine.end_capture(stream);
    for (round, ids) in [[1, 2], [3, 1], [4, 5], [0, 1]].into_iter().enumerate() {
        late.word.raise(0);
        late.rig.upload(&ids, Form::default());
        late.rig.engine.launch(exec, stream);
        late.read_in(1);
        late.check(&ids, &format!("round {round}"));
        late.take_back();
    }
    late.end();
}

#[test]
fn a_word_that_kernels_cannot_read_is_refused() {
    let mut late = Late::new(11, PATIENT);
    let word = Box::new(std::sync::atomic::AtomicU32::new(0));
    // SAFETY: it is refused.
    let unpinned = unsafe { ftcache::HostWord::from_raw(&*word, 1) };
    let launches = late.rig.emulated().calls("cuLaunchKernel");
    let told = late.rig.cache.gather_on_device_after(late.rig.stream, layer(0), unpinned).unwrap_err();
    let address = format!("{:#x}", (&raw const *word).addr());
    assert_snapshot!(told.to_string().replace(&address, "ADDRESS"), @"kernel address of 4 bytes: the host memory at ADDRESS is not registered");
    assert_eq!(late.rig.emulated().calls("cuLaunchKernel"), launches);
    late.end();
}
