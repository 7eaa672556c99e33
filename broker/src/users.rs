//! Names of users, from the host's name service.
//!
//! The service may be a slow server far away, so nobody waits for it on the driver's task, and
//! those who show names wait a moment at most: then a number stands for the name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gpulease_words::Uid;
use tokio::sync::{Semaphore, watch};

/// How long a reply waits for names that are being looked up.
const PATIENCE: Duration = Duration::from_millis(200);

/// Look-ups under way at one time.
const LOOKUPS: usize = 4;

/// Names kept; a host with more users forgets and asks again.
const REMEMBERED: usize = 16_384;

/// The names that are known.
#[derive(Debug)]
pub(crate) struct Names {
    known: Mutex<BTreeMap<Uid, Slot>>,
    answers: watch::Sender<u64>,
    lookups: Arc<Semaphore>,
}

#[derive(Debug)]
enum Slot {
    Asked,
    /// Asked so long ago that nobody waits for it any more.
    Slow,
    /// `None`: the user has no name.
    Told(Option<String>),
}

impl Names {
    pub(crate) fn new() -> Self {
        let lookups = Arc::new(Semaphore::new(LOOKUPS));
        Self { known: Mutex::default(), answers: watch::Sender::new(0), lookups }
    }

    /// The name, or the number where it is not known now. Never waits.
    pub(crate) fn known_or_number(&self, uid: Uid) -> String {
        match self.lock().get(&uid) {
            Some(Slot::Told(Some(name))) => name.clone(),
            Some(Slot::Told(None) | Slot::Asked | Slot::Slow) | None => uid.to_string(),
        }
    }

    /// Looks up those that are not known, and waits for them a moment. Then
    /// [`known_or_number`](Self::known_or_number) has what there is.
    pub(crate) async fn prepare(self: &Arc<Self>, uids: impl IntoIterator<Item = Uid>) {
        let uids: BTreeSet<_> = uids.into_iter().collect();
        let mut answers = self.answers.subscribe();
        for uid in self.to_ask(&uids) {
            tokio::spawn(self.clone().look_up(uid));
        }
        let all_told = answers.wait_for(|_| self.are_answered(&uids));
        if tokio::time::timeout(PATIENCE, all_told).await.is_err() {
            self.give_up_on(&uids);
        }
    }

    fn to_ask(&self, uids: &BTreeSet<Uid>) -> Vec<Uid> {
        let mut known = self.lock();
        if known.len() + uids.len() > REMEMBERED {
            known.retain(|_, slot| !matches!(slot, Slot::Told(_)));
        }
        let unknown: Vec<_> = uids.iter().copied().filter(|uid| !known.contains_key(uid)).collect();
        known.extend(unknown.iter().map(|uid| (*uid, Slot::Asked)));
        unknown
    }

    async fn look_up(self: Arc<Self>, uid: Uid) {
        let _turn = self.lookups.acquire().await.expect("the semaphore is never closed");
        let found = tokio::task::spawn_blocking(move || uzers::get_user_by_uid(uid.get())).await;
        let name = found.ok().flatten().map(|user| crate::text::shown(&user.name().to_string_lossy()));
        self.lock().insert(uid, Slot::Told(name));
        self.answers.send_modify(|count| *count += 1);
    }

    fn are_answered(&self, uids: &BTreeSet<Uid>) -> bool {
        let known = self.lock();
        !uids.iter().any(|uid| matches!(known.get(uid), Some(Slot::Asked)))
    }

    fn give_up_on(&self, uids: &BTreeSet<Uid>) {
        let mut known = self.lock();
        for uid in uids {
            if let Some(slot @ Slot::Asked) = known.get_mut(uid) {
                *slot = Slot::Slow;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uid, Slot>> {
        self.known.lock().expect("nothing panics while it holds the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn root_has_a_name_and_nobody_has_a_number() {
        let names = Arc::new(Names::new());
        let stranger = Uid::new(4_000_000_001);
        assert_eq!(names.known_or_number(Uid::new(0)), "0");
        names.prepare([Uid::new(0), stranger]).await;
        assert_eq!(names.known_or_number(Uid::new(0)), "root");
        assert_eq!(names.known_or_number(stranger), "4000000001");
    }
}
