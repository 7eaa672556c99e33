//! Whoever shows what is not his own gets the answer that he would get if there were no such thing.

use std::os::unix::net::UnixStream;

use gpulease_proto::handover::Ticket;
use gpulease_proto::v1;
use gpulease_tests::ledger::memory;
use gpulease_tests::wire::{HandOver, Wire, forever};
use gpulease_words::mib;
use tonic::Status;

use super::{NOBODY, STRANGER, Scene, session, wait_for};

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("digits"));
    digits.map(|two| u8::from_str_radix(two, 16).expect("digits")).collect()
}

/// Everything that can be asked in a session's name, and what came of it.
async fn everything_as(wire: &Wire, lease_id: u64, segment_id: u64) -> Vec<(&'static str, String)> {
    let said = |denied: Option<v1::Denied>| denied.map_or("done".to_owned(), |denied| denied.reason);
    let failed = |status: Status| {
        gpulease_proto::refusal::reason(&status).map_or(status.to_string(), |reason| reason.to_string())
    };
    let (mut jobs, session) = (wire.jobs(), wire.session());
    let mut all = Vec::new();
    let request = wire.ask(1, mib(2), mib(2));
    let first = wire.acquire(request).await.map(|(update, _)| update);
    all.push((
        "acquire",
        match first {
            Ok(v1::acquire_update::Update::Denied(denied)) => denied.reason,
            Ok(other) => format!("{other:?}"),
            Err(status) => failed(status),
        },
    ));
    let request = v1::AllocateRequest {
        session: session.clone(),
        lease_id,
        bytes: mib(2).get(),
        wait: Some(forever()),
        ..Default::default()
    };
    let outcome = jobs.allocate(request).await.map(|reply| reply.into_inner().outcome);
    all.push((
        "allocate",
        match outcome {
            Ok(Some(v1::allocate_reply::Outcome::Denied(denied))) => denied.reason,
            Ok(other) => format!("{other:?}"),
            Err(status) => failed(status),
        },
    ));
    let request = v1::FreeRequest { session: session.clone(), lease_id, segment_id };
    all.push(("free", jobs.free(request).await.map_or_else(failed, |r| said(r.into_inner().denied))));
    let request = v1::ResizeRequest { session: session.clone(), lease_id, reserve_bytes: 0, limit_bytes: 0 };
    let outcome = jobs.resize(request).await.map(|reply| reply.into_inner().outcome);
    all.push((
        "resize",
        match outcome {
            Ok(Some(v1::resize_reply::Outcome::Denied(denied))) => denied.reason,
            Ok(other) => format!("{other:?}"),
            Err(status) => failed(status),
        },
    ));
    let pid = std::process::id();
    let request = v1::AdmitRequest { session: session.clone(), lease_id, pid, ..Default::default() };
    all.push(("admit", jobs.admit(request).await.map_or_else(failed, |r| said(r.into_inner().denied))));
    let request = v1::ReleaseRequest { session: session.clone(), lease_id };
    all.push(("release", jobs.release(request).await.map_or_else(failed, |r| said(r.into_inner().denied))));
    let request = v1::WithdrawRequest { session: session.clone(), ask_name: 1 };
    all.push(("withdraw", jobs.withdraw(request).await.map_or_else(failed, |_| "done".to_owned())));
    let request = v1::CloseRequest { session };
    all.push(("close", jobs.close(request).await.map_or_else(failed, |_| "done".to_owned())));
    all
}

