//! Other users, and processes in namespaces of their own.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use gpulease_tests::ledger::{Ledger, lease};
use gpulease_tests::member::{Member, Stage};
use gpulease_words::{Bytes, mib};

use super::hostile::member_of;

const GUEST: u32 = 65_534;
const STRANGER: u32 = 65_533;

/// As in a container: other pids, other memory keys.
const NAMESPACES: &[&str] = &["unshare", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"];
/// As in a container without root, which has a user namespace, too.
const USER_NAMESPACES: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Whether this system lets us start something behind these words; else a line says that it does not.
fn permitted(words: &[&str], uid: Option<u32>) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("true").stderr(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    println!("skipped: {} is not permitted here: {}", words.join(" "), why.trim());
    false
}

/// It has a lease and uses it.
fn works(member: &Member) {
    for command in
        ["connect", "acquire a 4MiB wait=20s", "take s a 4MiB", "zero s a", "fill s a 9", "check s a 9"]
    {
        member.must(command);
    }
    member.must("free s");
    member.must("release a");
}

/// The guest that the owner named maps memory of the lease, and nobody else does.
#[test]
fn a_guest_maps_a_lease_and_a_stranger_does_not() {
    for stage in Stage::all("a guest of another user") {
        println!("on {stage}");
        let room = mib(8).get() + 3 * stage.overhead().get();
        let daemon = stage.daemon(Bytes::new(room));
        let ledger = Ledger::of(&daemon);
        let (Some(guest), Some(stranger)) =
            (member_of(&stage, &daemon, GUEST), member_of(&stage, &daemon, STRANGER))
        else {
            return;
        };
        let owner = stage.member(&daemon);
        owner.must("connect");
        let granted = owner.facts(&format!("acquire a 4MiB guest={GUEST}"));
        let join = format!("join a {} {}", granted.text("lease"), granted.text("token"));
        stranger.must("connect");
        let why = stranger.refused(&join);
        assert!(why.contains("(no_such_lease)"), "{why}");
        guest.must("connect");
        guest.must(&join);
        guest.must("take s a 4MiB");
        guest.must("fill s a 4");
        guest.must("check s a 4");
        let state = ledger.now();
        let found = lease(&state, "a");
        assert_eq!((found.held_bytes, found.members.len()), (mib(4).get(), 2));
        owner.kill();
        // The guest is a member still.
        guest.must("check s a 4");
        guest.kill();
        works(&stranger);
        stranger.kill();
        ledger.wait_for_no_leak();
        daemon.stop();
    }
}

/// Field case 43 (openucx/ucx#11978): sharing failed when pid namespaces differed.
#[test]
fn a_job_in_namespaces_of_its_own_works() {
    for stage in Stage::all("namespaces") {
        println!("on {stage}");
        let daemon = stage.daemon(Bytes::new(mib(4).get() + stage.overhead().get()));
        let ledger = Ledger::of(&daemon);
        for (words, uid) in [(NAMESPACES, None), (USER_NAMESPACES, None), (USER_NAMESPACES, Some(GUEST))] {
            let may = uid.is_none() || rustix::process::geteuid().is_root();
            if !may || !permitted(words, uid) {
                continue;
            }
            let member = stage.member_with(&daemon.socket(), words, |command| match uid {
                Some(uid) => command.uid(uid).gid(uid),
                None => command,
            });
            works(&member);
            member.kill();
        }
        ledger.wait_for_no_leak();
        daemon.stop();
    }
}

/// Field case 23 (NVIDIA/nvidia-docker#1483): the same pid number in two containers.
#[test]
fn the_same_number_in_two_pid_namespaces_is_two_processes() {
    if !permitted(NAMESPACES, None) {
        return;
    }
    let daemon = Stage::Host.daemon(mib(8));
    let ledger = Ledger::of(&daemon);
    let members: Vec<Member> =
        (0..2).map(|_| Stage::Host.member_with(&daemon.socket(), NAMESPACES, |command| command)).collect();
    for (n, member) in members.iter().enumerate() {
        member.must("connect");
        member.must(&format!("acquire job-{n} 4MiB"));
        member.must(&format!("take s job-{n} 4MiB"));
        member.must(&format!("fill s job-{n} {n}"));
        assert_eq!(member.must("own-pid"), "1", "each is the first of its own world");
    }
    let state = ledger.now();
    let pids: Vec<u32> = (0..2).map(|n| lease(&state, &format!("job-{n}")).pid).collect();
    for (pid, member) in pids.iter().zip(&members) {
        let parent = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is a pid of ours");
        let parent = parent.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        assert_eq!(parent, Some(member.pid()), "the job's pid as this namespace has it");
    }
    let mut members = members.into_iter();
    let (first, second) = (members.next().expect("two"), members.next().expect("two"));
    first.kill();
    ledger.wait("one lease", |s| (s.leases.len() == 1).then_some(()));
    assert_eq!(ledger.now().leases[0].name, "job-1");
    second.must("check s job-1 1");
    second.kill();
    ledger.wait_for_no_leak();
    daemon.stop();
}

/// Field case 17 (Project-HAMi/HAMi-core#248): clients that could not register went on without a limit.
/// A broker in a pid namespace cannot see processes outside of it, and says so instead of serving them.
#[test]
fn a_job_that_the_broker_cannot_see_is_refused() {
    if !permitted(NAMESPACES, None) {
        return;
    }
    let mut command = Command::new(NAMESPACES[0]);
    command.args(&NAMESPACES[1..]).arg(gpulease_tests::programs::gpuleased()).args(["--device", "host:8MiB"]);
    let daemon = gpulease_tests::daemon::Daemon::start_command(command);
    let member = Stage::Host.member(&daemon);
    let why = member.refused("connect");
    assert!(why.len() > 20, "no sentence: {why}");
    println!("a job outside of the broker's pid namespace hears: {why}");
    member.refused("acquire a 2MiB now");
}

/// A directory that another user could have made, and a job that was not told to trust it.
#[test]
fn a_socket_in_a_directory_of_another_user_is_not_trusted_unasked() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can make a directory of another user");
        return;
    }
    let daemon = Stage::Host.daemon(mib(8));
    let runtime = tempfile::tempdir().expect("a temporary folder");
    let place = runtime.path().join("gpulease");
    std::fs::create_dir(&place).expect("the folder is ours");
    std::os::unix::fs::symlink(daemon.socket(), place.join("gpulease.sock")).expect("the folder is ours");
    let owner = |uid| std::os::unix::fs::chown(&place, Some(uid), Some(uid)).expect("root may");
    let unnamed = |directory: &Path| {
        Stage::Host.member_with(&daemon.socket(), &[], |command| {
            command.env("XDG_RUNTIME_DIR", directory).env_remove("GPULEASE_SOCKET")
        })
    };
    if Path::new("/run/gpulease/gpulease.sock").exists() {
        println!("skipped: this system has a broker of its own");
        return;
    }
    owner(STRANGER);
    let why = unnamed(runtime.path()).refused("connect-unnamed");
    assert!(why.contains(&format!("belongs to uid {STRANGER}")), "{why}");
    owner(0);
    unnamed(runtime.path()).must("connect-unnamed");
}
