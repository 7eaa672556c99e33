//! What the state, the line, `why`, `events`, `doctor` and `completion` show.

use super::*;

#[test]
fn the_state_as_text_has_no_escape_and_names_everything() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "48MiB", "-n", "resnet"]);
    held.hear("gives it back");
    let mut waiter = Running::start(&daemon, ["run", "-m", "32MiB", "-n", "later", "--", "true"]);
    waiter.hear("waits as number 1");
    let page = text(&line(&daemon, "status").stdout);
    assert!(!page.contains('\u{1b}'), "{page:?}");
    for words in [
        "Devices (1)",
        "host-0",
        "leases 64 MiB of its 64 MiB",
        "Leases (1)",
        "resnet",
        "The line (1)",
        "later",
        "32 MiB",
    ] {
        assert!(page.contains(words), "{words:?} is not in:\n{page}");
    }
    let queue = text(&line(&daemon, "queue").stdout);
    assert!(queue.contains("later") && queue.contains("16 MiB") && !queue.contains("Devices"), "{queue}");
    let queue: Value = serde_json::from_slice(&line(&daemon, "queue --json").stdout).expect("a document");
    assert_eq!(
        (&queue["schema_version"], &queue["waiting"][0]["short_by_bytes"]),
        (&1.into(), &(16 << 20).into())
    );
    waiter.signal(Signal::INT);
    waiter.end();
    held.signal(Signal::INT);
    held.end();
    let queue = text(&line(&daemon, "queue").stdout);
    assert_eq!(queue, "Nobody waits.\n");
    daemon.stop();
}

#[test]
fn the_state_as_a_document_is_in_bytes() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB..16MiB", "-n", "job"]);
    held.hear("gives it back");
    let state = state(&daemon);
    assert_eq!(state["schema_version"], 1);
    assert_eq!(state["broker"]["pid"], daemon.pid());
    assert_eq!(state["broker"]["socket"].as_str(), daemon.socket().to_str());
    let memory = &state["devices"][0]["memory"];
    assert_eq!(
        (&memory["capacity_bytes"], &memory["set_aside_bytes"]),
        (&(64 << 20).into(), &(8 << 20).into())
    );
    let lease = &state["leases"][0];
    assert_eq!((&lease["name"], &lease["state"]), (&"job".into(), &"active".into()));
    assert_eq!((&lease["reserve_bytes"], &lease["limit_bytes"]), (&(8 << 20).into(), &(16 << 20).into()));
    assert_eq!(lease["pid"], held.child.id());
    drop(held);
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn watching_shows_each_change() {
    let daemon = Daemon::on_host("64MiB");
    let mut watch = Running::start(&daemon, ["--json", "--watch"]);
    watch.hear("\"leases\":[]");
    // For as long as it takes: a state that is over when the next one is made is shown to nobody.
    let mut held = Running::start(&daemon, ["hold", "-m", "8MiB", "-n", "seen"]);
    let change = watch.hear("\"name\":\"seen\"");
    let change: Value = serde_json::from_str(&change).expect("a document of one line");
    assert_eq!(change["leases"][0]["reserve_bytes"], 8 << 20);
    held.signal(Signal::INT);
    held.end();
    watch.hear("\"leases\":[]");
    daemon.stop();
    watch.hear("the broker");
    assert_eq!(watch.end(), 69);
}

