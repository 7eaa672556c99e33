//! What the operator wants: flags, then environment, then the file, then defaults.

mod account;
mod accounts;
mod arguments;
mod budget;
mod file;
pub(crate) mod run_time;

use std::path::PathBuf;

use gpulease_arbiter::Policy;
use gpulease_words::{Bytes, Size, mib};

pub(crate) use account::Account;
pub use accounts::Accounts;
pub(crate) use arguments::{Arguments, Work};
pub(crate) use budget::{Key, Measure, Table, Written};
pub(crate) use run_time::RunTime;

use crate::device::choice::DeviceChoice;
use crate::exporter::Program;

/// Everything that can be set.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The job socket; the other two are beside it. `None`: the usual place of the user who runs the broker.
    pub socket: Option<PathBuf>,
    /// What is served; empty: every GPU, or host memory where there is none.
    pub devices: Vec<DeviceChoice>,
    /// How much of each device is leased; `None`: all of it.
    pub capacity: Option<Size>,
    /// The directory in which what operators set at run time outlives the broker; `None`: it does not.
    pub state: Option<PathBuf>,
    /// Host memory for the contents of suspended leases; a share is of the host's. `None`: none, so nothing is suspended.
    pub arena: Option<Size>,
    /// What may be pinned of each device beyond guarantees; a share is of the smallest device. `None`: what guarantees leave,
    /// and half of it where there is an arena.
    pub pinned_max: Option<Size>,
    /// Bounds and graces.
    pub policy: Policy,
    /// Budgets.
    pub accounts: Accounts,
    /// What the broker keeps of a GPU so that nobody allocates around it.
    pub hold: Hold,
    /// With a hold, what of each GPU is neither leased nor kept, for contexts and libraries of programs without a lease; a
    /// share is of the GPU. `None`: [`HEADROOM`].
    pub headroom: Option<Size>,
    /// The program that helper processes of GPUs are started from; its `main` has to begin with [`crate::exporter::maybe_run`].
    pub helpers: Program,
    /// How it logs; a daemon inside another program uses that program's log.
    pub log: Log,
}

/// The usual headroom of a GPU: one context with common libraries.
pub const HEADROOM: Bytes = mib(640);

/// What the broker keeps of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hold {
    /// Only what is leased: against programs without a lease it is advisory.
    #[default]
    None,
    /// All that is not leased too, less the headroom.
    All,
}

/// How the daemon logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// What is logged: a level, or directives like `info,gpulease::arbiter=debug`. `None`: `info`.
    pub level: Option<String>,
    /// In which form.
    pub format: LogFormat,
}

/// The form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// A setting that makes no sense, with what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSetting(pub String);

impl Settings {
    /// The settings other than budgets in which these differ, which takes another start.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let pairs = [
            ("socket", self.socket != other.socket),
            ("devices", self.devices != other.devices),
            ("capacity", self.capacity != other.capacity),
            ("state", self.state != other.state),
            ("arena", self.arena != other.arena),
            ("pinned_max", self.pinned_max != other.pinned_max),
            ("bounds, graces or swap_rate", self.policy != other.policy),
            ("hold", self.hold != other.hold),
            ("headroom", self.headroom != other.headroom),
            ("log", self.log != other.log),
        ];
        pairs.into_iter().filter(|(_, differ)| *differ).map(|(name, _)| name).collect()
    }

    /// What the arguments, the environment and the configuration file say together.
    ///
    /// # Errors
    /// When the file cannot be read or makes no sense; with the line and column.
    pub(crate) fn load(arguments: &Arguments) -> Result<Self, BadSetting> {
        let file = match arguments.config_path() {
            Some(path) => file::read(&path)?,
            None => file::File::default(),
        };
        let (policy, accounts) = (file.policy()?, file.accounts()?);
        let socket = arguments.socket.clone().or(file.socket);
        let hold = arguments.hold.or(file.hold).unwrap_or_default();
        if (hold, file.headroom.is_some()) == (Hold::None, true) {
            return Err(BadSetting("headroom is what a hold leaves free; write hold = \"all\" too".into()));
        }
        Ok(Self {
            socket: socket.clone(),
            devices: if arguments.devices.is_empty() { file.devices } else { arguments.devices.clone() },
            capacity: arguments.capacity.or(file.capacity),
            state: arguments
                .state
                .clone()
                .or(file.state)
                .or_else(|| arguments::usual_state(socket.as_deref())),
            arena: arguments.arena.or(file.arena),
            pinned_max: file.pinned_max,
            policy,
            accounts,
            hold,
            headroom: file.headroom,
            helpers: Program::default(),
            log: Log {
                level: arguments.log.clone().or(file.log.level),
                format: arguments.log_format.or(file.log.format).unwrap_or_default(),
            },
        })
    }
}
