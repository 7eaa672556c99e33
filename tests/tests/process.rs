//! Real processes: a daemon, jobs that are killed, stopped, forked and dishonest, and whoever waits
//! behind them.

mod crowd;
mod growing;
mod holding;
mod hostile;
mod isolation;
mod kill_matrix;
mod load;
mod restart;
mod suspension;
