//! The residency as plain numbers, out of a cache and into one: nothing is lost. That nothing wrong gets in is
//! `wrong_states.rs`.

use ftcache_policy::{Eviction, Recency};
use ftcache_testkit::generators::skewed_routes;

use super::*;

pub(super) const EVICTED: u32 = State::ABSENT_FIRST + Absence::Evicted as u32;
const ON_CPU: u32 = State::ABSENT_FIRST + Absence::OnCpu as u32;
pub(super) const NEVER_ROUTED: u32 = State::ABSENT_FIRST;
pub(super) const NOBODY: u32 = State::NOBODY;

pub(super) fn hybrid(layer_number: u32, rule: FetchRule) -> Step {
    let misses = Misses::Hybrid { fetch: Fetch { rule, most: None }, order: FetchOrder::Recency };
    Step { misses, ..Step::new(layer(layer_number)) }
}

/// Three layers of four experts; the first in pool 0, of two slots, the last in pool 1, of three.
pub(super) fn small_cache() -> Cache {
    let pools = [Some(POOL), None, Some(PoolId::new(1))];
    let mut cache = Cache::with_pools(4, &pools, &[2, 3]).unwrap();
    cache.pin(&[(layer(0), expert(3)), (layer(2), expert(1)), (layer(2), expert(2))], 1).unwrap();
    decode(&mut cache, 0, &[0, 1]);
    decode(&mut cache, 0, &[0, 3, 3]);
    commit(&mut cache, hybrid(2, FetchRule::Carry(Fraction::from_q16(40_000).unwrap())), &[0, 1]);
    commit(&mut cache, of_phase(Phase::Prefill, 2), &[3]);
    cache
}

/// An empty cache with the pools, the rule and the pins of another.
fn emptied(cache: &Cache) -> Cache {
    let layers = (0..cache.layer_count()).map(LayerId::from_index);
    let pools: Vec<Option<PoolId>> = layers.clone().map(|layer| cache.pool_of(layer).ok()).collect();
    let slot_counts: Vec<u32> =
        (0..cache.pool_count()).map(|pool| cache.slot_count(PoolId::from_index(pool))).collect();
    let mut empty = Cache::with_pools(cache.expert_count(), &pools, &slot_counts).unwrap();
    empty.set_eviction(cache.eviction()).unwrap();
    let experts = layers.flat_map(|layer| (0..cache.expert_count()).map(move |number| (layer, expert(number))));
    let pinned: Vec<_> = experts.filter(|&(layer, expert)| cache.is_pinned(layer, expert)).collect();
    empty.pin(&pinned, 0).unwrap();
    empty
}

/// Holds that all that can be read of two caches is equal.
#[track_caller]
fn assert_alike(one: &Cache, other: &Cache) {
    one.check().unwrap();
    other.check().unwrap();
    assert_eq!((one.step(), one.digest()), (other.step(), other.digest()));
    for pool in (0..one.pool_count()).map(PoolId::from_index) {
        assert_eq!(owners(one, pool), owners(other, pool));
        assert_eq!(stamps(one, pool), stamps(other, pool));
        assert_eq!(one.pinned_count(pool), other.pinned_count(pool));
        assert_eq!(one.pool_stats(pool), other.pool_stats(pool));
    }
    for layer in (0..one.layer_count()).map(LayerId::from_index) {
        let phases = |cache: &Cache| Phase::ALL.map(|phase| cache.phase_stats(layer, phase));
        assert_eq!(phases(one), phases(other));
        assert_eq!(one.carried(layer), other.carried(layer));
        assert_eq!(one.layer_routing(layer), other.layer_routing(layer));
        for expert in (0..one.expert_count()).map(ExpertId::new) {
            let numbers = |cache: &Cache| {
                let is_pinned = cache.is_pinned(layer, expert);
                let (slot, absence) = (cache.slot_of(layer, expert), cache.absence(layer, expert));
                (slot, absence, cache.last_active(layer, expert), cache.routed(layer, expert), is_pinned)
            };
            assert_eq!(numbers(one), numbers(other));
        }
    }
    assert_eq!(one.state(), other.state());
}

