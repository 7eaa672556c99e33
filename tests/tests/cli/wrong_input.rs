//! Wrong input of every kind: each answers with a sentence and the right exit code.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn no_broker_is_69_and_says_where_one_was_looked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("gpulease.sock");
    for words in [
        "",
        "status",
        "run -m 8MiB -- true",
        "hold -m 8MiB",
        "release L1",
        "queue",
        "why a1",
        "events",
        "recall L1",
        "end L1",
    ] {
        let output = finish(command(&socket).args(words.split_whitespace()));
        expect(&output, 69, &["gpulease: ", folder.path().to_str().expect("a path in UTF-8")]);
        assert!(output.stdout.is_empty());
    }
    // Something lies there that is no socket.
    std::fs::write(&socket, "").expect("a file");
    expect(&finish(command(&socket).arg("status")), 69, &["gpulease.sock"]);
}

#[test]
fn a_failure_as_a_document() {
    let output = finish(command(Path::new("/nowhere/gpulease.sock")).args(["--json", "status"]));
    let document: Value = serde_json::from_slice(&output.stderr).expect("one document");
    assert_eq!((&document["schema_version"], &document["error"]["exit_code"]), (&1.into(), &69.into()));
    assert!(document["error"]["message"].as_str().is_some_and(|message| message.contains("/nowhere")));
}

#[test]
fn wrong_usage_is_a_document_too() {
    for words in ["--json why x", "why x --json", "--json nonsense", "run --json -m 8XB -- true --json"] {
        let output = finish(command(Path::new("/nowhere/gpulease.sock")).args(words.split_whitespace()));
        assert_eq!(code(output.status), 2, "{words}");
        let document: Value = serde_json::from_slice(&output.stderr).expect("one document");
        assert_eq!(document["error"]["exit_code"], 2, "{document}");
        let message = document["error"]["message"].as_str().expect("a message");
        assert!(!message.is_empty() && !message.starts_with("error"), "{message}");
    }
    // The program's own --json is none of ours.
    let output =
        finish(command(Path::new("/nowhere/g.sock")).args(["run", "-m", "8XB", "--", "x", "--json"]));
    assert!(text(&output.stderr).starts_with("error: "), "{}", text(&output.stderr));
    let mut bare = Command::new(programs::gpulease());
    let usage = finish(bare.env("GPULEASE_SOCKET", "/nowhere/g.sock").arg("why").stdin(Stdio::null()));
    assert!(text(&usage.stderr).contains(" why <ID>"), "{}", text(&usage.stderr));
}

#[test]
fn a_name_of_any_length_is_refused_by_its_length() {
    let daemon = Daemon::on_host("64MiB");
    for letters in [65, 300, 100_000] {
        let output = gpulease(&daemon, ["run", "-m", "8MiB", "-n", &"x".repeat(letters), "--", "true"]);
        expect(&output, 2, &[&format!("{letters} letters"), "at most 64"]);
    }
    // A program's name is cut, since nobody chose it for a lease.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("y".repeat(200));
    std::os::unix::fs::symlink("/bin/true", &program).expect("a link");
    expect(&gpulease(&daemon, ["run", "-q", "-m", "8MiB", "--", &program.display().to_string()]), 0, &[]);
    daemon.stop();
}

/// A program that knows nothing of leases takes GPULEASE_MEMORY_BYTES for the size of its card.
#[test]
fn growth_beyond_device_and_budget_is_lowered_to_what_could_be_had() {
    let mut broker = Command::new(programs::gpuleased());
    broker.args(["--device", "host:64MiB"]);
    let daemon = Daemon::start_configured(broker, "[job.small]\nlimit = \"24MiB\"\n");
    for (memory, name, most, words) in [
        ("16MiB..60000GiB", "small", 24, "growing up to 24 MiB (not 60000 GiB"),
        ("16MiB..60000GiB", "free", 64, "growing up to 64 MiB (not 60000 GiB"),
        ("16MiB..", "free", 64, "growing up to 64 MiB on"),
        ("16MiB..", "small", 24, "growing up to 24 MiB"),
        ("16MiB..20MiB", "small", 20, "growing up to 20 MiB on"),
    ] {
        let output = gpulease(
            &daemon,
            ["run", "-m", memory, "-n", name, "--", "sh", "-c", "echo $GPULEASE_MEMORY_BYTES"],
        );
        expect(&output, 0, &[words]);
        assert_eq!(text(&output.stdout).trim(), (most << 20).to_string(), "{memory} of {name}");
    }
    let events = text(&line(&daemon, "events").stdout);
    assert!(events.contains("16 MiB a device, growing up to 24 MiB, was granted"), "{events}");
    daemon.stop();
}

