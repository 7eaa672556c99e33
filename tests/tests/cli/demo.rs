//! `gpulease demo`, whole, on a small device; and what is left when it is cut short.

use super::*;

/// It plays for less than a minute once built for use; a build for tests on a busy machine takes longer.
const WHOLE_DEMO: Duration = Duration::from_secs(170);

fn demo() -> Command {
    let mut command = Command::new(programs::gpulease());
    command.env_remove("GPULEASE_SOCKET").args(["demo", "--device", "host:64MiB"]).stdin(Stdio::null());
    command
}

#[test]
fn every_promise_is_kept_and_told_as_a_document() {
    let mut child =
        demo().arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait_for(&mut child, WHOLE_DEMO).expect("it ends in time");
    let (out, err) = (text(&out.recv().unwrap_or_default()), text(&err.recv().unwrap_or_default()));
    assert_eq!(code(status), 0, "{err}\n{out}");
    let report: Value = serde_json::from_str(&out).expect("one document");
    assert_eq!((&report["schema_version"], &report["kept"]), (&1.into(), &true.into()));
    let jobs = report["jobs"].as_array().expect("a list");
    let asked: u64 = jobs
        .iter()
        .filter(|job| !job["loss_first"].is_null())
        .filter_map(|job| job["asked_bytes"].as_u64())
        .sum();
    assert!(asked > 64 << 20, "together they want more than there is, not {asked}");
    let highest = report["devices"][0]["highest_used_bytes"].as_u64().expect("host memory is counted");
    assert!((40 << 20..=64 << 20).contains(&highest), "{highest}");
    let job = |name: &str| jobs.iter().find(|job| job["name"] == name).expect("it played").clone();
    assert_eq!(job("greta")["end"]["reason"], "over_budget");
    assert_eq!(job("carl")["end"]["signal"], 9);
    assert!(job("dora")["waited_seconds"].as_f64() > Some(0.0));
    for name in ["hugo", "ida", "jan"] {
        assert_eq!(job(name)["end"]["how"], "finished");
        assert_eq!(job(name)["held_at_most_bytes"], 38 << 20, "60 % of the device");
    }
    assert_eq!(job("bert")["held_at_most_bytes"], job("bert")["limit_bytes"]);
    assert!(
        report["promises"]
            .as_array()
            .is_some_and(|all| all.len() == 9 && all.iter().all(|one| one["kept"] == true))
    );
}

#[test]
fn a_demo_that_is_interrupted_or_killed_leaves_no_process_behind() {
    for (signal, exit) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mut running = Running::start_command(&mut demo());
        running.hear("is granted");
        let below = descendants(running.child.id());
        assert!(below.len() >= 3, "a broker, a wrapper and a job: {below:?}");
        running.signal(signal);
        let status = wait_for(&mut running.child, PATIENCE).expect("it ends");
        assert_eq!(status.code(), exit);
        below.into_iter().for_each(until_gone);
    }
}

/// All processes below this one.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            found.push(child);
            if Path::new(&format!("/proc/{child}/task")).exists() {
                found.extend(descendants(child));
            }
        }
    }
    found
}

#[test]
fn too_small_a_device_is_refused_with_what_is_needed() {
    let output = finish(Command::new(programs::gpulease()).args(["demo", "--device", "host:32MiB"]));
    expect(&output, 1, &["32 MiB", "64 MiB"]);
}
