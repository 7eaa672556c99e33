//! What a driver does with the card.

use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpulease_words::Bytes;
use rustix::fs::{FlockOperation, flock};

use crate::DIRECTORY;
use crate::memory::{Label, Memory};
use crate::process::{DEVICES_AT_MOST, Holding, Process, Who};
use crate::settings::Settings;
use crate::survey::{Look, Survey, is_alive, memory_name};
use crate::turn::Turn;

/// The card, opened by one process.
#[derive(Debug)]
pub struct Card {
    directory: PathBuf,
    settings: Settings,
}

/// Why the card refused.
#[derive(Debug)]
pub enum Failed {
    /// The device has less left than was asked for.
    NoRoom,
    /// The system under the stand-in failed it, which a test has to hear of.
    System(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Held while the card is read or changed as a whole.
pub(crate) struct Locked<'a> {
    file: File,
    pub(crate) card: &'a Card,
}

impl Card {
    /// The card whose directory the environment names, or `None` where it names none.
    ///
    /// # Errors
    /// What the kernel says of that directory.
    pub fn of_environment() -> io::Result<Option<Self>> {
        env::var_os(DIRECTORY).map(|directory| Self::open(Path::new(&directory))).transpose()
    }

    /// The card in a directory that exists.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let lock = shared_file(&directory.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let described = directory.join("card");
        let settings = match fs::read_to_string(&described) {
            Ok(text) => Settings::read(&text),
            Err(_) => {
                let settings = Settings::from_environment();
                shared_file(&described)?.write_all_at(settings.write().as_bytes(), 0)?;
                settings
            }
        };
        assert!(settings.devices <= DEVICES_AT_MOST, "a stand-in has at most {DEVICES_AT_MOST} devices");
        Ok(Self { directory: directory.to_owned(), settings })
    }

    /// Writes down what card a directory holds, before anybody opens it: lines of a field of
    /// [`Settings`] and its value.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Panics
    /// On a field or a value that makes no sense.
    pub fn describe(directory: &Path, text: &str) -> io::Result<()> {
        // Made here, since whoever makes it later might be a user whose files others can't write to.
        Turn::open(directory)?;
        shared_file(&directory.join("card"))?.write_all_at(Settings::read(text).write().as_bytes(), 0)
    }

    /// What card it is.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Enters this process into the card's list, until it ends.
    ///
    /// # Errors
    /// What the kernel says; not found where `/proc` is another pid namespace's.
    pub fn enter(&self) -> io::Result<Process> {
        let name = Who::me()?.name();
        let _locked = self.lock()?;
        let file = shared_file(&self.directory.join(name))?;
        flock(&file, FlockOperation::LockShared)?;
        Process::new(file)
    }

