//! Experts by how recently they were used, and how many lie before one: a Fenwick tree over the places of last uses.

/// Names in the order of their last uses. Each name used has a place, and later places are more recent.
#[derive(Debug)]
pub(crate) struct Recency {
    /// `place_of[name]`, or [`UNPLACED`].
    place_of: Vec<u32>,
    /// `name_at[place_of[name]] == name`; stale where the place is not taken.
    name_at: Vec<u32>,
    /// A bit for each place: taken or not. 64 of them under one leaf, so that the tree stays in the nearest cache.
    taken: Vec<u64>,
    /// Fenwick sums of the bits of each word, counted from 1.
    sums: Vec<u32>,
    /// No place from here on is taken.
    next: usize,
    /// Names that have a place.
    placed: usize,
}

const UNPLACED: u32 = u32::MAX;

impl Recency {
    /// Of names below `names`, none of them used yet.
    pub(crate) fn new(names: usize) -> Self {
        // Places for twice the names: moving them together then costs a constant a use.
        let words = (2 * names).div_ceil(64).max(1);
        Self {
            place_of: vec![UNPLACED; names],
            name_at: vec![0; words * 64],
            taken: vec![0; words],
            sums: vec![0; words + 1],
            next: 0,
            placed: 0,
        }
    }

    /// The least size of a cache that holds `name`: one more than were used since. `None` if it was never used.
    pub(crate) fn distance(&self, name: u32) -> Option<usize> {
        let place = self.place_of[name as usize];
        if place == UNPLACED {
            return None;
        }
        let (word, bit) = (place as usize / 64, place % 64);
        let mut before = (self.taken[word] & ((1 << bit) - 1)).count_ones();
        let mut index = word;
        while index > 0 {
            before += self.sums[index];
            index &= index - 1;
        }
        Some(self.placed - before as usize)
    }

    /// Makes the names the most recent, the first of them before the others. Each is given once.
    pub(crate) fn renew(&mut self, names: &[u32]) {
        if self.next + names.len() > self.name_at.len() {
            self.compact();
        }
        for &name in names {
            let place = std::mem::replace(&mut self.place_of[name as usize], UNPLACED);
            if place != UNPLACED {
                self.flip(place as usize, u32::MAX);
                self.placed -= 1;
            }
        }
        for &name in names.iter().rev() {
            self.place_of[name as usize] = self.next as u32;
            self.name_at[self.next] = name;
            self.flip(self.next, 1);
            self.placed += 1;
            self.next += 1;
        }
    }

    /// Takes a place or frees it; `by` is 1 or -1, modulo 2^32.
    fn flip(&mut self, place: usize, by: u32) {
        self.taken[place / 64] ^= 1 << (place % 64);
        let mut index = place / 64 + 1;
        while let Some(sum) = self.sums.get_mut(index) {
            *sum = sum.wrapping_add(by);
            index += index & index.wrapping_neg();
        }
    }

    /// Moves all names together at the first places, in the same order.
    fn compact(&mut self) {
        let mut next = 0;
        for place in 0..self.next {
            if self.taken[place / 64] >> (place % 64) & 1 == 1 {
                let name = self.name_at[place];
                self.name_at[next] = name;
                self.place_of[name as usize] = next as u32;
                next += 1;
            }
        }
        self.next = next;
        for (word, taken) in self.taken.iter_mut().enumerate() {
            let count = next.saturating_sub(word * 64).min(64);
            *taken = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            self.sums[word + 1] = count as u32;
        }
        for index in 1..self.sums.len() {
            let above = index + (index & index.wrapping_neg());
            if above < self.sums.len() {
                self.sums[above] += self.sums[index];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_first_of_a_step_is_the_most_recent() {
        let mut recency = Recency::new(6);
        recency.renew(&[4, 1, 3]);
        recency.renew(&[1, 5]);
        let distances: Vec<Option<usize>> = (0..6).map(|name| recency.distance(name)).collect();
        assert_eq!(distances, [None, Some(1), None, Some(4), Some(3), Some(2)]);
    }

    #[test]
    fn distances_are_those_of_a_list() {
        for names in [1, 2, 31, 32, 33, 200] {
            let mut random = Random::new(names, 0);
            let mut recency = Recency::new(names as usize);
            let mut list: Vec<u32> = Vec::new();
            for round in 0..2000 {
                let mut step: Vec<u32> = (0..names as u32).collect();
                for place in 0..step.len() {
                    let other = place + random.below((step.len() - place) as u64) as usize;
                    step.swap(place, other);
                }
                step.truncate(1 + random.below(names.min(9)) as usize);
                recency.renew(&step);
                list.retain(|name| !step.contains(name));
                list.splice(0..0, step);
                let asked = random.below(names) as u32;
                let wanted = list.iter().position(|&name| name == asked).map(|index| index + 1);
                assert_eq!(recency.distance(asked), wanted, "{names} names, round {round}");
            }
        }
    }
}
