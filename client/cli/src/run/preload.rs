//! The library that puts the GPU memory of programs which know nothing of leases into the lease.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use gpulease_client::{Device, DeviceKind, Lease};

use super::surroundings::Variable;
use crate::arguments::RunArguments;
use crate::exit::{Exit, Failure};

/// Its file.
const LIBRARY: &str = "libgpulease_preload.so";
/// Names it elsewhere.
const PLACE: &str = "GPULEASE_PRELOAD";
/// What the dynamic loader loads before all others.
const LOADED_FIRST: &str = "LD_PRELOAD";
/// How long an allocation above the reserve waits in line, in milliseconds.
const WAIT: &str = "GPULEASE_WAIT_FOR_MEMORY_MS";

/// In a build folder, where it is newest; beside the program; where packages put libraries.
const FOLDERS: [&str; 4] = ["deps", ".", "../lib/gpulease", "../lib"];

/// What the child needs so that its GPU memory comes from the lease; nothing where the lease has no GPU, or the
/// library is not wanted.
///
/// # Errors
/// Where the library is wanted and is not there, or none that can be loaded: the program would take its memory from
/// outside the lease.
pub(super) fn variables(
    lease: &Lease,
    devices: &[Device],
    arguments: &RunArguments,
) -> Result<Vec<Variable>, Failure> {
    let on_gpu = |device: &&Device| device.kind == DeviceKind::Cuda && lease.devices().contains(&device.id);
    if arguments.no_preload || !devices.iter().any(|device| on_gpu(&device)) {
        return Ok(Vec::new());
    }
    let program = env::current_exe().ok();
    let library = listed(find(env::var_os(PLACE), program.as_deref())?)?;
    let library = loadable(library, program.as_deref())?;
    let mut variables = vec![(LOADED_FIRST, before_others(library, env::var_os(LOADED_FIRST)))];
    if let Some(wait) = arguments.wait_for_memory {
        variables.push((WAIT, wait.as_millis().to_string().into()));
    }
    Ok(variables)
}

fn find(named: Option<OsString>, program: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(named) = named.filter(|named| !named.is_empty()).map(PathBuf::from) {
        return if named.is_file() {
            Ok(named)
        } else {
            Err(missing(&format!("{PLACE} names {}", named.display())))
        };
    }
    let folder = program.and_then(Path::parent).unwrap_or(Path::new("."));
    let places = FOLDERS.map(|place| folder.join(place).join(LIBRARY));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        missing(&format!("{LIBRARY} is neither beside {} nor in ../lib/gpulease", folder.display()))
    })
}

/// The loader splits its list at spaces and colons, whatever they stand in.
fn listed(library: PathBuf) -> Result<PathBuf, Failure> {
    if !library.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n'))
    {
        return Ok(library);
    }
    let place = library.display();
    Err(missing(&format!(
        "the dynamic loader can't take {place}, whose path has a space or a colon (name a copy elsewhere in {PLACE})"
    )))
}

/// The loader passes over a file that it can't load, and starts the program all the same.
fn loadable(library: PathBuf, program: Option<&Path>) -> Result<PathBuf, Failure> {
    let place = library.display();
    let found = Header::of(&library).map_err(|error| missing(&format!("{place} can't be read: {error}")))?;
    // A program that does not know itself takes it for what its name says.
    let fits =
        program.and_then(|program| Header::of(program).ok()).is_none_or(|own| found.is_library_for(&own));
    if fits {
        Ok(library)
    } else {
        Err(missing(&format!("{place} is no library that programs here can load")))
    }
}

/// The beginning of an ELF file.
struct Header([u8; 20]);

impl Header {
    /// `ET_DYN`
    const SHARED: [u8; 2] = 3_u16.to_ne_bytes();

    fn of(file: &Path) -> io::Result<Self> {
        let mut header = [0; 20];
        // What is shorter is no ELF file, which the zeros say as well.
        File::open(file)?.take(20).read_exact(&mut header).or_else(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Ok(()),
            _ => Err(error),
        })?;
        Ok(Self(header))
    }

    /// The same magic number, width, byte order and processor; and it can be loaded into another.
    fn is_library_for(&self, program: &Self) -> bool {
        self.0[..6] == program.0[..6] && self.0[18..] == program.0[18..] && self.0[16..18] == Self::SHARED
    }
}

