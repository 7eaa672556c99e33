//! Bytes that are no protocol, and requests that make no sense.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gpulease_proto::handover::{Reply, Request, Ticket};
use gpulease_proto::v1::{self, acquire_request::Devices, acquire_update::Update};
use gpulease_tests::daemon::PATIENCE;
use gpulease_tests::dice::Dice;
use gpulease_tests::wire::{HandOver, Wire, granted};
use gpulease_words::mib;
use tonic::{Code, Request as Asked};

use super::{Scene, session, wait_for};

/// Sends bytes to the job socket and waits for the end of the connection.
fn sent_to_jobs(scene: &Scene, bytes: &[u8]) -> Vec<u8> {
    let mut socket = UnixStream::connect(scene.daemon.socket()).expect("the daemon listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    // It may hang up before it has read all.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("the daemon keeps a connection that makes no sense: {error}"),
    }
}

#[test]
fn garbage_on_the_job_socket_is_hung_up_on() {
    let scene = Scene::new("");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut dice = Dice::new(1);
    let noise: Vec<u8> = (0..100_000).map(|_| dice.below(256) as u8).collect();
    let framed = [&preface[..], &noise[..]].concat();
    // A frame that says it is 16 MiB long, and headers that never end.
    let huge = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &noise[..]].concat();
    let endless = [&preface[..], &[0, 0, 4, 1, 0, 0, 0, 0, 1], &noise[..4], &noise[..]].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"",
        b"\0",
        b"GPL1",
        &preface[..10],
        preface,
        &noise,
        &framed,
        &huge,
        &endless,
    ] {
        sent_to_jobs(&scene, bytes);
        scene.serves_the_honest();
    }
    scene.ends_well();
}

#[test]
fn who_says_nothing_is_hung_up_on() {
    let scene = Scene::new("");
    let mut silent = UnixStream::connect(scene.daemon.socket()).expect("the daemon listens");
    silent.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).expect("the daemon hangs up in the end");
    scene.ends_well();
}

#[test]
fn garbage_on_the_hand_over_socket_is_refused_and_hung_up_on() {
    let scene = Scene::new("");
    let handoff = scene.daemon.socket().with_file_name("handoff.sock");
    let whole = Request::Claim(Ticket::new([1; 16])).encode();
    let mut packets: Vec<Vec<u8>> = (1..whole.len()).map(|n| whole[..n].to_vec()).collect();
    packets.push(b"GET / HTTP/1.1\r\n\r\n".to_vec());
    packets.push([&whole[..], &[0]].concat());
    packets.push(vec![0xff; 257]);
    packets.push(vec![b'G'; 60_000]);
    packets.push([b"GPL1", &[9_u8][..], &[0; 16]].concat());
    for packet in packets {
        let socket = HandOver::connect(&handoff).expect("the daemon listens");
        socket.send(&packet).expect("a packet is taken");
        let (answer, descriptors) = socket.receive().expect("the daemon answers");
        let reply = Reply::decode(&answer);
        assert!(matches!(reply, Ok(Reply::Refused(_))), "{reply:?} to {} bytes", packet.len());
        assert!(descriptors.is_empty());
        socket.is_hung_up().expect("one wrong packet is enough");
    }
    scene.ends_well();
}

/// Descriptors that a client sends along are its own business: the daemon keeps none.
#[test]
fn descriptors_sent_to_the_daemon_do_not_stay_there() {
    use std::os::fd::AsFd as _;
    let scene = Scene::new("");
    let handoff = scene.daemon.socket().with_file_name("handoff.sock");
    let file = std::fs::File::open("/dev/zero").expect("every system has it");
    let socket = HandOver::connect(&handoff).expect("the daemon listens");
    let packet = "GPL1\u{1}0123456789abcdef";
    for _ in 0..200 {
        gpulease_tests::puppet::send(socket.as_fd(), packet, Some(file.as_fd())).expect("it is taken");
        let (answer, _) = socket.receive().expect("the daemon answers");
        assert!(matches!(Reply::decode(&answer), Ok(Reply::Refused(_))));
    }
    let open = gpulease_tests::proc::Proc(scene.daemon.pid()).open_files();
    assert!(!open.iter().any(|file| file == "/dev/zero"), "{open:#?}");
    drop(socket);
    scene.ends_well();
}

/// A client that reads nothing does not get more and more descriptors into its queue.
#[test]
fn a_claim_is_not_answered_again_before_the_last_answer_was_read() {
    let scene = Scene::new("");
    let handoff = scene.daemon.socket().with_file_name("handoff.sock");
    let socket = HandOver::connect(&handoff).expect("the daemon listens");
    socket.patience(Duration::from_secs(5)).expect("a socket of ours");
    let packet = Request::Claim(Ticket::new([1; 16])).encode();
    let sent = (0..1_000).take_while(|_| socket.send(&packet).is_ok()).count();
    assert!(sent < 1_000, "a client that reads nothing could ask without end");
    drop(socket);
    scene.ends_well();
}

/// What an acquire says when it is asked for.
async fn acquired(wire: &Wire, request: v1::AcquireRequest) -> Result<Update, tonic::Status> {
    wire.acquire(request).await.map(|(update, _)| update)
}

