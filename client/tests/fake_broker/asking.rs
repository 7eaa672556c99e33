//! Acquiring, waiting, withdrawing, releasing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpulease_client::proto::{LeaseSizes, session_message::Message};
use gpulease_client::{AskError, Bytes, Error, Pid, Reason, blocking, gib, mib};

use crate::broker::Broker;
use crate::{GUARDS, connect, dropped_after, poll_once, soon};

/// More than fit on two connections.
const MANY: usize = 150;

#[tokio::test]
async fn a_grant_brings_the_lease_and_its_drop_releases_it() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    assert_eq!(client.devices().len(), 1);
    assert_eq!(client.devices()[0].capacity, gib(1));
    let lease = soon("the grant", client.lease(mib(8)).up_to(mib(16)).name("train").acquire()).await.unwrap();
    assert_eq!((lease.reserve(), lease.limit(), lease.name()), (mib(8), mib(16), "train"));
    assert_eq!(lease.waited(), Duration::from_millis(3));
    let id = lease.id().get();
    drop(lease);
    broker.shared.until("the release", |book| book.released == [id]);
}

/// The broker takes back a grant whose stream broke, unless the lease is used soon.
#[tokio::test]
async fn a_granted_ask_is_read_to_its_end() {
    let broker = Broker::start();
    broker.shared.change(|book| book.ends_are_put_off = true);
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    // Time, over the same connection, for a broken stream to be noticed.
    for _ in 0..5 {
        lease.allocate(mib(2)).await.unwrap().free().await.unwrap();
    }
    broker.shared.change(|book| book.ends.clear());
    broker.shared.until("the end is read", |book| book.ended_asks.len() == 1);
    drop(lease);
}

#[tokio::test]
async fn a_withdrawal_that_overtakes_its_ask_is_said_again() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let (open, gate) = tokio::sync::watch::channel(false);
    broker.shared.change(|book| book.gate = Some(gate));
    let mut ask = Box::pin(client.lease(mib(8)).name("wait").acquire());
    crate::until("it arrives", || {
        assert!(poll_once(ask.as_mut()).is_pending());
        broker.shared.book().acquires_at_the_gate == 1
    })
    .await;
    drop(ask);
    broker.shared.until("the withdrawal meets nothing", |book| book.withdrawn.len() == 1);
    open.send(true).unwrap();
    broker.shared.until("it is taken in and withdrawn", |book| {
        book.is_clear() && book.ended_asks.len() + book.broken_asks.len() == 1
    });
    assert!(broker.shared.book().withdrawn.len() > 1);
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_is_no_failure() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let error = client.lease(mib(8)).name("deny me").acquire().await.unwrap_err();
    let denied = error.denied().unwrap();
    assert_eq!(denied.reason, Reason::OverBudget);
    assert!(error.to_string().contains("the fake says over_budget"), "{error}");
    assert!(broker.shared.book().withdrawn.is_empty(), "what was refused is not withdrawn");
}

#[tokio::test]
async fn an_acquire_given_up_at_any_step_leaves_nothing_behind() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    for name in ["train", "wait"] {
        let (mut steps, mut granted) = (0, false);
        while !granted && steps < 40 {
            let lease = dropped_after(steps, client.lease(mib(8)).name(name).acquire()).await;
            granted = lease.is_some();
            drop(lease);
            broker.shared.until("everything is given back", |book| book.is_clear());
            steps += 1;
        }
        assert_eq!(granted, name == "train", "after {steps} steps");
    }
}

