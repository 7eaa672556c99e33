//! The acts: each makes one thing happen, waits until it is seen to have happened, and yields the
//! numbers that show it.

use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_words::{Bytes, mib};
use rustix::process::{Pid, Signal, kill_process};

use super::Command;
use super::cast::{Part, Role};
use super::director::{ACT_WAIT, Act, Director, Stop};
use super::gauge::Use;
use super::record::{End, Record};

/// To what share of its first a loss falls before the next act, and before the end.
pub(super) const HALF: f64 = 0.5;
const QUARTER: f64 = 0.25;

/// What a card's driver may keep for itself once processes had memory of it.
const NOISE_OF_A_CARD: Bytes = mib(32);

/// Between two looks at the state, where nothing is told.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Director<'_> {
    pub(super) async fn refuse_greta(&mut self) -> Result<String, Stop> {
        let part = self.cast.part(Role::Greta);
        let budget = self.cast.budget_of_greta();
        self.narrator
            .tell("greta", &format!("asks for {}, and her account may have {budget}", part.reserve))?;
        self.start(Role::Greta.name(), part, 0)?;
        self.until("Greta is answered", |records| record(records, Role::Greta).end.is_some()).await?;
        match &record(&self.records, Role::Greta).end {
            Some(End::Refused { reason, message }) if reason == "over_budget" && in_numbers(message) => {
                Ok(message.clone())
            }
            end => Err(Stop::Missed(format!("Greta was not refused over her budget: {end:?}"))),
        }
    }

    /// Anna, Bert and Carl, and one job on each other device: they fit, and train.
    pub(super) async fn open(&mut self) -> Act {
        for role in [Role::Anna, Role::Bert, Role::Carl] {
            let part = self.cast.part(role);
            self.narrator.tell(role.name(), &format!("asks for {}", part_words(part)))?;
            self.start(role.name(), part, 0)?;
        }
        for device in self.devices.clone().into_iter().skip(1) {
            let part =
                Part { reserve: self.cast.part(Role::Carl).reserve, limit: self.cast.part(Role::Carl).limit };
            self.start(&format!("side{device}"), part, device)?;
        }
        let all_granted = |records: &[Record]| records.iter().all(|r| r.lease.is_some() || r.end.is_some());
        self.until("Anna, Bert and Carl are granted", all_granted).await?;
        let learned = |records: &[Record]| {
            [Role::Anna, Role::Bert, Role::Carl]
                .into_iter()
                .all(|role| record(records, role).has_fallen_to(HALF))
        };
        self.until("Anna's, Bert's and Carl's losses have halved", learned).await
    }

    pub(super) async fn grow_bert(&mut self) -> Result<String, Stop> {
        let limit = self.cast.part(Role::Bert).limit;
        self.order(Role::Bert, Command::Grow).await;
        self.until("Bert has grown and was refused more", |records| {
            record(records, Role::Bert).growth_refused.is_some()
        })
        .await?;
        let bert = record(&self.records, Role::Bert);
        let held = Bytes::new(bert.held_at_most_bytes);
        match &bert.growth_refused {
            Some((reason, message)) if reason == "beyond_lease" && held == limit => Ok(format!(
                "Bert grew from {} to {held}; then: {message}",
                self.cast.part(Role::Bert).reserve
            )),
            answer => {
                Err(Stop::Missed(format!("Bert may hold {limit}, holds {held}, and was answered {answer:?}")))
            }
        }
    }

    pub(super) async fn let_two_wait(&mut self) -> Result<String, Stop> {
        for role in [Role::Dora, Role::Emil] {
            let part = self.cast.part(role);
            self.narrator.tell(role.name(), &format!("asks for {}", part_words(part)))?;
            self.start(role.name(), part, 0)?;
            let answered = |records: &[Record]| {
                let record = record(records, role);
                record.wait.is_some() || record.lease.is_some() || record.end.is_some()
            };
            self.until("the ask is answered", answered).await?;
        }
        let (dora, emil) = (record(&self.records, Role::Dora), record(&self.records, Role::Emil));
        match (&dora.wait, &emil.wait) {
            (Some(first), Some(second)) if !first.short_by.is_zero() && !second.short_by.is_zero() => {
                Ok(format!(
                    "Dora waited as number {}, {} short ({}), and Emil as number {}, {} short",
                    first.position, first.short_by, first.reason, second.position, second.short_by
                ))
            }
            waits => Err(Stop::Missed(format!("Dora and Emil should both wait for bytes: {waits:?}"))),
        }
    }

    pub(super) async fn kill_carl(&mut self) -> Result<String, Stop> {
        let state = self.stage.observer().status().await?;
        let next = state.waiting.first().map(|ask| (ask.name.clone(), Bytes::new(ask.short_by_bytes)));
        let Some((_, short_by)) = next.filter(|(name, short)| name == Role::Dora.name() && !short.is_zero())
        else {
            return Err(Stop::Missed("Dora should be next in line, and short of bytes".to_owned()));
        };
        let carl = record(&self.records, Role::Carl);
        let held = Bytes::new(carl.held_at_most_bytes);
        let pid = carl.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| Stop::Missed("Carl's process is not known".to_owned()))?;
        self.narrator.tell("carl", &format!("holds {held} and gets SIGKILL; Dora is {short_by} short"))?;
        // The wrapper has not been told of its end, so the pid is still that of the training process.
        kill_process(pid, Signal::KILL)
            .map_err(|error| Stop::Missed(format!("Carl cannot be killed: {error}")))?;
        let start = Instant::now();
        self.until("Dora is granted", |records| record(records, Role::Dora).lease.is_some()).await?;
        let after = start.elapsed();
        self.until("Carl's end is told", |records| record(records, Role::Carl).end.is_some()).await?;
        let killed = record(&self.records, Role::Carl).end == Some(End::Killed { signal: libc::SIGKILL });
        let nobody_else =
            [Role::Anna, Role::Bert].into_iter().all(|role| record(&self.records, role).end.is_none());
        if killed && nobody_else {
            Ok(format!(
                "Carl had {held}; Dora, {short_by} short, was granted {:.3} s after the SIGKILL",
                after.as_secs_f64()
            ))
        } else {
            Err(Stop::Missed("others ended as well, so it is not told whose bytes Dora got".to_owned()))
        }
    }

    pub(super) async fn end_anna(&mut self) -> Result<String, Stop> {
        if record(&self.records, Role::Emil).lease.is_some() {
            return Err(Stop::Missed("Emil was granted before there was room for him".to_owned()));
        }
        self.order(Role::Anna, Command::Finish).await;
        self.until("Anna has ended", |records| record(records, Role::Anna).end.is_some()).await?;
        self.until("Emil is granted", |records| record(records, Role::Emil).lease.is_some()).await?;
        let waited = |role| record(&self.records, role).waited_seconds.unwrap_or_default();
        Ok(format!("Dora after {:.1} s, Emil after {:.1} s", waited(Role::Dora), waited(Role::Emil)))
    }

    /// Lets everybody learn, and end.
    pub(super) async fn finish(&mut self) -> Result<String, Stop> {
        let trains = |record: &Record| record.end.is_none();
        let learned = |records: &[Record]| records.iter().all(|r| !trains(r) || r.has_fallen_to(QUARTER));
        let missed = self.until("all losses have fallen to a quarter", learned).await;
        let names: Vec<String> = self.records.iter().filter(|r| trains(r)).map(|r| r.name.clone()).collect();
        for name in names {
            if let Some(actor) = self.actors.get_mut(&name) {
                actor.order(Command::Finish).await;
            }
        }
        self.until("all jobs have ended", |records| records.iter().all(|r| r.end.is_some())).await?;
        missed?;
        let trained: Vec<&Record> =
            self.records.iter().filter(|record| record.loss_first.is_some()).collect();
        let failed: Vec<&str> = trained
            .iter()
            .filter(|record| {
                !record.has_fallen_to(HALF)
                    || matches!(record.end, Some(End::Failed { .. } | End::Refused { .. }))
            })
            .map(|record| record.name.as_str())
            .collect();
        if trained.len() < Role::TRAINING.len() || !failed.is_empty() {
            return Err(Stop::Missed(format!(
                "{} jobs trained; of no use was the training of {failed:?}",
                trained.len()
            )));
        }
        Ok(format!("{} jobs trained, and the loss of each fell below half of its first", trained.len()))
    }

    /// Waits until the book and the devices have everything back.
    pub(super) async fn see_everything_back(&mut self) -> Result<String, Stop> {
        let until = Instant::now() + ACT_WAIT;
        loop {
            let state = self.stage.observer().status().await?;
            let left: Vec<String> = state.devices.iter().filter_map(still_out).collect();
            let uses = self.gauges.uses();
            let on_devices =
                state.devices.iter().zip(&uses).any(|(device, gauge)| more_than_before(device, *gauge));
            if left.is_empty() && state.leases.is_empty() && state.waiting.is_empty() && !on_devices {
                return Ok(
                    "no lease, no ask, and nothing held, set aside or draining on any device".to_owned()
                );
            }
            if Instant::now() > until {
                return Err(Stop::Missed(format!(
                    "{} leases are left; {left:?}; the devices say {uses:?}",
                    state.leases.len()
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The record of a role that was started.
fn record(records: &[Record], role: Role) -> &Record {
    records
        .iter()
        .find(|record| record.name == role.name())
        .expect("an act asks only for who was started before it")
}

fn part_words(part: Part) -> String {
    if part.limit > part.reserve {
        format!("{}, growing up to {}", part.reserve, part.limit)
    } else {
        part.reserve.to_string()
    }
}

fn in_numbers(message: &str) -> bool {
    message.chars().any(|c| c.is_ascii_digit())
}

/// Whether the device itself says that more is in use than before the first job, where that can only be ours.
fn more_than_before(device: &v1::DeviceStatus, gauge: Use) -> bool {
    let is_card = device.info.as_ref().is_some_and(|info| info.kind() == v1::DeviceKind::Cuda);
    let noise = if is_card { NOISE_OF_A_CARD } else { Bytes::ZERO };
    device.strangers.is_empty() && gauge.now_above_first().is_some_and(|now| now > noise)
}

/// What of a device's memory is not back yet, in words.
fn still_out(device: &v1::DeviceStatus) -> Option<String> {
    let memory = device.memory.as_ref()?;
    let parts = [
        ("held", memory.held_bytes),
        ("set aside", memory.set_aside_bytes),
        ("overhead", memory.overhead_bytes),
        ("draining", memory.draining_bytes),
        ("quarantined", memory.quarantined_bytes),
    ];
    let out: Vec<String> = parts
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(word, bytes)| format!("{} {word}", Bytes::new(*bytes)))
        .collect();
    (!out.is_empty()).then(|| out.join(", "))
}