#[test]
fn sizes_and_devices_that_make_no_sense_are_refused_with_a_sentence() {
    let scene = Scene::new("");
    wait_for(async {
        let wire = session(&scene.daemon).await;
        let plain = |name| v1::AcquireRequest { wait: None, ..wire.ask(name, mib(2), mib(2)) };
        let (most, step) = (u64::MAX, mib(2).get());
        let sized = |name, reserve_bytes, limit_bytes| v1::AcquireRequest {
            reserve_bytes,
            limit_bytes,
            ..plain(name)
        };
        let on = |name, devices| v1::AcquireRequest { devices: Some(devices), ..plain(name) };
        let these = |indices: &[u32]| Devices::TheseDevices(v1::DeviceList { indices: indices.to_vec() });
        let asks = [
            (sized(1, most, most), "too_large"),
            (sized(2, most - step, 0), "too_large"),
            (sized(4, mib(16).get() + 1, 0), "too_large"),
            (sized(5, mib(4).get(), step), "malformed"),
            (on(6, Devices::AnyDevices(0)), "malformed"),
            (on(7, Devices::AnyDevices(2)), "too_large"),
            (on(8, Devices::AnyDevices(u32::MAX)), "too_large"),
            (on(9, these(&[1])), "no_such_device"),
            (on(10, these(&[])), "malformed"),
            (on(11, these(&[0; 65])), "malformed"),
            (v1::AcquireRequest { name: "\x1b[2J".into(), ..plain(12) }, "malformed"),
            (v1::AcquireRequest { name: "n".repeat(10_000), ..plain(13) }, "malformed"),
            (sized(14, 0, 0), "malformed"),
        ];
        for (ask, reason) in asks {
            let shown = format!("{ask:.400?}");
            match acquired(&wire, ask).await {
                Ok(Update::Denied(denied)) => {
                    assert_eq!(denied.reason, reason, "{}: {shown}", denied.message);
                    assert!(denied.message.len() > 10, "no sentence: {denied:?}");
                }
                other => panic!("{other:?} to {shown}"),
            }
        }
        let lease = match acquired(&wire, wire.ask(20, mib(4), mib(8))).await {
            Ok(Update::Granted(granted)) => granted.lease_id,
            other => panic!("{other:?}"),
        };
        for (bytes, kind, device, reason) in [
            (0, 0, 0, "malformed"),
            (most, 0, 0, "beyond_lease"),
            (mib(10).get(), 0, 0, "beyond_lease"),
            (step, 77, 0, "malformed"),
            (step, 0, 3, "no_such_device"),
            (step, 1, 0, "device_refused"),
        ] {
            let request = v1::AllocateRequest {
                session: wire.session(),
                lease_id: lease,
                bytes,
                kind,
                device_index: device,
                ..Default::default()
            };
            let reply = wire.jobs().allocate(request).await.expect("a refusal is an answer").into_inner();
            match reply.outcome {
                Some(v1::allocate_reply::Outcome::Denied(denied)) => {
                    assert_eq!(denied.reason, reason, "{bytes} {kind} {device}: {}", denied.message);
                }
                other => panic!("{other:?} to {bytes} {kind} {device}"),
            }
        }
        wire.release(lease).await.expect("it is ours");
        wire.close().await.expect("it is ours");
    });
    scene.ends_well();
}

/// An ask that was put again under its name in other terms was refused, and the one that waited was never answered.
#[test]
fn an_ask_put_again_in_other_terms_is_refused_and_the_first_one_stays() {
    let scene = Scene::new("");
    scene.honest.must("acquire a 16MiB now");
    wait_for(async {
        let wire = session(&scene.daemon).await;
        let (first, mut updates) = wire.acquire(wire.ask(1, mib(2), mib(2))).await.expect("an answer");
        assert!(matches!(first, Update::Waiting(_)), "{first:?}");
        match acquired(&wire, wire.ask(1, mib(4), mib(4))).await.expect("a refusal is an answer") {
            Update::Denied(denied) => assert_eq!(denied.reason, "malformed", "{}", denied.message),
            other => panic!("{other:?}"),
        }
        scene.honest.must("release a");
        let lease = granted(first, &mut updates).await.expect("the first ask waited on").lease_id;
        wire.release(lease).await.expect("it is ours");
        // In the same terms it is the same ask, and the later stream hears of it.
        scene.honest.must("acquire a 16MiB now");
        let (first, mut updates) = wire.acquire(wire.ask(2, mib(2), mib(2))).await.expect("an answer");
        let (second, mut later) = wire.acquire(wire.ask(2, mib(2), mib(2))).await.expect("an answer");
        let replaced = granted(first, &mut updates).await.expect_err("another stream has its place");
        assert_eq!(replaced.code(), Code::Aborted, "{replaced}");
        scene.honest.must("release a");
        let lease = granted(second, &mut later).await.expect("it is the same ask").lease_id;
        wire.release(lease).await.expect("it is ours");
        wire.close().await.expect("it is ours");
    });
    scene.ends_well();
}

/// FAULTS 18: messages and headers that are too large end the request, not the broker.
#[test]
fn what_is_too_large_is_refused() {
    let scene = Scene::new("");
    wait_for(async {
        let wire = session(&scene.daemon).await;
        for length in [65 << 10, 5 << 20, 40 << 20] {
            let ask = v1::AcquireRequest { name: "n".repeat(length), ..wire.ask(1, mib(2), mib(2)) };
            let refused = acquired(&wire, ask).await.expect_err("it is larger than any request");
            assert!(
                matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted | Code::Internal),
                "{length}: {refused:?}"
            );
        }
        wire.close().await.expect("the session is as it was");
        let many = session(&scene.daemon).await;
        let mut request = Asked::new(v1::CloseRequest { session: many.session() });
        for n in 0..2_000 {
            let key = format!("x-flood-{n}").parse::<tonic::metadata::MetadataKey<_>>().expect("a key");
            request.metadata_mut().insert(key, "v".repeat(100).parse().expect("a value"));
        }
        let refused = many.jobs().close(request).await;
        refused.expect_err("no request has so many headers");
    });
    scene.ends_well();
}
