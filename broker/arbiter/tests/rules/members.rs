//! Members, their contexts, and who may take part.

use gpulease_arbiter::{Budgets, Denial, Effect, Event, LeaseState, Peer, Place, Policy};
use gpulease_words::{Bytes, LeaseId, ProcessId, mib};

use crate::desk::{Answer, Ask, Client, Desk, device, limit, policy, want};

fn join(desk: &mut Desk, client: Client, lease: LeaseId) -> Answer {
    join_under(desk, client, lease, &[])
}

/// A process that these started, the nearest first.
fn join_under(desk: &mut Desk, client: Client, lease: LeaseId, ancestors: &[ProcessId]) -> Answer {
    let ancestors = ancestors.to_vec();
    desk.ask(|request| Event::Join { request, session: client.session, lease, ancestors })
}

fn admit(desk: &mut Desk, by: Client, lease: LeaseId, peer: Peer) -> Answer {
    let place = Place::Own;
    desk.ask(|request| Event::Admit { request, session: by.session, lease, peer, place })
}

fn admit_in_place(desk: &mut Desk, by: Client, lease: LeaseId, peer: Peer) -> Answer {
    let place = Place::Callers;
    desk.ask(|request| Event::Admit { request, session: by.session, lease, peer, place })
}

#[test]
fn the_users_own_and_the_guest_join_and_nobody_else() {
    let mut desk = Desk::new(&[100]);
    let [owner, twin, guest, other] = [1, 1, 2, 3].map(|uid| desk.client(uid));
    let lease = desk.lease(owner, want(20).guest(2));
    assert_eq!(join(&mut desk, twin, lease), Answer::Joined(lease));
    assert_eq!(join(&mut desk, guest, lease), Answer::Joined(lease));
    assert_eq!(join(&mut desk, other, lease), Answer::Denied(Denial::NoSuchLease));
    assert_eq!(join(&mut desk, other, LeaseId::new(9)), Answer::Denied(Denial::NoSuchLease));
    let stranger = desk.peer(3, None);
    assert!(matches!(admit(&mut desk, owner, lease, stranger), Answer::Denied(Denial::NotAllowed(_))));
    let child = desk.peer(1, None);
    assert_eq!(admit(&mut desk, other, lease, child.clone()), Answer::Denied(Denial::NoSuchLease));
    assert_eq!(admit(&mut desk, twin, lease, child), Answer::Done, "a member admits, too");
    assert_eq!(desk.view(lease).members.len(), 4);
}

#[test]
fn each_member_is_charged_for_a_context_once_a_device() {
    let mut desk = Desk::with_overhead(&[100, 100], 10);
    let owner = desk.client(1);
    let lease = desk.lease(owner, want(20).any(2));
    assert_eq!(desk.view(lease).overhead, mib(20));
    let child = desk.peer(1, None);
    admit(&mut desk, owner, lease, child.clone());
    let client = desk.open(child);
    for _ in 0..2 {
        assert_eq!(join(&mut desk, client, lease), Answer::Joined(lease));
        assert_eq!(desk.view(lease).overhead, mib(40));
    }
    let second = desk.lease(client, want(2).on(&[0]));
    assert_eq!(desk.view(second).overhead, Bytes::ZERO, "it has a context there");
}

#[test]
fn who_only_starts_a_process_gives_it_the_place_of_its_own_context() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let wrapper = desk.client(1);
    let lease = desk.lease(wrapper, want(90));
    let child = desk.peer(1, None);
    let full = Denial::NoRoom { asked: mib(10), room: Bytes::ZERO, device: device(0) };
    assert_eq!(admit(&mut desk, wrapper, lease, child.clone()), Answer::Denied(full.clone()));
    assert_eq!(admit_in_place(&mut desk, wrapper, lease, child.clone()), Answer::Done);
    assert_eq!(desk.view(lease).overhead, mib(10));
    let members = desk.view(lease).members;
    let charged: Vec<Bytes> = members.iter().map(|member| member.overhead).collect();
    assert_eq!(charged, [Bytes::ZERO, mib(10)], "the wrapper's, then the child's");

    // The place is given once.
    let second = desk.peer(1, None);
    assert_eq!(admit_in_place(&mut desk, wrapper, lease, second), Answer::Denied(full));
    assert_eq!(
        admit_in_place(&mut desk, wrapper, lease, child.clone()),
        Answer::Done,
        "it is a member already"
    );

    // The charge follows the child: the wrapper's end leaves it, the child's ends it.
    desk.tell(Event::Died { process: wrapper.process });
    assert_eq!(desk.view(lease).overhead, mib(10));
    desk.tell(Event::Died { process: child.process });
    assert_eq!(desk.snapshot().leases, []);
}

