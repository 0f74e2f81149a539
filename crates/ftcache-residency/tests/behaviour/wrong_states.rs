//! States that are none of the cache's: each refusal with its words, and nothing changed.

use ftcache_policy::{Eviction, ScoreNumbers};

use super::state::{EVICTED, NEVER_ROUTED, NOBODY, Twins, Way, hybrid, small_cache};
use super::*;

/// Has a state refused that was changed on the way, and holds that nothing has changed.
#[track_caller]
fn refused(change: impl FnOnce(&mut State)) -> StateError {
    let mut cache = small_cache();
    let mut state = cache.state().unwrap();
    change(&mut state);
    let before = format!("{cache:?}");
    let error = cache.set_state(&state).unwrap_err();
    assert_eq!(format!("{cache:?}"), before);
    error
}

fn lines(errors: impl IntoIterator<Item = StateError>) -> String {
    let lines: Vec<String> = errors.into_iter().map(|error| error.to_string()).collect();
    assert!(lines.iter().all(|line| !line.contains('\n')));
    lines.join("\n")
}

#[test]
fn a_state_of_other_numbers_is_refused() {
    let texts = lines([
        refused(|state| state.places.truncate(11)),
        refused(|state| state.active.push(0)),
        refused(|state| state.routed.clear()),
        refused(|state| state.marked.push(0)),
        refused(|state| state.carried.push(0)),
        refused(|state| state.stats.truncate(116)),
        refused(|state| state.stamps.push(0)),
        refused(|state| state.owners.truncate(4)),
        refused(|state| state.pinned.push(0)),
        refused(|state| state.pools.truncate(1)),
        refused(|state| state.pools[1].first = 3),
        refused(|state| state.pools[1].slot_count = 2),
        refused(|state| state.pools[0].pinned_count = 0),
        refused(|state| state.pools[1].marked_count = 3),
        refused(|state| state.pools[1].withheld = 1),
        refused(|state| state.step = 3),
        refused(|state| state.step = u64::MAX),
        refused(|state| state.carried[1] = 65_536),
    ]);
    insta::assert_snapshot!(texts, @"
    places: their number is 11 and should be 12
    active: their number is 13 and should be 12
    routed: their number is 0 and should be 12
    marked: their number is 13 and should be 12
    carried: their number is 4 and should be 3
    stats: their number is 116 and should be 117
    stamps: their number is 6 and should be 5
    owners: their number is 4 and should be 5
    pinned: their number is 6 and should be 5
    pools: their number is 1 and should be 2
    pool 1: first is 3 and should be 2
    pool 1: slot_count is 2 and should be 3
    pool 0: pinned_count is 0 and should be 1
    pool 1: marked_count is 3 and should be 2
    pool 1: withheld is 1 and should be 0
    a state of step 3; the cache is at step 4
    a state of step 18446744073709551615; step 18446744073709551614 is the last that can be counted
    layer 1 carries 65536/65536 of a miss; less than a whole one is carried
    ");
}

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let texts = lines([
        refused(|state| state.marked[3] = 0),
        refused(|state| state.marked[3] = 2),
        refused(|state| state.marked[4] = 1),
        refused(|state| state.active[8] = 5),
        refused(|state| state.places[9] = State::ABSENT_FIRST - 1),
        refused(|state| state.places[9] = SlotId::LIMIT),
        refused(|state| state.places[9] = State::ABSENT_FIRST + 6),
        refused(|state| state.places[9] = u32::MAX),
        refused(|state| state.places[9] = State::ABSENT_FIRST + Absence::InFlight as u32),
        refused(|state| state.places[5] = 1),
        refused(|state| state.places[0] = 2),
        refused(|state| state.places[9] = SlotId::LIMIT - 1),
        refused(|state| state.places[9] = 2),
        refused(|state| state.places[9] = 1),
        refused(|state| state.places.swap(8, 11)),
        // An expert with two slots, one that lost its own, and one that is in another pool's.
        refused(|state| (state.owners[4], state.stamps[4]) = (8, 4)),
        refused(|state| state.places[8] = EVICTED),
        refused(|state| (state.owners[4], state.stamps[4]) = (9, 4)),
        refused(|state| (state.owners[4], state.stamps[4]) = (12, 4)),
        refused(|state| (state.owners[4], state.stamps[4]) = (0, 4)),
        refused(|state| (state.owners[4], state.stamps[4]) = (5, 4)),
        refused(|state| (state.owners[2], state.places[8]) = (0, EVICTED)),
        refused(|state| state.stamps[4] = 4),
        refused(|state| state.stamps[0] = 0),
        refused(|state| (state.owners[0], state.places[0]) = (NOBODY, EVICTED)),
        refused(|state| state.owners[4] = 9),
        refused(|state| state.stamps[0] = 5),
        refused(|state| {
            state.pinned[0] = 1;
            state.pools[0].pinned_count = 2;
        }),
        refused(|state| {
            state.pinned[1] = 0;
            state.pools[0].pinned_count = 0;
        }),
        refused(|state| state.pinned[1] = 2),
        refused(|state| {
            state.pinned[4] = 1;
            state.pools[1].pinned_count = 1;
        }),
    ]);
    insta::assert_snapshot!(texts, @"
    layer 0 expert 3: its mark is 0; the cache's is 1
    layer 0 expert 3: its mark is 2; the cache's is 1
    layer 1 expert 0: its mark is 1; the cache's is 0
    layer 2 expert 0 was active in step 5; the last is 4
    layer 2 expert 1: 0xfffffff7 is neither a slot nor one of 6 absences from 0xfffffff8 on
    layer 2 expert 1: 0xfffffff0 is neither a slot nor one of 6 absences from 0xfffffff8 on
    layer 2 expert 1: 0xfffffffe is neither a slot nor one of 6 absences from 0xfffffff8 on
    layer 2 expert 1: 0xffffffff is neither a slot nor one of 6 absences from 0xfffffff8 on
    layer 2 expert 1: its row is said to be on its way
    layer 1 expert 1 is in slot 1; its layer holds 0 slots
    layer 0 expert 0 is in slot 2; pool 0 has 2 slots
    layer 2 expert 1 is in slot 4294967279; pool 1 has 3 slots
    flat expert 9 is in slot 2 of pool 1, which has no owner
    flat expert 9 is in slot 1 of pool 1, which has owner 11
    flat expert 8 is in slot 1 of pool 1, which has owner 11
    pool 1 slot 2 has owner 8, which is in slot 0 of pool 1
    pool 1 slot 0 has owner 8, which is in no slot
    pool 1 slot 2 has owner 9, which is in no slot
    pool 1 slot 2 has owner 12, which is no expert of 0..12
    pool 1 slot 2 has owner 0, which is in slot 0 of pool 0
    pool 1 slot 2 has owner 5, which is in no slot
    pool 1 slot 0 has owner 0, which is in slot 0 of pool 0
    pool 1 slot 2 has stamp 4 and no owner
    pool 0 slot 0 has stamp 0 and owner 0
    pool 0 slot 0 has stamp 2 and no owner
    pool 1 slot 2 has stamp 0 and owner 9
    pool 0 slot 0 has stamp 5; the last step is 4
    pool 0 slot 0: its pin is 1; by its owner's mark it is 0
    pool 0 slot 1: its pin is 0; by its owner's mark it is 1
    pool 0 slot 1: its pin is 2; by its owner's mark it is 1
    pool 1 slot 2: its pin is 1; by its owner's mark it is 0
    ");
}

/// The same refusals for numbers of scores as for all others; `ftcache-policy` tests each of them.
#[test]
fn scores_that_are_wrong_are_refused() {
    let cache = |rule| {
        let mut cache = small_cache();
        cache.set_eviction(rule).unwrap();
        [0, 2, 0].iter().for_each(|&number| drop(decode(&mut cache, number, &[0, 3])));
        cache
    };
    let refused = |rule, change: &dyn Fn(&mut State)| {
        let mut cache = cache(rule);
        let mut state = cache.state().unwrap();
        change(&mut state);
        let before = format!("{cache:?}");
        let error = cache.set_state(&state).unwrap_err();
        assert_eq!(format!("{cache:?}"), before, "{error}");
        error
    };
    fn scores(state: &mut State) -> &mut ScoreNumbers {
        state.scores.as_mut().unwrap()
    }
    let texts = lines([
        refused(Eviction::Lfu, &|state| state.scores = None),
        refused(Eviction::Lru, &|state| state.scores = cache(Eviction::Learned).state().unwrap().scores),
        refused(Eviction::Lfu, &|state| state.scores = cache(Eviction::Cyclic).state().unwrap().scores),
        refused(Eviction::Cyclic, &|state| scores(state).turns.push(0)),
        refused(Eviction::Learned, &|state| scores(state).followed[1] = 1),
        // What is wrong elsewhere is told first.
        refused(Eviction::Learned, &|state| {
            state.carried[1] = 65_536;
            scores(state).ring_next[0] = 8;
        }),
    ]);
    insta::assert_snapshot!(texts, @"
    a state without scores; the cache's eviction is lfu
    a state with scores; the cache's eviction is lru
    scores: they are of cyclic and should be of lfu
    scores: turns: their number is 4 and should be 3
    scores: layer 0 expert 1 is said to have followed 1 times; by the rings 0
    layer 1 carries 65536/65536 of a miss; less than a whole one is carried
    ");
}

#[test]
fn other_pins_are_refused() {
    let mut cache = small_cache();
    let state = cache.state().unwrap();
    cache.unpin(&[(layer(2), expert(1))]).unwrap();
    let error = cache.set_state(&state).unwrap_err();
    insta::assert_snapshot!(lines([error]), @"pool 1: marked_count is 2 and should be 1");
    cache.check().unwrap();
}

#[test]
fn rows_on_their_way_and_open_chunks_are_refused() {
    let mut cache = borrowing(3, 4, 12);
    let plan = commit(&mut cache, hybrid(0, FetchRule::UpTo(0)), &[0, 1, 2]);
    let state = cache.state().unwrap();
    let mut late = LatePlan::new();
    cache.fetch_later(&plan, 2, &mut late).unwrap().commit();
    // One of them is nobody's any more, and its copy is on its way all the same.
    cache.forget(POOL, slot(0));
    let in_flight = StateError::InFlight { pool: POOL, in_flight_count: 2 };
    assert_eq!((cache.state(), cache.set_state(&state)), (Err(in_flight), Err(in_flight)));
    assert_eq!(cache.land(late.flight()), 1);
    assert!(cache.state().is_ok());
    cache.begin_chunk().unwrap();
    assert_eq!((cache.state(), cache.set_state(&state)), (Err(StateError::ChunkOpen), Err(StateError::ChunkOpen)));
    cache.check().unwrap();
    insta::assert_snapshot!(lines([in_flight, StateError::ChunkOpen]), @"
    pool 0 has 2 slots in flight; a state has 0
    a prefill chunk is open
    ");
    cache.end_chunk().unwrap();
    cache.set_state(&state).unwrap();
    assert_eq!(cache.state(), Ok(state));
}

/// One number of a state, changed.
fn damage(state: &mut State, rng: &mut Rng) {
    fn one<'a, T>(numbers: &'a mut [T], rng: &mut Rng) -> Option<&'a mut T> {
        let index = rng.below(numbers.len().max(1) as u64) as usize;
        numbers.get_mut(index)
    }
    let large = [0, 1, 2, 3, 4, 7, State::ABSENT_FIRST - 8, NEVER_ROUTED, EVICTED, State::ABSENT_FIRST + 5, NOBODY];
    let large = large[rng.below(large.len() as u64) as usize];
    let (small, step) = (rng.below(3) as u8, rng.below(state.step + 3));
    match rng.below(12) {
        0 => one(&mut state.places, rng).map(|place| *place = large),
        1 => one(&mut state.owners, rng).map(|owner| *owner = large),
        2 => one(&mut state.stamps, rng).map(|stamp| *stamp = step),
        3 => one(&mut state.active, rng).map(|active| *active = step),
        4 => one(&mut state.marked, rng).map(|marked| *marked = small),
        5 => one(&mut state.pinned, rng).map(|pinned| *pinned = small),
        6 => one(&mut state.carried, rng).map(|carried| *carried = large),
        7 => one(&mut state.routed, rng).map(|routed| *routed = u64::from(large) << 7),
        8 => one(&mut state.stats, rng).map(|counter| *counter = u64::from(large)),
        9 => one(&mut state.pools, rng).map(|pool| {
            let PoolState { first, slot_count, pinned_count, marked_count, withheld } = pool;
            let number =
                [first, slot_count, pinned_count, marked_count, withheld].into_iter().nth(rng.below(5) as usize);
            *number.expect("one of five") = large % 4;
        }),
        10 => state.scores.as_mut().and_then(|scores| match rng.below(8) {
            0 => one(&mut scores.weights, rng).map(|weight| *weight = large),
            1 => one(&mut scores.turns, rng).map(|turn| *turn = large),
            2 => one(&mut scores.counts, rng).map(|count| *count = large),
            3 => one(&mut scores.totals, rng).map(|total| *total += u64::from(large)),
            4 => one(&mut scores.gains, rng).map(|gain| *gain = u64::from(large)),
            5 => one(&mut scores.ring_experts, rng).map(|expert| *expert = large as u16),
            6 => one(&mut scores.ring_next, rng).map(|next| *next = large as u8),
            _ => one(&mut scores.ring_widths, rng).map(|width| *width = large as u8),
        }),
        _ => {
            state.step = step;
            None
        }
    };
}

// Whatever comes in either is the residency from then on, whole and right, or leaves the cache as it was.
#[test]
fn a_damaged_state_is_refused_or_right() {
    let mut accepted = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut twins = Twins::new(seed / 20, Way::Same);
        (0..30).for_each(|_| twins.go_on());
        let (mut cache, mut state) = (twins.kept, twins.moved.state().unwrap());
        for _ in 0..1 + rng.below(3) {
            damage(&mut state, &mut rng);
        }
        let before = format!("{cache:?}");
        match cache.set_state(&state) {
            Ok(()) => {
                accepted += 1;
                cache.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
                assert_eq!(cache.state(), Ok(state), "seed {seed}");
                let routes = ids(&[0, 1]);
                if cache.ensure(layer(0), &routes, &mut Plan::new()).is_ok() {
                    cache.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
                }
            }
            Err(error) => assert_eq!(format!("{cache:?}"), before, "seed {seed}: {error}"),
        }
    }
    assert!((200..1_800).contains(&accepted), "{accepted} of 2,000 were accepted");
}
