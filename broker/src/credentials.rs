//! Secrets: of a session, so that only its own process can speak for it, and of a lease, so that
//! only those its owner told can join.

use std::fmt;
use std::hint::black_box;

/// 16 random bytes; who shows them may act. The debug form hides them.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; 16]);

impl Secret {
    /// A new one, from the kernel.
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the kernel's random pool is ready before any daemon runs");
        Self(bytes)
    }

    /// The bytes, for the one they are told to.
    pub(crate) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether these are the bytes; takes as long for any 16 bytes, so that time tells nothing.
    pub(crate) fn matches(&self, shown: &[u8]) -> bool {
        if shown.len() != self.0.len() {
            return false;
        }
        let differing = self.0.iter().zip(shown).fold(0_u8, |sum, (a, b)| sum | black_box(a ^ b));
        black_box(differing) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_sixteen_bytes_match() {
        let secret = Secret::random();
        let mut other = *secret.bytes();
        assert!(secret.matches(&other));
        for i in 0..16 {
            other[i] ^= 1;
            assert!(!secret.matches(&other), "byte {i}");
            other[i] ^= 1;
        }
        assert!(!secret.matches(&other[..15]));
        assert!(!secret.matches(b""));
        assert!(!secret.matches(Secret::random().bytes()));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
