//! The wait at the start for what strangers hold.

use std::collections::BTreeSet;
use std::time::Duration;

use gpulease_words::DeviceId;
use tokio::sync::mpsc;

/// How long the first look at the cards may take; it takes a tenth of a second.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// Waits until the witness has seen each card: before that, what strangers hold would be granted.
pub(super) struct FirstLook {
    pub(super) awaited: BTreeSet<DeviceId>,
    pub(super) looks: mpsc::UnboundedReceiver<DeviceId>,
}

impl FirstLook {
    pub(super) async fn wait(&mut self) {
        let all = async {
            while !self.awaited.is_empty() {
                match self.looks.recv().await {
                    Some(device) => drop(self.awaited.remove(&device)),
                    None => return,
                }
            }
        };
        let seen = tokio::time::timeout(FIRST_LOOK, all).await;
        if seen.is_err() {
            let unseen: Vec<String> = self.awaited.iter().map(ToString::to_string).collect();
            tracing::warn!(
                "what others use of device {} is not known yet: NVML has not answered for {FIRST_LOOK:?}, and what they hold may be granted until it does (nvidia-persistenced makes it answer sooner)",
                unseen.join(", ")
            );
        }
    }
}
