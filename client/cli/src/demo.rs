//! `gpulease demo`: jobs that compete on a private broker, and each promise checked.

mod actor;
mod acts;
mod cast;
mod director;
mod gauge;
mod job;
mod narrator;
mod promise;
mod record;
mod report;
mod set;
mod stage;
mod turns;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::arguments::{Common, DemoArguments};
use crate::exit::{Exit, Failure, Outcome};
use crate::look::Look;
use crate::output;
use crate::signals::{Mask, Signals};

use cast::Cast;
use director::Director;
use gauge::{Gauges, Source};
pub(crate) use job::job;
use narrator::{Manner, Narrator};
use promise::{Promise, Verdicts};
use record::Record;
use report::{Device, Report};
use set::Set;
use stage::{Keep, Stage};
use turns::Turns;

/// What the director tells a job to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    /// Grow up to the limit, and ask for more.
    Grow,
    /// Give everything back and end.
    Finish,
}

impl Command {
    const fn word(self) -> &'static str {
        match self {
            Self::Grow => "grow",
            Self::Finish => "finish",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Grow, Self::Finish].into_iter().find(|command| command.word() == word)
    }
}

/// Ties a child's life to ours, with the signals it would have without us: it is killed when we
/// end, however that happens, and Ctrl-C reaches us alone, who then end it in good order.
fn tether(command: &mut tokio::process::Command, mask: Mask) {
    command.process_group(0).kill_on_drop(true);
    let parent = rustix::process::getpid();
    let ties = move || {
        mask.set()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            // We ended before the tie was made.
            Err(std::io::Error::from_raw_os_error(libc::ECANCELED))
        }
    };
    // SAFETY: between fork and exec the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(ties) };
}

/// Plays the demo, and fails where a promise was broken.
pub(crate) async fn demo(common: &Common, arguments: &DemoArguments, mut signals: Signals) -> Outcome {
    let set = set::choose(&arguments.device)?;
    let cast = Cast::of(set.capacity, set.overhead).map_err(|why| Failure::new(Exit::Failed, why))?;
    let manner = if common.json { Manner::Silent } else { Manner::Aloud(Look::of_stdout()) };
    let mut narrator = Narrator::new(manner);
    narrator.tell("demo", &format!("plays on {}", set.words))?;
    let turns = Turns::on(&set).map_err(|why| Failure::new(Exit::Failed, why))?;
    let halves = [
        Half { set, configuration: stage::budgets(cast), acts: Acts::Leases },
        Half { set: turns.set.clone(), configuration: turns.configuration(), acts: Acts::Turns(turns) },
    ];
    let keep = if arguments.keep { Keep::Folder } else { Keep::Nothing };
    let mut story = Story::new(narrator);
    let (mut folders, mut ends) = (Vec::new(), Vec::new());
    for half in halves {
        let stage = Stage::open(&half.set, &half.configuration, signals.before()).await?;
        let played = play(&stage, &half, cast, &mut signals, story).await;
        let closed = stage.close(keep).await;
        story = played?;
        match closed {
            Ok(folder) => folders.extend(folder),
            Err(why) => ends.push(why),
        }
    }
    let report = story.report();
    if common.json {
        output::print_document(&report)?;
    } else {
        output::print(&report.text(Look::of_stdout()))?;
    }
    for folder in folders {
        output::say(&format!("a broker's log, configuration and sockets are in {}", folder.display()));
    }
    match ends.first() {
        None => verdict(&report),
        Some(why) => Err(Failure::new(Exit::Failed, why.clone())),
    }
}

/// What is played on a broker of its own.
struct Half {
    set: Set,
    configuration: String,
    acts: Acts,
}

enum Acts {
    /// Budgets, growth, the line, deaths.
    Leases,
    /// Jobs that don't fit together.
    Turns(Turns),
}

/// What has been seen so far.
struct Story {
    narrator: Narrator,
    records: Vec<Record>,
    verdicts: Verdicts,
    /// Of the first broker.
    devices: Vec<Device>,
}

impl Story {
    fn new(narrator: Narrator) -> Self {
        Self { narrator, records: Vec::new(), verdicts: Verdicts::default(), devices: Vec::new() }
    }

    fn report(self) -> Report {
        let seconds = self.narrator.seconds();
        Report::new(self.devices, self.records, self.verdicts.all(), seconds, self.narrator.into_lines())
    }
}

fn verdict(report: &Report) -> Outcome {
    let broken: Vec<&str> = report.broken().into_iter().map(Promise::words).collect();
    if broken.is_empty() {
        Ok(Exit::Done)
    } else {
        Err(Failure::new(Exit::Failed, format!("broken promises: {}", broken.join("; "))))
    }
}

async fn play(
    stage: &Stage,
    half: &Half,
    cast: Cast,
    signals: &mut Signals,
    mut story: Story,
) -> Result<Story, Failure> {
    let state = stage.observer().status().await?;
    let devices: Vec<u32> =
        state.devices.iter().filter_map(|device| device.info.as_ref()).map(|info| info.index).collect();
    let cannot = |e| Failure::new(Exit::Failed, format!("the devices cannot be watched: {e}"));
    let gauges = Gauges::watch(sources(&state, stage)).map_err(cannot)?;
    story.narrator.tell("broker", &half.opening(cast))?;
    let mut director = Director::new(stage, signals, &gauges, cast, devices, story.narrator);
    director.verdicts = story.verdicts;
    match &half.acts {
        Acts::Leases => director.play().await?,
        Acts::Turns(turns) => director.play_turns(turns).await?,
    }
    let Director { records, narrator, mut verdicts, .. } = director;
    let state = stage.observer().status().await?;
    let devices: Vec<Device> =
        state.devices.iter().zip(gauges.uses()).map(|(device, gauge)| Device::new(device, gauge)).collect();
    for device in &devices {
        match device.within_capacity() {
            Ok(words) => verdicts.kept(Promise::WithinCapacity, words),
            Err(words) => verdicts.broken(Promise::WithinCapacity, words),
        }
    }
    story.records.extend(records);
    let devices = if story.devices.is_empty() { devices } else { story.devices };
    Ok(Story { narrator, verdicts, devices, ..story })
}

impl Half {
    fn opening(&self, cast: Cast) -> String {
        let capacity = self.set.capacity;
        match &self.acts {
            Acts::Leases => {
                let (wanted, count) = (cast.wanted(), cast::Role::TRAINING.len());
                format!("leases {capacity} of each device; {count} jobs want {wanted}")
            }
            Acts::Turns(_) => {
                format!("another one leases {} and swaps out who has had a turn", self.set.words)
            }
        }
    }
}

/// Where each device's own word is heard.
fn sources(state: &gpulease_proto::v1::StatusReply, stage: &Stage) -> Vec<Source> {
    let source = |info: &gpulease_proto::v1::DeviceInfo| match info.kind() {
        gpulease_proto::v1::DeviceKind::Cuda => Source::Card(info.uuid.clone()),
        gpulease_proto::v1::DeviceKind::Host | gpulease_proto::v1::DeviceKind::Unspecified => {
            Source::MemoryFiles(stage.pid().unwrap_or(0))
        }
    };
    state.devices.iter().filter_map(|device| device.info.as_ref()).map(source).collect()
}
