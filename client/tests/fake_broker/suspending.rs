//! Leases whose memory is wanted by others.

use std::sync::Arc;
use std::time::Duration;

use gpulease_client::proto::{
    self as v1, report_request::News, resume_update::Update, session_message::Message,
};
use gpulease_client::{Client, Error, Lease, Presence, Reason, Segment, blocking, mib};

use crate::broker::Broker;
use crate::handoff::{is_used, still_in_use};
use crate::{GUARDS, connect, poll_once, soon, until};

const SESSION: u64 = 1;
const MINUTE: u64 = 60_000;

/// A client with a lease, and what it has in it.
struct Job {
    broker: Broker,
    client: Client,
    lease: Lease,
    segments: Vec<Segment>,
}

impl Job {
    /// A movable lease with segments of these sizes, each full of its own number.
    async fn start(sizes: &[u64]) -> Self {
        let broker = Broker::start();
        broker.shared.change(|book| book.movable = true);
        let client = connect(&broker).await;
        let lease = client.lease(mib(8)).acquire().await.unwrap();
        let mut segments = Vec::new();
        for (number, size) in (1_u8..).zip(sizes) {
            let mut segment = lease.allocate(mib(*size)).await.unwrap();
            segment.as_mut_slice::<u8>(&lease.enter().await.unwrap()).unwrap().fill(number);
            segments.push(segment);
        }
        Self { broker, client, lease, segments }
    }

    fn id(&self) -> u64 {
        self.lease.id().get()
    }

    fn tell(&self, message: Message) {
        self.broker.tell(SESSION, message);
    }

    fn suspend(&self, deadline_in_ms: u64) {
        self.tell(Message::Suspend(v1::Suspend { lease_id: self.id(), deadline_in_ms }));
    }

    fn swap_out(&self) {
        self.tell(Message::SwapOut(v1::SwapOut { lease_id: self.id() }));
    }

    fn cancel(&self) {
        let message = "nobody wants it any more".to_owned();
        self.tell(Message::SuspendCancelled(v1::SuspendCancelled { lease_id: self.id(), message }));
    }

    /// Waits until this was reported of the lease, so often.
    fn reported(&self, news: &News, times: usize) {
        let report = (self.id(), news.clone());
        let count = |reports: &[(u64, News)]| reports.iter().filter(|found| **found == report).count();
        self.broker.shared.until(&format!("{news:?}"), |book| count(&book.reports) == times);
    }

    /// Waits for the words of a swap that failed.
    fn failure(&self) -> String {
        let mut found = None;
        self.broker.shared.until("a failed swap", |book| {
            found = book.reports.iter().find_map(|(_, news)| match news {
                News::SwapFailed(why) => Some(why.clone()),
                _ => None,
            });
            found.is_some()
        });
        found.unwrap()
    }

    /// All of it out, with every byte in the host copies and nothing mapped here.
    fn out(&self, times: usize) {
        self.suspend(MINUTE);
        self.reported(&News::Drained(v1::Nothing {}), times);
        self.swap_out();
        for (number, segment) in (1_u8..).zip(&self.segments) {
            self.reported(&News::SwappedOutSegmentId(segment.id().get()), times);
            let book = self.broker.shared.book();
            let booked = &book.segments[&segment.id().get()];
            assert!(!still_in_use(booked), "it is unmapped before that is reported");
            let mut byte = [0];
            rustix::io::pread(booked.host_copy.as_ref().unwrap(), &mut byte, segment.bytes().get() - 1)
                .unwrap();
            assert_eq!(byte, [number], "its last byte is in its host copy");
        }
        assert_eq!(self.lease.presence(), Presence::Away);
    }

    /// Waits for so many wishes, and grants the last.
    fn back(&self, wishes: usize, times: usize) {
        let id = self.id();
        self.broker.shared.until("a wish", |book| book.wishes.len() == wishes);
        for segment in &self.segments {
            self.broker.bring_back(SESSION, id, segment.id().get());
        }
        for segment in &self.segments {
            self.reported(&News::RestoredSegmentId(segment.id().get()), times);
        }
        self.broker.answer_wish(id, Update::Resumed(v1::Resumed { lease_id: id, waited_ms: 5 }));
    }

    /// The broker's part of a return, on a thread of its own; the test enters meanwhile.
    async fn enter_while(&self, broker: impl FnOnce() + Send) {
        let entered = std::thread::scope(|scope| {
            let working = scope.spawn(broker);
            let entered = self.lease.entry().wait_at_most(crate::broker::DEADLINE);
            let entered = blocking::Entry::from(entered).enter().map(drop);
            working.join().unwrap();
            entered
        });
        entered.unwrap();
    }

