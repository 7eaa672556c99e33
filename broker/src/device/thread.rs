//! The owner thread of a device: orders in, completions out.
//!
//! Memory that is taken back is asked after until it is proven free: at first within a fraction of
//! a millisecond, since a process that just unmapped or died frees soon, then less and less often.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, DeviceId, SegmentId};

use crate::worker::Worker;

use super::{Completion, Device, Done, HandleKind, Order, Proof};

/// After a segment was made or came back, the next may be asked for soon.
const TENDED_SOON: Duration = Duration::from_millis(1);

const FIRST_LOOK: Duration = Duration::from_micros(200);
const SLOWEST_LOOK: Duration = Duration::from_millis(50);
const OVERDUE_LOOK: Duration = Duration::from_secs(1);

/// So many are made ahead of what is to be taken back: some 20 ms, which no flood of small asks stretches.
const OVERTAKEN_MAX: usize = 16;

/// A running owner thread. It ends when this is dropped, and takes the device with it.
#[derive(Debug)]
pub(crate) struct OwnerThread {
    orders: Option<Sender<Order>>,
    thread: Option<Worker>,
}

impl OwnerThread {
    /// Gives the device to a thread of its own, which reports by `report`.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(crate) fn start(
        id: DeviceId,
        device: Box<dyn Device>,
        report: impl Fn(Completion) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = channel();
        let report = Box::new(move |done| report(Completion { device: id, done }));
        let (waiting, pending, tend, kept) = (VecDeque::new(), BTreeMap::new(), None, None);
        let owner =
            Owner { device: Health::Sound(device), waiting, overtaken: 0, pending, tend, kept, report };
        let thread = Worker::start(format!("device-{id}"), move || owner.run(&inbox))?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Orders something; what comes of it is reported.
    pub(crate) fn order(&self, order: Order) {
        let orders = self.orders.as_ref().expect("taken only by drop");
        orders.send(order).expect("the owner thread outlives its orders and catches the device's panics");
    }
}

impl Drop for OwnerThread {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
    }
}

enum Health {
    Sound(Box<dyn Device>),
    /// It panicked: what it holds is unknown, so nothing more is asked of it and nothing credited.
    Lost(String),
}

struct Pending {
    due: Instant,
    interval: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Expected,
    Reported,
}

struct Owner {
    device: Health,
    /// Orders that came while others were carried out.
    waiting: VecDeque<Order>,
    /// How many orders have gone ahead of the first of them.
    overtaken: usize,
    pending: BTreeMap<SegmentId, Pending>,
    /// When the device is to see to its hold.
    tend: Option<Instant>,
    /// What its hold had when that was last reported.
    kept: Option<Bytes>,
    report: Box<dyn Fn(Done) + Send>,
}

impl Owner {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            match self.next_order(inbox) {
                Ok(order) => self.carry_out(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look_after_due();
            if self.tend.is_some_and(|due| due <= Instant::now()) {
                self.tend();
            }
        }
    }

    /// Sees to the hold at the next moment, where there is one.
    fn tend_soon(&mut self) {
        self.tend = self.tend.map(|due| due.min(Instant::now() + TENDED_SOON));
    }

    fn tend(&mut self) {
        let again = self.call(|device| device.tend()).flatten();
        self.tend = again.map(|span| Instant::now() + span);
        let kept = self.call(|device| device.gauge().hold()).flatten();
        if kept != self.kept {
            self.kept = kept;
            (self.report)(Done::Kept);
        }
    }

