//! What was routed to right after an expert was: at the next steps of its layer.

/// Steps wider than this have no followers, and follow nothing: in a batch, what comes after a route is mostly another
/// request's.
const WIDEST: usize = 16;
/// How many steps an expert remembers what came after it.
const KEPT: usize = 8;

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

    /// Every number of it: what was used last, and what followed each expert, the oldest steps first.
    pub(super) fn each_number(&self, mut each: impl FnMut(u64)) {
        for latest in &self.latest {
            latest.experts[..usize::from(latest.width)].iter().for_each(|&expert| each(expert.into()));
            each(u64::MAX - u64::from(latest.width));
        }
        for ring in &self.rings {
            for at in (0..KEPT).map(|back| (usize::from(ring.next) + back) % KEPT) {
                let width = usize::from(ring.widths[at]);
                ring.steps[at][..width].iter().for_each(|&follower| each(follower.into()));
                each(u64::MAX - width as u64);
            }
        }
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