#[test]
fn every_number_lies_where_kernels_look_for_it() {
    let stats = |cache: &Cache, number| Phase::ALL.map(|phase| cache.phase_stats(layer(number), phase).counters());
    let cache = small_cache();
    let wanted = State {
        step: 4,
        places: vec![
            0,
            EVICTED,
            NEVER_ROUTED,
            1, // in pool 0
            NEVER_ROUTED,
            NEVER_ROUTED,
            NEVER_ROUTED,
            NEVER_ROUTED, // in no pool
            0,
            ON_CPU,
            NEVER_ROUTED,
            1, // in pool 1
        ],
        active: vec![0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0],
        routed: vec![2, 1, 0, 2, 0, 0, 0, 0, 1, 1, 0, 1],
        marked: vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0],
        carried: vec![0, 0, 2 * 40_000 - 65_536],
        stats: [0, 1, 2].map(|layer| stats(&cache, layer)).into_iter().flatten().flatten().collect(),
        stamps: vec![2, 2, 3, 1, 0],
        owners: vec![0, 3, 8, 11, NOBODY],
        pinned: vec![0, 1, 0, 0, 0],
        pools: vec![
            PoolState { first: 0, slot_count: 2, pinned_count: 1, marked_count: 1, withheld: 0 },
            PoolState { first: 2, slot_count: 3, pinned_count: 0, marked_count: 2, withheld: 0 },
        ],
        scores: None,
    };
    assert_eq!(cache.state(), Ok(wanted));
    // Two steps of layer 0: five routes, one hit, four distinct experts, of which three missed.
    assert_eq!(stats(&cache, 0)[0], [2, 5, 1, 4, 3, 3, 1, 3, 0, 0, 0, 0, 0]);
    assert_eq!(cache.state().unwrap().stats[..13], stats(&cache, 0)[0]);
    assert_eq!(cache.state().unwrap().stats[(2 * 3 + Phase::Prefill as usize) * 13], 1, "a step of layer 2");
}

