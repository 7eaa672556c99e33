//! A child that was forked, and not started anew.

use gpulease_client::{AccessError, AskError, Error, blocking, mib};

use crate::GUARDS;
use crate::broker::Broker;

#[test]
fn a_forked_child_is_refused_has_no_mapping_and_gives_nothing_back() {
    let _guards = GUARDS.blocking_lock();
    let broker = Broker::start();
    let client = blocking::Client::connect_to(broker.socket()).unwrap();
    let lease = client.lease(mib(8)).acquire().unwrap();
    let mut segment = lease.allocate(mib(2)).unwrap();
    let resident = lease.enter().unwrap();
    let address = segment.as_mut_slice::<u8>(&resident).unwrap().as_ptr() as usize;
    // SAFETY: the child calls only what this library promises to answer in a forked child, and ends
    // without running any destructor of the test's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that hangs, so that the test fails and does not hang with it.
        unsafe { libc::alarm(20) };
        let refused = |result: Result<(), AskError>| matches!(result, Err(AskError::Failed(Error::Forked { opened_by, now })) if opened_by != now);
        let right = [
            refused(client.lease(mib(8)).acquire().map(drop)),
            refused(lease.allocate(mib(2)).map(drop)),
            refused(lease.resize(mib(2), mib(2))),
            matches!(lease.enter(), Err(Error::Forked { .. })),
            matches!(segment.as_slice::<u8>(&resident), Err(AccessError::Forked { .. })),
            !is_mapped(address),
        ];
        drop(resident);
        drop(segment);
        drop(lease);
        drop(client);
        let first_wrong = right.iter().position(|right| !right).map_or(0, |index| index + 1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::try_from(first_wrong).unwrap()) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to an int of ours, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child ended by itself: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the first check that failed");
    // Nothing of the parent's was touched.
    assert!(broker.shared.book().released.is_empty());
    assert_eq!(broker.shared.book().segments.len(), 1);
    drop(resident);
    segment.as_mut_slice::<u8>(&lease.enter().unwrap()).unwrap().fill(1);
    segment.free().unwrap();
    assert!(broker.shared.book().freed_too_early.is_empty());
    lease.release().unwrap();
}

fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let bound = |text| usize::from_str_radix(text, 16).unwrap();
        (bound(from)..bound(to)).contains(&address)
    })
}
