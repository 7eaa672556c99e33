//! What the suite works with: devices to open, and other processes that hold what they made.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gpulease_broker::Hold;
use gpulease_broker::device::cuda::{Canary, Choice, CudaDevice};
use gpulease_broker::device::host::HostDevice;
use gpulease_broker::device::{Cover, Descriptors, Device, HandleKind, Handover, Kind, Proof};
use gpulease_broker::exporter::Program;
use gpulease_tests::faulty::{Faulty, INJECTED};
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_words::{Bytes, Pid, SegmentId, gib, mib};

/// How long a driver may take to give back what a dead process had.
const TEARDOWN: Duration = Duration::from_secs(30);

/// Which device, and how it behaves.
pub(crate) struct Bench {
    kind: Kind,
    temper: Temper,
    hold: Hold,
}

/// Whether the device fails now and then.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temper {
    Sound,
    Faulty,
}

impl Bench {
    pub(crate) fn host(temper: Temper) -> Self {
        Self { kind: Kind::Host, temper, hold: Hold::None }
    }

    pub(crate) fn gpu(temper: Temper) -> Self {
        Self { kind: Kind::Cuda, temper, hold: Hold::None }
    }

    /// One that keeps what is not made, but for room for the contexts of a few processes.
    pub(crate) fn holding_gpu(temper: Temper) -> Self {
        Self { kind: Kind::Cuda, temper, hold: Hold::All }
    }

    /// A device with nothing on it.
    pub(crate) fn open(&self) -> Subject {
        let device: Box<dyn Device> = match (self.kind, self.temper) {
            (Kind::Host, Temper::Sound) => Box::new(host()),
            (Kind::Host, Temper::Faulty) => Box::new(Faulty::new(host())),
            (Kind::Cuda, Temper::Sound) => Box::new(self.card()),
            (Kind::Cuda, Temper::Faulty) => Box::new(Faulty::new(self.card())),
        };
        Subject { device, last: 0 }
    }

    fn card(&self) -> CudaDevice {
        match self.hold {
            Hold::None => cuda(),
            Hold::All => holding(gib(2)),
        }
    }

    /// Another process, with nothing of the device yet.
    pub(crate) fn process(&self) -> Process {
        let puppet = Puppet::start(&Gpu::Real(Turn::unneeded()));
        if self.kind == Kind::Cuda {
            puppet.must("context 0");
        }
        Process { kind: self.kind, puppet }
    }

    /// Another process that never calls CUDA.
    pub(crate) fn bare_process(&self) -> Process {
        Process { kind: self.kind, puppet: Puppet::start(&Gpu::Real(Turn::unneeded())) }
    }
}

fn host() -> HostDevice {
    HostDevice::new(0, mib(256), 64)
}

/// The first GPU that a puppet sees too.
pub(crate) fn cuda() -> CudaDevice {
    CudaDevice::open(&first(), exporter(), Canary::Skip).expect("the device opens")
}

/// The same, which keeps all but so much.
pub(crate) fn holding(headroom: Bytes) -> CudaDevice {
    let mut device = cuda().with_hold(headroom).expect("there is NVML");
    let room = device.description().total.saturating_sub(headroom);
    device.cover(Cover { room, ..Cover::default() });
    device.tend();
    device
}

pub(crate) fn first() -> Choice {
    let said = Puppet::start(&Gpu::Real(Turn::unneeded())).must("devices");
    let uuid = said.split('|').nth(1).expect("a line has a name, a UUID and more");
    format!("cuda:{uuid}").parse().expect("a UUID is a choice")
}

pub(crate) fn exporter() -> Program {
    Program::at(programs::gpuleased())
}

/// A device under test.
pub(crate) struct Subject {
    pub(crate) device: Box<dyn Device>,
    last: u64,
}

impl Subject {
    /// Makes a segment; a failure that was injected is tried again, and leaves nothing behind.
    pub(crate) fn make(&mut self, bytes: Bytes) -> (SegmentId, Handover) {
        self.try_make(bytes, HandleKind::Descriptor).unwrap_or_else(|why| panic!("{bytes}: {why}"))
    }

