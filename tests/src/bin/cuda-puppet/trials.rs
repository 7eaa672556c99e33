//! Whole trials of a part of the driver, each a command of its own.

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use gpulease_cuda::cudarc::driver::{CudaContext, sys};
use gpulease_cuda::{
    Context, CudaError, Device, DeviceMemory, DevicePtr, Driver, HostRegistration, Mapping, PieceSums,
    PinnedMemory, Stream, ViewError, sum_of_piece,
};
use gpulease_words::{Bytes, GRANULARITY, mib};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

pub(crate) fn described(device: Device) -> Result<String, Box<dyn Error>> {
    let granularity = match device.granularity() {
        Ok(bytes) => bytes.get().to_string(),
        Err(unsupported) => unsupported.to_string(),
    };
    let (uuid, pci, total) = (device.uuid()?, device.pci_bus_id()?, device.total()?.get());
    Ok(format!("{}|{uuid}|{pci}|{total}|{granularity}\n", device.name()?))
}

/// cudarc's own types: a context, a stream, a slice there and back, events.
pub(crate) fn cudarc(number: usize) -> Result<String, Box<dyn Error>> {
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

/// A mapping of several chunks, written and read through cudarc on two streams.
pub(crate) fn views(context: &Context, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<String, Box<dyn Error>> {
    let mut mapping = Mapping::of_descriptors(context, chunks)?;
    let (first, address) = (chunks[0].1, mapping.ptr());
    let cuda = CudaContext::new(context.device().ordinal())?;
    let (here, there) = (cuda.new_stream()?, cuda.new_stream()?);
    let words = usize::try_from(mapping.bytes().get() / 4)?;
    let border = usize::try_from(first.get() / 4)?;
    let numbers: Vec<u32> = (0..2_000).collect();
    let mut view = mapping.view_mut::<u32>(&here)?;
    here.memset_zeros(&mut view)?;
    here.memcpy_htod(&numbers, &mut view.slice_mut(border - 1_000..border + 1_000))?;
    // The other stream waits for the first by cudarc's events.
    let view = mapping.view::<u32>(&there)?;
    let back = there.clone_dtoh(&view.slice(border - 1_000..border + 1_000))?;
    let around = there.clone_dtoh(&view.slice(border + 1_000..border + 1_001))?;
    if view.len() != words || back != numbers || around != [0] {
        return Err("what was written through one view did not come back through another".into());
    }
    if !matches!(mapping.view::<()>(&here), Err(ViewError::NoSize)) || mapping.ptr() != address {
        return Err("a type of no size was counted, or the address moved".into());
    }
    for other in context.device().driver().devices()?.into_iter().filter(|other| *other != context.device()) {
        let stream = CudaContext::new(other.ordinal())?.default_stream();
        let error = mapping.view::<u32>(&stream).err().ok_or("a stream of another device was taken")?;
        if !matches!(error, ViewError::OtherDevice { .. }) {
            return Err(error.into());
        }
    }
    Ok(String::new())
}

pub(crate) fn nvml(index: u32) -> Result<String, Box<dyn Error>> {
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
pub(crate) fn fork() -> Result<String, Box<dyn Error>> {
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
pub(crate) fn timing(context: &Context) -> Result<String, Box<dyn Error>> {
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

/// Whether the context, another or none is current on this thread.
pub(crate) fn current(context: &Context) -> Result<String, Box<dyn Error>> {
    let raw = || -> Result<sys::CUcontext, Box<dyn Error>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle of ours.
        unsafe { sys::cuCtxGetCurrent(&mut raw) }.result()?;
        Ok(raw)
    };
    let now = raw()?;
    if now.is_null() {
        return Ok("none".to_owned());
    }
    context.make_current()?;
    let this = raw()?;
    // SAFETY: it was current a moment ago.
    unsafe { sys::cuCtxSetCurrent(now) }.result()?;
    Ok(if now == this { "this" } else { "another" }.to_owned())
}

pub(crate) fn pinned(context: &Context) -> Result<String, Box<dyn Error>> {
    let mut memory = PinnedMemory::allocate(context, GRANULARITY)?;
    memory.as_mut_slice()[1] = 1;
    Ok(memory.as_slice()[..2].iter().map(u8::to_string).collect())
}

/// Registers a page, and again: the second is refused.
pub(crate) fn register(context: &Context) -> Result<String, Box<dyn Error>> {
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

/// The sums of a range, in pieces of 16 MiB, by device and host: all at once, and each piece by itself. Says them where
/// they agree.
pub(crate) fn sums(context: &Context, at: DevicePtr, bytes: Bytes) -> Result<String, Box<dyn Error>> {
    let piece = mib(16);
    let first = PieceSums::new(context, piece)?;
    let second = first.another()?;
    let (mut all, mut each) = (first.begin(), second.begin());
    // SAFETY: the puppet does one command at a time, so that nobody writes; a range that is not mapped is refused.
    unsafe { all.add(at, bytes) }?;
    let mut host = vec![0; usize::try_from(bytes.get())?];
    // SAFETY: as above.
    unsafe { context.copy_to_host(&mut host, at) }?;
    let mut expected = Vec::new();
    for (index, part) in (0..).zip(host.chunks(usize::try_from(piece.get())?)) {
        expected.push(sum_of_piece(part));
        let here = at.offset(Bytes::new(index * piece.get()));
        // SAFETY: as above.
        unsafe { each.add(here, Bytes::new(part.len() as u64)) }?;
    }
    let (all, each) = (all.wait()?, each.wait()?);
    if all != expected || each != expected {
        return Err(format!("sums differ: {all:x?} and {each:x?}, not {expected:x?}").into());
    }
    Ok(format!("{all:x?}"))
}
