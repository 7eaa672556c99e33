//! Who gets which bytes when: the pure state machine of gpulease.
//!
//! The arbiter is told what happened ([`Event`]) and what time it is ([`Time`]), and says what to
//! do ([`Effect`]). It does no I/O, has no clock, no randomness, no threads, and cannot fail: a
//! refusal is an effect. After each mutation drain the effects, then make the next one.
//!
//! Where to look:
//!
//! | for | file |
//! |---|---|
//! | what can be said to it, and what it says | `event`, `effect`, `denial` (a new refusal goes there), `snapshot`, `policy` |
//! | the path of an event | `arbiter`: dispatch, grant what can be granted, check the books |
//! | bytes | `ledger` (devices), `accounts` (budgets), `books` (a move in all places at once) |
//! | asks for leases | `terms` (could it ever fit?), `acquire` |
//! | who is next | `line` and what is below it: the order, barriers, why it is fast |
//! | segments | `allocate`, `reserve` (within it), `segment`, `release` (the way back) |
//! | leases | `lease` (its states and what it has set aside), `resize`, `recall` |
//! | people | `session`, `process`, `member` (joining, contexts) |
//! | devices | `outside`: outsiders, lost devices |
//! | showing | `view`, `obstacle` (why an ask waits) |
//! | proof | `check` (everything derived, recomputed), `storm`, `tests/rules` |
//!
//! An account is named by its path: `host`, `group.NAME`, `user.UID`, `user.UID/job.NAME`.

mod accounts;
mod acquire;
mod allocate;
mod arbiter;
mod bedrock;
mod books;
mod bound;
mod budgets;
mod check;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod denial;
mod donors;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod effect;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod event;
mod holders;
mod lease;
mod ledger;
mod line;
mod member;
mod obstacle;
mod outside;
mod overlap;
mod policy;
mod process;
mod recall;
mod release;
mod reserve;
mod resize;
mod resumption;
mod right;
mod segment;
mod session;
mod shortage;
mod snapshot;
#[cfg(test)]
mod storm;
mod suspension;
mod terms;
mod time;
mod timers;
mod view;

pub use arbiter::{Arbiter, WAKE_UPS, Why};
pub use denial::Denial;
pub use effect::{Effect, Notice, Occurrence, Signal};
pub use event::{
    Authority, DeviceWish, Event, Guard, Idleness, Patience, Peer, Pinning, Place, RequestId, SegmentKind,
    Terms,
};
pub use policy::{Budget, Budgets, DeviceSpec, OnOverdue, Policy};
pub use snapshot::{
    AccountView, ArenaView, AskView, DeviceView, LeaseState, LeaseView, MemberView, Purpose, Snapshot,
};
pub use time::Time;
