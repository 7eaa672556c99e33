//! Programs that nobody changes, which reach the driver through every door and take memory by every way: what they
//! have is in the ledger, or they don't get it.
//!
//! Each check has its control beside it: the same program without a lease gets what the check refuses.

mod bare;
mod beside;
mod driver;
mod failures;
mod lab;
mod leased;
mod peers;
mod processes;
mod recording;
mod turns;
mod waiting;
