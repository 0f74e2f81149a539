//! How long a step waits: cases worked out by hand, and what must hold for any rates.

use ftcache_policy::{Behind, Carried, FetchRule, LayoutKey, Pair, Point, Rates, StepRates, StepTime, StepTimeError};
use ftcache_testkit::Rng;

const EXPERT_BYTES: u64 = 1_000_000;

fn point(link: f64, cpu: Option<f64>, contended: Option<(f64, f64)>) -> Point {
    let contended = contended.map(|(link, cpu)| Pair { link, cpu });
    Point { tag: b"q".to_vec(), expert_bytes: EXPERT_BYTES, link, cpu, contended }
}

fn rates(point: Point, step_ns: u64) -> StepRates {
    let rates = Rates::new("card", vec![point]).unwrap().with_seconds_per_step(step_ns as f64 * 1e-9).unwrap();
    StepRates::of(&rates, &LayoutKey::tagged("q", [EXPERT_BYTES]), 1 << 16).unwrap()
}

/// Link and CPU time of a step.
fn time(rates: &StepRates, fetched: u32, on_cpu: u32) -> (u64, u64) {
    let StepTime { link_ns, cpu_ns } = rates.time(fetched, on_cpu).unwrap();
    (link_ns, cpu_ns)
}

/// Experts of 1 MB: 1 MB at 1 GB/s is 1 ms, at 2 GB/s 500 us, at 4 GB/s 250 us, at 3 GB/s 333,333.3 ns.
#[test]
fn steps_worked_out_by_hand() {
    // A step without work takes nothing, not even what a step takes besides its bytes.
    let alone = rates(point(1e9, Some(4e9), None), 10_000);
    assert_eq!(time(&alone, 0, 0), (0, 0));
    // The link alone: 10 us, and 3 ms for 3 MB.
    assert_eq!(time(&alone, 3, 0), (3_010_000, 0));
    // The CPU alone: 7 MB at 4 GB/s.
    assert_eq!(time(&alone, 0, 7), (0, 1_750_000));
    // Both, not measured together: for 10 us the CPU is alone and reads 40 kB. For the link's 1 ms it is left with 3
    // GB/s and reads 3 MB. What remains of 7 MB are 3.96 MB at 4 GB/s: 990 us.
    assert_eq!(time(&alone, 1, 7), (1_010_000, 2_000_000));
    // The CPU is done before the link: (3 MB - 40 kB) at 3 GB/s are 986,666.7 ns, and the link goes on as it did.
    assert_eq!(time(&alone, 2, 3), (2_010_000, 996_667));
    // The CPU is done before the first byte moves: with 1 ms for the step it reads 4 MB.
    assert_eq!(time(&rates(point(1e9, Some(4e9), None), 1_000_000), 1, 4), (2_000_000, 1_000_000));

    // Measured together, each is slower while the other works: link 1 -> 0.8 GB/s, CPU 4 -> 2 GB/s.
    let pair = rates(point(1e9, Some(4e9), Some((0.8e9, 2e9))), 0);
    // One row takes 1.25 ms meanwhile, in which the CPU reads 2.5 MB; the rest of 6 MB, 3.5 MB, at 4 GB/s: 875 us.
    assert_eq!(time(&pair, 1, 6), (1_250_000, 2_125_000));
    // The CPU's 2 MB take 1 ms, in which 0.8 of the link's 4 MB arrive; the other 3.2 MB at 1 GB/s.
    assert_eq!(time(&pair, 4, 2), (4_200_000, 1_000_000));
    // Both end at once: 0.8 * t = 2 MB and 2 * t = 5 MB at t = 2.5 ms.
    assert_eq!(time(&pair, 2, 5), (2_500_000, 2_500_000));
    // Parts of a nanosecond are rounded up: 1 MB at 3 GB/s.
    assert_eq!(time(&rates(point(3e9, Some(9e9), None), 0), 1, 0), (333_334, 0));

    // A link faster than the CPU, alone: it leaves nothing, so the CPU's 2 ms for 4 MB come after the link's 500 us.
    let fast = rates(point(4e9, Some(2e9), None), 0);
    assert_eq!(time(&fast, 2, 4), (500_000, 2_500_000));
}

