//! Programs that nobody changes, under `gpulease run`, on the stand-in driver.

use std::process::{Command, Output, Stdio};

use gpulease_tests::daemon::Daemon;
use gpulease_tests::programs::{self, program};
use gpulease_tests::standin::Standin;

const MIB: u64 = 1 << 20;

/// The ways in which the plain CUDA program finds the driver's functions.
const DOORS: &[&str] = &["dlsym", "look-up-1", "look-up-2"];

/// A card with a broker that owns it.
struct Lab {
    standin: Standin,
    daemon: Daemon,
}

impl Lab {
    fn new() -> Self {
        let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]);
        let mut broker = Command::new(programs::gpuleased());
        standin.apply(&mut broker);
        broker.args(["--device", "cuda:0"]);
        Self { daemon: Daemon::start_command(broker), standin }
    }

    /// `gpulease run` of the plain CUDA program with these options, door and steps.
    fn run(&self, options: &[&str], door: &str, steps: &[&str]) -> Output {
        let mut command = Command::new(programs::gpulease());
        self.standin.apply(&mut command);
        command.arg("--socket").arg(self.daemon.socket()).args(["run", "-q"]).args(options).arg("--");
        command.arg(program("cuda-program")).arg(door).args(steps).stdin(Stdio::null());
        command.output().expect("it can be run")
    }
}

/// What it printed, a line for each step; it has to end well.
fn lines(output: &Output) -> Vec<String> {
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complaints}", output.status);
    said.lines().map(str::to_owned).collect()
}

#[test]
fn memory_comes_from_the_lease_by_every_way_to_look_functions_up() {
    let lab = Lab::new();
    for door in DOORS {
        let steps = [
            "init",
            "total",
            "context",
            "info",
            "alloc:33554432",
            "alloc:100",
            "alloc:100",
            "info",
            "range:0",
            "range:2",
            "alloc:67108864",
            "free:0",
            "free:1",
            "free:2",
            "info",
        ];
        let output = lab.run(&["-m", "64MiB"], door, &steps);
        let all = 64 * MIB;
        let expected = [
            "0".into(),
            format!("0 {all}"),
            "0".into(),
            format!("0 {all} {all}"),
            "0".into(),
            "0".into(),
            "0".into(),
            format!("0 {} {all}", 30 * MIB),
            "0 true".into(),
            "0 true".into(),
            "2".into(),
            "0".into(),
            "0".into(),
            "0".into(),
            format!("0 {all} {all}"),
        ];
        assert_eq!(lines(&output), expected, "{door}: {}", String::from_utf8_lossy(&output.stderr));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.contains("no memory for 64 MiB"), "{complaint}");
    }
    lab.daemon.stop();
}

#[test]
fn a_lease_that_cannot_be_joined_gives_no_memory() {
    let lab = Lab::new();
    let script =
        "GPULEASE_TOKEN=000102030405060708090a0b0c0d0e0f exec \"$0\" dlsym init context alloc:1048576";
    let mut command = Command::new(programs::gpulease());
    lab.standin.apply(&mut command);
    command.arg("--socket").arg(lab.daemon.socket());
    command.args(["run", "-q", "-m", "64MiB", "--", "sh", "-c", script]).arg(program("cuda-program"));
    let output = command.output().expect("it can be run");
    assert_eq!(lines(&output), ["800", "0", "800"]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("could not be joined") && complaint.contains("no_such_lease"), "{complaint}");
    lab.daemon.stop();
}

#[test]
fn without_the_library_the_run_is_refused_and_no_preload_says_that_it_is_not_wanted() {
    let lab = Lab::new();
    let run = |library: &str, options: &[&str]| {
        let mut command = Command::new(programs::gpulease());
        command.arg("--socket").arg(lab.daemon.socket()).args(["run", "-q", "-m", "64MiB"]).args(options);
        command.env("GPULEASE_PRELOAD", library);
        command.args(["--", "sh", "-c", "echo ${LD_PRELOAD-none}"]).output().expect("it can be run")
    };
    // The loader would pass over a file that is no library, and start the program without it.
    for library in ["/nowhere/libgpulease_preload.so", "/etc/passwd"] {
        let refused = run(library, &[]);
        assert_eq!(refused.status.code(), Some(78), "{library}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--no-preload"), "{library}");
        assert_eq!(refused.stdout, b"", "{library}: it ran all the same");
        assert_eq!(lines(&run(library, &["--no-preload"])), ["none"]);
    }
    lab.daemon.stop();
}

/// The run-time library of a sanitizer has to be the first in a program, and looks symbols up before anything else of it works.
#[test]
fn a_program_with_a_sanitizer_starts_under_the_library() {
    let (lab, folder) = (Lab::new(), tempfile::tempdir().expect("a folder"));
    let (source, made) = (folder.path().join("a.c"), folder.path().join("a"));
    let text = "#include <stdio.h>\n#include <stdlib.h>\nint main() { free(malloc(9)); puts(\"fine\"); }\n";
    std::fs::write(&source, text).expect("the folder takes a file");
    let compiler = |arguments: &[&std::ffi::OsStr]| Command::new("cc").args(arguments).output();
    let built = compiler(&["-fsanitize=address".as_ref(), source.as_ref(), "-o".as_ref(), made.as_ref()]);
    if !built.is_ok_and(|built| built.status.success()) {
        println!("skipped: no C compiler with -fsanitize=address");
        return;
    }
    let place = compiler(&["-print-file-name=libasan.so".as_ref()]).expect("it ran a moment ago");
    let place = String::from_utf8(place.stdout).expect("a path");
    let mut command = Command::new(programs::gpulease());
    lab.standin.apply(&mut command);
    command.arg("--socket").arg(lab.daemon.socket()).args(["run", "-q", "-m", "64MiB", "--"]).arg(&made);
    command.env("LD_PRELOAD", place.trim()).env("ASAN_OPTIONS", "detect_leaks=0");
    assert_eq!(lines(&command.output().expect("it can be run")), ["fine"]);
    lab.daemon.stop();
}
