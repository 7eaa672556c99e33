//! A process that uses the card.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Devices a process file has room for.
pub(crate) const DEVICES_AT_MOST: u32 = 16;
const SLOT: u64 = 16;

/// This process on the card, until it ends.
#[derive(Debug)]
pub struct Process {
    file: File,
    slots: Mutex<Slots>,
    /// How many contexts it has on each device.
    contexts: Mutex<[u8; DEVICES_AT_MOST as usize]>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u64>,
    next: u64,
}

/// A line in the process's list of what it holds.
#[derive(Debug)]
pub struct Holding(u64);

/// Which process a file is of, as its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pid: u32,
    start: u64,
    namespace: u64,
}

impl Process {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        file.set_len(u64::from(DEVICES_AT_MOST))?;
        Ok(Self { file, slots: Mutex::default(), contexts: Mutex::default() })
    }

    /// Writes down that it has one context more, or one less, on a device.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn count_context(&self, device: u32, change: i8) -> io::Result<()> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = &mut contexts[device as usize];
        *count = count.checked_add_signed(change).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.file.write_all_at(&[*count], u64::from(device))
    }

    /// Writes down that it holds memory; the lower the number, the older the claim.
    pub(crate) fn hold(&self, id: u64, claim: u64) -> io::Result<Holding> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop().unwrap_or(slots.next);
        slots.next = slots.next.max(slot + 1);
        self.write(slot, id, claim)?;
        Ok(Holding(slot))
    }

    pub(crate) fn let_go(&self, holding: &Holding) -> io::Result<()> {
        self.write(holding.0, 0, 0)?;
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).free.push(holding.0);
        Ok(())
    }

    fn write(&self, slot: u64, id: u64, claim: u64) -> io::Result<()> {
        let line = [id.to_le_bytes(), claim.to_le_bytes()].concat();
        self.file.write_all_at(&line, u64::from(DEVICES_AT_MOST) + slot * SLOT)
    }
}

/// What a process file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// How many contexts it has on each device.
    contexts: Vec<u8>,
    /// Id and claim of what it holds.
    pub(crate) held: Vec<(u64, u64)>,
}

impl Contents {
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        let mut all = vec![0; usize::try_from(file.metadata()?.len()).expect("a process file is small")];
        file.read_exact_at(&mut all, 0)?;
        // A process killed while it entered has left less than that.
        all.resize(all.len().max(DEVICES_AT_MOST as usize), 0);
        let (flags, slots) = all.split_at(DEVICES_AT_MOST as usize);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken"));
        let held = slots.chunks_exact(16).map(|slot| (number(&slot[..8]), number(&slot[8..])));
        Ok(Self { contexts: flags.to_vec(), held: held.filter(|&(id, _)| id != 0).collect() })
    }

    /// How many contexts it has on a device.
    pub(crate) fn contexts(&self, device: u32) -> usize {
        self.contexts.get(device as usize).copied().map_or(0, usize::from)
    }
}

impl Who {
    /// This process; an error where `/proc` is another pid namespace's, as the driver requires.
    pub(crate) fn me() -> io::Result<Self> {
        let pid = std::process::id();
        if fs::read_link("/proc/self")?.to_str() != Some(&pid.to_string()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { pid, start: start_of(pid)?, namespace: namespace_of("self")? })
    }

    pub(crate) fn name(&self) -> String {
        format!("process-{}-{}-{}", self.pid, self.start, self.namespace)
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("process-")?.splitn(3, '-');
        let (pid, start, namespace) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()?, namespace: namespace.parse().ok()? })
    }

    /// Its pid as the reader sees it, while it lives: NVML speaks the reader's numbers.
    pub(crate) fn pid_here(&self) -> Option<u32> {
        if namespace_of("self").ok()? == self.namespace {
            return (start_of(self.pid).ok()? == self.start).then_some(self.pid);
        }
        let all = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|&pid| self.is(pid).unwrap_or(false))
    }

    fn is(&self, pid: u32) -> io::Result<bool> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let inner = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .and_then(|ids| ids.split_whitespace().last());
        Ok(inner == Some(&self.pid.to_string())
            && namespace_of(&pid.to_string())? == self.namespace
            && start_of(pid)? == self.start)
    }
}

fn start_of(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command may hold spaces and parentheses; the 20th field after it is the start.
    let after = stat.rsplit_once(')').map(|(_, rest)| rest).ok_or(io::ErrorKind::InvalidData)?;
    let start = after.split_whitespace().nth(19).ok_or(io::ErrorKind::InvalidData)?;
    start.parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn namespace_of(pid: &str) -> io::Result<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| io::ErrorKind::InvalidData.into())
}