#[test]
fn counters_go_in_the_order_of_the_fields() {
    let counters: Vec<u64> = (1..=Stats::COUNTER_COUNT as u64).collect();
    let stats = Stats::from_counters(counters.clone().try_into().unwrap());
    assert_eq!(stats.counters()[..], counters);
    let text = format!("{stats:#?}");
    insta::assert_snapshot!(text, @"
    Stats {
        steps: 1,
        routes: 2,
        hit_routes: 3,
        distinct: 4,
        misses: 5,
        fetched: 6,
        evictions: 7,
        cold_misses: 8,
        capacity_misses: 9,
        staging_misses: 10,
        freed_misses: 11,
        cpu_misses: 12,
        refused: 13,
    }
    ");
}

#[test]
fn an_empty_cache_goes_out_and_in() {
    let cache = one_pool(2, 8, 4);
    let state = cache.state().unwrap();
    assert_eq!((&state.owners, &state.stamps), (&vec![NOBODY; 4], &vec![0; 4]));
    let mut other = one_pool(2, 8, 4);
    other.set_state(&state).unwrap();
    assert_alike(&other, &cache);
    let mut poolless = Cache::with_pools(8, &[None], &[]).unwrap();
    poolless.set_state(&poolless.state().unwrap()).unwrap();
    poolless.check().unwrap();
}

#[test]
fn a_state_takes_the_place_of_what_there_was() {
    let cache = small_cache();
    let mut other = emptied(&cache);
    decode(&mut other, 0, &[2, 1]);
    decode(&mut other, 2, &[3, 1, 2]);
    other.set_state(&cache.state().unwrap()).unwrap();
    assert_alike(&other, &cache);
}

#[test]
fn routes_beyond_32_bits_and_the_last_step_go_in() {
    let mut cache = small_cache();
    let mut state = cache.state().unwrap();
    (state.routed[0], state.carried[1], state.step) = (u64::MAX - 1, 65_535, Recency::LAST_STEP);
    state.active[2] = state.step;
    cache.set_state(&state).unwrap();
    cache.check().unwrap();
    assert_eq!(cache.state(), Ok(state));
    assert_eq!(cache.routed(layer(0), expert(0)), u64::MAX - 1);
    assert_eq!(refuse(&mut cache, layer(0), &[0]), EnsureError::LastStep { step: Recency::LAST_STEP });
}

// What kernels do not know of.
#[test]
fn drafts_wait_on_and_answers_are_forgotten() {
    let mut cache = one_pool(1, 8, 4);
    commit(&mut cache, of_phase(Phase::Verify, 0), &[0, 1]);
    let with_token = Step { token: Some(7), ..Step::new(layer(0)) };
    commit(&mut cache, with_token, &[2]);
    cache.set_state(&cache.state().unwrap()).unwrap();
    assert!(!commit(&mut cache, with_token, &[2]).is_repeat());
    cache.accept(layer(0), &ids(&[1])).unwrap();
    cache.check().unwrap();
    assert_eq!(stamps(&cache, POOL), [1, 4, 3, 0], "0 was rejected");
}

#[test]
fn nothing_is_fetched_later_for_a_step_before() {
    let mut cache = one_pool(1, 8, 4);
    let plan = commit(&mut cache, hybrid(0, FetchRule::UpTo(0)), &[0, 1]);
    cache.set_state(&cache.state().unwrap()).unwrap();
    let error = cache.fetch_later(&plan, 1, &mut LatePlan::new()).map(drop).unwrap_err();
    assert_eq!(error, LateError::NotTheLastStep { step: 1, last: None });
}

#[test]
fn what_came_of_chunks_and_flights_stays() {
    let mut cache = borrowing(3, 4, 12);
    decode(&mut cache, 0, &[0, 1]);
    cache.begin_chunk().unwrap();
    cache.end_chunk().unwrap();
    let plan = commit(&mut cache, hybrid(1, FetchRule::UpTo(0)), &[0]);
    let mut late = LatePlan::new();
    cache.fetch_later(&plan, 1, &mut late).unwrap().commit();
    cache.land(late.flight());
    let before = (cache.chunk_total(), cache.late_stats());
    assert_eq!((before.0.lost, before.1.landed), (2, 1));
    let state = cache.state().unwrap();
    assert_eq!(state.places[..2], [State::ABSENT_FIRST + Absence::Staged as u32; 2]);
    cache.set_state(&state).unwrap();
    assert_eq!((cache.chunk_total(), cache.late_stats()), before);
    cache.begin_chunk().unwrap();
    cache.check().unwrap();
}

/// How a residency comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To a new cache.
    New,
    /// To the cache as it was when it came back last: the steps since were the device's.
    AsItWas,
    /// To the cache that it is from.
    Same,
}

/// Two caches that see the same; one is taken out as plain numbers and in again now and then.
pub(super) struct Twins {
    rng: Rng,
    way: Way,
    pub(super) kept: Cache,
    pub(super) moved: Cache,
    /// What was moved, as it was then.
    before: Cache,
    /// The last step that was verified, by its layer and routes.
    verified: (LayerId, Vec<ExpertId>),
    accepted_count: u32,
    /// Layers with slots.
    in_play: Vec<u32>,
}

impl Twins {
    pub(super) fn new(seed: u64, way: Way) -> Self {
        let mut rng = Rng::new(seed);
        let slot_counts: Vec<u32> = (0..1 + rng.below(3)).map(|_| 1 + rng.below(20) as u32).collect();
        let mut pool = || rng.chance(4, 5).then(|| PoolId::new(rng.below(slot_counts.len() as u64) as u32));
        let mut pools: Vec<Option<PoolId>> = (0..5).map(|_| pool()).collect();
        pools[0] = Some(POOL);
        let mut cache = Cache::with_pools(2 + rng.below(24) as u32, &pools, &slot_counts).unwrap();
        cache.set_eviction(Eviction::ALL[seed as usize % 4]).unwrap();
        let (moved, before) = (cache.clone(), cache.clone());
        let in_play = (0..5).filter(|&number| pools[number as usize].is_some()).collect();
        Self { rng, way, kept: cache, moved, before, verified: (layer(0), Vec::new()), accepted_count: 0, in_play }
    }

