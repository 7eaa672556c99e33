//! What is not a broker, and what the broker does while we are connected.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use gpulease_client::proto::{RecallNotice, session_message::Message};
use gpulease_client::{Client, DeviceId, Error, mib};

use crate::broker::Broker;
use crate::{connect, soon};

#[tokio::test]
async fn somebody_else_at_the_socket_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gpulease.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    let error = soon("an error", Client::connect_to(&socket)).await.unwrap_err();
    web.join().unwrap();
    assert!(matches!(error, Error::NotABroker { .. }), "{error}");
    let error = soon("an error", Client::connect_to(folder.path().join("none.sock"))).await.unwrap_err();
    assert!(matches!(error, Error::NoBroker { .. }), "{error}");
    assert!(error.to_string().contains("start one with `gpuleased`"), "{error}");
}

#[tokio::test]
async fn a_recall_reaches_the_lease_and_its_handles() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let session = *broker.shared.book().sessions.keys().next().unwrap();
    let (mut here, mut there) = (lease.pressure(), lease.pressure());
    let notice = RecallNotice {
        lease_id: lease.id().get(),
        device_index: 0,
        bytes: 4 << 20,
        deadline_in_ms: u64::MAX,
    };
    broker.tell(session, Message::Recall(notice));
    let recall = soon("the notice", here.next()).await.unwrap();
    assert_eq!((recall.device, recall.bytes), (DeviceId::new(0), mib(4)));
    assert_eq!(soon("the notice", there.next()).await, Some(recall));
    assert_eq!(here.try_next(), None);
    drop(lease);
    assert_eq!(soon("the end", here.next()).await, None);
}

#[tokio::test]
async fn an_ended_lease_says_so() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let session = *broker.shared.book().sessions.keys().next().unwrap();
    let mut pressure = lease.pressure();
    let ended = gpulease_client::proto::LeaseEnded {
        lease_id: lease.id().get(),
        reason: "withdrawn".to_owned(),
        message: "an operator ended it".to_owned(),
    };
    broker.tell(session, Message::LeaseEnded(ended));
    assert_eq!(soon("the end", pressure.next()).await, None);
    assert_eq!(
        lease.standing(),
        gpulease_client::Standing::Ended {
            reason: "withdrawn".to_owned(),
            message: "an operator ended it".to_owned()
        }
    );
    assert_eq!(soon("the end", lease.pressure().next()).await, None);
}