#[tokio::test]
async fn a_grant_that_crosses_the_withdrawal_is_given_back() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let mut ask = Box::pin(client.lease(mib(8)).name("wait").acquire());
    while broker.shared.book().asks.is_empty() {
        assert!(poll_once(ask.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    // Granted, and never polled again: the grant lies in the client's socket when the ask is dropped.
    broker.shared.change(|book| {
        let key = *book.asks.keys().next().unwrap();
        book.grant(key);
    });
    drop(ask);
    broker.shared.until("the lease is given back", |book| book.is_clear() && !book.withdrawn.is_empty());
}

#[tokio::test]
async fn waiting_asks_never_hold_up_a_release_and_all_reach_the_broker() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).name("train").acquire().await.unwrap();
    let updates = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..MANY)
        .map(|_| {
            let (client, updates) = (client.clone(), Arc::clone(&updates));
            tokio::spawn(async move {
                let count = |waiting: &gpulease_client::Waiting| {
                    assert_eq!(waiting.position, 1);
                    updates.fetch_add(1, Ordering::SeqCst);
                };
                client.lease(mib(8)).name("wait").on_waiting(count).acquire().await
            })
        })
        .collect();
    crate::until("all of them wait", || updates.load(Ordering::SeqCst) == MANY).await;
    assert_eq!(soon("the release", lease.release()).await.unwrap(), mib(0));
    broker.shared.change(|book| {
        let waiting: Vec<_> = book.asks.keys().copied().collect();
        waiting.into_iter().for_each(|key| book.grant(key));
    });
    for ask in waiting {
        drop(soon("the grant", ask).await.unwrap().unwrap());
    }
    broker.shared.until("everything is given back", |book| book.is_clear());
}

#[tokio::test]
async fn a_resize_takes_what_the_broker_made_of_it() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    lease.resize(mib(3), mib(32)).await.unwrap();
    assert_eq!((lease.reserve(), lease.limit()), (mib(4), mib(32)));
}

/// A member went by the limit of the day it joined.
#[tokio::test]
async fn sizes_that_another_process_changed_are_heard_at_once_and_after_a_break() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let session = *broker.shared.book().sessions.keys().next().unwrap();
    let to = |limit: Bytes| LeaseSizes {
        lease_id: lease.id().get(),
        reserve_bytes: mib(2).get(),
        limit_bytes: limit.get(),
    };
    let heard = async |limit: Bytes| {
        while (lease.reserve(), lease.limit()) != (mib(2), limit) {
            tokio::task::yield_now().await;
        }
    };
    broker.tell(session, Message::Resized(to(mib(32))));
    soon("the notice", heard(mib(32))).await;
    broker.shared.change(|book| book.sizes = vec![to(mib(64))]);
    broker.break_streams();
    soon("what the rejoin says", heard(mib(64))).await;
}

#[tokio::test]
async fn a_child_joins_by_the_environment_and_another_is_refused() {
    let broker = Broker::start();
    let (owner, member) = (connect(&broker).await, connect(&broker).await);
    let lease = owner.lease(mib(8)).acquire().await.unwrap();
    let environment = lease.env();
    assert_eq!(environment[0], ("GPULEASE_SOCKET", broker.socket().into()));
    assert_eq!(environment[1].1.to_str(), Some(lease.id().get().to_string().as_str()));
    assert_eq!(environment[3], ("GPULEASE_MEMORY_BYTES", (16 << 20).to_string().into()));
    let token = environment[2].1.to_str().unwrap().parse().unwrap();
    let joined = member.join(lease.id(), token).await.unwrap();
    assert_eq!((joined.id(), joined.name(), joined.limit()), (lease.id(), "joined", mib(16)));
    drop(joined);
    let wrong = gpulease_client::Token::new([8; 16]);
    let error = member.join(lease.id(), wrong).await.unwrap_err();
    assert_eq!(error.denied().unwrap().reason, Reason::NoSuchLease);
    owner.admit(&lease, Pid::new(1)).await.unwrap();
    assert!(matches!(owner.admit(&lease, Pid::new(0)).await, Err(AskError::Denied(_))));
    let id = lease.id().get();
    soon("the release", lease.release()).await.unwrap();
    assert_eq!(broker.shared.book().released, [id], "a member's handle does not give the lease back");
}

#[tokio::test]
async fn the_last_handle_closes_the_session() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let segment = lease.allocate(mib(2)).await.unwrap();
    drop(client);
    drop(lease);
    assert!(broker.shared.book().closed.is_empty());
    drop(segment);
    broker.shared.until("the session is closed", |book| book.closed.len() == 1 && book.is_clear());
}

#[test]
fn blocking_callers_need_no_runtime_and_mind_none() {
    let broker = Broker::start();
    let work = || {
        let client = blocking::Client::connect_to(broker.socket()).unwrap();
        let lease = client.lease(mib(8)).acquire().unwrap();
        let segment = lease.allocate(mib(4)).unwrap();
        segment.free().unwrap();
        lease.release().unwrap();
    };
    work();
    tokio::runtime::Runtime::new().unwrap().block_on(async { work() });
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { work() });
    assert!(broker.shared.book().is_clear());
}

