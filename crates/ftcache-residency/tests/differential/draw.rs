//! Random shapes, and random lists of operations on them: each kind switched off at random, so that long undisturbed
//! runs exist too; and, beside what is drawn by itself, chunks and exports as they should go, with other operations
//! in between.

use std::collections::VecDeque;

use ftcache_policy::{Eviction, Fetch, FetchRule, Fraction};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::skewed_routes;
use ftcache_testkit::reference::{ABSENT, LAST_STEP, Misses, Order, Phase, Step};

use crate::operations::{End, LateEnd, Operation, Shape};

/// One of these bounds, so that small numbers are common and large ones exist.
fn one_of(rng: &mut Rng, bounds: &[u64]) -> u64 {
    bounds[rng.below(bounds.len() as u64) as usize]
}

pub(crate) fn random_shape(rng: &mut Rng) -> Shape {
    let bound = one_of(rng, &[3, 8, 16, 16, 40]);
    let expert_count = 1 + rng.below(bound) as u32;
    let layer_count = 1 + rng.below(5) as usize;
    let (pool_of_layer, pool_sizes) = random_pools(rng, layer_count);
    Shape { expert_count, pool_of_layer, pool_sizes, eviction: Eviction::Lru }
}

fn random_pools(rng: &mut Rng, layer_count: usize) -> (Vec<Option<u32>>, Vec<u32>) {
    let mut size = || {
        let bound = one_of(rng, &[3, 8, 8, 16, 16, 70]);
        1 + rng.below(bound) as u32
    };
    let sizes: Vec<u32> = [size(), size(), size()][..1 + rng.below(3) as usize].to_vec();
    let slotless = rng.chance(1, 3);
    let mut pool = || (!slotless || rng.chance(3, 4)).then(|| rng.below(sizes.len() as u64) as u32);
    ((0..layer_count).map(|_| pool()).collect(), sizes)
}

/// Which kinds of operations a run has.
struct Switches {
    aborts: bool,
    absents: bool,
    strays: bool,
    hybrid: bool,
    flights: bool,
    hints: bool,
    plain: bool,
    phases: bool,
    tokens: bool,
    accepts: bool,
    pins: bool,
    forgets: bool,
    resets: bool,
    chunks: bool,
    rebuilds: bool,
    exports: bool,
    end_of_steps: bool,
    wide: bool,
    parts: bool,
}

impl Switches {
    fn new(rng: &mut Rng) -> Self {
        let mut half = || rng.chance(1, 2);
        Self {
            aborts: half(),
            absents: half(),
            strays: half(),
            hybrid: half(),
            flights: false,
            hints: half(),
            plain: half(),
            phases: half(),
            tokens: half(),
            accepts: half(),
            pins: half(),
            forgets: half(),
            resets: half() && half(),
            chunks: half(),
            rebuilds: half(),
            exports: half() && half(),
            end_of_steps: half() && half() && half() && half(),
            wide: half(),
            parts: half(),
        }
    }
}

/// Draws operations one after another.
struct Draw<'a> {
    rng: &'a mut Rng,
    shape: &'a Shape,
    on: Switches,
    /// What hybrid steps of this run do, but for a few.
    usual: Misses,
    /// Each layer's last step with a token.
    with_token: Vec<Option<Step>>,
    /// Each layer's last routes to verify.
    verified: Vec<Vec<u32>>,
    /// What is to come, mostly at once.
    soon: VecDeque<Operation>,
    /// What is to come, with other operations in between.
    script: VecDeque<Operation>,
}

pub(crate) fn random_operations(rng: &mut Rng, shape: &Shape, count: usize) -> Vec<Operation> {
    let mut on = Switches::new(rng);
    // Only hybrid steps leave anything.
    on.flights = on.hybrid && rng.chance(3, 4);
    let mut usual = random_hybrid(rng);
    if on.flights && rng.chance(2, 3) {
        usual = leaving_much(rng);
    }
    let layer_count = shape.pool_of_layer.len();
    let (with_token, verified) = (vec![None; layer_count + 1], vec![Vec::new(); layer_count + 1]);
    let mut draw = Draw { rng, shape, on, usual, with_token, verified, soon: VecDeque::new(), script: VecDeque::new() };
    (0..count).map(|_| draw.next()).collect()
}