    pub(crate) fn try_make(
        &mut self,
        bytes: Bytes,
        kind: HandleKind,
    ) -> Result<(SegmentId, Handover), String> {
        loop {
            self.last += 1;
            let (segment, before) = (SegmentId::new(self.last), self.made());
            match self.device.create(segment, bytes, kind) {
                Ok(handover) => {
                    assert_eq!(self.made(), sum(&[before, bytes]), "the gauge has what was made");
                    return Ok((segment, handover));
                }
                Err(why) => {
                    assert_eq!(self.made(), before, "a failed creation leaves nothing behind");
                    if !why.starts_with(INJECTED) {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// Around a device that was opened in another way.
    pub(crate) fn of(device: impl Device + 'static) -> Self {
        Self { device: Box::new(device), last: 0 }
    }

    /// Takes a segment back, and what was to be handed over with it.
    pub(crate) fn take_back(&mut self, segment: SegmentId, handover: Handover) {
        drop(handover);
        let before = self.made();
        let start = Instant::now();
        self.device.reclaim(segment);
        assert!(start.elapsed() < TEARDOWN, "taking back does not wait");
        assert_eq!(self.made(), before, "what is not proven free stays in the gauge");
    }

    /// Asks until the segment is free.
    pub(crate) fn until_freed(&mut self, segment: SegmentId) {
        let start = Instant::now();
        loop {
            match self.device.prove(segment) {
                Proof::Freed => return,
                late => assert!(start.elapsed() < TEARDOWN, "{segment} is not free but {late:?}"),
            }
            pause();
        }
    }

    /// Asks until the segment is overdue with someone to suspect.
    pub(crate) fn until_suspected(&mut self, segment: SegmentId) -> Vec<Pid> {
        let (start, before) = (Instant::now(), self.made());
        loop {
            match self.device.prove(segment) {
                Proof::Freed => panic!("{segment} is held and was said to be free"),
                Proof::Overdue(suspects) if !suspects.is_empty() => {
                    assert_eq!(self.made(), before, "what is not proven free stays in the gauge");
                    return suspects;
                }
                Proof::NotYet | Proof::Missing | Proof::Overdue(_) => {
                    assert!(start.elapsed() < TEARDOWN, "{segment} is not reported");
                }
            }
            pause();
        }
    }

    /// Asks until the segment is overdue, whoever is suspected, and some times more.
    pub(crate) fn is_held(&mut self, segment: SegmentId) {
        for _ in 0..50 {
            assert_ne!(self.device.prove(segment), Proof::Freed, "{segment} is held");
            pause();
        }
    }

    /// What the broker keeps beside all segments.
    pub(crate) fn held(&self) -> Bytes {
        self.device.gauge().hold().expect("it has a hold")
    }

    pub(crate) fn made(&self) -> Bytes {
        self.device.gauge().read().expect("nothing changes between calls").bytes
    }
}

/// Another process.
pub(crate) struct Process {
    kind: Kind,
    puppet: Puppet,
}

impl Process {
    pub(crate) fn pid(&self) -> Pid {
        Pid::new(self.puppet.pid())
    }

    /// Maps a segment and keeps nothing else of it; says its bytes where they are all alike.
    pub(crate) fn map(&self, name: &str, handover: &Handover) -> String {
        let said = chunks(handover).iter().enumerate().map(|(n, (fd, bytes))| {
            let size = format!("{}B", bytes.get());
            match self.kind {
                Kind::Host => {
                    self.puppet.give(&format!("map-file {size}"), fd.as_fd()).expect("it is mapped")
                }
                Kind::Cuda => {
                    let (chunk, range) = (format!("{name}-chunk-{n}"), format!("{name}-{n}"));
                    self.puppet.give(&format!("import {chunk} {size}"), fd.as_fd()).expect("it is imported");
                    self.puppet.must(&format!("reserve {range} {size}"));
                    self.puppet.must(&format!("map {range} {chunk} 0B"));
                    self.puppet.must(&format!("access {range} 0 rw"));
                    self.puppet.must(&format!("release {chunk}"));
                    self.puppet.must(&format!("read {range} 0 0B {size}"))
                }
            }
        });
        let said: Vec<String> = said.collect();
        if said.iter().all(|word| *word == said[0]) { said[0].clone() } else { "mixed".to_owned() }
    }

    /// Writes this byte over what it mapped.
    pub(crate) fn fill(&self, name: &str, byte: u8, handover: &Handover) {
        match self.kind {
            Kind::Host => drop(self.puppet.must(&format!("fill-files {byte}"))),
            Kind::Cuda => chunks(handover).iter().enumerate().for_each(|(n, (_, bytes))| {
                self.puppet.must(&format!("fill {name}-{n} 0 0B {byte} {}B", bytes.get()));
            }),
        }
    }

    /// Unmaps what it mapped under this name (on the host: everything), of this many chunks.
    pub(crate) fn unmap(&self, name: &str, chunks: usize) {
        match self.kind {
            Kind::Host => drop(self.puppet.must("unmap-files")),
            Kind::Cuda => (0..chunks).for_each(|n| drop(self.puppet.must(&format!("unreserve {name}-{n}")))),
        }
    }

    /// Maps a segment that can be swapped out into this host copy; says its address.
    pub(crate) fn map_movable(&self, handover: &Handover, copy: &OwnedFd) -> String {
        self.keep(handover);
        self.puppet.give("keep", copy.as_fd()).expect("it takes a descriptor");
        let device = match self.kind {
            Kind::Host => "host",
            Kind::Cuda => "0",
        };
        self.puppet.must(&format!("swap-map {device} {}", sizes(handover)))
    }

    /// Maps what was swapped out into another segment's memory and copies it back; says its address.
    pub(crate) fn swap_back(&self, handover: &Handover) -> Result<String, String> {
        self.keep(handover);
        self.puppet.ask(&format!("swap-back {}", sizes(handover)))
    }

    /// A command of `swap-...` that takes no descriptors.
    pub(crate) fn swap(&self, command: &str) {
        self.puppet.must(&format!("swap-{command}"));
    }

    /// Keeps the descriptors and does nothing with them.
    pub(crate) fn keep(&self, handover: &Handover) {
        for (fd, _) in chunks(handover) {
            self.puppet.give("keep", fd.as_fd()).expect("it takes a descriptor");
        }
    }

    /// Closes all that it keeps.
    pub(crate) fn let_go(&self) {
        self.puppet.must("let-go");
    }

    pub(crate) fn kill(self) {
        self.puppet.kill();
    }
}

/// A segment's descriptors.
pub(crate) fn chunks(handover: &Handover) -> &[(std::os::fd::OwnedFd, Bytes)] {
    match handover {
        Handover::Descriptors(Descriptors::Here(chunks)) => chunks,
        Handover::Descriptors(Descriptors::Owed(_)) => panic!("they were not to follow"),
        Handover::CudaIpc(_) => panic!("descriptors were asked for"),
    }
}

/// Sets failures of the stand-in from inside.
pub(crate) fn faults(rules: &str) {
    let directory = std::env::var_os(gpulease_standin_card::DIRECTORY).expect("this is the stand-in");
    gpulease_standin_card::Faults::write(Path::new(&directory), rules).expect("the directory takes a file");
}

/// The sizes of its chunks, as a puppet takes them.
fn sizes(handover: &Handover) -> String {
    let sizes: Vec<String> = chunks(handover).iter().map(|(_, bytes)| format!("{}B", bytes.get())).collect();
    sizes.join(" ")
}

pub(crate) fn sum(parts: &[Bytes]) -> Bytes {
    parts.iter().copied().sum()
}

/// Between two questions that have no event to wait for.
pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(2));
}
