//! Every integration test of gpulease, in one binary. Only `mod` lines here.

mod bypass;
mod cli;
mod client_api;
mod conformance;
mod cuda;
mod cuda_standin;
mod examples;
mod field_cases;
mod gpu;
mod kernels;
mod layers;
mod preload;
mod process;
mod python;
mod rust_source;
mod scenarios;
mod simulator;
mod suspension;
mod witness;
