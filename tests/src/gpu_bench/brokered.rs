//! Allocations through the broker, in turns with the plain alternatives.

use std::time::{Duration, Instant};

use anyhow::ensure;
use gpulease_client::{Client, Observer};
use gpulease_cuda::{Context, DevicePtr};
use gpulease_words::{Bytes, mib};

use super::{bare, median};
use crate::daemon::{Daemon, PATIENCE};

/// Medians of one size.
pub(super) struct Row {
    pub(super) brokered: Duration,
    pub(super) bare: Duration,
    pub(super) plain: Duration,
}

/// What a broker does with the rest of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    None,
    All,
}

pub(super) async fn rounds(
    context: &Context,
    bytes: Bytes,
    rounds: usize,
    hold: Hold,
) -> anyhow::Result<Row> {
    // Room for the lease and this process's context, and no more: the rest is the alternatives'.
    let capacity = bytes.saturating_add(mib(1024));
    let daemon = Daemon::start([
        "--device".into(),
        "cuda:0".into(),
        "--capacity".into(),
        format!("{}B", capacity.get()),
        "--hold".into(),
        match hold {
            Hold::None => "none".to_owned(),
            Hold::All => "all".to_owned(),
        },
    ]);
    let client = Client::connect_to(daemon.socket()).await?;
    let observer = Observer::connect_to(daemon.socket()).await?;
    let lease = client.lease(bytes).name("gpu-bench").no_wait().acquire().await?;

    let (mut brokered, mut sequence, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up what is made once: connections, page tables, the driver's caches.
    for round in 0..=rounds {
        let start = Instant::now();
        let segment = lease.allocate(bytes).await?;
        let elapsed = start.elapsed();
        let resident = lease.enter().await?;
        bare::touch(context, DevicePtr::from_raw(segment.device_ptr(&resident)?), bytes)?;
        drop(resident);
        segment.free().await?;
        all_back(&observer).await?;
        let bare_calls = bare::sequence(context, bytes)?;
        let alloc = bare::plain(context, bytes)?;
        if round > 0 {
            brokered.push(elapsed);
            sequence.push(bare_calls);
            plain.push(alloc);
        }
    }
    lease.release().await?;
    drop(client);
    daemon.stop();
    Ok(Row { brokered: median(brokered), bare: median(sequence), plain: median(plain) })
}

/// Waits until the broker has every byte of its device back.
pub(super) async fn all_back(observer: &Observer) -> anyhow::Result<()> {
    let mut updates = observer.watch().await?;
    let until = Instant::now() + PATIENCE;
    while let Some(status) = updates.next().await? {
        let memory = status.devices[0].memory.unwrap_or_default();
        if memory.held_bytes + memory.draining_bytes + memory.quarantined_bytes == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the bytes did not come back: {memory:?}");
    }
    anyhow::bail!("the broker ended the watch")
}
