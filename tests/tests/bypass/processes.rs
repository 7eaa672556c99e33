//! Processes that come out of a leased one: forked, started, or turned into another program.

use std::fs;

use gpulease_client::blocking::Client;
use gpulease_proto::v1;
use gpulease_tests::ledger::lease;
use gpulease_tests::proc::eventually;
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, mib};
use rustix::process::{Pid, Signal, kill_process};

use super::lab::{Card, Lab, code};
use super::turns::{ROOM, TURNS};

/// What the broker calls the memory files of host copies.
const HOST_COPY: &str = "memfd:gpulease-copy-";

/// pytorch#40403: CUDA was used after a fork. The child meets the driver's own error and has nothing of the lease; the
/// parent's session, lease and memory are as they were.
#[test]
fn field_47_a_forked_child_has_nothing_of_the_lease() {
    for lab in Lab::all("field_47_a_forked_child_has_nothing_of_the_lease") {
        let guest = lab.leased("256MiB", "address-2");
        let number = guest.must("take alloc 64MiB");
        let held = lease(&lab.ledger.now(), "guest").held_bytes;
        // A driver has sockets and pollers of its own, which it leaves to every child.
        let bare = lab.card.bare("address-2");
        bare.must("take alloc 64MiB");
        let drivers = bare.must("fork 2MiB");
        for _ in 0..3 {
            let said = guest.must("fork 2MiB");
            assert!(said.starts_with("init=3 alloc=3 info=3 devices=3 "), "on {}: {said}", lab.card.gpu);
            assert!(said.ends_with(" ended=0"), "{said}");
            for kind in ["socket:", "memfd:", "anon_inode:"] {
                let count = |said: &str| said.matches(kind).count();
                assert!(
                    count(&said) <= count(&drivers),
                    "the child keeps a descriptor of its parent: {said}; without a lease {drivers}"
                );
            }
        }
        guest.must(&format!("check {number}"));
        let state = lab.ledger.now();
        assert_eq!(lease(&state, "guest").held_bytes, held);
        let more = guest.must("take alloc 64MiB");
        guest.must(&format!("give {more}"));
        guest.must(&format!("give {number}"));
    }
}

/// A broker whose leases can be suspended.
fn with_arena() -> Lab {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    Lab::configured(card, &ROOM, TURNS)
}

/// A host copy comes with a descriptor, which its process has until the copy is page-locked. A child that kept it would keep the
/// memory too, for its life.
#[test]
fn a_forked_child_keeps_no_host_copy() {
    let lab = with_arena();
    let guest = lab.leased("256MiB", "address-2");
    // It would be page-locked and gone a second after it was taken.
    for _ in 0..3 {
        guest.must("take alloc 16MiB");
        let said = guest.must("fork 2MiB");
        assert!(said.contains("files=") && !said.contains(HOST_COPY), "the child keeps a host copy: {said}");
    }
}

/// Where page-locking fails, nobody asks any more whether a copy is ready for it.
#[test]
fn a_host_copy_that_cannot_be_page_locked_keeps_no_descriptor() {
    let lab = with_arena();
    let guest = lab.leased("256MiB", "address-2");
    lab.faults("cuMemHostRegister_v2 * error 2");
    guest.must("take alloc 16MiB");
    let files = format!("/proc/{}/fd", guest.must("pid"));
    eventually("the descriptor is closed", || {
        let open = fs::read_dir(&files).map_err(|error| error.to_string())?.flatten();
        let names: Vec<_> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let kept = names.iter().any(|name| name.to_string_lossy().contains(HOST_COPY));
        if kept { Err(format!("{names:?}")) } else { Ok(()) }
    });
}

/// Processes of a job share its budget.
#[test]
fn a_started_process_is_of_the_same_lease() {
    for lab in Lab::all("a_started_process_is_of_the_same_lease") {
        for door in ["handle", "address-2", "linked"] {
            let guest = lab.leased("256MiB", door);
            let number = guest.must("take alloc 160MiB");
            let said = guest.must("child init;context;info;take alloc 128MiB");
            assert!(said.contains("code=2"), "{door}: 288 of 256 MiB: {said}");
            let said = guest.must("child init;context;take alloc 64MiB");
            assert!(!said.contains("error"), "{door}: 224 of 256 MiB: {said}");
            guest.must(&format!("give {number}"));
            let said = guest.must("child init;context;take alloc 128MiB");
            assert!(!said.contains("error"), "{door}: 128 of 256 MiB: {said}");
        }
    }
}