/// `run -- sh -c ...`: the shell was admitted and never speaks; the program below it needs no more room than the shell had.
#[test]
fn a_shell_gives_the_place_of_its_context_to_the_first_that_joins_below_it() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let wrapper = desk.client(1);
    let lease = desk.lease(wrapper, want(80));
    let shell = desk.peer(1, None);
    admit_in_place(&mut desk, wrapper, lease, shell.clone());
    let between = desk.peer(1, None);
    let [first, second, third] = [1, 1, 1].map(|uid| desk.client(uid));
    let above = [between.process, shell.process, wrapper.process];
    assert_eq!(join_under(&mut desk, first, lease, &above), Answer::Joined(lease));
    let overheads = |desk: &Desk| -> Vec<Bytes> {
        desk.view(lease).members.iter().map(|member| member.overhead).collect()
    };
    assert_eq!(
        overheads(&desk),
        [Bytes::ZERO, Bytes::ZERO, mib(10)],
        "the wrapper's, the shell's, the program's"
    );
    // The place is given once, and there is room for one more.
    assert_eq!(join_under(&mut desk, second, lease, &above), Answer::Joined(lease));
    assert_eq!(desk.view(lease).overhead, mib(20));
    let full = Denial::NoRoom { asked: mib(10), room: Bytes::ZERO, device: device(0) };
    assert_eq!(join_under(&mut desk, third, lease, &above), Answer::Denied(full.clone()));
    // The launcher uses the card after all: its own context needs room of its own.
    let launcher = desk.open(shell);
    assert_eq!(join(&mut desk, launcher, lease), Answer::Denied(full));
    desk.tell(Event::Died { process: second.process });
    assert_eq!(join(&mut desk, launcher, lease), Answer::Joined(lease));
    assert_eq!(overheads(&desk), [Bytes::ZERO, mib(10), mib(10)]);
}

/// A trainer that joined by itself is about to make its context, whoever it starts; so is one whose context was seen.
#[test]
fn who_uses_the_card_keeps_its_context_beside_those_that_it_starts() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let owner = desk.client(1);
    let lease = desk.lease(owner, want(50));
    let [parent, child] = [1, 1].map(|uid| desk.client(uid));
    join(&mut desk, parent, lease);
    join_under(&mut desk, child, lease, &[parent.process, owner.process]);
    assert_eq!(desk.view(lease).overhead, mib(30));

    let silent = desk.peer(1, None);
    admit(&mut desk, owner, lease, silent.clone());
    desk.tell(Event::Overhead { process: silent.process, device: device(0), bytes: mib(6) });
    let grandchild = desk.client(1);
    join_under(&mut desk, grandchild, lease, &[silent.process]);
    assert_eq!(desk.view(lease).overhead, mib(46));
}

#[test]
fn a_context_that_was_measured_stays_whose_it_is() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let parent = desk.client(1);
    let lease = desk.lease(parent, want(70));
    desk.tell(Event::Overhead { process: parent.process, device: device(0), bytes: mib(8) });
    let child = desk.peer(1, None);
    assert_eq!(admit_in_place(&mut desk, parent, lease, child), Answer::Done);
    assert_eq!(desk.view(lease).overhead, mib(18));
}

#[test]
fn a_context_needs_room_on_the_card_and_in_the_budget() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let [owner, twin] = [1, 1].map(|uid| desk.client(uid));
    let lease = desk.lease(owner, want(82));
    let full = Denial::NoRoom { asked: mib(10), room: mib(8), device: device(0) };
    assert_eq!(join(&mut desk, twin, lease), Answer::Denied(full));

    let budgets = Budgets { default_user: limit(99), ..Budgets::default() };
    let mut desk = Desk::with(policy(), budgets, &[1000], 10);
    let [owner, twin] = [1, 1].map(|uid| desk.client(uid));
    let lease = desk.lease(owner, want(80));
    let account = "user.1".to_owned();
    let full = Denial::AccountFull { account, limit: mib(99), charged: mib(90), asked: mib(10) };
    assert_eq!(join(&mut desk, twin, lease), Answer::Denied(full.clone()));
    let child = desk.peer(1, None);
    assert_eq!(admit(&mut desk, owner, lease, child), Answer::Denied(full));
}

#[test]
fn members_are_bounded() {
    let mut desk = Desk::with(Policy { members_per_lease: 2, ..policy() }, Budgets::default(), &[100], 0);
    let [owner, one, two] = [1, 1, 1].map(|uid| desk.client(uid));
    let lease = desk.lease(owner, want(2));
    join(&mut desk, one, lease);
    let full = Denial::TooMany { what: "members", account: "L1".to_owned(), max: 2 };
    assert_eq!(join(&mut desk, two, lease), Answer::Denied(full));
}

#[test]
fn the_measured_figure_replaces_the_estimate() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let client = desk.client(1);
    let overhead = |desk: &mut Desk, bytes| {
        desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(bytes) });
        let book = desk.device(0);
        (book.overhead, book.free, book.unbacked)
    };
    assert_eq!(overhead(&mut desk, 30), (mib(0), mib(100), mib(0)), "it has no lease there");
    let lease = desk.lease(client, want(80));
    assert_eq!(overhead(&mut desk, 6), (mib(6), mib(14), mib(0)));
    assert!(desk.view(lease).members[0].measured);
    assert_eq!(overhead(&mut desk, 27), (mib(27), mib(0), mib(7)));
    assert_eq!(overhead(&mut desk, 21), (mib(21), mib(0), mib(1)));
    assert_eq!(overhead(&mut desk, 10), (mib(10), mib(10), mib(0)));
}

