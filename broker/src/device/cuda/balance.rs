//! When bytes are back: the arithmetic behind a `Freed` without a hold.
//!
//! The driver tells nobody who maps an exported allocation. What it does tell, to the byte and at
//! once, is how much of the card is used, and by which process; and it counts shared memory so
//! (measured on driver 580):
//!
//! ```text
//! while the broker has its handle      used, on no process's list
//! after it gave the handle up:
//!   mapped by a listed process         used, and on that process's list from that moment
//!   held in another way                used, on no process's list: a descriptor kept, a mapping
//!                                      without a context, a teardown under way
//!   held by nobody                     not used
//! ```
//!
//! So with `unlisted = used - sum of the list - what the broker has handles of`, a segment of b
//! bytes whose handle was given up is back when neither `unlisted` has it nor any process's list.
//! Other processes' allocations and frees show in `used` and in their list alike and cancel out.
//!
//! - **At the release**: readings just before and just after. No list grew by b or more, and
//!   `unlisted` did not grow: it is back. A list that did grow names the holder, unless its process
//!   only took what had come free: an allocation comes free whole or not at all, so if the broker saw
//!   any of it come free, nobody has it ([`Return`]).
//! - **Later**: a holder has let go when its list has shrunk by b or it is gone. Of the segments
//!   without a holder as many bytes are back as `unlisted` is below what it would be with all of
//!   them in it, counted from a [floor](super::floor): `unlisted` when nothing was on its way.
//!
//! It is advice, not possession; that is the [hold](super::held)'s. Bytes are bytes here: a process
//! that keeps a segment and frees as much memory of its own at that moment passes for having let go
//! (what it keeps then counts as its own use, which the witness charges to it), and unlisted memory of
//! strangers that comes or goes meanwhile shifts the floor. Without a list `unlisted` holds
//! everybody's use, and others' allocations delay the proof while their frees can feign it.
//!
//! **In doubt.** One who takes a whole piece in the instant in which it comes free shows the same
//! figures as one who has it mapped. Who was given the segment is believed to have it; of others it
//! depends on [who they are](Doubts).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpulease_words::{Bytes, Pid, SegmentId};

use super::doubts::Doubts;
use super::drain::{Drain, Missing, Passage, Place, Return, Tenants, listed};
use super::floor::{Above, Floor};
use super::standing::{Standing, signed};

/// The book of segments that are on their way back.
#[derive(Debug)]
pub(super) struct Balance {
    floor: Floor,
    /// Oldest first.
    drains: Vec<Drain>,
    latest: Standing,
    /// What each holder used when a segment was last found with it, or was last let go.
    levels: BTreeMap<Pid, Bytes>,
    doubts: Doubts,
}

impl Balance {
    /// A book that starts with nothing on its way.
    pub(super) fn new(start: Standing) -> Self {
        let (drains, levels, doubts) = <_>::default();
        Self { floor: floor(&start), drains, latest: start, levels, doubts }
    }

    /// So many bytes are credited in doubt from now on.
    pub(super) fn doubt_at_most(&mut self, bytes: Bytes) {
        self.doubts.at_most(bytes);
    }

    /// The handles of a segment's pieces were given up; the next reading says where their bytes went.
    pub(super) fn released(&mut self, segment: SegmentId, pieces: &[(Bytes, Return)], passage: &Passage) {
        let Passage { before, tenants } = passage;
        if let (true, Some(before)) = (self.drains.is_empty(), before) {
            self.floor = floor(before);
        }
        for &(bytes, came) in pieces {
            let place = Place::Unseen(before.clone());
            self.drains.push(Drain {
                segment,
                bytes,
                place,
                came,
                missing: Missing::Perhaps,
                tenants: tenants.clone(),
            });
        }
    }

    /// The exporter that had a segment is gone, at a time that nobody saw: any process that uses so much may have it,
    /// but for the broker's own, which map nothing.
    pub(super) fn lost(&mut self, segment: SegmentId, bytes: Bytes, own: &BTreeSet<Pid>) {
        let holders = &self.latest.at_least(bytes) - own;
        self.levels.extend(holders.iter().map(|pid| (*pid, self.latest.of(*pid))));
        self.drains.push(Drain {
            segment,
            bytes,
            place: listed(holders),
            came: Return::Unknown,
            missing: Missing::Perhaps,
            tenants: Tenants::default(),
        });
    }

    /// The card was read anew.
    pub(super) fn read(&mut self, now: Instant, standing: Standing) {
        self.look_at_holders(&standing);
        self.doubts.settle(&self.latest, &standing);
        // What of a list's growth is a piece before it of the same segment.
        let mut found: BTreeMap<SegmentId, Bytes> = BTreeMap::new();
        for drain in &mut self.drains {
            let before_it = found.entry(drain.segment).or_default();
            if let Some(holders) = drain.find(&standing, &self.latest, *before_it, &mut self.doubts) {
                if !holders.is_empty() {
                    *before_it = before_it.saturating_add(drain.bytes);
                }
                self.levels.extend(holders.iter().map(|pid| (*pid, standing.of(*pid))));
            }
        }
        let above = self.floor.above(standing.unlisted, standing.listed.len());
        let gone = self.credit(above);
        self.find_takers(gone, &standing);
        self.floor.settle(now, above, self.unlisted_drains().into_iter().sum());
        self.latest = standing;
    }

