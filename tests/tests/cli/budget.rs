//! Budgets that operators set while the broker runs, and the configuration read anew.

use super::*;

const FILE: &str = "[group.zebras]\nmembers = [\"root\"]\nlimit = \"75%\"\n[user.root]\nweight = 2\n";

/// A daemon of 64 MiB with budgets, that keeps what is set in this folder.
fn daemon(state: &Path, configuration: &str) -> Daemon {
    let mut command = Command::new(programs::gpuleased());
    command.args(["--device", "host:64MiB", "--state"]).arg(state);
    Daemon::start_configured(command, configuration)
}

fn budgets(daemon: &Daemon) -> Value {
    let output = line(daemon, "budget ls --json");
    expect(&output, 0, &[]);
    serde_json::from_slice(&output.stdout).expect("budgets are a document")
}

/// Value and origin of a setting; `None` where it is not set.
fn setting(daemon: &Daemon, account: &str, key: &str) -> Option<(String, String)> {
    let budgets = budgets(daemon);
    let of = budgets["budgets"].as_array()?.iter().find(|budget| budget["account"] == account)?;
    let found = of["settings"].as_array()?.iter().find(|setting| setting["key"] == key)?;
    Some((found["value"].as_str()?.to_owned(), found["origin"].as_str()?.to_owned()))
}

fn set(value: &str, origin: &str) -> Option<(String, String)> {
    Some((value.to_owned(), origin.to_owned()))
}

#[test]
fn what_is_set_goes_before_the_file_outlives_the_broker_and_can_be_removed() {
    let state = tempfile::tempdir().expect("a folder");
    let mut daemon = daemon(state.path(), FILE);
    assert_eq!(setting(&daemon, "group.zebras", "limit"), set("75%", "file"));
    let said = line(&daemon, "budget set group.zebras limit=32MiB guarantee=16MiB");
    expect(&said, 0, &[]);
    assert_eq!(text(&said.stdout), "group.zebras: limit 32 MiB, guarantee 16 MiB\n");
    expect(&line(&daemon, "budget set job.sweep-* leases_max=1"), 0, &[]);
    daemon.terminate();
    daemon.start_again();
    assert_eq!(setting(&daemon, "group.zebras", "limit"), set("32MiB", "run_time"));
    assert_eq!(setting(&daemon, "job.sweep-*", "leases_max"), set("1", "run_time"));
    assert_eq!(setting(&daemon, "user.root", "weight"), set("2", "file"));
    let page = text(&line(&daemon, "budget").stdout);
    assert!(page.contains("budgets.toml") && page.contains("run time"), "{page}");
    expect(&line(&daemon, "run -m 40MiB -- true"), 77, &["group.zebras", "32 MiB"]);
    expect(&line(&daemon, "budget rm group.zebras limit"), 0, &[]);
    assert_eq!(setting(&daemon, "group.zebras", "limit"), set("75%", "file"));
    expect(&line(&daemon, "run -m 40MiB -- true"), 0, &[]);
    expect(&line(&daemon, "budget rm group.zebras"), 0, &[]);
    assert_eq!(setting(&daemon, "group.zebras", "guarantee"), None);
    expect(&line(&daemon, "budget rm group.zebras"), 2, &["nothing was set for group.zebras"]);
    daemon.stop();
}

#[test]
fn what_cannot_be_kept_is_refused_with_the_sum_and_changes_nothing() {
    let state = tempfile::tempdir().expect("a folder");
    let daemon = daemon(state.path(), FILE);
    for (words, said) in [
        ("budget set user.12345 guarantee=80MiB", "80 MiB"),
        ("budget set group.zebras guarantee=49MiB", "48 MiB"),
        ("budget set group.ants limit=1GiB", "group.ants"),
        ("budget set user.no-such-user-here limit=1GiB", "no-such-user-here"),
        ("budget set team.x limit=1GiB", "team.x"),
        ("budget set host limt=1GiB", "limt"),
        ("budget set host limit=1", "no unit"),
        ("budget set host limit", "limit=20GiB"),
        ("budget set user.* guarantee=2MiB", "user"),
    ] {
        expect(&line(&daemon, words), 2, &[said]);
    }
    assert_eq!(setting(&daemon, "group.zebras", "guarantee"), None);
    assert!(!state.path().join("budgets.toml").exists(), "nothing was written");
    daemon.stop();
}

