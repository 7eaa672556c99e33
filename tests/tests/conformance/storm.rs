//! Segments that come and go on a device with a hold, beside an outsider that takes whatever he can get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpulease_broker::device::{Cover, Handover, Proof};
use gpulease_tests::dice::Dice;
use gpulease_tests::on_cards;
use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, Pid, SegmentId, gib, mib};

use super::bench::{Bench, Subject, Temper, chunks, faults, holding, sum};
use super::held::{CONTEXT, HEADROOM, grab, puppet, standin};

/// A user that is on every system and has no rights.
const NOBODY: u32 = 65_534;

/// What of a card is the broker's own.
const BROKER_SHARE: Bytes = mib(8);

on_cards! {
    /// While segments come and go somebody takes whatever he can get, at the very moments too in which they come free.
    fn a_storm_leaves_an_outsider_the_headroom_and_no_reserve_fails([large()]) {
        for seed in seeds() {
            let Some(outsider) = of_another_user() else { return };
            println!("measured: seed {seed}: {}", Storm::new(seed, outsider).run());
        }
    }

    /// He takes all of it in the instant in which it comes free, before the broker can make it anew. He is no holder of
    /// the segment, but off the book, and it is free when the books know that. He is of the user whose segments they
    /// are, and so he is believed up to a limit.
    fn who_is_faster_than_the_broker_is_off_the_book([standin()]) {
        let mut storm = Storm::new(0, puppet());
        grab(&storm.outsider, &mut 0);
        storm.book();
        let before = storm.room();
        let segment = storm.lose(mib(64));
        assert_eq!(storm.subject.device.prove(segment), Proof::Missing, "the books promise what is not there");
        storm.book();
        assert_eq!(storm.room(), before.saturating_sub(mib(64)));
        assert_eq!(storm.subject.device.prove(segment), Proof::Freed);
        // Where nobody can tell who has it, it is free after a while all the same.
        let (segment, start) = (storm.lose(mib(64)), Instant::now());
        storm.subject.until_freed(segment);
        assert!(start.elapsed() > Duration::from_millis(1_500), "{:?}", start.elapsed());
        // So much at a time might be a segment that was passed on.
        storm.book();
        let segment = storm.lose(gib(1));
        assert_eq!(storm.subject.until_suspected(segment), [Pid::new(storm.outsider.pid())]);
        storm.outsider.must(&format!("free all-{segment}"));
        storm.until_freed(segment);
    }

    /// The same beside a tenant that keeps what it mapped after it was taken back.
    fn in_a_storm_who_keeps_a_mapping_is_never_credited([large()]) {
        let Some(outsider) = of_another_user() else { return };
        let mut storm = Storm::new(77, outsider);
        let liar = Bench::gpu(Temper::Sound).process();
        let (kept, handover) = storm.make(mib(64));
        let pieces = chunks(&handover).len();
        storm.subject.device.handed(kept, liar.pid());
        liar.map("kept", &handover);
        storm.charged = mib(64);
        let grabbing = Grabbing::start(&storm.outsider);
        storm.subject.take_back(kept, handover);
        for _ in 0..30 {
            storm.step();
            assert_ne!(storm.subject.device.prove(kept), Proof::Freed, "its tenant maps it");
        }
        assert_eq!(storm.subject.until_suspected(kept), [liar.pid()]);
        liar.unmap("kept", pieces);
        storm.until_freed(kept);
        grabbing.end();
    }
}

/// One with room for all that an outsider can win in a storm: what he wins is not there for reserves.
fn large() -> Gpu {
    Gpu::Standin(Standin::with(&[("BYTES", "24GiB")]))
}

/// One whose memory is nobody's lease; `None`, and a line, where this test may not start any.
fn of_another_user() -> Option<Puppet> {
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return None;
    }
    Some(Puppet::start_with(&Gpu::Real(Turn::unneeded()), |command| command.uid(NOBODY).gid(NOBODY)))
}

/// The seeds of the storms; `GPULEASE_STORM_SEED` replays one.
fn seeds() -> Vec<u64> {
    match std::env::var("GPULEASE_STORM_SEED") {
        Ok(seed) => vec![seed.parse().expect("a seed is a number")],
        Err(_) => (1..=3).collect(),
    }
}

/// Segments within a reserve that come and go, and somebody who takes what he can.
struct Storm {
    subject: Subject,
    /// Looks at the card, as the witness does.
    watcher: Puppet,
    outsider: Arc<Puppet>,
    dice: Dice,
    live: Vec<(SegmentId, Handover, Bytes)>,
    /// Within the reserve, and on its way back.
    charged: Bytes,
    /// What went to the driver.
    returned: Bytes,
    /// Of pieces that were larger than what was needed, and went to the driver for it.
    melted: Bytes,
    slowest: Duration,
}

const RESERVE: Bytes = gib(4);

/// Of a storm; each is many calls of a driver that others call all the time.
const STEPS: u32 = 60;

impl Storm {
    fn new(seed: u64, outsider: Puppet) -> Self {
        outsider.must("context 0");
        let (dice, live, charged) = (Dice::new(seed), Vec::new(), Bytes::ZERO);
        let mut storm = Self {
            subject: Subject::of(holding(HEADROOM)),
            watcher: puppet(),
            outsider: Arc::new(outsider),
            dice,
            live,
            charged,
            returned: Bytes::ZERO,
            melted: Bytes::ZERO,
            slowest: Duration::ZERO,
        };
        storm.book();
        storm
    }