    /// A holder that is gone from the list has nothing; one whose use has fallen has let go of as much as that. The
    /// fall since the last reading counts too, since it may hide behind growth before.
    fn look_at_holders(&mut self, now: &Standing) {
        for (pid, level) in std::mem::take(&mut self.levels) {
            let used = now.of(pid);
            let fallen = match now.listed.contains_key(&pid) {
                true => level.max(self.latest.of(pid)).saturating_sub(used),
                false => Bytes::MAX,
            };
            let mut of_pid: Vec<&mut Drain> =
                self.drains.iter_mut().filter(|drain| drain.is_with(pid)).collect();
            let let_go = picked(&mut of_pid, fallen).0;
            let level = if let_go.is_empty() { level } else { used };
            let_go.into_iter().for_each(|drain| drain.leave(pid));
            if self.drains.iter().any(|drain| drain.is_with(pid)) {
                self.levels.insert(pid, level);
            }
        }
    }

    /// Credits, newest first, what of the unlisted segments can't lie in what is above the floor. Which those are.
    fn credit(&mut self, above: Above) -> BTreeSet<SegmentId> {
        let sizes = self.unlisted_drains();
        let mut back = sizes.iter().sum::<i64>() - above.holds_of(&sizes);
        let mut gone = BTreeSet::new();
        for drain in self.drains.iter_mut().rev().filter(|drain| drain.place == Place::Unlisted) {
            if signed(drain.bytes) <= back {
                back -= signed(drain.bytes);
                drain.place = Place::Back;
                gone.insert(drain.segment);
            }
        }
        gone
    }

    /// Some of what is gone from where it was may be on another process's list now: of one that took up a descriptor,
    /// or that had it mapped too and is the oldest holder from now on. Seen over a long time many lists grow; one that
    /// grew by just such bytes has them.
    fn find_takers(&mut self, gone: BTreeSet<SegmentId>, now: &Standing) {
        for (pid, used) in &now.listed {
            let still_gone = |drain: &&mut Drain| drain.place == Place::Back && gone.contains(&drain.segment);
            let mut gone: Vec<&mut Drain> = self.drains.iter_mut().filter(still_gone).collect();
            let grown = now.growth_since(&self.latest, *pid);
            let (taken, rest) = picked(&mut gone, grown);
            let Some(tenants) = taken.first().map(|drain| &drain.tenants) else { continue };
            let was_given = taken.iter().any(|drain| drain.tenants.pids.contains(pid));
            if rest.is_zero()
                && (was_given || !self.doubts.is_his_own(*pid, grown, tenants, self.latest.free))
            {
                taken.into_iter().for_each(|drain| drain.place = Place::Listed([*pid].into()));
                self.levels.insert(*pid, *used);
            }
        }
    }

    /// Whether a segment is back with each of its pieces; it is forgotten then.
    pub(super) fn take_if_back(&mut self, segment: SegmentId) -> bool {
        let known = self.drains.len();
        if self.drains.iter().all(|drain| drain.segment != segment || drain.place == Place::Back) {
            self.drains.retain(|drain| drain.segment != segment);
        }
        self.drains.len() < known
    }

    /// The processes on whose list a segment is.
    pub(super) fn holders(&self, segment: SegmentId) -> Vec<Pid> {
        let of_it = self.attributions().filter(|(drain, _)| drain.segment == segment);
        let pids: BTreeSet<Pid> = of_it.map(|(_, pid)| pid).collect();
        pids.into_iter().collect()
    }

    /// What the card counts as processes' own use and is on its way back.
    pub(super) fn attributed(&self) -> BTreeMap<Pid, Bytes> {
        let mut attributed: BTreeMap<Pid, Bytes> = BTreeMap::new();
        for (drain, pid) in self.attributions() {
            let sum = attributed.entry(pid).or_default();
            *sum = sum.saturating_add(drain.bytes);
        }
        attributed
    }

    /// Whether a process is on the card's list.
    pub(super) fn is_listed(&self, pid: Pid) -> bool {
        self.latest.listed.contains_key(&pid)
    }

    fn attributions(&self) -> impl Iterator<Item = (&Drain, Pid)> {
        self.drains.iter().flat_map(|drain| match &drain.place {
            Place::Listed(holders) => holders.iter().map(|pid| (drain, *pid)).collect::<Vec<_>>(),
            Place::Unseen(_) | Place::Unlisted | Place::Back => Vec::new(),
        })
    }

    /// Their sizes.
    fn unlisted_drains(&self) -> Vec<i64> {
        let unlisted = self.drains.iter().filter(|drain| drain.place == Place::Unlisted);
        unlisted.map(|drain| signed(drain.bytes)).collect()
    }
}

/// The largest of these that together fit into so many bytes, and what is left of those.
fn picked<'a>(drains: &mut Vec<&'a mut Drain>, bytes: Bytes) -> (Vec<&'a mut Drain>, Bytes) {
    drains.sort_by_key(|drain| std::cmp::Reverse(drain.bytes));
    let (mut left, mut picked) = (bytes, Vec::new());
    for drain in drains.drain(..) {
        if let Some(rest) = left.checked_sub(drain.bytes) {
            left = rest;
            picked.push(drain);
        }
    }
    (picked, left)
}

fn floor(standing: &Standing) -> Floor {
    Floor::at(standing.unlisted, standing.listed.len())
}

#[cfg(test)]
mod tests;