    fn layer(&mut self) -> LayerId {
        layer(self.in_play[self.rng.below(self.in_play.len() as u64) as usize])
    }

    fn routes(&mut self) -> Vec<ExpertId> {
        let count = self.rng.below(12) as usize;
        let mut routes = skewed_routes(&mut self.rng, self.kept.expert_count(), count);
        for route in &mut routes {
            if self.rng.chance(1, 16) {
                *route = ExpertId::ABSENT;
            }
        }
        routes
    }

    fn step(&mut self) -> Step {
        let rng = &mut self.rng;
        let phase = [Phase::Decode, Phase::Decode, Phase::Prefill, Phase::Verify][rng.below(4) as usize];
        let fraction = Fraction::from_q16(rng.below(65_537) as u32).unwrap();
        let rule = match rng.below(4) {
            0 => FetchRule::UpTo(rng.below(6) as u32),
            1 => FetchRule::MinWait(fraction),
            2 => FetchRule::PreferFetch(fraction),
            _ => FetchRule::Carry(fraction),
        };
        let fetch = Fetch { rule, most: rng.chance(1, 3).then(|| rng.below(4) as u32) };
        let order = if rng.chance(1, 2) { FetchOrder::Recency } else { FetchOrder::LowestId };
        let misses = if rng.chance(1, 2) { Misses::Fetched } else { Misses::Hybrid { fetch, order } };
        let continues = rng.chance(1, 12);
        Step { phase, misses, continues, ..Step::new(self.layer()) }
    }

    /// The same call to both.
    fn both<T: PartialEq + std::fmt::Debug>(&mut self, call: impl Fn(&mut Cache) -> T) -> T {
        let (kept, moved) = (call(&mut self.kept), call(&mut self.moved));
        assert_eq!(moved, kept);
        kept
    }

    pub(super) fn go_on(&mut self) {
        match self.rng.below(24) {
            0 => {
                let pool = PoolId::new(self.rng.below(self.kept.pool_count() as u64) as u32);
                let free = slot(self.rng.below(u64::from(self.kept.slot_count(pool))) as u32);
                self.both(|cache| cache.forget(pool, free));
            }
            1 => {
                let layer = self.layer();
                let _ = self.both(|cache| cache.forget_layer(layer));
            }
            2 | 3 => {
                let layer = self.layer();
                let pinned = expert(self.rng.below(u64::from(self.kept.expert_count())) as u32);
                let _ = self.both(|cache| cache.pin(&[(layer, pinned)], 3));
                // Pins are the host's to say, and both sides are told.
                let _ = self.before.pin(&[(layer, pinned)], 3);
            }
            4 => {
                let layer = self.layer();
                let experts: Vec<_> = (0..self.kept.expert_count()).map(|number| (layer, expert(number))).collect();
                let _ = self.both(|cache| cache.unpin(&experts));
                self.before.unpin(&experts).unwrap();
            }
            5 | 6 if self.way == Way::Same => {
                let (layer, drafts) = self.verified.clone();
                let accepted: Vec<ExpertId> = drafts.into_iter().filter(|_| self.rng.chance(1, 2)).collect();
                let outcome = self.both(|cache| cache.accept(layer, &accepted));
                self.accepted_count += u32::from(outcome.is_ok());
            }
            7 if self.rng.chance(1, 4) => self.both(Cache::reset_stats),
            8 if self.rng.chance(1, 4) => self.both(Cache::reset_routing),
            9 if self.rng.chance(1, 4) => self.both(Cache::reset),
            10 => {
                let step = self.kept.step() + self.rng.below(9);
                self.both(|cache| cache.skip_to(step));
            }
            _ => self.admit(),
        }
    }

