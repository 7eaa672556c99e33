//! `hold`, `release`, `recall` and `end`: leases without a command, and leases given back by others.

use super::*;

fn id_of(granted: &str) -> String {
    let id = granted.trim_start_matches("gpulease: ").split(':').next().unwrap_or_default();
    assert!(id.starts_with('L'), "{granted}");
    id.to_owned()
}

#[test]
fn a_hold_lasts_until_its_signal_its_time_or_its_release() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB", "-n", "notebook"]);
    held.hear("gives it back");
    assert_eq!(state(&daemon)["leases"][0]["name"], "notebook");
    held.signal(Signal::INT);
    assert_eq!(held.end(), 0);
    until_empty(&daemon);

    let mut timed = Running::start(&daemon, ["hold", "-m", "8MiB", "-t", "100ms"]);
    timed.hear("the time of 100ms is over");
    assert_eq!(timed.end(), 0);
    until_empty(&daemon);

    let mut released = Running::start(&daemon, ["hold", "-m", "8MiB"]);
    let id = id_of(&released.hear("granted after"));
    released.hear("gives it back");
    let output = line(&daemon, &format!("release {id}"));
    expect(&output, 0, &[]);
    assert_eq!(text(&output.stdout), format!("{id} is given back\n"));
    released.hear("given back from outside");
    assert_eq!(released.end(), 0);
    until_empty(&daemon);
    expect(&line(&daemon, &format!("release {id}")), 77, &[&id, "no such lease"]);
    expect(&line(&daemon, "release L9999 L9998"), 77, &["L9999", "L9998"]);
    daemon.stop();
}

#[test]
fn programs_join_a_hold_by_its_exports() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB", "--export"]);
    let exports: Vec<String> =
        ["GPULEASE_SOCKET", "GPULEASE_LEASE", "GPULEASE_TOKEN", "GPULEASE_MEMORY_BYTES"]
            .map(|name| held.hear(name))
            .into();
    assert!(exports.iter().all(|line| line.starts_with("export ")), "{exports:?}");
    let worker = programs::program("lease-worker");
    let script = format!("{}\nexec '{}' 8 </dev/null", exports.join("\n"), worker.display());
    let output = finish(Command::new("sh").args(["-c", &script]));
    expect(&output, 0, &[]);
    assert!(text(&output.stdout).contains("has 8 MiB of L"), "{}", text(&output.stdout));

    let wrong =
        script.replace("export GPULEASE_TOKEN=", "export GPULEASE_TOKEN=0123456789abcdef0123456789abcdef #");
    let output = finish(Command::new("sh").args(["-c", &wrong]));
    assert!(
        !output.status.success() && text(&output.stderr).contains("no such lease"),
        "{}",
        text(&output.stderr)
    );
    held.signal(Signal::TERM);
    assert_eq!(held.end(), 0);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_hold_as_a_document() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["--json", "hold", "-m", "8MiB..16MiB"]);
    let document: Value = serde_json::from_str(&held.hear("environment")).expect("a document of one line");
    assert_eq!(document["schema_version"], 1);
    assert_eq!(
        (&document["reserve_bytes"], &document["limit_bytes"]),
        (&(8 << 20).into(), &(16 << 20).into())
    );
    assert_eq!(document["environment"]["GPULEASE_TOKEN"].as_str().map(str::len), Some(32));
    daemon.stop_after(held);
}

trait StopAfter {
    fn stop_after(self, running: Running);
}

impl StopAfter for Daemon {
    /// Ends what still runs, then the daemon.
    fn stop_after(self, running: Running) {
        drop(running);
        until_empty(&self);
        self.stop();
    }
}

#[test]
fn a_lease_of_another_user_is_as_if_it_were_not_there() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB"]);
    let id = id_of(&held.hear("granted after"));
    let Some(nobody) = as_nobody(&daemon) else { return };
    let own = finish(nobody().args(["run", "-m", "8MiB", "-q", "--", "true"]));
    expect(&own, 0, &[]);
    let theirs = finish(nobody().args(["release", &id]));
    let nothing = finish(nobody().args(["release", "L9999"]));
    expect(&theirs, 77, &["no such lease"]);
    assert_eq!(text(&theirs.stderr).replace(&id, "L9999"), text(&nothing.stderr), "the answers tell nothing");
    assert_eq!(count(&state(&daemon), "leases"), 1);
    daemon.stop_after(held);
}

/// Makes commands that run as a user with no rights, where that user can reach program and socket.
fn as_nobody(daemon: &Daemon) -> Option<impl Fn() -> Command + use<>> {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let socket = daemon.socket();
    let folder = socket.parent().expect("the socket is in a folder").to_owned();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    // The program may lie in a folder that only we may enter; a copy beside the socket can be reached.
    let program = folder.join("gpulease");
    std::fs::copy(programs::gpulease(), &program).expect("the folder is ours");
    let make = move || {
        let mut command = Command::new(&program);
        command.arg("--socket").arg(&socket).uid(65_534).gid(65_534).env_clear().env("PATH", "/usr/bin:/bin");
        command.current_dir("/").stdin(Stdio::null());
        command
    };
    match make().arg("--version").output() {
        Ok(output) if output.status.success() => Some(make),
        answer => {
            println!("skipped: a user with no rights cannot run programs here: {answer:?}");
            None
        }
    }
}

#[test]
fn operators_recall_and_end_leases() {
    let daemon = Daemon::on_host("64MiB");
    let worker = programs::program("lease-worker").into_os_string();
    let arguments = ["run", "-m", "8MiB..32MiB", "-n", "job", "--"].map(Into::into);
    let mut job = Running::start(&daemon, arguments.into_iter().chain([worker, "24".into()]));
    let id = id_of(&job.hear("granted after"));
    job.hear("has 24 MiB");
    let output = line(&daemon, &format!("recall {id} --within 5s"));
    expect(&output, 0, &[]);
    assert_eq!(
        text(&output.stdout),
        format!("{id} is asked for 16 MiB within 5.0s; past that it is overdue\n")
    );
    let output = line(&daemon, &format!("--json recall {id} --bytes 2MiB"));
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!((&document["id"], &document["recalled_bytes"]), (&id.as_str().into(), &(2 << 20).into()));

    let output = line(&daemon, &format!("end {id}"));
    expect(&output, 0, &[]);
    assert!(text(&output.stdout).contains("24 MiB drain"), "{}", text(&output.stdout));
    until(&daemon, "it drains", |state| state["leases"][0]["state"] == "draining");
    job.close_input();
    job.end();
    until_empty(&daemon);
    expect(&line(&daemon, "end L9999"), 77, &["no such lease"]);
    daemon.stop();
}
