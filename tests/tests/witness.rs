//! The witness and the doctor, on the stand-in and on a real card.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gpulease_broker::device::cuda::Canary;
use gpulease_broker::device::{Device, Gauge};
use gpulease_broker::witness::{
    Cards, Finding, Roster, Stranger, Testimony, Verdict, Watched, Witness, doctor,
};
use gpulease_tests::on_cards;
use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, DeviceId, Pid, ProcessId, Uid, gib, mib};

use crate::conformance::bench::{Subject, chunks, cuda};

const PATIENCE: Duration = Duration::from_secs(30);
const DEVICE: DeviceId = DeviceId::new(3);
const PROCESS: ProcessId = ProcessId::new(7);

on_cards! {
    fn a_stranger_shows_with_user_and_command_and_is_taken_off(Gpu::all("a_stranger_shows_with_user_and_command_and_is_taken_off")) {
        let scene = Scene::new();
        let idle = scene.until(|t| t.strangers == Some(Vec::new()));
        let stranger = puppet();
        stranger.must("context 0");
        stranger.must("alloc m 0 512MiB");
        let used = listed(&stranger);
        let seen = scene.until(|t| named(t).is_some_and(|s| s.bytes == used));
        let uid = Uid::new(rustix::process::getuid().as_raw());
        let pid = Pid::new(stranger.pid());
        let expected = Stranger { pid, uid: Some(uid), command: "cuda-puppet".to_owned(), bytes: used };
        assert_eq!(seen.strangers, Some(vec![expected]));
        let taken = seen.off_book.expect("it is known").saturating_sub(idle.off_book.expect("it is known"));
        let unlisted = taken.checked_sub(used).expect("all that is listed is taken off");
        assert!(unlisted <= mib(16), "{unlisted} more than its own use");
        println!("measured: a context takes {} and {unlisted} unlisted", used.saturating_sub(mib(512)));
        stranger.kill();
        scene.until(|t| t.strangers == Some(Vec::new()) && t.off_book == idle.off_book);
    }

    fn a_stranger_shows_within_a_second_without_being_asked_for(Gpu::all("a_stranger_shows_within_a_second_without_being_asked_for")) {
        let scene = Scene::new();
        scene.until(|t| t.strangers == Some(Vec::new()));
        let stranger = puppet();
        stranger.must("context 0");
        let start = Instant::now();
        scene.next(|t| named(t).is_some());
        let after = start.elapsed();
        println!("measured: a stranger shows after {after:?}");
        // Beside other tests that use the processors only a card that is this test's alone can tell.
        let alone = std::env::var_os(gpulease_standin_card::DIRECTORY).is_none();
        assert!(!alone || after < Duration::from_secs(5), "{after:?}");
    }

    fn a_members_use_is_its_overhead_to_the_byte(Gpu::all("a_members_use_is_its_overhead_to_the_byte")) {
        let scene = Scene::new();
        let idle = scene.until(|t| t.off_book.is_some());
        let member = puppet();
        scene.join(&member);
        member.must("context 0");
        member.must("alloc own 0 64MiB");
        let used = listed(&member);
        let seen = scene.until(|t| overhead(t).is_some_and(|bytes| bytes >= used));
        let part = overhead(&seen).expect("a moment ago it was there").saturating_sub(used);
        assert!(part <= mib(5), "{part} unlisted");
        assert_eq!(seen.strangers, Some(Vec::new()));
        // Who comes after it was told is told, too.
        scene.witness.tell_again();
        scene.next(|t| overhead(t) == overhead(&seen));
        let outside = seen.off_book.expect("it is known").saturating_sub(idle.off_book.expect("it is known"));
        assert!(outside <= mib(11), "{outside} of a member's are off-book");
        member.must("free own");
        scene.until(|t| overhead(t) == used.checked_sub(mib(64)).and_then(|bytes| bytes.checked_add(part)));
        member.must("end-context 0");
        scene.until(|t| overhead(t) == Some(Bytes::ZERO));
        scene.leave(&member);
        scene.until(|t| t.overheads.is_empty() && t.off_book == idle.off_book);
    }

    fn the_brokers_memory_is_neither_off_book_nor_counted_twice(Gpu::all("the_brokers_memory_is_neither_off_book_nor_counted_twice")) {
        let mut scene = Scene::new();
        let member = puppet();
        scene.join(&member);
        member.must("context 0");
        let before = scene.until(|t| overhead(t).is_some());
        let used = before.used.expect("it is known");
        let same = |t: &Testimony| (t.off_book, &t.overheads) == (before.off_book, &before.overheads);

        let (segment, handover) = scene.subject.make(gib(1));
        scene.until(|t| t.used == used.checked_add(gib(1)) && same(t));
        member.give("import c 1GiB", std::os::fd::AsFd::as_fd(&chunks(&handover)[0].0)).expect("it is imported");
        for words in ["reserve r 1GiB", "map r c 0B", "access r 0 rw", "release c"] {
            member.must(words);
        }
        // Taken back and still mapped: the card lists it as the member's own use.
        scene.subject.take_back(segment, handover);
        scene.subject.until_suspected(segment);
        assert_eq!(listed(&member), listed_before(&before).saturating_add(gib(1)));
        scene.witness.refresh_now();
        scene.stays(same);
        member.must("unreserve r");
        scene.subject.until_freed(segment);
        scene.until(|t| t.used == Some(used) && same(t));
    }

    fn a_dying_member_is_never_less_than_nothing(Gpu::all("a_dying_member_is_never_less_than_nothing")) {
        let scene = Scene::new();
        let idle = scene.until(|t| t.off_book.is_some());
        let member = puppet();
        scene.join(&member);
        member.must("context 0");
        member.must("alloc own 0 1GiB");
        scene.until(|t| overhead(t).is_some_and(|bytes| bytes > gib(1)));
        scene.leave(&member);
        member.kill();
        let gone = scene.until(|t| t.overheads.is_empty() && t.off_book == idle.off_book);
        assert_eq!(gone.used, idle.used);
    }

    fn a_card_that_disappears_is_unknown_and_not_empty([Gpu::Standin(Standin::new())]) {
        let watched = Watched { uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(), ..watched(&Arc::default()) };
        let (tell, told) = channel();
        let cards = Cards::open().expect("there is NVML");
        let _witness = Witness::start(cards, vec![watched], Roster::default(), move |_, t| drop(tell.send(t)));
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Testimony::default()));
    }

    fn no_nvml_is_a_sentence(Gpu::without_nvml("no_nvml_is_a_sentence")) {
        let why = Cards::open().expect_err("there is none");
        assert!(why.starts_with("no NVML: ") && why.contains("it comes with the NVIDIA driver"), "{why}");
        let findings = doctor(Canary::Skip);
        let nvml = one(&findings, "NVML", Verdict::Unknown);
        assert!(nvml.says.contains("such figures are N/A"), "{nvml:?}");
        one(&findings, "driver", Verdict::Good);
        assert!(findings.iter().any(|f| f.subject == "cuda:0" && f.verdict == Verdict::Unknown), "{findings:#?}");
    }

    fn the_doctor_finds_a_card_well(Gpu::all("the_doctor_finds_a_card_well")) {
        let findings = doctor(Canary::Skip);
        assert!(findings.iter().all(|finding| finding.cure.is_none() || finding.verdict == Verdict::Notice));
        one(&findings, "driver", Verdict::Good);
        one(&findings, "NVML", Verdict::Good);
        let says = |words: &str| findings.iter().any(|f| f.subject == "cuda:0" && f.says.contains(words));
        assert!(says("can lend its memory to other processes, in steps of 2 MiB"), "{findings:#?}");
        assert!(findings.iter().all(|finding| finding.verdict != Verdict::Bad), "{findings:#?}");
        findings.iter().for_each(|finding| println!("measured: {finding:?}"));
    }

    fn the_doctor_names_who_is_on_a_card([Gpu::Standin(Standin::new())]) {
        let other = puppet();
        other.must("context 0");
        let finding = one(&doctor(Canary::Skip), "cuda:0", Verdict::Notice);
        assert!(finding.says.contains(&format!("used by pid {} (cuda-puppet of user", other.pid())), "{finding:?}");
        assert!(finding.says.ends_with("): 518 MiB"), "{finding:?}");
    }

    fn the_doctor_refuses_instances([Gpu::Standin(Standin::with(&[("MIG", "on"), ("DEVICES", "1")]))]) {
        assert!(one(&doctor(Canary::Skip), "cuda:0", Verdict::Bad).says.contains("MIG mode"));
    }

    /// Its thread's own time, as the kernel counts it.
    fn looking_once_a_second_costs_next_to_nothing(real("looking_once_a_second_costs_next_to_nothing")) {
        let scene = Scene::new();
        scene.until(|t| t.off_book.is_some());
        let (before, start) = (time_of("witness"), Instant::now());
        // Nothing changes, so that there is nothing to wait for.
        std::thread::sleep(Duration::from_secs(6));
        let (spent, passed) = (time_of("witness").saturating_sub(before), start.elapsed());
        println!("measured: the witness used {spent:?} of {passed:?}");
        let uuid = scene.subject.device.description().uuid.clone();
        let card = Cards::open().and_then(|cards| cards.card(&uuid)).expect("it was watched a moment ago");
        let start = Instant::now();
        (0..100).for_each(|_| drop(card.read_steady().expect("it says what is used")));
        println!("measured: a steady reading takes {:?}", start.elapsed() / 100);
        assert!(spent * 1000 < passed, "{spent:?} of {passed:?} is more than 0.1 %");
    }
}

