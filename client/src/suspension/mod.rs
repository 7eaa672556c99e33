//! The part of a process in its lease's suspensions: see the broker's notices `Suspend`, `SwapOut`, `SegmentBack`.
//!
//! ```text
//!   Suspend    close the gate, wait for the guards, let the devices finish     -> drained
//!   SwapOut    copy each segment into its host copy and unmap it               -> swapped_out, one by one
//!   (enter)    ask for the memory: Resume
//!   SegmentBack  claim, map where it was, copy in, compare the check sums      -> restored, one by one
//!   Resumed    open the gate
//! ```

mod arrival;
mod body;
mod departure;
mod homecoming;
mod lanes;
mod mover;
mod preparation;
mod report;

pub(crate) use body::Body;
pub(crate) use homecoming::Homecoming;
pub(crate) use lanes::Lanes;
pub(crate) use mover::{Order, Orders};
