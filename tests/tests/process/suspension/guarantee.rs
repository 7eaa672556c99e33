//! What a guarantee covers comes at once, whoever hoards the device, and stays.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::hostile::member_of;
use super::*;

const GUARANTEED: u32 = 65_533;

/// Whoever is not within a guarantee waits for a minute and more: by his turn alone the guest would not be served.
const SLOW: &str = "\
[graces]
max_wait = \"60s\"
min_residency = \"60s\"
idle_after = \"60s\"
recall = \"1s\"
drain = \"2s\"
";

/// The longest that a guarantee may take, in ms: a recall, a drain, and the swap of the whole device at the usual rate.
fn at_most(scene: &Scene) -> u64 {
    let capacity = gpulease_tests::ledger::memory(&scene.ledger.now()).capacity_bytes;
    1_000 + 2_000 + capacity / 20_000_000 + 10
}

#[test]
fn who_is_within_a_guarantee_is_served_while_others_hoard() {
    for stage in stages() {
        // The guest's context is within its guarantee, the hoarders' are pinned beside it.
        let context = stage.overhead().get();
        let rest = |unit: Bytes| {
            let guarantee = 8 * unit.get() + context;
            format!("{SLOW}[user.{GUARANTEED}]\nguarantee = \"{guarantee}B\"\n")
        };
        let scene = Scene::configured(stage, 3, "64MiB", Pinned::Contexts(2), rest);
        is_served_on(&scene);
        scene.ends();
    }
}

fn is_served_on(scene: &Scene) {
    let Some(guest) = member_of(&scene.stage, &scene.daemon, GUARANTEED) else {
        return;
    };
    guest.must("connect");
    let hoarders: Vec<_> = ["one", "two"].map(|name| (hoarder(scene, name), name)).into();
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
        guest.is_served(scene);
    });
    guest.must("end");
    hoarders.iter().for_each(|(job, _)| drop(job.must("end")));
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
        let at_most = at_most(scene);
        for turn in 0..3 {
            scene.ledger.wait("the others have the whole device", |status| {
                let held: u64 = status.leases.iter().map(|lease| lease.held_bytes).sum();
                (held == scene.size(16)).then_some(())
            });
            self.guest.must(&scene.sized("ask mine 8MiB wait=60s"));
            let promise = scene.ledger.wait("the guest waits or is granted", |status| {
                let granted = status.leases.iter().any(|lease| lease.name == "mine");
                let ask = status.waiting.iter().find(|ask| ask.name == "mine");
                let promised = ask.map(|ask| ask.at_latest_ms.map(|left| ask.waited_ms + left));
                promised.or(granted.then_some(Some(at_most)))
            });
            let promise = promise.expect("who is within a guarantee is promised a time");
            let waited = self.guest.facts("granted mine").number("waited_ms");
            println!("turn {turn}: waited {waited} ms, promised {promise} ms");
            assert!(promise <= at_most, "promised {promise} ms of at most {at_most} ms");
            assert!(waited <= promise, "{waited} ms of {promise} ms");
            assert!(lease(&scene.ledger.now(), "mine").guaranteed);
            self.guest.must(&scene.sized("take m mine 8MiB"));
            self.guest.must("fill m mine 5");
            self.guest.must("check m mine 5");
            assert_eq!(
                lease(&scene.ledger.now(), "mine").suspensions,
                0,
                "nobody's turn is within a guarantee"
            );
            // What is still on its way back counts as its account's.
            self.guest.must("free m");
            self.guest.must("release mine");
            scene.ledger.wait("its lease is gone", |status| {
                status.leases.iter().all(|lease| lease.name != "mine").then_some(())
            });
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
    }
}
