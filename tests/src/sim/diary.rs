//! The last things that happened, for whoever has to find out why a run failed.

use std::collections::VecDeque;
use std::fmt;

use gpulease_arbiter::{Effect, Event, Time};

/// More than one seldom needs, and few enough to read.
const KEPT: usize = 40;

/// One line of the diary.
#[derive(Clone, Debug)]
enum Entry {
    Event(Time, Event),
    Timeout(Time),
    Effect(Effect),
}

/// The last entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Diary {
    entries: VecDeque<Entry>,
}

impl Diary {
    pub(super) fn event(&mut self, now: Time, event: &Event) {
        self.push(Entry::Event(now, event.clone()));
    }

    pub(super) fn timeout(&mut self, now: Time) {
        self.push(Entry::Timeout(now));
    }

    pub(super) fn effect(&mut self, effect: &Effect) {
        self.push(Entry::Effect(effect.clone()));
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }
}

impl fmt::Display for Diary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            match entry {
                Entry::Event(now, event) => writeln!(f, "{:>10.3?} {event:?}", now.since_start())?,
                Entry::Timeout(now) => writeln!(f, "{:>10.3?} time has passed", now.since_start())?,
                Entry::Effect(effect) => writeln!(f, "{:>10} -> {effect:?}", "")?,
            }
        }
        Ok(())
    }
}
