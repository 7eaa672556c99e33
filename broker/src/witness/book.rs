//! The arithmetic: from what a card says to what the arbiter books.
//!
//! ```text
//! used = broker-made + the hold + members' overhead + outside
//! overhead of a member = its listed use - what is attributed to it + its context's unlisted part
//! off-book = max(0, outside - (usable - capacity))
//! ```
//!
//! Outside are strangers, the broker's and its helpers' own contexts, and what cannot be named.
//! What lies outside the capacity swallows what is outside first: a broker that manages 8 GiB of
//! an 80 GiB card loses nothing to a stranger that uses 50.
//!
//! Strangers' own use is outside whatever the rest comes to: bytes that are back and not yet proven
//! free are still counted as made, and would hide as many of a stranger's.
//!
//! Attributed is memory that is on its way back while a process still maps it: the card lists it
//! as that process's own use, the broker still counts it as made.

use std::collections::BTreeMap;

use gpulease_words::{Bytes, Pid, ProcessId};

use super::{ProcessUse, Reading};
use crate::device::Made;

/// What a context takes of a card beside what is listed for its process; measured on driver 580.
const CONTEXT_UNLISTED: Bytes = Bytes::new(5 << 20);

/// What a card's reading means to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// What outsiders take of the capacity.
    pub(super) off_book: Bytes,
    /// What of the card lies outside the capacity and is not with outsiders.
    pub(super) unmanaged: Bytes,
    /// What each member that uses the card takes of it beside its segments.
    pub(super) overheads: BTreeMap<ProcessId, Bytes>,
    /// Processes that use it and are neither members nor the broker's own, with their own use.
    pub(super) strangers: Vec<ProcessUse>,
}

/// Keeps the book of one card; `None` where the card does not say who uses it, since members' contexts would then be
/// taken for strangers.
pub(super) fn account(
    reading: &Reading,
    made: &Made,
    members: &BTreeMap<Pid, ProcessId>,
    capacity: Bytes,
) -> Option<Account> {
    let processes = reading.processes.as_deref()?;
    let own_use = |process: &ProcessUse| ProcessUse { bytes: own_bytes(process, made), ..process.clone() };
    let (of_members, others): (Vec<_>, Vec<_>) =
        processes.iter().map(own_use).partition(|process| members.contains_key(&process.pid));

    let listed: Bytes = of_members.iter().map(|process| process.bytes).sum();
    let ours = made.bytes.saturating_add(made.hold.unwrap_or_default());
    let unnamed = reading.used.saturating_sub(ours).saturating_sub(listed);
    let part = unlisted_part(unnamed, of_members.len());
    let outside = unnamed.saturating_sub(part.checked_mul(of_members.len() as u64)?);
    let strangers: Vec<ProcessUse> =
        others.into_iter().filter(|process| is_stranger(process, made)).collect();
    let outside = outside.max(strangers.iter().map(|stranger| stranger.bytes).sum());

    let unmanaged = reading.usable.saturating_sub(capacity);
    let overhead = |process: &ProcessUse| (members[&process.pid], process.bytes.saturating_add(part));
    Some(Account {
        off_book: outside.saturating_sub(unmanaged),
        unmanaged: unmanaged.saturating_sub(outside),
        overheads: of_members.iter().map(overhead).collect(),
        strangers,
    })
}

fn is_stranger(process: &ProcessUse, made: &Made) -> bool {
    let own = Pid::new(std::process::id());
    process.pid != own && !made.helpers.contains(&process.pid) && !process.bytes.is_zero()
}

fn own_bytes(process: &ProcessUse, made: &Made) -> Bytes {
    let attributed = made.attributed.get(&process.pid).copied().unwrap_or_default();
    process.bytes.saturating_sub(attributed)
}

