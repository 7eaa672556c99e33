//! Where a broker listens, and whether who listens there may be believed.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpulease_words::{Pid, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

use crate::error::Error;

pub(crate) const SOCKET_VARIABLE: &str = "GPULEASE_SOCKET";
const SYSTEM_SOCKET: &str = "/run/gpulease/gpulease.sock";
const HANDOFF: &str = "handoff.sock";
const ADMIN: &str = "admin.sock";
const LOCK: &str = "gpuleased.lock";

/// A full backlog is tried again so often, so long apart: one second, in which a broker that is
/// alive accepts thousands.
const DIALS: u32 = 50;
const BETWEEN_DIALS: Duration = Duration::from_millis(20);

/// Who may listen at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Root or this user, in a directory of root's or this user's.
    Checked,
    /// Anybody: the user named the socket. In a container root may look like nobody.
    Named,
}

/// A socket and who may listen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) socket: PathBuf,
    trust: Trust,
}

impl Place {
    pub(crate) fn named(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), trust: Trust::Named }
    }

    fn checked(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), trust: Trust::Checked }
    }

    /// The socket over which descriptors come.
    pub(crate) fn handoff(&self) -> Self {
        Self { socket: self.socket.with_file_name(HANDOFF), ..self.clone() }
    }

    /// The operators' socket.
    pub(crate) fn admin(&self) -> Self {
        Self { socket: self.socket.with_file_name(ADMIN), ..self.clone() }
    }

    /// Connects, and checks directory and peer.
    pub(crate) async fn dial(&self) -> Result<UnixStream, Error> {
        self.check_directory()?;
        let stream = self.connect().await.map_err(|source| self.unreachable(source))?;
        let peer = stream.peer_cred().map_err(|source| self.unreachable(source))?;
        self.check_peer(Uid::new(peer.uid()))?;
        Ok(stream)
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        for _ in 1..DIALS {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tokio::time::sleep(BETWEEN_DIALS).await
                }
                result => return result,
            }
        }
        UnixStream::connect(&self.socket).await
    }

    /// Anybody can listen in anybody's directory; whoever owns it can put another socket there.
    pub(crate) fn check_directory(&self) -> Result<(), Error> {
        let directory = match self.socket.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        // What is not there or can't be read shows at the connect.
        let Ok(found) = fs::metadata(directory) else { return Ok(()) };
        let uid = Uid::new(found.uid());
        if self.believes(uid) {
            Ok(())
        } else {
            Err(Error::WrongDirectory { directory: directory.to_owned(), uid })
        }
    }

    pub(crate) fn check_peer(&self, uid: Uid) -> Result<(), Error> {
        if self.believes(uid) { Ok(()) } else { Err(Error::WrongPeer { socket: self.socket.clone(), uid }) }
    }

    /// Whether a broker has the socket's directory all the same, and by its lock its process. The broker's claim is only
    /// called at: to try its lock could keep one from starting.
    fn deaf_broker(&self) -> Option<Option<Pid>> {
        let directory = self.socket.parent()?;
        let found = fs::metadata(directory).ok()?;
        let name = format!("gpulease-directory/{}/{}", found.dev(), found.ino());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        match rustix::net::connect(&socket, &address) {
            // Nobody takes calls there, so that after some its queue is full.
            Ok(()) | Err(Errno::AGAIN) => {
                let pid = fs::read_to_string(directory.join(LOCK)).ok();
                Some(pid.and_then(|pid| pid.trim().parse().ok()).map(Pid::new))
            }
            Err(_) => None,
        }
    }

    fn believes(&self, uid: Uid) -> bool {
        match self.trust {
            Trust::Named => true,
            Trust::Checked => uid.get() == 0 || uid.get() == rustix::process::geteuid().as_raw(),
        }
    }

    /// What a failed connect means here.
    pub(crate) fn unreachable(&self, source: io::Error) -> Error {
        let socket = self.socket.clone();
        let not_a_broker = |why: &str| Error::NotABroker { socket: self.socket.clone(), why: why.to_owned() };
        match source.kind() {
            ErrorKind::NotFound => Error::NoBroker { tried: vec![socket] },
            ErrorKind::PermissionDenied => Error::Permission { socket },
            ErrorKind::NotADirectory => not_a_broker("a part of its path is not a directory"),
            ErrorKind::ConnectionRefused => match fs::metadata(&socket) {
                Ok(found) if !found.file_type().is_socket() => not_a_broker("it is not a socket"),
                Ok(_) | Err(_) => Error::NoBroker { tried: vec![socket] },
            },
            _ if source.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => {
                not_a_broker("it is a socket of another type; handoff.sock stands beside the one to name")
            }
            _ => Error::Unreachable { socket, source },
        }
    }
}

