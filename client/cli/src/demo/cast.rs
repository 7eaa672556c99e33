//! Who plays in the demo, and how large their parts are.

use gpulease_words::{Bytes, mib};

/// The least that the parts of a device are worth playing with.
pub(super) const LEAST_PART: Bytes = mib(8);

/// The largest number of processes that hold leases on the first device at one time.
const TOGETHER: u64 = 3;

/// The jobs of the first device. Each has a job account of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Trains from the start and ends when asked to.
    Anna,
    /// Grows up to its limit, and asks for more.
    Bert,
    /// Is killed.
    Carl,
    /// Waits, and gets what Carl had.
    Dora,
    /// Waits, and gets what Anna had.
    Emil,
    /// Asks for more than its budget.
    Greta,
}

impl Role {
    /// Those that train.
    pub(super) const TRAINING: [Self; 5] = [Self::Anna, Self::Bert, Self::Carl, Self::Dora, Self::Emil];

    /// Its name, which is its job account's, too.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Anna => "anna",
            Self::Bert => "bert",
            Self::Carl => "carl",
            Self::Dora => "dora",
            Self::Emil => "emil",
            Self::Greta => "greta",
        }
    }
}

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Set aside from the grant on.
    pub(super) reserve: Bytes,
    /// The most it may hold.
    pub(super) limit: Bytes,
}

/// The sizes of all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    unit: Bytes,
    overhead: Bytes,
}

impl Cast {
    /// Parts for a device of this capacity where each process costs so much: in eighths of what the
    /// processes leave, Anna's, Bert's and Carl's parts fill it when Bert has grown.
    ///
    /// ```text
    ///           eighths    0   1   2   3   4   5   6   7   8
    /// first                |  Anna     |  Bert ..  |  Carl |
    /// then Carl is killed  |  Anna     |  Bert     |  Dora |
    /// then Anna ends       |  Emil     |  Bert     |  Dora |
    /// ```
    ///
    /// # Errors
    /// A sentence, where that leaves too little.
    pub(super) fn of(capacity: Bytes, overhead: Bytes) -> Result<Self, String> {
        let processes = overhead.checked_mul(TOGETHER).unwrap_or(Bytes::MAX);
        let unit = Bytes::new(capacity.saturating_sub(processes).get() / 8).round_down();
        // Processes turn out to take less than is set aside for them, and that must not make room for who shall wait.
        if unit < LEAST_PART || unit < overhead {
            let least =
                LEAST_PART.max(overhead).checked_mul(8).and_then(|parts| parts.checked_add(processes));
            let least = least.unwrap_or(Bytes::MAX);
            return Err(format!(
                "{capacity} is too little for the demo, which needs {least} on its first device; free a quarter of \
                 the device at least four times as large, or name another with --device"
            ));
        }
        Ok(Self { unit, overhead })
    }

    /// What this job asks for.
    pub(super) fn part(self, role: Role) -> Part {
        let eighths = |n: u64| Bytes::new(self.unit.get() * n);
        let fixed = |n: u64| Part { reserve: eighths(n), limit: eighths(n) };
        match role {
            Role::Anna | Role::Emil => fixed(3),
            Role::Bert => Part { reserve: eighths(2), limit: eighths(3) },
            Role::Carl | Role::Dora => fixed(2),
            Role::Greta => fixed(4),
        }
    }

    /// The most that Greta's account may be charged: half of what she asks for, and her process.
    pub(super) fn budget_of_greta(self) -> Bytes {
        Bytes::new(self.unit.get() * 2).saturating_add(self.overhead)
    }

    /// What each of the others' accounts may be charged: its part and two processes.
    pub(super) fn budget_of(self, role: Role) -> Bytes {
        self.part(role).limit.saturating_add(self.overhead).saturating_add(self.overhead)
    }

    /// What all that train ask for at first.
    pub(super) fn wanted(self) -> Bytes {
        Role::TRAINING.into_iter().map(|role| self.part(role).reserve).sum()
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::gib;

    use super::*;

    #[test]
    fn the_parts_fill_the_device_and_the_waiting_do_not_fit() {
        for (capacity, overhead) in [(gib(8), Bytes::ZERO), (mib(64), Bytes::ZERO), (gib(8), mib(640))] {
            let cast = Cast::of(capacity, overhead).expect("room enough");
            let limit = |role| cast.part(role).limit;
            let held: Bytes = [Role::Anna, Role::Bert, Role::Carl].into_iter().map(limit).sum();
            let processes = overhead.checked_mul(3).expect("small");
            let free = capacity.saturating_sub(held).saturating_sub(processes);
            assert!(held.saturating_add(processes) <= capacity);
            assert!(free < limit(Role::Dora), "{capacity}: Dora must wait, but {free} are free");
            assert!(
                free.saturating_add(limit(Role::Carl)) < limit(Role::Emil).saturating_add(limit(Role::Dora))
            );
            assert!(
                cast.wanted() > capacity.saturating_sub(processes),
                "together they want more than there is"
            );
            assert!(cast.budget_of_greta() < cast.part(Role::Greta).reserve.saturating_add(overhead));
        }
    }

    #[test]
    fn too_little_is_said_in_numbers() {
        assert!(Cast::of(mib(64), Bytes::ZERO).is_ok());
        assert!(Cast::of(mib(62), Bytes::ZERO).is_err_and(|why| why.contains("64 MiB")));
        assert!(Cast::of(gib(2), mib(640)).is_err());
    }
}