#[tokio::test]
async fn an_allocate_given_up_at_any_step_leaves_nothing_behind() {
    let _no_forks = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    for waits in [false, true] {
        broker.shared.change(|book| book.allocations_wait = waits);
        let (mut steps, mut taken) = (0, false);
        while !taken && steps < 40 {
            let segment = dropped_after(steps, lease.allocate(mib(4))).await;
            taken = segment.is_some();
            drop(segment);
            broker.shared.until("everything is given back", |book| {
                book.segments.is_empty() && book.allocates_waiting.is_empty()
            });
            steps += 1;
        }
        assert_eq!(taken, !waits, "after {steps} steps");
    }
    assert!(broker.shared.book().freed_too_early.is_empty());
}

#[tokio::test]
async fn waiting_allocates_never_hold_up_a_free() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = Arc::new(client.lease(mib(8)).acquire().await.unwrap());
    let segment = lease.allocate(mib(2)).await.unwrap();
    broker.shared.change(|book| book.allocations_wait = true);
    let waiting: Vec<_> = (0..MANY)
        .map(|_| {
            let lease = Arc::clone(&lease);
            tokio::spawn(async move { lease.allocate(mib(2)).await })
        })
        .collect();
    crate::until("all of them wait", || broker.shared.book().allocates_waiting.len() == MANY).await;
    soon("the free", segment.free()).await.unwrap();
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    // Not blocking, since the tasks are dropped by this thread.
    crate::until("all of them are withdrawn", || broker.shared.book().allocates_waiting.is_empty()).await;
}

#[tokio::test]
async fn a_wait_with_an_end_has_one_although_the_broker_says_nothing() {
    let broker = Broker::start();
    let options = gpulease_client::Options::default().socket(broker.socket());
    let options = options.broker_wait(Duration::from_millis(100));
    let client = gpulease_client::Client::connect_with(options).await.unwrap();
    let ask = client.lease(mib(8)).name("wait").wait_at_most(Duration::from_millis(50));
    let error = soon("an end", ask.acquire()).await.unwrap_err();
    assert!(matches!(error, AskError::Failed(Error::Silent { .. })), "{error}");
    broker.shared.until("it is withdrawn", |book| book.is_clear());
}

#[tokio::test]
async fn an_ask_waits_for_what_was_freed_before_it_only_where_it_may_need_that() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).up_to(mib(16)).acquire().await.unwrap();
    let freed = lease.allocate(mib(2)).await.unwrap();
    let (open, gate) = tokio::sync::watch::channel(false);
    broker.shared.change(|book| book.gate_of_frees = Some(gate));
    drop(freed);
    let fits = soon("what fits beside it", lease.allocation(mib(6)).no_wait().allocate()).await.unwrap();
    let mut more = Box::pin(lease.allocation(mib(2)).no_wait().allocate());
    for _ in 0..3 {
        assert!(poll_once(more.as_mut()).is_pending());
        // A round trip over the same connection.
        client.admit(&lease, Pid::new(1)).await.unwrap();
    }
    assert_eq!(broker.shared.book().allocates.len(), 2, "one that may need the freed bytes waits");
    open.send(true).unwrap();
    soon("the answer after the free", more).await.unwrap();
    drop(fits);
}

/// Other members may have what this process does not know of.
#[tokio::test]
async fn an_ask_that_went_ahead_of_a_free_and_was_refused_is_put_again_after_it() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).up_to(mib(16)).acquire().await.unwrap();
    let freed = lease.allocate(mib(2)).await.unwrap();
    let (open, gate) = tokio::sync::watch::channel(false);
    broker.shared.change(|book| (book.gate_of_frees, book.refused_from) = (Some(gate), 4 << 20));
    drop(freed);
    let mut large = Box::pin(lease.allocation(mib(4)).no_wait().allocate());
    crate::until("it is put", || {
        assert!(poll_once(large.as_mut()).is_pending());
        broker.shared.book().allocates.len() == 2
    })
    .await;
    open.send(true).unwrap();
    let error = soon("the second answer", large).await.unwrap_err();
    assert_eq!(error.denied().map(|denied| denied.reason), Some(Reason::BeyondLease));
    assert_eq!(broker.shared.book().allocates.len(), 3);
}
