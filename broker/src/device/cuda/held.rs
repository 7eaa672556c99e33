//! A GPU with a hold: where segments come out of it, and what comes back is made anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_cuda::CudaError;
use gpulease_words::Bytes;

use super::hold::{Hold, Piece};
use super::{CHUNKS_MAX, CudaDevice, chunks};

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
        let taken = hold.take(bytes);
        self.gauge.set_hold(hold.bytes());
        self.hold = Some(hold);
        taken
    }

    /// What of the card nobody uses; `None` where it does not say or nobody needs to know.
    pub(super) fn free(&self) -> Option<Bytes> {
        self.hold.as_ref()?;
        let used = self.nvml.as_ref().ok()?.used().ok()?;
        Some(self.usable.saturating_sub(used))
    }

    /// Makes what came back of a segment since so much was free anew at once, before others take it.
    pub(super) fn make_anew(&mut self, bytes: Bytes, free_before: Option<Bytes>) {
        let Some((free, before)) = self.free().zip(free_before) else { return };
        let back = free.saturating_sub(before).min(bytes);
        if let Some(hold) = &mut self.hold {
            hold.grow(back);
            self.gauge.set_hold(hold.bytes());
        }
    }

    /// What was made anew for a segment that turned out to be still with somebody goes back: the headroom is others'.
    pub(super) fn yield_what_is_not_back(&mut self) {
        let existing = self.existing;
        if self.hold.as_ref().is_some_and(|hold| hold.bytes() > hold.at_most(existing)) {
            self.settle();
        }
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
        let Some((hold, free)) = self.free().and_then(|free| Some((self.hold.as_mut()?, free))) else {
            return;
        };
        let (now, target) = (hold.bytes(), hold.target(self.existing, free));
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
        let (gauge, hold) = (Arc::clone(&self.gauge), self.hold.as_mut()?);
        if hold.is_untidy() {
            let _changing = gauge.changing();
            hold.tidy();
            gauge.set_hold(hold.bytes());
        }
        Some(Hold::again(hold.export_some()))
    }
}
