//! Memory that somebody still has: it stays charged and goes to nobody, whoever has it and
//! however it came to him, until it is proven back.

use gpulease_client::blocking::Observer;
use gpulease_proto::v1;
use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::{Ledger, lease, memory};
use gpulease_tests::member::{Member, Orphan, Stage};
use gpulease_tests::proc::Proc;
use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, mib};
use rustix::process::Signal;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::hostile::{session, wait_for};

const WHOLE: Bytes = mib(16);
/// Long enough for what should come at once on a busy machine, and what must not come has time to.
const A_WHILE: &str = "wait=700ms";

/// A device with just room for one job that has it all.
struct Scene {
    stage: Stage,
    daemon: Daemon,
    ledger: Ledger,
    /// Wants what the other has.
    next: Member,
}

impl Scene {
    fn on(stage: Stage, configuration: &str) -> Self {
        println!("on {stage}");
        let capacity = Bytes::new(WHOLE.get() + stage.overhead().get());
        let daemon = stage.daemon_with(capacity, configuration);
        let (ledger, next) = (Ledger::of(&daemon), stage.member(&daemon));
        next.must("connect");
        Self { stage, daemon, ledger, next }
    }

    fn all(test: &str, configuration: &str) -> Vec<Self> {
        Stage::all(test).into_iter().map(|stage| Self::on(stage, configuration)).collect()
    }

    /// A job that has everything mapped and written, its descriptors as well.
    fn holder(&self) -> Member {
        let holder = self.stage.member(&self.daemon);
        for command in
            ["connect", "open", "ask a 16MiB", "granted a", "allocate s a 16MiB", "claim s", "map s"]
        {
            holder.must(&format!("wire {command}"));
        }
        holder.must("wire acknowledge s");
        holder.must("wire fill s 7");
        holder
    }

    /// The next asks for a while, and in vain.
    fn is_not_to_be_had(&self) {
        let why = self.next.refused(&format!("acquire b 16MiB {A_WHILE}"));
        assert!(why.contains("(wait_over)"), "{why}");
    }

    /// The next gets it and finds nothing of anybody's.
    fn serves_the_next(&self) {
        self.next.must("acquire b 16MiB wait=20s");
        self.next.must("take s b 16MiB");
        self.next.must("zero s b");
        self.next.must("free s");
        self.next.must("release b");
    }

    /// The next gets it, and everything is as at first.
    fn comes_back(self) {
        self.serves_the_next();
        self.next.must("end");
        self.ledger.wait_for_no_leak();
        self.daemon.stop();
    }

    /// Waits for what cannot be proven back; the sentence with the suspects.
    fn quarantined(&self) -> String {
        self.ledger
            .wait("a quarantine", |state| (memory(state).quarantined_bytes == WHOLE.get()).then_some(()));
        let found = remembered(self.ledger.observer()).into_iter().rev().find(|e| e.kind == "quarantined");
        found.expect("the log tells of a quarantine").message
    }
}

/// Everything in the event log.
fn remembered(observer: &Observer) -> Vec<v1::EventMessage> {
    let request = v1::EventsRequest { from_start: true, no_follow: true, after: 0 };
    let events = observer.events(request).expect("the daemon answers");
    events.map(|event| event.expect("the daemon answers")).collect()
}

fn names(sentence: &str, pid: u32) -> bool {
    sentence.split(|c: char| !c.is_ascii_digit()).any(|number| number == pid.to_string())
}

/// It drops what it has and gives nothing back by name: the library says good-bye before the process is gone.
#[test]
fn a_job_that_ends_by_itself_has_closed_its_session() {
    for stage in Stage::all("a job that ends by itself") {
        println!("on {stage}");
        let daemon = stage.daemon(Bytes::new(WHOLE.get() + stage.overhead().get()));
        let ledger = Ledger::of(&daemon);
        let job = stage.member(&daemon);
        for command in ["connect", "acquire a 16MiB", "take s a 8MiB", "fill s a 1", "ask b 2MiB"] {
            job.must(command);
        }
        job.begin("exit");
        assert!(job.wait().success());
        ledger.wait_for_all_free();
        let kinds: Vec<_> = remembered(ledger.observer()).into_iter().map(|event| event.kind).collect();
        let count = |kind: &str| kinds.iter().filter(|k| *k == kind).count();
        assert_eq!((count("closed"), count("adrift"), count("died")), (1, 0, 0), "{kinds:?}");
        daemon.stop();
    }
}

/// FAULTS 3: two holders after an expiry, as lease services have it that count only time.
#[test]
fn a_stopped_job_keeps_what_it_has() {
    for scene in Scene::all("a stopped job", "[graces]\nadrift = \"100ms\"") {
        let holder = scene.holder();
        holder.stop();
        scene.is_not_to_be_had();
        let held = memory(&scene.ledger.now()).held_bytes;
        assert_eq!(held, WHOLE.get());
        holder.signal(Signal::CONT);
        holder.must("wire check s 7");
        for command in ["unmap s", "let-go s", "free s", "release a"] {
            holder.must(&format!("wire {command}"));
        }
        holder.kill();
        scene.comes_back();
    }
}

