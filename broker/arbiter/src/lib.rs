//! Who gets which bytes when: the pure state machine of gpulease.
//!
//! The arbiter is told what happened ([`Event`]) and what time it is ([`Time`]), and says what to
//! do ([`Effect`]). It does no I/O, has no clock, no randomness, no threads, and cannot fail: a
//! refusal is an effect. After each mutation drain the effects, then make the next one.

mod accounts;
mod acquire;
mod allocate;
mod arbiter;
mod books;
mod check;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod denial;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod effect;
#[allow(missing_docs, reason = "each variant's line names its fields")]
mod event;
mod lease;
mod ledger;
mod line;
mod member;
mod obstacle;
mod outside;
mod policy;
mod process;
mod recall;
mod release;
mod reserve;
mod resize;
mod segment;
mod session;
mod snapshot;
#[cfg(test)]
mod storm;
mod terms;
mod time;
mod timers;
mod view;

pub use arbiter::{Arbiter, WAKE_UPS, Why};
pub use denial::Denial;
pub use effect::{Effect, Notice};
pub use event::{
    Authority, DeviceWish, Event, Guard, Patience, Peer, Pinning, Place, RequestId, SegmentKind, Terms,
};
pub use policy::{Budget, Budgets, DeviceSpec, Policy};
pub use snapshot::{AccountView, AskView, DeviceView, LeaseState, LeaseView, MemberView, Snapshot};
pub use time::Time;
