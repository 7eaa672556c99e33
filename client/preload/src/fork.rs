//! What a forked child keeps of its parent: nothing.
//!
//! The library's thread does not come along, and CUDA answers a child by itself. What would come along are descriptors:
//! the connections to the broker, and what the thread waits with. They are the sockets whose other end is the broker's, and
//! the pollers that wait for one of these with all that they wait for, so that nobody has to keep a list.

use std::ffi::c_int;
use std::fs;
use std::mem::{MaybeUninit, size_of};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this is a child of the process that joined.
static CHILD: AtomicBool = AtomicBool::new(false);
static SOCKETS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

/// Sees to it that children which this process forks keep no descriptor of the library's.
pub(crate) fn leave_nothing_to_children(job_socket: &Path) {
    let beside = job_socket.with_file_name("handoff.sock");
    let names = [job_socket, &beside].map(|socket| socket.as_os_str().as_bytes().to_vec());
    if SOCKETS.set(names.into()).is_ok() {
        // SAFETY: the function stays, since this library is never unloaded. Where there is no memory for the note,
        // children keep descriptors, which end with them.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Whether this process was forked from the one that joined. Costs no call of the kernel.
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Runs in the child, which has this one thread.
unsafe extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    let all = descriptors();
    let mut ours: Vec<c_int> = all.iter().copied().filter(|fd| is_connection(*fd)).collect();
    for fd in all {
        let waited_for = polled(fd);
        if waited_for.iter().any(|fd| ours.contains(fd)) {
            ours.push(fd);
            ours.extend(waited_for);
        }
    }
    // tokio's own pair for signals: it waits at a copy of one end, and the other was made next after it.
    let mut files: Vec<u64> = ours.iter().filter_map(|fd| file(*fd)).collect();
    let ends: Vec<u64> = ours.iter().filter(|fd| is_nameless(**fd)).filter_map(|fd| file(*fd)).collect();
    files.extend(ends.iter().map(|end| end + 1));
    let same = |fd: &c_int| file(*fd).is_some_and(|file| files.contains(&file));
    ours.extend(descriptors().into_iter().filter(|fd| is_nameless(*fd) && same(fd)));
    ours.sort_unstable();
    ours.dedup();
    for fd in ours {
        // SAFETY: it is a copy of the library's own, and nothing of the library works in a forked child.
        unsafe { libc::close(fd) };
    }
}

fn descriptors() -> Vec<c_int> {
    let Ok(list) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a socket's other end is the broker's.
fn is_connection(fd: c_int) -> bool {
    peer(fd).is_some_and(|path| SOCKETS.get().is_some_and(|sockets| sockets.contains(&path)))
}

/// Whether it is one of a pair of sockets.
fn is_nameless(fd: c_int) -> bool {
    peer(fd).is_some_and(|path| path.is_empty())
}

/// The path of a Unix socket's other end; empty where it has none.
fn peer(fd: c_int) -> Option<Vec<u8>> {
    let mut address = MaybeUninit::<libc::sockaddr_un>::zeroed();
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the buffer is ours and its length is told; all zeros are an address.
    let (code, address) =
        unsafe { (libc::getpeername(fd, address.as_mut_ptr().cast(), &mut length), address.assume_init()) };
    if code != 0 || c_int::from(address.sun_family) != libc::AF_UNIX {
        return None;
    }
    Some(address.sun_path.iter().map(|c| c.to_ne_bytes()[0]).take_while(|c| *c != 0).collect())
}

/// Which open file it is, by its inode.
fn file(fd: c_int) -> Option<u64> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer is ours; all zeros are a record.
    let (code, about) = unsafe { (libc::fstat(fd, about.as_mut_ptr()), about.assume_init()) };
    (code == 0).then_some(about.st_ino)
}

/// What a poller waits for.
fn polled(fd: c_int) -> Vec<c_int> {
    let Ok(text) = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) else { return Vec::new() };
    let waited_for = text.lines().filter_map(|line| line.strip_prefix("tfd:"));
    waited_for.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}
