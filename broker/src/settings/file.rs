//! The configuration file.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use gpulease_arbiter::Policy;
use gpulease_words::{Bytes, Size, mib, parse_duration};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::accounts::Accounts;
use super::budget::{GroupTable, Table};
use super::{BadSetting, Hold, LogFormat};
use crate::device::choice::DeviceChoice;

/// What a file may say. An unknown key is an error, since a misspelt limit would be none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) socket: Option<PathBuf>,
    pub(super) state: Option<PathBuf>,
    #[serde(deserialize_with = "texts")]
    pub(super) devices: Vec<DeviceChoice>,
    #[serde(deserialize_with = "text")]
    pub(super) capacity: Option<Size>,
    #[serde(deserialize_with = "text")]
    pub(super) arena: Option<Size>,
    pub(super) hold: Option<Hold>,
    #[serde(deserialize_with = "text")]
    pub(super) headroom: Option<Size>,
    #[serde(deserialize_with = "text")]
    pub(super) pinned_max: Option<Size>,
    #[serde(deserialize_with = "text")]
    swap_rate: Option<Size>,
    pub(super) log: LogTable,
    bounds: BoundsTable,
    graces: GracesTable,
    host: Table,
    group: InOrder<GroupTable>,
    user: InOrder<Table>,
    job: InOrder<Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogTable {
    pub(super) level: Option<String>,
    pub(super) format: Option<LogFormat>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BoundsTable {
    sessions_per_user: Option<u32>,
    asks_per_user: Option<u32>,
    leases_per_user: Option<u32>,
    segments_per_lease: Option<u32>,
    members_per_lease: Option<u32>,
    sessions: Option<u32>,
    asks: Option<u32>,
    leases: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GracesTable {
    #[serde(deserialize_with = "duration")]
    max_wait: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    adrift: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    unattended: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    min_residency: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    idle_after: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    recall: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    drain: Option<Duration>,
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read or makes no sense.
pub(super) fn read(path: &Path) -> Result<File, BadSetting> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        BadSetting(format!("{}: the configuration cannot be read: {error}", path.display()))
    })?;
    parse(&text).map_err(|error| BadSetting(format!("{}: {error}", path.display())))
}

fn parse(text: &str) -> Result<File, BadSetting> {
    toml::from_str(text).map_err(|error| BadSetting(error.to_string().trim_end().to_owned()))
}

impl File {
    pub(super) fn policy(&self) -> Result<Policy, BadSetting> {
        let (usual, bounds, graces) = (Policy::default(), &self.bounds, &self.graces);
        Ok(Policy {
            max_wait: graces.max_wait.unwrap_or(usual.max_wait),
            adrift_grace: graces.adrift.unwrap_or(usual.adrift_grace),
            unattended_grace: graces.unattended.unwrap_or(usual.unattended_grace),
            sessions_per_uid: bound("sessions_per_user", bounds.sessions_per_user, usual.sessions_per_uid)?,
            asks_per_uid: bound("asks_per_user", bounds.asks_per_user, usual.asks_per_uid)?,
            leases_per_uid: bound("leases_per_user", bounds.leases_per_user, usual.leases_per_uid)?,
            segments_per_lease: bound(
                "segments_per_lease",
                bounds.segments_per_lease,
                usual.segments_per_lease,
            )?,
            members_per_lease: bound("members_per_lease", bounds.members_per_lease, usual.members_per_lease)?,
            sessions_max: bound("sessions", bounds.sessions, usual.sessions_max)?,
            asks_max: bound("asks", bounds.asks, usual.asks_max)?,
            leases_max: bound("leases", bounds.leases, usual.leases_max)?,
            min_residency: graces.min_residency.unwrap_or(usual.min_residency),
            idle_after: graces.idle_after.unwrap_or(usual.idle_after),
            recall_deadline: graces.recall.unwrap_or(usual.recall_deadline),
            drain_deadline: graces.drain.unwrap_or(usual.drain_deadline),
            swap_bytes_per_second: swap_rate(self.swap_rate, usual.swap_bytes_per_second)?,
            ..usual
        })
    }

    pub(super) fn accounts(&self) -> Result<Accounts, BadSetting> {
        Accounts::new(&self.host, &self.group.0, &self.user.0, &self.job.0)
    }
}

/// Bytes a second; nothing below what a disk does, since waits of days would be promised.
fn swap_rate(said: Option<Size>, usual: Bytes) -> Result<Bytes, BadSetting> {
    match said {
        None => Ok(usual),
        Some(Size::Amount(rate)) if rate >= mib(64) => Ok(rate),
        Some(_) => Err(BadSetting(
            "swap_rate: write what surely moves between a device and host memory in a second, 64MiB or more, \
             such as \"20GB\""
                .to_owned(),
        )),
    }
}

