//! Finding the program before the line is joined, so that a slip of the pen never waits.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};

/// Where the shell looks when PATH is not set.
const PATH_WITHOUT_ONE: &str = "/usr/local/bin:/usr/bin:/bin";

/// What is at a path.
#[derive(Debug, PartialEq, Eq)]
enum There {
    Program,
    Nothing,
    No(&'static str),
}

/// Checks that the program can be run, as `execvp` will look for it.
///
/// # Errors
/// 127 where it is not found, 126 where it is found and cannot be run.
pub(crate) fn check(program: &OsStr, path: Option<OsString>) -> Result<PathBuf, Failure> {
    if program.is_empty() {
        return Err(Failure::new(Exit::NotFound, "the command is empty; write the program after `--`"));
    }
    if program.as_bytes().contains(&b'/') {
        let place = PathBuf::from(program);
        return match look_at(&place) {
            There::Program => Ok(place),
            There::Nothing => Err(not_found(&format!("there is no {}", place.display()))),
            There::No(why) => Err(cannot_run(&place, why)),
        };
    }
    let path = path.unwrap_or_else(|| PATH_WITHOUT_ONE.into());
    on_path(program, &path)
}

fn on_path(program: &OsStr, path: &OsStr) -> Result<PathBuf, Failure> {
    let mut refused = None;
    for folder in std::env::split_paths(path) {
        let place = folder.join(program);
        match look_at(&place) {
            There::Program => return Ok(place),
            There::Nothing => {}
            There::No(why) => refused = refused.or(Some((place, why))),
        }
    }
    let name = program.to_string_lossy();
    Err(match refused {
        Some((place, why)) => cannot_run(&place, why),
        None => not_found(&format!("{name} is in no folder of PATH")),
    })
}

fn look_at(place: &Path) -> There {
    match std::fs::metadata(place) {
        Ok(found) if found.is_dir() => There::No("is a folder"),
        Ok(_) if !may_execute(place) => There::No("is not marked executable for you (chmod +x)"),
        Ok(found) if found.size() == 0 && found.is_file() => There::No("is empty"),
        Ok(_) => There::Program,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            There::No("is in a folder that you may not enter")
        }
        Err(_) => There::Nothing,
    }
}

fn may_execute(place: &Path) -> bool {
    rustix::fs::accessat(rustix::fs::CWD, place, rustix::fs::Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)
        .is_ok()
}

fn not_found(what: &str) -> Failure {
    Failure::new(
        Exit::NotFound,
        format!("{what}; check the spelling after `--`. Nothing was asked of the broker"),
    )
}

fn cannot_run(place: &Path, why: &str) -> Failure {
    let place = place.display();
    Failure::new(
        Exit::CannotRun,
        format!("{place} {why}, so it cannot be run. Nothing was asked of the broker"),
    )
}

/// What it means that `exec` failed after all, as with a script whose interpreter is missing.
pub(crate) fn exec_failed(program: &OsStr, error: &std::io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Exit::NotFound,
            format!(
                "{program} could not be started: {error}; is the interpreter of its first line installed?"
            ),
        ),
        _ => Failure::new(Exit::CannotRun, format!("{program} could not be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn exit_of(program: &str, path: Option<&str>) -> Exit {
        check(OsStr::new(program), path.map(OsString::from)).expect_err(program).exit
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(check(OsStr::new("sh"), Some("/nowhere:/bin:/usr/bin".into())).is_ok());
        assert!(check(OsStr::new("sh"), None).is_ok());
        assert_eq!(check(OsStr::new("/bin/sh"), None), Ok("/bin/sh".into()));
    }

    #[test]
    fn what_is_not_there_is_127_and_what_cannot_run_126() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "#!/bin/sh\n").expect("a file");
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).expect("its mode");
        let here = folder.path().to_str().expect("a path in UTF-8");
        assert_eq!(exit_of("no-such-program", Some(here)), Exit::NotFound);
        assert_eq!(exit_of("./no/such/program", None), Exit::NotFound);
        assert_eq!(exit_of("", None), Exit::NotFound);
        assert_eq!(exit_of("plain", Some(here)), Exit::CannotRun);
        assert_eq!(exit_of(plain.to_str().expect("a path in UTF-8"), None), Exit::CannotRun);
        assert_eq!(exit_of(here, None), Exit::CannotRun);
    }

    #[test]
    fn a_program_later_on_the_path_counts_more_than_one_that_cannot_run() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("sh")).expect("a folder named as the program");
        let path = format!("{}:/bin", folder.path().display());
        assert_eq!(check(OsStr::new("sh"), Some(path.into())), Ok("/bin/sh".into()));
    }
}