/// What listens where a broker should be.
#[derive(Clone, Copy, Debug)]
enum Impostor {
    Babbles,
    HangsUp,
    IsSilent,
}

#[test]
fn what_is_no_broker_is_69_and_never_a_hang() {
    for (impostor, sentence) in [
        (Impostor::Babbles, "is not the job socket of a broker"),
        (Impostor::HangsUp, "is not the job socket of a broker"),
        (Impostor::IsSilent, "did not answer"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("gpulease.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = stream;
                match impostor {
                    Impostor::Babbles => {
                        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
                        let _ = stream.read(&mut [0; 64]);
                    }
                    Impostor::HangsUp => drop(stream),
                    Impostor::IsSilent => kept.push(stream),
                }
            }
        });
        let output = finish(command(&socket).arg("status"));
        expect(&output, 69, &["gpulease.sock", sentence]);
        let output = finish(command(&socket).args(["run", "-m", "8MiB", "--", "true"]));
        expect(&output, 69, &["gpulease.sock", sentence]);
    }
}

#[test]
fn a_file_in_the_command_line_is_a_usage_error() {
    let daemon = Daemon::on_host("64MiB");
    let file = "a".repeat(100_000);
    for words in [["budget", "set", &file, "limit=1GiB"], ["budget", "set", "host", &format!("limit={file}")]]
    {
        let output = finish(command(&daemon.socket()).args(words));
        expect(&output, 2, &["has at most 256"]);
    }
}

#[test]
fn sizes_and_durations_that_make_no_sense_are_usage_errors() {
    let daemon = Daemon::on_host("64MiB");
    for (words, word) in [
        ("run -m 8 -- true", "8GiB"),
        ("run -m 8XB -- true", "8XB"),
        ("run -m -8GiB -- true", "-8"),
        ("run -m 0 -- true", "unit"),
        ("run -m 0GiB -- true", "at least 2MiB"),
        ("run -m 18446744073709551616B -- true", "2^64"),
        ("run -m 18446744073709551615B -- true", "more than can be counted"),
        ("run -m 16MiB..8MiB -- true", "below"),
        ("run -m 101% -- true", "100%"),
        ("run -m 8MiB --wait 90 -- true", "90s"),
        ("run -m 8MiB -t never -- true", "never"),
        ("run -m 8MiB -t 0s -- true", "1s or more"),
        ("run -m 8MiB --gpus 0 -- true", "write 1, 2 or more"),
        ("run -m 8MiB --gpus x -- true", "write 1, 2 or more"),
        ("run -m 8MiB --name= -- true", "the name is empty"),
        ("budget set host limit=8MiB limit=16MiB", "limit is set twice"),
        ("run -m 8MiB --device 7 -- true", "0 (host-0)"),
        ("run -m 8MiB --device 0,0 -- true", "twice"),
        ("run -m 8MiB", "CMD"),
        ("run -m 8MiB true", "after `--`"),
        ("why 3", "a3"),
        ("release", "ID"),
        ("--watch queue", "--watch"),
    ] {
        expect(&line(&daemon, words), 2, &[word]);
    }
    assert!(
        text(&line(&daemon, "events").stdout).is_empty()
            || !text(&line(&daemon, "events").stdout).contains("granted")
    );
    daemon.stop();
}

#[test]
fn more_than_there_is_is_77_with_the_most_that_could_be() {
    let daemon = Daemon::on_host("64MiB");
    expect(&line(&daemon, "run -m 66MiB -- true"), 77, &["66 MiB", "at most 64 MiB"]);
    expect(&line(&daemon, "run -m 1TiB -- true"), 77, &["1 TiB", "at most 64 MiB"]);
    expect(&line(&daemon, "run -m 8MiB --gpus 2 -- true"), 77, &["2 devices", "1"]);
    expect(&line(&daemon, "run -q -m 64MiB -- true"), 0, &[]);
    let output = line(&daemon, "--json run -m 66MiB -- true");
    let document: Value = serde_json::from_slice(&output.stderr).expect("one document");
    assert_eq!(
        (&document["error"]["exit_code"], &document["error"]["reason"]),
        (&77.into(), &"too_large".into())
    );
    daemon.stop();
}