#[test]
fn the_doctor_says_that_there_is_no_driver() {
    if Gpu::real_or_why().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    gpulease_tests::apart::run("witness::no_driver", &Gpu::Real(Turn::unneeded()));
}

#[test]
#[ignore = "runs in a process of its own"]
fn no_driver() {
    if gpulease_tests::apart::is_apart() {
        let findings = doctor(Canary::Run);
        let driver = one(&findings, "driver", Verdict::Notice);
        assert!(driver.says.contains("no CUDA driver library"), "{driver:?}");
        assert_eq!(findings.len(), 1, "one word is enough: {findings:#?}");
    }
}

/// The whole way: the command line, its doctor, and the two processes of the canary.
#[test]
fn the_command_lines_doctor_runs_the_canary() {
    let card = Standin::new();
    let mut command = std::process::Command::new(gpulease_tests::programs::gpulease());
    card.apply(&mut command);
    let output = command.args(["doctor", "--json"]).output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("fresh memory held none of what another process had written"), "{said}");
    assert!(said.contains("gpulease stand-in can lend its memory"), "{said}");
}

/// A device, and a witness beside it.
struct Scene {
    subject: Subject,
    roster: Roster,
    witness: Witness,
    told: Receiver<Testimony>,
    last: std::cell::RefCell<Option<Testimony>>,
}

