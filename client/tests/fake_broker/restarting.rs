//! Streams that break, and brokers that go and come back.

use std::time::Duration;

use gpulease_client::{AskError, Client, Error, Options, Standing, mib};

use crate::broker::Broker;
use crate::{GUARDS, connect, poll_once, soon, until};

#[tokio::test]
async fn a_broken_stream_is_taken_up_again_by_itself() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    broker.break_streams();
    broker.shared.until("the session is taken up", |book| book.rejoined == 1 && book.streams.len() == 1);
    assert_eq!(broker.shared.book().sessions.len(), 1);
    assert_eq!(lease.standing(), Standing::Active);
    drop(soon("memory", lease.allocate(mib(2))).await.unwrap());
}

#[tokio::test]
async fn a_broker_that_comes_back_knowing_us_is_as_before_and_an_ask_keeps_its_name() {
    let _guards = GUARDS.lock().await;
    let mut broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let mut segment = lease.allocate(mib(2)).await.unwrap();
    let mut ask = Box::pin(client.lease(mib(8)).name("wait").acquire());
    until("it waits", || {
        assert!(poll_once(ask.as_mut()).is_pending());
        broker.shared.book().asks.len() == 2
    })
    .await;
    broker.kill();
    // What is mapped keeps working.
    segment.as_mut_slice::<u8>(&lease.enter().await.unwrap()).unwrap()[0] = 7;
    broker.serve();
    until("it waits again", || {
        assert!(poll_once(ask.as_mut()).is_pending());
        let book = broker.shared.book();
        book.rejoined > 0
            && book.asks.values().any(|ask| {
                ask.lease.is_none() && ask.updates.as_ref().is_some_and(|updates| !updates.is_closed())
            })
    })
    .await;
    assert_eq!(broker.shared.book().asks.len(), 2, "under the same name");
    broker.shared.change(|book| {
        let key = *book.asks.iter().find(|(_, ask)| ask.lease.is_none()).unwrap().0;
        book.grant(key);
    });
    drop(soon("the grant", ask).await.unwrap());
    soon("the free", segment.free()).await.unwrap();
    drop(lease);
    broker.shared.until("everything is given back", |book| book.is_clear());
}

#[tokio::test]
async fn a_broker_that_does_not_know_us_loses_the_leases_and_not_the_memory() {
    let _guards = GUARDS.lock().await;
    let mut broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let mut pressure = lease.pressure();
    let mut segment = lease.allocate(mib(2)).await.unwrap();
    broker.kill();
    broker.forget();
    broker.serve();
    assert_eq!(soon("the loss", pressure.next()).await, None);
    assert_eq!(lease.standing(), Standing::Lost);
    let error = soon("an error", lease.allocate(mib(2))).await.unwrap_err();
    assert!(matches!(error, AskError::Failed(Error::Lost { lease: id }) if id == lease.id()), "{error}");
    {
        let resident = lease.enter().await.unwrap();
        segment.as_mut_slice::<u8>(&resident).unwrap().fill(1);
    }
    let fresh = soon("a new lease", client.lease(mib(8)).acquire()).await.unwrap();
    drop(soon("memory", fresh.allocate(mib(2))).await.unwrap());
    drop((segment, lease, fresh));
    broker.shared.until("everything is given back", |book| book.is_clear() && book.released.len() == 1);
    assert!(client.take_kept_errors().is_empty());
}

#[tokio::test]
async fn a_broker_that_stays_away_is_waited_for_and_then_told() {
    let mut broker = Broker::start();
    let options = Options::default().socket(broker.socket()).broker_wait(Duration::from_millis(200));
    let client = Client::connect_with(options).await.unwrap();
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    broker.kill();
    let started = std::time::Instant::now();
    let error = soon("an error", client.lease(mib(8)).acquire()).await.unwrap_err();
    assert!(started.elapsed() >= Duration::from_millis(200), "it is waited for");
    assert!(matches!(error, AskError::Failed(Error::Gone { .. })), "{error}");
    let error = soon("an error", lease.allocate(mib(2))).await.unwrap_err();
    assert!(matches!(error, AskError::Failed(Error::Gone { .. })), "{error}");
    // What is owed is told when it is back.
    let id = lease.id().get();
    drop(lease);
    broker.serve();
    broker.shared.until("the release", |book| book.released == [id]);
}

#[tokio::test]
async fn an_allocate_cut_off_by_the_broker_is_withdrawn_and_put_again_when_it_is_back() {
    let mut broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    broker.shared.change(|book| book.allocations_wait = true);
    let mut ask = Box::pin(lease.allocate(mib(2)));
    until("it waits", || {
        assert!(poll_once(ask.as_mut()).is_pending());
        broker.shared.book().allocates_waiting.len() == 1
    })
    .await;
    broker.kill();
    broker.shared.change(|book| book.allocations_wait = false);
    broker.serve();
    drop(soon("memory", ask).await.unwrap());
    let names: Vec<u64> = broker.shared.book().allocates.iter().map(|allocate| allocate.ask_name).collect();
    assert_eq!(names.len(), 2);
    assert_ne!(names[0], names[1]);
    assert_eq!(broker.shared.book().withdrawn, names[..1]);
}
