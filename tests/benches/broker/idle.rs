//! What a broker uses while nobody asks anything of it.

use std::time::{Duration, Instant};

use gpulease_tests::crowd::Size;
use gpulease_tests::member::Stage;
use gpulease_tests::proc::Proc;
use gpulease_words::{gib, mib};

/// Long enough for ten looks of the witness.
const WINDOW: Duration = Duration::from_secs(10);

pub(crate) fn run() {
    println!("\nan idle broker, over {} s each", WINDOW.as_secs());
    for (what, stage) in
        [("on host memory", Stage::Host), ("on a stand-in card, with its witness", Stage::standin("8GiB"))]
    {
        let daemon = stage.daemon(gib(1));
        println!("{what}: {}", share(Proc(daemon.pid())));
    }
    let daemon = Stage::Host.daemon(mib(256));
    let crowd = Size { processes: 1, sessions: 100, leases: 1 }.gather(&daemon);
    println!("on host memory, 100 sessions: {}", share(Proc(daemon.pid())));
    drop(crowd);
}

fn share(process: Proc) -> String {
    let (before, start) = (process.run_time(), Instant::now());
    std::thread::sleep(WINDOW);
    let used = process.run_time().saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64();
    format!("{:.4} % of a core", used * 100.0)
}