#[test]
fn why_says_who_holds_what_is_short() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "48MiB", "-n", "holder"]);
    held.hear("gives it back");
    let mut waiter = Running::start(&daemon, ["run", "-m", "32MiB", "-n", "later", "--", "true"]);
    waiter.hear("waits as number 1");
    let state = state(&daemon);
    let (ask, lease) = (
        state["waiting"][0]["id"].as_str().expect("an id"),
        state["leases"][0]["id"].as_str().expect("an id"),
    );
    let output = line(&daemon, &format!("why {ask}"));
    expect(&output, 0, &[]);
    let said = text(&output.stdout);
    assert!(said.contains("16 MiB") && said.contains("holder"), "{said}");
    let document: Value =
        serde_json::from_slice(&line(&daemon, &format!("why {ask} --json")).stdout).expect("a document");
    assert_eq!(document["waiting"]["short_by_bytes"], 16 << 20);
    assert_eq!(document["waiting"]["holders"][0]["name"], "holder");
    let said = text(&line(&daemon, &format!("why {lease}")).stdout);
    assert!(said.starts_with(&format!("{lease}: ")) && said.contains("48 MiB"), "{said}");
    for missing in ["a9999", "L9999"] {
        let output = line(&daemon, &format!("why {missing}"));
        assert_eq!(code(output.status), 77, "{}", text(&output.stderr));
    }
    daemon.stop_both(waiter, held);
}

trait StopBoth {
    fn stop_both(self, one: Running, other: Running);
}

impl StopBoth for Daemon {
    fn stop_both(self, one: Running, other: Running) {
        drop((one, other));
        until_empty(&self);
        self.stop();
    }
}

#[test]
fn events_tell_what_happened_and_what_happens() {
    let daemon = Daemon::on_host("64MiB");
    expect(&line(&daemon, "run -q -m 8MiB -n first -- true"), 0, &[]);
    until_empty(&daemon);
    let events = text(&line(&daemon, "events").stdout);
    assert!(events.contains("granted") && events.contains("first"), "{events}");
    let mut follower = Running::start(&daemon, ["events", "--follow", "--since-start", "--json"]);
    let granted: Value =
        serde_json::from_str(&follower.hear("\"kind\":\"granted\"")).expect("a document of one line");
    assert_eq!((&granted["schema_version"], &granted["name"]), (&1.into(), &"first".into()));
    expect(&line(&daemon, "run -q -m 8MiB -n second -- true"), 0, &[]);
    follower.hear("second");
    daemon.stop();
    assert_eq!(follower.end(), 69);
}

#[test]
fn the_doctor_finds_a_sound_broker_sound_and_a_missing_one_missing() {
    let daemon = Daemon::on_host("64MiB");
    let output = line(&daemon, "doctor");
    let said = text(&output.stdout);
    assert_eq!(code(output.status), 0, "{said}");
    assert!(
        said.contains("ok    broker") && said.contains("ok    hand-over") && !said.contains("FAIL"),
        "{said}"
    );
    let document: Value = serde_json::from_slice(&line(&daemon, "doctor --json").stdout).expect("a document");
    assert!(
        document["findings"]
            .as_array()
            .is_some_and(|all| all.iter().all(|finding| finding["level"] != "fail"))
    );
    let socket = daemon.socket();
    std::fs::remove_file(socket.with_file_name("handoff.sock")).expect("the folder is ours");
    let output = finish(command(&socket).arg("doctor"));
    assert!(
        code(output.status) == 1 && text(&output.stdout).contains("FAIL  hand-over"),
        "{}",
        text(&output.stdout)
    );
    drop(daemon);
    let output = finish(command(&socket).arg("doctor"));
    assert!(
        code(output.status) == 1 && text(&output.stdout).contains("FAIL  broker"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn completions_are_scripts_that_shells_read() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = finish(command(Path::new("/nowhere")).args(["completion", shell]));
        assert!(output.status.success() && text(&output.stdout).contains("gpulease"), "{shell}");
    }
    let script = text(&finish(command(Path::new("/nowhere")).args(["completion", "bash"])).stdout);
    expect(&finish(Command::new("bash").args(["-n", "-c", &script])), 0, &[]);
    assert!(!script.contains("demo-job"), "hidden commands stay hidden");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let daemon = Daemon::on_host("64MiB");
    let script = format!(
        "'{}' --socket '{}' | true; echo ${{PIPESTATUS[0]}}",
        programs::gpulease().display(),
        daemon.socket().display()
    );
    let output = finish(Command::new("bash").args(["-c", &script]));
    assert!(["0\n", "141\n"].contains(&text(&output.stdout).as_str()), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    daemon.stop();
}
