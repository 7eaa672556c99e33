//! Guards.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use gpulease_client::{AccessError, blocking, mib};

use crate::broker::Broker;
use crate::{GUARDS, connect};

#[tokio::test]
async fn guards_nest_on_one_thread_and_on_several() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = Arc::new(client.lease(mib(8)).acquire().await.unwrap());
    let outer = lease.enter().await.unwrap();
    let inner = lease.try_enter().unwrap().expect("a nested guard passes");
    let together = Arc::new(Barrier::new(3));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (lease, together) = (Arc::clone(&lease), Arc::clone(&together));
            std::thread::spawn(move || {
                let resident = lease.enter_blocking().unwrap();
                together.wait();
                resident.lease()
            })
        })
        .collect();
    together.wait();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), lease.id());
    }
    // A guard may go to another thread.
    std::thread::scope(|scope| {
        scope.spawn(move || drop(outer));
    });
    drop(inner);
}

#[tokio::test]
async fn a_guard_of_another_lease_is_refused_by_name() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let (mine, other) =
        (client.lease(mib(8)).acquire().await.unwrap(), client.lease(mib(8)).acquire().await.unwrap());
    let segment = mine.allocate(mib(2)).await.unwrap();
    let resident = other.enter().await.unwrap();
    let error = segment.as_slice::<u8>(&resident).unwrap_err();
    assert_eq!(error, AccessError::OtherLease { segment: segment.id(), lease: mine.id(), guard: other.id() });
    assert!(error.to_string().contains(&format!("enter lease {}", mine.id())), "{error}");
}

#[tokio::test]
async fn two_handles_of_one_lease_share_their_guards() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let joined = client.join(lease.id(), lease.token()).await.unwrap();
    let segment = lease.allocate(mib(2)).await.unwrap();
    assert!(segment.as_slice::<u8>(&joined.enter().await.unwrap()).is_ok());
}

#[tokio::test]
async fn an_allocate_says_whether_any_thread_is_inside_a_guard() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let (lease, other) =
        (client.lease(mib(8)).acquire().await.unwrap(), client.lease(mib(8)).acquire().await.unwrap());
    drop(lease.allocate(mib(2)).await.unwrap());
    let lease = blocking::Lease::from(lease);
    std::thread::scope(|scope| {
        let (entered, enter) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let _resident = other.enter_blocking().unwrap();
            entered.send(()).unwrap();
            left.recv().unwrap();
        });
        enter.recv().unwrap();
        drop(lease.allocation(mib(2)).wait_at_most(Duration::from_secs(1)).allocate().unwrap());
        leave.send(()).unwrap();
    });
    drop(lease.allocation(mib(2)).no_wait().allocate().unwrap());
    let book = broker.shared.book();
    let inside: Vec<bool> = book.allocates.iter().map(|allocate| allocate.inside_guard).collect();
    assert_eq!(inside, [false, true, false]);
}
