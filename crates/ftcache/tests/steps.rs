//! Steps other than plain decode ones, with their bytes: what a CPU computes is not copied, a repeat copies nothing
//! again, pinned experts stay.

mod support;

use ftcache::policy::{Fetch, FetchRule};
use ftcache::{
    Budget, Constraints, Device, DeviceSpan, EnsureError, Error, ExpertId, FetchOrder, HostDevice, LayerId, Misses,
    Phase, PinError, PoolId, RowCopy, SlotId, Step, Streams,
};
use support::{World, model, row};

/// One layer of eight experts, top-2, with a bank of weights and one of scales.
fn world(slots: u64) -> World {
    World::new(model(8, 2, &[vec![48, 3]]), Constraints::new(Budget::Slots(slots)), HostDevice::new(), 0)
}

fn ids(routes: &[u32]) -> Vec<ExpertId> {
    routes.iter().copied().map(ExpertId::new).collect()
}

const STEP: Step = Step::new(LayerId::new(0));

#[test]
fn what_the_cpu_computes_is_not_copied() {
    let mut world = world(4);
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let hybrid = Step { misses: Misses::Hybrid { fetch, order: FetchOrder::LowestId }, ..STEP };
    let slots = world.cache.load(hybrid, &ids(&[5, 3, 5])).unwrap().to_vec();
    assert_eq!(slots, [SlotId::CPU, SlotId::new(0), SlotId::CPU]);
    let stats = world.cache.stats();
    assert_eq!((stats.residency.misses, stats.residency.fetched, stats.bytes), (2, 1, 51));
    world.check_slot(0, 3, 0, "the one that was fetched");
    // The first was active as lately as the second, and is fetched in its turn.
    let slots = world.cache.load(hybrid, &ids(&[5, 3])).unwrap().to_vec();
    assert_eq!(slots, [1, 0].map(SlotId::new));
    world.check_residents("at the end");
}

#[test]
fn a_step_asked_for_again_under_its_token_enqueues_nothing() {
    let mut world = world(4);
    let step = Step { token: Some(7), ..STEP };
    let slots = world.cache.load(step, &ids(&[5, 3])).unwrap().to_vec();
    let (summary, image) = (world.summary(), world.image());
    for _ in 0..2 {
        assert_eq!(world.cache.load(step, &ids(&[5, 3])).unwrap(), slots);
        assert!(world.cache.plan().is_repeat());
    }
    assert_eq!(world.summary(), summary);
    assert!(world.image() == image);
    let reused = EnsureError::TokenReused { layer: LayerId::new(0), token: 7 };
    assert_eq!(world.cache.load(step, &ids(&[5, 4])).unwrap_err(), Error::Ensure(reused));
    assert_eq!(world.summary(), summary);
}

#[test]
fn a_repeated_step_comes_behind_its_rows_over_whatever_stream_it_is_asked_for() {
    for seed in 0..40 {
        let constraints = Constraints::new(Budget::Slots(4));
        let mut world = World::new(model(8, 2, &[vec![48, 3]]), constraints, HostDevice::deferred(seed), 0);
        let [one, copy, other] = [(); 3].map(|()| world.cache.create_stream().unwrap());
        let step = Step { token: Some(7), ..STEP };
        world.cache.load_on(Streams { compute: one, copy }, step, &ids(&[5, 3])).unwrap();
        let slot = world.cache.load_on(Streams::one(other), step, &ids(&[5, 3])).unwrap()[0];
        assert!(world.cache.plan().is_repeat());
        // A kernel on the other stream looks at the slot.
        let arena = world.device.get().memories[0];
        let scratch = world.device.allocate(48, 1).unwrap();
        let span = |memory, offset| DeviceSpan { memory, offset, stride: 48 };
        let (source, target) = (span(arena, u64::from(slot.get()) * 48).into(), span(scratch, 0));
        // SAFETY: nothing of the copy is on the host.
        unsafe { world.device.copy_rows(other, &RowCopy { source, target, row_bytes: 48, row_count: 1 }) }.unwrap();
        world.device.synchronize(other).unwrap();
        let mut seen = [0; 48];
        world.device.read(scratch, 0, &mut seen).unwrap();
        assert_eq!(seen[..], row(0, 5, 0, 48), "seed {seed}");
    }
}

#[test]
fn a_step_whose_copies_failed_is_no_answer_to_its_token() {
    let mut world = world(4);
    let step = Step { token: Some(7), ..STEP };
    world.device.get_mut().host.fail_copy_after(1);
    assert!(matches!(world.cache.load(step, &ids(&[5, 3])).unwrap_err(), Error::Apply(_)));
    let slots = world.cache.load(step, &ids(&[5, 3])).unwrap().to_vec();
    assert!(!world.cache.plan().is_repeat(), "the rows had not arrived");
    assert_eq!(slots, [1, 0].map(SlotId::new));
    world.check_residents("tried again");
}

#[test]
fn drafts_leave_no_recency_until_they_are_accepted() {
    let mut world = world(4);
    for expert in 0..4 {
        world.load_one(0, &[expert]).unwrap();
    }
    let verify = Step { phase: Phase::Verify, ..STEP };
    world.cache.load(verify, &ids(&[0, 6])).unwrap();
    world.cache.accept(LayerId::new(0), &ids(&[0])).unwrap();
    // The rejected draft's expert goes first, and the accepted one's stays.
    world.load_one(0, &[7]).unwrap();
    let resident = |expert| world.cache.residency().slot_of(LayerId::new(0), ExpertId::new(expert)).is_some();
    assert_eq!([0, 1, 2, 3, 6, 7].map(resident), [true, false, true, true, false, true]);
    let nothing = EnsureError::NothingToAccept { layer: LayerId::new(0) };
    assert_eq!(world.cache.accept(LayerId::new(0), &[]).unwrap_err(), Error::Ensure(nothing));
    world.check_residents("at the end");
}

#[test]
fn a_pinned_expert_stays_and_every_step_goes_on_being_admitted() {
    let mut world = world(4);
    let layer = LayerId::new(0);
    let pins = [6, 1].map(|expert| (layer, ExpertId::new(expert)));
    world.cache.pin(&pins).unwrap();
    world.load_one(0, &[1, 6]).unwrap();
    for step in 0..20 {
        world.load_one(0, &[step % 8, (step + 3) % 8]).unwrap();
        world.check_residents("between");
    }
    let stay = pins.map(|(layer, expert)| world.cache.residency().slot_of(layer, expert).is_some());
    assert_eq!(stay, [true, true]);
    // Two slots are for the two experts of a step.
    let third = [(layer, ExpertId::new(2))];
    let too_many = PinError::TooMany { pool: PoolId::new(0), pinned: 3, unpinned: 2, slot_count: 4 };
    assert_eq!(world.cache.pin(&third).unwrap_err(), Error::Pin(too_many));
    world.cache.unpin(&pins[..1]).unwrap();
    world.cache.pin(&third).unwrap();
}

#[test]
fn a_cache_may_go_to_another_thread() {
    fn may_go<T: Send>() {}
    may_go::<ftcache::Cache<HostDevice>>();
    may_go::<ftcache::Cache<ftcache::CudaDevice>>();
}
