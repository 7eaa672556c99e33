//! Does CUDA and NVML calls as it is told, one message at a time over the socket that is its
//! standard input. See `gpulease_tests::puppet`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::NonNull;

use gpulease_cuda::cudarc::driver::{CudaContext, sys};
use gpulease_cuda::{
    Access, Allocation, Context, CudaError, Device, DeviceMemory, DevicePtr, Driver, HostRegistration,
    IpcHandle, IpcMapping, PinnedMemory, Reservation, Stream,
};
use gpulease_tests::puppet::{receive, send};
use gpulease_words::{Bytes, GRANULARITY, Size};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

/// What it has, by the names that the test gave.
#[derive(Default)]
struct Puppet {
    contexts: BTreeMap<usize, Context>,
    allocations: BTreeMap<String, Allocation>,
    reservations: BTreeMap<String, Reservation>,
    memory: BTreeMap<String, DeviceMemory>,
    opened: BTreeMap<String, IpcMapping>,
    descriptors: Vec<OwnedFd>,
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
            ["export", name] => Ok((String::new(), Some(self.allocation(name)?.export()?))),
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
            [verb, rest @ ..] => {
                let said = match *verb {
                    "load" | "devices" | "device" | "cudarc" | "nvml" | "kept" | "fork" => {
                        self.about(verb, rest)
                    }
                    "context" | "end-context" | "info" | "timing" | "pinned" | "register" => {
                        self.context(verb, rest)
                    }
                    "alloc" | "free" | "ipc" | "open" | "close" => self.legacy(verb, rest),
                    _ => self.vmm(verb, rest),
                };
                said.map(|said| (said, None))
            }
            [] => Err("an empty command".into()),
        }
    }

    /// `load`, `devices`, `device UUID`, `cudarc DEVICE`, `nvml DEVICE`, `kept`, `fork`.
    fn about(&mut self, verb: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
        match (verb, words) {
            ("load", []) => Ok(Driver::load()?.version().to_string()),
            ("devices", []) => Driver::load()?.devices()?.into_iter().map(described).collect(),
            ("device", [uuid]) => {
                let found = Driver::load()?.device(uuid.parse()?)?.ok_or("no such device")?;
                Ok(found.ordinal().to_string())
            }
            ("cudarc", [device]) => cudarc(device.parse()?),
            ("nvml", [device]) => nvml(device.parse()?),
            ("kept", []) => {
                let kept = Driver::load()?.take_kept_errors();
                let words: Vec<String> = kept.first.iter().map(ToString::to_string).collect();
                Ok(format!("{} more={}", words.join("; "), kept.more))
            }
            ("fork", []) => fork(),
            _ => Err(format!("{verb} {words:?} is no command").into()),
        }
    }

    /// `context DEVICE`, `end-context DEVICE`, `info DEVICE`, `timing DEVICE`, `pinned DEVICE`,
    /// `register DEVICE`.
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
            "info" => {
                let info = self.in_context(number)?.memory_info()?;
                return Ok(format!("free={} total={}", info.free.get(), info.total.get()));
            }
            "timing" => return timing(self.in_context(number)?),
            "pinned" => return pinned(self.in_context(number)?),
            _ => return register(self.in_context(number)?),
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
    /// `ipc-of NAME DEVICE`.
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

fn described(device: Device) -> Result<String, Box<dyn Error>> {
    let granularity = match device.granularity() {
        Ok(bytes) => bytes.get().to_string(),
        Err(unsupported) => unsupported.to_string(),
    };
    let (uuid, pci, total) = (device.uuid()?, device.pci_bus_id()?, device.total()?.get());
    Ok(format!("{}|{uuid}|{pci}|{total}|{granularity}\n", device.name()?))
}

