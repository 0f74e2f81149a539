//! A small generator of its own: what a seed gives must stay the same over platforms and over years, and a crate's
//! generator may change with its version.

/// Splitmix64: spreads seeds that differ in one bit.
#[derive(Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Xoshiro256**, with a state filled by [`SplitMix`].
#[derive(Debug)]
pub(crate) struct Random([u64; 4]);

impl Random {
    /// The stream of a seed and an index: other indices give streams that have nothing to do with it.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut of_seed = SplitMix::new(seed);
        let mut mix = SplitMix::new(of_seed.next() ^ stream);
        Self([mix.next(), mix.next(), mix.next(), mix.next()])
    }

    pub(crate) fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number in `0..bound`, `bound` not 0. Off from even by less than `bound / 2^64`: for the bounds here, 2^48 at
    /// most, no test of a trace could tell.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `0..1`, a multiple of 2^-53, so that a comparison with it is exact.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The first outputs that the authors' C code gives.
    #[test]
    fn known_answers() {
        let mut mix = SplitMix::new(0);
        assert_eq!([mix.next(), mix.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut random = Random([1, 2, 3, 4]);
        assert_eq!([random.next(), random.next(), random.next()], [11520, 0, 1_509_978_240]);
    }

    #[test]
    fn numbers_stay_below_their_bound() {
        let mut random = Random::new(7, 0);
        let mut counts = [0_u32; 5];
        for _ in 0..5000 {
            counts[random.below(5) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }
}
