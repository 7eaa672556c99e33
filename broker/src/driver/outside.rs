//! What of a device's capacity is with processes that no lease is charged for.
//!
//! The witness counts strangers. A process with a session is none to it: what it uses is its lease's
//! overhead. Without a lease nobody would be charged for it, which matters where it is more than a
//! context: memory of a former broker's leases that it has mapped still, or its own. A context
//! alone is left out, since an ask of the process brings it along.

use gpulease_arbiter::Event;
use gpulease_words::{Bytes, DeviceId, ProcessId};

use super::Driver;
use super::view::DeviceFacts;

impl Driver {
    /// The witness saw so much of a process.
    pub(super) fn keep_overhead(&mut self, process: ProcessId, device: DeviceId, bytes: Bytes) {
        self.overheads.insert((process, device), bytes);
        let context = self.device_facts(device).description.overhead_estimate;
        if bytes > context {
            self.large.insert((device, process), bytes.saturating_sub(context));
        } else {
            self.large.remove(&(device, process));
        }
    }

    /// The process is gone, or has no session and no lease any more.
    pub(super) fn forget_overheads(&mut self, process: ProcessId) {
        self.overheads.retain(|(known, _), _| *known != process);
        let before = self.large.len();
        self.large.retain(|(_, known), _| *known != process);
        if self.large.len() < before {
            // It may live, and be a stranger now.
            self.witness.iter().for_each(crate::witness::Witness::refresh_now);
        }
    }

    /// What is to be booked of a device whose figure is another than before.
    pub(super) fn changed_outside(&mut self) -> Option<Event> {
        let mut figures =
            self.facts.iter().map(|facts| (facts.id, facts.off_book, self.taken_outside(facts)));
        let (device, _, bytes) = figures.find(|(_, before, now)| before != now)?;
        self.device_facts(device).off_book = bytes;
        Some(Event::OffBook { device, bytes })
    }

    fn taken_outside(&self, facts: &DeviceFacts) -> Option<Bytes> {
        let on_it = self.large.range((facts.id, ProcessId::new(0))..);
        let on_it = on_it.take_while(|((device, _), _)| *device == facts.id);
        let unleased = on_it.filter(|((_, process), _)| !self.arbiter.charges(*process, facts.id));
        let more: Bytes = unleased.map(|(_, bytes)| *bytes).sum();
        Some(facts.strangers_have?.saturating_add(more.saturating_sub(facts.unmanaged)))
    }
}
