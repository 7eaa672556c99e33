//! Where guards are counted, and where a suspension keeps new ones out.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Where a lease's memory is, as far as its guards are concerned.
///
/// ```text
///   Here --close--> Leaving, guards inside --last leaves--> Leaving, drained --depart--> Away --return--> Here
///     ^                |  nested guards still pass               |                         |
///     +----reopen------+-----------------------------------------+                         +--lose--> Lost
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is here: guards pass.
    Here,
    /// It is here and wanted by others: only nested guards pass.
    Leaving,
    /// It is on its way out, away or on its way back: nobody passes.
    Away,
    /// It does not come back: the bytes are lost, or the broker that knew of them is.
    Lost,
}

/// Which absence of a lease's memory; an answer about an earlier one says nothing about the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Absence(u64);

/// The gate of one lease in this process.
#[derive(Debug)]
pub(crate) struct Gate {
    state: watch::Sender<Passage>,
}

#[derive(Clone, Copy, Debug)]
struct Passage {
    presence: Presence,
    absence: Absence,
    residents: usize,
    /// When the last guard left.
    quiet_since: Instant,
    /// Whether the next guard is to be told.
    watched: bool,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: watch::Sender::new(Passage {
                presence: Presence::Here,
                absence: Absence::default(),
                residents: 0,
                quiet_since: Instant::now(),
                watched: false,
            }),
        }
    }

    /// Counts a guard, unless it has to wait: a nested one never has to, or the process would wait for itself.
    pub(crate) fn try_pass(&self) -> bool {
        let mut passed = false;
        self.state.send_if_modified(|passage| {
            passed = passage.presence == Presence::Here || passage.residents > 0;
            passage.residents += usize::from(passed);
            passed && std::mem::take(&mut passage.watched)
        });
        passed
    }

    /// A guard is gone.
    pub(crate) fn leave(&self) {
        self.state.send_if_modified(|passage| {
            passage.residents = passage.residents.checked_sub(1).expect("who leaves had entered");
            if passage.residents == 0 {
                passage.quiet_since = Instant::now();
            }
            passage.presence == Presence::Leaving && passage.residents == 0
        });
    }

    pub(crate) fn presence(&self) -> Presence {
        self.state.borrow().presence
    }

    /// Where the memory is, and which absence that would be.
    pub(crate) fn absence(&self) -> (Presence, Absence) {
        let passage = self.state.borrow();
        (passage.presence, passage.absence)
    }

    /// Lets only nested guards pass from now on. Memory that is away, or seems so since the news that it is back has not
    /// come yet, is drained: [`Self::resume_leaving`] is for who knows that all of it is back.
    pub(crate) fn close(&self) {
        self.step(Presence::Here, Presence::Leaving);
    }

    /// All memory is back although nobody has said yet that guards may pass, and it is to leave again.
    pub(crate) fn resume_leaving(&self) {
        self.step(Presence::Away, Presence::Leaving);
    }

    /// Lets everyone pass again, where the memory has not left.
    pub(crate) fn reopen(&self) {
        self.step(Presence::Leaving, Presence::Here);
    }

    /// From now on the memory may be moved. Only after everyone has left: `None` else. What was on its way back and has
    /// to leave again is still the same absence.
    pub(crate) fn depart(&self) -> Option<Absence> {
        let mut departed = None;
        self.state.send_if_modified(|passage| {
            let leaves = passage.presence == Presence::Leaving && passage.residents == 0;
            if leaves {
                passage.presence = Presence::Away;
                passage.absence = Absence(passage.absence.0 + 1);
            }
            departed = Some(passage.absence).filter(|_| passage.presence == Presence::Away);
            leaves
        });
        departed
    }

    /// The memory is back from this absence: lets everyone pass.
    pub(crate) fn come_back(&self, from: Absence) {
        self.state.send_if_modified(|passage| {
            let back = passage.presence == Presence::Away && passage.absence == from;
            if back {
                passage.presence = Presence::Here;
                passage.quiet_since = Instant::now();
            }
            back
        });
    }

    /// The memory never comes back. Where it has not left this changes nothing.
    pub(crate) fn lose(&self) {
        self.step(Presence::Away, Presence::Lost);
    }

    /// Returns where the memory is once that is neither here nor there.
    pub(crate) async fn settled(&self) -> Presence {
        self.presence_when(|passage| passage.presence != Presence::Leaving).await
    }

    /// Returns where the memory is once that is something else than this.
    pub(crate) async fn changed_from(&self, presence: Presence) -> Presence {
        self.presence_when(|passage| passage.presence != presence).await
    }

    /// Returns when this absence is over, in whatever way.
    pub(crate) async fn over(&self, absence: Absence) {
        self.presence_when(|passage| passage.presence != Presence::Away || passage.absence != absence).await;
    }

    /// Returns when the gate is closed and nobody is inside.
    pub(crate) async fn drained(&self) {
        let drained = |passage: &Passage| passage.presence == Presence::Leaving && passage.residents == 0;
        self.presence_when(drained).await;
    }

    /// For how long there has been no guard; `None` while there is one, or the memory is not here.
    pub(crate) fn quiet_for(&self) -> Option<Duration> {
        let passage = self.state.borrow();
        let quiet = passage.residents == 0 && passage.presence == Presence::Here;
        quiet.then(|| passage.quiet_since.elapsed())
    }

    /// For how long there has been no guard, where that is at least so long. [`Self::disturbed`] then waits for the next
    /// guard from this moment on.
    pub(crate) fn fall_idle(&self, after: Duration) -> Option<Duration> {
        let mut idle = None;
        self.state.send_if_modified(|passage| {
            let quiet = passage.residents == 0 && passage.presence == Presence::Here;
            idle = Some(passage.quiet_since.elapsed()).filter(|time| quiet && *time >= after);
            passage.watched |= idle.is_some();
            false
        });
        idle
    }

    /// Returns when there was a guard after [`Self::fall_idle`].
    pub(crate) async fn disturbed(&self) {
        self.presence_when(|passage| !passage.watched).await;
    }

    fn step(&self, from: Presence, to: Presence) {
        self.state.send_if_modified(|passage| {
            let there = passage.presence == from;
            if there {
                passage.presence = to;
            }
            there
        });
    }

    async fn presence_when(&self, is_so: impl Fn(&Passage) -> bool) -> Presence {
        let mut state = self.state.subscribe();
        // The sender lives as long as we do, so that the wait can't fail.
        let found = state.wait_for(|passage| is_so(passage)).await;
        found.map_or(Presence::Lost, |passage| passage.presence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::thread;

    use crate::blocking::park::block_on;

    #[tokio::test]
    async fn a_closed_gate_passes_nested_guards_and_drains_with_the_last() {
        let gate = Arc::new(Gate::new());
        assert!(gate.try_pass());
        gate.close();
        assert!(gate.try_pass(), "a nested guard passes, or the process would wait for itself");
        assert_eq!(gate.depart(), None, "somebody is inside");
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.drained().await }
        });
        gate.leave();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        gate.leave();
        waiting.await.unwrap();
        assert!(!gate.try_pass(), "nobody is inside, so nobody passes");
        let entering = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move {
                assert_eq!(gate.settled().await, Presence::Here);
                gate.try_pass()
            }
        });
        gate.reopen();
        assert!(entering.await.unwrap());
    }

    #[test]
    fn an_answer_about_an_earlier_absence_opens_nothing() {
        let gate = Gate::new();
        assert_eq!(gate.depart(), None, "it is open");
        gate.close();
        let first = gate.depart().unwrap();
        assert_eq!(gate.depart(), Some(first), "what leaves again before it was back is still away");
        gate.reopen();
        assert_eq!(gate.presence(), Presence::Away, "what has left comes back, and does not reopen");
        gate.come_back(first);
        assert_eq!(gate.presence(), Presence::Here);
        gate.close();
        let second = gate.depart().unwrap();
        gate.come_back(first);
        assert_eq!(gate.presence(), Presence::Away);
        assert!(!gate.try_pass());
        gate.come_back(second);
        assert!(gate.try_pass());
        gate.lose();
        assert_eq!(gate.presence(), Presence::Here, "what is here is not lost");
    }

    #[tokio::test]
    async fn quiet_is_measured_from_the_last_guard_and_the_next_one_is_told() {
        let gate = Gate::new();
        assert!(gate.try_pass());
        assert_eq!((gate.quiet_for(), gate.fall_idle(Duration::ZERO)), (None, None), "somebody is inside");
        gate.leave();
        assert!(gate.quiet_for().is_some());
        assert_eq!(gate.fall_idle(Duration::from_secs(3600)), None);
        assert!(gate.fall_idle(Duration::ZERO).is_some());
        let mut disturbed = Box::pin(gate.disturbed());
        assert!(poll_once(disturbed.as_mut()).is_pending());
        drop(disturbed);
        // One who came and went before anybody waited is not forgotten.
        assert!(gate.try_pass());
        gate.leave();
        gate.disturbed().await;
        gate.close();
        assert_eq!(
            (gate.quiet_for(), gate.fall_idle(Duration::ZERO)),
            (None, None),
            "what leaves is not idle"
        );
    }

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Guards on several threads against suspensions without a pause: whoever is inside finds the memory there, and
    /// nobody sleeps through his wake-up (the test would not end).
    #[test]
    fn guards_and_suspensions_race_and_nobody_is_inside_while_the_memory_is_away() {
        const THREADS: u64 = 4;
        const SUSPENSIONS: u64 = 150;
        let (gate, away) = (Gate::new(), AtomicBool::new(false));
        let (inside, over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut passed = 0_u64;
                    while !over.load(Ordering::SeqCst) {
                        if !gate.try_pass() {
                            let (presence, absence) = gate.absence();
                            match presence {
                                Presence::Away => block_on(gate.over(absence)),
                                Presence::Here | Presence::Leaving | Presence::Lost => {
                                    block_on(gate.settled());
                                }
                            }
                            continue;
                        }
                        assert!(!away.load(Ordering::SeqCst), "inside while the memory is away");
                        passed += 1;
                        // Now and then a nested guard, which passes whatever happens.
                        if passed.is_multiple_of(3) {
                            assert!(gate.try_pass());
                            gate.leave();
                        }
                        assert!(!away.load(Ordering::SeqCst), "it left under a guard");
                        gate.leave();
                    }
                    inside.fetch_add(passed, Ordering::SeqCst);
                });
            }
            for suspension in 0..SUSPENSIONS {
                gate.close();
                block_on(gate.drained());
                if suspension % 5 == 0 {
                    gate.reopen();
                    continue;
                }
                let absence = gate.depart().expect("it is drained and nobody passes");
                away.store(true, Ordering::SeqCst);
                thread::yield_now();
                away.store(false, Ordering::SeqCst);
                gate.come_back(absence);
            }
            over.store(true, Ordering::SeqCst);
        });
        assert!(inside.load(Ordering::SeqCst) > 0);
    }
}
