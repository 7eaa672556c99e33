//! What the tests of gpulease share.

pub mod apart;
pub mod bare_echo;
pub mod crowd;
pub mod daemon;
pub mod dice;
pub mod faulty;
pub mod gpu_bench;
pub mod ledger;
pub mod mapped;
pub mod member;
pub mod proc;
pub mod programs;
pub mod puppet;
pub mod scenario;
pub mod sim;
pub mod standin;
pub mod wire;
