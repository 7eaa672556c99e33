//! What has to be said to the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A build for tests goes into a wheel, too, and debugging information would be nine tenths of it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-debug");
}
