//! Eviction rules beside LRU and the optimum, on the traces of a folder.

#![forbid(unsafe_code)]

mod policy;
mod predictor;
mod replay;

use std::error::Error;
use std::fs::File;
use std::path::Path;

use ftcache_policy::Eviction;
use ftcache_trace::{Events, MissCurve, Optimum, Trace};

use policy::{Lru, Policy, Rule, Scored};
use predictor::{Corrected, Feature, Mixed, Predictor, Rate, Sum, Table};
use replay::{Candidates, Scope, misses, misses_of};

use Feature::{Count, Follow, Gap, LastGap, Layer, Of, Rank, Slow};

const PERCENTS: [usize; 4] = [20, 25, 35, 50];

struct Row {
    name: &'static str,
    scope: Scope,
    candidates: Candidates,
    policy: Box<dyn Policy>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: eviction FOLDER [PART OF A RULE'S NAME [PART OF A TRACE'S]]")?;
    let only = arguments.next().unwrap_or_default();
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder)?.map(|entry| entry.map(|it| it.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.to_string_lossy().ends_with(".ftr.zst"));
    let part = arguments.next().unwrap_or_default();
    paths.retain(|path| path.to_string_lossy().contains(&part));
    paths.sort();
    for path in paths {
        run(&path, &only)?;
    }
    Ok(())
}

fn run(path: &Path, only: &str) -> Result<(), Box<dyn Error>> {
    let events = Events::of(&Trace::read(File::open(path)?)?);
    let (layers, experts) = (events.layers() as usize, events.experts() as usize);
    let (curve, optimum) = (MissCurve::lru(&events), Optimum::unified(&events));
    let used = curve.compulsory() as usize;
    let percent = |misses: u64| 100.0 * misses as f64 / events.use_count() as f64;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    println!("\n{} ({} events, {} experts used)\n", name.trim_end_matches(".ftr.zst"), events.len(), used);
    let widest = events.iter().map(|event| event.experts.len()).max().unwrap_or(0);
    let sizes: Vec<usize> =
        PERCENTS.iter().map(|percent| used * percent / 100).filter(|&slots| slots / layers >= widest).collect();
    if sizes.is_empty() {
        println!("(no size holds a step of each layer)");
        return Ok(());
    }
    let all = |scope| -> Vec<f64> {
        let run =
            |&slots: &usize| percent(misses(&events, slots, scope, Candidates::All, &mut Lru::new(layers, experts)));
        sizes.iter().map(run).collect()
    };
    let (unified, layer) = (all(Scope::Unified), all(Scope::Layer));
    let best: Vec<f64> = sizes.iter().map(|&slots| percent(optimum.misses(slots).expect("a step fits"))).collect();
    let line = |name: &str, rates: &[f64], shares: bool| {
        print!("| {name} |");
        for (index, rate) in rates.iter().enumerate() {
            let lru = unified[index].min(layer[index]);
            if shares {
                print!(" {rate:.2} ({:.0}) |", 100.0 * (lru - rate) / (lru - best[index]));
            } else {
                print!(" {rate:.2} |");
            }
        }
        println!();
    };
    print!("| rule |");
    sizes.iter().for_each(|slots| print!(" {} |", slots));
    println!("\n|---|{}", "---|".repeat(sizes.len()));
    line("LRU, unified", &unified, false);
    line("LRU, layer", &layer, false);
    line("optimum", &best, false);
    for (scope, name) in [(Scope::Unified, "the cache's"), (Scope::Layer, "the cache's by layer,")] {
        for rule in Eviction::ALL {
            let name = format!("{name} {rule}");
            if name.contains(only) {
                let rate = |&slots: &usize| percent(misses_of(rule, &events, slots, scope));
                line(&name, &sizes.iter().map(rate).collect::<Vec<_>>(), true);
            }
        }
    }
    let count = rows(layers, experts).len();
    for index in 0..count {
        let pick = || rows(layers, experts).swap_remove(index);
        let name = pick().name;
        if !name.contains(only) {
            continue;
        }
        let rates: Vec<f64> = sizes
            .iter()
            .map(|&slots| {
                let mut row = pick();
                percent(misses(&events, slots, row.scope, row.candidates, &mut *row.policy))
            })
            .collect();
        line(name, &rates, true);
    }
    Ok(())
}

