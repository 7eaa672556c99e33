//! What a broker uses while nobody asks anything of it.

use std::time::{Duration, Instant};

use gpulease_tests::crowd::Size;
use gpulease_tests::member::Stage;
use gpulease_tests::proc::Proc;
use gpulease_words::{gib, mib};

/// Long enough for sixty looks of the witness.
const WINDOW: Duration = Duration::from_secs(60);

/// Several brokers side by side, each by the time that its threads ran.
pub(crate) fn run() {
    let standin = Stage::standin("8GiB");
    let host = Stage::Host.daemon(gib(1));
    let card = standin.daemon(gib(1));
    let visited = Stage::Host.daemon(mib(256));
    let crowd = Size { processes: 1, sessions: 100, leases: 1 }.gather(&visited);
    let brokers = [
        ("on host memory", &host),
        ("on a stand-in card, with its witness", &card),
        ("on host memory, 100 sessions", &visited),
    ];
    let ran = || brokers.map(|(_, daemon)| Proc(daemon.pid()).run_time());
    let (before, start) = (ran(), Instant::now());
    std::thread::sleep(WINDOW);
    let (after, took) = (ran(), start.elapsed());
    println!("\nidle brokers, over {} s", WINDOW.as_secs());
    for ((what, _), (before, after)) in brokers.into_iter().zip(before.into_iter().zip(after)) {
        let share = after.saturating_sub(before).as_secs_f64() / took.as_secs_f64();
        println!("{what}: {:.4} % of a core", share * 100.0);
    }
    drop(crowd);
}
