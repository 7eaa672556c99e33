//! The budgets in force: what the configuration says, and before it what operators set since.
//!
//! One change at a time: it is worked out, put to the arbiter, which refuses what cannot be kept,
//! and written down; where it cannot be written down it is taken back.

pub(crate) mod kept;

use std::collections::BTreeMap;
use std::sync::Arc;

use gpulease_words::{Bytes, Uid};
use tokio::sync::Mutex;

use crate::driver::{Desk, Refusal, unix_ms};
use crate::event_log::{EventLog, Facts, Kind};
use crate::settings::{Account, Accounts, BadSetting, Key, Measure, RunTime, Table};
use kept::Kept;

/// Where budgets are changed. Clones are one office.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    office: Arc<Office>,
}

#[derive(Debug)]
struct Office {
    desk: Desk,
    events: EventLog,
    measure: Measure,
    kept: Option<Kept>,
    in_force: Mutex<InForce>,
}

/// The two layers.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    file: Accounts,
    run_time: RunTime,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotChanged {
    /// It cannot be kept, or the broker is stopping.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// It makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// It would be forgotten with the broker: a failure, and no refusal.
    #[error(
        "the change could not be written to {file} and is not in force: {why}; make room there and let the broker write to it, then set it again"
    )]
    Unkept {
        /// Where it was to be kept.
        file: String,
        /// What the system said.
        why: String,
    },
}

/// How a change is told: who makes it, and whose budget it is, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling<'a> {
    pub(crate) who: &'a str,
    pub(crate) account: &'a str,
}

impl From<BadSetting> for NotChanged {
    fn from(bad: BadSetting) -> Self {
        Self::Malformed(bad.0)
    }
}

/// An account that has settings, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) account: Account,
    pub(crate) settings: Vec<Setting>,
    pub(crate) members: Vec<Uid>,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: Key,
    pub(crate) text: String,
    pub(crate) origin: Origin,
    /// What a size comes to.
    pub(crate) bytes: Option<Bytes>,
}

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The configuration.
    File,
    /// An operator.
    RunTime,
}

impl InForce {
    /// The configuration's with what is kept before them.
    ///
    /// # Errors
    /// When what is kept does not go with them.
    pub(crate) fn at_start(file: Accounts, kept: Option<&Kept>) -> Result<Self, BadSetting> {
        let run_time = kept.map_or(Ok(RunTime::new()), Kept::read)?;
        let in_force = Self { file, run_time };
        match (in_force.accounts(), kept) {
            (Ok(_), _) | (_, None) => Ok(in_force),
            (Err(why), Some(kept)) => Err(BadSetting(format!(
                "{}: what was set at run time does not go with the configuration: {why}; correct either",
                kept.path().display()
            ))),
        }
    }

    /// Both layers as one.
    pub(crate) fn accounts(&self) -> Result<Accounts, BadSetting> {
        self.file.under(&self.run_time)
    }

    fn list(&self, measure: Measure) -> Vec<Listed> {
        let Ok(accounts) = self.accounts() else {
            return Vec::new();
        };
        let mut members: BTreeMap<&str, Vec<Uid>> = BTreeMap::new();
        for (uid, group) in accounts.memberships() {
            members.entry(group).or_default().push(*uid);
        }
        let bare = accounts.groups().iter().map(|name| Account::Group(name.clone()));
        let bare = bare.filter(|account| accounts.table(account).is_none());
        let bare = bare.map(|account| (account, Table::default()));
        let all = accounts.tables().iter().cloned().chain(bare);
        all.map(|(account, table)| {
            let of_group = match &account {
                Account::Group(name) => members.get(name.as_str()).cloned().unwrap_or_default(),
                Account::Host | Account::EachUser | Account::User(_) | Account::Job(_) => Vec::new(),
            };
            Listed { settings: self.settings(&account, &table, measure), account, members: of_group }
        })
        .collect()
    }

    fn settings(&self, account: &Account, table: &Table, measure: Measure) -> Vec<Setting> {
        let set = self.run_time.iter().find(|(known, _)| known == account).map(|(_, table)| table);
        let origin = |key| match set {
            Some(set) if set.has(key) => Origin::RunTime,
            Some(_) | None => Origin::File,
        };
        let setting = |(key, written): (Key, &crate::settings::Written)| Setting {
            key,
            text: written.text.clone(),
            origin: origin(key),
            bytes: written.value.bytes(measure),
        };
        table.iter().map(setting).collect()
    }

    fn table(&mut self, account: &Account) -> &mut Table {
        if !self.run_time.iter().any(|(known, _)| known == account) {
            self.run_time.push((account.clone(), Table::default()));
        }
        let found = self.run_time.iter_mut().find(|(known, _)| known == account);
        &mut found.expect("it is there or was just pushed").1
    }
}

