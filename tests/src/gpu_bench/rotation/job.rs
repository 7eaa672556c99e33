//! One of the jobs: Adam over all of its memory, step by step, from a captured CUDA graph.

use std::ffi::{CString, c_void};
use std::io::Write as _;
use std::path::Path;
use std::ptr::{from_mut, null_mut};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpulease_client::blocking::{Client, Lease, Segment};
use gpulease_client::{Resident, Waiting};
use gpulease_cuda::cudarc::driver::{result, sys};
use gpulease_cuda::{Context, DevicePtr, Driver, PieceSums, Stream};
use gpulease_words::{Bytes, mib};

use super::{STUCK, Work, suspensions};
use crate::dice::Dice;

const PTX: &str = include_str!("../../../../examples/kernels/training.ptx");
/// Updates in one graph, which is one step.
const UPDATES: usize = 2;
/// Runs of equal numbers that the memory begins with, in each array.
const RUNS: u64 = 512;
const BLOCK: u32 = 256;

/// Runs a job: `SOCKET NAME BYTES SEED for|steps|pausing NUMBER`.
pub(in crate::gpu_bench) fn run(words: &[&str]) -> anyhow::Result<()> {
    let [socket, name, bytes, seed, word, number] = words else {
        anyhow::bail!("a job of the rotation is started by the benchmark")
    };
    // Not to outlive a benchmark that failed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let work = Work::parse(word, number)?;
    let quarter = Bytes::new(bytes.parse::<u64>()? / 4 / mib(2).get() * mib(2).get());
    let client = Client::connect_to(Path::new(socket))?;
    let mut waits = Waits::default();
    let whole = Bytes::new(quarter.get() * 4);
    let lease = waits.during(|ear| client.lease(whole).name(*name).on_waiting(ear).acquire())?;
    let optimizer = Optimizer::new(&lease, quarter, seed.parse()?, &mut waits)?;
    let steps = optimizer.work(work, &mut waits)?;
    let sum = optimizer.sum(&mut waits)?;
    let suspended = suspensions(&client.observe()?, lease.id().get())?;
    println!("{steps} {sum:016x} {suspended} {waits}");
    drop(optimizer);
    lease.release()?;
    Ok(())
}

/// Hears the updates of a wait.
type Ear = Box<dyn FnMut(&Waiting) + Send>;

/// How long it waited, and what it had been promised.
#[derive(Debug, Default)]
struct Waits {
    longest: Duration,
    promised: Option<Duration>,
    broken: u32,
}

impl Waits {
    /// Measures what may wait, and compares it with the first promise.
    fn during<T>(&mut self, what: impl FnOnce(Ear) -> T) -> T {
        let (start, first) = (Instant::now(), Arc::new(OnceLock::new()));
        let hears = Arc::clone(&first);
        let answer = what(Box::new(move |waiting: &Waiting| {
            if let Some(more) = waiting.at_latest {
                hears.get_or_init(|| start.elapsed() + more);
            }
        }));
        let (took, promise) = (start.elapsed(), first.get().copied());
        self.broken += u32::from(promise.is_some_and(|at_latest| took > at_latest));
        if took > self.longest {
            (self.longest, self.promised) = (took, promise);
        }
        answer
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let promised = self.promised.map_or("none".to_owned(), |time| time.as_millis().to_string());
        write!(f, "{} {promised} {}", self.longest.as_millis(), self.broken)
    }
}

/// Parameters, both moments and a gradient, and the captured step.
struct Optimizer<'l> {
    graph: sys::CUgraphExec,
    stream: Stream,
    sums: PieceSums,
    arrays: [Segment; 4],
    lease: &'l Lease,
    context: Context,
}

impl<'l> Optimizer<'l> {
    fn new(lease: &'l Lease, quarter: Bytes, seed: u64, waits: &mut Waits) -> anyhow::Result<Self> {
        let driver = Driver::load()?;
        driver.check_cudarc()?;
        let context = Context::retain(*driver.devices()?.first().context("there is no GPU")?)?;
        context.make_current()?;
        let mut arrays = Vec::with_capacity(4);
        for _ in 0..4 {
            arrays.push(lease.allocation(quarter).wait_at_most(STUCK).allocate()?);
        }
        let arrays = <[Segment; 4]>::try_from(arrays).ok().context("four were made")?;
        let resident = enter(lease, waits)?;
        fill(&arrays, &resident, seed)?;
        let stream = Stream::new(&context)?;
        let graph = capture(&stream, &arrays, &resident)?;
        drop(resident);
        Ok(Self { graph, stream, sums: PieceSums::new(&context, mib(16))?, arrays, lease, context })
    }

    /// Works so much; says how many steps it took.
    fn work(&self, work: Work, waits: &mut Waits) -> anyhow::Result<u32> {
        let (start, mut steps) = (Instant::now(), 0);
        loop {
            let done = match work {
                Work::For(time) => start.elapsed() >= time,
                Work::Steps(count) | Work::Pausing(count) => steps == count,
            };
            if done {
                return Ok(steps);
            }
            if matches!(work, Work::Pausing(count) if steps == count / 2) {
                pause()?;
            }
            self.step(waits)?;
            steps += 1;
        }
    }