#[test]
fn without_cpu_code_only_fetched_experts_have_a_time() {
    let rates = rates(point(1e9, None, None), 0);
    assert!(!rates.has_cpu());
    assert_eq!(rates.time(2, 0), Some(StepTime { link_ns: 2_000_000, cpu_ns: 0 }));
    assert_eq!((rates.time(2, 1), rates.time(0, 1)), (None, None));
    let mut behind = Behind::default();
    behind.take_off(1, &rates, 1);
    assert_eq!((behind.compute(&rates, 1), behind.compute(&rates, 0), behind.link_ns()), (None, Some(0), 0));
}

#[test]
fn a_step_waits_for_the_longer_of_the_two() {
    assert_eq!(StepTime { link_ns: 3, cpu_ns: 5 }.waiting_ns(), 5);
    assert_eq!(StepTime { link_ns: 6, cpu_ns: 5 }.waiting_ns(), 6);
}

#[test]
fn rates_by_which_no_step_can_be_timed_are_refused_with_both_numbers() {
    let of = |point: Point, seconds: f64, layer: LayoutKey, experts: u32| {
        let rates = Rates::new("card", vec![point]).unwrap().with_seconds_per_step(seconds).unwrap();
        StepRates::of(&rates, &layer, experts).unwrap_err().to_string()
    };
    let key = || LayoutKey::tagged("q", [EXPERT_BYTES]);
    let errors = [
        of(point(1e9, None, None), 0.0, LayoutKey::tagged("r", [5, 6]), 8),
        of(point(1e9, None, None), 0.0, LayoutKey::untagged([2 * EXPERT_BYTES]), 8),
        of(point(0.4, None, None), 0.0, key(), 8),
        of(point(1e9, Some(2e13), None), 0.0, key(), 8),
        of(point(1e9, Some(1e9), Some((1e30, 1e9))), 0.0, key(), 8),
        of(point(1e9, None, None), 0.0, key(), 100_000_000),
        of(point(1e9, None, None), 2e3, key(), 8),
    ];
    insta::assert_snapshot!(errors.join("\n"), @"
    no point for experts of 11 bytes of r
    no point for experts of 2000000 bytes without a tag
    a link rate of 0.4 bytes a second; times are counted from 1 to 17592186044416
    a CPU rate of 20000000000000 bytes a second; times are counted from 1 to 17592186044416
    a contended link rate of 1000000000000000000000000000000 bytes a second; times are counted from 1 to 17592186044416
    the experts of a layer have 100000000000000 bytes; times are counted up to 70368744177664
    a step takes 2000 seconds besides its bytes; times are counted up to 1099
    ");
    let missing =
        StepRates::of(&Rates::new("card", vec![point(1.0, None, None)]).unwrap(), &LayoutKey::tagged("q", [1]), 1);
    assert_eq!(missing, Err(StepTimeError::NotMeasured { tag: b"q".to_vec(), expert_bytes: 1 }));
}

/// At the ends of what is counted nothing overflows.
#[test]
fn the_largest_numbers_have_a_time() {
    let most = (1_u64 << 44) as f64;
    let key = LayoutKey::tagged("q", [1 << 30]);
    let at = |link: f64, cpu: f64, contended| {
        let point = Point { expert_bytes: 1 << 30, ..point(link, Some(cpu), contended) };
        let rates = Rates::new("card", vec![point]).unwrap().with_seconds_per_step(1099.0).unwrap();
        StepRates::of(&rates, &key, 1 << 16).unwrap().time(1 << 16, 1 << 16).unwrap()
    };
    // 2^46 bytes at 2^44 a second are 4 s; the CPU is done long before the link begins.
    assert_eq!(at(most, most, Some((most, most))), StepTime { link_ns: 1_103_000_000_000, cpu_ns: 4_000_000_000 });
    // At a byte a second no number of nanoseconds is enough.
    assert_eq!(at(1.0, 1.0, None), StepTime { link_ns: u64::MAX, cpu_ns: u64::MAX });
}

/// Rates of a machine whose link and CPU are not faster together than alone.
fn random_point(rng: &mut Rng) -> Point {
    let mut rate = || (1 + rng.below(1_000_000)) as f64 * 1e5;
    let (link, cpu) = (rate(), rate());
    let contended = match rng.below(3) {
        0 => None,
        1 => Some((link, cpu)),
        _ => {
            let mut share = |of: f64| (of * (1 + rng.below(1_000)) as f64 / 1e3).max(1.0).floor();
            Some((share(link), share(cpu)))
        }
    };
    point(link, Some(cpu), contended)
}

#[test]
fn more_bandwidth_is_never_slower() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let slow = random_point(&mut rng);
        let mut fast = slow.clone();
        let factor = 1.0 + rng.below(3_000) as f64 / 1e3;
        match rng.below(4) {
            0 => fast.link = (fast.link * factor).round(),
            1 => fast.cpu = fast.cpu.map(|rate| (rate * factor).round()),
            choice => {
                let Some(pair) = &mut fast.contended else { continue };
                // Together they stay no faster than alone.
                match choice {
                    2 => pair.link = (pair.link * factor).round().min(fast.link),
                    _ => pair.cpu = (pair.cpu * factor).round().min(fast.cpu.unwrap()),
                }
            }
        }
        let step_ns = rng.below(2_000_000);
        let (fetched, on_cpu) = (rng.below(10) as u32, rng.below(10) as u32);
        let wait = |point: &Point| rates(point.clone(), step_ns).time(fetched, on_cpu).unwrap().waiting_ns();
        assert!(wait(&fast) <= wait(&slow), "seed {seed}: {fetched} and {on_cpu} by {fast:?}, then {slow:?}");
    }
}

