//! A segment's descriptors, which may follow the word that it is made.
//!
//! To export memory takes the driver longer than to make it. Who asked is told meanwhile, so that
//! his claim is on its way by then; it waits for the descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpulease_words::Bytes;
use tokio::sync::watch;

/// One descriptor per chunk, in address order.
pub type Chunks = Vec<(OwnedFd, Bytes)>;

type Delivery = Result<Arc<Chunks>, String>;

const GIVEN_UP: &str =
    "the device was lost before it exported the segment; free it, and see `gpulease doctor`";

/// A segment's only way to a client: whoever drops them ends every claim that was not made yet.
#[derive(Clone, Debug)]
pub enum Descriptors {
    /// They are here.
    Here(Arc<Chunks>),
    /// The device owes them.
    Owed(Owed),
}

/// Descriptors that follow.
#[derive(Clone, Debug)]
pub struct Owed(watch::Receiver<Option<Delivery>>);

/// The device's side of [`Owed`]. Dropping it says that they never come.
#[derive(Debug)]
pub struct Promise(watch::Sender<Option<Delivery>>);

impl Default for Descriptors {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Chunks> for Descriptors {
    fn from(chunks: Chunks) -> Self {
        Self::Here(Arc::new(chunks))
    }
}

impl Descriptors {
    /// Descriptors that follow, and the promise of them.
    #[must_use]
    pub fn owed() -> (Promise, Self) {
        let (sender, receiver) = watch::channel(None);
        (Promise(sender), Self::Owed(Owed(receiver)))
    }

    /// The descriptors, as soon as they are there.
    ///
    /// # Errors
    /// A sentence, where the device could not export the segment.
    pub async fn arrive(&self) -> Result<Arc<Chunks>, String> {
        match self {
            Self::Here(chunks) => Ok(chunks.clone()),
            Self::Owed(Owed(delivery)) => {
                let mut delivery = delivery.clone();
                let delivered = delivery.wait_for(Option::is_some).await.map_err(|_| GIVEN_UP.to_owned())?;
                delivered.clone().expect("it was waited for")
            }
        }
    }
}

impl Promise {
    /// They are there, or can't be had. Descriptors that nobody waits for any more are closed.
    pub fn keep(self, delivery: Result<Chunks, String>) {
        drop(self.0.send(Some(delivery.map(Arc::new))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    fn descriptor() -> (UnixStream, Chunks) {
        let (near, far) = UnixStream::pair().expect("sockets");
        far.set_nonblocking(true).expect("set");
        (far, vec![(near.into(), gpulease_words::mib(2))])
    }

    fn is_closed(mut far: &UnixStream) -> bool {
        matches!(far.read(&mut [0]), Ok(0))
    }

    #[tokio::test]
    async fn who_waits_gets_what_follows_and_all_get_the_same() {
        let (promise, owed) = Descriptors::owed();
        let other = owed.clone();
        let waiting = tokio::spawn(async move { other.arrive().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "nothing is there yet");
        let (far, chunks) = descriptor();
        promise.keep(Ok(chunks));
        let first = waiting.await.expect("no panic").expect("they came");
        assert!(Arc::ptr_eq(&first, &owed.arrive().await.expect("they are here")));
        drop(first);
        assert!(!is_closed(&far), "a claim can still be made");
        drop(owed);
        assert!(is_closed(&far));
    }

    #[tokio::test]
    async fn what_can_not_be_exported_is_said() {
        let (promise, owed) = Descriptors::owed();
        promise.keep(Err("no descriptor is left".to_owned()));
        assert_eq!(owed.arrive().await.expect_err("it failed"), "no descriptor is left");
        let (promise, owed) = Descriptors::owed();
        drop(promise);
        assert_eq!(owed.arrive().await.expect_err("it never comes"), GIVEN_UP);
    }

    #[test]
    fn what_nobody_waits_for_is_closed() {
        let (promise, owed) = Descriptors::owed();
        drop(owed);
        let (far, chunks) = descriptor();
        promise.keep(Ok(chunks));
        assert!(is_closed(&far));
    }
}