    fn run(mut self) -> String {
        let grabbing = Grabbing::start(&self.outsider);
        for _ in 0..STEPS {
            self.step();
        }
        let gain = grabbing.end();
        let most = sum(&[HEADROOM.saturating_sub(CONTEXT), self.returned, self.melted]);
        assert!(gain <= most, "{gain} of {most}, {} of it where pieces were too large", self.melted);
        // To the byte: what he has is not in the hold, and nothing else is missing.
        self.book();
        self.subject.device.tend();
        let room = self.room();
        let held = self.subject.held();
        let short = room.saturating_sub(sum(&[held, self.subject.made()])).round_down();
        assert_eq!(short, Bytes::ZERO, "{held} are held of {room}");
        format!(
            "an outsider got {gain} of a headroom of {HEADROOM} while {} came back, each within {:?}, and {} where \
             pieces were too large",
            self.returned, self.slowest, self.melted
        )
    }

    /// A segment, given to a process of this test's user.
    fn make(&mut self, bytes: Bytes) -> (SegmentId, Handover) {
        let made = self.subject.make(bytes);
        self.subject.device.handed(made.0, Pid::new(std::process::id()));
        made
    }

    /// A segment is taken back while somebody is faster than the broker.
    fn lose(&mut self, bytes: Bytes) -> SegmentId {
        let (segment, handover) = self.make(bytes);
        faults("cuMemCreate 1 hold 30");
        let (outsider, size) = (Arc::clone(&self.outsider), bytes.get());
        let command = format!("alloc all-{segment} 0 {size}B");
        let taking = thread::spawn(move || {
            let start = Instant::now();
            while let Err(why) = outsider.ask(&command) {
                assert!(start.elapsed() < Duration::from_secs(60), "the outsider is never faster: {why}");
            }
            faults("");
        });
        self.subject.take_back(segment, handover);
        taking.join().expect("the outsider gets it");
        segment
    }

    /// A segment is made, or one is taken back.
    fn step(&mut self) {
        let wish = [mib(2), mib(64), mib(100), mib(1000), gib(1)][self.dice.below(5) as usize];
        if self.charged.saturating_add(wish) <= RESERVE {
            let held = self.subject.held();
            let (segment, handover) = self.make(wish);
            // What it took beyond that somebody else was faster to take.
            let lost = held.saturating_sub(wish).saturating_sub(self.subject.held());
            self.melted = self.melted.saturating_add(lost);
            self.live.push((segment, handover, wish));
            self.charged = self.charged.saturating_add(wish);
        } else if !self.live.is_empty() {
            let place = self.dice.below(self.live.len() as u64) as usize;
            let (segment, handover, bytes) = self.live.remove(place);
            self.subject.take_back(segment, handover);
            self.until_freed(segment);
            self.charged = self.charged.saturating_sub(bytes);
            self.returned = self.returned.saturating_add(bytes);
        }
        if self.dice.below(8) == 0 {
            self.subject.device.tend();
        }
    }

    /// Asks until it is free, and meanwhile books what the witness would.
    fn until_freed(&mut self, segment: SegmentId) {
        let start = Instant::now();
        loop {
            let late = match self.subject.device.prove(segment) {
                Proof::Freed => break,
                late => late,
            };
            let made = self.subject.device.gauge().read();
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{segment} never comes back: {late:?}, {made:?}"
            );
            self.book();
        }
        self.slowest = self.slowest.max(start.elapsed());
    }

    /// What the outsider has beyond the headroom is off the book.
    fn book(&mut self) {
        let cover = Cover { room: self.room(), promised: RESERVE, expected: Bytes::ZERO };
        self.subject.device.cover(cover);
    }

    fn room(&self) -> Bytes {
        let made = self.subject.device.gauge().read().expect("nothing changes between calls");
        let ours = made.bytes.saturating_add(made.hold.unwrap_or_default());
        let (used, listed) = self.watch();
        // As the witness does it.
        let outside = used.saturating_sub(ours).max(listed);
        let unmanaged = sum(&[HEADROOM, BROKER_SHARE]);
        let capacity = self.subject.device.description().total.saturating_sub(HEADROOM);
        capacity.saturating_sub(outside.saturating_sub(unmanaged))
    }

    /// What is used, and the outsider's own, once both stand still.
    fn watch(&self) -> (Bytes, Bytes) {
        let look = || {
            let seen = self.watcher.nvml(0);
            let own = seen.get(&self.outsider.pid().to_string()).copied().unwrap_or_default();
            (Bytes::new(seen["used"]), Bytes::new(own))
        };
        let mut last = look();
        for _ in 0..1_000 {
            match look() {
                seen if seen == last => return seen,
                seen => last = seen,
            }
        }
        panic!("the card never stands still");
    }
}

/// Somebody who takes what there is, all the time.
struct Grabbing {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Bytes>,
}

impl Grabbing {
    fn start(outsider: &Arc<Puppet>) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (outsider, ends) = (Arc::clone(outsider), Arc::clone(&done));
        let thread = thread::spawn(move || {
            let (mut names, mut gain) = (0, Bytes::ZERO);
            while !ends.load(Ordering::SeqCst) {
                gain = gain.saturating_add(grab(&outsider, &mut names));
            }
            gain
        });
        Self { done, thread }
    }

    /// Ends it; how much that was.
    fn end(self) -> Bytes {
        self.done.store(true, Ordering::SeqCst);
        self.thread.join().expect("the outsider lives")
    }
}
