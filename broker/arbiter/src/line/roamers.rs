//! Barriers for any device that collect: each holds back on the devices that it is bound to, and
//! takes the room of others if those have it sooner.
//!
//! Of one [`Shape`](crate::line::shape::Shape) whatever fits anywhere is at most a bound that the
//! devices set, so those that fit are a range. They are few: what fits is granted at once.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes};

use crate::line::ask::Turn;
use crate::line::shape::ShapeId;

/// Who roams, by shape and size.
#[derive(Debug, Default)]
pub(crate) struct Roamers(BTreeMap<ShapeId, BTreeSet<(Bytes, Turn)>>);

impl Roamers {
    pub(crate) fn enter(&mut self, shape: ShapeId, amount: Bytes, turn: Turn) {
        self.0.entry(shape).or_default().insert((amount, turn));
    }

    /// It roams no more, if it did.
    pub(crate) fn leave(&mut self, shape: ShapeId, amount: Bytes, turn: Turn) {
        if let Some(of) = self.0.get_mut(&shape) {
            of.remove(&(amount, turn));
            if of.is_empty() {
                self.0.remove(&shape);
            }
        }
    }

    /// The first that `take` finds something for, among those of each shape up to its bound.
    pub(crate) fn oldest<T>(
        &self,
        bound: impl Fn(ShapeId) -> Option<Bytes>,
        take: impl Fn(AskId) -> Option<T>,
    ) -> Option<(AskId, T)> {
        let fitting = self.0.iter().filter_map(|(shape, of)| Some((bound(*shape)?, of)));
        let all: BTreeSet<Turn> =
            fitting.flat_map(|(most, of)| of.range(..=(most, Turn::LAST)).map(|(_, id)| *id)).collect();
        all.into_iter().find_map(|turn| Some((turn.ask, take(turn.ask)?)))
    }

    /// Everyone.
    pub(crate) fn all(&self) -> BTreeSet<AskId> {
        self.0.values().flatten().map(|(_, turn)| turn.ask).collect()
    }
}
