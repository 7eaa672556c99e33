//! From the SIGKILL of a holder to memory that another can have.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpulease_client::{Client, Observer};
use gpulease_cuda::{Allocation, Context, Device, DeviceMemory, Driver};
use gpulease_words::{Bytes, gib, mib};

use super::{brokered, median};
use crate::daemon::{Daemon, PATIENCE};

/// Medians: the next in line's grant, and the driver's own return of the bytes.
pub(super) async fn rounds(
    device: Device,
    bytes: Bytes,
    rounds: usize,
) -> anyhow::Result<(Duration, Duration)> {
    let (mut brokered, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        brokered.push(handed_on(bytes).await?);
        alone.push(given_back(device, bytes)?);
    }
    Ok((median(brokered), median(alone)))
}

/// Kills a holder while another waits for the same bytes, until the grant.
async fn handed_on(bytes: Bytes) -> anyhow::Result<Duration> {
    // One lease with its context fits, a second does not.
    let capacity = bytes.saturating_add(mib(1024));
    let daemon = Daemon::start([
        "--device".into(),
        "cuda:0".into(),
        "--capacity".into(),
        format!("{}B", capacity.get()),
    ]);
    let socket = daemon.socket();
    let mut victim = start(&["--victim-brokered", &socket.to_string_lossy(), &bytes.get().to_string()])?;
    let client = Client::connect_to(&socket).await?;
    let (tell, waits) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let ask = client.lease(bytes).name("next").on_waiting(move |_| {
        if let Some(tell) = tell.take() {
            // The other end waits for it below.
            let _ = tell.send(());
        }
    });
    let mut ask = Box::pin(ask.acquire());
    tokio::select! {
        early = &mut ask => { early?; anyhow::bail!("the second lease was granted beside the first"); }
        told = waits => told.context("the ask ended before it waited")?,
    }
    let start = Instant::now();
    victim.kill()?;
    let lease = tokio::time::timeout(PATIENCE, ask).await.context("the grant did not come")??;
    let elapsed = start.elapsed();
    victim.wait()?;
    lease.release().await?;
    brokered::all_back(&Observer::connect_to(&socket).await?).await?;
    drop(client);
    daemon.stop();
    Ok(elapsed)
}

/// Kills a process that has `cuMemAlloc`ed the bytes, until the driver gives as many again.
fn given_back(device: Device, bytes: Bytes) -> anyhow::Result<Duration> {
    let mut victim = start(&["--victim-bare", &bytes.get().to_string()])?;
    // Takes what is free, in ever smaller pieces, until the bytes fit no more.
    let mut fillers = Vec::new();
    for piece in [gib(1), mib(64), mib(2)] {
        while let Ok(filler) = Allocation::create(device, piece) {
            fillers.push(filler);
        }
    }
    let start = Instant::now();
    victim.kill()?;
    while Allocation::create(device, bytes).is_err() {
        ensure!(start.elapsed() < PATIENCE, "the driver does not give the bytes back");
    }
    let elapsed = start.elapsed();
    victim.wait()?;
    Ok(elapsed)
}

/// Starts this program as a victim and waits until it holds its memory.
fn start(arguments: &[&str]) -> anyhow::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("it is piped")?).read_line(&mut line)?;
    ensure!(line.trim() == "holding", "the victim said {line:?}");
    Ok(child)
}

/// Holds leased memory until it is killed.
pub(super) fn brokered_victim(socket: &str, bytes: &str) -> anyhow::Result<()> {
    let bytes = Bytes::new(bytes.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect_to(Path::new(socket)).await?;
        let lease = client.lease(bytes).name("victim").no_wait().acquire().await?;
        let _segment = lease.allocate(bytes).await?;
        hold()
    })
}

/// Holds memory of its own until it is killed.
pub(super) fn bare_victim(bytes: &str) -> anyhow::Result<()> {
    let device = *Driver::load()?.devices()?.first().context("there is no GPU")?;
    let context = Context::retain(device)?;
    let _memory = DeviceMemory::allocate(&context, Bytes::new(bytes.parse()?))?;
    hold()
}

fn hold() -> anyhow::Result<()> {
    // Not to outlive a benchmark that failed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    println!("holding");
    loop {
        std::thread::park();
    }
}
