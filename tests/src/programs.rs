//! Where the programs under test are.

use std::path::{Path, PathBuf};

/// A program of this package, by name.
///
/// It lies beside the test binary's folder `deps`, where Cargo puts it, or beside the test binary
/// itself, where a bundle for another machine has it.
///
/// # Panics
/// When it is in neither place, with both named.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a running program has a path");
    let folder = here.parent().expect("a program lies in a folder");
    let places = [folder.join(name), folder.parent().unwrap_or(folder).join(name)];
    match places.iter().find(|place| place.is_file()) {
        Some(place) => place.clone(),
        None => panic!(
            "{name} is neither {} nor {}; build the tests with cargo",
            places[0].display(),
            places[1].display()
        ),
    }
}

/// The daemon.
#[must_use]
pub fn gpuleased() -> PathBuf {
    program("gpuleased-under-test")
}

/// The command line.
#[must_use]
pub fn gpulease() -> PathBuf {
    program("gpulease-under-test")
}

/// The workspace's root, where its sources are on this machine.
#[must_use]
pub fn sources() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    root.join("Cargo.toml").is_file().then(|| root.to_owned())
}
