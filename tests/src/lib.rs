//! What the tests of gpulease share.

pub mod daemon;
pub mod gpu_bench;
pub mod programs;
pub mod puppet;
pub mod standin;