    /// Every segment is full of its number.
    async fn check(&self) {
        let resident = soon("the guard", self.lease.enter()).await.unwrap();
        for (number, segment) in (1_u8..).zip(&self.segments) {
            let bytes = segment.as_slice::<u8>(&resident).unwrap();
            assert!(bytes.iter().all(|byte| *byte == number), "segment {number}");
        }
    }

    async fn addresses(&self) -> Vec<usize> {
        let resident = self.lease.enter().await.unwrap();
        let starts = self.segments.iter().map(|s| s.as_slice::<u8>(&resident).unwrap().as_ptr().addr());
        starts.collect()
    }
}

#[tokio::test]
async fn bytes_and_addresses_outlive_suspensions() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2, 6, 4]).await;
    let before = job.addresses().await;
    for times in 1..=3 {
        job.out(times);
        assert!(job.lease.try_enter().unwrap().is_none());
        job.enter_while(|| job.back(times, times)).await;
        job.check().await;
        assert_eq!(job.addresses().await, before);
    }
    drop(job.segments);
    job.broker.shared.until("all is freed", |book| book.segments.is_empty());
    assert!(job.broker.shared.book().freed_too_early.is_empty());
    assert!(job.client.take_kept_errors().is_empty());
}

#[tokio::test]
async fn a_suspension_waits_for_guards_and_lets_nested_ones_pass() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    let outer = job.lease.enter().await.unwrap();
    job.suspend(MINUTE);
    until("the gate closes", || job.lease.presence() == Presence::Leaving).await;
    let nested = soon("a nested guard", job.lease.enter()).await.unwrap();
    drop(outer);
    assert!(job.broker.shared.book().reports.is_empty(), "a guard lives");
    assert_eq!(job.segments[0].as_slice::<u8>(&nested).unwrap()[0], 1);
    drop(nested);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    assert!(job.lease.try_enter().unwrap().is_none(), "nobody is inside, so nobody passes");
}

#[tokio::test]
async fn a_cancelled_suspension_moved_nothing_and_lets_everybody_in() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.suspend(MINUTE);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    let mut entering = Box::pin(job.lease.enter());
    assert!(poll_once(entering.as_mut()).is_pending());
    job.cancel();
    drop(soon("the guard", entering).await.unwrap());
    job.check().await;
    assert!(job.broker.shared.book().wishes.is_empty(), "nobody had to ask");
    // A suspension that comes after it is as good as any.
    job.broker.shared.change(|book| book.reports.clear());
    job.out(1);
    job.enter_while(|| job.back(1, 1)).await;
    job.check().await;
}

/// Where another session of the process has the memory, its word counts, and this one's would come too early.
#[tokio::test]
async fn a_session_without_memory_of_the_lease_says_nothing() {
    let _guards = GUARDS.lock().await;
    let mut job = Job::start(&[]).await;
    job.suspend(500);
    until("the gate closes", || job.lease.presence() == Presence::Leaving).await;
    until("the gate opens", || job.lease.presence() == Presence::Here).await;
    assert!(job.broker.shared.book().reports.is_empty(), "it has nothing that could drain");
    job.segments.push(job.lease.allocate(mib(2)).await.unwrap());
    job.suspend(MINUTE);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    job.cancel();
}

#[tokio::test]
async fn guards_past_the_deadline_and_a_broker_that_says_nothing_more_open_the_gate_again() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    let resident = job.lease.enter().await.unwrap();
    job.suspend(500);
    until("the gate closes", || job.lease.presence() == Presence::Leaving).await;
    until("the gate opens", || job.lease.presence() == Presence::Here).await;
    assert!(job.broker.shared.book().reports.is_empty(), "it never drained");
    drop(resident);
    job.suspend(1_000);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    drop(soon("the guard", job.lease.enter()).await.unwrap());
    // The word to swap out comes too late now.
    job.swap_out();
    assert!(job.failure().contains("let in again"), "{}", job.failure());
    job.check().await;
}

#[tokio::test]
async fn who_waits_for_its_memory_hears_why_and_no_longer_than_it_wants() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.out(1);
    let (tell, told) = std::sync::mpsc::channel();
    let entry = job.lease.entry().wait_at_most(Duration::from_millis(300)).on_waiting(move |waiting| {
        tell.send(waiting.position).unwrap();
    });
    let error = entry.enter().await.unwrap_err();
    assert_eq!(told.try_recv(), Ok(1));
    assert!(matches!(&error, Error::StillAway { lease, .. } if *lease == job.lease.id()), "{error}");
    assert!(error.to_string().contains("within 300ms"), "{error}");
    // Whoever asks next takes the wait up, and the memory comes.
    job.enter_while(|| job.back(2, 1)).await;
    job.check().await;
}