fn missing(what: &str) -> Failure {
    Failure::new(
        Exit::BadConfiguration,
        format!(
            "{what}, and without it the program would take its GPU memory from outside the lease; install it there, \
             or say --no-preload for a program that uses the gpulease library itself"
        ),
    )
}

/// The loader takes a list with colons; what the user has there stays, behind ours. The run-time libraries of sanitizers have to be
/// first of all, and end the program where they are not.
fn before_others(library: PathBuf, others: Option<OsString>) -> OsString {
    let others = others.unwrap_or_default();
    let others = others.as_bytes().split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty());
    let (mut list, behind): (Vec<_>, Vec<_>) = others.partition(|name| is_of_a_sanitizer(name));
    list.push(library.as_os_str().as_bytes());
    list.extend(behind);
    OsString::from_vec(list.join(&b':'))
}

fn is_of_a_sanitizer(library: &[u8]) -> bool {
    let file = library.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    ["libasan", "libtsan", "liblsan", "libubsan", "libclang_rt."]
        .iter()
        .any(|name| file.starts_with(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_libraries_stay_behind_ours() {
        let ours = || PathBuf::from("/opt/lib/ours.so");
        assert_eq!(before_others(ours(), None), "/opt/lib/ours.so");
        assert_eq!(before_others(ours(), Some("".into())), "/opt/lib/ours.so");
        assert_eq!(before_others(ours(), Some("a.so:b.so".into())), "/opt/lib/ours.so:a.so:b.so");
        assert_eq!(before_others(ours(), Some("a.so b.so".into())), "/opt/lib/ours.so:a.so:b.so");
        let list = before_others(ours(), Some("a.so:/usr/lib/libasan.so.8:b.so".into()));
        assert_eq!(list, "/usr/lib/libasan.so.8:/opt/lib/ours.so:a.so:b.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(listed("/opt/lib/ours.so".into()).is_ok());
        for path in ["/opt/my lib/ours.so", "/opt/a:b/ours.so"] {
            assert!(listed(path.into()).is_err(), "{path}");
        }
    }

    #[test]
    fn what_the_loader_would_pass_over_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, program) = (folder.path().join("ours.so"), env::current_exe().expect("this program"));
        let check = |content: &[u8]| {
            std::fs::write(&file, content).expect("a file");
            loadable(file.clone(), Some(&program))
        };
        let mut header = Header::of(&program).expect("it can be read").0;
        header[16..18].copy_from_slice(&Header::SHARED);
        assert!(check(&header).is_ok());
        for changed in [0, 4, 5, 16, 18] {
            let mut other = header;
            other[changed] ^= 1;
            assert!(check(&other).is_err(), "byte {changed}");
        }
        assert!(check(b"").is_err() && check(b"not a library at all, however long").is_err());
        assert!(loadable("/nowhere/ours.so".into(), Some(&program)).is_err());
    }

    #[test]
    fn it_is_found_where_it_is_named_and_else_near_the_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib/gpulease"));
        std::fs::create_dir_all(&bin).and(std::fs::create_dir_all(&lib)).expect("folders");
        let program = bin.join("gpulease");
        let failure = find(None, Some(&program)).expect_err("there is none yet");
        assert_eq!(failure.exit, Exit::BadConfiguration);
        std::fs::write(lib.join(LIBRARY), "").expect("a file");
        let found = find(None, Some(&program)).expect("it is there now");
        assert_eq!(found, lib.join(LIBRARY).canonicalize().expect("it is there"));
        let named = lib.join(LIBRARY);
        assert_eq!(find(Some(named.clone().into()), Some(&program)).expect("it is named"), named);
        assert!(
            find(Some("/nowhere/ours.so".into()), Some(&program)).is_err(),
            "a wrong name is no wish for another"
        );
    }
}
