//! What is used on the card, counted afresh.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::iter::repeat_n;

use gpulease_words::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::card::Locked;
use crate::memory::is_exported;
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
    descriptor: Descriptor,
}

/// Whether anybody has a descriptor of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    Open,
    None,
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
        Ok(survey)
    }

    /// The piece, if it still exists.
    fn look_at(&self, name: &str, piece: Piece, look: Look) -> io::Result<Option<Piece>> {
        if look == Look::Names {
            return Ok(Some(piece));
        }
        let Some(file) = self.alive(name)? else { return Ok(None) };
        let descriptor = if is_exported(&file)? { Descriptor::Open } else { Descriptor::None };
        Ok(Some(Piece { descriptor, ..piece }))
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

    /// The processes with a context on a device. Memory is booked on who made it while he has his handle, then on who
    /// alone has a claim to it, and else on nobody; a descriptor is a claim, and so is each import. That is how the
    /// real driver counts it (580).
    #[must_use]
    pub fn residents(&self, device: u32) -> Vec<Resident> {
        let mut claims: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
        for (index, found) in self.processes.iter().enumerate() {
            for &(id, claim) in &found.contents.held {
                claims.entry(id).or_default().push((claim, index));
            }
        }
        let booked_on = |piece: &&Piece| -> Option<usize> {
            let claims = claims.get(&piece.id)?;
            let makers = claims.iter().find(|(claim, _)| *claim == piece.id);
            let alone = (claims.len() == 1 && piece.descriptor == Descriptor::None).then(|| &claims[0]);
            makers.or(alone).map(|&(_, index)| index)
        };
        let owned_by = |index: usize| -> Bytes {
            let here = self.memory.iter().filter(|piece| piece.device == device);
            here.filter(|piece| booked_on(piece) == Some(index)).map(|piece| piece.bytes).sum()
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
    Some(Piece { id, device, bytes, descriptor: Descriptor::None })
}
