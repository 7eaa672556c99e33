//! An ask under its name, from its putting to its answer, and what happens when it is given up.

use std::pin::{Pin, pin};
use std::time::Duration;

use gpulease_proto::v1;
use tonic::Status;

use crate::debts::{Debt, Owed};
use crate::duty::Duty;
use crate::engine::Share;
use crate::error::Error;
use crate::leases::Epoch;
use crate::link::{Trouble, trouble};
use crate::reply::passing;
use crate::session::Session;

/// How long a withdrawn ask may take to be answered before the withdrawal is said again: it can
/// overtake the ask, and then meets nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A call that is under way; boxed, since it outlives the future that made it when that is dropped.
pub(crate) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why one putting of an ask brought nothing.
pub(crate) enum Unanswered {
    Denied(v1::Denied),
    Trouble(Trouble),
}

impl Unanswered {
    pub(crate) fn from_denied(denied: v1::Denied) -> Self {
        match passing(&denied) {
            Some(why) => Self::Trouble(Trouble::Broken(why.to_owned())),
            None => Self::Denied(denied),
        }
    }

    pub(crate) fn from_status(request: &'static str, status: &Status) -> Self {
        Self::Trouble(trouble(request, status))
    }

    pub(crate) fn failed(error: Error) -> Self {
        Self::Trouble(Trouble::Failed(error))
    }
}

/// An ask that the broker has and that is not answered yet.
pub(crate) trait Pending: Send + 'static {
    /// What its answer is, once there is one.
    fn end(self) -> impl Future<Output = End> + Send;
}

/// What became of an ask that nobody wants any more.
pub(crate) enum End {
    /// It was refused.
    Nothing,
    /// It was granted, and this gives it back.
    Brought(Duty),
    /// Nobody knows, since the connection broke.
    Unknown,
}

/// An ask by its name. Dropped before it was answered, it is withdrawn; what it brings all the same
/// is given back.
pub(crate) struct Named<P: Pending> {
    session: Share<Session>,
    pub(crate) name: u64,
    course: Course<P>,
}

enum Course<P> {
    /// The broker knows nothing of it, or has answered it.
    Clear,
    Put(Epoch, P),
    /// It was put, and the connection broke.
    CutOff(Epoch),
}

impl<P: Pending> Named<P> {
    pub(crate) fn new(session: &Share<Session>) -> Self {
        Self { session: session.clone(), name: session.next_name(), course: Course::Clear }
    }

    /// Notes that it is on its way.
    pub(crate) fn put(&mut self, epoch: Epoch, pending: P) {
        self.course = Course::Put(epoch, pending);
    }

    /// What is under way.
    pub(crate) fn pending(&mut self) -> &mut P {
        match &mut self.course {
            Course::Put(_, pending) => pending,
            Course::Clear | Course::CutOff(_) => panic!("an ask is followed after it was put"),
        }
    }

    /// It is answered: nothing is left to withdraw. Returns what was under way.
    pub(crate) fn settle(&mut self) -> Option<P> {
        match std::mem::replace(&mut self.course, Course::Clear) {
            Course::Put(_, pending) => Some(pending),
            Course::Clear | Course::CutOff(_) => None,
        }
    }

    /// The connection broke under it.
    pub(crate) fn cut_off(&mut self) {
        if let Course::Put(epoch, _) = self.course {
            self.course = Course::CutOff(epoch);
        }
    }

    /// Withdraws it after it was cut off, and waits until the broker has done so.
    pub(crate) async fn withdraw(&mut self) -> Result<(), Error> {
        if let Course::CutOff(epoch) = self.course {
            self.session.withdraw(epoch, self.name).await?;
            self.course = Course::Clear;
        }
        Ok(())
    }
}

impl<P: Pending> Drop for Named<P> {
    fn drop(&mut self) {
        let (session, name) = (&self.session, self.name);
        match std::mem::replace(&mut self.course, Course::Clear) {
            Course::Clear => {}
            // The call is the parent's in a forked child, and its locks may be held for ever.
            Course::Put(_, pending) if session.is_forked() => std::mem::forget(pending),
            Course::CutOff(_) if session.is_forked() => {}
            Course::Put(epoch, pending) => {
                let debt = session.debts.incur(Owed::Else);
                session.engine.handle().spawn(give_up(session.clone(), debt, (epoch, name), pending));
            }
            Course::CutOff(epoch) => Duty::Withdraw(epoch, name).discharge(session),
        }
    }
}

/// Says that an ask is withdrawn until it is answered, and gives back what the answer brings.
async fn give_up<P: Pending>(session: Share<Session>, debt: Debt, (epoch, name): (Epoch, u64), pending: P) {
    let mut end = pin!(pending.end());
    let mut pause = FIRST_PAUSE;
    let end = loop {
        // A failure here shows at the call itself, too.
        let withdrawn = session.withdraw(epoch, name).await;
        if let Err(error) = &withdrawn {
            tracing::debug!(%error, "gpulease: a withdrawal failed");
        }
        match tokio::time::timeout(pause, &mut end).await {
            Ok(end) => break end,
            Err(_) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    };
    match end {
        End::Nothing => {}
        End::Brought(duty) => duty.perform(&session).await,
        End::Unknown => Duty::Withdraw(epoch, name).perform(&session).await,
    }
    drop(debt);
}
