//! Compiles the protocol with protox, so that no protoc is needed.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=gpulease");
    let files = protox::compile(["gpulease/v1/gpulease.proto"], ["."])?;
    let descriptor = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("gpulease.v1.bin");
    std::fs::write(descriptor, files.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
