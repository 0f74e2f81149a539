//! Where rows and slots may lie: an arena read from a file, memory that is pinned for reading alone or in parts, slots
//! in memory of the engine's; and layers of more experts than most.

use std::fs;
use std::ops::ControlFlow;

use ftcache::transfer::HostAccess;
use ftcache::{ArenaOptions, BankSource, Cache, Geometry, HostArena, Keep, Loader, Rebuilt, Step};
use ftcache_testkit::Rng;

use crate::graphs::{steps, tokens};
use crate::rig::{Rig, row, world};
use crate::shapes::{self, LAYOUTS};
use crate::token::{Shape, Token};

fn geometry() -> Geometry {
    let model = shapes::model(9, 2, &[LAYOUTS[0], LAYOUTS[4], LAYOUTS[0]]);
    Geometry::new(model, shapes::slots(13)).unwrap()
}

/// Tokens in a graph, and out of device mode again.
#[track_caller]
fn decode(rig: &mut Rig, seed: u64, at: &str) {
    rig.enter();
    let mut rng = Rng::new(seed);
    let steps = steps(rig, &mut rng, false);
    let token = Token::capture(rig, &steps, Shape::of(2));
    let routes = tokens(rig, &mut rng, &steps, 2, 10);
    token.replay(rig, &routes, at);
    rig.check_bytes(at);
    rig.cache.check_device().unwrap();
    rig.leave(at);
}

#[test]
fn rows_of_an_arena_that_was_read_from_a_file() {
    let mut rig = Rig::made(world(1), geometry(), 3, |_, _, device| Cache::new(geometry(), device).unwrap());
    let (mut bytes, mut sources) = (Vec::new(), Vec::new());
    for layer in rig.model().layer_ids() {
        for bank in rig.model().bank_ids() {
            let row_bytes = rig.model().row_bytes(layer, bank);
            sources.push(BankSource::contiguous(layer, bank, row_bytes, 9, 0, bytes.len() as u64));
            (0..9).for_each(|expert| bytes.extend(row(layer.get(), expert, bank.get(), row_bytes)));
        }
    }
    let path = std::env::temp_dir().join(format!("ftcache-on-device-{}", std::process::id()));
    fs::write(&path, &bytes).unwrap();
    let reservation = HostArena::reserve(&sources, &[&path], ArenaOptions::default()).unwrap();
    rig.cache.load_arena(reservation, |_| ControlFlow::Continue(())).unwrap();
    fs::remove_file(&path).unwrap();
    decode(&mut rig, 1, "rows of an arena");
    rig.end();
}

#[test]
fn rows_that_are_pinned_for_reading_alone() {
    let mut rig = Rig::made(world(2), geometry(), 0, |rows, _, mut device| {
        rows.pin_in_parts(&mut device, usize::MAX, HostAccess::ReadOnly);
        Cache::new(geometry(), device).unwrap()
    });
    rig.rows.attach(&mut rig.cache);
    decode(&mut rig, 2, "rows that are only read");
    rig.end();
}

/// Registrations that follow each other for kernels as they do for the host.
#[test]
fn banks_that_lie_in_several_registrations() {
    for part_pages in [1, 3] {
        let mut rig = Rig::made(world(3), geometry(), 1, |rows, _, mut device| {
            rows.pin_in_parts(&mut device, part_pages, HostAccess::ReadWrite);
            Cache::new(geometry(), device).unwrap()
        });
        rig.rows.attach(&mut rig.cache);
        assert!(rig.emulated().counts().registrations > 10);
        decode(&mut rig, 3, &format!("parts of {part_pages} pages"));
        rig.end();
    }
}

#[test]
fn slots_in_memory_of_the_engines_stay_there_through_a_rebuild() {
    let of = |slots| Geometry::new(shapes::model(9, 2, &[LAYOUTS[0]; 3]), shapes::slots(slots)).unwrap();
    let mut rig = Rig::made(world(4), of(9), 1, |rows, engine, mut device| {
        rows.pin(&mut device);
        let wide = of(14);
        let memory = |&bytes: &u64| (engine.memory(bytes as usize).address, bytes);
        let arenas: Vec<(u64, u64)> = wide.arena_bytes().iter().map(memory).collect();
        // SAFETY: the engine's memory goes after the cache.
        Cache::with_loader(unsafe { Loader::in_memory(of(9), device, &arenas) }.unwrap())
    });
    rig.rows.attach(&mut rig.cache);
    decode(&mut rig, 4, "nine slots");
    rig.enter();
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    // It goes without the engine's kernel, which takes no -1.
    let token = Token::capture(&mut rig, &steps, Shape { reads: false, ..Shape::of(2) });
    rig.leave("nine slots");
    for slots in [14, 6] {
        let at = format!("{slots} slots");
        let report = rig.cache.rebuild(of(slots), Keep::WhatFits, 0).unwrap();
        assert_eq!(report.rebuilt, Rebuilt::InPlace, "{at}");
        assert_eq!(rig.twin.rebuild(of(slots), Keep::WhatFits, u64::MAX).unwrap().kept, report.kept, "{at}");
        rig.check_same(&at);
        rig.enter();
        // The slots are where they were, and still it is of another time.
        let answers = token.launch(&mut rig, &vec![vec![1, 2]; 3]);
        assert!(answers.iter().flatten().all(|&slot| slot == -1), "{at}: {answers:?}");
        rig.cache.check_device().unwrap_err();
        rig.check_bytes(&at);
        rig.leave(&at);
        decode(&mut rig, slots, &at);
    }
    rig.end();
}

/// More experts than an admission has shared memory for, and rows in several chunks.
#[test]
fn a_layer_of_more_than_a_thousand_experts() {
    let model = shapes::model(1100, 2, &[("many", [40, 3, 2])]);
    let mut rig = Rig::on(world(5), Geometry::new(model, shapes::slots(30)).unwrap(), 1);
    decode(&mut rig, 5, "1,100 experts");
    rig.enter();
    rig.step(ftcache::LayerId::new(0), &[1099, 1024, 1023, 0], crate::rig::Form::default(), "the last ones");
    rig.check_bytes("the last ones");
    rig.leave("at the end");
    rig.end();
}

/// As often as an engine likes, and with the memory of the first time.
#[test]
fn going_in_and_out_takes_nothing_more() {
    let mut rig = Rig::on(world(6), geometry(), 0);
    rig.enter();
    rig.leave("once");
    let held = |rig: &Rig| {
        let counts = rig.emulated().counts();
        (
            counts.allocations,
            counts.allocated_bytes,
            counts.registrations,
            counts.modules,
            counts.events,
            counts.streams,
        )
    };
    let before = held(&rig);
    for round in 0..20 {
        rig.enter();
        rig.step(ftcache::LayerId::new(round % 3), &[i64::from(round) % 9], crate::rig::Form::default(), "in");
        assert_eq!(held(&rig), before, "round {round}");
        rig.leave("out");
        assert_eq!(held(&rig), before, "round {round}");
    }
    // Nor do rebuilds, each of which has tables of its own.
    for round in 0..6 {
        rig.cache.rebuild(geometry(), Keep::WhatFits, u64::MAX).unwrap();
        rig.enter();
        assert_eq!(held(&rig), before, "rebuild {round}");
        rig.cache.leave_device_mode().unwrap();
    }
    rig.end();
}
