//! What the gate costs a launch: the same program without a lease and in one, in turns, on the stand-in driver, where a
//! launch of a kernel that does nothing is a few locks and no system call. Two programs without a lease beside them show
//! how far such figures are apart by themselves.
//!
//! `cargo bench -p gpulease-tests --bench gate`

use std::process::Command;

use gpulease_tests::daemon::Daemon;
use gpulease_tests::programs;
use gpulease_tests::puppet::Puppet;
use gpulease_tests::standin::Standin;

/// Enough that a median means something, in turns so that what else the machine does meets all alike.
const ROUNDS: usize = 41;
const LAUNCHES: u64 = 200_000;

fn main() {
    // `cargo test --benches` runs this too; there it is no measurement.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let (rounds, launches) = if measured { (ROUNDS, LAUNCHES) } else { (1, 1_000) };
    let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]);
    let mut daemon = Command::new(programs::gpuleased());
    standin.apply(daemon.args(["--device", "cuda:0"]));
    let daemon = Daemon::start_command(daemon);
    let socket = daemon.socket();
    let (gpulease, socket) = (programs::gpulease(), socket.to_str().expect("a path in UTF-8"));
    let run =
        [gpulease.to_str().expect("a path in UTF-8"), "--socket", socket, "run", "-q", "-m", "256MiB", "--"];
    let guests = [started(&standin, &[]), started(&standin, &[]), started(&standin, &run)];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (guest, times) in guests.iter().zip(&mut times) {
            let said = guest.must(&format!("launch {launches}"));
            times.push(said.trim_start_matches("each=").parse::<u64>().expect("nanoseconds"));
        }
    }
    let [bare, again, leased] = times.map(median);
    println!("a launch without a lease, medians of {rounds} rounds: {bare} ns and {again} ns");
    println!(
        "a launch that passes the gate: {leased} ns, {} ns more",
        leased.cast_signed() - bare.min(again).cast_signed()
    );
    daemon.stop();
}

fn started(standin: &Standin, before: &[&str]) -> Puppet {
    let guest =
        Puppet::spawn("cuda-guest", standin.environment(), before, |command| command.arg("address-2"));
    guest.must("init");
    guest.must("context");
    // With memory of its own: from then on a lease is there to be suspended.
    guest.must("take alloc 4MiB");
    guest
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}
