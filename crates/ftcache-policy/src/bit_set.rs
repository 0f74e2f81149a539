//! A set of small numbers that gives up its lowest members without a scan: a bit a number, and above each level a bit
//! for every word of it that is not zero. And sorting by it.

const WORD_BITS: usize = 64;

/// A set of numbers below a bound. A call costs a few word operations per level, and `take_lowest` one more for each
/// number: two levels hold 4,096 numbers, three 262,144.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitSet {
    /// Bit `i % 64` of word `i / 64` is set iff `i` is in the set.
    words: Vec<u64>,
    /// Bit `i` of `upper[0]` is set iff `words[i]` is not zero, and so on; the last level has one word.
    upper: Vec<Vec<u64>>,
    len: usize,
}

impl BitSet {
    /// The empty set of numbers below `bound`.
    pub fn new(bound: usize) -> Self {
        let words = vec![0; bound.div_ceil(WORD_BITS).max(1)];
        let mut upper = Vec::new();
        let mut bits = words.len();
        while bits > 1 {
            bits = bits.div_ceil(WORD_BITS);
            upper.push(vec![0; bits]);
        }
        Self { words, upper, len: 0 }
    }

    /// The set of all numbers below `bound`.
    pub fn full(bound: usize) -> Self {
        let mut set = Self::new(bound);
        set.len = bound;
        let mut bits = bound;
        for level in std::iter::once(&mut set.words).chain(&mut set.upper) {
            level.fill(u64::MAX);
            let used = bits - (level.len() - 1) * WORD_BITS;
            if used < WORD_BITS {
                *level.last_mut().expect("a level has a word") = (1 << used) - 1;
            }
            bits = level.len();
        }
        set
    }

    /// Numbers in the set.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the set has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a number is in the set.
    #[inline]
    pub fn contains(&self, number: usize) -> bool {
        self.words[number / WORD_BITS] >> (number % WORD_BITS) & 1 == 1
    }

    /// Puts a number into the set; whether it was not there.
    #[inline]
    pub fn insert(&mut self, number: usize) -> bool {
        let word = &mut self.words[number / WORD_BITS];
        let before = *word;
        *word = before | 1 << (number % WORD_BITS);
        if *word == before {
            return false;
        }
        self.len += 1;
        if before == 0 {
            self.mark(number / WORD_BITS);
        }
        true
    }

    /// Takes a number out of the set; whether it was there.
    #[inline]
    pub fn remove(&mut self, number: usize) -> bool {
        let word = &mut self.words[number / WORD_BITS];
        let before = *word;
        *word = before & !(1 << (number % WORD_BITS));
        if *word == before {
            return false;
        }
        self.len -= 1;
        if *word == 0 {
            self.unmark(number / WORD_BITS);
        }
        true
    }

    /// Takes the lowest numbers out, ascending, as many as `most` of them, and hands each to `each`. Returns how many.
    #[inline]
    pub fn take_lowest(&mut self, most: usize, mut each: impl FnMut(usize)) -> usize {
        let count = most.min(self.len);
        let mut left = count;
        while left > 0 {
            let index = self.lowest_word();
            let mut word = self.words[index];
            while word != 0 && left > 0 {
                each(index * WORD_BITS + word.trailing_zeros() as usize);
                word &= word - 1;
                left -= 1;
            }
            self.words[index] = word;
            if word == 0 {
                self.unmark(index);
            }
        }
        self.len -= count;
        count
    }

    /// Empties the set, at the cost of what is in it.
    pub fn clear(&mut self) {
        self.take_lowest(self.len, |_| {});
    }

    /// The first word that is not zero; there must be one.
    #[inline]
    fn lowest_word(&self) -> usize {
        self.upper.iter().rev().fold(0, |index, level| index * WORD_BITS + level[index].trailing_zeros() as usize)
    }

    fn mark(&mut self, mut index: usize) {
        for level in &mut self.upper {
            let word = &mut level[index / WORD_BITS];
            let before = *word;
            *word |= 1 << (index % WORD_BITS);
            if before != 0 {
                break;
            }
            index /= WORD_BITS;
        }
    }

    fn unmark(&mut self, mut index: usize) {
        for level in &mut self.upper {
            let word = &mut level[index / WORD_BITS];
            *word &= !(1 << (index % WORD_BITS));
            if *word != 0 {
                break;
            }
            index /= WORD_BITS;
        }
    }
}

/// Up to here fixed comparisons beat the set: none of them is a branch.
const SHORT: usize = 16;

/// The room that [`sort_first`] asks for.
pub const SORT_LANES: usize = 8;

/// Puts distinct numbers below the bound of `scratch`, an empty set left empty, in ascending order.
///
/// The cost is that of the numbers. Allocates nothing.
#[inline]
pub fn sort_distinct(numbers: &mut [u32], scratch: &mut BitSet) {
    match numbers.len() {
        0 | 1 => {}
        2..=SORT_LANES => {
            let mut lanes = [u32::MAX; SORT_LANES];
            lanes.iter_mut().zip(&*numbers).for_each(|(lane, &number)| *lane = number);
            sort_lanes(&mut lanes);
            numbers.iter_mut().zip(lanes).for_each(|(place, number)| *place = number);
        }
        9..=SHORT => sort_by_rank::<SHORT>(numbers),
        _ => {
            for &number in &*numbers {
                scratch.insert(number as usize);
            }
            let mut places = numbers.iter_mut();
            scratch.take_lowest(usize::MAX, |number| {
                *places.next().expect("the numbers are distinct") = number as u32;
            });
        }
    }
}

/// As [`sort_distinct`] for the first `count` of `numbers`, faster if there are [`SORT_LANES`] of them: those behind
/// `count` may change.
///
/// # Panics
///
/// If there are fewer than `count`.
#[inline]
pub fn sort_first(numbers: &mut [u32], count: usize, scratch: &mut BitSet) {
    if count < 2 {
        return;
    }
    match numbers.first_chunk_mut::<SORT_LANES>() {
        Some(lanes) if count <= SORT_LANES => {
            // No loop whose length the processor would have to guess.
            for (lane, index) in lanes.iter_mut().zip(0..) {
                *lane = if index < count { *lane } else { u32::MAX };
            }
            sort_lanes(lanes);
        }
        _ => sort_distinct(&mut numbers[..count], scratch),
    }
}

/// The shortest network for 8 numbers (Knuth, The Art of Computer Programming, 5.3.4), in registers: vectors would have
/// to wait for numbers that were just stored one by one.
#[inline]
fn sort_lanes(lanes: &mut [u32; SORT_LANES]) {
    /// Puts the lesser of each pair first.
    macro_rules! exchange {
        ($($low:ident $high:ident),*) => { $(($low, $high) = ($low.min($high), $low.max($high));)* };
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *lanes;
    exchange!(a c, b d, e g, f h, a e, b f, c g, d h, a b, c d, e f, g h, c e, d f, b e, d g, b c, d e, f g);
    *lanes = [a, b, c, d, e, f, g, h];
}

/// Each of at most `LANES` distinct numbers goes where the count of smaller ones says.
#[inline]
fn sort_by_rank<const LANES: usize>(numbers: &mut [u32]) {
    let mut padded = [u32::MAX; LANES];
    padded.iter_mut().zip(&*numbers).for_each(|(place, &number)| *place = number);
    for &number in &padded[..numbers.len()] {
        let smaller: u32 = padded.iter().map(|&other| u32::from(other < number)).sum();
        numbers[smaller as usize] = number;
    }
}
