//! A piece of the card's memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use gpulease_words::Bytes;
use rustix::fs::{FlockOperation, SeekFrom, flock, seek};

use crate::mark;

/// The page behind the memory, by which an importer knows a descriptor of ours.
const TRAILER: u64 = 4096;
const MAGIC: [u8; 16] = *b"gpulease standin";

/// A claim on memory of the card: a description of its file. Others may exist.
#[derive(Debug)]
pub struct Memory {
    file: File,
    label: Label,
    /// Its number among the card's claims; of a descriptor's not yet counted import, that of the descriptor.
    claim: u64,
}

/// What the trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) device: u32,
    pub(crate) id: u64,
    pub(crate) bytes: Bytes,
    /// What an IPC handle has to know besides the id.
    pub(crate) nonce: [u8; 16],
}

impl Memory {
    /// Makes a new, empty file this memory.
    pub(crate) fn label(file: File, label: Label) -> io::Result<Self> {
        let end = label.bytes.get().checked_add(TRAILER).ok_or(io::ErrorKind::InvalidInput)?;
        file.set_len(end)?;
        let mut trailer = MAGIC.to_vec();
        trailer.extend(label.device.to_le_bytes());
        trailer.extend(label.id.to_le_bytes());
        trailer.extend(label.bytes.get().to_le_bytes());
        trailer.extend(label.nonce);
        file.write_all_at(&trailer, label.bytes.get())?;
        Ok(Self { file, label, claim: label.id })
    }

    /// The memory that a descriptor is of, if it is of any.
    pub(crate) fn read(file: File) -> Option<Self> {
        let bytes = file.metadata().ok()?.len().checked_sub(TRAILER)?;
        let mut trailer = [0; 52];
        file.read_exact_at(&mut trailer, bytes).ok()?;
        let (magic, rest) = trailer.split_first_chunk::<16>()?;
        let (device, rest) = rest.split_first_chunk::<4>()?;
        let (id, rest) = rest.split_first_chunk::<8>()?;
        let (size, nonce) = rest.split_first_chunk::<8>()?;
        let label = Label {
            device: u32::from_le_bytes(*device),
            id: u64::from_le_bytes(*id),
            bytes: Bytes::new(u64::from_le_bytes(*size)),
            nonce: nonce.try_into().ok()?,
        };
        (*magic == MAGIC && label.bytes.get() == bytes).then_some(Self { file, label, claim: label.id })
    }

    /// The memory of a descriptor that another process exported, by a description of its own.
    #[must_use]
    pub fn import(descriptor: BorrowedFd<'_>) -> Option<Self> {
        let claim = seek(descriptor, SeekFrom::Current(0)).ok()?;
        Some(Self { claim, ..Self::read(claimed(descriptor).ok()?)? })
    }

    /// A descriptor of it with this number, closed on exec. It is a claim by itself, whoever has it; its number is where
    /// it would read next, which nobody does.
    pub(crate) fn export(&self, claim: u64) -> io::Result<OwnedFd> {
        let file = claimed(self.file.as_fd())?;
        seek(&file, SeekFrom::Start(claim))?;
        mark::put(&file, self.end(), claim)?;
        Ok(file.into())
    }

    /// Its number among the card's claims.
    pub(crate) fn claim(&self) -> u64 {
        self.claim
    }

    /// It has been counted.
    pub(crate) fn set_claim(&mut self, claim: u64) {
        self.claim = claim;
    }

    fn end(&self) -> u64 {
        self.label.bytes.get() + TRAILER
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.label.device
    }

    /// Its number on the card.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.label.id
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.label.bytes
    }

    /// What a 64-byte handle of it has to know besides its id.
    #[must_use]
    pub fn nonce(&self) -> [u8; 16] {
        self.label.nonce
    }

    /// Fills it with what a careless program would not expect.
    ///
    /// # Errors
    /// What the kernel says: most often, no space left.
    pub fn soil(&self) -> io::Result<()> {
        let dirt = vec![0xa5; 1 << 20];
        let mut at = 0;
        while at < self.label.bytes.get() {
            let length =
                usize::try_from(self.label.bytes.get() - at).map_or(dirt.len(), |rest| rest.min(dirt.len()));
            self.file.write_all_at(&dirt[..length], at)?;
            at += length as u64;
        }
        Ok(())
    }
}

/// The numbers of the descriptors of the memory that a file is of; asked by a description that has nothing else to do.
pub(crate) fn exported(file: &File) -> io::Result<Vec<u64>> {
    mark::all(file, file.metadata()?.len())
}

/// A description of its own of the memory behind a descriptor.
fn claimed(of: BorrowedFd<'_>) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", of.as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    flock(&file, FlockOperation::LockShared)?;
    Ok(file)
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
