//! Every integration test of gpulease, in one binary. Only `mod` lines here.

mod layers;
mod rust_source;