/// cudarc's own types: a context, a stream, a slice there and back, events.
fn cudarc(number: usize) -> Result<String, Box<dyn Error>> {
    Driver::load()?.check_cudarc()?;
    let context = CudaContext::new(number)?;
    let stream = context.new_stream()?;
    let numbers: Vec<u32> = (0..100_000).collect();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let before = stream.record_event(timed)?;
    let there = stream.clone_htod(&numbers)?;
    let twice = there.try_clone()?;
    let mut zeros = stream.alloc_zeros::<u32>(100_000)?;
    let nothing = stream.clone_dtoh(&zeros)?;
    stream.memcpy_dtod(&twice, &mut zeros)?;
    let back = stream.clone_dtoh(&zeros)?;
    let after = stream.record_event(timed)?;
    stream.synchronize()?;
    if back != numbers || nothing.iter().any(|&n| n != 0) || before.elapsed_ms(&after)? < 0.0 {
        return Err("cudarc's copies went wrong".into());
    }
    Ok(String::new())
}

fn nvml(index: u32) -> Result<String, Box<dyn Error>> {
    let nvml = Nvml::init()?;
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    let mut said = format!(
        "uuid={} used={} free={} total={} reserved={}",
        device.uuid()?,
        memory.used,
        memory.free,
        memory.total,
        memory.reserved
    );
    said = said.replacen("uuid=", "", 1);
    for process in device.running_compute_processes()? {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => 0,
        };
        said.push_str(&format!(" {}={bytes}", process.pid));
    }
    Ok(said)
}

/// Asks a forked child what CUDA says to it.
fn fork() -> Result<String, Box<dyn Error>> {
    let driver = Driver::load()?;
    let (reader, writer) = rustix::pipe::pipe()?;
    // SAFETY: this process has one thread of its own; the child only writes to a pipe and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let load = Driver::load().map_or_else(|error| error.to_string(), |_| "loaded".to_owned());
        let call = driver.devices().map_or_else(|error| error.name().to_owned(), |_| "answered".to_owned());
        let _sent = rustix::io::write(&writer, format!("{call}: {load}").as_bytes());
        // SAFETY: ends the child at once, without destructors of what is its parent's.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut said = vec![0; 4096];
    let length = rustix::io::read(&reader, &mut said)?;
    // SAFETY: the child is ours; it ends by itself.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    Ok(String::from_utf8_lossy(&said[..length]).into_owned())
}

/// Copies in a stream between two events.
fn timing(context: &Context) -> Result<String, Box<dyn Error>> {
    let size = Bytes::new(GRANULARITY.get());
    let (from, to) = (DeviceMemory::allocate(context, size)?, DeviceMemory::allocate(context, size)?);
    let mut host = PinnedMemory::allocate(context, size)?;
    host.as_mut_slice().fill(7);
    let stream = Stream::new(context)?;
    let before = stream.record()?;
    // SAFETY: the ranges are ours, of that size, and left alone until the stream is done.
    unsafe {
        stream.copy_to_device(from.ptr(), host.start(), size)?;
        stream.copy_on_device(to.ptr(), from.ptr(), size)?;
        stream.fill(from.ptr(), 9, size)?;
    }
    let after = stream.record()?;
    let took = after.since(&before)?;
    host.as_mut_slice().fill(0);
    // SAFETY: as above.
    unsafe { stream.copy_to_host(host.start(), to.ptr(), size)? };
    stream.synchronize()?;
    let right = host.as_slice().iter().all(|&byte| byte == 7);
    if right { Ok(format!("{} ns", took.as_nanos())) } else { Err("the copies went wrong".into()) }
}

fn pinned(context: &Context) -> Result<String, Box<dyn Error>> {
    let mut memory = PinnedMemory::allocate(context, GRANULARITY)?;
    memory.as_mut_slice()[1] = 1;
    Ok(memory.as_slice()[..2].iter().map(u8::to_string).collect())
}

/// Registers a page, and again: the second is refused.
fn register(context: &Context) -> Result<String, Box<dyn Error>> {
    let mut page = vec![0_u8; 1 << 20];
    let start = NonNull::new(page.as_mut_ptr()).ok_or("a vector has an address")?;
    let size = Bytes::new(1 << 20);
    // SAFETY: the vector outlives both registrations.
    let first = unsafe { HostRegistration::register(context, start, size) }?;
    // SAFETY: as above.
    let second = unsafe { HostRegistration::register(context, start, size) };
    drop(first);
    Ok(second.err().as_ref().map_or("registered twice", CudaError::name).to_owned())
}
