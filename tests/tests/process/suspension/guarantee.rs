//! What a guarantee covers comes at once, whoever hoards the device, and stays.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::hostile::member_of;
use super::*;

const GUARANTEED: u32 = 65_533;

#[test]
fn who_is_within_a_guarantee_is_served_while_others_hoard() {
    let budgets = format!("[user.{GUARANTEED}]\nguarantee = \"8MiB\"\n");
    let scene = Scene::with(Stage::Host, 3, "64MiB", &budgets);
    let Some(guest) = member_of(&scene.stage, &scene.daemon, GUARANTEED) else {
        return;
    };
    guest.must("connect");
    let hoarders: Vec<_> = ["one", "two"].map(|name| (hoarder(&scene, name), name)).into();
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (job, name) in &hoarders {
            scope.spawn(move || {
                // Never idle, and away from time to time.
                while !done.load(Ordering::SeqCst) {
                    job.must(&format!("check s {name} 7"));
                }
            });
        }
        let guest = Guard { guest: &guest, done };
        guest.is_served(&scene);
    });
    assert_eq!(lease(&scene.ledger.now(), "mine").suspensions, 0, "nobody's turn is within a guarantee");
    guest.must("check m mine 5");
    guest.must("end");
    hoarders.iter().for_each(|(job, _)| drop(job.must("end")));
    scene.ends();
}

/// Half of the device, filled.
fn hoarder(scene: &Scene, name: &str) -> Member {
    let job = scene.job();
    job.must(&scene.sized(&format!("acquire {name} 8MiB wait=30s")));
    job.must(&scene.sized(&format!("take s {name} 8MiB")));
    job.must(&format!("fill s {name} 7"));
    job
}

/// Ends the hoarders' work also where the test fails.
struct Guard<'a> {
    guest: &'a Member,
    done: &'a AtomicBool,
}

impl Guard<'_> {
    /// Asks for what its guarantee covers and is granted it within what it was promised, three times.
    fn is_served(&self, scene: &Scene) {
        for turn in 0..3 {
            self.guest.must(&scene.sized("ask mine 8MiB wait=60s"));
            let promise = scene.ledger.wait("the guest waits or is granted", |status| {
                let granted = status.leases.iter().any(|lease| lease.name == "mine" && lease.guaranteed);
                let ask = status.waiting.iter().find(|ask| ask.name == "mine");
                let promised = ask.and_then(|ask| Some(ask.waited_ms + ask.at_latest_ms?));
                promised.map(Some).or(granted.then_some(None))
            });
            let waited = self.guest.facts("granted mine").number("waited_ms");
            println!("turn {turn}: waited {waited} ms, promised {promise:?} ms");
            assert!(promise.is_none_or(|promise| waited <= promise), "{waited} ms of {promise:?} ms");
            assert!(lease(&scene.ledger.now(), "mine").guaranteed);
            self.guest.must(&scene.sized("take m mine 8MiB"));
            self.guest.must("fill m mine 5");
            if turn < 2 {
                // What is still on its way back counts as its account's.
                self.guest.must("free m");
                self.guest.must("release mine");
                scene.ledger.wait("its lease is gone", |status| {
                    status.leases.iter().all(|lease| lease.name != "mine").then_some(())
                });
            }
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
    }
}
