//! A simulated device: it has so many bytes, makes pieces and takes them back, in its own time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Pid, ProcessId, SegmentId};

use super::dice::Dice;
use super::model::{Broken, ensure};

/// How a device behaves while faults are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// At once.
    Prompt,
    /// Seconds late.
    Slow,
    /// It refuses to make a piece now and then.
    Failing,
    /// It can't prove now and then that a piece is free, and finds out later.
    Unsure,
}

/// A piece of the device's memory.
#[derive(Clone, Debug)]
struct Piece {
    bytes: Bytes,
    made: bool,
    mapped: BTreeSet<ProcessId>,
    wanted_back: bool,
    doubted: bool,
}

/// What the device says of a piece that is wanted back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nobody maps it; the bytes are there again.
    Free,
    /// It can't be shown that nobody does.
    Unproven(Vec<ProcessId>),
    /// Still nothing new.
    Later,
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) id: DeviceId,
    capacity: Bytes,
    mood: Mood,
    pub(super) lost: bool,
    pieces: BTreeMap<SegmentId, Piece>,
}

impl Card {
    pub(super) const fn new(id: DeviceId, capacity: Bytes, mood: Mood) -> Self {
        Self { id, capacity, mood, lost: false, pieces: BTreeMap::new() }
    }

    /// From now on the device does what it should.
    pub(super) fn calm_down(&mut self) {
        self.mood = Mood::Prompt;
    }

    /// How long its next piece of work takes.
    pub(super) fn delay(&self, dice: &mut Dice) -> Duration {
        match self.mood {
            Mood::Prompt => Duration::from_micros(dice.between(1, 900)),
            Mood::Slow => Duration::from_millis(dice.between(100, 8_000)),
            Mood::Failing | Mood::Unsure => Duration::from_millis(dice.between(0, 400)),
        }
    }

    /// The arbiter wants a piece.
    ///
    /// # Errors
    /// When it was asked for before.
    pub(super) fn order(&mut self, segment: SegmentId, bytes: Bytes) -> Result<(), Broken> {
        let piece = Piece { bytes, made: false, mapped: BTreeSet::new(), wanted_back: false, doubted: false };
        ensure!(self.pieces.insert(segment, piece).is_none(), "{segment} is to be made twice");
        Ok(())
    }

    /// Makes a piece, or says why not.
    ///
    /// # Errors
    /// When the pieces together are now more than the device has (I2).
    pub(super) fn make(
        &mut self,
        segment: SegmentId,
        dice: &mut Dice,
    ) -> Result<Result<(), &'static str>, Broken> {
        if self.lost || (self.mood == Mood::Failing && dice.one_in(4)) {
            self.pieces.remove(&segment);
            return Ok(Err(if self.lost { "the device is lost" } else { "out of memory (2)" }));
        }
        if let Some(piece) = self.pieces.get_mut(&segment) {
            piece.made = true;
        }
        let there: Bytes = self.pieces.values().filter(|piece| piece.made).map(|piece| piece.bytes).sum();
        let (id, capacity) = (self.id, self.capacity);
        ensure!(there <= capacity, "I2: device {id} has {capacity} and must now hold {there}");
        Ok(Ok(()))
    }

    /// The arbiter wants a piece back.
    ///
    /// # Errors
    /// When there is none, or it was wanted back before.
    pub(super) fn want_back(&mut self, segment: SegmentId) -> Result<(), Broken> {
        let piece = self.pieces.get_mut(&segment).filter(|piece| piece.made);
        let piece = piece.ok_or_else(|| Broken(format!("{segment} is wanted back and was never made")))?;
        ensure!(!piece.wanted_back, "{segment} is wanted back twice");
        piece.wanted_back = true;
        Ok(())
    }

    /// Looks whether a piece that is wanted back is free.
    pub(super) fn prove(&mut self, segment: SegmentId, dice: &mut Dice) -> Proof {
        let unsure = self.mood == Mood::Unsure && dice.one_in(3);
        let Some(piece) = self.pieces.get_mut(&segment) else { return Proof::Later };
        if piece.mapped.is_empty() && (piece.doubted || !unsure) {
            self.pieces.remove(&segment);
            return Proof::Free;
        }
        if std::mem::replace(&mut piece.doubted, true) {
            return Proof::Later;
        }
        Proof::Unproven(piece.mapped.iter().copied().collect())
    }

    /// A process maps a piece.
    pub(super) fn map(&mut self, segment: SegmentId, process: ProcessId) {
        if let Some(piece) = self.pieces.get_mut(&segment) {
            piece.mapped.insert(process);
        }
    }

    /// A process unmaps a piece.
    pub(super) fn unmap(&mut self, segment: SegmentId, process: ProcessId) {
        if let Some(piece) = self.pieces.get_mut(&segment) {
            piece.mapped.remove(&process);
        }
    }

    /// A process is gone, and its mappings with it.
    pub(super) fn forget(&mut self, process: ProcessId) {
        self.pieces.values_mut().for_each(|piece| {
            piece.mapped.remove(&process);
        });
    }

    /// What its pieces take.
    pub(super) fn taken(&self) -> Bytes {
        self.pieces.values().map(|piece| piece.bytes).sum()
    }
}

/// The numbers by which people know processes.
pub(super) fn pids(processes: &[ProcessId], number: impl Fn(ProcessId) -> Option<Pid>) -> Vec<Pid> {
    processes.iter().filter_map(|process| number(*process)).collect()
}
