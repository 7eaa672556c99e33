//! A `libcuda.so.1` over host memory, so that everything but users' kernels runs without a GPU.
//!
//! It answers as driver 580 was seen to answer, code for code where tests look at codes. Memory is
//! that of a [`gpulease_standin_card::Card`], which all processes with the same
//! `GPULEASE_STANDIN_DIR` share: it passes between processes by descriptor, is charged until the
//! last claim on it in any process is gone, and can be read and written by the CPU at its device
//! address. Copies and fills are done when their call returns. So are the kernels that run here: the
//! check sums of the client library, and those that do nothing; other functions are
//! `CUDA_ERROR_NOT_SUPPORTED`. Access that was not set, or was taken away, is a fault here too.
//! All of the memory that a call costs is counted when it returns; where the driver takes it at the
//! first use (managed memory, heaps and stacks of kernels) this one is early.
//!
//! Per process, besides the card's own settings: `GPULEASE_STANDIN_FAULTS` injects failures (see
//! [`gpulease_standin_card::Faults`]), `GPULEASE_STANDIN_DIRTY=on` fills new memory with a pattern,
//! `CUDA_VISIBLE_DEVICES` works as it does for the driver.

#![allow(non_snake_case, reason = "the entry points have the driver's own names")]

mod addresses;
mod allocation;
mod arrays;
mod attributes;
mod capture;
mod code;
mod context;
mod copy;
mod devices;
mod driver;
mod elsewhere;
mod entry;
mod fill;
mod graph;
mod graph_memory;
mod host;
mod ipc;
mod launch;
mod limits;
mod look_up;
mod modules;
mod old;
mod pointer;
mod pool_properties;
mod pools;
mod shaped_copy;
mod stream;
mod sums;
mod values;
mod vmm;
