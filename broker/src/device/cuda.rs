//! A GPU as a device: allocations of virtual memory management, without a context.
//!
//! A segment is one allocation, exported as a descriptor, or a few where the card has no piece so
//! large. The broker keeps its own handle until the segment is taken back, so that the card lists
//! the memory for no process meanwhile; then it gives the handle up and watches where the bytes
//! go. How that becomes a proof, and how far it goes, stands in [`balance`]; with a [hold](held) they
//! are free once the broker has as many again, or the books know who has them instead.
//!
//! Without NVML the proof is a probe: as many bytes can be created. That says that the card has
//! room, not whose it was; memory that others freed passes for the segment's.
//!
//! Segments with CUDA IPC handles are made by an [exporter](crate::exporter).

mod balance;
mod choice;
mod chunks;
mod creation;
mod departure;
mod doubts;
mod drain;
mod exported;
mod floor;
mod held;
mod hold;
mod piece;
mod segment;
mod standing;

pub use choice::{Choice, ParseChoiceError, visible};
pub(crate) use choice::{numbered, refuse_mig};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, Pid, SegmentId};

use self::balance::Balance;
use self::drain::{Passage, Return};
use self::hold::Hold;
use self::segment::{Memory, Segment};
use self::standing::Standing;
use super::holders::Search;
use super::{CHUNKS_MAX, Cover, Description, Device, Gauge, HandleKind, Handover, Kind, Proof};
use crate::exporter::{Exporter, Program, Scrubbing, check_scrubbing};
use crate::witness::{Card, Cards, Reading};

/// What of a card is never leased: what the driver takes for the broker itself, 3.3 MiB on driver 580.
const BROKER_SHARE: Bytes = Bytes::new(8 << 20);

/// What a context takes with common libraries, until it is measured.
const OVERHEAD_ESTIMATE: Bytes = Bytes::new(640 << 20);

/// Past this a segment that somebody still has is reported: a killed process's memory is back within half a second.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// How often a card is waited for that does not stand still when a segment is given up.
const STANDS_TRIES: usize = 3;

/// The card is read anew for a segment after a sixteenth of the time that has passed since it was taken back, and at
/// the latest after this.
const REREAD_AFTER_MAX: Duration = Duration::from_millis(250);
const REREAD_SHARE: u32 = 16;

/// A GPU.
#[derive(Debug)]
pub struct CudaDevice {
    description: Description,
    card: gpulease_cuda::Device,
    nvml: Result<Card, String>,
    scrubbing: Scrubbing,
    program: Program,
    exporter: Option<Exporter>,
    segments: BTreeMap<SegmentId, Segment>,
    /// The sum over the segments.
    existing: Bytes,
    /// The sum over those that are back and not yet free by the books.
    back: Bytes,
    /// What was made anew for segments of which nobody knows yet whether they are back.
    anew: Bytes,
    /// The sum over the chunks that the broker has handles of.
    handled: Bytes,
    /// With NVML only.
    balance: Option<Balance>,
    read_at: Instant,
    gauge: Arc<Gauge>,
    /// What of the card may be used at all.
    usable: Bytes,
    /// What is not leased, where it is kept.
    hold: Option<Hold>,
}

/// Whether the canary is run when a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// It is; it takes half a second.
    Run,
    /// It is not.
    Skip,
}

