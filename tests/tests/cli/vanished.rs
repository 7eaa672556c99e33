//! Files of a broker that somebody deletes while it runs: it makes them anew, and nobody starts a second one meanwhile.

use std::fs;

use super::*;

/// Waits until the broker answers again.
#[track_caller]
fn until_it_answers(daemon: &Daemon) {
    let start = Instant::now();
    while code(line(daemon, "status").status) != 0 {
        assert!(start.elapsed() < PATIENCE, "it stays deaf: {}", daemon.log());
    }
}

#[test]
fn deleted_sockets_are_made_anew_and_a_second_broker_is_refused_all_the_while() {
    let daemon = Daemon::on_host("64MiB");
    let mut hold = Running::start(&daemon, ["hold", "-m", "8MiB"]);
    hold.hear("gives it back");
    let folder = daemon.socket().parent().expect("a folder").to_owned();
    for name in ["gpulease.sock", "handoff.sock", "admin.sock", "gpuleased.lock"] {
        fs::remove_file(folder.join(name)).expect("it is there");
    }
    let mut second = Command::new(programs::gpuleased());
    second.args(["--device", "host:64MiB", "--socket"]).arg(daemon.socket()).env_remove("GPULEASE_SOCKET");
    expect(&finish(&mut second), 78, &["running", &daemon.pid().to_string()]);
    until_it_answers(&daemon);
    let state = state(&daemon);
    assert_eq!((&state["broker"]["pid"], count(&state, "leases")), (&daemon.pid().into(), 1));
    assert!(daemon.log().contains("made anew"), "{}", daemon.log());
    // Each of the three serves: a member takes memory by descriptor, and an operator comes in.
    let worker = programs::program("lease-worker");
    let words = ["run", "-q", "-m", "8MiB", "--", &worker.display().to_string(), "8"];
    expect(&gpulease(&daemon, words), 0, &[]);
    expect(&line(&daemon, "budget set host leases_max=5"), 0, &[]);
    let lock = fs::read_to_string(folder.join("gpuleased.lock")).expect("the lock is there again");
    assert_eq!(lock.trim(), daemon.pid().to_string());
    hold.signal(Signal::INT);
    assert_eq!(hold.end(), 0);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_broker_whose_socket_is_gone_is_not_taken_for_none() {
    let daemon = Daemon::on_host("64MiB");
    // It looks after its sockets, so it has to stand still to be met without one.
    daemon.freeze();
    fs::remove_file(daemon.socket()).expect("it is there");
    let pid = format!("process {}", daemon.pid());
    expect(&line(&daemon, "status"), 69, &[&pid, "gpulease.sock", "deleted"]);
    let doctor = line(&daemon, "doctor");
    assert!(text(&doctor.stdout).contains(&pid), "{}", text(&doctor.stdout));
    daemon.signal(Signal::CONT);
    until_it_answers(&daemon);
    daemon.stop();
}
