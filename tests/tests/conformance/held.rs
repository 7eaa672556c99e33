//! A device with a hold: what others can get of the card, and what they cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpulease_broker::device::cuda::CudaDevice;
use gpulease_broker::device::{Cover, HandleKind, Handover};
use gpulease_tests::on_cards;
use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, gib, mib};

use super::bench::{Subject, chunks, cuda, faults, holding, sum};

pub(super) const HEADROOM: Bytes = gib(1);
/// What a context takes on the stand-in, with what is on no list.
pub(super) const CONTEXT: Bytes = mib(523);

on_cards! {
    fn nobody_allocates_around_it_beyond_the_headroom([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let room = subject.device.description().total.saturating_sub(HEADROOM);
        assert_eq!(subject.held(), room.round_down());
        let outsider = puppet();
        outsider.must("context 0");
        assert!(outsider.ask("alloc big 0 1GiB").expect_err("it is held").contains("OUT_OF_MEMORY"));
        assert!(grab(&outsider, &mut 0) <= HEADROOM);
        // All of the hold is there for leases, whatever it took of the headroom.
        let (segment, handover) = subject.make(room.round_down());
        assert_eq!((subject.held(), subject.made()), (Bytes::ZERO, room.round_down()));
        assert!(outsider.ask("alloc more 0 2MiB").is_err());
        subject.take_back(segment, handover);
        assert!(outsider.ask("alloc more 0 2MiB").is_err(), "what came back is made anew at once");
        subject.until_freed(segment);
        assert_eq!(subject.held(), room.round_down());
    }

    fn a_device_that_ends_gives_all_back([standin()]) {
        let outsider = puppet();
        outsider.must("context 0");
        let before = outsider.nvml(0)["used"];
        let subject = Subject::of(holding(HEADROOM));
        assert!(outsider.nvml(0)["used"] > before + gib(5).get());
        drop(subject);
        assert_eq!(outsider.nvml(0)["used"], before);
    }

    fn on_a_card_in_use_it_takes_what_is_free_and_more_as_that_grows([standin()]) {
        let other = puppet();
        other.must("context 0");
        other.must("alloc mine 0 4GiB");
        other.must("fill mine 0 0B 77 64MiB");
        let mut subject = Subject::of(holding(HEADROOM));
        let free = Bytes::new(other.nvml(0)["free"]);
        assert!(free >= HEADROOM && free < HEADROOM.saturating_add(mib(2)), "{free}");
        let held = subject.held();
        assert!(held > gib(2) && held < gib(3), "{held}");
        assert_eq!(other.must("read mine 0 0B 64MiB"), "77");
        other.must("alloc little 0 512MiB");
        other.must("free mine");
        subject.device.tend();
        let freed = subject.held().saturating_sub(held);
        assert!(freed >= mib(3500) && freed <= gib(4), "{freed}");
        assert!(other.ask("alloc mine 0 2GiB").is_err());
    }

    fn contexts_that_are_expected_find_room([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let total = subject.device.description().total;
        let jobs = [puppet(), puppet(), puppet(), puppet()];
        // Four are charged, and the headroom is for others.
        let overhead = mib(4 * 640);
        let room = total.saturating_sub(HEADROOM).saturating_sub(overhead);
        subject.device.cover(Cover { room, promised: room, expected: overhead });
        subject.device.tend();
        assert_eq!(subject.held(), room.round_down());
        jobs.iter().for_each(|job| drop(job.must("context 0")));
        let outsider = puppet();
        outsider.must("context 0");
        let (_segment, handover) = subject.make(room.round_down());
        assert!(chunks(&handover).len() > 1);
    }

    /// For a segment, and so that the sizes fit the next ones. Somebody waits for a little more than the headroom, and a
    /// call of the broker's that takes long would let him have it.
    fn a_large_piece_is_cut_within_the_headroom([roomy()]) {
        let mut subject = Subject::of(holding(gib(4)));
        let outsider = Arc::new(puppet());
        outsider.must("context 0");
        let more = gib(4).saturating_sub(CONTEXT).saturating_add(mib(32));
        // Until the small pieces are in use.
        while chunks(&subject.make(mib(64)).1).len() == 1 {}
        let (held, waiting) = (subject.held(), Waiting::start(&outsider, more));
        faults("cuMemCreate 2 delay 500");
        let (_segment, handover) = subject.make(mib(900));
        faults("cuMemCreate 2 delay 501");
        subject.device.tend();
        faults("");
        assert!(!waiting.end(), "he got more than the headroom");
        assert_eq!(subject.held(), held.saturating_sub(mib(900)));
        let sizes = |handover| chunks(handover).iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
        assert!(sizes(&handover).iter().any(|size| *size > mib(512)), "there was something to cut");
        let (_segment, handover) = subject.make(mib(960));
        assert_eq!(sizes(&handover), [mib(64); 15], "they were made ahead");
    }

    fn room_that_grows_counts_when_it_lasts([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let all = subject.device.description().total.saturating_sub(HEADROOM);
        subject.device.cover(Cover { room: gib(2), ..Cover::default() });
        subject.device.tend();
        assert_eq!(subject.held(), gib(2));
        let since = Instant::now();
        subject.device.cover(Cover { room: all, ..Cover::default() });
        subject.device.tend();
        // A context may be half made.
        while subject.held() == gib(2) {
            assert!(since.elapsed() < Duration::from_secs(30), "it never grows");
            thread::sleep(Duration::from_millis(20));
            subject.device.tend();
        }
        assert!(since.elapsed() >= Duration::from_secs(1));
        assert_eq!(subject.held(), all.round_down());
    }

    fn what_a_liar_keeps_is_not_made_anew_out_of_the_headroom([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let keeper = puppet();
        let (segment, handover) = subject.make(mib(512));
        for (fd, _) in chunks(&handover) {
            keeper.give("keep", std::os::fd::AsFd::as_fd(fd)).expect("it takes a descriptor");
        }
        let held = subject.held();
        subject.take_back(segment, handover);
        subject.is_held(segment);
        assert_eq!(subject.held(), held);
        keeper.must("let-go");
        subject.until_freed(segment);
        assert_eq!(subject.held(), sum(&[held, mib(512)]));
    }

    fn a_handle_of_cuda_ipc_comes_out_of_it_too([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let held = subject.held();
        let (segment, handover) = subject.try_make(gib(3), HandleKind::CudaIpc).expect("the hold makes room");
        assert!(matches!(handover, Handover::CudaIpc(_)));
        assert!(subject.held() <= held.saturating_sub(gib(3)));
        subject.device.reclaim(segment);
        subject.until_freed(segment);
    }

    fn thousands_of_small_segments_leave_it_in_order([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let held = subject.held();
        let made: Vec<_> = (0..60).map(|n| subject.make(mib(2 + n % 5 * 2))).collect();
        for (segment, handover) in made {
            subject.take_back(segment, handover);
            subject.until_freed(segment);
        }
        assert_eq!(subject.held(), held);
        for _ in 0..100 {
            subject.device.tend();
        }
        assert_eq!(subject.held(), held);
        let (_segment, handover) = subject.make(held);
        assert!(chunks(&handover).len() < 200, "{} pieces", chunks(&handover).len());
    }

    /// All that is there is promised, and somebody took a part when it came back: the books say so, who asks for it hears
    /// who has it, and when it is there again it is made.
    fn what_was_taken_on_its_way_back_is_off_book_and_named([standin()]) {
        let mut subject = Subject::of(holding(HEADROOM));
        let all = subject.held();
        let outsider = puppet();
        outsider.must("context 0");
        grab(&outsider, &mut 0);
        let (segment, handover) = subject.make(all);
        subject.take_back(segment, handover);
        subject.until_freed(segment);
        assert_eq!(subject.held(), all, "nobody was faster");
        // The hold gives a part back as if somebody had been.
        let room = all.saturating_sub(mib(512));
        subject.device.cover(Cover { room, promised: all, expected: Bytes::ZERO });
        subject.device.tend();
        outsider.must("alloc taken 0 512MiB");
        let why = subject.try_make(all, HandleKind::Descriptor).expect_err("a part of it is gone");
        let pid = format!("pid {}", outsider.pid());
        assert!(why.contains(&pid) && why.contains("are free"), "{why}");
        assert_eq!(subject.held(), room, "and nothing of the hold was lost");
        outsider.must("free taken");
        let (_segment, _handover) = subject.make(all);
    }

    fn without_nvml_there_is_no_hold([Gpu::Standin(Standin::new().without_nvml())]) {
        let why = CudaDevice::with_hold(cuda(), HEADROOM).expect_err("nobody could tell what is free");
        assert!(why.starts_with("hold = \"all\" needs NVML") && why.contains("hold = \"none\""), "{why}");
    }
}

/// Somebody who asks for so much until he gets it or is told to end.
struct Waiting {
    done: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

impl Waiting {
    fn start(outsider: &Arc<Puppet>, bytes: Bytes) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (outsider, ends, command) =
            (Arc::clone(outsider), Arc::clone(&done), format!("alloc wanted 0 {}B", bytes.get()));
        let thread = thread::spawn(move || {
            let mut got = false;
            while !got && !ends.load(Ordering::SeqCst) {
                got = outsider.ask(&command).is_ok();
            }
            got
        });
        Self { done, thread }
    }

    /// Ends it; whether he got it.
    fn end(self) -> bool {
        self.done.store(true, Ordering::SeqCst);
        self.thread.join().expect("the outsider lives")
    }
}

/// Takes what there is, in pieces; how much that was.
pub(super) fn grab(outsider: &Puppet, names: &mut u64) -> Bytes {
    let mut gain = Bytes::ZERO;
    for bytes in [mib(512), mib(64), mib(2)] {
        while outsider.ask(&format!("alloc n{names} 0 {}B", bytes.get())).is_ok() {
            *names += 1;
            gain = gain.saturating_add(bytes);
        }
    }
    gain
}

/// One with room for a large headroom.
fn roomy() -> Gpu {
    Gpu::Standin(Standin::with(&[("BYTES", "12GiB")]))
}

pub(super) fn standin() -> Gpu {
    Gpu::Standin(Standin::new())
}

pub(super) fn puppet() -> Puppet {
    Puppet::start(&Gpu::Real(Turn::unneeded()))
}
