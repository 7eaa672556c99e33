//! What the example programs are made of: a training job that keeps all of its state in memory it is given, on
//! the host or on a GPU.

pub mod backend;
pub mod dice;
pub mod digits;
pub mod gpu;
pub mod ipc_consumer;
pub mod memory;
pub mod network;
pub mod shared_lab;
pub mod train;
pub mod trainer;