    fn step(&self, waits: &mut Waits) -> anyhow::Result<()> {
        let resident = enter(self.lease, waits)?;
        self.context.make_current()?;
        // SAFETY: the graph works on the segments, which are here while the guard lives; the stream is waited for below.
        unsafe { sys::cuGraphLaunch(self.graph, self.stream.raw()) }.result()?;
        self.stream.synchronize()?;
        drop(resident);
        Ok(())
    }

    /// A sum of every bit.
    fn sum(&self, waits: &mut Waits) -> anyhow::Result<u64> {
        let resident = enter(self.lease, waits)?;
        let mut under_way = self.sums.begin();
        for array in &self.arrays {
            let at = DevicePtr::from_raw(array.device_ptr(&resident)?);
            // SAFETY: the segment is mapped and nothing else runs until the sums are there.
            unsafe { under_way.add(at, array.bytes()) }?;
        }
        let sums = under_way.wait()?;
        Ok(sums.iter().fold(0, |all: u64, sum| all.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sum))
    }
}

impl Drop for Optimizer<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, destroyed once; its last launch was waited for. An error is the context's end.
        let _ = unsafe { sys::cuGraphExecDestroy(self.graph) };
    }
}

fn enter<'l>(lease: &'l Lease, waits: &mut Waits) -> anyhow::Result<Resident<'l>> {
    Ok(waits.during(|ear| lease.entry().wait_at_most(STUCK).on_waiting(ear).enter())?)
}

/// Parameters and gradient get numbers below 1, the moments zeros.
fn fill(arrays: &[Segment; 4], resident: &Resident<'_>, seed: u64) -> anyhow::Result<()> {
    let mut dice = Dice::new(seed);
    for (index, array) in arrays.iter().enumerate() {
        let (start, words) = (array.device_ptr(resident)?, array.bytes().get() / 4);
        let run = words.div_ceil(RUNS);
        for at in (0..words).step_by(usize::try_from(run)?) {
            let number =
                if index == 0 || index == 3 { dice.below(1 << 20) as f32 / (1 << 20) as f32 } else { 0.0 };
            let count = usize::try_from(run.min(words - at))?;
            // SAFETY: the run lies in the segment, which is mapped, and the default stream is waited for below.
            unsafe { sys::cuMemsetD32_v2(start + 4 * at, number.to_bits(), count) }.result()?;
        }
    }
    // SAFETY: it has no arguments.
    Ok(unsafe { sys::cuCtxSynchronize() }.result()?)
}

/// Captures a step as a graph.
fn capture(
    stream: &Stream,
    arrays: &[Segment; 4],
    resident: &Resident<'_>,
) -> anyhow::Result<sys::CUgraphExec> {
    let image = CString::new(PTX)?;
    // SAFETY: a zero-terminated PTX text, which the driver has copied when it returns. It stays loaded with the context.
    let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
    // SAFETY: the module is loaded.
    let adam = unsafe { result::module::get_function(module, CString::new("adam")?) }?;
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is ours alone, and the capture is ended below.
    unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }.result()?;
    for _ in 0..UPDATES {
        update(stream, adam, arrays, resident)?;
    }
    // SAFETY: the handles are ours; the graph is only needed to make the executable one.
    unsafe {
        sys::cuStreamEndCapture(stream.raw(), &mut graph).result()?;
        sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result()?;
        sys::cuGraphDestroy(graph).result()?;
    }
    Ok(exec)
}

fn update(
    stream: &Stream,
    adam: sys::CUfunction,
    arrays: &[Segment; 4],
    resident: &Resident<'_>,
) -> anyhow::Result<()> {
    let mut at = [0; 4];
    for (at, array) in at.iter_mut().zip([0, 1, 2, 3].map(|index| &arrays[index])) {
        *at = array.device_ptr(resident)?;
    }
    let mut count = u32::try_from(arrays[0].bytes().get() / 4)?;
    let (mut rate, mut epsilon) = (1e-3_f32, 1e-8_f32);
    let [parameters, mean, square, gradient] = &mut at;
    let mut arguments: [*mut c_void; 7] = [
        from_mut(parameters).cast(),
        from_mut(mean).cast(),
        from_mut(square).cast(),
        from_mut(gradient).cast(),
        from_mut(&mut count).cast(),
        from_mut(&mut rate).cast(),
        from_mut(&mut epsilon).cast(),
    ];
    let (blocks, list) = (count.div_ceil(BLOCK), arguments.as_mut_ptr());
    // SAFETY: the kernel takes four arrays of so many floats, their number, and two floats; a capture copies the values.
    let launched =
        unsafe { sys::cuLaunchKernel(adam, blocks, 1, 1, BLOCK, 1, 1, 0, stream.raw(), list, null_mut()) };
    Ok(launched.result()?)
}

/// Says that it is idle, and waits for a line.
fn pause() -> anyhow::Result<()> {
    println!("pausing");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
