//! What happens to devices without any lease's doing.

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::line::ask::{Post, Want};
use crate::{Arbiter, Denial};

impl Arbiter {
    pub(crate) fn off_book(&mut self, device: DeviceId, bytes: Option<Bytes>) {
        if self.ledger.get(device).is_some() {
            self.ledger.set_off_book(device, bytes);
            // What a guarantee could not cover for lack of memory it may cover now.
            self.accounts.ease_all();
        }
    }

    /// Looks at every ask: what can't be granted without the device is refused.
    pub(crate) fn device_lost(&mut self, device: DeviceId) {
        if self.ledger.get(device).is_none() {
            return;
        }
        self.ledger.lose(device);
        // What contexts cost at least depends on the devices that are left, and what may pass an account on that.
        self.accounts.touch_all();
        let asks: Vec<AskId> = self.line.asks.keys().copied().collect();
        for id in asks {
            if let Some(denial) =
                self.line.asks.contains_key(&id).then(|| self.hopeless_without(id, device)).flatten()
            {
                self.refuse_ask(id, denial);
            } else if self.line.asks.get(&id).is_some_and(|ask| ask.needs().iter().any(|(d, _)| *d == device))
            {
                self.line.rise_again(id, &mut self.accounts, &self.ledger);
            }
        }
    }

    fn hopeless_without(&self, id: AskId, device: DeviceId) -> Option<Denial> {
        let ask = self.line.get(id);
        match &ask.want {
            // It waits for the device to come back: it has nowhere else to go.
            Want::Resume(_) => None,
            Want::Segment(wanted) => (wanted.device == device).then_some(Denial::DeviceLost { device }),
            Want::Lease { terms, .. } => {
                let fit =
                    |()| self.can_ever_fit(ask.process, ask.account, self.line.shape_of(ask), ask.amount);
                self.present(&terms.devices).and_then(fit).err()
            }
        }
    }
}

impl Post {
    /// Whether the barrier holds anything back on its devices.
    pub(crate) const fn collects(self) -> bool {
        match self {
            Self::Collecting => true,
            Self::Hopeless | Self::Parked(..) => false,
        }
    }
}
