//! Suspensions of jobs that wait for each other: processes of one job in a collective, and jobs that want to grow.

use super::*;

/// A job of two processes; `one` has the lease.
fn pair(scene: &Scene, name: &str, bytes: &str) -> [Member; 2] {
    let (one, two) = (scene.job(), scene.job());
    let facts = one.facts(&scene.sized(&format!("acquire {name} {bytes} wait=30s")));
    two.must(&format!("join {name} {} {}", facts.text("lease"), facts.text("token")));
    [one, two]
}

/// One process of a job sits in its guard until the other has come into its own, which a suspension keeps out: it is
/// cancelled, and both go on.
#[test]
fn a_collective_of_two_processes_is_not_torn_apart() {
    for scene in Scene::all(3, "64MiB") {
        let [one, two] = pair(&scene, "job", "12MiB");
        one.must(&scene.sized("take s job 12MiB"));
        one.must("fill s job 3");
        one.must("enter job");
        let other = scene.job();
        other.must(&scene.sized("ask other 12MiB wait=60s"));
        scene.wait_for_event("suspending");
        std::thread::scope(|scope| {
            let comes = scope.spawn(|| two.must("enter job"));
            let cancelled = scene.wait_for_event("suspend_cancelled");
            assert!(cancelled.message.contains("did not drain"), "{}", cancelled.message);
            comes.join().expect("its gate opened again");
        });
        one.must("leave job");
        two.must("leave job");
        one.must("check s job 3");
        two.must("end");
        one.must("end");
        other.must("granted other");
        other.must("end");
        scene.ends();
    }
}

/// Memory that several processes of a job have mapped stays where it is, and counts as pinned.
#[test]
fn a_job_with_memory_of_two_processes_stays() {
    let scene = Scene::on(Stage::Host, 3, "64MiB");
    let [one, two] = pair(&scene, "job", "8MiB");
    for (process, name, seed) in [(&one, "s", 3), (&two, "t", 4)] {
        process.must(&scene.sized(&format!("take {name} job 4MiB")));
        process.must(&format!("fill {name} job {seed}"));
    }
    assert!(!lease(&scene.ledger.now(), "job").suspendable);
    let other = scene.job();
    let why = other.refused(&scene.sized("acquire other 12MiB wait=3s"));
    assert!(why.contains("(wait_over)"), "{why}");
    assert!(!remembered(scene.ledger.observer()).iter().any(|event| event.kind == "suspending"));
    one.must("check s job 3");
    two.must("check t job 4");
    [one, two, other].iter().for_each(|job| drop(job.must("end")));
    scene.ends();
}

/// Two jobs that hold what the other needs: inside their guards growth is refused at once. Outside of them either may
/// make room for the other, or wait its time and no longer; both have their bytes afterwards.
#[test]
fn two_jobs_that_want_to_grow_do_not_wait_for_each_other_for_ever() {
    for scene in Scene::all(2, "64MiB") {
        let jobs = ["one", "two"].map(|name| (scene.job(), name));
        for (job, name) in &jobs {
            job.must(&scene.sized(&format!("acquire {name} 8MiB upto=12MiB")));
            job.must(&scene.sized(&format!("take s {name} 8MiB")));
            job.must(&format!("fill s {name} 5"));
            job.must(&format!("enter {name}"));
        }
        for (job, name) in &jobs {
            let why = job.refused(&scene.sized(&format!("take g {name} 4MiB wait=60s")));
            assert!(why.contains("(would_deadlock)"), "{why}");
            job.must(&format!("leave {name}"));
        }
        let books = &scene;
        std::thread::scope(|scope| {
            for (job, name) in &jobs {
                scope.spawn(move || {
                    if let Err(why) = job.ask(&books.sized(&format!("take g {name} 4MiB wait=1s"))) {
                        let is_over = why.contains("(wait_over)") || why.contains("did not come back within");
                        assert!(is_over, "{why}");
                    }
                });
            }
        });
        for (job, name) in &jobs {
            job.must(&format!("check s {name} 5"));
            job.must("end");
        }
        scene.ends();
    }
}