    /// Creates memory, held by a process of the card.
    ///
    /// # Errors
    /// See [`Failed`].
    pub fn create(&self, process: &Process, device: u32, bytes: Bytes) -> Result<(Memory, Holding), Failed> {
        let locked = self.lock()?;
        locked.make_room(device, bytes)?;
        let id = locked.number()?;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).expect("the kernel has random bytes");
        let file = shared_file(&self.directory.join(memory_name(device, id, bytes)))?;
        flock(&file, FlockOperation::LockShared).map_err(io::Error::from)?;
        let memory = Memory::label(file, Label { device, id, bytes, nonce })?;
        let holding = process.hold(id, id)?;
        Ok((memory, holding))
    }

    /// Books an imported descriptor's memory for a process.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn hold(&self, process: &Process, memory: &mut Memory) -> io::Result<Holding> {
        let claim = self.lock()?.claim(memory.claim())?;
        memory.set_claim(claim);
        process.hold(memory.id(), claim)
    }

    /// A descriptor of a process's memory for others, closed on exec.
    ///
    /// # Errors
    /// What the kernel says: most often, too many open files.
    pub fn export(&self, memory: &Memory) -> io::Result<OwnedFd> {
        let locked = self.lock()?;
        memory.export(locked.claim(memory.claim())?)
    }

    /// The memory of this id, by a description of its own, if it still exists and the nonce is right.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn find(&self, process: &Process, id: u64, nonce: [u8; 16]) -> io::Result<Option<(Memory, Holding)>> {
        let locked = self.lock()?;
        let middle = format!("-{id}-");
        let wanted = |name: &String| name.starts_with("memory-") && name.contains(&middle);
        let Some(name) = locked.names()?.into_iter().find(wanted) else { return Ok(None) };
        let file = shared_file(&self.directory.join(name))?;
        if !is_alive(&file)? {
            return Ok(None);
        }
        flock(&file, FlockOperation::LockShared)?;
        let Some(mut memory) =
            Memory::read(file).filter(|memory| memory.id() == id && memory.nonce() == nonce)
        else {
            return Ok(None);
        };
        memory.set_claim(locked.claim(id)?);
        let holding = process.hold(id, memory.claim())?;
        Ok(Some((memory, holding)))
    }

    /// Gives a claim up; the bytes are free again at once if it was the last.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(&self, process: &Process, memory: Memory, holding: &Holding) -> io::Result<()> {
        let locked = self.lock()?;
        process.let_go(holding)?;
        let name = memory_name(memory.device(), memory.id(), memory.bytes());
        drop(memory);
        locked.is_alive(&name)?;
        Ok(())
    }

    /// Makes a context of a process on a device, one more if it has any.
    ///
    /// # Errors
    /// See [`Failed`].
    pub fn make_context(&self, process: &Process, device: u32) -> Result<(), Failed> {
        let locked = self.lock()?;
        locked.make_room(device, self.settings.context.saturating_add(Settings::CONTEXT_UNLISTED))?;
        Ok(process.count_context(device, 1)?)
    }

    /// Ends a context of a process.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end_context(&self, process: &Process, device: u32) -> io::Result<()> {
        let _locked = self.lock()?;
        process.count_context(device, -1)
    }

    /// What is used, and by whom, at this moment.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn survey(&self) -> io::Result<Survey> {
        self.lock()?.survey(Look::Truth)
    }

    fn lock(&self) -> io::Result<Locked<'_>> {
        let file = shared_file(&self.directory.join("lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Locked { file, card: self })
    }
}

impl Locked<'_> {
    /// A number that was never given out on this card, from 1.
    fn number(&self) -> io::Result<u64> {
        let mut last = [0; 8];
        let known = self.file.read_at(&mut last, 0)?;
        assert!(known == 0 || known == 8, "the counter of ids is whole");
        let next = u64::from_le_bytes(last) + 1;
        self.file.write_all_at(&next.to_le_bytes(), 0)?;
        Ok(next)
    }

    /// A number for a new claim that is made from another; a maker's claim has the number of its memory.
    fn claim(&self, from: u64) -> io::Result<u64> {
        let number = self.number()?;
        // Behind the counter: from which each claim was made.
        self.file.write_all_at(&from.to_le_bytes(), number * 8)?;
        Ok(number)
    }

    /// The claims from which one was made, from the maker's to itself.
    pub(crate) fn line_of(&self, claim: u64) -> io::Result<Vec<u64>> {
        let mut line = vec![claim];
        loop {
            let mut from = [0; 8];
            // A maker's claim, and behind the last, is nothing.
            let known = self.file.read_at(&mut from, line[0] * 8)?;
            match u64::from_le_bytes(from) {
                from if known == 8 && from != 0 => line.insert(0, from),
                _ => return Ok(line),
            }
        }
    }

    fn make_room(&self, device: u32, bytes: Bytes) -> Result<(), Failed> {
        for look in [Look::Names, Look::Truth] {
            let used = self.survey(look)?.used(device);
            if used.checked_add(bytes).is_some_and(|sum| sum <= self.card.settings.bytes) {
                return Ok(());
            }
        }
        Err(Failed::NoRoom)
    }

    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.card.directory)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Whether anybody still has what this file is of; it is removed if not.
    pub(crate) fn is_alive(&self, name: &str) -> io::Result<bool> {
        Ok(self.alive(name)?.is_some())
    }

    /// The file, if anybody still has what it is of; it is removed if not.
    pub(crate) fn alive(&self, name: &str) -> io::Result<Option<File>> {
        let path = self.card.directory.join(name);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if is_alive(&file)? {
            return Ok(Some(file));
        }
        fs::remove_file(path)?;
        Ok(None)
    }
}

/// A file that processes of any user may use, as they may use a card.
pub(crate) fn shared_file(path: &Path) -> io::Result<File> {
    let open = |create| OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path);
    match open(false) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = open(true)?;
            fs::set_permissions(path, Permissions::from_mode(0o666))?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}
