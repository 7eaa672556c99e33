//! The data: 1,797 images of handwritten digits, 8 by 8 pixels (see `data/README.md` for their source).

/// Pixels along a side of an image.
pub const SIDE: usize = 8;
/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Classes, the digits 0 to 9.
pub const CLASSES: usize = 10;

/// For each sample its pixels (0 to 16), then its class, a byte each.
const FILE: &[u8] = include_bytes!("../data/digits.bin");
const SAMPLE: usize = PIXELS + 1;
/// Samples to test on: every fifth of the file.
pub const TESTING: usize = FILE.len() / SAMPLE / 5;
/// Samples to train on: all others.
pub const TRAINING: usize = FILE.len() / SAMPLE - TESTING;
/// The darkest pixel in the file.
const INK: f32 = 16.0;

/// Images and their classes, ready for upload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digits {
    /// One row of [`PIXELS`] values from 0 to 1 (multiples of 1/16) for each image.
    pub images: Vec<f32>,
    /// The class of each image: a whole number, kept as a float so that all of a job's memory is floats.
    pub classes: Vec<f32>,
}

impl Digits {
    /// The [`TRAINING`] samples.
    #[must_use]
    pub fn training() -> Self {
        Self::of(|number| number % 5 != 4)
    }

    /// The [`TESTING`] samples.
    #[must_use]
    pub fn testing() -> Self {
        Self::of(|number| number % 5 == 4)
    }

    fn of(chosen: impl Fn(usize) -> bool) -> Self {
        let mut digits = Self::default();
        for (_, sample) in FILE.chunks_exact(SAMPLE).enumerate().filter(|(number, _)| chosen(*number)) {
            digits.images.extend(sample[..PIXELS].iter().map(|pixel| f32::from(*pixel) / INK));
            digits.classes.push(f32::from(sample[PIXELS]));
        }
        digits
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.classes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_split_once() {
        assert_eq!(FILE.len(), 1797 * SAMPLE);
        let (training, testing) = (Digits::training(), Digits::testing());
        assert_eq!((training.count(), testing.count()), (1438, 359));
        assert_eq!((TRAINING, TESTING), (1438, 359));
        for digits in [&training, &testing] {
            assert_eq!(digits.images.len(), digits.count() * PIXELS);
            assert!(digits.images.iter().all(|p| (0.0..=1.0).contains(p) && (p * INK).fract() == 0.0));
            for class in 0..CLASSES {
                let share = digits.classes.iter().filter(|c| **c == class as f32).count();
                assert!(share * 20 > digits.count(), "class {class} is {share} of {}", digits.count());
            }
        }
    }
}
