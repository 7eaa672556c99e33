//! A client that ends in good order says so: the events tell it from one that crashed.

use super::*;

/// The kinds of all events so far.
fn kinds(daemon: &Daemon) -> Vec<String> {
    let output = line(daemon, "events --json");
    expect(&output, 0, &[]);
    let kind = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("a document of one line");
        event["kind"].as_str().expect("an event has a kind").to_owned()
    };
    text(&output.stdout).lines().map(kind).collect()
}

fn how_many(kinds: &[String], kind: &str) -> usize {
    kinds.iter().filter(|k| *k == kind).count()
}

/// Every session so far was closed; a session that was can neither drift nor be left open any more.
#[track_caller]
fn all_is_closed(daemon: &Daemon, sessions: usize) {
    let kinds = kinds(daemon);
    assert_eq!((how_many(&kinds, "opened"), how_many(&kinds, "closed")), (sessions, sessions), "{kinds:?}");
    assert_eq!((how_many(&kinds, "adrift"), how_many(&kinds, "died")), (0, 0), "{kinds:?}");
}

#[test]
fn a_command_in_a_lease_ends_with_its_session_closed() {
    let daemon = Daemon::on_host("64MiB");
    expect(&line(&daemon, "run -q -m 8MiB -- true"), 0, &[]);
    all_is_closed(&daemon, 1);
    expect(&gpulease(&daemon, ["run", "-q", "-m", "8MiB", "--", "sh", "-c", "exit 7"]), 7, &[]);
    all_is_closed(&daemon, 2);
    expect(&line(&daemon, "run -q -m 8MiB -t 50ms -- sleep 60"), 124, &[]);
    all_is_closed(&daemon, 3);
    expect(&line(&daemon, "run -q -m 128MiB --no-wait -- true"), 77, &[]);
    all_is_closed(&daemon, 4);
    // Its own session, and its worker's.
    let worker = programs::program("lease-worker");
    let output = gpulease(&daemon, ["run", "-q", "-m", "8MiB", "--", &worker.display().to_string(), "8"]);
    expect(&output, 0, &[]);
    all_is_closed(&daemon, 6);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_hold_ends_with_its_session_closed() {
    let daemon = Daemon::on_host("64MiB");
    for (sessions, signal) in [(1, Signal::INT), (2, Signal::TERM), (3, Signal::HUP)] {
        let mut held = Running::start(&daemon, ["hold", "-m", "8MiB"]);
        held.hear("gives it back");
        held.signal(signal);
        held.end();
        all_is_closed(&daemon, sessions);
    }
    expect(&line(&daemon, "hold -m 8MiB -t 50ms"), 0, &[]);
    all_is_closed(&daemon, 4);
    let mut released = Running::start(&daemon, ["hold", "-m", "8MiB"]);
    released.hear("gives it back");
    let id = state(&daemon)["leases"][0]["id"].as_str().expect("a lease has an id").to_owned();
    expect(&line(&daemon, &format!("release {id}")), 0, &[]);
    assert_eq!(released.end(), 0);
    all_is_closed(&daemon, 5);
    daemon.stop();
}

#[test]
fn jobs_that_train_end_with_their_sessions_closed() {
    let daemon = Daemon::on_host("64MiB");
    let program = programs::gpulease().display().to_string();
    let job = ["run", "-m", "16MiB..24MiB", "--", &program, "demo-job", "--seed", "1", "--name", "anna"];
    let mut running = Running::start(&daemon, job);
    running.hear("\"trained\"");
    let input = running.child.stdin.as_mut().expect("it is piped");
    std::io::Write::write_all(input, b"finish\n").expect("it reads");
    running.hear("\"finished\"");
    assert_eq!(running.end(), 0);
    all_is_closed(&daemon, 2);
    let train = programs::program("train-digits-under-test");
    let mut command = Command::new(train);
    command.args(["-m", "12MiB", "--steps", "10"]).env("GPULEASE_SOCKET", daemon.socket());
    expect(&finish(&mut command), 0, &[]);
    all_is_closed(&daemon, 3);
    daemon.stop();
}

#[test]
fn a_client_that_is_killed_is_told_from_one_that_ends() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB"]);
    held.hear("gives it back");
    drop(held);
    until_empty(&daemon);
    let kinds = kinds(&daemon);
    assert_eq!((how_many(&kinds, "died"), how_many(&kinds, "closed")), (1, 0), "{kinds:?}");
    daemon.stop();
}
