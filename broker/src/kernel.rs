//! What the kernel says of a process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::PathBuf;

use gpulease_words::{Pid, Uid};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::PidfdFlags;

use crate::liveness::Unmet;

/// Linux 6.5 and later; neither libc nor rustix has it for every platform yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// Who connected, at the time of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    /// `None`: it is in a pid namespace that the broker cannot see.
    pub(crate) pid: Option<Pid>,
    pub(crate) uid: Uid,
}

pub(crate) fn peer(socket: BorrowedFd<'_>) -> Result<Credentials, Unmet> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(socket, libc::SO_PEERCRED, &mut found)?;
    let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0).map(Pid::new);
    Ok(Credentials { pid, uid: Uid::new(found.uid) })
}

/// The number of a socket's peer, for people.
pub(crate) fn peer_pid(socket: BorrowedFd<'_>) -> Option<Pid> {
    peer(socket).ok()?.pid
}

/// The pidfd of a socket's peer: straight from the socket where the kernel has it, else by number.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>, pid: Pid) -> Result<OwnedFd, Unmet> {
    let mut fd: libc::c_int = -1;
    match option(socket, SO_PEERPIDFD, &mut fd) {
        // SAFETY: the kernel just made this descriptor for us, so nobody else owns it.
        Ok(()) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(Errno::NOPROTOOPT) => pidfd(pid),
        // A peer that is dead and reaped; some kernels say so here.
        Err(Errno::SRCH | Errno::INVAL | Errno::NODATA) => Err(Unmet::Gone),
        Err(errno) => Err(errno.into()),
    }
}

fn option<T>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> Result<(), Errno> {
    let size = size_of::<T>();
    let mut length = libc::socklen_t::try_from(size).expect("a few bytes");
    let place = std::ptr::from_mut(value).cast();
    // SAFETY: getsockopt writes at most `length` bytes at `place`, which is a T of that size, and any bytes make one.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, place, &raw mut length) };
    if rc != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    if usize::try_from(length).is_ok_and(|n| n == size) { Ok(()) } else { Err(Errno::INVAL) }
}

pub(crate) fn pidfd(pid: Pid) -> Result<OwnedFd, Unmet> {
    let number = i32::try_from(pid.get()).ok().and_then(rustix::process::Pid::from_raw).ok_or(Unmet::Gone)?;
    match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
        Ok(fd) => Ok(fd),
        // INVAL: a thread's number, not a process's.
        Err(Errno::SRCH | Errno::INVAL) => Err(Unmet::Gone),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn is_dead(pidfd: &OwnedFd) -> Result<bool, Unmet> {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let ready = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(ready > 0)
}

/// One of the kernel's files about a process. The name of its command is in many; it is any bytes, and may be cut within a
/// letter.
pub(crate) fn told(pid: Pid, file: &str) -> io::Result<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Clock ticks from the boot to the start of the process; `None` where it cannot be seen.
pub(crate) fn start_time(pid: Pid) -> Result<Option<u64>, Errno> {
    let stat = match told(pid, "stat") {
        Ok(stat) => stat,
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH) | None => return Ok(None),
            Some(errno) => return Err(errno),
        },
    };
    // The command stands in brackets and may itself have brackets and spaces; the start is the 20th field after it.
    let start = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(19));
    Ok(start.and_then(|ticks| ticks.parse().ok()))
}

/// So many processes above another are looked at; launchers start launchers, and the top is not far.
const ANCESTORS: usize = 16;

/// Who started it, the nearest first, as far as the kernel says now.
pub(crate) fn ancestors(pid: Pid) -> Vec<Pid> {
    std::iter::successors(parent(pid), |above| parent(*above)).take(ANCESTORS).collect()
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = told(pid, "stat").ok()?;
    // The second field after the command; the first process of all has none.
    let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then(|| Pid::new(parent))
}

