//! `ipc-consumer`: a process that knows CUDA and nothing of gpulease uses leased memory by its 64-byte handle.
//!
//! The program leases a segment of the kind CUDA IPC, writes numbers into it, and starts itself once more as the
//! consumer, which gets the handle alone: it opens it with `cuIpcOpenMemHandle`, adds one to each number and closes
//! it. Then the first process looks.

use std::ffi::c_char;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use gpulease_client::blocking::{Client, Lease, Segment};
use gpulease_client::{DeviceKind, IpcHandle, Pid};
use gpulease_cuda::cudarc::driver::{result, sys};
use gpulease_cuda::{Context, DevicePtr, Driver};
use gpulease_words::Size;

use crate::train;

const HANDLE: usize = 64;

/// Leases memory as a CUDA IPC handle and lets another process use it.
#[derive(Debug, Parser)]
#[command(name = "ipc-consumer", version)]
struct Arguments {
    /// How much memory
    #[arg(short, long, value_name = "SIZE", default_value = "64MiB")]
    memory: Size,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The consumer, which the program starts by itself
    #[command(hide = true)]
    Consume { uuid: String, words: usize },
}

/// Runs `ipc-consumer` on the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.part {
        None => lease_and_share(arguments.memory),
        Some(Part::Consume { uuid, words }) => consume(&uuid, words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ipc-consumer: {error:#}");
            ExitCode::from(train::exit_code(&error))
        }
    }
}

/// The first process: a client of the broker.
fn lease_and_share(memory: Size) -> Result<()> {
    let client = Client::connect()?;
    let gpu = client.devices().iter().find(|device| device.kind == DeviceKind::Cuda);
    let device = gpu.context("the broker has no GPU, and only GPUs have CUDA IPC handles")?;
    let bytes = memory.of(device.capacity).round_up().context("the size does not fit 64 bits")?;
    let lease = client.lease(bytes).on_devices([device.id]).name("ipc-consumer").pinned().acquire()?;
    let segment = lease.allocation(bytes).cuda_ipc().allocate()?;
    println!("leased {bytes} of {} as a CUDA IPC handle", device.name);

    let numbers: Vec<u32> = (0..u32::try_from(bytes.get() / 4)?).collect();
    let context = context_on(&device.uuid)?;
    write(&lease, &segment, &context, &numbers)?;
    let consumer = start_consumer(&device.uuid, numbers.len())?;
    hand_over(&client, &lease, consumer, segment.ipc_handle().context("the segment has no IPC handle")?)?;
    let found = read(&lease, &segment, &context, numbers.len())?;
    let right = numbers.iter().zip(&found).all(|(before, after)| before + 1 == *after);
    ensure!(right, "the consumer's numbers did not arrive");
    println!("the consumer has added one to each of {} numbers", numbers.len());

    segment.free()?;
    lease.release()?;
    Ok(())
}

fn context_on(uuid: &str) -> Result<Context> {
    let driver = Driver::load()?;
    driver.check_cudarc()?;
    let device = driver.device(uuid.parse()?)?;
    Ok(Context::retain(device.with_context(|| format!("this process sees no GPU {uuid}"))?)?)
}

fn write(lease: &Lease, segment: &Segment, context: &Context, numbers: &[u32]) -> Result<()> {
    let resident = lease.enter()?;
    let to = DevicePtr::from_raw(segment.device_ptr(&resident)?);
    // SAFETY: the segment is as large as the numbers and ours alone until its handle is passed on; the guard
    // keeps it where it is.
    Ok(unsafe { context.copy_to_device(to, gpulease_client::bytemuck::cast_slice(numbers)) }?)
}

fn read(lease: &Lease, segment: &Segment, context: &Context, words: usize) -> Result<Vec<u32>> {
    let resident = lease.enter()?;
    let from = DevicePtr::from_raw(segment.device_ptr(&resident)?);
    let mut numbers = vec![0_u32; words];
    // SAFETY: the segment is as large as the numbers, the consumer is done with it, and the guard keeps it where
    // it is.
    unsafe { context.copy_to_host(gpulease_client::bytemuck::cast_slice_mut(&mut numbers), from) }?;
    Ok(numbers)
}

fn start_consumer(uuid: &str, words: usize) -> Result<Child> {
    let program = std::env::current_exe().context("this program's own path")?;
    Command::new(program)
        .args(["consume", uuid, &words.to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .context("the consumer can't be started")
}

/// Makes the consumer a member of the lease, so that what its context takes of the card is the lease's, then gives
/// it the handle (on a pipe, since arguments can be read by anyone) and waits for its end.
fn hand_over(client: &Client, lease: &Lease, mut consumer: Child, handle: &IpcHandle) -> Result<()> {
    let admitted = client.admit(lease, Pid::new(consumer.id()));
    if admitted.is_ok() {
        let mut pipe = consumer.stdin.take().context("its input is piped")?;
        pipe.write_all(handle.as_bytes()).context("the consumer takes no handle")?;
    }
    // Without a handle it ends by itself: its pipe is closed.
    drop(consumer.stdin.take());
    let ended = consumer.wait()?;
    admitted?;
    ensure!(ended.success(), "the consumer failed: {ended}");
    Ok(())
}

/// The second process: plain CUDA.
fn consume(uuid: &str, words: usize) -> Result<()> {
    // CUDA is started after the handle has come, and so within the lease.
    let mut handle = [0; HANDLE];
    std::io::stdin().read_exact(&mut handle).context("no handle came")?;
    let context = context_on(uuid)?;
    context.make_current()?;

    let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| c_char::from_ne_bytes([byte])) };
    let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut address = 0;
    // SAFETY: the address is a variable of ours, and a context is current; a wrong handle is an error.
    unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, lazily) }
        .result()
        .context("the handle does not open")?;
    let mut numbers = vec![0_u32; words];
    // SAFETY: the handle's memory holds so many numbers, which the first process leaves alone until we end.
    unsafe { result::memcpy_dtoh_sync(&mut numbers, address) }?;
    ensure!(
        numbers.iter().zip(0..).all(|(number, place)| *number == place),
        "these are not the numbers written"
    );
    numbers.iter_mut().for_each(|number| *number += 1);
    // SAFETY: as above.
    unsafe { result::memcpy_htod_sync(address, &numbers) }?;
    // SAFETY: it is what was opened above, closed once, and nothing uses it any more.
    unsafe { sys::cuIpcCloseMemHandle(address) }.result().context("the memory does not close")?;
    Ok(())
}
