//! Each device's book balances, whatever outsiders do.

use gpulease_arbiter::Event;
use gpulease_words::{Bytes, mib};

use crate::desk::{Answer, Ask, Desk, device, want};

#[test]
fn the_last_byte_can_be_leased_and_no_more() {
    for (asked, granted) in [(512, true), (514, false)] {
        let mut desk = Desk::new(&[1024]);
        let [one, two] = [1, 2].map(|uid| desk.client(uid));
        desk.lease(one, want(512));
        let answer = desk.acquire(two, want(asked));
        assert_eq!(matches!(answer, Answer::Granted(_)), granted, "{asked}: {answer:?}");
    }
}

#[test]
fn two_mib_short_of_two_leases() {
    let mut desk = Desk::new(&[1024]);
    let client = desk.client(1);
    desk.lease(client, want(512));
    desk.lease(client, want(510));
    let waits = desk.queue(client, want(4));
    assert_eq!(desk.waiting(waits).short_by, mib(2));
    desk.lease(client, want(2));
    assert_eq!(desk.device(0).free, Bytes::ZERO);
}

#[test]
fn outsiders_take_what_is_free_then_what_is_promised_but_nothing_that_is_held() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(600));
    desk.segment(client, lease, 100);
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(450)) });
    let book = desk.device(0);
    assert_eq!((book.free, book.unbacked), (Bytes::ZERO, mib(50)));
    assert_eq!((book.set_aside, book.held), (mib(500), mib(100)));
    assert_eq!(book.off_book, Some(mib(450)));
}

#[test]
fn what_comes_back_backs_promises_first() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(600));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(450)) });
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(420)) });
    assert_eq!(desk.device(0).unbacked, mib(20));
    desk.release(client, lease);
    assert_eq!((desk.device(0).free, desk.device(0).unbacked), (mib(580), Bytes::ZERO));
}

#[test]
fn figures_larger_than_the_card_are_cut_to_it() {
    let mut desk = Desk::with_overhead(&[1000], 10);
    let client = desk.client(1);
    desk.lease(client, want(600));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(Bytes::MAX) });
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: Bytes::MAX });
    let book = desk.device(0);
    assert_eq!((book.off_book, book.overhead, book.unbacked), (Some(mib(1000)), mib(1000), mib(1600)));
}

#[test]
fn nobody_can_tell_is_not_nothing() {
    let mut desk = Desk::new(&[1000]);
    assert_eq!(desk.device(0).off_book, None);
    desk.tell(Event::OffBook { device: device(0), bytes: Some(Bytes::ZERO) });
    assert_eq!(desk.device(0).off_book, Some(Bytes::ZERO));
    desk.tell(Event::OffBook { device: device(7), bytes: Some(mib(2)) });
}

#[test]
fn the_peak_is_what_was_charged_at_one_time() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(600));
    desk.release(client, lease);
    desk.lease(client, want(300));
    assert_eq!(desk.device(0).peak_charged, mib(600));
}

#[test]
fn a_gang_is_granted_on_all_its_devices_or_on_none() {
    let mut desk = Desk::new(&[1000, 400]);
    let client = desk.client(1);
    let blocker = desk.lease(client, want(200).on(&[1]));
    let gang = desk.queue(client, want(300).on(&[0, 1]));
    assert_eq!(desk.device(0).free, mib(1000));
    assert_eq!(desk.waiting(gang).device, Some(device(1)));
    desk.release(client, blocker);
    assert_eq!((desk.device(0).free, desk.device(1).free), (mib(700), mib(100)));
}

#[test]
fn any_takes_the_device_with_the_most_room_and_of_equals_the_first() {
    let mut desk = Desk::new(&[800, 1000, 1000]);
    let client = desk.client(1);
    for expected in [1, 2, 0, 1, 2] {
        let lease = desk.lease(client, want(200));
        let taken = desk.view(lease).devices;
        assert_eq!(taken, [device(expected)], "after {:?}", desk.snapshot().leases.len());
    }
    let pair = desk.lease(client, want(2).any(2));
    assert_eq!(desk.view(pair).devices, [device(0), device(1)]);
}