#[test]
fn a_session_whose_stream_broke_is_adrift_and_keeps_what_it_has() {
    for scene in Scene::all("a session adrift", "[graces]\nadrift = \"200ms\"") {
        let holder = scene.holder();
        let who = holder.must("wire who");
        holder.must("wire hang-up");
        scene.ledger.wait("a lease adrift", |s| lease(s, "wire-1").adrift.then_some(()));
        scene.is_not_to_be_had();
        scene.ledger.wait("an overdue lease", |s| lease(s, "wire-1").overdue.then_some(()));
        holder.must("wire check s 7");
        holder.must(&format!("wire rejoin {who}"));
        scene.ledger.wait("a lease that is back", |s| {
            let lease = lease(s, "wire-1");
            (!lease.adrift && !lease.overdue).then_some(())
        });
        holder.must("wire hang-up");
        holder.kill();
        scene.comes_back();
    }
}

#[test]
fn a_session_closed_over_mapped_memory_is_charged_until_it_is_gone() {
    for scene in Scene::all("closed over mapped memory", "") {
        let holder = scene.holder();
        holder.must("wire close");
        scene.ledger.wait("a lease that drains", |s| {
            let lease = lease(s, "wire-1");
            (lease.state == "draining" && lease.held_bytes == WHOLE.get()).then_some(())
        });
        scene.is_not_to_be_had();
        holder.must("wire check s 7");
        holder.kill();
        scene.comes_back();
    }
}

#[test]
fn what_is_freed_and_still_mapped_is_quarantined_with_its_suspect() {
    for scene in Scene::all("freed and still mapped", "") {
        let holder = scene.holder();
        holder.must("wire free s");
        holder.must("wire release a");
        let sentence = scene.quarantined();
        assert!(names(&sentence, holder.pid()) || !matches!(scene.stage, Stage::Host), "{sentence}");
        scene.is_not_to_be_had();
        holder.must("wire unmap s");
        scene.is_not_to_be_had();
        // The descriptor was the last.
        holder.must("wire let-go s");
        scene.serves_the_next();
        holder.kill();
        scene.comes_back();
    }
}

/// Field case 20 (pytorch/pytorch#5736): the main process was dead and forked workers pinned the memory.
#[test]
fn forked_children_of_a_dead_job_hold_its_memory_and_are_named() {
    let scene = Scene::on(Stage::Host, "");
    let holder = scene.holder();
    let mut children: Vec<Orphan> = (0..4).map(|_| Orphan::of(&holder.must("fork"))).collect();
    holder.kill();
    let sentence = scene.quarantined();
    for child in &children {
        assert!(names(&sentence, child.pid()), "{}: {sentence}", child.pid());
    }
    while let Some(child) = children.pop() {
        scene.is_not_to_be_had();
        drop(child);
    }
    scene.comes_back();
}

/// The same with the library: children do not inherit its mappings, and descriptors are closed.
#[test]
fn forked_children_of_a_job_of_the_library_hold_nothing() {
    let scene = Scene::on(Stage::Host, "");
    let holder = scene.stage.member(&scene.daemon);
    holder.must("connect");
    holder.must("acquire a 16MiB");
    holder.must("take s a 16MiB");
    let child = Orphan::of(&holder.must("fork"));
    holder.must("fill s a 7");
    holder.kill();
    scene.serves_the_next();
    let sockets = Proc(child.pid()).open_files().into_iter().filter(|file| file.starts_with("socket:"));
    assert!(sockets.count() > 0, "the child lives, and has the sockets of its parent");
    drop(child);
    scene.comes_back();
}

/// FAULTS 21: after an exec another program runs under the session's process.
#[test]
fn a_job_that_executes_another_program_is_charged_until_that_ends() {
    let scene = Scene::on(Stage::Host, "");
    let holder = scene.stage.member(&scene.daemon);
    holder.must("connect");
    holder.must("acquire a 16MiB");
    holder.must("take s a 16MiB");
    holder.begin("exec sleep 300");
    scene.ledger.wait("a lease adrift", |s| lease(s, "a").adrift.then_some(()));
    scene.is_not_to_be_had();
    holder.kill();
    scene.comes_back();
}

