//! Does CUDA and NVML calls as it is told, one message at a time over the socket that is its
//! standard input. See `gpulease_tests::puppet`.

mod file_mapping;
mod swapper;
mod tenant;
mod trials;

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use gpulease_cuda::cudarc::driver::sys;
use gpulease_cuda::{
    Access, Allocation, Context, Device, DeviceMemory, DevicePtr, Driver, IpcHandle, IpcMapping, Reservation,
};
use gpulease_tests::puppet::{receive, send};
use gpulease_words::{Bytes, Size};
use rustix::io::{FdFlags, fcntl_getfd};

use crate::swapper::Swapper;
use crate::tenant::Tenant;

use file_mapping::FileMapping;

/// What it has, by the names that the test gave.
#[derive(Default)]
struct Puppet {
    contexts: BTreeMap<usize, Context>,
    allocations: BTreeMap<String, Allocation>,
    reservations: BTreeMap<String, Reservation>,
    memory: BTreeMap<String, DeviceMemory>,
    opened: BTreeMap<String, IpcMapping>,
    descriptors: Vec<OwnedFd>,
    files: Vec<FileMapping>,
    tenant: Option<Tenant>,
    swapper: Option<Swapper>,
}

/// What goes back: words, and a descriptor or none.
type Reply = Result<(String, Option<OwnedFd>), Box<dyn Error>>;