/// Where to look, in this order: what the program names, what the user names, the system's broker,
/// the user's own.
pub(crate) fn candidates(named: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString>) -> Vec<Place> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(socket) = named.or_else(|| set(SOCKET_VARIABLE)) {
        return vec![Place::named(socket)];
    }
    let own = set("XDG_RUNTIME_DIR").map(|folder| folder.join("gpulease/gpulease.sock"));
    [Some(SYSTEM_SOCKET.into()), own].into_iter().flatten().map(Place::checked).collect()
}

/// The first place where somebody listens who may be believed. A broker that may not be used is an
/// error and not passed over, so that nobody lands at another one unawares.
pub(crate) async fn find(places: Vec<Place>) -> Result<(Place, UnixStream), Error> {
    let mut nobody_at = Vec::new();
    for place in places {
        match place.dial().await {
            Ok(stream) => return Ok((place, stream)),
            Err(Error::NoBroker { tried }) => match place.deaf_broker() {
                Some(pid) => return Err(Error::Deaf { socket: place.socket, pid }),
                None => nobody_at.extend(tried),
            },
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoBroker { tried: nobody_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(named: Option<&str>, environment: &[(&str, &str)]) -> Vec<(String, Trust)> {
        let variable = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        let places = candidates(named.map(PathBuf::from), variable);
        places.into_iter().map(|p| (p.socket.display().to_string(), p.trust)).collect()
    }

    #[test]
    fn the_order_is_program_user_system_own() {
        let xdg = ("XDG_RUNTIME_DIR", "/run/user/7");
        let named = ("GPULEASE_SOCKET", "/tmp/g.sock");
        assert_eq!(sockets(Some("/p"), &[xdg, named]), [("/p".to_owned(), Trust::Named)]);
        assert_eq!(sockets(None, &[xdg, named]), [("/tmp/g.sock".to_owned(), Trust::Named)]);
        assert_eq!(
            sockets(None, &[xdg, ("GPULEASE_SOCKET", "")]),
            [
                ("/run/gpulease/gpulease.sock".to_owned(), Trust::Checked),
                ("/run/user/7/gpulease/gpulease.sock".to_owned(), Trust::Checked)
            ]
        );
        assert_eq!(sockets(None, &[]).len(), 1);
    }

    #[test]
    fn the_other_sockets_stand_beside() {
        let place = Place::named("/a/gpulease.sock");
        assert_eq!(place.handoff(), Place::named("/a/handoff.sock"));
        assert_eq!(place.admin(), Place::named("/a/admin.sock"));
    }

    #[test]
    fn strangers_are_not_believed_unless_named() {
        let own = rustix::process::geteuid().as_raw();
        let place = Place::checked("/run/gpulease/gpulease.sock");
        assert!(place.check_peer(Uid::new(0)).is_ok() && place.check_peer(Uid::new(own)).is_ok());
        let wrong = place.check_peer(Uid::new(own + 4_711));
        assert!(matches!(wrong, Err(Error::WrongPeer { uid, .. }) if uid.get() == own + 4_711));
        assert!(Place::named("/a").check_peer(Uid::new(own + 4_711)).is_ok());
    }

    #[tokio::test]
    async fn a_broker_without_its_socket_is_known_by_its_claim() {
        let folder = tempfile::tempdir().unwrap();
        let place = || vec![Place::named(folder.path().join("gpulease.sock"))];
        fs::write(folder.path().join(LOCK), "4711\n").unwrap();
        assert!(
            matches!(find(place()).await, Err(Error::NoBroker { .. })),
            "a dead broker's lock is nobody's"
        );
        let found = fs::metadata(folder.path()).unwrap();
        let name = format!("gpulease-directory/{}/{}", found.dev(), found.ino());
        let claim = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&claim, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        rustix::net::listen(&claim, 1).unwrap();
        for _ in 0..5 {
            let error = find(place()).await.unwrap_err();
            assert!(matches!(&error, Error::Deaf { pid: Some(pid), .. } if pid.get() == 4711), "{error}");
            let text = error.to_string();
            assert!(text.contains("process 4711") && text.contains("gpulease.sock"), "{text}");
        }
    }

    #[tokio::test]
    async fn what_is_no_broker_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| Place::named(folder.path().join(name));
        assert!(matches!(at("nothing").dial().await, Err(Error::NoBroker { .. })));
        fs::write(folder.path().join("file"), "").unwrap();
        let error = at("file").dial().await.unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        let error = at("file/gpulease.sock").dial().await.unwrap_err();
        assert!(error.to_string().contains("not a directory"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("stale")).unwrap());
        assert!(matches!(at("stale").dial().await, Err(Error::NoBroker { .. })));
        let packets =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
                .unwrap();
        let address = rustix::net::SocketAddrUnix::new(folder.path().join("handoff.sock")).unwrap();
        rustix::net::bind(&packets, &address).unwrap();
        rustix::net::listen(&packets, 1).unwrap();
        let error = at("handoff.sock").dial().await.unwrap_err();
        assert!(error.to_string().contains("another type"), "{error}");
        let error = at(&"x".repeat(200)).dial().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}