impl CudaDevice {
    /// Opens a device; its helper processes are started by `program`.
    ///
    /// # Errors
    /// A sentence where there is no such device or it can't be lent: no driver, an old one, no virtual memory
    /// management, MIG mode, or memory given out with another process's data in it.
    pub fn open(choice: &Choice, program: Program, canary: Canary) -> Result<Self, String> {
        let card = choice::find(choice)?;
        let uuid = card.uuid().map_err(|why| why.to_string())?.to_string();
        let name = card.name().map_err(|why| why.to_string())?;
        let nvml = Cards::open().and_then(|cards| cards.card(&uuid));
        choice::refuse_mig(&name, nvml.as_ref().ok())?;
        let reading = nvml.as_ref().map_err(Clone::clone).and_then(Card::read);
        let scrubbing = match canary {
            Canary::Run => check_scrubbing(&program, &uuid, reading.as_ref().ok()),
            Canary::Skip => Scrubbing::Unknown("it was not asked for".to_owned()),
        };
        if scrubbing == Scrubbing::Missing {
            return Err(format!(
                "the driver gives out memory of {name} with another process's data in it, so that one job could read another's; such a card is not leased"
            ));
        }
        let total = card.total().map_err(|why| why.to_string())?;
        let usable = reading.as_ref().map_or(total, |reading| total.min(reading.usable));
        let total = usable.saturating_sub(BROKER_SHARE).round_down();
        let description =
            Description { kind: Kind::Cuda, uuid, name, total, overhead_estimate: OVERHEAD_ESTIMATE };
        let balance = reading.ok().map(|reading| Balance::new(Standing::new(&reading, Bytes::ZERO)));
        let (program, exporter, read_at, gauge) = (program, None, Instant::now(), Arc::default());
        let (segments, existing, back, anew, handled) = Default::default();
        Ok(Self {
            description,
            card,
            nvml,
            scrubbing,
            program,
            exporter,
            segments,
            existing,
            back,
            anew,
            handled,
            balance,
            read_at,
            gauge,
            usable,
            hold: None,
        })
    }

    /// What the canary found when the device was opened.
    #[must_use]
    pub fn scrubbing(&self) -> &Scrubbing {
        &self.scrubbing
    }

    /// Why there is no NVML for it, if there is none; what is proven free is then proven by a probe alone.
    #[must_use]
    pub fn nvml_trouble(&self) -> Option<&str> {
        self.nvml.as_ref().err().map(String::as_str)
    }

    /// Shows what exists on the card; what is back exists in the books alone.
    fn show(&self) {
        self.gauge.set(self.existing.saturating_sub(self.back));
    }

    /// What the card has left, as the end of a sentence.
    fn room(&self) -> String {
        chunks::room(self.reading().as_ref(), self.existing)
    }

    fn reading(&self) -> Option<Reading> {
        self.nvml.as_ref().ok().and_then(|card| card.read().ok())
    }

    /// How the card stands, if it stands still.
    fn standing(&mut self) -> Option<Standing> {
        self.read_at = Instant::now();
        let reading = self.nvml.as_ref().ok()?.read_steady().ok()??;
        let held = self.hold.as_ref().map(Hold::bytes).unwrap_or_default();
        Some(Standing::new(&reading, self.handled.saturating_add(held)))
    }

    /// Reads the card anew and books what it shows.
    fn look(&mut self) {
        let standing = self.standing();
        let (Some(balance), Some(standing)) = (&mut self.balance, standing) else { return };
        balance.read(self.read_at, standing);
        self.gauge.set_attributed(balance.attributed());
    }

    /// Handles of pieces of a segment were given up.
    fn released(&mut self, id: SegmentId, pieces: &[(Bytes, Return)], passage: &Passage) {
        if let Some(balance) = &mut self.balance {
            balance.released(id, pieces, passage);
        }
        self.look();
    }

    /// Whether a segment that was given up is back.
    fn is_back(&mut self, id: SegmentId) -> bool {
        let (bytes, age) = {
            let segment = &self.segments[&id];
            (segment.bytes, segment.since.map(|since| since.elapsed()).unwrap_or_default())
        };
        if self.balance.is_none() {
            return chunks::create(self.card, bytes, CHUNKS_MAX, || true).is_ok();
        }
        if self.read_at.elapsed() >= (age / REREAD_SHARE).min(REREAD_AFTER_MAX) {
            self.look();
        }
        self.balance.as_mut().is_some_and(|balance| balance.take_if_back(id))
    }

