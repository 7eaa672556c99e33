//! Makes what a CUDA toolkit brings for this purpose: a library under the driver's name that has its functions' names
//! and nothing behind them, to link with. At run time the loader takes the driver instead.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=functions");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder"));
    let names = fs::read_to_string("functions").expect("the list of functions is here");
    let names: Vec<&str> = names.lines().map(str::trim).filter(|name| !name.is_empty()).collect();
    let stub = make_stub(&out, &names);
    fs::write(out.join("linked.rs"), table(&names)).expect("the folder takes a file");
    println!("cargo:rustc-cdylib-link-arg={}", stub.display());
}

fn make_stub(out: &Path, names: &[&str]) -> PathBuf {
    let (source, stub) = (out.join("stub.rs"), out.join("libcuda.so"));
    let mut text = String::new();
    for name in names {
        writeln!(text, "#[unsafe(no_mangle)] extern \"C\" fn {name}() {{}}").expect("a string takes all");
    }
    fs::write(&source, text).expect("the folder takes a file");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo names the compiler"));
    rustc.args(["--crate-type", "cdylib", "--crate-name", "cuda", "--edition", "2024", "-Anon_snake_case"]);
    rustc.args(["-C", "panic=abort", "-C", "link-arg=-Wl,-soname,libcuda.so.1", "--target"]);
    rustc.arg(env::var_os("TARGET").expect("cargo names the target")).arg("-o").arg(&stub).arg(&source);
    // Cargo names the linker where another than the compiler's own is set, as for another architecture.
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg([OsStr::new("linker="), &linker].into_iter().collect::<OsString>());
    }
    let status = rustc.status().expect("the compiler can be run");
    assert!(status.success(), "the library to link with could not be made: {status}");
    stub
}

/// The addresses of the functions as the linker and the loader gave them.
fn table(names: &[&str]) -> String {
    let mut text = String::from("#[allow(improper_ctypes)]\nunsafe extern \"C\" {\n");
    for name in names {
        writeln!(text, "    fn {name}();").expect("a string takes all");
    }
    text.push_str("}\n\nfn address_of(name: &[u8]) -> *const c_void {\n    match name {\n");
    for name in names {
        writeln!(text, "        b\"{name}\" => {name} as *const c_void,").expect("a string takes all");
    }
    text.push_str("        _ => std::ptr::null(),\n    }\n}\n");
    text
}