/// The same user's other process, even with the session's secret: a session is its process's own.
#[test]
fn a_stolen_session_is_of_no_use() {
    let scene = Scene::new("");
    for command in ["connect", "open", "ask a 4MiB", "granted a", "allocate s a 2MiB"] {
        scene.honest.must(&format!("wire {command}"));
    }
    let who = scene.honest.must("wire who");
    let (id, secret) = who.split_once(' ').expect("two words");
    let stolen = v1::SessionRef { session_id: id.parse().expect("a number"), secret: unhex(secret).into() };
    let state = scene.ledger.now();
    let lease = state.leases.first().expect("it was granted").id;
    wait_for(async {
        let mut thief = session(&scene.daemon).await;
        let refused = thief.open_as(Some(stolen.clone())).await.expect_err("the session is another's");
        let reason = gpulease_proto::refusal::reason(&refused);
        assert_eq!(reason, Some(gpulease_words::Reason::NoSuchSession), "{refused}");
        thief.pose_as(Some(stolen.clone()));
        let all = everything_as(&thief, lease, 1).await;
        assert!(all.iter().all(|(_, said)| said == "no_such_session"), "{all:?}");
        // The same as for a session that there never was, or a secret that is wrong.
        for (session_id, secret) in [(stolen.session_id, vec![0; 16]), (4_711, vec![0; 16]), (0, vec![])] {
            thief.pose_as(Some(v1::SessionRef { session_id, secret: secret.into() }));
            assert_eq!(everything_as(&thief, lease, 1).await, all);
        }
    });
    let held = memory(&scene.ledger.now());
    assert_eq!((held.set_aside_bytes, held.held_bytes), (mib(2).get(), mib(2).get()), "{held:?}");
    for command in
        ["claim s", "map s", "acknowledge s", "unmap s", "let-go s", "free s", "release a", "close"]
    {
        scene.honest.must(&format!("wire {command}"));
    }
    scene.ledger.wait_for_all_free();
    scene.daemon.stop();
}

/// Another session of the same user, with its own name and another's lease.
#[test]
fn a_lease_of_another_session_is_of_no_use_without_its_token() {
    let scene = Scene::new("");
    let granted = scene.honest.facts("acquire a 4MiB");
    let segment: u64 = scene.honest.must("take s a 2MiB").parse().expect("a number");
    let thief = wait_for(async {
        let thief = session(&scene.daemon).await;
        let all = everything_as(&thief, granted.number("lease"), segment).await;
        let of = |what: &str| all.iter().find(|(name, _)| *name == what).map(|(_, said)| said.clone());
        for what in ["allocate", "free", "resize", "admit", "release"] {
            assert_eq!(of(what).as_deref(), Some("no_such_lease"), "{what}: {all:?}");
        }
        thief
    });
    drop(thief);
    scene.honest.must("zero s a");
    scene.honest.must("free s");
    scene.honest.must("release a");
    scene.ends_well();
}

#[test]
fn tickets_are_good_once_and_for_one_process() {
    let scene = Scene::new("");
    let (honest, handoff) = (&scene.honest, scene.daemon.socket().with_file_name("handoff.sock"));
    for command in ["connect", "open", "ask a 4MiB", "granted a", "allocate s a 2MiB"] {
        honest.must(&format!("wire {command}"));
    }
    let ticket = honest.must("wire ticket s");
    let stolen = Ticket::try_from(unhex(&ticket).as_slice()).expect("16 bytes");
    let thief = HandOver::connect(&handoff).expect("the socket is everybody's");
    for wrong in [stolen, Ticket::new([0; 16]), Ticket::new([0xff; 16])] {
        let why = thief.claim(wrong).expect_err("the ticket is another's, or nobody's");
        assert!(why.contains("no such ticket for this process"), "{why}");
        let why = thief.acknowledge(wrong).expect_err("the ticket is another's, or nobody's");
        assert!(why.contains("no such ticket for this process"), "{why}");
    }
    // Its owner's it still is, as often as he claims it, until he acknowledges.
    for command in ["claim s", "claim s", "map s", "acknowledge s"] {
        honest.must(&format!("wire {command}"));
    }
    let why = honest.refused(&format!("wire claim s {ticket}"));
    assert!(why.contains("no such ticket"), "{why}");
    let why = honest.refused("wire acknowledge s");
    assert!(why.contains("no such ticket"), "{why}");
    honest.must("wire fill s 3");
    honest.must("wire allocate t a 2MiB");
    let ticket = honest.must("wire ticket t");
    honest.must("wire free t");
    let why = honest.refused(&format!("wire claim t {ticket}"));
    assert!(why.contains("no such ticket"), "{why}");
    honest.must("wire check s 3");
    for command in ["unmap s", "let-go s", "free s", "release a", "close"] {
        honest.must(&format!("wire {command}"));
    }
    scene.ledger.wait_for_all_free();
    scene.daemon.stop();
}