/// Who was given the descriptor by its owner is no member, and holds the memory all the same.
#[test]
fn a_descriptor_that_was_passed_on_keeps_the_memory() {
    for scene in Scene::all("a descriptor passed on", "") {
        let (holder, friend) = (scene.holder(), scene.stage.member(&scene.daemon));
        for command in ["connect", "open"] {
            friend.must(&format!("wire {command}"));
        }
        let descriptor = holder.take("wire lend s").expect("it has one");
        friend.give("wire borrow s 16MiB", descriptor.as_fd()).expect("it takes it");
        drop(descriptor);
        friend.must("wire map s");
        friend.must("wire check s 7");
        holder.kill();
        let sentence = scene.quarantined();
        assert!(names(&sentence, friend.pid()) || !matches!(scene.stage, Stage::Host), "{sentence}");
        scene.is_not_to_be_had();
        friend.must("wire check s 7");
        friend.kill();
        scene.comes_back();
    }
}

/// A descriptor in a message that nobody has read is in no process's table.
#[test]
fn a_descriptor_in_flight_keeps_the_memory() {
    let scene = Scene::on(Stage::Host, "");
    let holder = scene.holder();
    let (here, there) = std::os::unix::net::UnixDatagram::pair().expect("a pair of sockets");
    let descriptor = holder.take("wire lend s").expect("it has one");
    gpulease_tests::puppet::send(here.as_fd(), "x", Some(descriptor.as_fd())).expect("it is sent");
    drop(descriptor);
    holder.kill();
    let sentence = scene.quarantined();
    assert!(sentence.contains("cannot be named"), "{sentence}");
    scene.is_not_to_be_had();
    drop((here, there));
    scene.comes_back();
}

/// Field case 42 (pytorch/pytorch#179220): a descriptor was taken by its number after it was closed.
/// Here they travel inside messages: a segment that is given back between claim and mapping is what it was.
#[test]
fn a_segment_freed_between_claim_and_mapping_is_still_the_claimers_own() {
    let scene = Scene::on(Stage::Host, "");
    let holder = scene.stage.member(&scene.daemon);
    for command in ["connect", "open", "ask a 16MiB", "granted a", "allocate s a 16MiB", "claim s", "free s"]
    {
        holder.must(&format!("wire {command}"));
    }
    let ticket = holder.must("wire ticket s");
    let again = holder.refused(&format!("wire claim s {ticket}"));
    assert!(again.contains("no such ticket"), "{again}");
    holder.must("wire map s");
    holder.must("wire fill s 9");
    holder.must("wire check s 9");
    scene.is_not_to_be_had();
    holder.kill();
    scene.comes_back();
}

/// Two processes in one lease: the owner dies, the member works on.
#[test]
fn a_member_outlives_the_owner_and_keeps_the_lease() {
    let scene = Scene::on(Stage::Host, "");
    let (owner, worker) = (scene.stage.member(&scene.daemon), scene.stage.member(&scene.daemon));
    owner.must("connect");
    worker.must("connect");
    let granted = owner.facts("acquire a 16MiB");
    let (id, token) = (granted.text("lease"), granted.text("token"));
    worker.must(&format!("join a {id} {token}"));
    worker.must("take s a 8MiB");
    worker.must("fill s a 7");
    owner.kill();
    scene.ledger.wait("a lease of one member", |s| (lease(s, "a").members.len() == 1).then_some(()));
    worker.must("check s a 7");
    worker.must("take t a 8MiB");
    scene.is_not_to_be_had();
    worker.kill();
    scene.comes_back();
}

/// What was being made for a member that closed its session stayed in the lease until the member died.
#[test]
fn what_is_made_for_a_member_that_closes_its_session_goes_back() {
    let card = Standin::with(&[("DEVICES", "1")]);
    card.faults("cuMemCreate * delay 1000");
    let stage = Stage::Gpu(Gpu::Standin(card));
    let daemon = stage.daemon(mib(2_048));
    let (ledger, owner) = (Ledger::of(&daemon), stage.member(&daemon));
    owner.must("connect");
    let granted = owner.facts("acquire a 16MiB");
    let (lease_id, token) = (granted.number("lease"), granted.text("token"));
    let token = (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16));
    let token = token.collect::<Result<_, _>>().expect("a token is hexadecimal");
    wait_for(async {
        let wire = Arc::new(session(&daemon).await);
        let join = v1::JoinRequest { session: wire.session(), lease_id, token };
        wire.jobs().join(join).await.expect("it has the token");
        let asked = tokio::spawn({
            let wire = wire.clone();
            async move { wire.allocate(lease_id, mib(8)).await }
        });
        let held = |state: &v1::StatusReply| (lease(state, "a").held_bytes > 0).then_some(());
        tokio::task::block_in_place(|| ledger.wait("its segment is being made", held));
        wire.close().await.expect("it is ours");
        asked.await.expect("it ends").expect_err("nobody is there any more to hear of it");
    });
    let is_back = |state: &v1::StatusReply| {
        let lease = lease(state, "a");
        (lease.held_bytes == 0 && memory(state).draining_bytes == 0).then_some(())
    };
    ledger.wait("what was made is given back", is_back);
    owner.must("end");
    daemon.stop();
}
