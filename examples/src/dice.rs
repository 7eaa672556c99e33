//! Random numbers that are a function of their place: the same seed and place give the same number on the host
//! and on a GPU, in whatever order they are asked for.

/// A well-mixed function of 64 bits: the finalizer of SplitMix64. `mix` in `kernels/training.cu` is the same.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// One of `0..sides` for the number `at` of the sequence that `seed` names.
#[must_use]
pub fn throw(seed: u64, at: u64, sides: usize) -> usize {
    let high = (u128::from(mix(seed ^ mix(at))) * sides as u128) >> 64;
    usize::try_from(high).expect("the product's upper half is below `sides`")
}

/// A multiple of 2^-24 in `-1.0..1.0` for the number `at` of the sequence that `seed` names.
#[must_use]
pub fn uniform(seed: u64, at: u64) -> f32 {
    let bits = mix(seed ^ mix(at)) >> 40;
    // 24 bits fit a float's mantissa, so both steps are exact but for the last bit of the second.
    (bits as f32 / 8_388_608.0) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throws_are_even_and_stay_below_the_sides() {
        let mut hits = [0_usize; 3];
        for at in 0..30_000 {
            hits[throw(7, at, 3)] += 1;
        }
        // 10,000 expected; a standard deviation is 82.
        assert!(hits.iter().all(|h| (9_600..10_400).contains(h)), "{hits:?}");
    }

    #[test]
    fn uniform_numbers_fill_their_range() {
        let drawn: Vec<f32> = (0..30_000).map(|at| uniform(7, at)).collect();
        assert!(drawn.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = drawn.iter().sum::<f32>() / 30_000.0;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!(drawn.iter().any(|x| *x < -0.99) && drawn.iter().any(|x| *x > 0.99));
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first outputs of SplitMix64 with seed 0 are mix(0), mix(GAMMA), ..
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }
}
