//! An ask that waits.
//!
//! ```text
//!   own drain ----------.   (within the reserve: it waits for its lease's own bytes, not in the line)
//!   leaving -.           \  (a resume that came while the lease was still on its way out)
//!             v           v
//!   at limit <-> in line or barrier  (growth that its lease's limit allows once its own bytes are back)
//!   in line ---max_wait, guarantee--> barrier: hopeless <-> parked at an account <-> collecting on its devices
//!      \__________________________________\______________________\____________________\___> granted, denied, withdrawn
//! ```

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, ProcessId, SessionId};

use crate::accounts::{NodeId, Resource};
use crate::allocate::Wanted;
use crate::line::shape::{ShapeId, Use};
use crate::shortage::Urgency;
use crate::{RequestId, Terms, Time};

/// What is wanted.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// A lease.
    Lease { ask_name: u64, terms: Terms },
    /// A segment in a lease.
    Segment(Wanted),
    /// The memory of a suspended lease.
    Resume(LeaseId),
}

/// By what right bytes are asked for or held: who has the better one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// It has to come back before all others: a swap that failed took it, or it has begun to.
    Returning,
    /// A guarantee covers it.
    Guaranteed,
    /// Out of what nobody is owed.
    Lent,
}

/// An ask's place among barriers: by right, then by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) right: Right,
    pub(crate) ask: AskId,
}

impl Turn {
    /// Behind every ask.
    pub(crate) const LAST: Self = Self { right: Right::Lent, ask: AskId::new(u64::MAX) };
}

/// Where a barrier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Post {
    /// Even if every lease ended there would be too little, on its devices or in an account: it
    /// holds nothing back.
    Hopeless,
    /// This account has too little room: it holds back room of the accounts below only.
    Parked(NodeId, Resource),
    /// Its accounts have room: it holds back what it needs on its devices.
    Collecting,
}

/// How far a waiting ask has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for bytes of its own lease's reserve that are on their way back.
    OwnDrain,
    /// The limit of its own lease allows it once bytes of that are back which are on their way.
    AtLimit,
    /// It wants back a lease that is still on its way out.
    Leaving,
    /// It waits its turn.
    InLine,
    /// It has waited so long that nothing overtakes it. With what it needs on the devices it is bound to.
    Barrier { needs: Vec<(DeviceId, Bytes)>, post: Post },
}

/// Whether an ask has waited long enough for a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seniority {
    /// It has not.
    Junior,
    /// It has: it is a barrier whenever it needs anything.
    Senior,
}

/// An ask that waits. Its number is its age.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) id: AskId,
    pub(crate) want: Want,
    /// Who is to be answered; nobody while the asker's stream is broken.
    pub(crate) request: Option<RequestId>,
    pub(crate) process: ProcessId,
    /// Through which it came.
    pub(crate) session: SessionId,
    pub(crate) account: NodeId,
    pub(crate) since: Time,
    pub(crate) barrier_at: Time,
    pub(crate) deadline: Option<Time>,
    pub(crate) shape: ShapeId,
    /// On each device, beyond contexts: the reserve of a lease; what a segment takes out of what is free.
    pub(crate) amount: Bytes,
    pub(crate) stage: Stage,
    pub(crate) seniority: Seniority,
    pub(crate) right: Right,
    /// Since when a guarantee covers it.
    pub(crate) covered_at: Time,
    /// The mutation in which the last guarantee let go of it: covered again in the same, it always was.
    pub(crate) uncovered_in: u64,
    /// How urgent it was when surplus was asked back for it.
    pub(crate) trimmed_as: Option<Urgency>,
    /// What it counts for, on each device, in the guarantees that cover it.
    pub(crate) covered: Vec<(DeviceId, Bytes)>,
}

impl Ask {
    pub(crate) const fn turn(&self) -> Turn {
        Turn { right: self.right, ask: self.id }
    }

    /// The lease that it wants a segment for.
    pub(crate) const fn grows(&self) -> Option<LeaseId> {
        match &self.want {
            Want::Lease { .. } | Want::Resume(_) => None,
            Want::Segment(wanted) => Some(wanted.lease),
        }
    }

    /// The lease that it wants memory for, if there is one already.
    pub(crate) const fn lease(&self) -> Option<LeaseId> {
        match &self.want {
            Want::Lease { .. } => None,
            Want::Segment(wanted) => Some(wanted.lease),
            Want::Resume(lease) => Some(*lease),
        }
    }

    /// Whether the fair order may grant it.
    pub(crate) const fn is_in_roster(&self) -> bool {
        match self.stage {
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving | Stage::Barrier { .. } => false,
            Stage::InLine => true,
        }
    }

    /// Whether it counts in a guarantee on the device.
    pub(crate) fn covers(&self, device: DeviceId) -> bool {
        self.covered.iter().any(|(covered, _)| *covered == device)
    }

    /// What it needs on the devices that it is bound to.
    pub(crate) fn needs(&self) -> &[(DeviceId, Bytes)] {
        match &self.stage {
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving | Stage::InLine => &[],
            Stage::Barrier { needs, .. } => needs,
        }
    }

    /// Where it stands as a barrier.
    pub(crate) const fn post(&self) -> Option<Post> {
        match &self.stage {
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving | Stage::InLine => None,
            Stage::Barrier { post, .. } => Some(*post),
        }
    }

    pub(crate) fn stand(&mut self, at: Post) {
        match &mut self.stage {
            Stage::Barrier { post, .. } => *post = at,
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving | Stage::InLine => {
                panic!("{} is {:?} and can't stand at {at:?}", self.id, self.stage)
            }
        }
    }
}

/// The gates of a path that an ask for this purpose passes, in order, at one account.
pub(crate) const fn resources(purpose: Use) -> &'static [Resource] {
    match purpose {
        Use::Lease => &[Resource::Slots, Resource::Bytes],
        Use::Growth | Use::Resume => &[Resource::Bytes],
    }
}