/// A rule by which steps fetch next to nothing.
fn leaving_much(rng: &mut Rng) -> Misses {
    let fetch = Fetch { rule: FetchRule::UpTo(rng.below(3) as u32), most: None };
    Misses::Hybrid(fetch, if rng.chance(2, 3) { Order::Recency } else { Order::LowestId })
}

fn random_hybrid(rng: &mut Rng) -> Misses {
    let q16 = [0, 1, 19_268, 32_768, 40_000, 65_535, 65_536, rng.below(65_537) as u32][rng.below(8) as usize];
    let fraction = Fraction::from_q16(q16).expect("a fraction");
    let rule = match rng.below(4) {
        0 => FetchRule::UpTo(rng.below(6) as u32),
        1 => FetchRule::MinWait(fraction),
        2 => FetchRule::PreferFetch(fraction),
        _ => FetchRule::Carry(fraction),
    };
    let most = rng.chance(1, 4).then(|| rng.below(5) as u32);
    Misses::Hybrid(Fetch { rule, most }, if rng.chance(1, 2) { Order::Recency } else { Order::LowestId })
}

impl Draw<'_> {
    fn next(&mut self) -> Operation {
        if !self.soon.is_empty() && self.rng.chance(7, 8) {
            return self.soon.pop_front().expect("there is one");
        }
        if !self.script.is_empty() && self.rng.chance(1, 2) {
            return self.script.pop_front().expect("there is one");
        }
        let layer = self.layer();
        match self.rng.below(40) {
            0 | 1 if self.on.accepts => {
                let accepted = self.accepted(layer);
                Operation::Accept { layer, accepted }
            }
            2 if self.on.pins => {
                let experts = self.experts();
                let unpinned = self.rng.below(12) as u32;
                Operation::Pin { experts, unpinned }
            }
            3 if self.on.pins => Operation::Unpin(self.experts()),
            4 if self.on.forgets => {
                Operation::Forget { pool: self.rng.below(3) as u32, slot: self.rng.below(70) as u32 }
            }
            5 if self.on.forgets && self.rng.chance(1, 2) => Operation::ForgetLayer(layer),
            6 if self.on.resets => Operation::Reset,
            7 | 8 if self.on.chunks && self.script.is_empty() => self.chunk(),
            9 if self.on.chunks => self.stray_stage(layer),
            10 | 13 | 14 if self.on.rebuilds => self.rebuild(),
            11 if self.on.exports => self.export(),
            15 | 16 if self.on.parts => self.parts(layer),
            12 if self.on.end_of_steps && self.rng.chance(1, 2) => match self.rng.below(4) {
                0 => Operation::SkipTo(self.rng.below(100)),
                1 => Operation::SkipTo(u64::MAX),
                _ => Operation::SkipTo(LAST_STEP - 2 - self.rng.below(12)),
            },
            17 if self.on.flights => self.fetch_later(),
            18..=22 if self.on.flights => self.land(),
            23..=26 if self.on.hints => self.hint(layer),
            27 | 28 if self.on.hints => self.land(),
            29 if self.on.hints => {
                let back = self.rng.below(4) as usize;
                Operation::CancelHint(self.rng.chance(3, 4).then_some(back))
            }
            _ => {
                let step = self.step(layer);
                if self.on.flights {
                    self.follow(&step);
                }
                step
            }
        }
    }

    /// Fetches something behind a hybrid step, with what may come in between and after.
    fn follow(&mut self, operation: &Operation) {
        let Operation::Ensure(step, End::Commit) = operation else { return };
        if step.misses == Misses::Fetched || self.rng.chance(1, 3) {
            return;
        }
        for _ in 0..1 + self.rng.below(2) {
            let between = if self.rng.chance(1, 4) { self.between(step) } else { None };
            self.soon.extend(between);
            let late = self.fetch_later();
            self.soon.push_back(late);
            let after = if self.rng.chance(1, 4) { self.between(step) } else { None };
            self.soon.extend(after);
        }
    }

    /// What neither counts a step nor has to do with its fetches, and concerns its slots or experts.
    fn between(&mut self, step: &Step) -> Option<Operation> {
        let on = &self.on;
        let layer = step.layer;
        let expert = |route: &u32| (layer, *route);
        match self.rng.below(13) {
            0..=3 => Some(self.land()),
            4 | 5 if on.pins => Some(Operation::Pin { experts: step.routes.iter().map(expert).collect(), unpinned: 0 }),
            6 if on.pins => Some(Operation::Unpin(step.routes.iter().map(expert).collect())),
            7 if on.forgets => {
                Some(Operation::Forget { pool: self.rng.below(3) as u32, slot: self.rng.below(9) as u32 })
            }
            8 if on.forgets => Some(Operation::ForgetLayer(layer)),
            9 if on.chunks => Some(Operation::BeginChunk),
            10 if on.chunks => Some(Operation::AbandonChunk),
            11 if on.resets => Some(Operation::Reset),
            12 if on.end_of_steps => Some(Operation::SkipTo(self.rng.below(100))),
            _ => None,
        }
    }

    /// A hint, and often the step that it is for.
    fn hint(&mut self, layer: u32) -> Operation {
        let mut experts = self.routes();
        experts.truncate(1 + self.rng.below(12) as usize);
        let widest = one_of(self.rng, &[2, 4, 90]);
        let (most, end) = (self.rng.below(widest) as usize, self.late_end());
        if self.rng.chance(1, 2) {
            let landing = self.rng.chance(1, 2).then(|| self.land());
            self.soon.extend(landing);
            let mut step = self.step(layer);
            if let Operation::Ensure(step, _) = &mut step
                && self.rng.chance(2, 3)
            {
                step.routes.extend(experts.iter().take(2));
            }
            self.soon.push_back(step);
        }
        Operation::Hint { layer, experts, most, end }
    }

    fn late_end(&mut self) -> LateEnd {
        match self.rng.below(12) {
            0 if self.on.aborts => LateEnd::Abort,
            1 if self.on.aborts => LateEnd::Drop,
            2 if self.on.aborts => LateEnd::Fail,
            _ => LateEnd::Commit,
        }
    }

    fn fetch_later(&mut self) -> Operation {
        let widest = one_of(self.rng, &[1, 3, 12, 90]);
        let most = if self.rng.chance(1, 16) { 0 } else { 1 + self.rng.below(widest) as usize };
        let end = self.late_end();
        Operation::FetchLater { most, end }
    }

    fn land(&mut self) -> Operation {
        let furthest = one_of(self.rng, &[1, 1, 2, 12]);
        Operation::Land { back: self.rng.below(furthest) as usize, is_up: self.rng.chance(3, 4) }
    }

    fn layer(&mut self) -> u32 {
        let stray = u64::from(self.on.strays && self.rng.chance(1, 12));
        self.rng.below(self.shape.pool_of_layer.len() as u64 + stray) as u32
    }

    fn end(&mut self) -> End {
        match self.rng.below(12) {
            0 if self.on.aborts => End::Abort,
            1 if self.on.aborts => End::Drop,
            _ => End::Commit,
        }
    }

    fn step(&mut self, layer: u32) -> Operation {
        let end = self.end();
        if let Some(before) = self.with_token[layer as usize].clone().filter(|_| self.rng.chance(1, 3)) {
            let mut step = before;
            match self.rng.below(8) {
                0 => step.routes = self.routes(),
                1 => step.phase = self.phase(),
                2 => step.misses = self.misses(),
                3 => step.token = Some(self.rng.below(3)),
                4 => step.continues = !step.continues,
                _ => {}
            }
            return Operation::Ensure(step, end);
        }
        let (routes, phase, misses) = (self.routes(), self.phase(), self.misses());
        let token = (self.on.tokens && self.rng.chance(1, 2)).then(|| self.rng.below(3));
        let continues = if phase == Phase::Verify { self.rng.chance(1, 3) } else { self.rng.chance(1, 12) };
        let step = Step { layer, routes, phase, token, misses, continues };
        if token.is_some() {
            self.with_token[layer as usize] = Some(step.clone());
        }
        if phase == Phase::Verify {
            let verified = &mut self.verified[layer as usize];
            if !continues {
                verified.clear();
            }
            verified.extend(&step.routes);
            if self.on.accepts && self.script.is_empty() && self.rng.chance(1, 2) {
                let accepted = self.accepted(layer);
                self.script.push_back(Operation::Accept { layer, accepted });
            }
        }
        Operation::Ensure(step, end)
    }

    /// A step that is often wider than its pool.
    fn parts(&mut self, layer: u32) -> Operation {
        let (mut routes, phase, misses) = (self.routes(), self.phase(), self.misses());
        if self.rng.chance(2, 3) {
            routes.extend(self.routes());
            routes.extend((0..self.shape.expert_count).filter(|_| self.rng.chance(1, 2)));
        }
        // Other tokens than those of steps in one part, which would often be refused.
        let token = (self.on.tokens && self.rng.chance(1, 2)).then(|| 2 + self.rng.below(6));
        let step = Step { layer, routes, phase, token, misses, continues: self.rng.chance(1, 12) };
        let ends = if self.rng.chance(1, 2) { vec![End::Commit] } else { (0..3).map(|_| self.end()).collect() };
        self.verified[layer as usize].clone_from(&step.routes);
        let accepted = self.rng.chance(1, 2).then(|| self.accepted(layer));
        Operation::Parts { step, ends, accepted }
    }

    fn routes(&mut self) -> Vec<u32> {
        let widest = if self.on.wide && self.rng.chance(1, 6) { 90 } else { one_of(self.rng, &[3, 9, 24]) };
        let width = self.rng.below(widest) as usize;
        let mut routes: Vec<u32> =
            skewed_routes(self.rng, self.shape.expert_count, width).iter().map(|route| route.get()).collect();
        for route in &mut routes {
            if self.on.absents && self.rng.chance(1, 8) {
                *route = ABSENT;
            }
        }
        if self.on.strays && !routes.is_empty() && self.rng.chance(1, 16) {
            let at = self.rng.below(routes.len() as u64) as usize;
            routes[at] = self.stray();
        }
        routes
    }

    /// An id that is no expert's.
    fn stray(&mut self) -> u32 {
        let beyond = self.shape.expert_count + self.rng.below(3) as u32;
        [beyond, beyond, u32::MAX - 1, 1 << 31][self.rng.below(4) as usize]
    }

    fn phase(&mut self) -> Phase {
        match self.rng.below(5) {
            0 if self.on.phases => Phase::Prefill,
            1 | 2 if self.on.phases => Phase::Verify,
            _ => Phase::Decode,
        }
    }

    fn misses(&mut self) -> Misses {
        let is_hybrid = self.on.hybrid && (!self.on.plain || self.rng.chance(1, 2));
        match is_hybrid {
            false => Misses::Fetched,
            true if self.rng.chance(1, 8) => random_hybrid(self.rng),
            true => self.usual,
        }
    }

    fn accepted(&mut self, layer: u32) -> Vec<u32> {
        let mut accepted = self.verified[layer as usize].clone();
        let kept = self.rng.below(4);
        accepted.retain(|_| self.rng.below(3) < kept);
        if self.on.strays && self.rng.chance(1, 8) {
            let stray = if self.rng.chance(1, 2) { self.stray() } else { self.rng.below(40) as u32 };
            accepted.insert(self.rng.below(accepted.len() as u64 + 1) as usize, stray);
        }
        accepted
    }

    fn experts(&mut self) -> Vec<(u32, u32)> {
        let mut expert = || {
            let stray = u64::from(self.on.strays && self.rng.chance(1, 24));
            let layer = self.rng.below(self.shape.pool_of_layer.len() as u64 + stray) as u32;
            let expert = self.rng.below(u64::from(self.shape.expert_count).min(9) + stray) as u32;
            (layer, expert)
        };
        let count = 1 + expert().1 % 4;
        (0..count).map(|_| expert()).collect()
    }

    /// A chunk, as it should go.
    fn chunk(&mut self) -> Operation {
        let buffer_count = 1 + u32::from(self.rng.chance(2, 3));
        let widest = one_of(self.rng, &[2, 6, 80]);
        let mut bound = || self.rng.below(widest) as u32;
        let bounds = [bound(), bound(), bound()];
        let stable_from = self.rng.chance(2, 3).then_some(bounds);
        let mut before = None;
        self.script.push_back(Operation::BeginChunk);
        for layer in 0..self.shape.pool_of_layer.len() as u32 {
            let end = self.end();
            if buffer_count == 1 {
                self.script.extend(before.take().map(Operation::Release));
                self.script.extend([Operation::Materialize(layer, end), Operation::Wait(layer)]);
            } else {
                self.script.push_back(Operation::Prefetch(layer, end));
                self.script.extend(before.take().map(Operation::Release));
                self.script.push_back(Operation::Wait(layer));
            }
            before = Some(layer);
        }
        self.script.extend(before.map(Operation::Release));
        let end = if self.rng.chance(1, 8) { Operation::AbandonChunk } else { Operation::EndChunk };
        self.script.push_back(end);
        Operation::SetStaging { buffer_count, stable_from }
    }

    /// A part of a chunk at a time that may be wrong.
    fn stray_stage(&mut self, layer: u32) -> Operation {
        let end = self.end();
        match self.rng.below(10) {
            0 => Operation::BeginChunk,
            1 | 2 => Operation::Prefetch(layer, end),
            3 => Operation::Materialize(layer, end),
            4 | 5 => Operation::Wait(layer),
            6 | 7 => Operation::Release(layer),
            8 => Operation::EndChunk,
            _ => Operation::AbandonChunk,
        }
    }

    fn rebuild(&mut self) -> Operation {
        let (mut pool_of_layer, mut pool_sizes) = random_pools(self.rng, self.shape.pool_of_layer.len());
        if self.rng.chance(1, 2) {
            // The same pools with a few slots more or fewer.
            pool_of_layer.clone_from(&self.shape.pool_of_layer);
            pool_sizes.clone_from(&self.shape.pool_sizes);
            pool_sizes.iter_mut().for_each(|size| *size = (*size + self.rng.below(7) as u32).saturating_sub(3).max(1));
        }
        let (is_warm, is_taken) = (self.rng.chance(3, 4), self.rng.chance(7, 8));
        Operation::Rebuild { pool_of_layer, pool_sizes, is_warm, is_taken }
    }

    fn export(&mut self) -> Operation {
        let end = self.end();
        match self.rng.below(4) {
            0 => return Operation::BringBack(end),
            1 => self.script.push_back(Operation::Reset),
            _ => {
                let (pool_of_layer, pool_sizes) = random_pools(self.rng, self.shape.pool_of_layer.len());
                self.script.push_back(Operation::Restart { pool_of_layer, pool_sizes });
            }
        }
        self.script.push_back(Operation::BringBack(end));
        if self.on.rebuilds {
            // What was brought back has other slots and stamps than any step would have given it.
            let rebuild = self.rebuild();
            self.script.push_back(rebuild);
        }
        Operation::Export
    }
}