fn rows(layers: usize, experts: usize) -> Vec<Row> {
    fn scored(layers: usize, experts: usize, rule: Rule, predictor: impl Predictor + 'static) -> Box<dyn Policy> {
        Box::new(Scored::new(layers, experts, rule, predictor))
    }
    let rate = |half| Rate::new(layers, experts, half);
    let slow = || vec![(16, 16), (128, 16)];
    let table = |features: &[Feature]| Table::new(layers, experts, slow(), features);
    // Weights of `512 / half`: the mean of five rates.
    let rates = || vec![(2, 256), (8, 64), (32, 16), (128, 4), (512, 1)];
    let mean = || Sum::new(layers, experts, rates());
    let corrected = |sets: &[&[Feature]]| Corrected::new(layers, experts, rates(), sets, 16);
    let mut rows = Vec::new();
    let (all, unified) = (Candidates::All, Scope::Unified);
    let mut add = |name, scope, candidates, policy| rows.push(Row { name, scope, candidates, policy });
    add("LFU 16", unified, all, scored(layers, experts, Rule::Chance, rate(16)));
    add("LFU 64, layer", Scope::Layer, all, scored(layers, experts, Rule::Chance, rate(64)));
    add("cyclic 8", unified, all, scored(layers, experts, Rule::Wait, rate(8)));
    add("density 16", unified, all, scored(layers, experts, Rule::Density, rate(16)));
    add("learned", unified, all, scored(layers, experts, Rule::Chance, table(&[Gap, Count])));
    add("learned + cyclic", unified, all, scored(layers, experts, Rule::Wait, table(&[Gap, Count])));
    add("learned + density", unified, all, scored(layers, experts, Rule::Density, table(&[Gap, Count])));
    add(
        "learned, slow count + density",
        unified,
        all,
        scored(layers, experts, Rule::Density, table(&[Gap, Count, Slow])),
    );
    let sets: [&[Feature]; 5] = [&[Gap, Count], &[Slow], &[Rank], &[LastGap], &[Layer]];
    let mixed = Mixed::new(layers, experts, slow(), &sets, 4);
    add("logistic + density", unified, all, scored(layers, experts, Rule::Density, mixed));
    add("mean rate", unified, all, scored(layers, experts, Rule::Chance, mean()));
    add("mean rate + density", unified, all, scored(layers, experts, Rule::Density, mean()));
    let one: [&[Feature]; 1] = [&[Gap, Of(1)]];
    add("corrected once", unified, all, scored(layers, experts, Rule::Density, corrected(&one)));
    let three: [&[Feature]; 3] = [&[Of(1), Of(2)], &[Of(2), Of(4)], &[Gap, Rank]];
    add("corrected", unified, all, scored(layers, experts, Rule::Density, corrected(&three)));
    let two: [&[Feature]; 2] = [&[Of(1), Of(2)], &[Follow, Of(2)]];
    add("followed", unified, all, scored(layers, experts, Rule::Density, corrected(&two)));
    add("followed, wait", unified, all, scored(layers, experts, Rule::Wait, corrected(&two)));
    let four: [&[Feature]; 4] = [&[Of(1), Of(2)], &[Of(2), Of(4)], &[Gap, Rank], &[Follow, Of(2)]];
    add("corrected, followed", unified, all, scored(layers, experts, Rule::Density, corrected(&four)));
    for (count, name) in [(16, "followed, oldest 16"), (32, "followed, oldest 32"), (64, "followed, oldest 64")] {
        add(name, unified, Candidates::Oldest(count), scored(layers, experts, Rule::Density, corrected(&two)));
    }
    for (count, name) in [(16, "followed, behind 16"), (32, "followed, behind 32"), (64, "followed, behind 64")] {
        let behind = Candidates::Behind { count, each: 16 };
        add(name, unified, behind, scored(layers, experts, Rule::Density, corrected(&two)));
    }
    rows
}
