//! The same library for callers without an async runtime.
//!
//! Nothing here asks for a runtime, and nothing minds one: the library talks to the broker on a
//! thread of its own, and these calls park the calling thread until the answer is there. Inside
//! an async task they block its thread, so prefer the async face there.
//!
//! ```no_run
//! use gpulease_client::{blocking::Client, gib};
//!
//! let client = Client::connect()?;
//! let lease = client.lease(gib(8)).name("resnet").acquire()?;
//! let mut weights = lease.allocate(gib(2))?;
//! let resident = lease.enter()?;
//! weights.as_mut_slice::<f32>(&resident)?.fill(0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ask;
mod client;
mod entry;
mod lease;
mod observer;
pub(crate) mod park;
mod segment;

pub use ask::{Allocation, LeaseBuilder};
pub use client::Client;
pub use entry::Entry;
pub use lease::Lease;
pub use observer::{Observer, Operator, Updates};
pub use segment::Segment;
