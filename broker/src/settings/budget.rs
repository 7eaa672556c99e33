//! What an account may have, as it is written.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use gpulease_words::{Bytes, Size, parse_duration};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// How long a holder that is terminated has between SIGTERM and SIGKILL where the budget does not say.
const GRACE: Duration = Duration::from_secs(10);

/// A setting of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Limit,
    Guarantee,
    Weight,
    LeasesMax,
    MaxWait,
    Suspendable,
    OnOverdue,
}

impl Key {
    const WORDS: &[&str] =
        &["limit", "guarantee", "weight", "leases_max", "max_wait", "suspendable", "on_overdue"];

    const ALL: [Self; 7] = [
        Self::Limit,
        Self::Guarantee,
        Self::Weight,
        Self::LeasesMax,
        Self::MaxWait,
        Self::Suspendable,
        Self::OnOverdue,
    ];

    /// As it is written.
    pub(crate) fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// Reads the value of this setting.
    fn read(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Limit => size(text).map(Value::Limit),
            Self::Guarantee => size(text).map(Value::Guarantee),
            Self::Weight => {
                let number = text.parse().map_err(|_| format!("{text:?} is no weight; write 1, 2 or more"));
                number.map(Value::Weight)
            }
            Self::LeasesMax => {
                let number = text.parse().map_err(|_| {
                    format!("{text:?} is no number of leases; write 1, 2 or more, or 0 for none at all")
                });
                number.map(Value::LeasesMax)
            }
            Self::MaxWait => parse_duration(text).map(Value::MaxWait).map_err(|error| error.to_string()),
            Self::Suspendable => match text {
                "true" => Ok(Value::Suspendable(true)),
                "false" => Ok(Value::Suspendable(false)),
                _ => Err(format!("{text:?} says neither true nor false")),
            },
            Self::OnOverdue => overdue(text).map(Value::OnOverdue),
        }
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|key| key.word() == word).ok_or_else(|| {
            format!("{word:?} is no setting of an account; known are {}", Self::WORDS.join(", "))
        })
    }
}

fn size(text: &str) -> Result<Size, String> {
    text.parse().map_err(|error: gpulease_words::ParseSizeError| error.to_string())
}

/// What to do about a holder that lets a recall's deadline pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Nothing but to say so.
    Keep,
    /// SIGTERM, and SIGKILL after so long.
    Terminate(Duration),
}

fn overdue(text: &str) -> Result<Overdue, String> {
    match text.split_once(' ') {
        None if text == "keep" => Ok(Overdue::Keep),
        None if text == "terminate" => Ok(Overdue::Terminate(GRACE)),
        Some(("terminate", grace)) => {
            parse_duration(grace).map(Overdue::Terminate).map_err(|error| error.to_string())
        }
        Some(_) | None => {
            Err(format!("{text:?} is nothing to do; write keep, terminate or \"terminate 30s\""))
        }
    }
}

/// The value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Limit(Size),
    Guarantee(Size),
    Weight(NonZeroU32),
    LeasesMax(u32),
    MaxWait(Duration),
    Suspendable(bool),
    OnOverdue(Overdue),
}

impl Value {
    /// What a size comes to on these devices.
    pub(crate) fn bytes(self, measure: Measure) -> Option<Bytes> {
        match self {
            Self::Limit(size) => Some(size.of(measure.together)),
            // What is promised is no less than what was asked for, and shares together no more than all.
            Self::Guarantee(size @ Size::Amount(_)) => {
                let bytes = size.of(measure.each);
                Some(bytes.round_up().unwrap_or(bytes.round_down()))
            }
            Self::Guarantee(size @ Size::Share(_)) => Some(size.of(measure.each).round_down()),
            Self::Weight(_)
            | Self::LeasesMax(_)
            | Self::MaxWait(_)
            | Self::Suspendable(_)
            | Self::OnOverdue(_) => None,
        }
    }
}

/// What shares are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// What is leased of all devices together: limits are of the host.
    pub(crate) together: Bytes,
    /// What is leased of the smallest device: guarantees hold on each.
    pub(crate) each: Bytes,
}

impl Measure {
    /// That of devices of which so much is leased.
    pub(crate) fn of(capacities: impl Iterator<Item = Bytes> + Clone) -> Self {
        Self { together: capacities.clone().sum(), each: capacities.min().unwrap_or(Bytes::ZERO) }
    }
}

/// A setting as it was written, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) value: Value,
}

/// The settings of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table(BTreeMap<Key, Written>);

impl Table {
    /// Sets one.
    ///
    /// # Errors
    /// When the text makes no sense for it.
    pub(crate) fn set(&mut self, key: Key, text: &str) -> Result<(), String> {
        let text = text.trim();
        let value = key.read(text).map_err(|why| format!("{}: {why}", key.word()))?;
        self.0.insert(key, Written { text: text.to_owned(), value });
        Ok(())
    }

