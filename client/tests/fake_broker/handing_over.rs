//! Descriptors that come, and those that do not.

use gpulease_client::{AccessError, AskError, Error, HandOverError, Reason, mib};

use crate::broker::{Broker, HandOver};
use crate::{GUARDS, connect, soon};

#[tokio::test]
async fn memory_is_what_the_broker_has_and_is_unmapped_before_the_free() {
    let _guards = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let mut segment = lease.allocate(mib(3)).await.unwrap();
    assert_eq!(segment.bytes(), mib(4));
    {
        let resident = lease.enter().await.unwrap();
        let words = segment.as_mut_slice::<u32>(&resident).unwrap();
        assert_eq!(words.len(), 1 << 20);
        // On both sides of the border between its two chunks.
        words[(1 << 19) - 1] = 1;
        words[1 << 19] = 2;
        assert_eq!(segment.as_slice::<u32>(&resident).unwrap()[(1 << 19) - 1..=1 << 19], [1, 2]);
        assert!(matches!(segment.device_ptr(&resident), Err(AccessError::OtherKind { .. })));
        assert!(matches!(segment.as_slice::<()>(&resident), Err(AccessError::Layout { .. })));
    }
    broker.shared.change(|book| {
        let (chunk, _) = &book.segments[&segment.id().get()].chunks[1];
        let mut word = [0; 4];
        rustix::io::pread(chunk, &mut word, 0).unwrap();
        assert_eq!(u32::from_ne_bytes(word), 2);
    });
    let second = lease.allocate(mib(2)).await.unwrap();
    soon("the free", segment.free()).await.unwrap();
    drop(second);
    broker.shared.until("both are freed", |book| book.segments.is_empty());
    assert!(broker.shared.book().freed_too_early.is_empty());
}

#[tokio::test]
async fn what_does_not_arrive_is_given_back_before_the_error_is_told() {
    let _no_forks = GUARDS.lock().await;
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let failed = async |handover| {
        broker.shared.change(|book| book.handover = handover);
        let error = soon("an error", lease.allocate(mib(4))).await.unwrap_err();
        let book = broker.shared.book();
        assert!(book.segments.is_empty(), "given back");
        assert!(book.freed_too_early.is_empty(), "with all of its descriptors closed");
        match error {
            AskError::Failed(Error::HandOver(error)) => error,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(failed(HandOver::RefuseTicket).await, HandOverError::Refused(_)));
    let one_too_few = failed(HandOver::OneTooFew).await;
    assert!(matches!(one_too_few, HandOverError::Count { chunks: 2, descriptors: 1 }), "{one_too_few}");
    let one_too_many = failed(HandOver::OneTooMany).await;
    assert!(matches!(one_too_many, HandOverError::Count { chunks: 2, descriptors: 3 }), "{one_too_many}");
    let larger = failed(HandOver::Larger).await;
    assert!(matches!(larger, HandOverError::Size { asked, came } if asked == mib(4) && came == mib(8)));
    broker.shared.change(|book| book.handover = HandOver::Right);
    drop(lease.allocate(mib(4)).await.unwrap());
}

#[tokio::test]
async fn a_refused_allocate_is_no_failure_and_a_wrong_device_is_not_even_asked_for() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let error = lease.allocate(mib(32)).await.unwrap_err();
    assert_eq!(error.denied().unwrap().reason, Reason::BeyondLease);
    let error = lease.allocate_on(gpulease_client::DeviceId::new(3), mib(2)).await.unwrap_err();
    assert_eq!(error.denied().unwrap().reason, Reason::NoSuchDevice);
    assert!(error.to_string().contains("on device 0, not on 3"), "{error}");
    let error = lease.allocation(mib(2)).cuda_ipc().allocate().await;
    drop(error);
    assert_eq!(broker.shared.book().allocates.len(), 2);
}
