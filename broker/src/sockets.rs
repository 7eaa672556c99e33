//! The directory with the broker's sockets: who may own it, and that one broker at a time uses it.

mod right;

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use gpulease_words::{Gid, Pid};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use right::{Mark, Right, holder, opened, trusted};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1_024;

/// Why the sockets could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Unplaced {
    /// A broker is there already.
    #[error("a broker is running at {socket} already, process {}; stop that one, or give this one another --socket", pid.map_or("unknown".to_owned(), |pid| pid.to_string()))]
    Running {
        /// Its socket.
        socket: PathBuf,
        /// Its process.
        pid: Option<Pid>,
    },
    /// The place is not safe or not usable; what to do.
    #[error("{path}: {why}")]
    Unfit {
        /// What was looked at.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
}

fn unfit(path: &Path, why: impl Into<String>) -> Unplaced {
    Unplaced::Unfit { path: path.to_owned(), why: why.into() }
}

/// Who runs the broker: root serves everybody, anybody else himself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Everybody may connect.
    Root,
    /// Only the same user may.
    User,
}

impl Rank {
    pub(crate) fn own() -> Self {
        if rustix::process::geteuid().is_root() { Self::Root } else { Self::User }
    }

    const fn directory_mode(self) -> Mode {
        match self {
            Self::Root => Mode::from_raw_mode(0o755),
            Self::User => Mode::from_raw_mode(0o700),
        }
    }

    const fn admin_mode(self) -> u32 {
        match self {
            Self::Root => 0o660,
            Self::User => 0o600,
        }
    }

    const fn job_mode(self) -> u32 {
        match self {
            Self::Root => 0o666,
            Self::User => 0o600,
        }
    }
}

/// Where a broker's job socket is, where nothing says otherwise.
///
/// # Errors
/// When an ordinary user has no runtime directory.
pub(crate) fn default_socket(rank: Rank) -> Result<PathBuf, Unplaced> {
    match (rank, std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty())) {
        (Rank::Root, _) => Ok(PathBuf::from("/run/gpulease/gpulease.sock")),
        (Rank::User, Some(runtime)) => Ok(Path::new(&runtime).join("gpulease/gpulease.sock")),
        (Rank::User, None) => Err(unfit(
            Path::new("$XDG_RUNTIME_DIR"),
            "it is not set, so there is no place for the sockets; log in with a session, or name one with --socket PATH",
        )),
    }
}

/// The paths of the three sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) jobs: PathBuf,
    pub(crate) handoff: PathBuf,
    pub(crate) admin: PathBuf,
}

impl Paths {
    /// The sockets beside this one.
    ///
    /// # Errors
    /// When the path is not absolute, has no directory, or is too long for the kernel.
    pub(crate) fn beside(jobs: &Path) -> Result<Self, Unplaced> {
        let directory = jobs.parent().filter(|_| jobs.is_absolute() && jobs.file_name().is_some());
        let directory = directory.ok_or_else(|| unfit(jobs, "name the socket by an absolute path"))?;
        let paths = Self {
            jobs: jobs.to_owned(),
            handoff: directory.join("handoff.sock"),
            admin: directory.join("admin.sock"),
        };
        if [&paths.handoff, &paths.admin].contains(&&paths.jobs) {
            return Err(unfit(
                jobs,
                "that is the name of another of the broker's sockets; call it gpulease.sock",
            ));
        }
        let longest = [&paths.jobs, &paths.handoff, &paths.admin]
            .into_iter()
            .find(|p| SocketAddrUnix::new(*p).is_err());
        match longest {
            Some(path) => Err(unfit(path, "the path is too long for a socket; use a shorter directory")),
            None => Ok(paths),
        }
    }

    fn of(&self, door: Door) -> &Path {
        match door {
            Door::Jobs => &self.jobs,
            Door::Handoff => &self.handoff,
            Door::Admin => &self.admin,
        }
    }

    fn directory(&self) -> &Path {
        self.jobs.parent().expect("checked when it was made")
    }
}

/// One of the broker's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// For jobs.
    Jobs,
    /// For descriptors.
    Handoff,
    /// For operators: open to the group `gpulease` where there is one.
    Admin,
}

/// The place, locked for this broker. Its sockets go when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    paths: Paths,
    rank: Rank,
    bound: Vec<(Door, Mark)>,
    right: Right,
}