    /// Forgets one; whether it was there.
    pub(crate) fn unset(&mut self, key: Key) -> bool {
        self.0.remove(&key).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// The settings, each key once, in the order of the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Written)> {
        self.0.iter().map(|(key, written)| (*key, written))
    }

    /// These settings before those.
    pub(crate) fn over(&self, others: &Self) -> Self {
        let mut all = others.0.clone();
        all.extend(self.0.iter().map(|(key, written)| (*key, written.clone())));
        Self(all)
    }
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Entries(Members::None)).map(|(table, _)| table)
    }
}

/// A group's settings, with its members.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupTable {
    pub(crate) members: Vec<String>,
    pub(crate) table: Table,
}

impl<'de> Deserialize<'de> for GroupTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (table, members) = from.deserialize_map(Entries(Members::Allowed))?;
        Ok(Self { members, table })
    }
}

/// A list of users.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        super::file::list(from, "members").map(Self)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    None,
    Allowed,
}

struct Entries(Members);

/// A key of a table, as the file has it.
enum Field {
    Members,
    Setting(Key),
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = String::deserialize(from)?;
        match word.parse() {
            Ok(key) => Ok(Self::Setting(key)),
            Err(_) if word == "members" => Ok(Self::Members),
            Err(_) => Err(D::Error::unknown_field(&word, Key::WORDS)),
        }
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = (Table, Vec<String>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings of an account")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let (mut table, mut members) = (Table::default(), Vec::new());
        while let Some(field) = map.next_key()? {
            match field {
                Field::Setting(key) => {
                    let Scalar(text) = map.next_value_seed(Texts(key))?;
                    table.set(key, &text).map_err(M::Error::custom)?;
                }
                Field::Members if self.0 == Members::Allowed => Names(members) = map.next_value()?,
                Field::Members => return Err(M::Error::custom("only groups have members")),
            }
        }
        Ok((table, members))
    }
}

/// A text, a number or a truth value, as a text that makes sense for the key.
struct Scalar(String);

struct Texts(Key);

impl<'de> serde::de::DeserializeSeed<'de> for Texts {
    type Value = Scalar;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Scalar, D::Error> {
        from.deserialize_any(self)
    }
}

impl Texts {
    /// Read here already, where an error has its line and column.
    fn check<E: serde::de::Error>(&self, text: String) -> Result<Scalar, E> {
        self.0.read(text.trim()).map_err(E::custom)?;
        Ok(Scalar(text))
    }
}

impl Visitor<'_> for Texts {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value for {}", self.0.word())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Scalar, E> {
        self.check(text.to_owned())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Scalar, E> {
        self.check(number.to_string())
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<Scalar, E> {
        self.check(truth.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::gib;

    #[test]
    fn each_setting_has_its_form() {
        let mut table = Table::default();
        for (key, good, bad) in [
            (Key::Limit, "20GiB", "20"),
            (Key::Guarantee, "25%", "lots"),
            (Key::Weight, "3", "0"),
            (Key::LeasesMax, "0", "-1"),
            (Key::MaxWait, "2m", "2"),
            (Key::Suspendable, "false", "no"),
            (Key::OnOverdue, "terminate 30s", "kill"),
        ] {
            assert_eq!(key.word().parse(), Ok(key));
            table.set(key, good).expect(good);
            let why = table.set(key, bad).expect_err(bad);
            assert!(why.starts_with(key.word()), "{why}");
        }
        assert_eq!(table.iter().count(), Key::ALL.len());
        assert_eq!(overdue("terminate"), Ok(Overdue::Terminate(GRACE)));
        assert!("limits".parse::<Key>().is_err());
    }

    #[test]
    fn shares_of_limits_are_of_all_devices_and_of_guarantees_of_the_smallest() {
        let measure = Measure::of([gib(8), gib(16)].into_iter());
        let half = Size::Share(5_000);
        assert_eq!(Value::Limit(half).bytes(measure), Some(gib(12)));
        assert_eq!(Value::Guarantee(half).bytes(measure), Some(gib(4)));
    }

    #[test]
    fn one_table_goes_before_another() {
        let (mut file, mut run_time) = (Table::default(), Table::default());
        file.set(Key::Limit, "8GiB").expect("sound");
        file.set(Key::Weight, "2").expect("sound");
        run_time.set(Key::Limit, "4GiB").expect("sound");
        let both = run_time.over(&file);
        let texts: Vec<_> = both.iter().map(|(_, written)| written.text.as_str()).collect();
        assert_eq!(texts, ["4GiB", "2"]);
        assert!(run_time.unset(Key::Limit) && !run_time.unset(Key::Limit) && run_time.is_empty());
    }
}