    fn forget(&mut self, id: SegmentId) {
        let segment = self.segments.remove(&id).expect("it was proven a moment ago");
        self.existing = self.existing.checked_sub(segment.bytes).expect("it was counted when it was made");
        if segment.back.is_some() {
            self.back = self.back.checked_sub(segment.bytes).expect("it was counted when it came back");
        }
        self.show();
    }

    /// Not yet, or overdue with those who may have it.
    fn outstanding(&mut self, id: SegmentId) -> Proof {
        let segment = self.segments.get_mut(&id).expect("only what was made is proven");
        if segment.since.is_none_or(|since| since.elapsed() < OVERDUE_AFTER) {
            return Proof::NotYet;
        }
        let holders = self.balance.as_ref().map(|balance| balance.holders(id)).unwrap_or_default();
        match &segment.memory {
            Memory::Ordered(exporter, _) => Proof::Overdue(vec![*exporter]),
            Memory::Released(Some(identity)) if holders.is_empty() => {
                let search = segment.search.get_or_insert_with(|| Search::start(identity.clone()));
                match search.found() {
                    // Each process with a context has the driver's files open; those are judged by the card's list.
                    Some(found) => Proof::Overdue(unlisted(found, self.balance.as_ref())),
                    None => Proof::NotYet,
                }
            }
            Memory::Released(_) | Memory::Chunks(..) | Memory::Exported(_) => Proof::Overdue(holders),
        }
    }
}

fn unlisted(found: &[Pid], balance: Option<&Balance>) -> Vec<Pid> {
    let is_listed = |pid: &Pid| balance.is_some_and(|balance| balance.is_listed(*pid));
    found.iter().copied().filter(|pid| !is_listed(pid)).collect()
}

impl Device for CudaDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String> {
        self.admit(bytes)?;
        match kind {
            HandleKind::Descriptor => self.create_chunks(segment, bytes),
            HandleKind::DescriptorToFollow => self.create_unexported(segment, bytes),
            HandleKind::CudaIpc => self.create_exported(segment, bytes),
        }
    }

    fn export(&mut self, id: SegmentId) {
        self.export_promised(id);
    }

    fn reclaim(&mut self, id: SegmentId) {
        let gauge = Arc::clone(&self.gauge);
        let _changing = gauge.changing();
        let before = (0..STANDS_TRIES).find_map(|_| self.standing());
        let segment = self.segments.get_mut(&id).expect("only what was made is taken back");
        assert!(segment.since.is_none(), "segment {id} is taken back twice");
        segment.since = Some(Instant::now());
        match std::mem::replace(&mut segment.memory, Memory::Released(None)) {
            Memory::Chunks(chunks, identity) => {
                segment.memory = Memory::Released(identity);
                self.give_up(id, chunks, before);
            }
            Memory::Exported(exporter) => self.order_free(id, exporter, before),
            Memory::Ordered(..) | Memory::Released(_) => unreachable!("it was not taken back before"),
        }
    }

    fn prove(&mut self, id: SegmentId) -> Proof {
        let gauge = Arc::clone(&self.gauge);
        let _changing = gauge.changing();
        let segment = self.segments.get(&id).expect("only what was made is proven");
        assert!(segment.since.is_some(), "segment {id} is proven before it is taken back");
        if segment.back.is_none() && self.is_given_up(id) && self.is_back(id) {
            self.came_back(id);
        }
        let Some(back) = self.segments[&id].back else {
            let proof = self.outstanding(id);
            self.yield_what_is_not_back(id, &proof);
            return proof;
        };
        if !self.is_made_up_for(id, back) {
            return Proof::Missing;
        }
        self.forget(id);
        self.settle();
        Proof::Freed
    }

    fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    fn handed(&mut self, id: SegmentId, process: Pid) {
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.tenants.add(process);
        }
        self.consumer(id, process);
    }

    fn cover(&mut self, cover: Cover) {
        if let Some(hold) = &mut self.hold {
            hold.cover(Instant::now(), cover);
        }
    }

    fn tend(&mut self) -> Option<Duration> {
        self.remind_exporter();
        self.tend_hold()
    }
}