    fn admit(&mut self) {
        let (step, routes, is_aborted) = (self.step(), self.routes(), self.rng.chance(1, 12));
        // Every field of a plan that was new.
        let outcome = self.both(|cache| {
            let mut plan = Plan::new();
            let outcome = cache
                .ensure(step, &routes, &mut plan)
                .map(|ticket| if is_aborted { ticket.abort() } else { ticket.commit() });
            outcome.map(|()| format!("{plan} {plan:?}"))
        });
        if outcome.is_ok() && !is_aborted && step.phase == Phase::Verify {
            self.verified = (step.layer, routes);
        }
    }

    fn carry_over(&mut self) {
        let state = self.moved.state().unwrap();
        match self.way {
            Way::New => self.moved = emptied(&self.moved),
            Way::AsItWas => self.moved = self.before.clone(),
            Way::Same => {}
        }
        self.moved.set_state(&state).unwrap();
        assert_eq!(self.moved.state(), Ok(state));
        self.before = self.moved.clone();
        assert_alike(&self.moved, &self.kept);
    }
}

#[test]
fn a_cache_that_was_plain_numbers_decides_as_one_that_never_was() {
    let (mut seen, mut accepted_count) = (Stats::default(), 0);
    for seed in 0..150 {
        let way = [Way::New, Way::AsItWas, Way::Same][seed as usize % 3];
        // Read only of one that fails, last.
        println!("seed {seed}, {way:?}");
        let mut twins = Twins::new(seed, way);
        let between = 1 + twins.rng.below(9);
        for number in 0..300 {
            if number % between == 0 {
                twins.carry_over();
            }
            twins.go_on();
        }
        twins.carry_over();
        seen += twins.kept.total_stats();
        accepted_count += u64::from(twins.accepted_count);
    }
    // The steps are not all of one kind.
    let Stats { refused, evictions, cpu_misses, freed_misses, hit_routes, .. } = seen;
    let rare = [refused, evictions, cpu_misses, freed_misses, hit_routes, accepted_count].into_iter().min();
    assert!(rare > Some(250), "{seen:?}, {accepted_count} accepted");
}

/// A pinned expert, two that a prompt has left to go first, one that a hint has brought, and steps that were refused.
#[test]
fn what_victims_go_by_comes_back_beside_pins_hints_and_cold_slots() {
    for rule in Eviction::ALL {
        let mut cache = one_pool(3, 12, 6);
        cache.set_eviction(rule).unwrap();
        cache.pin(&[(layer(0), expert(3))], 1).unwrap();
        cache.skip_to(10);
        decode(&mut cache, 0, &[3, 4]);
        decode(&mut cache, 1, &[0, 1]);
        commit(&mut cache, of_phase(Phase::Prefill, 2), &[7, 8]);
        refuse(&mut cache, layer(2), &[0, 1, 2, 3, 4, 5]);
        let mut late = LatePlan::new();
        cache.hint(&Plan::new(), layer(2), &ids(&[9]), 1, &mut late).unwrap().commit();
        assert_eq!(cache.land(late.flight()), 1);
        assert_eq!(stamps(&cache, POOL), [11, 11, 12, 12, 1, 1], "{rule}");
        let (state, mut by_hand) = (cache.state().unwrap(), cache.clone());
        assert_eq!(by_hand.cancel_hints(), 1);
        cache.set_state(&state).unwrap();
        assert_alike(&cache, &by_hand);
        assert_eq!(cache.hint_stats(layer(2)), by_hand.hint_stats(layer(2)), "{rule}");
        for step in 0..30 {
            let routes = [step * 5 % 12, step * step % 12, 3];
            let plans = [&mut cache, &mut by_hand].map(|cache| decode(cache, step % 3, &routes));
            assert_eq!(plans[0], plans[1], "{rule}");
        }
        assert_alike(&cache, &by_hand);
    }
}
