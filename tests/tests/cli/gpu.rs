//! `gpulease run` on a GPU: the stand-in card.

use gpulease_tests::standin::Standin;

use super::*;

fn daemon_on(standin: &Standin, devices: &[&str]) -> Daemon {
    let mut broker = Command::new(programs::gpuleased());
    standin.apply(&mut broker);
    devices.iter().for_each(|device| {
        broker.args(["--device", device]);
    });
    Daemon::start_command(broker)
}

#[test]
fn the_program_sees_the_devices_of_its_lease_and_is_told_what_is_put_aside() {
    let standin = Standin::with(&[("DEVICES", "2"), ("BYTES", "4GiB")]);
    let daemon = daemon_on(&standin, &["cuda:0", "cuda:1"]);
    let state = state(&daemon);
    let uuid = |n: usize| state["devices"][n]["uuid"].as_str().expect("a UUID").to_owned();
    assert!(uuid(0).starts_with("GPU-") && state["devices"][0]["kind"] == "cuda");

    let script = "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES";
    let one = gpulease(&daemon, ["run", "-m", "64MiB", "--device", "1", "--", "sh", "-c", script]);
    assert_eq!(text(&one.stdout), format!("PCI_BUS_ID {}\n", uuid(1)));
    assert!(!text(&one.stderr).contains("CUDA_VISIBLE_DEVICES"));
    let both = gpulease(&daemon, ["run", "-m", "64MiB", "--gpus", "2", "--", "sh", "-c", script]);
    assert_eq!(text(&both.stdout), format!("PCI_BUS_ID {},{}\n", uuid(0), uuid(1)));

    let mut chosen = command(&daemon.socket());
    chosen
        .args(["run", "-m", "64MiB", "--device", &uuid(0), "--", "sh", "-c", script])
        .env("CUDA_VISIBLE_DEVICES", "1");
    let chosen = finish(&mut chosen);
    assert_eq!(text(&chosen.stdout), format!("PCI_BUS_ID {}\n", uuid(0)));
    expect(&chosen, 0, &["CUDA_VISIBLE_DEVICES was \"1\" and is GPU-", "--device"]);
    until_empty(&daemon);
    daemon.stop();
}

/// The wrapper never uses the card: only one context is set aside, and it is the program's.
#[test]
fn a_program_can_have_all_that_one_context_leaves() {
    let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]);
    let daemon = daemon_on(&standin, &["cuda:0"]);
    let capacity = state(&daemon)["devices"][0]["memory"]["capacity_bytes"].as_u64().expect("a size");
    let most = capacity - (640 << 20);
    let script = format!("'{}' --json", programs::gpulease().display());
    let arguments = ["run", "-q", "-m", &format!("{most}B"), "--", "sh", "-c", &script];
    let output = gpulease(&daemon, arguments);
    expect(&output, 0, &[]);
    let state: Value = serde_json::from_slice(&output.stdout).expect("the state is a document");
    let overheads: Vec<&Value> = state["leases"][0]["members"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|member| &member["overhead_bytes"])
        .collect();
    assert_eq!(overheads, [&Value::from(0), &Value::from(640 << 20)]);
    expect(
        &gpulease(&daemon, ["run", "-m", &format!("{}B", most + (2 << 20)), "--", "true"]),
        77,
        &["context", "at most"],
    );
    until_empty(&daemon);
    daemon.stop();
}
