//! A GPU with a hold: where segments come out of it, and what comes back is made anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_cuda::CudaError;
use gpulease_words::{Bytes, SegmentId};

use super::hold::Hold;
use super::piece::Piece;
use super::{CHUNKS_MAX, CudaDevice, Proof, chunks};

/// By then the witness has seen who took what came free, and the books know.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// The share of a card that is believed to be allocated anew where it might be a segment that was passed on.
const DOUBTED_SHARE: u64 = 16;

impl CudaDevice {
    /// Keeps what is not leased from now on, as far as the [books](crate::device::Cover) say, and leaves so much free
    /// for contexts and libraries.
    ///
    /// # Errors
    /// A sentence where there is no NVML: nobody could tell then what is left for others.
    pub fn with_hold(mut self, headroom: Bytes) -> Result<Self, String> {
        if let Err(why) = &self.nvml {
            return Err(format!(
                "hold = \"all\" needs NVML, to leave room for what others need of {}: {why}; put NVML right, or serve with hold = \"none\"",
                self.description.name
            ));
        }
        if let Some(balance) = &mut self.balance {
            balance.doubt_at_most(headroom.max(Bytes::new(self.usable.get() / DOUBTED_SHARE)));
        }
        self.gauge.set_hold(Bytes::ZERO);
        self.hold = Some(Hold::new(self.card, headroom));
        Ok(self)
    }

    /// A segment's memory: out of the hold, or made.
    pub(super) fn pieces(&mut self, bytes: Bytes) -> Result<Vec<Piece>, CudaError> {
        let Some(mut hold) = self.hold.take() else {
            let made = chunks::create(self.card, bytes, CHUNKS_MAX, || self.may_be_in_pieces(bytes));
            return made.map(|chunks| chunks.into_iter().map(Piece::from).collect());
        };
        let taken = hold.take(bytes, || self.free().unwrap_or_default());
        self.gauge.set_hold(hold.bytes());
        self.hold = Some(hold);
        taken
    }

    /// What of the card nobody uses; `None` where it does not say.
    pub(super) fn free(&self) -> Option<Bytes> {
        let used = self.nvml.as_ref().ok()?.used().ok()?;
        Some(self.usable.saturating_sub(used))
    }

    /// Makes so many bytes anew at once, before others take them; how many there were.
    pub(super) fn make_anew(&mut self, bytes: Bytes) -> Bytes {
        let Some(hold) = &mut self.hold else { return Bytes::ZERO };
        let before = hold.bytes();
        hold.make_again(bytes);
        self.gauge.set_hold(hold.bytes());
        hold.bytes().saturating_sub(before)
    }

    /// What the hold is to leave to segments.
    fn in_segments(&self) -> Bytes {
        self.existing.saturating_sub(self.back).saturating_sub(self.anew)
    }

    /// By how much the hold is smaller than the books say.
    pub(super) fn short(&self) -> Bytes {
        let missing = |hold: &Hold| hold.at_most(self.in_segments()).saturating_sub(hold.bytes());
        self.hold.as_ref().map(missing).unwrap_or_default()
    }

    /// Nobody has a segment any more: what of it was not made anew yet is made now.
    pub(super) fn came_back(&mut self, id: SegmentId) {
        self.forget_anew(id);
        let segment = self.segments.get_mut(&id).expect("only what was made comes back");
        segment.back = Some(Instant::now());
        let bytes = segment.bytes;
        self.back = self.back.saturating_add(bytes);
        self.show();
        self.make_anew(self.short().min(bytes));
    }

    /// Whether the hold has a segment's bytes, which have been back since then, or the books know who has them
    /// instead. That takes a look of the witness, a second at most; where nobody can tell, they are free all the same.
    pub(super) fn is_made_up_for(&mut self, id: SegmentId, back: Instant) -> bool {
        let short_before = self.segments[&id].short;
        if self.short() > short_before {
            self.settle();
        }
        let short = self.short().saturating_sub(short_before);
        if !short.is_zero() && back.elapsed() < TOLD_AFTER {
            return false;
        }
        if !short.is_zero() {
            tracing::warn!(segment = %id, "{short} less came back than was given, and nobody can tell who has it");
        }
        true
    }

    /// What was made anew for a segment that is with somebody goes back: the headroom is others'.
    pub(super) fn yield_what_is_not_back(&mut self, id: SegmentId, proof: &Proof) {
        let is_held = self.balance.as_ref().is_some_and(|balance| !balance.holders(id).is_empty());
        if is_held || matches!(proof, Proof::Overdue(_)) {
            self.forget_anew(id);
        }
        let segments = self.in_segments();
        if self.hold.as_ref().is_some_and(|hold| hold.bytes() > hold.at_most(segments)) {
            self.settle();
        }
    }

    /// So much was made anew for a segment of which nobody knows yet whether it is back.
    pub(super) fn count_anew(&mut self, id: SegmentId, bytes: Bytes) {
        let segment = self.segments.get_mut(&id).expect("only what was made is given up");
        segment.anew = segment.anew.saturating_add(bytes);
        self.anew = self.anew.saturating_add(bytes);
    }

    fn forget_anew(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("only what was made is asked after");
        let anew = std::mem::take(&mut segment.anew);
        self.anew = self.anew.checked_sub(anew).expect("it was counted when it was made anew");
    }

    /// Gives so much of the hold back, for memory that another process of the broker's makes.
    pub(super) fn make_room(&mut self, bytes: Bytes) {
        if let Some(hold) = &mut self.hold {
            hold.shrink(bytes);
            self.gauge.set_hold(hold.bytes());
        }
    }

    /// Makes the hold as large as it should be.
    pub(super) fn settle(&mut self) {
        let segments = self.in_segments();
        let Some((hold, free)) = self.free().and_then(|free| Some((self.hold.as_mut()?, free))) else {
            return;
        };
        let (now, target) = (hold.bytes(), hold.target(segments, free));
        if now == target {
            return;
        }
        let _changing = self.gauge.changing();
        hold.shrink(now.saturating_sub(target));
        hold.grow(target.saturating_sub(now));
        self.gauge.set_hold(hold.bytes());
    }

    /// Looks after the hold.
    pub(super) fn tend_hold(&mut self) -> Option<Duration> {
        self.hold.as_mut()?.widen(Instant::now());
        self.settle();
        let gauge = Arc::clone(&self.gauge);
        if self.hold.as_ref()?.is_untidy()
            && let (Some(free), Some(hold)) = (self.free(), &mut self.hold)
        {
            let _changing = gauge.changing();
            hold.tidy(free);
            gauge.set_hold(hold.bytes());
        }
        let hold = self.hold.as_mut()?;
        Some(Hold::again(hold.export_some()))
    }
}