/// A member's unlisted part: the measured figure, and no more than there is.
fn unlisted_part(unnamed: Bytes, members: usize) -> Bytes {
    match unnamed.get().checked_div(members as u64) {
        Some(share) => Bytes::new(share).min(CONTEXT_UNLISTED),
        None => Bytes::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::{gib, mib};
    use std::collections::BTreeSet;

    const BASE: Bytes = Bytes::new(3_407_872);
    const USABLE: Bytes = Bytes::new(143_156 << 20);
    const CONTEXT: Bytes = Bytes::new(518 << 20);
    const MEMBER: Pid = Pid::new(4_100_001);
    const STRANGER: Pid = Pid::new(4_100_002);
    const HELPER: Pid = Pid::new(4_100_003);

    fn sum(parts: &[Bytes]) -> Bytes {
        parts.iter().copied().sum()
    }

    fn reading(used: Bytes, processes: &[(Pid, Bytes)]) -> Reading {
        let uses = processes.iter().map(|&(pid, bytes)| ProcessUse { pid, bytes });
        Reading { used, usable: USABLE, processes: Some(uses.collect()) }
    }

    fn made(bytes: Bytes) -> Made {
        Made { bytes, ..Made::default() }
    }

    fn members() -> BTreeMap<Pid, ProcessId> {
        [(MEMBER, ProcessId::new(7))].into()
    }

    fn book(reading: &Reading, made: &Made, capacity: Bytes) -> Account {
        account(reading, made, &members(), capacity).expect("the processes are known")
    }

    #[test]
    fn an_idle_card_shows_the_drivers_base_and_no_more() {
        let account = book(&reading(BASE, &[]), &made(Bytes::ZERO), USABLE);
        assert_eq!(account.off_book, BASE);
        assert_eq!((account.overheads.len(), account.strangers.len()), (0, 0));
        let below = USABLE.saturating_sub(mib(8));
        assert_eq!(book(&reading(BASE, &[]), &made(Bytes::ZERO), below).off_book, Bytes::ZERO);
    }

    #[test]
    fn a_member_is_charged_its_context_with_the_unlisted_part() {
        let used = sum(&[BASE, gib(8), CONTEXT, mib(5)]);
        let account = book(&reading(used, &[(MEMBER, CONTEXT)]), &made(gib(8)), USABLE);
        assert_eq!(account.overheads, [(ProcessId::new(7), mib(523))].into());
        assert_eq!(account.off_book, BASE);
    }

    #[test]
    fn what_a_member_takes_by_itself_is_its_overhead_and_not_off_book() {
        let used = sum(&[BASE, gib(8), CONTEXT, gib(1), mib(5)]);
        let account = book(&reading(used, &[(MEMBER, sum(&[CONTEXT, gib(1)]))]), &made(gib(8)), USABLE);
        assert_eq!(account.overheads[&ProcessId::new(7)], mib(523 + 1024));
        assert_eq!(account.off_book, BASE);
    }

    #[test]
    fn a_stranger_is_named_and_taken_off_the_capacity_to_the_byte() {
        let stranger = sum(&[CONTEXT, gib(8)]);
        let used = sum(&[BASE, stranger, mib(5)]);
        let seen = reading(used, &[(STRANGER, stranger)]);
        let account = book(&seen, &made(Bytes::ZERO), USABLE);
        assert_eq!(account.off_book, used);
        assert_eq!(account.strangers, [ProcessUse { pid: STRANGER, bytes: stranger }]);
        // Just so much unmanaged that the last byte is swallowed, and one byte less.
        let swallows = USABLE.saturating_sub(used);
        assert_eq!(book(&seen, &made(Bytes::ZERO), swallows).off_book, Bytes::ZERO);
        let short = swallows.saturating_add(Bytes::new(1));
        assert_eq!(book(&seen, &made(Bytes::ZERO), short).off_book, Bytes::new(1));
    }

    #[test]
    fn a_helper_is_off_book_without_being_a_stranger() {
        let used = sum(&[BASE, CONTEXT, mib(5), gib(2)]);
        let made = Made { helpers: BTreeSet::from([HELPER]), ..made(gib(2)) };
        let account = book(&reading(used, &[(HELPER, sum(&[CONTEXT, gib(2)]))]), &made, USABLE);
        assert_eq!(account.off_book, sum(&[BASE, CONTEXT, mib(5)]));
        assert_eq!(account.strangers, []);
    }

    #[test]
    fn memory_on_its_way_back_is_counted_once() {
        // The member still maps 8 GiB that the broker has released: listed as its use, and still made.
        let listed = sum(&[CONTEXT, gib(8)]);
        let used = sum(&[BASE, listed, mib(5)]);
        let made = Made { attributed: [(MEMBER, gib(8))].into(), ..made(gib(8)) };
        let account = book(&reading(used, &[(MEMBER, listed)]), &made, USABLE);
        assert_eq!(account.overheads[&ProcessId::new(7)], mib(523));
        assert_eq!(account.off_book, BASE);
        // The same held by a stranger: its context is off-book, the segment is not.
        let made = Made { attributed: [(STRANGER, gib(8))].into(), ..made };
        let account = book(&reading(used, &[(STRANGER, listed)]), &made, USABLE);
        assert_eq!(account.strangers, [ProcessUse { pid: STRANGER, bytes: CONTEXT }]);
        assert_eq!(account.off_book, sum(&[BASE, CONTEXT, mib(5)]));
    }

    #[test]
    fn a_process_that_left_the_list_before_its_bytes_is_off_book_until_they_are_back() {
        let used = sum(&[BASE, gib(8), CONTEXT, mib(5)]);
        let account = book(&reading(used, &[]), &made(gib(8)), USABLE);
        assert_eq!(account.off_book, sum(&[BASE, CONTEXT, mib(5)]));
        assert_eq!(account.overheads.len(), 0);
    }

    #[test]
    fn what_is_back_and_not_yet_proven_hides_no_stranger() {
        let stranger = sum(&[CONTEXT, gib(8)]);
        let used = sum(&[BASE, stranger, mib(5)]);
        let account = book(&reading(used, &[(STRANGER, stranger)]), &made(gib(4)), USABLE);
        assert_eq!(account.off_book, stranger);
    }

    #[test]
    fn less_use_than_was_made_is_nothing_and_not_less() {
        let account = book(&reading(gib(7), &[(MEMBER, CONTEXT)]), &made(gib(8)), USABLE);
        assert_eq!(account.off_book, Bytes::ZERO);
        assert_eq!(account.overheads[&ProcessId::new(7)], CONTEXT);
    }

    #[test]
    fn a_card_that_names_no_process_leaves_it_unknown() {
        let silent = Reading { used: gib(1), usable: USABLE, processes: None };
        assert_eq!(account(&silent, &made(Bytes::ZERO), &members(), USABLE), None);
    }
}
