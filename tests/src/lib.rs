//! What the tests of gpulease share.

pub mod daemon;
pub mod programs;
