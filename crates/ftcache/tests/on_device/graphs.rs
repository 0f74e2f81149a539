//! Decode in a graph: captured once, launched for every token with other routes in the same buffers.

use ftcache::{Cache, LayerId, Step};
use ftcache_testkit::Rng;

use crate::rig::{ABSENT, Rig};
use crate::shapes::{self, pick};
use crate::token::{Order, Shape, Token};

const TOKENS: usize = 50;

/// Every layer with slots, one after another.
pub(crate) fn steps(rig: &Rig, rng: &mut Rng, hybrids: bool) -> Vec<Step> {
    let layers = rig.model().layer_ids().filter(|&layer| rig.twin.residency().pool_of(layer).is_ok());
    layers.map(|layer| Step { layer, ..shapes::step(rng, &[layer], hybrids) }).collect()
}

/// `tokens[token][step]`: as many routes for each step, of which some are absent and some alike.
pub(crate) fn tokens(rig: &Rig, rng: &mut Rng, steps: &[Step], count: usize, tokens: usize) -> Vec<Vec<Vec<i64>>> {
    let expert_count = u64::from(rig.model().expert_count());
    let hot = 1 + expert_count / 2;
    let id = |rng: &mut Rng| match rng.below(8) {
        0 => ABSENT,
        1..=4 => rng.below(hot) as i64,
        _ => rng.below(expert_count) as i64,
    };
    let step = |rng: &mut Rng| (0..count).map(|_| id(rng)).collect();
    (0..tokens).map(|_| steps.iter().map(|_| step(rng)).collect()).collect()
}

fn decode(seed: u64, order: Order, hybrids: bool) {
    let at = format!("seed {seed} {order:?}");
    let mut rng = Rng::new(seed);
    let geometry = shapes::geometry(&mut rng);
    let mut rig = Rig::ruled(seed, geometry);
    // Not more than every pool has slots for.
    let count = rig.model().top_k() as usize;
    let steps = steps(&rig, &mut rng, hybrids);
    let warm = tokens(&rig, &mut rng, &steps, count, 2);
    for (step, ids) in steps.iter().zip(&warm[0]) {
        rig.host_step(*step, ids, &at);
    }
    rig.enter();
    let shape = Shape { in_place: rng.chance(1, 2), order, ..Shape::of(count) };
    let token = Token::capture(&mut rig, &steps, shape);
    let routes = tokens(&rig, &mut rng, &steps, count, TOKENS);
    token.replay(&mut rig, &routes, &at);
    rig.check_reading(&at);
    rig.check_bytes(&at);
    // The same graph once more, behind a step that is in none.
    rig.step(pick(&mut rng, &steps), &warm[1][0], shapes::form(&mut rng), &at);
    token.replay(&mut rig, &routes[..3], &at);
    rig.leave(&at);
    rig.end();
}

#[test]
fn a_graph_of_a_whole_token_decides_for_each_token_as_the_host_does() {
    for seed in 0..20 {
        decode(seed, Order::OneStream, seed % 2 == 1);
    }
}

#[test]
fn gathers_over_a_second_stream_that_forks_and_joins_in_the_capture() {
    for seed in 100..120 {
        decode(seed, Order::Joined, seed % 2 == 1);
    }
}

/// Races of a graph whose streams are not ordered as they must be.
fn races(seed: u64, order: Order) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let geometry = shapes::geometry_of(&mut rng, shapes::model(8, 2, &[shapes::LAYOUTS[0]; 3]));
    let mut rig = Rig::ruled(seed, geometry);
    rig.enter();
    let steps: Vec<Step> = steps(&rig, &mut rng, false).into_iter().take(2).collect();
    let token = Token::capture(&mut rig, &steps, Shape { order, ..Shape::of(2) });
    assert!(rig.emulated().races().is_empty(), "nothing has run");
    token.launch(&mut rig, &vec![vec![1, 2]; steps.len()]);
    let races = rig.emulated().races();
    rig.cache.leave_device_mode().unwrap();
    rig.end();
    races
}

#[test]
fn a_reader_that_does_not_wait_for_the_gather_is_a_race() {
    for seed in 0..10 {
        for order in [Order::ReadsEarly, Order::AdmissionJoins] {
            let races = races(seed, order);
            let seen = races.iter().any(|race| race.contains("ftcache_gather_rows") && race.contains("kernel ("));
            assert!(seen, "seed {seed} {order:?}: {races:?}");
        }
    }
}

#[test]
fn a_gather_that_does_not_wait_for_its_admission_is_a_race() {
    for seed in 0..10 {
        let races = races(seed, Order::GathersEarly);
        let seen = races.iter().any(|race| race.contains("ftcache_gather_rows") && race.contains("ftcache_admit"));
        assert!(seen, "seed {seed}: {races:?}");
    }
    // With the order that is wanted there is none.
    assert_eq!(races(0, Order::Joined), [""; 0]);
}

#[test]
fn two_graphs_of_one_cache_are_launched_in_turn() {
    let mut rng = Rng::new(5);
    let geometry = shapes::geometry_of(&mut rng, shapes::model(9, 2, &shapes::LAYOUTS[..3]));
    let mut rig = Rig::new(5, geometry);
    rig.enter();
    let steps = steps(&rig, &mut rng, true);
    let narrow = Token::capture(&mut rig, &steps, Shape::of(1));
    let wide = Token::capture(&mut rig, &steps, Shape { in_place: false, ..Shape::of(2) });
    for round in 0..6 {
        for (token, count) in [(&narrow, 1), (&wide, 2)] {
            let routes = tokens(&rig, &mut rng, &steps, count, 3);
            token.replay(&mut rig, &routes, &format!("round {round}, {count} routes"));
        }
    }
    rig.leave("at the end");
    rig.end();
}

/// A cache may be asked for what changes nothing while its graphs run.
#[test]
fn looking_at_the_cache_between_launches_disturbs_nothing() {
    let mut rng = Rng::new(8);
    let geometry = shapes::geometry_of(&mut rng, shapes::model(9, 2, &shapes::LAYOUTS[..3]));
    let mut rig = Rig::new(8, geometry);
    rig.enter();
    let steps = steps(&rig, &mut rng, false);
    let token = Token::capture(&mut rig, &steps, Shape::of(2));
    for round in 0..5 {
        let routes = tokens(&rig, &mut rng, &steps, 2, 4);
        token.replay(&mut rig, &routes, &format!("round {round}"));
        let look = |cache: &Cache<_>, layer: LayerId| (cache.residency().digest(), cache.layer_stats(layer));
        let seen = look(&rig.cache, steps[0].layer);
        rig.check_reading(&format!("round {round}"));
        rig.cache.check_device().unwrap();
        assert_eq!(look(&rig.cache, steps[0].layer), seen, "what the host knows is of when it was left");
        let plan = rig.cache.plan_on_device(steps[0].layer).unwrap();
        assert_eq!(plan.step, rig.twin.residency().step() - steps.len() as u64 + 1);
    }
    rig.leave("at the end");
    rig.end();
}
