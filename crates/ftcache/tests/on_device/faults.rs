//! Calls of the driver that fail once while a cache is in device mode, or on its way there and back: a clear error, a
//! further try that goes through, the twin's state and bytes in the end, and nothing left behind.

use std::collections::BTreeSet;

use ftcache::policy::{Fetch, FetchRule};
use ftcache::{Error, FetchOrder, Geometry, Misses, Staging, Step, Stream, Streams};

use crate::rig::{Form, Rig, few, layer, world};
use crate::shapes::{self, LAYOUTS};

/// The driver's word for anything: nothing in particular is to be done about it.
const UNKNOWN: i32 = 999;

/// Calls that tell of failures.
const CALLS: [&str; 20] = [
    "cuCtxPushCurrent_v2",
    "cuCtxSynchronize",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuPointerGetAttribute",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

fn geometry() -> Geometry {
    let model = shapes::model(5, 2, &[LAYOUTS[0], LAYOUTS[2], LAYOUTS[0]]);
    Geometry::new(model, shapes::slots(15)).unwrap()
}

fn rig(seed: u64) -> Rig {
    let mut rig = Rig::on(world(seed), geometry(), 1);
    let staging = Staging::borrowed(rig.twin.geometry()).unwrap();
    rig.cache.set_staging(staging.clone(), 3).unwrap();
    rig.twin.set_staging(staging, 3).unwrap();
    rig
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Enter,
    Leave,
    Admit(u32, [i64; 3], bool),
    Gather(u32),
    Reset,
    Reading,
    Plan(u32),
    BeginChunk,
    Stage(u32, u32),
    Materialize(u32, u32),
    EndChunk,
    ReadRow,
    CheckDevice,
}

/// All that is called of a cache in device mode.
const LIFE: [Call; 29] = [
    Call::Enter,
    Call::Admit(0, [1, 2, 1], false),
    Call::Gather(0),
    Call::Admit(1, [0, 4, 3], true),
    Call::Gather(1),
    Call::Reading,
    Call::Plan(1),
    Call::ReadRow,
    Call::CheckDevice,
    Call::BeginChunk,
    Call::Stage(0, 0),
    Call::Materialize(1, 1),
    Call::Stage(2, 0),
    Call::EndChunk,
    Call::Admit(2, [4, 3, 2], false),
    Call::Gather(2),
    Call::Leave,
    // With other buffers, what was captured before is stale.
    Call::Enter,
    Call::Admit(0, [4, 0, 4], false),
    Call::Gather(0),
    Call::Reset,
    Call::Admit(0, [4, 0, 1], false),
    Call::Gather(0),
    Call::Leave,
    Call::Enter,
    Call::Admit(1, [1, 2, 2], false),
    Call::Gather(1),
    Call::CheckDevice,
    Call::Leave,
];

fn step(number: u32, is_hybrid: bool) -> Step {
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let hybrid = Misses::Hybrid { fetch, order: FetchOrder::Recency };
    Step { misses: if is_hybrid { hybrid } else { Misses::Fetched }, ..Step::new(layer(number)) }
}

impl Call {
    /// What the engine does before.
    fn prepare(self, rig: &mut Rig, at: usize) {
        match self {
            Self::Admit(_, ids, _) => rig.upload(&ids, Form::default()),
            Self::Enter if at == 17 => {
                let staging = Staging::dedicated(rig.twin.geometry(), 1);
                rig.cache.set_staging(staging.clone(), 3).unwrap();
                rig.twin.set_staging(staging, 3).unwrap();
            }
            _ => {}
        }
    }

    fn make(self, rig: &mut Rig) -> Result<(), Error> {
        let (cache, stream) = (&mut rig.cache, rig.stream);
        match self {
            Self::Enter => cache.enter_device_mode(few()),
            Self::Leave => cache.leave_device_mode(),
            Self::Admit(number, ids, is_hybrid) => {
                let told = rig.told(step(number, is_hybrid), ids.len(), Form::default());
                rig.cache.admit_on_device(stream, &told)
            }
            Self::Gather(number) => cache.gather_on_device(stream, layer(number)),
            Self::Reset => cache.reset_on_device(stream),
            Self::Reading => cache.request_reading(stream),
            Self::Plan(number) => cache.plan_on_device(layer(number)).map(|_| ()),
            Self::BeginChunk => cache.begin_chunk_on_device(stream),
            Self::Stage(number, buffer) => cache.stage_on_device(stream, layer(number), buffer),
            Self::Materialize(number, buffer) => cache.materialize_on_device(stream, layer(number), buffer),
            Self::EndChunk => cache.end_chunk_on_device(stream),
            Self::ReadRow => {
                let slot = rig.twin.residency().slot_of(layer(0), ftcache::ExpertId::new(1)).unwrap();
                let mut row = [0; 48];
                cache.read_row(layer(0), ftcache::BankId::new(0), slot, &mut row)
            }
            Self::CheckDevice => cache.check_device(),
        }
    }

    /// The same with the twin, and what is then to be seen.
    #[track_caller]
    fn check(self, rig: &mut Rig, at: &str) {
        match self {
            Self::Enter | Self::Plan(_) | Self::ReadRow | Self::CheckDevice => {}
            Self::Reading => rig.check_reading(at),
            Self::Leave => rig.check_same(at),
            Self::Admit(number, ids, is_hybrid) => {
                let expected = rig.on_host(step(number, is_hybrid), &ids).unwrap();
                assert_eq!(rig.answer(ids.len(), Form::default()).0, expected, "{at}");
            }
            Self::Gather(_) => rig.check_residents(at),
            Self::Reset => rig.twin.reset().unwrap(),
            Self::BeginChunk => rig.twin.begin_chunk(Streams::one(Stream::DEFAULT)).unwrap(),
            Self::Stage(number, buffer) | Self::Materialize(number, buffer) => {
                crate::prefill::check_staged(rig, layer(number), buffer, at);
            }
            Self::EndChunk => {
                rig.twin.abandon_chunk().unwrap();
                rig.check_bytes(at);
            }
        }
    }
}

/// What the driver is asked in each call of the life: name, and how often.
fn asked() -> Vec<Vec<(&'static str, u64)>> {
    let mut rig = rig(0);
    let mut asked = Vec::new();
    for (index, call) in LIFE.into_iter().enumerate() {
        call.prepare(&mut rig, index);
        let before = CALLS.map(|name| rig.emulated().calls(name));
        call.make(&mut rig).unwrap();
        let after = CALLS.map(|name| rig.emulated().calls(name));
        let calls = CALLS.into_iter().zip(before.iter().zip(after).map(|(before, after)| after - before));
        asked.push(calls.filter(|&(_, count)| count > 0).collect());
        call.check(&mut rig, "no fault");
    }
    rig.end();
    asked
}

/// A life in which one call fails, as the driver does.
fn live_with_fault(fails_in: usize, name: &str, after: u64) -> bool {
    let at = format!("{:?}, call {fails_in} of the life, {name} number {after}", LIFE[fails_in]);
    let mut rig = rig(after);
    let mut was_refused = false;
    for (index, call) in LIFE.into_iter().enumerate() {
        call.prepare(&mut rig, index);
        let was_on_device = rig.cache.is_in_device_mode();
        if index == fails_in {
            rig.emulated().fail_call(name, after, UNKNOWN);
            if let Err(error) = call.make(&mut rig) {
                was_refused = true;
                assert!(error.to_string().contains("(999)"), "{at}: {error}");
                assert_eq!(rig.cache.is_in_device_mode(), was_on_device, "{at}");
                rig.twin.residency().check().unwrap();
                call.make(&mut rig).unwrap_or_else(|error| panic!("{at}, again: {error}"));
            }
        } else {
            call.make(&mut rig).unwrap_or_else(|error| panic!("{at}, then {call:?}: {error}"));
        }
        call.check(&mut rig, &at);
    }
    rig.check_bytes(&at);
    rig.end();
    was_refused
}

#[test]
fn whatever_call_fails_once_a_further_try_goes_through() {
    let (mut tried, mut silent) = (0, BTreeSet::new());
    for (index, calls) in asked().into_iter().enumerate() {
        for (name, count) in calls {
            // Of many alike, some.
            let some = (0..count.min(2)).chain((2..count).step_by((count / 4).max(1) as usize)).chain([count - 1]);
            for after in some.collect::<BTreeSet<u64>>() {
                tried += 1;
                if !live_with_fault(index, name, after) {
                    silent.insert((format!("{:?}", LIFE[index]), name));
                }
            }
        }
    }
    assert!(tried > 150, "{tried} faults");
    assert!(silent.iter().all(|(_, name)| ["cuMemFree_v2", "cuMemGetInfo_v2"].contains(name)), "{silent:?}");
}
