//! What the tests of gpulease share.

pub mod apart;
pub mod daemon;
pub mod faulty;
pub mod gpu_bench;
pub mod programs;
pub mod puppet;
pub mod standin;