    fn next_order(&mut self, inbox: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        self.waiting.extend(inbox.try_iter());
        if let Some(order) = self.first_waiting() {
            return Ok(order);
        }
        match self.pending.values().map(|pending| pending.due).chain(self.tend).min() {
            Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Memory that somebody waits for is made before other memory is taken back, which costs the driver a millisecond and more.
    /// It needs none of that: bytes are granted again once they are proven free. Who waits for those is not forgotten over it.
    fn first_waiting(&mut self) -> Option<Order> {
        let next = self.waiting.iter().position(|order| !matches!(order, Order::Reclaim(_)));
        let made = |at: &usize| matches!(self.waiting[*at], Order::Create { .. });
        match next.filter(|at| *at > 0 && self.overtaken < OVERTAKEN_MAX && made(at)) {
            Some(at) => {
                self.overtaken += 1;
                self.waiting.remove(at)
            }
            None => {
                self.overtaken = 0;
                self.waiting.pop_front()
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Create { segment, bytes, kind } => self.create(segment, bytes, kind),
            Order::Handed(segment, process) => drop(self.call(|device| device.handed(segment, process))),
            Order::Cover(cover) => {
                self.call(|device| device.cover(cover));
                self.tend();
            }
            Order::Reclaim(segment) => {
                self.call(|device| device.reclaim(segment));
                self.look(segment, FIRST_LOOK);
            }
        }
    }

    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) {
        let made = self.call(|device| device.create(segment, bytes, kind));
        (self.report)(match made {
            Some(Ok(handover)) => Done::Created(segment, handover),
            Some(Err(why)) => Done::CreateFailed(segment, why),
            None => Done::CreateFailed(segment, self.trouble()),
        });
        if kind == HandleKind::DescriptorToFollow {
            self.call(|device| device.export(segment));
        }
        // What it was made of may be made up for.
        self.tend_soon();
    }

    fn look_after_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.pending.iter().filter(|(_, p)| p.due <= now).map(|(s, p)| (*s, p.interval)).collect();
        for (segment, interval) in due {
            self.look(segment, (interval * 2).min(SLOWEST_LOOK));
        }
    }

    /// Asks after a segment, and again after `interval` where it is not free yet.
    fn look(&mut self, segment: SegmentId, interval: Duration) {
        let reported = self.pending.remove(&segment).is_some_and(|p| p.stage == Stage::Reported);
        let (interval, stage) = match self.call(|device| device.prove(segment)) {
            Some(Proof::Freed) => {
                self.tend_soon();
                return (self.report)(Done::Freed(segment));
            }
            Some(Proof::NotYet) if reported => (OVERDUE_LOOK, Stage::Reported),
            Some(Proof::NotYet) => (interval, Stage::Expected),
            Some(Proof::Missing) => {
                (self.report)(Done::Missing);
                (interval, if reported { Stage::Reported } else { Stage::Expected })
            }
            Some(Proof::Overdue(_)) if reported => (OVERDUE_LOOK, Stage::Reported),
            Some(Proof::Overdue(suspects)) => {
                (self.report)(Done::Unproven(segment, suspects));
                (OVERDUE_LOOK, Stage::Reported)
            }
            None => return (self.report)(Done::Unproven(segment, Vec::new())),
        };
        self.pending.insert(segment, Pending { due: Instant::now() + interval, interval, stage });
    }

    /// Calls the device, `None` where it is lost; a panic loses it.
    fn call<T>(&mut self, what: impl FnOnce(&mut dyn Device) -> T) -> Option<T> {
        let Health::Sound(device) = &mut self.device else {
            return None;
        };
        match catch_unwind(AssertUnwindSafe(|| what(&mut **device))) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                self.lose(&*panic);
                None
            }
        }
    }

    fn lose(&mut self, panic: &(dyn std::any::Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let why = format!("the device's code failed: {text}");
        let lost = std::mem::replace(&mut self.device, Health::Lost(why.clone()));
        // Its destructor could panic once more, and would give back memory that may still be mapped.
        std::mem::forget(lost);
        (self.report)(Done::Lost(why));
    }

    fn trouble(&self) -> String {
        match &self.device {
            Health::Sound(_) => String::new(),
            Health::Lost(why) => why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Description, Descriptors, Gauge, Handover, Kind};
    use gpulease_words::{Pid, mib};
    use std::sync::{Arc, Mutex};

    const ID: DeviceId = DeviceId::new(0);
    const SEGMENT: SegmentId = SegmentId::new(7);
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A device that gives prepared proofs, and panics when they are used up.
    struct Prepared {
        description: Description,
        proofs: Arc<Mutex<Vec<Proof>>>,
        /// While somebody else has it, nothing is taken back.
        stays: Arc<Mutex<()>>,
    }

    impl Device for Prepared {
        fn description(&self) -> &Description {
            &self.description
        }

        fn create(&mut self, _: SegmentId, bytes: Bytes, _: HandleKind) -> Result<Handover, String> {
            if bytes.is_zero() {
                Err("no bytes".into())
            } else {
                Ok(Handover::Descriptors(Descriptors::default()))
            }
        }

        fn reclaim(&mut self, _: SegmentId) {
            drop(self.stays.lock().expect("sound"));
        }

        fn prove(&mut self, _: SegmentId) -> Proof {
            self.proofs.lock().expect("sound").pop().expect("a prepared proof")
        }

        fn gauge(&self) -> Arc<Gauge> {
            Arc::default()
        }
    }

    /// The proofs come from the end of the list.
    fn started(proofs: Vec<Proof>) -> (OwnerThread, Receiver<Completion>) {
        started_with(proofs, Arc::default())
    }

    fn started_with(proofs: Vec<Proof>, stays: Arc<Mutex<()>>) -> (OwnerThread, Receiver<Completion>) {
        let description = Description {
            kind: Kind::Host,
            uuid: "host-0".into(),
            name: "prepared".into(),
            total: mib(64),
            overhead_estimate: Bytes::ZERO,
        };
        let device = Prepared { description, proofs: Arc::new(Mutex::new(proofs)), stays };
        let (report, reports) = channel();
        let report = move |completion| report.send(completion).expect("the test listens");
        (OwnerThread::start(ID, Box::new(device), report).expect("a thread"), reports)
    }

    fn next(reports: &Receiver<Completion>) -> Done {
        reports.recv_timeout(PATIENCE).expect("a report in time").done
    }

    fn create(bytes: Bytes) -> Order {
        Order::Create { segment: SEGMENT, bytes, kind: HandleKind::Descriptor }
    }

    #[test]
    fn what_is_ordered_is_reported() {
        let (thread, reports) = started(vec![Proof::Freed, Proof::NotYet, Proof::NotYet]);
        thread.order(create(Bytes::ZERO));
        assert!(matches!(next(&reports), Done::CreateFailed(SEGMENT, why) if why == "no bytes"));
        thread.order(create(mib(2)));
        assert!(matches!(next(&reports), Done::Created(SEGMENT, _)));
        thread.order(Order::Reclaim(SEGMENT));
        assert!(matches!(next(&reports), Done::Freed(SEGMENT)));
        drop(thread);
        assert!(reports.recv().is_err(), "nothing more");
    }

    #[test]
    fn what_is_made_goes_ahead_of_what_is_taken_back() {
        let stays = Arc::new(Mutex::new(()));
        let (thread, reports) = started_with(vec![Proof::Freed; 3], Arc::clone(&stays));
        let busy = stays.lock().expect("sound");
        let taken_back = [1, 2, 3].map(SegmentId::new);
        taken_back.into_iter().for_each(|segment| thread.order(Order::Reclaim(segment)));
        thread.order(create(mib(2)));
        drop(busy);
        // The first may have been under way.
        let mut seen: Vec<_> = (0..4).map(|_| next(&reports)).collect();
        let made =
            seen.iter().position(|done| matches!(done, Done::Created(SEGMENT, _))).expect("it is made");
        assert!(made <= 1, "after {made} were taken back: {seen:?}");
        seen.remove(made);
        let in_order = |(done, id): (&Done, SegmentId)| matches!(done, Done::Freed(freed) if *freed == id);
        assert!(seen.iter().zip(taken_back).all(in_order), "{seen:?}");
        drop(thread);
    }

    #[test]
    fn a_flood_of_asks_does_not_keep_what_is_taken_back() {
        let stays = Arc::new(Mutex::new(()));
        let (thread, reports) = started_with(vec![Proof::Freed; 2], Arc::clone(&stays));
        let busy = stays.lock().expect("sound");
        [1, 2].into_iter().for_each(|segment| thread.order(Order::Reclaim(SegmentId::new(segment))));
        (0..3 * OVERTAKEN_MAX).for_each(|_| thread.order(create(mib(2))));
        drop(busy);
        let mut made = 0;
        while !matches!(next(&reports), Done::Freed(segment) if segment == SegmentId::new(2)) {
            made += 1;
        }
        // The first was taken back before it, or is among those that were overtaken, too.
        assert!(made <= 2 * OVERTAKEN_MAX + 1, "{made} went ahead");
        drop(thread);
    }

    #[test]
    fn an_overdue_segment_is_reported_once_and_freed_all_the_same() {
        let overdue = Proof::Overdue(vec![Pid::new(4)]);
        let (thread, reports) = started(vec![Proof::Freed, Proof::NotYet, overdue.clone(), overdue]);
        thread.order(Order::Reclaim(SEGMENT));
        assert!(matches!(next(&reports), Done::Unproven(SEGMENT, pids) if pids == [Pid::new(4)]));
        assert!(matches!(next(&reports), Done::Freed(SEGMENT)));
        drop(thread);
    }

    #[test]
    fn a_device_that_panics_is_lost_and_not_asked_again() {
        let (thread, reports) = started(Vec::new());
        thread.order(Order::Reclaim(SEGMENT));
        assert!(matches!(next(&reports), Done::Lost(why) if why.contains("a prepared proof")));
        assert!(matches!(next(&reports), Done::Unproven(SEGMENT, pids) if pids.is_empty()));
        thread.order(create(mib(2)));
        assert!(matches!(next(&reports), Done::CreateFailed(SEGMENT, why) if why.contains("failed")));
        drop(thread);
    }
}