/// A bound of the file is at most the built-in one, which the tables are sized for.
fn bound(key: &str, said: Option<u32>, most: u32) -> Result<u32, BadSetting> {
    match said {
        None => Ok(most),
        Some(0) => {
            Err(BadSetting(format!("bounds.{key} is 0, so nobody could use the broker; write at least 1")))
        }
        Some(n) if n > most => Err(BadSetting(format!("bounds.{key} is {n}; it is at most {most}"))),
        Some(n) => Ok(n),
    }
}

/// A table whose keys are names, in the order of the file.
#[derive(Debug)]
pub(super) struct InOrder<T>(pub(super) Vec<(String, T)>);

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = InOrder<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of tables")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<InOrder<T>, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(InOrder(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A value written as a text that has its own form.
pub(super) fn text<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// A list of texts. A lone text is the likeliest slip.
pub(super) fn list<'de, D: Deserializer<'de>>(from: D, key: &'static str) -> Result<Vec<String>, D::Error> {
    struct List(&'static str);

    impl<'de> Visitor<'de> for List {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list, like {} = [\"a\", \"b\"]", self.0)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<String>, E> {
            Err(E::custom(format!("{key} is a list; write {key} = [{text:?}]", key = self.0)))
        }

        fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut all: S) -> Result<Vec<String>, S::Error> {
            let mut texts = Vec::new();
            while let Some(text) = all.next_element()? {
                texts.push(text);
            }
            Ok(texts)
        }
    }

    from.deserialize_any(List(key))
}

fn texts<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = list(from, "devices")?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::Choice;

    const WHOLE: &str = r#"
        socket = "/run/lab/gpulease.sock"
        devices = ["cuda:0", "host:64MiB"]
        capacity = "90%"
        arena = "25%"
        pinned_max = "8GiB"
        swap_rate = "50GB"
        [log]
        level = "debug"
        format = "json"
        [bounds]
        asks_per_user = 8
        [graces]
        max_wait = "2m"
        drain = "3s"
        [host]
        leases_max = 100
        [group.zebras]
        members = ["root"]
        limit = "16GiB"
        weight = 3
        [group.ants]
        members = ["root", "4000000001"]
        [user."*"]
        limit = "50%"
        [user.root]
        limit = "8GiB"
        [job."sweep-*"]
        limit = "2GiB"
        [job."*"]
        leases_max = 4
    "#;

    #[test]
    fn a_whole_file_is_read() {
        let file = parse(WHOLE).expect("it makes sense");
        assert_eq!(file.devices, [DeviceChoice::Cuda(Choice::Number(0)), DeviceChoice::Host(mib(64))]);
        assert_eq!(file.capacity, Some(Size::Share(9_000)));
        let policy = file.policy().expect("it makes sense");
        assert_eq!((policy.asks_per_uid, policy.max_wait), (8, Duration::from_secs(120)));
        assert_eq!(policy.drain_deadline, Duration::from_secs(3));
        assert_eq!(policy.swap_bytes_per_second, Bytes::new(50_000_000_000));
        assert_eq!(policy.adrift_grace, Policy::default().adrift_grace);
        assert!(
            file.group.0.iter().map(|(name, _)| name.as_str()).eq(["zebras", "ants"]),
            "in the file's order"
        );
        assert!(file.job.0.iter().map(|(name, _)| name.as_str()).eq(["sweep-*", "*"]));
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        for (text, words) in [
            ("sockt = \"/x\"", &["line 1", "sockt"] as &[_]),
            ("[user.root]\nlimt = \"8GiB\"", &["line 2", "column 1", "limt"]),
            ("capacity = \"8\"", &["line 1", "no unit"]),
            ("capacity = 8", &["line 1"]),
            ("devices = [\"gpu\"]", &["line 1", "is no device"]),
            ("[graces]\nmax_wait = \"90\"", &["line 2", "no unit"]),
            ("[group.a]\nweight = 0", &["line 2"]),
            ("devices = \"cuda:0\"", &["line 1", "devices = [\"cuda:0\"]"]),
            ("[group.a]\nmembers = \"nobody\"", &["line 2", "write members = [\"nobody\"]"]),
            ("[group.a]\nmembers = 7", &["line 2", "a list, like members = ["]),
            ("[user.root]\nleases_max = -1", &["line 2", "write 1, 2 or more"]),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        for text in [
            "[bounds]\nasks_per_user = 0",
            "[bounds]\nleases = 4000000000",
            "swap_rate = \"0B\"",
            "swap_rate = \"50%\"",
        ] {
            let file = parse(text).expect("a sound file");
            assert!(file.policy().is_err(), "{text}");
        }
    }
}