#[tokio::test]
async fn threads_that_wait_for_the_same_memory_ask_once() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.out(1);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| job.lease.enter_blocking().map(drop))).collect();
        job.back(1, 1);
        for waiting in waiting {
            waiting.join().unwrap().unwrap();
        }
    });
    assert_eq!(job.broker.shared.book().wishes.len(), 1);
}

#[tokio::test]
async fn a_refused_return_is_told_and_the_next_wish_is_free_to_succeed() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.out(1);
    job.broker.shared.change(|book| {
        book.refusal = Some(v1::Denied { reason: "ending".to_owned(), message: "it ends".to_owned() });
    });
    let error = soon("a refusal", job.lease.enter()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(denied) if denied.reason == Reason::Ending), "{error}");
    job.enter_while(|| job.back(2, 1)).await;
    job.check().await;
}

#[tokio::test]
async fn a_changed_byte_fails_that_resume_and_no_other() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2, 4]).await;
    let other = job.client.lease(mib(8)).acquire().await.unwrap();
    let mut healthy = other.allocate(mib(2)).await.unwrap();
    job.out(1);
    let hit = job.segments[1].id();
    job.broker.shared.change(|book| {
        let copy = book.segments[&hit.get()].host_copy.as_ref().unwrap();
        rustix::io::pwrite(copy, &[77], 1_000_000).unwrap();
    });
    let id = job.id();
    let error = std::thread::scope(|scope| {
        let entering = scope.spawn(|| job.lease.enter_blocking().map(drop).unwrap_err());
        job.broker.shared.until("a wish", |book| !book.wishes.is_empty());
        for segment in &job.segments {
            job.broker.bring_back(SESSION, id, segment.id().get());
        }
        entering.join().unwrap()
    });
    assert!(matches!(&error, Error::BytesLost { lease, .. } if *lease == job.lease.id()), "{error}");
    assert!(error.to_string().contains(&format!("segment {hit}")), "{error}");
    assert!(job.failure().contains("check sum"), "{}", job.failure());
    assert!(job.lease.try_enter().is_err());
    assert_eq!(job.lease.presence(), Presence::Lost);
    healthy.as_mut_slice::<u8>(&other.enter().await.unwrap()).unwrap()[0] = 1;
    drop(job.segments);
    job.broker.shared.until("its segments are freed", |book| book.segments.len() == 1);
}

#[tokio::test]
async fn what_cannot_move_stops_the_swap_and_what_left_comes_back_by_itself() {
    let _guards = GUARDS.lock().await;
    let mut job = Job::start(&[2]).await;
    job.broker.shared.change(|book| book.movable = false);
    job.segments.push(job.lease.allocate(mib(2)).await.unwrap());
    job.segments[1].as_mut_slice::<u8>(&job.lease.enter().await.unwrap()).unwrap().fill(2);
    let (moved, stays) = (job.segments[0].id().get(), job.segments[1].id());
    job.suspend(MINUTE);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    job.swap_out();
    assert!(job.failure().contains(&format!("segment {stays} has no host copy")), "{}", job.failure());
    job.reported(&News::SwappedOutSegmentId(moved), 1);
    job.cancel();
    job.broker.bring_back(SESSION, job.id(), moved);
    until("the gate opens", || job.lease.presence() == Presence::Here).await;
    assert!(job.broker.shared.book().wishes.is_empty(), "nobody had to ask");
    job.check().await;
}

#[tokio::test]
async fn what_is_half_back_leaves_again_when_told() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2, 4]).await;
    job.out(1);
    let half = job.segments[0].id().get();
    job.enter_while(|| {
        job.broker.shared.until("a wish", |book| book.wishes.len() == 1);
        job.broker.bring_back(SESSION, job.id(), half);
        job.reported(&News::RestoredSegmentId(half), 1);
        job.swap_out();
        job.reported(&News::SwappedOutSegmentId(half), 2);
        assert!(!still_in_use(&job.broker.shared.book().segments[&half]));
        job.broker.bring_back(SESSION, job.id(), half);
        job.reported(&News::RestoredSegmentId(half), 2);
        let other = job.segments[1].id().get();
        job.broker.bring_back(SESSION, job.id(), other);
        job.reported(&News::RestoredSegmentId(other), 1);
        let resumed = v1::Resumed { lease_id: job.id(), waited_ms: 5 };
        job.broker.answer_wish(job.id(), Update::Resumed(resumed));
    })
    .await;
    job.check().await;
    assert_eq!(job.broker.shared.book().wishes.len(), 1);
}