/// The user it runs as.
pub(crate) fn owner(pid: Pid) -> Option<Uid> {
    let status = told(pid, "status").ok()?;
    // Real, effective, saved and file-system; what a socket tells of its peer is the effective one.
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_ascii_whitespace().nth(1)?.parse().ok().map(Uid::new)
}

/// The name of its command, at most 15 letters; never blocks on the process itself, as its command line would.
pub(crate) fn command_name(pid: Pid) -> Option<String> {
    Some(told(pid, "comm").ok()?.trim_end_matches('\n').to_owned())
}

/// Whether the process numbers others as the broker does.
pub(crate) fn is_in_own_namespace(pid: Pid) -> bool {
    // Where the kernel does not let us look, the usual is taken to be so; a wrong number is refused for its user.
    namespace(pid).is_none_or(|of_process| Some(of_process) == namespace(Pid::new(std::process::id())))
}

fn namespace(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The process that `caller`, in a pid namespace of its own, knows by the number `pid`.
pub(crate) fn pid_seen_from(caller: Pid, pid: Pid) -> Option<Pid> {
    let there = namespace(caller)?;
    let processes = fs::read_dir("/proc").ok()?;
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.map(Pid::new).find(|process| {
        number_within(*process) == Some(pid) && namespace(*process).is_some_and(|own| own == there)
    })
}

/// A process's number in the innermost namespace that it is in.
fn number_within(process: Pid) -> Option<Pid> {
    let status = told(process, "status").ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok().map(Pid::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use crate::witness::people;

    #[test]
    fn the_own_process_is_read_right() {
        let own = Pid::new(std::process::id());
        assert!(start_time(own).expect("read").is_some_and(|ticks| ticks > 0));
        assert!(command_name(own).is_some_and(|name| !name.is_empty() && !name.contains('\n')));
        assert!(!is_dead(&pidfd(own).expect("it lives")).expect("polled"));
        assert_eq!(owner(own).map(Uid::get), Some(rustix::process::geteuid().as_raw()));
        assert!(is_in_own_namespace(own));
        let above = ancestors(own);
        assert_eq!(above.first().copied(), Some(Pid::new(std::os::unix::process::parent_id())));
        assert_eq!(above.last(), Some(&Pid::new(1)), "nobody started the first");
        assert_eq!(pid_seen_from(own, own), Some(own));
        assert!(matches!(pidfd(Pid::new(0)), Err(Unmet::Gone)));
        assert!(matches!(pidfd(Pid::new(u32::MAX)), Err(Unmet::Gone)));
    }

    /// The kernel cuts names after 15 bytes, in the midst of a letter too.
    #[test]
    fn a_process_may_have_any_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join(OsStr::from_bytes(b"a) name\xff"));
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
        let mut child = Command::new(&program).arg0("sleep").arg("60").spawn().expect("it starts");
        let (pid, start) = (Pid::new(child.id()), Instant::now());
        while command_name(pid).as_deref() != Some("a) name\u{fffd}") {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "it has another name: {:?}",
                command_name(pid)
            );
        }
        let own = Some(rustix::process::getuid().as_raw());
        let seen = (start_time(pid).expect("read").is_some(), owner(pid), people::user(pid).map(Uid::get));
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(seen, (true, Some(Uid::new(rustix::process::geteuid().as_raw())), own));
    }

    /// Needs the right to make a pid namespace; without it there is nothing to see.
    #[test]
    fn a_number_of_another_namespace_is_translated() {
        let script = "echo $$ && exec sleep 60";
        let mut outer = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        BufReader::new(outer.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        if line.trim() == "1" {
            let task = format!("/proc/{0}/task/{0}/children", outer.id());
            let children = fs::read_to_string(task).expect("its children");
            let inner = Pid::new(children.trim().parse().expect("one"));
            assert!(!is_in_own_namespace(inner));
            assert_eq!(pid_seen_from(inner, Pid::new(1)), Some(inner));
            assert_eq!(pid_seen_from(inner, Pid::new(2)), None);
        }
        outer.kill().expect("killed");
        outer.wait().expect("ended");
    }
}
