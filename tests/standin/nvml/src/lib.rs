//! A `libnvidia-ml.so.1` over the card of the stand-in CUDA driver.
//!
//! It answers as driver 580 was seen to: `used` is exact and current, counts neither the reserve
//! nor anything else that a process could have; a process is listed from its first context on, with
//! its context and the memory that is booked on a claim of its own: on the maker's handle, and then
//! on the next claim in the ring of them (see the card's survey); what is booked on a descriptor is
//! listed for nobody; pids are those of the reader's namespace.
//!
//! Without `GPULEASE_STANDIN_DIR` it is a driver that is not loaded.

#![allow(non_snake_case, reason = "the entry points have the library's own names")]

mod answers;
mod library;
mod memory;
mod names;
mod processes;
