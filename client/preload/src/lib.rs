//! `libgpulease_preload.so`: the GPU memory of programs that nobody changes, in a lease.
//!
//! `gpulease run` sets `LD_PRELOAD` to this library. It stands before the CUDA driver whichever way a program reaches
//! it ([`doors`]): by symbols it was linked with, by `dlsym`, by `cuGetProcAddress`. Memory then comes from segments
//! of the lease, and what the program is told of the card's memory is its lease.
//!
//! Nothing happens when it is loaded. The first `cuInit` that succeeds joins the lease that the environment names; a
//! program without CUDA, or without a lease in its environment, runs as if the library were not there.
//!
//! ```text
//! program ── door ── entry point of ours ──► heap ──► gpulease-client ──► broker
//!                          │                              │
//!                          └──────── real driver ◄────────┘
//! ```

#![allow(non_snake_case, reason = "the entry points have the driver's own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's functions have as many")]

mod ancient;
mod arrays;
mod beside;
mod budget;
mod capture;
mod charged;
mod code;
mod contexts;
mod doors;
mod driver;
mod elf;
mod elsewhere;
mod entries;
mod fork;
mod gate;
mod gated;
mod heap;
mod job;
mod memory;
mod modules;
mod peers;
mod piece;
mod pools;
mod proc_address;
mod real;
mod report;
mod vmm;
