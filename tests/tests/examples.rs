//! The example programs, run as a user would run them, and the kernels of the training job.

mod kernels;
mod programs;
