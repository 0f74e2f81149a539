//! What was routed to right after an expert was: at the next steps of its layer.

use super::ScoreNumbers;

/// Steps wider than this have no followers, and follow nothing: in a batch, what comes after a route is mostly another
/// request's.
pub(super) const WIDEST: usize = 16;
/// How many steps an expert remembers what came after it.
pub(super) const KEPT: usize = 8;

/// What followed an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ring {
    /// The experts of the last steps after it, with their numbers.
    steps: [[u16; WIDEST]; KEPT],
    widths: [u8; KEPT],
    /// Where the next goes.
    next: u8,
}

/// The experts of a layer's last step, if they are not too many. In place, so that copies have the room too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Latest {
    experts: [u16; WIDEST],
    width: u8,
}

/// Of every layer, what followed its experts, and what that says of its next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followers {
    expert_count: usize,
    /// `rings[layer * expert_count + expert]`.
    rings: Vec<Ring>,
    /// `latest[layer]`.
    latest: Vec<Latest>,
    /// `counts[layer * expert_count + expert]`: how often it followed those.
    counts: Vec<u16>,
}

impl Followers {
    pub(super) fn new(layer_count: usize, expert_count: usize) -> Self {
        let ring = Ring { steps: [[0; WIDEST]; KEPT], widths: [0; KEPT], next: 0 };
        Self {
            expert_count,
            rings: vec![ring; layer_count * expert_count],
            latest: vec![Latest { experts: [0; WIDEST], width: 0 }; layer_count],
            counts: vec![0; layer_count * expert_count],
        }
    }

    /// How often each expert of a layer followed those that it used last.
    #[inline]
    pub(super) fn counts(&self, layer: usize) -> &[u16] {
        &self.counts[layer * self.expert_count..][..self.expert_count]
    }

    /// Calls `tell(kind, index, number)` as [`Scores::each_number`](super::Scores::each_number) says.
    pub(super) fn each_number(&self, mut tell: impl FnMut(u64, usize, u64)) {
        for (layer, latest) in self.latest.iter().enumerate() {
            let experts = latest.experts[..usize::from(latest.width)].iter().enumerate();
            experts.for_each(|(place, &expert)| tell(6, layer * WIDEST + place, expert.into()));
            tell(7, layer, latest.width.into());
        }
        for (expert, ring) in self.rings.iter().enumerate() {
            for age in 0..KEPT {
                // Where a ring begins decides nothing.
                let (step, at) = (expert * KEPT + age, (usize::from(ring.next) + age) % KEPT);
                let followers = ring.steps[at][..usize::from(ring.widths[at])].iter().enumerate();
                followers.for_each(|(place, &follower)| tell(8, step * WIDEST + place, follower.into()));
                tell(9, step, ring.widths[at].into());
            }
        }
    }

    pub(super) fn write_numbers(&self, numbers: &mut ScoreNumbers) {
        numbers.latest = self.latest.iter().flat_map(|latest| latest.experts).collect();
        numbers.latest_widths = self.latest.iter().map(|latest| latest.width).collect();
        numbers.ring_experts = self.rings.iter().flat_map(|ring| ring.steps.as_flattened()).copied().collect();
        numbers.ring_widths = self.rings.iter().flat_map(|ring| ring.widths).collect();
        numbers.ring_next = self.rings.iter().map(|ring| ring.next).collect();
        numbers.followed = self.counts.iter().map(|&count| count.into()).collect();
    }

    /// The numbers are checked.
    pub(super) fn read_numbers(&mut self, numbers: &ScoreNumbers) {
        let (latest, _) = numbers.latest.as_chunks();
        for (to, (&experts, &width)) in self.latest.iter_mut().zip(latest.iter().zip(&numbers.latest_widths)) {
            *to = Latest { experts, width };
        }
        let (steps, _) = numbers.ring_experts.as_chunks::<WIDEST>();
        let ((steps, _), (widths, _)) = (steps.as_chunks(), numbers.ring_widths.as_chunks());
        let rings = steps.iter().zip(widths).zip(&numbers.ring_next);
        for (to, ((&steps, &widths), &next)) in self.rings.iter_mut().zip(rings) {
            *to = Ring { steps, widths, next };
        }
        for (to, &count) in self.counts.iter_mut().zip(&numbers.followed) {
            *to = count as u16;
        }
    }

    /// How often each expert of a layer followed those that it used last, by numbers whose rings are checked.
    pub(super) fn count(numbers: &ScoreNumbers, layer: usize, expert_count: usize) -> Vec<u32> {
        let mut counts = vec![0; expert_count];
        let latest = &numbers.latest[layer * WIDEST..][..usize::from(numbers.latest_widths[layer])];
        for &expert in latest {
            let first = (layer * expert_count + usize::from(expert)) * KEPT;
            for step in first..first + KEPT {
                let followers = &numbers.ring_experts[step * WIDEST..][..usize::from(numbers.ring_widths[step])];
                followers.iter().for_each(|&follower| counts[usize::from(follower)] += 1);
            }
        }
        counts
    }

    /// Counts a step of these experts, of which there is at least one. Returns the sum of the counts.
    pub(super) fn step(&mut self, layer: usize, used: &[u32], continues: bool) -> u64 {
        let experts = layer * self.expert_count..(layer + 1) * self.expert_count;
        let (rings, counts) = (&mut self.rings[experts.clone()], &mut self.counts[experts]);
        let latest = &mut self.latest[layer];
        counts.fill(0);
        // A step in parts is wider than its pool, and each of its parts alone would say something else.
        let is_followed = used.len() <= WIDEST && !continues;
        if is_followed {
            for &before in &latest.experts[..usize::from(latest.width)] {
                rings[usize::from(before)].push(used);
            }
        }
        latest.width = 0;
        if !is_followed {
            return 0;
        }
        latest.width = used.len() as u8;
        let mut total = 0;
        // Few rings are at hand. A number out of each line of memory has them all fetched at once, where counting would
        // wait for one after the other: with 48 layers of 512 experts, 0.2 us less a step.
        let touched = used.iter().fold(0, |touched, &expert| {
            rings[expert as usize].steps.iter().step_by(2).fold(touched, |touched, step| touched | step[0])
        });
        std::hint::black_box(touched);
        for (&expert, latest_expert) in used.iter().zip(&mut latest.experts) {
            *latest_expert = expert as u16;
            let ring = &rings[expert as usize];
            for (step, &width) in ring.steps.iter().zip(&ring.widths) {
                step[..usize::from(width)].iter().for_each(|&follower| counts[usize::from(follower)] += 1);
                total += u64::from(width);
            }
        }
        total
    }
}

impl Ring {
    fn push(&mut self, used: &[u32]) {
        let at = usize::from(self.next);
        self.steps[at].iter_mut().zip(used).for_each(|(follower, &expert)| *follower = expert as u16);
        self.widths[at] = used.len() as u8;
        self.next = ((at + 1) % KEPT) as u8;
    }
}
