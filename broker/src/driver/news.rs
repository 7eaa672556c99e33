//! What happens outside, as events.

use gpulease_arbiter::{Event, RequestId};
use gpulease_words::{Bytes, DeviceId, ProcessId};

use super::command::{Left, World};
use super::requests::{AskKey, Pending};
use super::{Driver, Mode};
use crate::device::{Completion, Done};
use crate::witness::{Testimony, Witness};

use super::view::DeviceFacts;

impl Driver {
    pub(super) fn hear(&mut self, news: World) {
        if self.mode == Mode::Stopping {
            return;
        }
        match news {
            World::Device(completion) => self.complete(completion),
            World::Died(process) => self.bury(process),
            World::Witness(device, testimony) => self.book(device, testimony),
            World::Left(Left::Request(request)) => self.leave(request),
            World::Left(Left::Stream(session, number)) => {
                if self.sessions.detach(session, number) {
                    self.step(Event::Adrift { session });
                }
            }
            World::Claimed(segment) => {
                if self.segments.is_out(segment) {
                    self.step(Event::Claimed { segment });
                }
            }
            World::Acknowledged(segment) => {
                let request = self.segments.acknowledged(segment);
                request.into_iter().for_each(|request| self.requests.forget_request(request));
            }
            World::Arena => self.publication.mark_stale(),
            World::Stop => self.stop(),
        }
    }

    fn complete(&mut self, Completion { device, done }: Completion) {
        match done {
            Done::Created(segment, handover) => {
                self.segments.made(segment, handover);
                self.step(Event::Created { segment });
            }
            Done::CreateFailed(segment, why) => self.step(Event::CreateFailed { segment, why }),
            Done::Kept => self.publication.mark_stale(),
            Done::Missing => self.witness.iter().for_each(Witness::refresh_now),
            Done::Freed(segment) => self.step(Event::Freed { segment }),
            Done::Unproven(segment, suspects) => self.step(Event::Unproven { segment, suspects }),
            Done::Lost(why) => {
                tracing::error!(%device, why, "a device is lost");
                self.device_facts(device).trouble = Some(why);
                self.step(Event::DeviceLost { device });
            }
        }
    }

    fn bury(&mut self, process: ProcessId) {
        if self.processes.contains_key(&process) {
            self.step(Event::Died { process });
            self.drop_process(process);
            self.witness.iter().for_each(Witness::refresh_now);
        }
    }

    /// Takes the witness's word where it is a new one. What has grown is booked first, so that no byte is free in between.
    fn book(&mut self, device: DeviceId, testimony: Testimony) {
        let Testimony { used, off_book, unmanaged, overheads, strangers } = testimony;
        let facts = self.device_facts(device);
        if (&facts.used, &facts.strangers) != (&used, &strangers) {
            (facts.used, facts.strangers) = (used, strangers);
            self.publication.mark_stale();
        }
        let facts = self.device_facts(device);
        let grown = off_book > facts.strangers_have;
        if grown {
            self.book_off_book(device, off_book, unmanaged);
        }
        let known = |process: &ProcessId| self.overheads.get(&(*process, device)).copied();
        let mut changed: Vec<_> =
            overheads.into_iter().filter(|(process, bytes)| known(process) != Some(*bytes)).collect();
        changed.sort_by_key(|(process, bytes)| known(process) > Some(*bytes));
        for (process, bytes) in changed {
            if self.processes.contains_key(&process) {
                self.keep_overhead(process, device, bytes);
                self.step(Event::Overhead { process, device, bytes });
            }
        }
        if !grown {
            self.book_off_book(device, off_book, unmanaged);
        }
    }

    fn book_off_book(&mut self, device: DeviceId, bytes: Option<Bytes>, unmanaged: Bytes) {
        let facts = self.device_facts(device);
        (facts.strangers_have, facts.unmanaged) = (bytes, unmanaged);
        self.work_off();
    }

    /// A caller went away, perhaps after his answer was on its way.
    fn leave(&mut self, request: RequestId) {
        match self.requests.find(request) {
            Some(Pending::Segment { .. }) => self.abandon(request),
            Some(Pending::Ask { .. }) => {
                drop(self.requests.take(request));
                self.leave_unattended(request);
            }
            None => match self.segments.answer_to(request) {
                Some(segment) => self.free_undelivered(segment),
                None => self.leave_unattended(request),
            },
            Some(
                Pending::Open { .. }
                | Pending::Plain(_)
                // The wish for a lease's memory outlives the stream on which it was put.
                | Pending::Resume { .. }
                | Pending::Admit { .. }
                | Pending::Budgets { .. }
                | Pending::Lease(_)
                | Pending::Amount(_)
                | Pending::Unheard,
            ) => {}
        }
    }

    /// An older call's leaving means nothing where a newer one took its ask up.
    fn leave_unattended(&mut self, request: RequestId) {
        if let Some(AskKey { session, name }) = self.requests.key_of(request) {
            self.requests.forget_request(request);
            self.step(Event::Unattended { session, ask_name: name });
        }
    }

    pub(super) fn device_facts(&mut self, device: DeviceId) -> &mut DeviceFacts {
        let found = self.facts.iter_mut().find(|facts| facts.id == device);
        found.expect("news come only of devices that the broker has")
    }
}
