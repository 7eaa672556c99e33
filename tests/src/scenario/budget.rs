//! What a scenario sets up before its first event: devices, policy, budgets, people.

use std::collections::BTreeMap;

use gpulease_arbiter::{Arbiter, Budget, Budgets, DeviceSpec, OnOverdue, Pinning, Policy};
use gpulease_words::{Bytes, DeviceId, Uid};

use super::line::Line;

/// The first uid given to a user whose number nobody wrote.
const FIRST_UID: u32 = 1000;

/// Devices, policy, budgets and people.
#[derive(Default)]
pub(super) struct Setting {
    policy: Policy,
    budgets: Budgets,
    devices: Vec<DeviceSpec>,
    people: BTreeMap<String, Person>,
}

/// A user as the scenario names him.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) uid: Uid,
    pub(super) group: Option<String>,
}

impl Setting {
    /// Takes one of the commands that stand before the first event; `false`: it is none of them.
    pub(super) fn take(&mut self, verb: &str, line: &mut Line) -> Result<Taken, String> {
        match verb {
            "device" => self.device(line)?,
            "policy" => self.bounds(line)?,
            "host" => self.budgets.host = budget(line)?,
            "group" => {
                let name = line.word("a group")?;
                self.budgets.groups.insert(name, budget(line)?);
            }
            "user" => self.user(line)?,
            "job" => {
                let pattern = line.word("a job's name or pattern")?;
                self.budgets.jobs.push((pattern, budget(line)?));
            }
            _ => return Ok(Taken::NotMine),
        }
        Ok(Taken::Mine)
    }

    fn device(&mut self, line: &mut Line) -> Result<(), String> {
        let id = DeviceId::new(line.id("a device")?);
        let capacity = line.size("its capacity")?;
        let overhead_estimate = line.size_after("overhead")?.unwrap_or(Bytes::ZERO);
        self.devices.push(DeviceSpec { id, capacity, overhead_estimate });
        Ok(())
    }

    fn bounds(&mut self, line: &mut Line) -> Result<(), String> {
        let policy = &mut self.policy;
        for (key, span) in [
            ("max-wait", &mut policy.max_wait),
            ("adrift-grace", &mut policy.adrift_grace),
            ("unattended-grace", &mut policy.unattended_grace),
            ("min-residency", &mut policy.min_residency),
            ("recall-deadline", &mut policy.recall_deadline),
            ("drain-deadline", &mut policy.drain_deadline),
        ] {
            *span = line.span_after(key)?.unwrap_or(*span);
        }
        for (key, bytes) in [
            ("arena", &mut policy.arena),
            ("headroom", &mut policy.headroom),
            ("swap-rate", &mut policy.swap_bytes_per_second),
        ] {
            *bytes = line.size_after(key)?.unwrap_or(*bytes);
        }
        policy.pinned_max = line.size_after("pinned-max")?.or(policy.pinned_max);
        for (key, bound) in [
            ("sessions-per-user", &mut policy.sessions_per_uid),
            ("asks-per-user", &mut policy.asks_per_uid),
            ("leases-per-user", &mut policy.leases_per_uid),
            ("segments-per-lease", &mut policy.segments_per_lease),
            ("members-per-lease", &mut policy.members_per_lease),
        ] {
            *bound = line.id_after(key)?.unwrap_or(*bound);
        }
        Ok(())
    }

    fn user(&mut self, line: &mut Line) -> Result<(), String> {
        let name = line.word("a user")?;
        let uid = line.id_after("uid")?.map(Uid::new);
        let group = line.after("group")?;
        let person = self.person(&name);
        person.group = group;
        person.uid = uid.unwrap_or(person.uid);
        let (uid, group) = (person.uid, person.group.clone());
        let budget = budget(line)?;
        if let Some(group) = group.filter(|_| !budget.guarantee.is_zero()) {
            self.budgets.memberships.insert(uid, group);
        }
        self.budgets.users.insert(uid, budget);
        Ok(())
    }

    /// The budgets as they are said by now.
    pub(super) fn budgets(&self) -> Budgets {
        self.budgets.clone()
    }

    /// The user of that name, a new one where nobody spoke of him yet.
    pub(super) fn person(&mut self, name: &str) -> &mut Person {
        let number = u32::try_from(self.people.len()).expect("a scenario has few users");
        let new = Person { uid: Uid::new(FIRST_UID + number), group: None };
        self.people.entry(name.to_owned()).or_insert(new)
    }

    /// The name of a user.
    pub(super) fn name_of(&self, uid: Uid) -> String {
        let named = self.people.iter().find(|(_, person)| person.uid == uid);
        named.map_or_else(|| format!("user {uid}"), |(name, _)| name.clone())
    }

    /// The arbiter of this setting.
    pub(super) fn arbiter(&self) -> Arbiter {
        Arbiter::new(self.policy.clone(), self.budgets.clone(), &self.devices)
    }
}

/// Whether a command was one of the setting's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Mine,
    NotMine,
}

fn budget(line: &mut Line) -> Result<Budget, String> {
    let usual = Budget::default();
    let terminate = line.span_after("terminate-after")?;
    Ok(Budget {
        limit: line.size_after("limit")?,
        weight: line.id_after("weight")?.unwrap_or(usual.weight),
        leases_max: line.id_after("leases")?,
        guarantee: line.size_after("guarantee")?.unwrap_or(usual.guarantee),
        max_wait: line.span_after("max-wait")?,
        pinning: if line.takes("not-suspendable") { Pinning::Pinned } else { usual.pinning },
        on_overdue: terminate.map(|grace| OnOverdue::Terminate { grace }),
    })
}