/// A worker with memory of the driver's own counts that itself, against the limit that it knows; its lease's owner, another
/// process, changed the limit, and the worker went by the old one for ever.
#[test]
fn a_limit_that_another_process_changes_is_seen_by_a_worker_with_memory_of_the_drivers_own() {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    let lab = Lab::on(card, &[]);
    let owner = Client::connect_to(lab.daemon.socket()).expect("the broker is there");
    let lease = owner.lease(mib(64)).up_to(mib(256)).acquire().expect("the card is empty");
    let library = programs::program("libgpulease_preload.so");
    let worker = Puppet::spawn("cuda-guest", lab.card.gpu.environment(), &[], |command| {
        command.arg("handle").envs(lease.env()).env("LD_PRELOAD", library)
    });
    let resize = |limit| lease.resize(mib(64), limit).expect("it is the owner's to change");
    let seen = |limit: Bytes| {
        eventually("the worker knows the limit", || match worker.must("info") {
            said if said.ends_with(&format!(" total={}", limit.get())) => Ok(()),
            said => Err(said),
        });
    };
    worker.must("init");
    worker.must("context");
    worker.must("take managed 32MiB");
    seen(mib(256));
    resize(mib(96));
    seen(mib(96));
    assert_eq!(code(worker.ask("take managed 96MiB")), Err(2), "32 and 96 MiB of 96");
    resize(mib(512));
    seen(mib(512));
    for way in ["alloc", "managed"] {
        worker.must(&format!("take {way} 224MiB"));
    }
}

/// `run -- sh -c ...`, `timeout`, `torchrun`: the process that only starts the program is a member, and never makes a context.
/// On a card with room for one the program gets the place that was set aside for it.
#[test]
fn a_program_behind_a_shell_needs_no_second_context() {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    let lab = Lab::on(card, &["--capacity", "1000MiB"]);
    let shell = ["sh", "-c", "timeout 60 \"$0\" \"$@\"; exit $?"];
    let output = lab.run_behind(&shell, &["-m", "256MiB"], &["init", "context", "take alloc 128MiB", "pid"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("error"), "{output:?}");
    assert_eq!(said.lines().count(), 4, "{said}");
    lab.ledger.wait_for_all_free();
}

#[test]
fn a_program_that_becomes_another_stays_in_its_lease() {
    for lab in Lab::all("a_program_that_becomes_another_stays_in_its_lease") {
        let guest = lab.leased("256MiB", "handle");
        guest.begin("exec kept address-2");
        guest.begin("init");
        guest.answer().expect("it starts");
        guest.must("context");
        assert_eq!(code(guest.ask("take alloc 320MiB")), Err(2));
        guest.must("take alloc 192MiB");
        assert_eq!(lease(&lab.ledger.now(), "guest").held_bytes, mib(192).get());
    }
}

/// A program that clears its environment and becomes another is outside of its lease, as any program outside is: what it
/// takes is in the books, and is refused to nobody. What closes that is the broker's hold of the card: there is nothing
/// left to take.
#[test]
fn who_clears_the_environment_finds_a_card_that_is_held() {
    let card = || Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    for (arguments, gets) in [(&[][..], true), (&["--hold", "all"][..], false)] {
        let lab = Lab::on(card(), arguments);
        let guest = lab.leased("256MiB", "handle");
        assert_eq!(code(guest.ask("take alloc 1GiB")), Err(2));
        guest.begin("exec cleared handle");
        guest.begin("init");
        guest.answer().expect("it starts");
        guest.must("context");
        let answer = code(guest.ask("take alloc 1GiB"));
        assert_eq!(answer.is_ok(), gets, "{arguments:?}: {answer:?}");
        if gets {
            lab.wait_until_booked();
            assert!(lab.on_books() >= mib(1024));
        }
    }
}

/// The broker can't see how a process ended, so that one in good order says good-bye. Its forked children don't.
#[test]
fn who_ends_in_good_order_has_closed_its_session_and_who_is_killed_died() {
    for lab in Lab::all("who_ends_in_good_order_has_closed_its_session_and_who_is_killed_died") {
        let steps = ["pid", "init", "context", "take alloc 64MiB", "fork-exit", "take alloc 64MiB"];
        let output = lab.run("256MiB", &steps);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("ended=0") && !said.contains("error"), "{said}");
        let pid = said.lines().next().and_then(|line| line.strip_prefix("ok ")?.parse().ok()).expect("a pid");
        eventually("its end among the events", || happened(&lab, "ended", pid));

        let guest = lab.leased("256MiB", "handle");
        let pid: u32 = guest.must("pid").parse().expect("a pid");
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(number, Signal::KILL).expect("it lives");
        eventually("its death among the events", || happened(&lab, "died", pid));
    }
}

fn happened(lab: &Lab, kind: &str, pid: u32) -> Result<(), String> {
    let found = remembered(lab);
    let is = found.iter().any(|event| event.kind == kind && event.pid == Some(pid));
    if is { Ok(()) } else { Err(format!("{found:#?}")) }
}

fn remembered(lab: &Lab) -> Vec<v1::EventMessage> {
    let request = v1::EventsRequest { from_start: true, no_follow: true, after: 0 };
    let events = lab.ledger.observer().events(request).expect("the daemon answers");
    events.map(|event| event.expect("the daemon answers")).collect()
}