#[test]
fn more_work_is_never_faster_and_both_together_never_slower_than_one_after_the_other() {
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let random = random_point(&mut rng);
        // Where together is worth less than taking turns, it takes longer: no model of ours makes them take turns.
        if let (Some(pair), Some(cpu)) = (random.contended, random.cpu)
            && pair.link / random.link + pair.cpu / cpu < 1.001
        {
            continue;
        }
        let rates = rates(random.clone(), rng.below(2_000_000));
        let (fetched, on_cpu) = (rng.below(10) as u32, rng.below(10) as u32);
        let wait = |fetched, on_cpu| rates.time(fetched, on_cpu).unwrap().waiting_ns();
        let both = wait(fetched, on_cpu);
        assert!(both <= wait(fetched + 1, on_cpu) && both <= wait(fetched, on_cpu + 1), "seed {seed}: {random:?}");
        assert!(both <= wait(fetched, 0) + wait(0, on_cpu), "seed {seed}: {fetched} and {on_cpu} by {random:?}");
        assert!(both >= wait(fetched, 0).max(wait(0, on_cpu)), "seed {seed}: {fetched} and {on_cpu} by {random:?}");
    }
}

/// What `min_wait` promises: of all numbers the one at which the longer of link and CPU is the shortest. It knows one
/// rate of each, so it is held to that where they do not slow each other down, and to fractions that are whole in
/// 65,536ths.
#[test]
fn min_wait_waits_least_where_link_and_cpu_do_not_share() {
    for seed in 0..5_000 {
        let mut rng = Rng::new(seed);
        let (link, unit) = (1 + rng.below(65_535), 1 + rng.below(1_000_000));
        let (link, cpu) = ((link * unit) as f64, ((65_536 - link) * unit) as f64);
        let point = point(link, Some(cpu), Some((link, cpu)));
        let rule = FetchRule::MinWait(point.recommend().fraction);
        let rates = rates(point, 0);
        let misses = rng.below(12) as u32;
        let wait = |fetched: u32| rates.time(fetched, misses - fetched).unwrap().waiting_ns();
        let fetched = rule.fetched_count(misses, &mut Carried::default());
        let least = (0..=misses).map(wait).min();
        assert_eq!(Some(wait(fetched)), least, "seed {seed}: {fetched} of {misses} at {link} and {cpu}");
    }
}