impl Place {
    /// Makes the directory where it is missing, checks it, and locks it.
    ///
    /// # Errors
    /// When it cannot be trusted, or another broker is there.
    pub(crate) fn take(paths: Paths, rank: Rank) -> Result<Self, Unplaced> {
        let right = Right::take(&paths, rank)?;
        for path in [&paths.jobs, &paths.handoff, &paths.admin] {
            remove_stale(path)?;
        }
        Ok(Self { paths, rank, bound: Vec::new(), right })
    }

    /// Checks that the place could be taken, and changes nothing but for a lock that is given up again.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn check(paths: &Paths) -> Result<(), Unplaced> {
        if !paths.directory().exists() {
            return Ok(());
        }
        let directory = opened(paths.directory())?;
        trusted(paths.directory(), &directory)?;
        match holder(paths) {
            Some(pid) => Err(Unplaced::Running { socket: paths.jobs.clone(), pid: Some(pid) }),
            None => Ok(()),
        }
    }

    pub(crate) const fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The socket, listening.
    ///
    /// # Errors
    /// When it cannot be made there.
    pub(crate) fn open(&mut self, door: Door) -> Result<OwnedFd, Unplaced> {
        let group = match (door, self.rank) {
            (Door::Admin, Rank::Root) => {
                uzers::get_group_by_name("gpulease").map(|group| Gid::new(group.gid()))
            }
            (Door::Admin, Rank::User) | (Door::Jobs | Door::Handoff, _) => None,
        };
        let (kind, mode) = match door {
            Door::Jobs => (SocketType::STREAM, self.rank.job_mode()),
            Door::Handoff => (SocketType::SEQPACKET, self.rank.job_mode()),
            Door::Admin => (SocketType::STREAM, self.rank.admin_mode()),
        };
        let path = self.paths.of(door);
        let socket = bind(path, kind, mode, group)
            .map_err(|errno| unfit(path, format!("no socket could be made here: {errno}")))?;
        let mark =
            Mark::at(path).ok_or_else(|| unfit(path, "the socket was removed at once; leave it there"))?;
        self.bound.retain(|(known, _)| *known != door);
        self.bound.push((door, mark));
        Ok(socket)
    }

    /// Makes anew what was removed of the place, one socket at a time; `None` where all is there. Without its sockets nobody
    /// reaches the broker, and without its lock nobody knows that it runs.
    ///
    /// # Errors
    /// When something else stands there by now; what to do.
    pub(crate) fn mend(&mut self) -> Result<Option<(Door, OwnedFd)>, Unplaced> {
        self.right.mend(&self.paths, self.rank)?;
        let stands = |(door, mark): &(Door, Mark)| (*door, Mark::at(self.paths.of(*door)), *mark);
        let standing: Vec<_> = self.bound.iter().map(stands).collect();
        if let Some((door, _, _)) = standing.iter().find(|(_, found, _)| found.is_none()) {
            return Ok(Some((*door, self.open(*door)?)));
        }
        let foreign = standing.iter().find(|(_, found, mark)| *found != Some(*mark));
        foreign.map_or(Ok(None), |(door, _, _)| {
            Err(unfit(
                self.paths.of(*door),
                "this broker's socket was removed and another stands in its place, so clients go there; end whoever made it, or this broker",
            ))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (door, mark) in &self.bound {
            let path = self.paths.of(*door);
            if Mark::at(path) == Some(*mark) {
                drop(fs::remove_file(path));
            }
        }
    }
}

/// Binds and then listens, so that nobody gets in before the mode is right.
fn bind(path: &Path, kind: SocketType, mode: u32, group: Option<Gid>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = group {
        let group = rustix::process::Gid::from_raw(group.get());
        rustix::fs::chownat(rustix::fs::CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Removes the socket of a broker that is gone. What answers, or is no socket, stays.
fn remove_stale(path: &Path) -> Result<(), Unplaced> {
    let Ok(stat) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !stat.file_type().is_socket() {
        return Err(unfit(path, "it is there and no socket; move it away"));
    }
    if let Some(pid) = answering(path) {
        return Err(Unplaced::Running { socket: path.to_owned(), pid });
    }
    fs::remove_file(path)
        .map_err(|error| unfit(path, format!("a dead broker's socket could not be removed: {error}")))
}

/// Whoever listens there, with his pid where the kernel tells.
fn answering(path: &Path) -> Option<Option<Pid>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    [SocketType::STREAM, SocketType::SEQPACKET].into_iter().find_map(|kind| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?) {
            Ok(()) => Some(crate::kernel::peer_pid(socket.as_fd())),
            // Its queue is full: somebody listens.
            Err(Errno::AGAIN) => Some(None),
            Err(_) => None,
        }
    })
}
