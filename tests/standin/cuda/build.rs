//! The library is linked as the driver's is: under its name, and with its own functions as the only ones that it
//! finds by their names, whatever was loaded before it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic,-soname,libcuda.so.1");
}
