//! A job that uses the client library.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gpulease_client::{Client, DeviceKind, Lease, Options, Pid, Segment};
use gpulease_cuda::DevicePtr;
use gpulease_tests::dice::Dice;
use gpulease_tests::mapped::{check_device, compare, context, fill_device, write_pattern};
use gpulease_words::{Bytes, LeaseId, mib, parse_duration};

use crate::asks::Ask;
use crate::{bytes, hex, socket};

/// What it has, by the names that the test gave. Dropped in this order.
#[derive(Default)]
pub(crate) struct Job {
    guards: BTreeMap<String, Guard>,
    segments: BTreeMap<String, Segment>,
    asks: BTreeMap<String, Ask>,
    leases: BTreeMap<String, Arc<Lease>>,
    client: Option<Client>,
}

/// A guard on a thread of its own, since it borrows its lease. Dropped, it is left in a moment.
struct Guard {
    leave: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Guard {
    /// Returns when it has been left.
    fn leave(self) {
        drop(self.leave);
        self.thread.join().expect("the thread of a guard only waits");
    }
}

type Said = Result<String, Box<dyn Error>>;

impl Job {
    pub(crate) async fn obey(&mut self, words: &[&str]) -> Said {
        match words {
            // `connect [WAIT]`: how long requests wait for a broker that is away.
            ["connect", wait @ ..] => self.connect(wait).await,
            // Finds the broker by itself.
            ["connect-unnamed"] => {
                self.client = Some(Client::connect().await?);
                Ok(String::new())
            }
            ["own-pid"] => Ok(std::process::id().to_string()),
            ["end"] => {
                *self = Self::default();
                Ok(String::new())
            }
            ["kept"] => {
                let kept: Vec<String> =
                    self.client()?.take_kept_errors().iter().map(ToString::to_string).collect();
                Ok(kept.join("; "))
            }
            // As `gpulease release` does it, without a session.
            ["give-back", lease] => {
                let observer = self.client()?.observe().await?;
                Ok(observer.release(lease.parse()?).await?.get().to_string())
            }
            ["compete", seconds, seed, most] => {
                compete(self.client()?, seconds.parse()?, seed.parse()?, bytes(most)?).await
            }
            [verb @ ("take" | "fill" | "check" | "zero" | "free" | "drop" | "ipc"), rest @ ..] => {
                self.segment(verb, rest).await
            }
            [verb, rest @ ..] => self.lease(verb, rest).await,
            [] => Err("an empty command".into()),
        }
    }

    async fn connect(&mut self, wait: &[&str]) -> Said {
        let mut options = Options::default().socket(socket()?);
        if let [wait] = wait {
            options = options.broker_wait(parse_duration(wait)?);
        }
        let client = Client::connect_with(options).await?;
        let devices: Vec<String> = client.devices().iter().map(|d| d.capacity.get().to_string()).collect();
        self.client = Some(client);
        Ok(devices.join(" "))
    }