#[test]
fn more_than_the_budget_is_77_with_the_limit_and_whose_it_is() {
    let mut broker = Command::new(programs::gpuleased());
    broker.args(["--device", "host:64MiB"]);
    let daemon = Daemon::start_configured(broker, "[job.small]\nlimit = \"8MiB\"\n");
    expect(&line(&daemon, "run -m 10MiB -n small -- true"), 77, &["10 MiB", "8 MiB", "job.small"]);
    expect(&line(&daemon, "run -q -m 8MiB -n small -- true"), 0, &[]);
    expect(&line(&daemon, "run -q -m 10MiB -n large -- true"), 0, &[]);

    let mut held = Running::start(&daemon, ["hold", "-m", "6MiB", "-n", "small"]);
    held.hear("gives it back");
    let budgets = line(&daemon, "budget --json");
    let budgets: Value = serde_json::from_slice(&budgets.stdout).expect("a document");
    let accounts = budgets["accounts"].as_array().expect("a list");
    let small = accounts
        .iter()
        .find(|account| account["path"].as_str().is_some_and(|path| path.ends_with("job.small")));
    let small = small.expect("the job's account is listed");
    assert_eq!((&small["limit_bytes"], &small["charged_bytes"]), (&(8 << 20).into(), &(6 << 20).into()));
    assert!(text(&line(&daemon, "budget ls").stdout).contains("job.small"));
    drop(held);
    until_empty(&daemon);
    daemon.stop();
}

/// A script tries again on 75 and gives up on 77, so an account that is full for now must not answer as one that is too small.
#[test]
fn an_account_that_is_full_now_is_75_and_one_that_never_allows_it_is_77() {
    let mut broker = Command::new(programs::gpuleased());
    broker.args(["--device", "host:64MiB"]);
    let budgets = "[job.small]\nlimit = \"8MiB\"\n[job.few]\nleases_max = 1\n[job.none]\nleases_max = 0\n";
    let daemon = Daemon::start_configured(broker, budgets);
    let mut held = Running::start(&daemon, ["hold", "-m", "6MiB", "-n", "small"]);
    held.hear("gives it back");
    let refused = line(&daemon, "--json run -m 4MiB -n small --no-wait -- true");
    let document: Value = serde_json::from_slice(&refused.stderr).expect("one document");
    assert_eq!(
        (&document["error"]["exit_code"], &document["error"]["reason"]),
        (&75.into(), &"account_limit".into())
    );
    expect(&line(&daemon, "run -m 4MiB -n small --no-wait -- true"), 75, &["6 MiB of its limit of 8 MiB"]);
    expect(&line(&daemon, "run -m 10MiB -n small --no-wait -- true"), 77, &["over the limit of 8 MiB"]);
    let mut one = Running::start(&daemon, ["hold", "-m", "2MiB", "-n", "few"]);
    one.hear("gives it back");
    let at_once = line(&daemon, "run -m 2MiB -n few --no-wait -- true");
    expect(&at_once, 75, &["at most 1 lease at one time; end it first"]);
    let in_a_while = line(&daemon, "run -m 2MiB -n few --wait 200ms -- true");
    expect(&in_a_while, 75, &["still has all of the 1 lease that it may have", "wait longer, or end one"]);
    let mut next = Running::start(&daemon, ["run", "-m", "2MiB", "-n", "few", "--", "true"]);
    next.hear("has the one lease that it may have at one time; it moves when that ends");
    drop(one);
    next.hear("granted");
    expect(&line(&daemon, "run -m 2MiB -n none -- true"), 77, &["may have no leases", "operator"]);
    drop((held, next));
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn the_broker_s_socket_may_be_named_by_the_environment_and_an_empty_name_is_none() {
    let daemon = Daemon::on_host("64MiB");
    let mut bare = Command::new(programs::gpulease());
    bare.env("GPULEASE_SOCKET", daemon.socket()).arg("--json").stdin(Stdio::null());
    let output = finish(&mut bare);
    let state: Value = serde_json::from_slice(&output.stdout).expect("the state is a document");
    assert_eq!(state["broker"]["pid"], daemon.pid());
    daemon.stop();
}
