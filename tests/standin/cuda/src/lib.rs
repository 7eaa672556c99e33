//! A `libcuda.so.1` over host memory, so that everything but users' kernels runs without a GPU.
//!
//! It answers as driver 580 was seen to answer, code for code where tests look at codes. Memory is
//! that of a [`gpulease_standin_card::Card`], which all processes with the same
//! `GPULEASE_STANDIN_DIR` share: it passes between processes by descriptor, is charged until the
//! last claim on it in any process is gone, and can be read and written by the CPU at its device
//! address. Copies and fills are done when their call returns. So is the one kernel that runs here,
//! the check sums of the client library; other functions are `CUDA_ERROR_NOT_SUPPORTED`. Access that
//! was not set, or was taken away, is a fault here too.
//!
//! Per process, besides the card's own settings: `GPULEASE_STANDIN_FAULTS` injects failures (see
//! [`gpulease_standin_card::Faults`]), `GPULEASE_STANDIN_DIRTY=on` fills new memory with a pattern,
//! `CUDA_VISIBLE_DEVICES` works as it does for the driver.

#![allow(non_snake_case, reason = "the entry points have the driver's own names")]

mod addresses;
mod code;
mod context;
mod copy;
mod devices;
mod driver;
mod host;
mod legacy;
mod modules;
mod pointer;
mod stream;
mod vmm;
