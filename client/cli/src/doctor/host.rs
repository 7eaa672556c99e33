//! What this host and this user's surroundings tell.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};

use super::finding::Finding;
use super::folder;

/// A segment's descriptors are open only while it is mapped, 16 at most; a process also has its
/// session and a few of CUDA's. Many systems give 1024.
const OPEN_FILES_WANTED: u64 = 256;

/// Whether the socket's folder and the sockets in it are sound.
pub(super) fn directory(socket: &Path) -> Vec<Finding> {
    let folder = folder(socket);
    let found = match std::fs::metadata(folder) {
        Ok(found) => found,
        Err(error) => {
            let message = format!("{} cannot be looked at: {error}", folder.display());
            return vec![Finding::fail("directory", message, "ask the operator for its rights")];
        }
    };
    vec![ownership(folder, found.uid(), found.mode()), handoff(folder)]
}

fn ownership(folder: &Path, owner: u32, mode: u32) -> Finding {
    let (place, us) = (folder.display(), geteuid().as_raw());
    if owner != 0 && owner != us {
        let message = format!("{place} belongs to uid {owner}, which is neither root nor you");
        return Finding::warn("directory", message, "use it only where you trust that user");
    }
    // Anybody may put files into a sticky folder, but not in place of others' files.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        let message = format!(
            "{place} can be written by others (mode {:04o}), who could put a socket of their own there",
            mode & 0o7777
        );
        return Finding::fail("directory", message, format!("chmod 0755 {place}, and restart the broker"));
    }
    Finding::ok("directory", format!("{place} belongs to uid {owner}, and nobody else may write to it"))
}

fn handoff(folder: &Path) -> Finding {
    let socket = folder.join("handoff.sock");
    let reached = std::fs::metadata(&socket).map_err(|error| error.to_string()).and_then(|_| {
        let access = rustix::fs::access(&socket, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK);
        access.map_err(|error| error.to_string())
    });
    match reached {
        Ok(()) => Finding::ok("hand-over", format!("{} is there", socket.display())),
        Err(why) => Finding::fail(
            "hand-over",
            format!("{} cannot be used: {why}; memory cannot be handed over", socket.display()),
            "share the whole folder with the container, not the job socket alone, and restart the broker",
        ),
    }
}

/// Whether this user may open enough files.
pub(super) fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    match limit.current {
        Some(current) if current < OPEN_FILES_WANTED => Finding::warn(
            "open files",
            format!(
                "a process may open {current} files, and a job with many segments needs {OPEN_FILES_WANTED}"
            ),
            format!("ulimit -n {OPEN_FILES_WANTED}"),
        ),
        Some(current) => Finding::ok("open files", format!("a process may open {current} files")),
        None => Finding::ok("open files", "a process may open any number of files"),
    }
}

/// Where this process is contained.
pub(super) fn namespace() -> Finding {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let nested = nested_pids(&status);
    match (nested, container_of(&cgroup)) {
        (false, None) => Finding::ok("container", "this process is in no container that can be told"),
        (_, Some(kind)) => Finding::ok(
            "container",
            format!("this process is in {kind}; share the broker's socket folder with it"),
        ),
        (true, None) => Finding::ok(
            "container",
            "this process is in a pid namespace of its own; /proc must be mounted there for CUDA",
        ),
    }
}

/// `NSpid` lists a process's pid in each of the namespaces that it is in, as far as /proc sees them.
fn nested_pids(status: &str) -> bool {
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_whitespace().count() > 1)
}

fn container_of(cgroup: &str) -> Option<&'static str> {
    const MARKS: [(&str, &str); 5] = [
        ("kubepods", "a Kubernetes pod"),
        ("docker", "a Docker container"),
        ("libpod", "a Podman container"),
        ("slurm", "a Slurm job"),
        ("lxc", "an LXC container"),
    ];
    MARKS.iter().find(|(mark, _)| cgroup.contains(mark)).map(|(_, kind)| *kind)
}

/// Whether this shell is itself in a job, whose lease its programs then join.
pub(super) fn job(variable: impl Fn(&str) -> Option<String>) -> Option<Finding> {
    let lease = variable("GPULEASE_LEASE")?;
    Some(match variable("GPULEASE_TOKEN") {
        Some(_) => Finding::ok("job", format!("this shell is in a job: its programs join lease {lease}")),
        None => Finding::warn(
            "job",
            format!("GPULEASE_LEASE is {lease} and GPULEASE_TOKEN is not set, so programs cannot join it"),
            "unset GPULEASE_LEASE, or pass both on",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_folder_that_others_write_is_a_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("handoff.sock"), "").expect("a file");
        let levels = |mode| {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).expect("its mode");
            let findings = directory(&folder.path().join("gpulease.sock"));
            findings.iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(0o755), [Level::Ok, Level::Ok]);
        assert_eq!(levels(0o777), [Level::Fail, Level::Ok]);
        assert_eq!(levels(0o1777), [Level::Ok, Level::Ok]);
        std::fs::remove_file(folder.path().join("handoff.sock")).expect("the file");
        assert_eq!(levels(0o755), [Level::Ok, Level::Fail]);
        assert_eq!(ownership(Path::new("/x"), 0, 0o755).level, Level::Ok);
        assert_eq!(ownership(Path::new("/x"), geteuid().as_raw() + 4_000_000, 0o755).level, Level::Warn);
    }

    #[test]
    fn containers_are_told_by_their_marks() {
        assert_eq!(container_of("0::/system.slice/docker-12.scope"), Some("a Docker container"));
        assert_eq!(container_of("0::/kubepods.slice/x"), Some("a Kubernetes pod"));
        assert_eq!(container_of("0::/user.slice"), None);
        assert!(nested_pids("Pid:\t7\nNSpid:\t4242\t7\n"));
        assert!(!nested_pids("Pid:\t7\nNSpid:\t7\n"));
    }

    #[test]
    fn half_a_job_is_spoken_of() {
        let both = |name: &str| Some(name.to_owned());
        assert_eq!(job(both).map(|finding| finding.level), Some(Level::Ok));
        let half = |name: &str| (name == "GPULEASE_LEASE").then(|| "7".to_owned());
        assert_eq!(job(half).map(|finding| finding.level), Some(Level::Warn));
        assert_eq!(job(|_| None), None);
    }
}