#[test]
fn a_figure_that_was_said_before_the_lease_counts() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let client = desk.client(1);
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(14) });
    let lease = desk.lease(client, want(20));
    assert_eq!((desk.view(lease).overhead, desk.view(lease).members[0].measured), (mib(14), true));
    desk.release(client, lease);
    let lease = desk.lease(client, want(90));
    assert_eq!((desk.view(lease).overhead, desk.device(0).unbacked), (mib(14), mib(4)));
}

/// A process whose context was gone asked for another lease, and nothing was set aside for its next context.
#[test]
fn that_a_context_was_gone_says_nothing_of_the_next() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let client = desk.client(1);
    let overhead = |bytes| Event::Overhead { process: client.process, device: device(0), bytes };
    let lease = desk.lease(client, want(20));
    desk.tell(overhead(mib(14)));
    desk.release(client, lease);
    desk.tell(overhead(Bytes::ZERO));
    let lease = desk.lease(client, want(20));
    let member = |desk: &Desk| (desk.view(lease).overhead, desk.view(lease).members[0].measured);
    assert_eq!(member(&desk), (mib(10), false));
    desk.tell(overhead(mib(12)));
    assert_eq!(member(&desk), (mib(12), true));
    desk.tell(overhead(Bytes::ZERO));
    assert_eq!(member(&desk), (mib(0), true), "while it is charged the card is believed");
}

#[test]
fn the_context_is_charged_to_the_first_lease_and_then_to_the_next() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let client = desk.client(1);
    let [one, two] = [20, 30].map(|bytes| desk.lease(client, want(bytes)));
    assert_eq!((desk.view(one).overhead, desk.view(two).overhead), (mib(10), mib(0)));
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(14) });
    desk.release(client, one);
    assert_eq!((desk.view(two).overhead, desk.device(0).free), (mib(14), mib(56)));
    desk.release(client, two);
    assert_eq!(desk.device(0).free, mib(100));
}

#[test]
fn asks_of_a_process_need_no_second_context() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let [holder, client] = [9, 1].map(|uid| desk.client(uid));
    let blocker = desk.lease(holder, want(60));
    let ask = desk.queue(client, want(40));
    assert_eq!(desk.waiting(ask).short_by, mib(20));
    let small = desk.lease(client, want(10));
    // 60 + 10 + 10 + 10 are charged; 10 are free.
    assert_eq!(desk.waiting(ask).short_by, mib(30), "its context is there now");
    desk.release(client, small);
    assert_eq!(desk.waiting(ask).short_by, mib(20));
    desk.release(holder, blocker);
    assert_eq!(desk.granted(), [1]);
}

#[test]
fn a_lease_outlives_its_owner_while_a_member_lives() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let [owner, member] = [1, 1].map(|uid| desk.client(uid));
    let lease = desk.lease(owner, want(20).up_to(60));
    join(&mut desk, member, lease);
    let theirs = desk.segment(owner, lease, 10);
    let ours = desk.segment(member, lease, 10);
    assert_eq!(desk.free(member, lease, theirs), Answer::Denied(Denial::NoSuchSegment), "it is another's");
    desk.die(owner);
    let view = desk.view(lease);
    assert_eq!(
        (view.state, view.session, view.draining, view.overhead),
        (LeaseState::Active, None, mib(10), mib(10))
    );
    desk.tell(Event::Freed { segment: theirs });
    desk.segment(member, lease, 10);
    desk.die(member);
    assert_eq!(desk.view(lease).state, LeaseState::Draining);
    desk.tell(Event::Freed { segment: ours });
    assert!(desk.arbiter.lease(lease).is_some());
}

#[test]
fn a_child_admitted_before_its_first_session_keeps_the_lease() {
    let mut desk = Desk::new(&[100]);
    let wrapper = desk.client(1);
    let lease = desk.lease(wrapper, want(20));
    let child = desk.peer(1, None);
    admit(&mut desk, wrapper, lease, child.clone());
    desk.die(wrapper);
    assert_eq!(desk.view(lease).members.len(), 1);
    desk.tell(Event::Died { process: child.process });
    assert_eq!(desk.said, [Effect::LeaseGone { lease }, Effect::ProcessGone { process: child.process }]);
}

#[test]
fn a_process_that_changes_its_user_is_refused() {
    let mut desk = Desk::new(&[100]);
    let peer = desk.peer(1, None);
    desk.open(peer.clone());
    let changed = Peer { uid: gpulease_words::Uid::new(2), ..peer };
    let answer = desk.ask(|request| Event::Open { request, peer: changed });
    assert!(matches!(answer, Answer::Denied(Denial::NotAllowed(_))));
}
