//! Lots drawn from a seed, the same on every machine.

/// The splitmix64 generator: a counter and a mixing function, which is all a simulation needs.
#[derive(Clone, Debug)]
pub(super) struct Dice {
    state: u64,
}

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero. The tiny bias of the remainder does not matter here.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// The same for the counts of the policy.
    pub(super) fn count(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(u64::from(low), u64::from(high))).expect("below a u32")
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these, if there is any.
    pub(super) fn pick<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        if these.is_empty() {
            return None;
        }
        let at = usize::try_from(self.below(these.len() as u64)).expect("an index fits");
        these.get(at)
    }

    /// One of these by their weights, of which one at least is not zero.
    pub(super) fn weighted<'a, T>(&mut self, these: &'a [(u64, T)]) -> &'a T {
        let total: u64 = these.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        for (weight, this) in these {
            if at < *weight {
                return this;
            }
            at -= weight;
        }
        unreachable!("the weights sum up to more than was drawn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_lots() {
        let draw = |seed| -> Vec<u64> {
            let mut dice = Dice::new(seed);
            (0..64).map(|_| dice.between(3, 9)).collect()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!((3..=9).all(|n| draw(7).contains(&n)));
    }
}