/// FAULTS 19: the same answer for "not yours" and "none".
#[test]
fn another_user_learns_and_gets_nothing() {
    let scene = Scene::new("");
    let Some(other) = scene.member_of(NOBODY) else { return };
    let granted = scene.honest.facts("acquire a 4MiB");
    scene.honest.must("take s a 2MiB");
    scene.honest.must("fill s a 1");
    let (lease, token) = (granted.number("lease"), granted.text("token"));
    other.must("connect");
    let theirs = other.refused(&format!("join x {lease} {token}"));
    let nobodys = other.refused(&format!("join x 4711 {token}"));
    assert!(theirs.contains("(no_such_lease)"), "{theirs}");
    assert_eq!(theirs.replace(&lease.to_string(), "4711"), nobodys);
    let theirs = other.refused(&format!("give-back {lease}"));
    assert!(theirs.contains("(no_such_lease)"), "{theirs}");
    assert_eq!(theirs.replace(&lease.to_string(), "4711"), other.refused("give-back 4711"));
    scene.honest.must("check s a 1");
    scene.honest.must("free s");
    scene.honest.must("release a");
    // An old lease, after its release, is nobody's either, for its owner too.
    let old = scene.honest.refused(&format!("join x {lease} {token}"));
    assert!(old.contains("(no_such_lease)"), "{old}");
    other.kill();
    scene.ends_well();
}

/// A third user who knows the token of a lease whose owner named another guest.
#[test]
fn a_guest_is_the_one_who_was_named() {
    let scene = Scene::new("");
    let (Some(guest), Some(stranger)) = (scene.member_of(NOBODY), scene.member_of(STRANGER)) else { return };
    let granted = scene.honest.facts(&format!("acquire a 4MiB guest={NOBODY}"));
    let join = format!("join a {} {}", granted.number("lease"), granted.text("token"));
    for member in [&guest, &stranger] {
        member.must("connect");
    }
    let why = stranger.refused(&join);
    assert!(why.contains("(no_such_lease)"), "{why}");
    guest.must(&join);
    guest.must("take s a 2MiB");
    guest.must("fill s a 5");
    guest.must("check s a 5");
    // What the guest mapped is charged to the lease that it joined.
    let state = scene.ledger.now();
    assert_eq!(state.leases[0].held_bytes, mib(2).get());
    assert_eq!(state.leases[0].members.len(), 2);
    guest.must("free s");
    guest.kill();
    stranger.kill();
    scene.honest.must("release a");
    scene.ends_well();
}

/// FAULTS 21: a connection outlives the process that made it, in a child or in a message. What is
/// asked over it is asked in the name of a dead process, which nothing could ever end again.
#[test]
fn the_connection_of_a_dead_process_opens_no_session() {
    for had_session in [false, true] {
        let scene = Scene::new("");
        let dead = gpulease_tests::member::Stage::Host.member(&scene.daemon);
        if had_session {
            dead.must("connect");
        }
        let connection = dead.take("wire socket").expect("it connects");
        dead.kill();
        wait_for(async {
            let mut wire = match Wire::over(UnixStream::from(connection), &scene.daemon.socket()).await {
                Ok(wire) => wire,
                // Hung up on: just as well.
                Err(_) => return,
            };
            let refused = wire.open().await.map(|opened| opened.session).expect_err("its process is dead");
            println!("refused: {refused}");
        });
        let sessions = scene.ledger.now();
        assert!(sessions.leases.is_empty());
        scene.ends_well();
    }
}