/// Where both read one memory, the CPU gets what the link leaves: every byte that crosses the link as a copy is one
/// that the CPU does not read meanwhile, and up to the fraction it makes no difference how many do.
#[test]
fn where_link_and_cpu_share_the_memory_a_step_takes_that_memorys_time() {
    // 40 of 100 MB/s: of 10 misses up to 4 cross within the 100 ms that the memory takes for all 10 MB.
    let rates = rates(point(40e6, Some(100e6), None), 0);
    let wait = |fetched: u32| rates.time(fetched, 10 - fetched).unwrap().waiting_ns();
    let wanted = [100, 100, 100, 100, 100, 125, 150, 175, 200, 225, 250].map(|ms| ms * 1_000_000);
    assert_eq!(std::array::from_fn(|fetched| wait(fetched as u32)), wanted);
}

/// Link 1 GB/s, 0.5 GB/s beside the CPU; CPU 4 and 2 GB/s; 100 us a step besides its bytes.
#[test]
fn flights_worked_out_by_hand() {
    let rates = rates(point(1e9, Some(4e9), Some((0.5e9, 2e9))), 100_000);
    let mut behind = Behind::default();
    // Nothing is on its way: 4 MB at 4 GB/s.
    assert_eq!(behind.compute(&rates, 4), Some(1_000_000));
    behind.take_off(1, &rates, 1);
    behind.take_off(2, &rates, 2);
    assert_eq!((behind.flight_count(), behind.link_ns(), behind.land()), (2, 0, None));
    // 100 us alone are 400 kB; the other 600 kB at 2 GB/s take 300 us, in which 150 kB of the row arrive.
    assert_eq!(behind.compute(&rates, 1), Some(400_000));
    assert_eq!((behind.link_ns(), behind.land()), (400_000, None));
    // The CPU rests for 850 us: the other 850 kB arrive at 1 GB/s, and nothing is left over for the second flight.
    behind.pass(850_000);
    assert_eq!((behind.flight_count(), behind.land(), behind.flight_count()), (2, Some(1), 1));
    // 100 us of its own time and 2 ms at 1 GB/s; what comes after is nobody's.
    behind.pass(5_000_000);
    assert_eq!((behind.land(), behind.land(), behind.flight_count()), (Some(2), None, 0));
    assert_eq!(behind.link_ns(), 400_000 + 850_000 + 2_100_000);
    // A flight lands amidst a computation: after 100 us and 2 ms for its 1 MB the CPU has read 0.4 + 4 MB, and the
    // other 1.6 MB take it 400 us.
    behind.take_off(3, &rates, 1);
    assert_eq!(behind.compute(&rates, 6), Some(2_500_000));
    assert_eq!((behind.land(), behind.link_ns()), (Some(3), 3_350_000 + 2_100_000));
}

/// A link that leaves the CPU nothing: the CPU waits until the flight has landed, 500 us, and then takes 2 ms.
#[test]
fn a_cpu_that_is_left_nothing_waits_for_the_flight() {
    let rates = rates(point(4e9, Some(2e9), None), 0);
    let mut behind = Behind::default();
    behind.take_off(1, &rates, 2);
    assert_eq!(behind.compute(&rates, 4), Some(2_500_000));
    assert_eq!(behind.land(), Some(1));
    // A flight of no rows has landed at once.
    behind.take_off(2, &rates, 0);
    assert_eq!((behind.land(), behind.drain()), (Some(2), 0));
    // Two of them and their rows, one after the other.
    behind.take_off(3, &rates, 2);
    behind.take_off(4, &rates, 6);
    assert_eq!((behind.drain(), behind.land(), behind.land()), (2_000_000, Some(3), Some(4)));
}