impl Scene {
    fn new() -> Self {
        let device = cuda();
        let description = device.description().clone();
        let watched = Watched {
            uuid: description.uuid,
            // Nothing is left unmanaged that could swallow what is off-book.
            capacity: description.total.saturating_add(mib(8)),
            ..watched(&device.gauge())
        };
        let (roster, (tell, told)) = (Roster::default(), channel());
        let cards = Cards::open().expect("there is NVML");
        let tell = move |device, testimony| {
            assert_eq!(device, DEVICE);
            drop(tell.send(testimony));
        };
        let witness = Witness::start(cards, vec![watched], Arc::clone(&roster), tell).expect("it starts");
        Self { subject: Subject::of(device), roster, witness, told, last: Default::default() }
    }

    /// Has the witness look until it says such a thing.
    fn until(&self, wanted: impl Fn(&Testimony) -> bool) -> Testimony {
        let start = Instant::now();
        loop {
            if let Some(last) = self.last.borrow().as_ref().filter(|last| wanted(last)) {
                return last.clone();
            }
            self.witness.refresh_now();
            if let Ok(testimony) = self.told.recv_timeout(Duration::from_millis(20)) {
                *self.last.borrow_mut() = Some(testimony);
            }
            assert!(start.elapsed() < PATIENCE, "the witness says {:?}", self.last.borrow());
        }
    }

    /// Waits until the witness says such a thing by itself.
    fn next(&self, wanted: impl Fn(&Testimony) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let testimony = self.told.recv_timeout(left).expect("the witness looks once a second");
            if wanted(&testimony) {
                return;
            }
        }
    }

    /// Whatever the witness says for a while is such a thing.
    fn stays(&self, such: impl Fn(&Testimony) -> bool) {
        for _ in 0..20 {
            self.witness.refresh_now();
            while let Ok(testimony) = self.told.recv_timeout(Duration::from_millis(20)) {
                assert!(such(&testimony), "{testimony:?}");
                *self.last.borrow_mut() = Some(testimony);
            }
        }
        assert!(self.last.borrow().as_ref().is_some_and(such), "{:?}", self.last.borrow());
    }

    fn join(&self, process: &Puppet) {
        let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        roster.insert(Pid::new(process.pid()), PROCESS);
    }

    fn leave(&self, process: &Puppet) {
        let mut roster = self.roster.lock().unwrap_or_else(PoisonError::into_inner);
        roster.remove(&Pid::new(process.pid()));
    }
}

fn watched(gauge: &Arc<Gauge>) -> Watched {
    let (uuid, gauge) = (String::new(), Arc::clone(gauge));
    Watched { device: DEVICE, uuid, capacity: gib(1), overhead_estimate: mib(640), gauge }
}

fn real(test: &str) -> Vec<Gpu> {
    Gpu::all(test).into_iter().filter(|gpu| matches!(gpu, Gpu::Real(_))).collect()
}

fn puppet() -> Puppet {
    Puppet::start(&Gpu::Real(Turn::unneeded()))
}

/// What the card lists for a process.
fn listed(process: &Puppet) -> Bytes {
    process.nvml(0).get(&process.pid().to_string()).copied().map(Bytes::new).unwrap_or_default()
}

/// What the card listed for the one member when this was said.
fn listed_before(testimony: &Testimony) -> Bytes {
    overhead(testimony).expect("it is measured").saturating_sub(mib(5))
}

fn named(testimony: &Testimony) -> Option<&Stranger> {
    testimony.strangers.as_ref()?.first()
}

fn overhead(testimony: &Testimony) -> Option<Bytes> {
    testimony.overheads.iter().find(|(process, _)| *process == PROCESS).map(|(_, bytes)| *bytes)
}

fn one(findings: &[Finding], subject: &str, verdict: Verdict) -> Finding {
    let mut fitting = findings.iter().filter(|f| (f.subject.as_str(), f.verdict) == (subject, verdict));
    fitting.next().cloned().unwrap_or_else(|| panic!("nothing {verdict:?} of {subject} in {findings:#?}"))
}

/// How long the threads of this name have run.
fn time_of(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc is mounted").flatten();
    let named = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let nanoseconds = named.filter_map(|thread| {
        let said = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        said.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}