#[test]
fn a_limit_below_what_is_held_kills_nothing_and_grants_nothing() {
    let state = tempfile::tempdir().expect("a folder");
    let daemon = daemon(state.path(), "");
    let mut held = Running::start(&daemon, ["hold", "-m", "16MiB"]);
    held.hear("gives it back");
    expect(&line(&daemon, "budget set user.root limit=8MiB"), 0, &[]);
    expect(&line(&daemon, "run --no-wait -m 2MiB -- true"), 75, &["user.root", "8 MiB"]);
    assert_eq!(count(&super::state(&daemon), "leases"), 1);
    expect(&line(&daemon, "budget rm user.root"), 0, &[]);
    expect(&line(&daemon, "run --no-wait -m 2MiB -- true"), 0, &[]);
    held.signal(Signal::INT);
    held.end();
    daemon.stop();
}

/// What waits for a limit goes on when that is raised.
#[test]
fn a_raised_limit_is_heard_by_those_who_wait() {
    let state = tempfile::tempdir().expect("a folder");
    let daemon = daemon(state.path(), "[user.root]\nlimit = \"16MiB\"\n");
    let mut held = Running::start(&daemon, ["hold", "-m", "16MiB"]);
    held.hear("gives it back");
    let mut waiter = Running::start(&daemon, ["run", "-m", "8MiB", "--", "true"]);
    waiter.hear("waits as number 1");
    expect(&line(&daemon, "budget set user.root limit=24MiB"), 0, &[]);
    assert_eq!(waiter.end(), 0);
    held.signal(Signal::INT);
    held.end();
    daemon.stop();
}

#[test]
fn sighup_reads_budgets_anew_all_of_them_or_nothing() {
    let state = tempfile::tempdir().expect("a folder");
    let daemon = daemon(state.path(), FILE);
    let file = daemon.socket().with_file_name("gpuleased.toml");
    let reload = |text: &str, word: &str| {
        let before = daemon.log().lines().filter(|line| line.contains("SIGHUP")).count();
        std::fs::write(&file, text).expect("written");
        daemon.signal(Signal::HUP);
        let start = Instant::now();
        loop {
            let log = daemon.log();
            let said: Vec<_> = log.lines().filter(|line| line.contains("SIGHUP")).collect();
            if said.len() > before {
                assert!(said[before].contains(word), "{word:?} is not in {:?}", said[before]);
                return;
            }
            assert!(start.elapsed() < PATIENCE, "it says nothing: {log}");
            std::thread::yield_now();
        }
    };
    reload(&FILE.replace("75%", "50%"), "in force");
    assert_eq!(setting(&daemon, "group.zebras", "limit"), set("50%", "file"));
    for (bad, word) in [
        (FILE.replace("75%", "most"), "line 3"),
        (FILE.replace("weight = 2", "guarantee = \"80MiB\""), "80 MiB"),
        (format!("pinned_max = \"8MiB\"\n{FILE}"), "pinned_max"),
        (format!("capacity = \"50%\"\n{FILE}"), "capacity"),
    ] {
        reload(&bad, word);
        assert_eq!(setting(&daemon, "group.zebras", "limit"), set("50%", "file"));
        assert_eq!(setting(&daemon, "user.root", "weight"), set("2", "file"));
    }
    daemon.stop();
}

#[test]
fn budgets_that_cannot_be_kept_end_the_start() {
    let state = tempfile::tempdir().expect("a folder");
    std::fs::write(state.path().join("budgets.toml"), "[user.0]\nguarantee = \"1GiB\"\n").expect("written");
    let mut command = Command::new(programs::gpuleased());
    command.args(["--device", "host:64MiB", "--check", "--state"]).arg(state.path());
    command.arg("--socket").arg(state.path().join("gpulease.sock")).env_remove("GPULEASE_SOCKET");
    let output = finish(&mut command);
    expect(&output, 78, &["1 GiB"]);
}

/// A full or read-only disk is a failure of the host and no refusal, and its sentence says where and what to do.
#[test]
fn a_budget_that_cannot_be_written_down_is_1_and_not_in_force() {
    let state = tempfile::tempdir().expect("a folder");
    let daemon = daemon(state.path(), FILE);
    // Where the new file would be written stands a folder: not even root writes there.
    std::fs::create_dir(state.path().join("budgets.toml.new")).expect("a folder");
    let file = state.path().join("budgets.toml").display().to_string();
    let output = line(&daemon, "budget set user.root limit=8MiB");
    expect(&output, 1, &[&file, "not in force", "set it again"]);
    assert_eq!(setting(&daemon, "user.root", "limit"), None);
    std::fs::remove_dir(state.path().join("budgets.toml.new")).expect("it is empty");
    expect(&line(&daemon, "budget set user.root limit=8MiB"), 0, &[]);
    let events = text(&line(&daemon, "events").stdout);
    assert!(events.contains("set the budget of user.root: limit = 8MiB"), "users by name: {events}");
    daemon.stop();
}
