//! `gpulease run`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn sh(daemon: &Daemon, memory: &str, script: &str) -> Output {
    gpulease(daemon, ["run", "-m", memory, "--", "sh", "-c", script])
}

#[test]
fn the_code_and_the_signal_of_the_program_are_passed_on() {
    let daemon = Daemon::on_host("64MiB");
    for (script, exit) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
    {
        assert_eq!(code(sh(&daemon, "8MiB", script).status), exit, "{script}");
    }
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn input_output_and_environment_pass_through() {
    let daemon = Daemon::on_host("64MiB");
    let script = "cat; printf '%s\\n' \"$GPULEASE_SOCKET\" \"$GPULEASE_MEMORY_BYTES\" \"$GPULEASE_LEASE\" \"${CUDA_VISIBLE_DEVICES-none}\"; echo complaint >&2";
    let mut command = command(&daemon.socket());
    command.args(["run", "-m", "8MiB..16MiB", "-q", "--", "sh", "-c", script]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("it is piped").write_all(b"what goes in\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stdout);
    let said: Vec<&str> = said.lines().collect();
    let socket = daemon.socket();
    assert_eq!(
        said[..3],
        ["what goes in", socket.to_str().expect("a path in UTF-8"), &(16 << 20).to_string()]
    );
    assert!(!said[3].is_empty());
    assert_eq!(said[4], "none", "a lease of host memory hides no GPU");
    assert_eq!(text(&output.stderr), "complaint\n", "with -q nothing is added");
    daemon.stop();
}

#[test]
fn what_is_granted_is_echoed_in_bytes_that_were_rounded_up() {
    let daemon = Daemon::on_host("64MiB");
    let output = line(&daemon, "run -m 3MB..25% -- true");
    expect(&output, 0, &["4 MiB, growing up to 16 MiB on device 0 (host memory"]);
    let output = line(&daemon, "--json run -m 8M -- true");
    let granted: Value = serde_json::from_slice(&output.stderr).expect("one document");
    assert_eq!((&granted["event"], &granted["reserve_bytes"]), (&"granted".into(), &(8 << 20).into()));
    daemon.stop();
}

#[test]
fn the_program_is_a_member_before_it_runs_and_inherits_no_descriptor() {
    let daemon = Daemon::on_host("64MiB");
    let script = format!("echo $$; '{}' --json", programs::gpulease().display());
    let output = sh(&daemon, "8MiB", &script);
    let said = text(&output.stdout);
    let (pid, state) = said.split_once('\n').expect("a pid and a state");
    let pid: u64 = pid.parse().expect("a pid");
    let state: Value = serde_json::from_str(state).expect("the state is a document");
    let members = state["leases"][0]["members"].as_array().expect("a list").clone();
    assert!(members.iter().any(|member| member["pid"] == pid), "{pid} of {members:?}");

    // What this test was started with passes through, and nothing else.
    let list = ["sh", "-c", "ls /proc/$$/fd"];
    let bare = finish(Command::new(list[0]).args(&list[1..]).stdin(Stdio::null()));
    let leased = gpulease(&daemon, ["run", "-m", "8MiB", "--"].into_iter().chain(list));
    assert_eq!(text(&leased.stdout), text(&bare.stdout));
    daemon.stop();
}

#[test]
fn signals_reach_the_program_and_blocked_ones_are_not_left_behind() {
    let daemon = Daemon::on_host("64MiB");
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1"), (Signal::INT, "INT")]
    {
        let script = format!("trap 'exit 31' {name}; echo ready; while :; do sleep 0.05; done");
        let mut running = Running::start(&daemon, ["run", "-m", "8MiB", "--", "sh", "-c", &script]);
        running.hear("ready");
        running.signal(signal);
        assert_eq!(running.end(), 31, "{name}");
    }
    let list = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"];
    let bare = finish(Command::new(list[0]).args(&list[1..]));
    let leased = gpulease(&daemon, ["run", "-m", "8MiB", "--"].into_iter().chain(list));
    assert_eq!(masks(&leased), masks(&bare));
    until_empty(&daemon);
    daemon.stop();
}

/// The blocked and the ignored signals that `/proc` tells, without the C library's own two.
fn masks(status: &Output) -> Vec<u64> {
    let said = text(&status.stdout);
    let masks = said.lines().filter_map(|line| line.split_whitespace().nth(1));
    let masks: Vec<u64> = masks.filter_map(|mask| u64::from_str_radix(mask, 16).ok()).collect();
    assert_eq!(masks.len(), 2, "{said}");
    masks.into_iter().map(|mask| mask & !(0b11 << 31)).collect()
}

#[test]
fn who_does_not_wait_is_refused_and_who_waits_is_told_and_granted() {
    let daemon = Daemon::on_host("64MiB");
    let mut holder = Running::start(&daemon, ["run", "-m", "48MiB", "-n", "holder", "--", "cat"]);
    holder.hear("48 MiB on device 0");
    expect(&line(&daemon, "run -m 32MiB --no-wait -- true"), 75, &["32 MiB", "16 MiB"]);
    expect(&line(&daemon, "run -m 32MiB --wait 100ms -- true"), 75, &["16 MiB", "missing"]);
    until(&daemon, "nobody waits", |state| count(state, "waiting") == 0);

    let mut waiter = Running::start(&daemon, ["run", "-m", "32MiB", "--", "sh", "-c", "echo started"]);
    let told = waiter.hear("waits as number 1");
    assert!(
        told.contains("16 MiB short") && told.contains("holder of ") && told.contains("has 48 MiB"),
        "{told}"
    );
    holder.close_input();
    assert_eq!(holder.end(), 0);
    waiter.hear("started");
    assert_eq!(waiter.end(), 0);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn an_ask_is_withdrawn_when_the_wait_is_given_up() {
    let daemon = Daemon::on_host("64MiB");
    let mut holder = Running::start(&daemon, ["hold", "-m", "48MiB"]);
    holder.hear("gives it back");
    for (signal, exit) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut waiter = Running::start(&daemon, ["run", "-m", "32MiB", "--", "true"]);
        waiter.hear("waits as number 1");
        waiter.signal(signal);
        waiter.hear("is withdrawn");
        assert_eq!(waiter.end(), exit);
        until(&daemon, "the ask is gone", |state| count(state, "waiting") == 0);
    }
    // Nothing can be withdrawn by who is killed at once; the broker sees to it.
    let mut waiter = Running::start(&daemon, ["run", "-m", "32MiB", "--", "true"]);
    waiter.hear("waits as number 1");
    waiter.signal(Signal::KILL);
    until(&daemon, "the ask is gone", |state| count(state, "waiting") == 0);
    drop(holder);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn the_time_limit_ends_the_program_by_term_and_then_by_kill() {
    let daemon = Daemon::on_host("64MiB");
    let output = line(&daemon, "run -m 8MiB -t 100ms -- sleep 100");
    expect(&output, 124, &["time limit of 100ms is over", "SIGTERM"]);
    let stubborn = "trap '' TERM; while :; do sleep 0.05; done";
    let output = gpulease(
        &daemon,
        ["run", "-m", "8MiB", "-t", "100ms", "--grace", "200ms", "--", "sh", "-c", stubborn],
    );
    expect(&output, 124, &["SIGKILL in 200ms"]);
    // Its last chance counts neither as success nor as its own code.
    let graceful = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    assert_eq!(
        code(gpulease(&daemon, ["run", "-m", "8MiB", "-t", "100ms", "--", "sh", "-c", graceful]).status),
        124
    );
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn the_lease_outlives_a_killed_wrapper_and_ends_with_the_program() {
    let daemon = Daemon::on_host("64MiB");
    let mut running = Running::start(
        &daemon,
        ["run", "-m", "8MiB", "--", "sh", "-c", "echo pid $$; while :; do sleep 0.05; done"],
    );
    let pid: u32 = running.hear("pid ").trim_start_matches("pid ").parse().expect("a pid");
    running.signal(Signal::KILL);
    let _ = running.child.wait();
    // The broker has seen the wrapper's end once it is no member any more.
    let state = until(&daemon, "the wrapper is seen to be gone", |state| {
        let members = state["leases"][0]["members"].as_array().cloned().unwrap_or_default();
        members.len() == 1 && members[0]["pid"] == pid
    });
    assert_eq!(state["leases"][0]["state"], "active");
    let program = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    kill_process(program, Signal::KILL).expect("it lives");
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn several_processes_of_a_job_join_its_lease() {
    let daemon = Daemon::on_host("64MiB");
    let worker = programs::program("lease-worker");
    let worker = worker.display();
    // A shell gives the null device to what it starts in the background, unless told otherwise.
    let script = format!("exec 3<&0; '{worker}' 8 <&3 & '{worker}' 16 <&3 & exec 3<&-; wait");
    let mut running = Running::start(&daemon, ["run", "-m", "24MiB", "--", "sh", "-c", &script]);
    running.hear(" MiB of L");
    running.hear(" MiB of L");
    let state = state(&daemon);
    assert_eq!((count(&state, "leases"), &state["leases"][0]["held_bytes"]), (1, &(24 << 20).into()));
    assert_eq!(state["leases"][0]["used"], true);
    running.close_input();
    assert_eq!(running.end(), 0);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_training_program_joins_the_lease_around_it() {
    let daemon = Daemon::on_host("64MiB");
    let program = programs::program("train-digits-under-test").into_os_string();
    let arguments = ["run", "-m", "16MiB", "--"].map(Into::into);
    let steps = ["--steps", "60", "--report-every", "30"].map(Into::into);
    let output = gpulease(&daemon, arguments.into_iter().chain([program]).chain(steps));
    expect(&output, 0, &["L1: 16 MiB"]);
    let said = text(&output.stdout);
    assert!(said.contains("held 16 MiB at most") && said.contains("step     60 of 60"), "{said}");
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_program_that_uses_no_leased_memory_is_spoken_of_once() {
    let daemon = Daemon::on_host("64MiB");
    let mut idle = Running::start(&daemon, ["run", "-m", "8MiB", "--unused-after", "100ms", "--", "cat"]);
    let told = idle.hear("has claimed memory of L");
    assert!(told.contains("after 100ms") && told.contains("outside the broker"), "{told}");
    idle.close_input();
    assert_eq!(idle.end(), 0);

    let worker = programs::program("lease-worker").into_os_string();
    let arguments = ["run", "-m", "8MiB", "--unused-after", "3s", "--"].map(Into::into);
    let mut busy = Running::start(&daemon, arguments.into_iter().chain([worker]));
    busy.hear(" MiB of L");
    // The time of the check passes while somebody else's lease comes and goes.
    expect(&line(&daemon, "run -q -m 8MiB -- sleep 3.3"), 0, &[]);
    busy.close_input();
    assert_eq!(busy.end(), 0);
    assert!(
        !busy
            .heard
            .iter()
            .chain(&busy.lines.try_iter().collect::<Vec<_>>())
            .any(|line| line.contains("claimed"))
    );
    daemon.stop();
}

#[test]
fn a_program_that_cannot_be_started_leaves_no_ask_and_no_lease() {
    let daemon = Daemon::on_host("64MiB");
    let folder = tempfile::tempdir().expect("a folder");
    let script = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let plain = script("plain", "#!/bin/sh\n", 0o644);
    let here = folder.path().to_str().expect("a path in UTF-8");
    for (program, exit, word) in [
        ("no-such-program", 127, "no folder of PATH"),
        ("./no/such/program", 127, "there is no ./no/such/program"),
        (&plain, 126, "not marked executable"),
        (here, 126, "is a folder"),
    ] {
        expect(&gpulease(&daemon, ["run", "-m", "8MiB", "--", program]), exit, &[word, "Nothing was asked"]);
    }
    let events = text(&line(&daemon, "events").stdout);
    assert!(!events.contains("granted") && !events.contains("waiting"), "{events}");

    // Only exec itself finds that the interpreter is missing; then the lease is given back.
    let lost = script("lost", "#!/no/such/interpreter\n", 0o755);
    expect(&gpulease(&daemon, ["run", "-m", "8MiB", "--", &lost]), 127, &["interpreter"]);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn what_the_user_ignores_stays_ignored() {
    let daemon = Daemon::on_host("64MiB");
    let mut nohup = Command::new("sh");
    let gpulease = programs::gpulease();
    let script = format!(
        "trap '' HUP; exec '{}' --socket '{}' run -m 8MiB -- sh -c 'echo ready; cat'",
        gpulease.display(),
        daemon.socket().display()
    );
    let mut running = Running::start_command(nohup.args(["-c", &script]).env_remove("GPULEASE_SOCKET"));
    running.hear("ready");
    running.signal(Signal::HUP);
    assert_eq!(count(&state(&daemon), "leases"), 1);
    running.close_input();
    assert_eq!(running.end(), 0);
    daemon.stop();
}