#[tokio::test]
async fn a_segment_dropped_while_it_is_away_gives_its_host_copy_back() {
    let _guards = GUARDS.lock().await;
    let mut job = Job::start(&[2, 2]).await;
    job.out(1);
    let dropped = job.segments.pop().unwrap();
    let id = dropped.id().get();
    let copy = job.broker.shared.book().segments[&id].host_copy.as_ref().unwrap().try_clone().unwrap();
    assert!(is_used(&copy));
    soon("the free", dropped.free()).await.unwrap();
    assert!(!is_used(&copy));
    assert!(!job.broker.shared.book().segments.contains_key(&id));
    job.enter_while(|| job.back(1, 1)).await;
    job.check().await;
}

#[tokio::test]
async fn memory_taken_in_a_lease_that_is_away_brings_it_home_first() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.out(1);
    let (asked, taken) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| crate::runtime().block_on(job.lease.allocate(mib(2))));
        job.broker.shared.until("a wish", |book| book.wishes.len() == 1);
        let asked = job.broker.shared.book().allocates.len();
        job.back(1, 1);
        (asked, asking.join().unwrap().unwrap())
    });
    assert_eq!(asked, 1, "only then");
    drop(taken);
    job.check().await;
}

/// The broker gives notice once. A claim that fails, since the broker stood still or somebody had no descriptors left, is put
/// again with the same ticket.
#[tokio::test]
async fn descriptors_that_do_not_come_are_claimed_again() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.out(1);
    job.broker.shared.change(|book| {
        (book.handover, book.claims) = (crate::broker::HandOver::RefuseTicket, 0);
    });
    let segment = job.segments[0].id().get();
    job.enter_while(|| {
        job.broker.shared.until("a wish", |book| book.wishes.len() == 1);
        job.broker.bring_back(SESSION, job.id(), segment);
        job.broker.shared.until("the ticket was refused twice", |book| book.refused_tickets > 1);
        job.broker.shared.change(|book| book.handover = crate::broker::HandOver::Right);
        job.reported(&News::RestoredSegmentId(segment), 1);
        job.broker.answer_wish(job.id(), Update::Resumed(v1::Resumed { lease_id: job.id(), waited_ms: 5 }));
    })
    .await;
    job.check().await;
    // The same notice once more, as after a rejoin: it is reported again, and nothing moves.
    job.broker.shared.change(|book| book.reports.clear());
    job.broker.bring_back(SESSION, job.id(), job.segments[0].id().get());
    job.reported(&News::RestoredSegmentId(job.segments[0].id().get()), 1);
    job.check().await;
}

#[tokio::test]
async fn a_broker_that_comes_back_is_asked_again_and_one_that_forgot_is_told_apart() {
    let _guards = GUARDS.lock().await;
    let mut job = Job::start(&[2]).await;
    job.out(1);
    let standing = v1::LeaseStanding {
        lease_id: job.id(),
        state: "suspended".to_owned(),
        away_segment_ids: vec![job.segments[0].id().get()],
    };
    job.broker.shared.change(|book| book.standings = vec![standing]);
    std::thread::scope(|scope| {
        let entering = scope.spawn(|| job.lease.enter_blocking().map(drop));
        job.broker.shared.until("a wish", |book| book.wishes.len() == 1);
        job.broker.kill();
        job.broker.serve();
        job.broker.shared.until("it rejoins", |book| book.rejoined == 1);
        job.broker.shared.until("it wishes again", |book| book.wishes.len() == 2);
        let id = job.lease.id().get();
        let segment = job.segments[0].id().get();
        job.broker.bring_back(SESSION, id, segment);
        job.broker
            .shared
            .until("it is back", |book| book.reports.contains(&(id, News::RestoredSegmentId(segment))));
        job.broker.answer_wish(id, Update::Resumed(v1::Resumed { lease_id: id, waited_ms: 5 }));
        entering.join().unwrap().unwrap();
    });
    job.check().await;
    job.broker.shared.change(|book| book.reports.clear());
    job.out(1);
    job.broker.kill();
    job.broker.forget();
    job.broker.serve();
    let error = soon("the loss", job.lease.enter()).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[tokio::test]
async fn a_suspension_that_the_broker_has_dropped_meanwhile_ends_at_the_rejoin() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.suspend(MINUTE);
    job.reported(&News::Drained(v1::Nothing {}), 1);
    job.broker.break_streams();
    job.check().await;
    assert_eq!(job.broker.shared.book().rejoined, 1);
}

