//! What the operator wants: flags, then environment, then the file, then defaults.

mod account;
mod accounts;
mod arguments;
mod budget;
mod file;

use std::path::PathBuf;

use gpulease_arbiter::Policy;
use gpulease_words::Size;

pub(crate) use account::Account;
pub use accounts::Accounts;
pub(crate) use arguments::{Arguments, Work};
pub(crate) use budget::{Key, Measure, Table};

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
    /// Bounds and graces.
    pub policy: Policy,
    /// Budgets.
    pub accounts: Accounts,
    /// The program that helper processes of GPUs are started from; its `main` has to begin with [`crate::exporter::maybe_run`].
    pub helpers: Program,
    /// How it logs; a daemon inside another program uses that program's log.
    pub log: Log,
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
        Ok(Self {
            socket: arguments.socket.clone().or(file.socket),
            devices: if arguments.devices.is_empty() { file.devices } else { arguments.devices.clone() },
            capacity: arguments.capacity.or(file.capacity),
            policy,
            accounts,
            helpers: Program::default(),
            log: Log {
                level: arguments.log.clone().or(file.log.level),
                format: arguments.log_format.or(file.log.format).unwrap_or_default(),
            },
        })
    }
}