    /// `ask NAME RESERVE OPTION...`, `standing-in-line NAME`, `granted NAME`, `acquire NAME RESERVE OPTION...`,
    /// `withdraw NAME`, `join NAME LEASE TOKEN`, `admit NAME PID`, `resize NAME RESERVE LIMIT`, `standing NAME`,
    /// `enter NAME`, `leave NAME`, `release NAME`, `forget NAME`.
    async fn lease(&mut self, verb: &str, words: &[&str]) -> Said {
        match (verb, words) {
            ("ask", [name, wish @ ..]) => {
                let ask = Ask::put(self.client()?, name, wish)?;
                self.asks.insert((*name).to_owned(), ask);
            }
            ("standing-in-line", [name]) => {
                return self.asks.get_mut(*name).ok_or("no such ask")?.standing().await;
            }
            ("granted", [name]) => {
                let ask = self.asks.remove(*name).ok_or("no such ask")?;
                return Ok(self.keep(name, ask.answer().await?));
            }
            ("acquire", [name, wish @ ..]) => {
                let ask = Ask::put(self.client()?, name, wish)?;
                return Ok(self.keep(name, ask.answer().await?));
            }
            ("withdraw", [name]) => drop(self.asks.remove(*name).ok_or("no such ask")?),
            ("join", [name, lease, token]) => {
                let lease = self.client()?.join(lease.parse::<LeaseId>()?, token.parse()?).await?;
                return Ok(self.keep(name, lease));
            }
            ("admit", [name, pid]) => {
                self.client()?.admit(self.named(name)?, Pid::new(pid.parse()?)).await?;
            }
            ("resize", [name, reserve, limit]) => {
                self.named(name)?.resize(bytes(reserve)?, bytes(limit)?).await?;
            }
            ("standing", [name]) => return Ok(format!("{:?}", self.named(name)?.standing())),
            ("enter", [name]) => return self.enter(name),
            ("leave", [name]) => self.guards.remove(*name).ok_or("no such guard")?.leave(),
            ("release", [name]) => {
                let lease = self.leases.remove(*name).ok_or("no such lease")?;
                let lease = Arc::into_inner(lease).ok_or("a guard of it lives")?;
                return Ok(lease.release().await?.get().to_string());
            }
            ("forget", [name]) => drop(self.leases.remove(*name).ok_or("no such lease")?),
            _ => return Err(format!("{verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    /// `take SEGMENT NAME SIZE [now|wait=DURATION] [ipc]`, `fill SEGMENT NAME SEED`, `check SEGMENT NAME SEED`,
    /// `zero SEGMENT NAME`, `free SEGMENT`, `drop SEGMENT`, `ipc SEGMENT`.
    async fn segment(&mut self, verb: &str, words: &[&str]) -> Said {
        match (verb, words) {
            ("take", [name, lease, size, options @ ..]) => {
                let segment = take(self.named(lease)?, bytes(size)?, options).await?;
                let said = segment.id().get().to_string();
                self.segments.insert((*name).to_owned(), segment);
                return Ok(said);
            }
            ("fill", [name, lease, seed]) => {
                let lease = self.named(lease)?.clone();
                let segment = self.segments.get_mut(*name).ok_or("no such segment")?;
                fill(&lease, segment, seed.parse()?).await?;
            }
            ("check", [name, lease, seed]) => {
                check(self.named(lease)?, self.segment_named(name)?, Some(seed.parse()?)).await?;
            }
            ("zero", [name, lease]) => {
                check(self.named(lease)?, self.segment_named(name)?, None).await?;
            }
            ("free", [name]) => self.segments.remove(*name).ok_or("no such segment")?.free().await?,
            ("drop", [name]) => drop(self.segments.remove(*name).ok_or("no such segment")?),
            ("ipc", [name]) => {
                let handle = self.segment_named(name)?.ipc_handle().ok_or("it has no handle")?;
                return Ok(hex(handle.as_bytes()));
            }
            _ => return Err(format!("{verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    fn enter(&mut self, name: &str) -> Said {
        let lease = self.named(name)?.clone();
        let (leave, left) = mpsc::channel::<()>();
        let (tell, entered) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let guard = lease.enter_blocking().map_err(|error| error.to_string());
            // The test waits for it.
            let _ = tell.send(guard.as_ref().map(drop).map_err(Clone::clone));
            // An error is the sender's end.
            let _ = left.recv();
            drop(guard);
        });
        entered.recv()??;
        self.guards.insert(name.to_owned(), Guard { leave, thread });
        Ok(String::new())
    }

    fn keep(&mut self, name: &str, lease: Lease) -> String {
        let said = format!(
            "lease={} token={} reserve={} limit={} waited_ms={} devices={}",
            lease.id().get(),
            lease.token().to_text(),
            lease.reserve().get(),
            lease.limit().get(),
            lease.waited().as_millis(),
            lease.devices().iter().map(|d| d.get().to_string()).collect::<Vec<_>>().join(",")
        );
        self.leases.insert(name.to_owned(), Arc::new(lease));
        said
    }

    fn client(&self) -> Result<&Client, Box<dyn Error>> {
        Ok(self.client.as_ref().ok_or("it is not connected")?)
    }

    fn named(&self, name: &str) -> Result<&Arc<Lease>, Box<dyn Error>> {
        Ok(self.leases.get(name).ok_or("no such lease")?)
    }

    fn segment_named(&self, name: &str) -> Result<&Segment, Box<dyn Error>> {
        Ok(self.segments.get(name).ok_or("no such segment")?)
    }
}

async fn take(lease: &Lease, bytes: Bytes, options: &[&str]) -> Result<Segment, Box<dyn Error>> {
    let mut ask = lease.allocation(bytes);
    for option in options {
        ask = match option.split_once('=') {
            None if *option == "now" => ask.no_wait(),
            None if *option == "ipc" => ask.cuda_ipc(),
            Some(("wait", text)) => ask.wait_at_most(parse_duration(text)?),
            Some(_) | None => return Err(format!("{option} is no option of an allocation").into()),
        };
    }
    Ok(ask.allocate().await?)
}

async fn fill(lease: &Lease, segment: &mut Segment, seed: u64) -> Result<(), Box<dyn Error>> {
    let guard = lease.enter().await?;
    match segment.kind() {
        DeviceKind::Host => write_pattern(segment.as_mut_slice(&guard)?, seed, 0),
        DeviceKind::Cuda => {
            let at = DevicePtr::from_raw(segment.device_ptr(&guard)?);
            fill_device(&context(&uuid(lease, segment)?)?, at, segment.bytes(), seed)?;
        }
    }
    Ok(())
}

/// Compares a segment with a seed's pattern, or with zeros.
async fn check(lease: &Lease, segment: &Segment, seed: Option<u64>) -> Result<(), Box<dyn Error>> {
    let guard = lease.enter().await?;
    match segment.kind() {
        DeviceKind::Host => compare(segment.as_slice(&guard)?, seed, 0)?,
        DeviceKind::Cuda => {
            let at = DevicePtr::from_raw(segment.device_ptr(&guard)?);
            check_device(&context(&uuid(lease, segment)?)?, at, segment.bytes(), seed)?;
        }
    }
    Ok(())
}

fn uuid(lease: &Lease, segment: &Segment) -> Result<String, Box<dyn Error>> {
    let client = lease.client();
    let device = client.devices().iter().find(|device| device.id == segment.device());
    Ok(device.ok_or("the session knows no such device")?.uuid.clone())
}

/// Leases and segments of random sizes for a while, filled, compared and given back.
async fn compete(client: &Client, seconds: f64, seed: u64, most: Bytes) -> Said {
    let (until, mut dice) = (Instant::now() + Duration::from_secs_f64(seconds), Dice::new(seed));
    let (mut grants, mut moved) = (0_u64, 0_u64);
    let steps = most.get() / mib(2).get();
    while Instant::now() < until {
        let size = Bytes::new(mib(2).get() * (1 + dice.below(steps)));
        let lease = client.lease(size).name(format!("competitor-{seed}")).acquire().await?;
        one_turn(&lease, size, &mut dice, seed).await?;
        if dice.below(2) == 0 {
            lease.release().await?;
        }
        grants += 1;
        moved += size.get();
    }
    Ok(format!("grants={grants} bytes={moved}"))
}

async fn one_turn(lease: &Lease, size: Bytes, dice: &mut Dice, seed: u64) -> Result<(), Box<dyn Error>> {
    let mut left = size.get() / mib(2).get();
    let mut segments = Vec::new();
    while left > 0 {
        let part = 1 + dice.below(left);
        let mut segment = lease.allocate(Bytes::new(part * mib(2).get())).await?;
        check(lease, &segment, None).await?;
        fill(lease, &mut segment, seed + left).await?;
        segments.push((segment, seed + left));
        left -= part;
    }
    for (segment, seed) in segments {
        check(lease, &segment, Some(seed)).await?;
        match dice.below(3) {
            0 => drop(segment),
            _ => segment.free().await?,
        }
    }
    Ok(())
}