fn main() -> ExitCode {
    let (socket, mut puppet) = (io::stdin(), Puppet::default());
    loop {
        let Ok((command, descriptor)) = receive(socket.as_fd()) else { return ExitCode::FAILURE };
        if command.is_empty() {
            return ExitCode::SUCCESS;
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let sent = match puppet.obey(&words, descriptor) {
            Ok((said, descriptor)) => {
                send(socket.as_fd(), &format!("ok {said}"), descriptor.as_ref().map(AsFd::as_fd))
            }
            Err(error) => send(socket.as_fd(), &format!("error {error}"), None),
        };
        if sent.is_err() {
            return ExitCode::FAILURE;
        }
    }
}

impl Puppet {
    fn obey(&mut self, words: &[&str], descriptor: Option<OwnedFd>) -> Reply {
        match words {
            ["export", name] => {
                let descriptor = self.allocation(name)?.export()?;
                if !fcntl_getfd(&descriptor)?.contains(FdFlags::CLOEXEC) {
                    return Err("the descriptor would be inherited by programs".into());
                }
                Ok((String::new(), Some(descriptor)))
            }
            ["views", number, sizes @ ..] => self.views(number, sizes).map(|said| (said, None)),
            ["import", name, size] => self.import(name, size, descriptor),
            // Keeps a descriptor and calls nothing: memory must live by that alone.
            ["keep"] => {
                self.descriptors.extend(descriptor);
                Ok((String::new(), None))
            }
            ["let-go"] => {
                self.descriptors.clear();
                Ok((String::new(), None))
            }
            ["map-file", size] => self.map_file(size, descriptor),
            ["fill-files", byte] => {
                let byte = byte.parse()?;
                self.files.iter_mut().for_each(|file| file.fill(byte));
                Ok((String::new(), None))
            }
            ["unmap-files"] => {
                self.files.clear();
                Ok((String::new(), None))
            }
            ["fill", seed] => self.as_tenant("fill", &[seed]).map(|said| (said, None)),
            [verb, rest @ ..] => {
                let said = match *verb {
                    "here" | "load" | "devices" | "device" | "cudarc" | "nvml" | "kept" | "fork" => {
                        self.about(verb, rest)
                    }
                    "context" | "end-context" | "make-current" | "current" | "info" | "timing" | "pinned"
                    | "register" => self.context(verb, rest),
                    "lease" | "allocate" | "touch" | "check" | "free-all" | "release-lease" => {
                        self.as_tenant(verb, rest)
                    }
                    "swap-map" | "swap-fill" | "swap-check" | "swap-out" | "swap-back" | "swap-vacate"
                    | "swap-lane" => self.as_swapper(verb, rest),
                    "alloc" | "free" | "ipc" | "open" | "close" => self.legacy(verb, rest),
                    _ => self.vmm(verb, rest),
                };
                said.map(|said| (said, None))
            }
            [] => Err("an empty command".into()),
        }
    }

    /// `here`, `load`, `devices`, `device UUID`, `cudarc DEVICE`, `nvml DEVICE`, `kept`, `fork`.
    fn about(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        match (verb, words) {
            ("here", []) => Ok(String::new()),
            ("load", []) => Ok(Driver::load()?.version().to_string()),
            ("devices", []) => Driver::load()?.devices()?.into_iter().map(trials::described).collect(),
            ("device", [uuid]) => {
                let found = Driver::load()?.device(uuid.parse()?)?.ok_or("no such device")?;
                Ok(found.ordinal().to_string())
            }
            ("cudarc", [device]) => trials::cudarc(device.parse()?),
            ("nvml", [device]) => trials::nvml(device.parse()?),
            ("kept", []) => {
                let kept = Driver::load()?.take_kept_errors();
                let words: Vec<String> = kept.first.iter().map(ToString::to_string).collect();
                Ok(format!("{} more={}", words.join("; "), kept.more))
            }
            ("fork", []) => trials::fork(),
            _ => Err(format!("{verb} {words:?} is no command").into()),
        }
    }

    /// `context DEVICE`, `end-context DEVICE`, `make-current DEVICE`, `current DEVICE`, `info DEVICE`,
    /// `timing DEVICE`, `pinned DEVICE`, `register DEVICE`.
    fn context(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        let [number] = words else { return Err("which device?".into()) };
        let number: usize = number.parse()?;
        match verb {
            "context" => {
                self.contexts.insert(number, Context::retain(device(number)?)?);
            }
            "end-context" => {
                self.contexts.remove(&number).ok_or("it has no such context")?;
            }
            "make-current" => self.in_context(number)?.make_current()?,
            "current" => return trials::current(self.in_context(number)?),
            "info" => {
                let info = self.in_context(number)?.memory_info()?;
                return Ok(format!("free={} total={}", info.free.get(), info.total.get()));
            }
            "timing" => return trials::timing(self.in_context(number)?),
            "pinned" => return trials::pinned(self.in_context(number)?),
            _ => return trials::register(self.in_context(number)?),
        }
        Ok(String::new())
    }

    /// `alloc NAME DEVICE SIZE`, `free NAME`, `ipc NAME`, `open NAME DEVICE HANDLE`, `close NAME`.
    fn legacy(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        match (verb, words) {
            ("alloc", [name, number, size]) => {
                let memory = DeviceMemory::allocate(self.in_context(number.parse()?)?, bytes(size)?)?;
                self.memory.insert((*name).to_owned(), memory);
                Ok(String::new())
            }
            ("free", [name]) => {
                Ok(self.memory.remove(*name).map(|_| String::new()).ok_or("no such memory")?)
            }
            ("ipc", [name]) => {
                let handle = self.memory.get(*name).ok_or("no such memory")?.ipc_handle()?;
                Ok(handle.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
            }
            ("open", [name, number, hex]) => {
                let digits =
                    hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(&String::from_utf8_lossy(two), 16));
                let handle: Vec<u8> = digits.collect::<Result<_, _>>()?;
                let handle = IpcHandle::from_bytes(handle.as_slice().try_into()?);
                let mapping = IpcMapping::open(self.in_context(number.parse()?)?, &handle)?;
                let said = format!("{:?} {}", mapping.ptr(), mapping.bytes()?.get());
                self.opened.insert((*name).to_owned(), mapping);
                Ok(said)
            }
            ("close", [name]) => {
                Ok(self.opened.remove(*name).map(|_| String::new()).ok_or("no such mapping")?)
            }
            _ => Err(format!("{verb} {words:?} is no command").into()),
        }
    }

    /// `create NAME DEVICE SIZE`, `release NAME`, `drop NAME`, `reserve NAME SIZE`,
    /// `map RANGE NAME OFFSET`, `access RANGE DEVICE rw|ro`, `unmap RANGE`, `unreserve RANGE`,
    /// `fill NAME DEVICE OFFSET BYTE SIZE`, `read NAME DEVICE OFFSET SIZE`, `base NAME`,
    /// `ipc-of NAME DEVICE`, `sums NAME DEVICE SIZE`.
    fn vmm(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        match (verb, words) {
            ("create", [name, number, size]) => {
                let allocation = Allocation::create(device(number.parse()?)?, bytes(size)?)?;
                self.allocations.insert((*name).to_owned(), allocation);
            }
            ("release", [name]) => self.allocations.remove(*name).ok_or("no such allocation")?.release()?,
            ("drop", [name]) => drop(self.allocations.remove(*name).ok_or("no such allocation")?),
            ("reserve", [name, size]) => {
                self.reservations
                    .insert((*name).to_owned(), Reservation::reserve(Driver::load()?, bytes(size)?)?);
            }
            ("map", [range, name, at]) => {
                let allocation = self.allocations.get(*name).ok_or("no such allocation")?;
                self.reservations.get_mut(*range).ok_or("no such range")?.map(allocation, bytes(at)?)?;
            }
            ("access", [range, number, how]) => {
                let access = if *how == "rw" { Access::ReadWrite } else { Access::ReadOnly };
                self.range(range)?.set_access(device(number.parse()?)?, access)?;
            }
            ("unmap", [range]) => self.reservations.get_mut(*range).ok_or("no such range")?.unmap()?,
            ("unreserve", [range]) => self.reservations.remove(*range).ok_or("no such range")?.release()?,
            ("base", [name]) => return Ok(format!("{:?}", self.ptr(name)?)),
            ("fill", [name, number, at, byte, size]) => {
                let (at, context) = (self.ptr(name)?.offset(bytes(at)?), self.in_context(number.parse()?)?);
                // SAFETY: only this thread uses the range; one that is not mapped is refused.
                unsafe { context.fill(at, byte.parse()?, bytes(size)?) }?;
            }
            ("ipc-of", [name, number]) => return self.ipc_of(name, number),
            ("read", [name, number, at, size]) => return self.read(name, number, at, size),
            ("sums", [name, number, size]) => {
                return trials::sums(self.in_context(number.parse()?)?, self.ptr(name)?, bytes(size)?);
            }
            _ => return Err(format!("{verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    /// Reads a range and says its bytes where they are all alike.
    fn read(&self, name: &str, number: &str, at: &str, size: &str) -> Result<String, Box<dyn Error>> {
        let mut host = vec![0; usize::try_from(bytes(size)?.get())?];
        let from = self.ptr(name)?.offset(bytes(at)?);
        // SAFETY: only this thread uses the range; one that is not mapped is refused.
        unsafe { self.in_context(number.parse()?)?.copy_to_host(&mut host, from) }?;
        match host.first() {
            Some(first) if host.iter().all(|byte| byte == first) => Ok(first.to_string()),
            Some(_) | None => Ok("mixed".to_owned()),
        }
    }

    /// What `cuIpcGetMemHandle` says of any address: our own types ask it only for what has one.
    fn ipc_of(&self, name: &str, number: &str) -> Result<String, Box<dyn Error>> {
        self.in_context(number.parse()?)?.make_current()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a handle of ours; the driver looks the address up.
        let code = unsafe { sys::cuIpcGetMemHandle(&mut handle, self.ptr(name)?.raw()) };
        Ok(format!("{code:?}"))
    }

    fn import(&mut self, name: &str, size: &str, descriptor: Option<OwnedFd>) -> Reply {
        let descriptor = descriptor.ok_or("there came no descriptor")?;
        let allocation = Allocation::import(Driver::load()?, descriptor.as_fd(), bytes(size)?)?;
        self.allocations.insert(name.to_owned(), allocation);
        Ok((String::new(), None))
    }

    /// `lease SOCKET RESERVE LIMIT`, `allocate SIZE`, `touch`, `fill SEED`, `check SEED`, `free-all`, `release-lease`.
    fn as_tenant(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        if let ("lease", [socket, reserve, limit]) = (verb, words) {
            self.tenant = Some(Tenant::lease(socket, bytes(reserve)?, bytes(limit)?)?);
            return Ok(String::new());
        }
        let tenant = self.tenant.as_mut().ok_or("it has no lease")?;
        match (verb, words) {
            ("allocate", [size]) => tenant.allocate(bytes(size)?),
            ("touch", []) => tenant.touch(),
            ("fill", [seed]) => tenant.fill(seed.parse()?),
            ("check", [seed]) => tenant.check(seed.parse()?),
            ("free-all", []) => tenant.free(),
            ("release-lease", []) => Ok(self.tenant.take().map(|_| String::new()).unwrap_or_default()),
            _ => Err(format!("{verb} {words:?} is no command").into()),
        }
    }

    /// `swap-map DEVICE|host SIZE..`: maps the descriptors that it keeps as one segment, the last of them is the host copy;
    /// `swap-fill SEED`, `swap-check SEED`, `swap-out`, and `swap-back SIZE..` into the chunks that it keeps.
    fn as_swapper(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        let kept = match verb {
            "swap-map" | "swap-back" => std::mem::take(&mut self.descriptors),
            _ => Vec::new(),
        };
        let chunks = |sizes: &[&str]| {
            let pairs = kept.iter().zip(sizes);
            pairs
                .map(|(chunk, size)| Ok((chunk.as_fd(), bytes(size)?)))
                .collect::<Result<Vec<_>, Box<dyn Error>>>()
        };
        if let ("swap-map", [device, sizes @ ..]) = (verb, words) {
            let context = if *device == "host" { None } else { Some(self.in_context(device.parse()?)?) };
            let copy = kept.last().ok_or("there came no host copy")?;
            let swapper = Swapper::map(context, &chunks(sizes)?, copy)?;
            return Ok(self.swapper.insert(swapper).address());
        }
        let swapper = self.swapper.as_mut().ok_or("it has nothing to swap")?;
        match (verb, words) {
            ("swap-fill", [seed]) => swapper.fill(seed.parse()?),
            ("swap-check", [seed]) => swapper.check(seed.parse()?),
            ("swap-out", []) => swapper.out(),
            ("swap-back", sizes) => swapper.back(&chunks(sizes)?),
            ("swap-vacate", []) => swapper.vacate(),
            ("swap-lane", []) => swapper.renew_lane(),
            _ => Err(format!("{verb} {words:?} is no command").into()),
        }
    }

    /// `views DEVICE SIZE..`: maps the descriptors that it keeps as one segment.
    fn views(&mut self, number: &str, sizes: &[&str]) -> Result<String, Box<dyn Error>> {
        let descriptors = std::mem::take(&mut self.descriptors);
        let mut chunks = Vec::new();
        for (descriptor, size) in descriptors.iter().zip(sizes) {
            chunks.push((descriptor.as_fd(), bytes(size)?));
        }
        trials::views(self.in_context(number.parse()?)?, &chunks)
    }

    /// Maps a file of host memory, keeps nothing but the mapping, and says the file's bytes where they are all alike.
    fn map_file(&mut self, size: &str, descriptor: Option<OwnedFd>) -> Reply {
        let descriptor = descriptor.ok_or("there came no descriptor")?;
        let file = FileMapping::new(descriptor, usize::try_from(bytes(size)?.get())?)?;
        let said = file.said();
        self.files.push(file);
        Ok((said, None))
    }

    fn in_context(&self, number: usize) -> Result<&Context, Box<dyn Error>> {
        Ok(self.contexts.get(&number).ok_or("it has no such context")?)
    }

    fn allocation(&self, name: &str) -> Result<&Allocation, Box<dyn Error>> {
        Ok(self.allocations.get(name).ok_or("no such allocation")?)
    }

    fn range(&self, name: &str) -> Result<&Reservation, Box<dyn Error>> {
        Ok(self.reservations.get(name).ok_or("no such range")?)
    }

    /// The address of a range, of memory or of an opened handle.
    fn ptr(&self, name: &str) -> Result<DevicePtr, Box<dyn Error>> {
        let range = self.reservations.get(name).map(Reservation::base);
        let memory = || self.memory.get(name).map(DeviceMemory::ptr);
        let opened = || self.opened.get(name).map(IpcMapping::ptr);
        Ok(range.or_else(memory).or_else(opened).ok_or("nothing of that name has an address")?)
    }
}

fn device(number: usize) -> Result<Device, Box<dyn Error>> {
    Ok(Driver::load()?.devices()?.get(number).copied().ok_or("no such device")?)
}

fn bytes(size: &str) -> Result<Bytes, Box<dyn Error>> {
    match size.parse()? {
        Size::Amount(bytes) => Ok(bytes),
        Size::Share(_) => Err("an amount, not a share".into()),
    }
}
