//! What is used on the card, counted afresh.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::iter::repeat_n;

use gpulease_words::Bytes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::card::Locked;
use crate::process::{Contents, Who};
use crate::settings::Settings;

/// What is used at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    settings: Settings,
    processes: Vec<Found>,
    /// Id, device and size of each piece of memory.
    memory: Vec<(u64, u32, Bytes)>,
}

/// A process that has a context on a device, as NVML lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its pid as the reader sees it.
    pub pid: u32,
    /// Its context, and the memory it holds before all others.
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
        let alive = |name: &str| match look {
            Look::Names => Ok(true),
            Look::Truth => self.is_alive(name),
        };
        for name in self.names()? {
            if let Some((device, id, bytes)) = memory_of_name(&name) {
                if alive(&name)? {
                    survey.memory.push((id, device, bytes));
                }
            } else if let Some(who) = Who::of_name(&name)
                && alive(&name)?
            {
                let contents = Contents::read(&File::open(self.card.directory().join(&name))?)?;
                survey.processes.push(Found { who, contents });
            }
        }
        Ok(survey)
    }
}

impl Survey {
    /// What is used on a device, contexts and all.
    #[must_use]
    pub fn used(&self, device: u32) -> Bytes {
        let base = if self.processes.is_empty() { Bytes::ZERO } else { Settings::BASE };
        let memory = self.memory.iter().filter(|(_, on, _)| *on == device).map(|&(_, _, bytes)| bytes);
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

    /// The processes with a context on a device. Memory is booked on the oldest claim to it, and
    /// on nobody where that process has no context here: as measured on the real driver.
    #[must_use]
    pub fn residents(&self, device: u32) -> Vec<Resident> {
        let mut owners: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (index, found) in self.processes.iter().enumerate() {
            for &(id, claim) in &found.contents.held {
                let oldest = owners.entry(id).or_insert((claim, index));
                *oldest = (claim, index).min(*oldest);
            }
        }
        let owned_by = |index: usize| -> Bytes {
            let mine = |id: &u64| owners.get(id).is_some_and(|&(_, owner)| owner == index);
            self.memory
                .iter()
                .filter(|(id, on, _)| *on == device && mine(id))
                .map(|&(_, _, bytes)| bytes)
                .sum()
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

fn memory_of_name(name: &str) -> Option<(u32, u64, Bytes)> {
    let mut parts = name.strip_prefix("memory-")?.splitn(3, '-');
    let (device, id, bytes) = (parts.next()?, parts.next()?, parts.next()?);
    Some((device.parse().ok()?, id.parse().ok()?, Bytes::new(bytes.parse().ok()?)))
}
