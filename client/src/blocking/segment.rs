//! A segment, for blocking callers.

use std::ops::{Deref, DerefMut};

use super::park::block_on;
use crate::error::AskError;

/// [`crate::Segment`] for callers without a runtime. What does not wait is reached through it.
#[derive(Debug)]
pub struct Segment(crate::Segment);

impl Segment {
    /// See [`crate::Segment::free`].
    ///
    /// # Errors
    /// As there.
    pub fn free(self) -> Result<(), AskError> {
        block_on(self.0.free())
    }
}

impl Segment {
    /// See [`crate::Segment::spare`].
    pub fn spare(self) {
        self.0.spare();
    }
}

impl From<crate::Segment> for Segment {
    fn from(segment: crate::Segment) -> Self {
        Self(segment)
    }
}

impl Deref for Segment {
    type Target = crate::Segment;

    fn deref(&self) -> &crate::Segment {
        &self.0
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut crate::Segment {
        &mut self.0
    }
}
