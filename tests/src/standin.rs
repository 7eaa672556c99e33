//! The stand-in drivers, ready for the processes of a test.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpulease_standin_card::{Card, DIRECTORY, Faults};
use rustix::fs::statvfs;
use tempfile::TempDir;

/// How much a memory-backed directory must have free to hold a card; else it goes to disk.
const ROOM: u64 = 1 << 30;

/// A card of its own with both stand-in drivers over it, until dropped.
///
/// Processes get it by [`Self::apply`] or [`Self::environment`]; all that do share its memory. By
/// default it has two devices of 8 GiB, of which only what is written takes memory of the host.
///
/// ```no_run
/// # use std::process::Command;
/// # use gpulease_tests::standin::Standin;
/// let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "2GiB")]);
/// let mut daemon = Command::new("gpuleased");
/// standin.apply(&mut daemon);
/// standin.faults("cuMemCreate 3 error 2");
/// ```
#[derive(Debug)]
pub struct Standin {
    /// `state` is the card, `lib` has the drivers.
    directory: TempDir,
}

impl Standin {
    /// Two devices of 8 GiB.
    ///
    /// # Panics
    /// As [`Self::with`].
    #[must_use]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// A card that differs in these fields of [`gpulease_standin_card::Settings`].
    ///
    /// # Panics
    /// Where the drivers were not built beside the tests, or the system fails.
    #[must_use]
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("gpulease-standin-")
            .tempdir_in(place())
            .expect("a temporary directory can be made");
        let standin = Self { directory };
        fs::create_dir(standin.state()).expect("the directory is ours");
        fs::create_dir(standin.libraries()).expect("the directory is ours");
        for (path, mode) in [(standin.directory.path(), 0o755), (&standin.state(), 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("the directory is ours");
        }
        let card: String = settings.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        Card::describe(&standin.state(), &card).expect("the directory takes a file");
        standin.link("libcuda_standin.so", &["libcuda.so.1", "libcuda.so"]);
        standin.link("libnvml_standin.so", &["libnvidia-ml.so.1", "libnvidia-ml.so"]);
        standin
    }

    /// The same card with a driver that lacks this function: its name is struck out of the
    /// library's symbols, as in a driver from before there was one.
    ///
    /// # Panics
    /// Where the driver has no such function.
    #[must_use]
    pub fn without_symbol(self, symbol: &str) -> Self {
        let library = self.libraries().join("libcuda.so.1");
        let mut bytes = fs::read(&library).expect("the library was linked a moment ago");
        let name = format!("\0{symbol}\0").into_bytes();
        let places: Vec<usize> = bytes
            .windows(name.len())
            .enumerate()
            .filter(|(_, window)| *window == name)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "the stand-in driver has no {symbol} to take away");
        for at in places {
            bytes[at + 1] = b'-';
        }
        for name in ["libcuda.so.1", "libcuda.so"] {
            let path = self.libraries().join(name);
            fs::remove_file(&path).expect("the link is ours");
            fs::write(&path, &bytes).expect("the directory takes a file");
        }
        self
    }

    /// The same card without NVML.
    ///
    /// # Panics
    /// Where the system fails.
    #[must_use]
    pub fn without_nvml(self) -> Self {
        for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            fs::remove_file(self.libraries().join(name)).expect("the link is ours");
        }
        self
    }

    /// What a process needs in its environment to find this card.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut search = self.libraries().into_os_string();
        if let Some(rest) = env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
            search.push(":");
            search.push(rest);
        }
        vec![("LD_LIBRARY_PATH", search), (DIRECTORY, self.state().into_os_string())]
    }

    /// Lets a program that is to be started find this card.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.environment());
    }

    /// Sets the failures to inject, in every process from its next call on; see
    /// [`gpulease_standin_card::Faults`] for the rules. Empty for none.
    ///
    /// # Panics
    /// Where the system fails.
    pub fn faults(&self, rules: &str) {
        Faults::write(&self.state(), rules).expect("the directory takes a file");
    }

    /// The card itself, for a look at its books.
    ///
    /// # Panics
    /// Where the system fails.
    #[must_use]
    pub fn card(&self) -> Card {
        Card::open(&self.state()).expect("the directory holds the card")
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn libraries(&self) -> PathBuf {
        self.directory.path().join("lib")
    }

    fn link(&self, library: &str, names: &[&str]) {
        let built = beside_the_test(library).unwrap_or_else(|| {
            panic!("{library} is neither beside the test nor in deps; build it with the tests")
        });
        for name in names {
            symlink(&built, self.libraries().join(name)).expect("the directory takes a link");
        }
    }
}

impl Default for Standin {
    fn default() -> Self {
        Self::new()
    }
}

/// A library that Cargo built for this test, into `deps` where the test is too, or that was carried
/// along beside it.
fn beside_the_test(library: &str) -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    let folder = test.parent()?;
    [folder.join(library), folder.join("deps").join(library)].into_iter().find(|path| path.is_file())
}

/// Memory where there is enough of it, else wherever temporary files go.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = statvfs(memory).map_or(0, |about| about.f_bavail.saturating_mul(about.f_frsize));
    if room >= ROOM { memory.to_path_buf() } else { env::temp_dir() }
}
