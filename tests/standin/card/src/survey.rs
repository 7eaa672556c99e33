//! What is used on the card, counted afresh.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::iter::repeat_n;

use gpulease_words::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::card::Locked;
use crate::memory::exported;
use crate::process::{Contents, Who};
use crate::settings::Settings;

/// What is used at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    settings: Settings,
    processes: Vec<Found>,
    memory: Vec<Piece>,
}

/// A piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    id: u64,
    device: u32,
    bytes: Bytes,
    /// The number of the claim that it is booked on; with a quick look, none.
    booked_on: Option<u64>,
}

/// A process that has a context on a device, as NVML lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its pid as the reader sees it.
    pub pid: u32,
    /// Its context, and the memory that is booked on it.
    pub bytes: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    who: Who,
    contents: Contents,
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Take every file for alive: quick, and never too little.
    Names,
    /// Ask every file.
    Truth,
}

impl Locked<'_> {
    pub(crate) fn survey(&self, look: Look) -> io::Result<Survey> {
        let mut survey =
            Survey { settings: self.card.settings().clone(), processes: Vec::new(), memory: Vec::new() };
        for name in self.names()? {
            if let Some(piece) = memory_of_name(&name) {
                survey.memory.extend(self.look_at(&name, piece, look)?);
            } else if let Some(who) = Who::of_name(&name)
                && (look == Look::Names || self.is_alive(&name)?)
            {
                let contents = Contents::read(&File::open(self.card.directory().join(&name))?)?;
                survey.processes.push(Found { who, contents });
            }
        }
        if look == Look::Truth {
            self.book(&mut survey)?;
        }
        Ok(survey)
    }

    /// Finds for each piece the claim that it is booked on.
    ///
    /// The real driver keeps claims in a ring: a new one goes right behind the one that it was made from, and when the
    /// one that the memory is booked on ends, the next has it. So it is always the first of those that are left. That is
    /// how NVIDIA's open kernel module has it; seen on driver 580 were descriptors and later imports of the maker's.
    fn book(&self, survey: &mut Survey) -> io::Result<()> {
        let mut claims: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for &(id, claim) in survey.processes.iter().flat_map(|found| &found.contents.held) {
            claims.entry(id).or_default().push(claim);
        }
        for piece in &mut survey.memory {
            let held = claims.remove(&piece.id).unwrap_or_default();
            if held.contains(&piece.id) {
                piece.booked_on = Some(piece.id);
                continue;
            }
            let name = memory_name(piece.device, piece.id, piece.bytes);
            let descriptors = match self.alive(&name)? {
                Some(file) => exported(&file)?,
                None => Vec::new(),
            };
            let mut lines = Vec::new();
            for claim in held.into_iter().chain(descriptors) {
                let line: Vec<Reverse<u64>> = self.line_of(claim)?.into_iter().map(Reverse).collect();
                lines.push((line, claim));
            }
            piece.booked_on = lines.into_iter().min().map(|(_, claim)| claim);
        }
        Ok(())
    }

    /// The piece, if it still exists.
    fn look_at(&self, name: &str, piece: Piece, look: Look) -> io::Result<Option<Piece>> {
        Ok((look == Look::Names || self.is_alive(name)?).then_some(piece))
    }
}

impl Survey {
    /// What is used on a device, contexts and all.
    #[must_use]
    pub fn used(&self, device: u32) -> Bytes {
        let base = if self.processes.is_empty() { Bytes::ZERO } else { Settings::BASE };
        let memory = self.memory.iter().filter(|piece| piece.device == device).map(|piece| piece.bytes);
        let context = self.settings.context.saturating_add(Settings::CONTEXT_UNLISTED);
        let contexts =
            self.processes.iter().flat_map(|found| repeat_n(context, found.contents.contexts(device)));
        memory.chain(contexts).chain([base]).sum()
    }

    /// What could still be allocated on a device.
    #[must_use]
    pub fn free(&self, device: u32) -> Bytes {
        self.settings.bytes.saturating_sub(self.used(device))
    }

    /// The processes with a context on a device, each with the memory that is booked on a claim of its own. What is
    /// booked on a descriptor is nobody's.
    #[must_use]
    pub fn residents(&self, device: u32) -> Vec<Resident> {
        let owned_by = |index: usize| -> Bytes {
            let claims: BTreeSet<u64> =
                self.processes[index].contents.held.iter().map(|&(_, claim)| claim).collect();
            let here = self.memory.iter().filter(|piece| piece.device == device);
            let booked = here.filter(|piece| piece.booked_on.is_some_and(|claim| claims.contains(&claim)));
            booked.map(|piece| piece.bytes).sum()
        };
        let with_context =
            self.processes.iter().enumerate().filter(|(_, found)| found.contents.contexts(device) > 0);
        with_context
            .filter_map(|(index, found)| {
                let contexts = repeat_n(self.settings.context, found.contents.contexts(device));
                let bytes = contexts.chain([owned_by(index)]).sum();
                Some(Resident { pid: found.who.pid_here()?, bytes })
            })
            .collect()
    }
}

/// Whether a description other than this new one exists: one of ours would share its lock.
pub(crate) fn is_alive(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn memory_name(device: u32, id: u64, bytes: Bytes) -> String {
    format!("memory-{device}-{id}-{}", bytes.get())
}

fn memory_of_name(name: &str) -> Option<Piece> {
    let mut parts = name.strip_prefix("memory-")?.splitn(3, '-');
    let (device, id, bytes) = (parts.next()?, parts.next()?, parts.next()?);
    let (device, id, bytes) = (device.parse().ok()?, id.parse().ok()?, Bytes::new(bytes.parse().ok()?));
    Some(Piece { id, device, bytes, booked_on: None })
}
