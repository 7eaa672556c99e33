//! How a segment's handles are given up: piece by piece, and what comes free is made anew before others take it.

use gpulease_words::{Bytes, SegmentId};

use super::CudaDevice;
use super::drain::{Passage, Return};
use super::piece::Piece;
use super::standing::Standing;

impl CudaDevice {
    /// Gives the handles of a segment up; this was the standing just before.
    pub(super) fn give_up(&mut self, id: SegmentId, pieces: Vec<Piece>, before: Option<Standing>) {
        let short = self.short();
        let pieces: Vec<_> = pieces.into_iter().map(|piece| self.let_free(id, piece)).collect();
        let segment = self.segments.get_mut(&id).expect("only what was made is given up");
        segment.short = short;
        let passage = Passage { before, tenants: segment.tenants.clone() };
        self.released(id, &pieces, &passage);
    }

    /// Gives a piece up and makes as much anew before anything else, since others may be waiting for it.
    fn let_free(&mut self, id: SegmentId, piece: Piece) -> (Bytes, Return) {
        let (bytes, before) = (piece.bytes(), self.free());
        piece.release();
        self.handled = self.handled.checked_sub(bytes).expect("it was handled");
        let anew = self.make_anew(bytes);
        let Some((now, before)) = self.free().zip(before) else { return (bytes, Return::Unknown) };
        let came = now.saturating_add(anew).saturating_sub(before);
        if came.is_zero() {
            // It was made of the headroom, which is others'.
            self.make_room(anew);
            return (bytes, Return::Nothing);
        }
        self.count_anew(id, anew);
        (bytes, if came < bytes { Return::Part } else { Return::Whole })
    }
}
