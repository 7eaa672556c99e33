//! The command line of `gpuleased`, and the environment behind it.

use std::path::{Path, PathBuf};

use clap::Parser;
use gpulease_words::Size;

use super::{Hold, LogFormat};
use crate::device::choice::DeviceChoice;
use crate::sockets::Rank;

/// Owns the memory of this host's GPUs and leases it to jobs.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "gpuleased", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "GPULEASED_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// A device to serve, more than once for several: auto (every GPU, or host:8GiB where there is none), cuda:N, host:SIZE
    #[arg(long = "device", value_name = "DEVICE", env = "GPULEASED_DEVICES", value_delimiter = ',')]
    pub(crate) devices: Vec<DeviceChoice>,
    /// How much of each device is leased: an amount like 60GiB, or a share like 90%
    #[arg(long, value_name = "SIZE|PERCENT", env = "GPULEASED_CAPACITY")]
    pub(crate) capacity: Option<Size>,
    /// Host memory for the contents of leases that are suspended while others use their devices: 64GiB, or 50% of the host's; else none, and nothing is suspended
    #[arg(long, value_name = "SIZE|PERCENT", env = "GPULEASED_ARENA")]
    pub(crate) arena: Option<Size>,
    /// Whether what is not leased of a GPU is kept, so that nobody allocates around the broker
    #[arg(long, value_name = "WHAT", env = "GPULEASED_HOLD", value_enum)]
    pub(crate) hold: Option<Hold>,
    /// The job socket; the others are made beside it
    #[arg(long, value_name = "PATH", env = "GPULEASE_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// The directory in which budgets that are set at run time outlive the broker
    #[arg(long, value_name = "DIRECTORY", env = "STATE_DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, or directives like info,gpulease::arbiter=debug
    #[arg(long, value_name = "LEVEL", env = "GPULEASED_LOG")]
    pub(crate) log: Option<String>,
    /// The form of the log
    #[arg(long, value_name = "FORM", env = "GPULEASED_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// Check the configuration, the devices and the place of the sockets, say what would be done, and end
    #[arg(long)]
    pub(crate) check: bool,
}

/// What the daemon is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// To serve.
    Serve,
    /// To say what serving would do.
    Check,
}

impl Arguments {
    pub(crate) const fn work(&self) -> Work {
        if self.check { Work::Check } else { Work::Serve }
    }

    /// The file to read: the one that is named, or the usual one where it exists.
    pub(super) fn config_path(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| usual_config().filter(|path| path.exists()))
    }
}

fn usual_config() -> Option<PathBuf> {
    match Rank::own() {
        Rank::Root => Some(PathBuf::from("/etc/gpulease/gpuleased.toml")),
        Rank::User => {
            own_folder("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("gpulease/gpuleased.toml"))
        }
    }
}

/// Where a broker at the usual socket keeps what is set at run time. One at a named socket is beside another, which has
/// budgets of its own.
pub(super) fn usual_state(socket: Option<&Path>) -> Option<PathBuf> {
    match (socket, Rank::own()) {
        (Some(_), _) => None,
        (None, Rank::Root) => Some(PathBuf::from("/var/lib/gpulease")),
        (None, Rank::User) => {
            own_folder("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("gpulease"))
        }
    }
}

/// The user's folder of a kind: where a variable says, else in his home.
fn own_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    folder(variable).or_else(|| folder("HOME").map(|home| home.join(in_home)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for bad in [
            &["gpuleased", "--device", "gpu"] as &[_],
            &["gpuleased", "--capacity", "8"],
            &["gpuleased", "--log-format", "xml"],
            &["gpuleased", "--hold", "some"],
            &["gpuleased", "extra"],
        ] {
            let error = Arguments::try_parse_from(bad).expect_err("nonsense");
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
        let good = Arguments::try_parse_from([
            "gpuleased",
            "--device",
            "host:64MiB",
            "--device",
            "cuda:1",
            "--check",
        ]);
        let good = good.expect("it makes sense");
        assert_eq!((good.devices.len(), good.work()), (2, Work::Check));
    }
}
