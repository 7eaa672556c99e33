//! Memory handed out from its beginning on.

use std::fmt;

use super::Span;

/// Tensors begin at multiples of this many floats: 256 bytes, what CUDA's own allocator gives.
const ALIGNMENT: usize = 64;

/// The memory of one or more segments, handed out in order. It keeps no record: whoever takes the same sizes
/// in the same order finds the same tensors again, so a program lays its tensors out anew under each guard.
pub struct Arena<S> {
    rest: Vec<S>,
}

/// No segment has that much room left in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRoom {
    /// Floats wanted.
    pub wanted: usize,
    /// Floats of the largest piece left.
    pub largest: usize,
}

impl fmt::Display for OutOfRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a tensor of {} bytes is wanted and the largest piece of memory left is {} bytes: ask for more memory",
            self.wanted * 4,
            self.largest * 4
        )
    }
}

impl std::error::Error for OutOfRoom {}

impl<S: Span> Arena<S> {
    /// Hands out of `spans`, the memory of the segments, each of which begins at an aligned address.
    pub fn new(spans: impl IntoIterator<Item = S>) -> Self {
        Self { rest: spans.into_iter().collect() }
    }

    /// The next `floats` floats of the first segment that has them.
    ///
    /// # Errors
    /// [`OutOfRoom`]; nothing was taken.
    pub fn take(&mut self, floats: usize) -> Result<S, OutOfRoom> {
        let Some(place) = self.rest.iter().position(|span| span.floats() >= floats) else {
            let largest = self.rest.iter().map(Span::floats).max().unwrap_or(0);
            return Err(OutOfRoom { wanted: floats, largest });
        };
        let span = self.rest.remove(place);
        let aligned = floats.next_multiple_of(ALIGNMENT).min(span.floats());
        let (taken, rest) = span.split(aligned);
        self.rest.insert(place, rest);
        Ok(taken.split(floats).0)
    }

    /// All that is left, a run for each segment.
    #[must_use]
    pub fn into_rest(self) -> Vec<S> {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_and_come_from_the_first_segment_with_room() {
        let (mut small, mut large) = ([0.0_f32; 128], [0.0_f32; 256]);
        let starts = [small.as_ptr(), large.as_ptr()];
        let mut arena = Arena::new([&mut small[..], &mut large[..]]);
        let first = arena.take(65).expect("128 are left");
        assert_eq!((first.as_ptr(), first.len()), (starts[0], 65));
        let second = arena.take(1).expect("256 are left, none of them in the first segment");
        assert_eq!(second.as_ptr(), starts[1]);
        let third = arena.take(192).expect("192 are left");
        assert_eq!(third.as_ptr(), starts[1].wrapping_add(64));
        assert_eq!(arena.take(1).err(), Some(OutOfRoom { wanted: 1, largest: 0 }));
        assert_eq!(arena.into_rest().iter().map(|s| s.len()).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut memory = [0.0_f32; 100];
        let mut arena = Arena::new([&mut memory[..]]);
        assert_eq!(arena.take(101).err(), Some(OutOfRoom { wanted: 101, largest: 100 }));
        assert_eq!(arena.take(100).map(|s| s.len()), Ok(100));
    }
}