impl Budgets {
    pub(crate) fn new(
        desk: Desk,
        events: EventLog,
        measure: Measure,
        kept: Option<Kept>,
        in_force: InForce,
    ) -> Self {
        Self { office: Arc::new(Office { desk, events, measure, kept, in_force: Mutex::new(in_force) }) }
    }

    /// Where what is set at run time outlives the broker, if anywhere.
    pub(crate) fn kept_in(&self) -> Option<&std::path::Path> {
        self.office.kept.as_ref().map(Kept::path)
    }

    /// All accounts that have settings.
    pub(crate) async fn list(&self) -> Vec<Listed> {
        self.office.in_force.lock().await.list(self.office.measure)
    }

    /// Sets these of an account.
    ///
    /// # Errors
    /// When they make no sense or cannot be kept; nothing is changed then.
    pub(crate) async fn set(
        &self,
        account: &Account,
        settings: &[(Key, String)],
        Telling { who, account: named }: Telling<'_>,
    ) -> Result<Listed, NotChanged> {
        let mut in_force = self.office.in_force.lock().await;
        let mut next = in_force.clone();
        for (key, text) in settings {
            next.table(account).set(*key, text).map_err(NotChanged::Malformed)?;
        }
        self.office.enact(&mut in_force, next).await?;
        let listed = in_force.list(self.office.measure).into_iter().find(|listed| listed.account == *account);
        let words: Vec<_> = settings.iter().map(|(key, text)| format!("{} = {text}", key.word())).collect();
        self.office.note(format!("{who} set the budget of {named}: {}", words.join(", ")));
        Ok(listed.unwrap_or_else(|| Listed {
            account: account.clone(),
            settings: Vec::new(),
            members: Vec::new(),
        }))
    }

    /// Forgets what was set for an account at run time, all or one setting.
    ///
    /// # Errors
    /// When nothing was set, or the configuration's cannot be kept with the others; nothing is changed then.
    pub(crate) async fn remove(
        &self,
        account: &Account,
        key: Option<Key>,
        Telling { who, account: named }: Telling<'_>,
    ) -> Result<(), NotChanged> {
        let mut in_force = self.office.in_force.lock().await;
        let mut next = in_force.clone();
        let removed = match key {
            Some(key) => next.table(account).unset(key),
            None => !std::mem::take(next.table(account)).is_empty(),
        };
        let what = key.map_or("nothing".to_owned(), |key| format!("no {}", key.word()));
        if !removed {
            return Err(NotChanged::Malformed(format!(
                "{what} was set for {named} at run time; `gpulease budget ls` shows what was, and the rest stands in the configuration"
            )));
        }
        next.run_time.retain(|(_, table)| !table.is_empty());
        self.office.enact(&mut in_force, next).await?;
        let what = key.map_or("everything".to_owned(), |key| key.word().to_owned());
        self.office.note(format!("{who} removed {what} that was set for {named} at run time"));
        Ok(())
    }

    /// Takes the configuration's budgets anew.
    ///
    /// # Errors
    /// When they cannot be kept with what was set at run time; nothing is changed then.
    pub(crate) async fn reload(&self, file: Accounts) -> Result<(), NotChanged> {
        let mut in_force = self.office.in_force.lock().await;
        if in_force.file == file {
            return Ok(());
        }
        let next = InForce { file, run_time: in_force.run_time.clone() };
        self.office.put(&next).await?;
        *in_force = next;
        self.office.note("the budgets were read anew from the configuration".to_owned());
        Ok(())
    }
}

impl Office {
    async fn put(&self, in_force: &InForce) -> Result<(), NotChanged> {
        let accounts = in_force.accounts()?;
        let groups = accounts.memberships().clone();
        Ok(self.desk.set_budgets(accounts.budgets(self.measure), groups).await?)
    }

    async fn enact(&self, in_force: &mut InForce, next: InForce) -> Result<(), NotChanged> {
        self.put(&next).await?;
        if let Err(error) = self.write_down(next.run_time.clone()).await {
            // These were in force a moment ago, so that nothing speaks against them but what was granted since.
            self.put(in_force).await?;
            let file = self.kept.as_ref().map(|kept| kept.path().display().to_string()).unwrap_or_default();
            return Err(NotChanged::Unkept { file, why: error.to_string() });
        }
        *in_force = next;
        Ok(())
    }

    async fn write_down(&self, run_time: RunTime) -> std::io::Result<()> {
        let Some(kept) = self.kept.clone() else {
            return Ok(());
        };
        // A disk may take its time; only a runtime that ends cancels it.
        tokio::task::spawn_blocking(move || kept.write(&run_time))
            .await
            .unwrap_or_else(|error| Err(error.into()))
    }

    fn note(&self, message: String) {
        tracing::info!("{message}");
        self.events.write(unix_ms(), Kind::Budget, message, Facts::default());
    }
}
