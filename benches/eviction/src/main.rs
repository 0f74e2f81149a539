//! Eviction rules beside LRU and the optimum, on the traces of a folder.

#![forbid(unsafe_code)]

mod policy;
mod predictor;
mod replay;

use std::error::Error;
use std::fs::File;
use std::path::Path;

use ftcache_trace::{Events, MissCurve, Optimum, Trace};

use policy::{Lru, Policy, Rule, Scored};
use predictor::{Corrected, Feature, Kernel, Mixed, Predictor, Rate, Sum, Table};
use replay::{Candidates, Scope, misses};

use Feature::{Count, Gap, LastGap, Layer, Rank, Slow};

const PERCENTS: [usize; 2] = [25, 50];

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
    let mut paths: Vec<_> = std::fs::read_dir(&folder)?.map(|entry| entry.map(|it| it.path())).collect::<Result<_, _>>()?;
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
    let sizes: Vec<usize> = PERCENTS
        .iter()
        .map(|percent| used * percent / 100)
        .filter(|&slots| slots / layers >= widest)
        .collect();
    if sizes.is_empty() {
        println!("(no size holds a step of each layer)");
        return Ok(());
    }
    let all = |scope| -> Vec<f64> {
        let run = |&slots: &usize| {
            percent(misses(&events, slots, scope, Candidates::All, &mut Lru::new(layers, experts)))
        };
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
        Box::new(Scored { layers, experts, rule, predictor })
    }
    let mut rows = Vec::new();
    let mut add = |name, policy| rows.push(Row { name, scope: Scope::Unified, candidates: Candidates::All, policy });
    let rate = |half| Rate::new(layers, experts, half);
    let table = |features: &[Feature]| Table::new(layers, experts, vec![(16, 16), (128, 16)], features);
    let mixed = |sets: &[&[Feature]], rate| Mixed::new(layers, experts, vec![(16, 16), (128, 16)], sets, rate);
    add("LFU 16", scored(layers, experts, Rule::Chance, rate(16)));
    add("LFU 64", scored(layers, experts, Rule::Chance, rate(64)));
    add("cyclic 8", scored(layers, experts, Rule::Wait, rate(8)));
    add("cyclic 16", scored(layers, experts, Rule::Wait, rate(16)));
    add("density 8", scored(layers, experts, Rule::Density, rate(8)));
    add("density 16", scored(layers, experts, Rule::Density, rate(16)));
    add("density 64", scored(layers, experts, Rule::Density, rate(64)));
    add("learned", scored(layers, experts, Rule::Chance, table(&[Gap, Count])));
    add("learned + cyclic", scored(layers, experts, Rule::Wait, table(&[Gap, Count])));
    add("learned + density", scored(layers, experts, Rule::Density, table(&[Gap, Count])));
    add("learned + softened 2", scored(layers, experts, Rule::Softened(2), table(&[Gap, Count])));
    add("learned + softened 8", scored(layers, experts, Rule::Softened(8), table(&[Gap, Count])));
    add("learned slow + density", scored(layers, experts, Rule::Density, table(&[Gap, Count, Slow])));
    add("mixed + density", scored(layers, experts, Rule::Density, mixed(&[&[Gap, Count], &[Slow], &[Rank], &[LastGap], &[Layer]], 4)));
    let kernel = |halves: &[(u32, u32)]| -> Kernel { halves.to_vec() };
    let k05 = kernel(&[(2, 64), (8, 32), (32, 16), (128, 8), (512, 4)]);
    let k07 = kernel(&[(2, 128), (8, 45), (32, 16), (128, 6), (512, 2)]);
    let k10 = kernel(&[(2, 256), (8, 64), (32, 16), (128, 4), (512, 1)]);
    let k10l = kernel(&[(2, 64), (8, 64), (32, 16), (128, 4), (512, 1)]);
    let sum = |k: &Kernel| Sum::new(layers, experts, k.clone());
    let tab = |k: &Kernel, f: &[Feature]| Table::new(layers, experts, k.clone(), f);
    let mix = |k: &Kernel, sets: &[&[Feature]], rate| Mixed::new(layers, experts, k.clone(), sets, rate);
    add("Zsum k05", scored(layers, experts, Rule::Density, sum(&k05)));
    add("Zsum k07", scored(layers, experts, Rule::Density, sum(&k07)));
    add("Zsum k10", scored(layers, experts, Rule::Density, sum(&k10)));
    add("Zsum k10l", scored(layers, experts, Rule::Density, sum(&k10l)));
    add("Ztab k07 Sum", scored(layers, experts, Rule::Density, tab(&k07, &[Feature::Sum])));
    add("Ztab k10 Sum", scored(layers, experts, Rule::Density, tab(&k10, &[Feature::Sum])));
    add("Ztab k07 Gap,Sum", scored(layers, experts, Rule::Density, tab(&k07, &[Gap, Feature::Sum])));
    add("Ztab k10 Gap,Sum", scored(layers, experts, Rule::Density, tab(&k10, &[Gap, Feature::Sum])));
    add("Zmix k07", scored(layers, experts, Rule::Density, mix(&k07, &[&[Feature::Sum], &[Gap], &[Rank]], 4)));
    use Feature::{Of};
    let cor = |k: &Kernel, sets: &[&[Feature]], prior| Corrected::new(layers, experts, k.clone(), sets, prior);
    add("Ysum 2,8,32", scored(layers, experts, Rule::Density, sum(&kernel(&[(2, 256), (8, 64), (32, 16)]))));
    add("Ysum 4,16,64", scored(layers, experts, Rule::Density, sum(&kernel(&[(4, 256), (16, 64), (64, 16)]))));
    add("Ycor gap,c8", scored(layers, experts, Rule::Density, cor(&k10, &[&[Gap, Of(1)]], 16)));
    add("Ycor gap,c32", scored(layers, experts, Rule::Density, cor(&k10, &[&[Gap, Of(2)]], 16)));
    add("Ycor c8,c128", scored(layers, experts, Rule::Density, cor(&k10, &[&[Of(1), Of(3)]], 16)));
    add("Ycor gap,c32; c8,c512", scored(layers, experts, Rule::Density, cor(&k10, &[&[Gap, Of(2)], &[Of(1), Of(4)]], 16)));
    add("Ycor c8,c32; c32,c512; gap,rank", scored(layers, experts, Rule::Density, cor(&k10, &[&[Of(1), Of(2)], &[Of(2), Of(4)], &[Gap, Rank]], 16)));
    add("Ycor gap,c32; c8,c512; lastgap,rank", scored(layers, experts, Rule::Density, cor(&k10, &[&[Gap, Of(2)], &[Of(1), Of(4)], &[LastGap, Rank]], 16)));
    rows
}