#[tokio::test]
async fn a_lease_without_guards_is_reported_idle_once_and_busy_at_the_next() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    broker.shared.change(|book| (book.movable, book.idle_after_ms) = (true, 50));
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let resident = lease.enter().await.unwrap();
    let _segment = lease.allocate(mib(2)).await.unwrap();
    drop(resident);
    let idle = |news: &News| matches!(news, News::IdleForMs(ms) if *ms >= 50);
    broker.shared.until("idle", |book| book.reports.iter().any(|(_, news)| idle(news)));
    drop(lease.enter().await.unwrap());
    broker.shared.until("busy, and idle again", |book| book.reports.len() == 3);
    let reports: Vec<News> = broker.shared.book().reports.iter().map(|(_, news)| news.clone()).collect();
    assert!(idle(&reports[0]) && matches!(reports[1], News::Busy(_)) && idle(&reports[2]), "{reports:?}");
}

#[tokio::test]
async fn a_pinned_lease_gives_its_host_copies_back() {
    let _guards = GUARDS.lock().await;
    let job = Job::start(&[2]).await;
    job.lease.pin().await.unwrap();
    assert_eq!(job.broker.shared.book().pins, [job.id()]);
    let segment = job.segments[0].id().get();
    job.tell(Message::Pinned(v1::Pinned { lease_id: job.id() }));
    until("its host copy is unmapped", || {
        let book = job.broker.shared.book();
        !is_used(book.segments[&segment].host_copy.as_ref().unwrap())
    })
    .await;
    job.broker.shared.change(|book| {
        book.refusal = Some(v1::Denied { reason: "pinned_full".to_owned(), message: "full".to_owned() });
    });
    let error = job.lease.pin().await.unwrap_err();
    assert_eq!(error.denied().unwrap().reason, Reason::PinnedFull);
}

#[tokio::test]
async fn spare_memory_is_taken_again_and_given_back_before_the_program_is_bothered() {
    let _guards = GUARDS.lock().await;
    let mut job = Job::start(&[2, 4, 2]).await;
    let mut pressure = job.lease.pressure();
    let (second, first) = (job.segments.remove(1), job.segments.remove(0));
    let (small, large) = (first.id().get(), second.id().get());
    first.spare();
    let again = job.lease.allocate(mib(1)).await.unwrap();
    assert_eq!(again.id().get(), small, "one of that size is here");
    again.spare();
    second.spare();
    let recall = |bytes| {
        Message::Recall(v1::RecallNotice {
            lease_id: job.id(),
            device_index: 0,
            bytes,
            deadline_in_ms: MINUTE,
        })
    };
    job.tell(recall(4 << 20));
    job.broker.shared.until("the largest is given back", |book| !book.segments.contains_key(&large));
    assert!(job.broker.shared.book().segments.contains_key(&small));
    let (tell, told) = std::sync::mpsc::channel();
    let listener = job.lease.on_pressure(move |recall| tell.send(recall.bytes).unwrap()).unwrap();
    job.tell(recall(6 << 20));
    assert_eq!(
        soon("the rest", pressure.next()).await.unwrap().bytes,
        mib(4),
        "nothing was said of the first"
    );
    assert_eq!(told.recv_timeout(crate::broker::DEADLINE), Ok(mib(4)));
    job.broker.shared.until("the other, too", |book| !book.segments.contains_key(&small));
    drop(listener);
    assert!(told.recv().is_err(), "nobody is called any more");
    // A suspension copies nothing that nobody needs, and the last handle gives everything back.
    job.segments.remove(0).spare();
    job.suspend(MINUTE);
    job.broker.shared.until("all is given back", |book| book.segments.is_empty());
    job.cancel();
    drop(soon("the guard", job.lease.enter()).await.unwrap());
    job.lease.allocate(mib(2)).await.unwrap().spare();
    let Job { broker, lease, .. } = job;
    drop(lease);
    broker.shared.until("all is given back", |book| book.is_clear());
    assert!(broker.shared.book().freed_too_early.is_empty());
}

#[tokio::test]
async fn an_ended_lease_opens_what_is_here_and_wakes_who_waits_for_what_is_away() {
    let _guards = GUARDS.lock().await;
    let job = Arc::new(Job::start(&[2]).await);
    job.out(1);
    let entering = tokio::spawn({
        let job = Arc::clone(&job);
        async move { job.lease.enter().await.map(drop) }
    });
    until("a wish", || !job.broker.shared.book().wishes.is_empty()).await;
    let (reason, message) = ("ended".to_owned(), "an operator ended it".to_owned());
    job.tell(Message::LeaseEnded(v1::LeaseEnded { lease_id: job.id(), reason, message }));
    let error = soon("the end", entering).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("an operator ended it"), "{error}");
}
