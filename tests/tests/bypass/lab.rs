//! A card, a broker that owns it, and programs in leases of it or outside of all.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::{Ledger, lease};
use gpulease_tests::proc::eventually;
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, mib};

/// The ways into the driver; see `cuda-guest`.
pub(crate) const DOORS: [&str; 11] = [
    "linked",
    "linked-deep",
    "handle",
    "handle-deep",
    "default",
    "from-deep",
    "next",
    "address-1",
    "address-2",
    "address-thread",
    "runtime",
];

/// The ways to take memory; see `cuda-guest`.
pub(crate) const WAYS: [&str; 24] = [
    "alloc",
    "pitch",
    "managed",
    "create",
    "create-exportable",
    "create-many",
    "async",
    "default-pool",
    "own-pool",
    "export-pool",
    "array",
    "array-3d",
    "mipmap",
    "graph-node",
    "graph-any-node",
    "captured",
    "ipc",
    "variable",
    "variable-options",
    "variable-file",
    "library-variable",
    "library-file",
    "heap",
    "printed",
];

/// Of these a card takes the memory when code first uses it; the stand-in takes it at once.
pub(crate) const LAZY: [&str; 7] =
    ["variable", "variable-options", "variable-file", "library-variable", "library-file", "heap", "printed"];

/// One more, which drivers may have given up: `cuMemAlloc` as it was when addresses had 32 bits. What it gives can't be
/// given back.
pub(crate) const OLD_FORM: &str = "old-form";

/// How far the driver's own rounding may be off: a step of 2 MiB, and what it keeps beside an allocation.
pub(crate) const STEP: Bytes = mib(32);

/// A card that somebody looks at from outside.
pub(crate) struct Card {
    pub(crate) gpu: Gpu,
    watcher: Puppet,
}

impl Card {
    /// A stand-in of one device and, where there is one, the real card.
    pub(crate) fn all(test: &str) -> Vec<Self> {
        let standin = || Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]));
        let cards = Gpu::all(test).into_iter().map(|gpu| match gpu {
            Gpu::Standin(_) => standin(),
            Gpu::Real(turn) => Gpu::Real(turn),
        });
        cards.map(Self::of).collect()
    }

    pub(crate) fn of(gpu: Gpu) -> Self {
        Self { watcher: Puppet::start(&gpu), gpu }
    }

    /// Whether a way takes its memory at once on this card. A driver has some for managed memory from the first on, and
    /// keeps it.
    pub(crate) fn takes_at_once(&self, way: &str) -> bool {
        matches!(self.gpu, Gpu::Standin(_)) || !(LAZY.contains(&way) || way == "managed")
    }

    /// What is used of the card, whoever uses it.
    pub(crate) fn used(&self) -> Bytes {
        Bytes::new(self.watcher.nvml(0)["used"])
    }

    /// Waits until no more than this is used, give or take a step: drivers give memory back in their own time.
    #[track_caller]
    pub(crate) fn wait_until_used(&self, wanted: Bytes) {
        eventually("what was taken is given back", || match self.used() {
            used if used <= wanted.saturating_add(STEP) => Ok(()),
            used => Err(format!("{used} used, and {wanted} before")),
        });
    }

    /// A program without a lease, with its context made.
    pub(crate) fn bare(&self, door: &str) -> Puppet {
        let guest = Puppet::spawn("cuda-guest", self.gpu.environment(), &[], |command| command.arg(door));
        guest.must("init");
        guest.must("context");
        guest
    }
}

/// A card with a broker that owns it.
pub(crate) struct Lab {
    pub(crate) card: Card,
    pub(crate) daemon: Daemon,
    pub(crate) ledger: Ledger,
}

impl Lab {
    pub(crate) fn all(test: &str) -> Vec<Self> {
        Card::all(test).into_iter().map(|card| Self::on(card, &[])).collect()
    }

    /// The broker gets these arguments beside the device.
    pub(crate) fn on(card: Card, arguments: &[&str]) -> Self {
        Self::configured(card, arguments, "")
    }

    /// The same, with this configuration.
    pub(crate) fn configured(card: Card, arguments: &[&str], configuration: &str) -> Self {
        let mut command = Command::new(programs::gpuleased());
        command.args(["--device", "cuda:0"]).args(arguments).envs(card.gpu.environment());
        let daemon = Daemon::start_configured(command, configuration);
        let ledger = Ledger::of(&daemon);
        Self { card, daemon, ledger }
    }

    /// A program under `gpulease run` with this budget, its context made.
    pub(crate) fn leased(&self, budget: &str, door: &str) -> Puppet {
        let guest = self.started(budget, door);
        guest.must("init");
        guest.must("context");
        guest
    }

    /// The same before its first call of the driver.
    pub(crate) fn started(&self, budget: &str, door: &str) -> Puppet {
        self.started_with(&["-m", budget, "-n", "guest"], door)
    }

    /// The same with these options of `run`.
    pub(crate) fn started_with(&self, options: &[&str], door: &str) -> Puppet {
        let (gpulease, socket) = (programs::gpulease(), self.daemon.socket());
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let (gpulease, socket) = (text(&gpulease), text(&socket));
        let words = [&[&gpulease, "--socket", &socket, "run", "-q"], options, &["--"]].concat();
        Puppet::spawn("cuda-guest", self.card.gpu.environment(), &words, |command| command.arg(door))
    }

    /// Runs a program under `gpulease run` to its end, with these commands.
    pub(crate) fn run(&self, budget: &str, commands: &[&str]) -> Output {
        self.run_with(&["-m", budget], commands)
    }

    /// The same with these options of `run`.
    pub(crate) fn run_with(&self, options: &[&str], commands: &[&str]) -> Output {
        self.run_behind(&[], options, commands)
    }

    /// The same, started by another program, whose words these are.
    pub(crate) fn run_behind(&self, starter: &[&str], options: &[&str], commands: &[&str]) -> Output {
        let mut command = Command::new(programs::gpulease());
        command.arg("--socket").arg(self.daemon.socket()).envs(self.card.gpu.environment());
        command
            .arg("run")
            .args(options)
            .arg("--")
            .args(starter)
            .arg(programs::program("cuda-guest"))
            .arg("handle")
            .args(commands);
        command.stdin(Stdio::null()).output().expect("it can be run")
    }

    /// Makes calls of the stand-in fail or take long.
    pub(crate) fn faults(&self, rules: &str) {
        match &self.card.gpu {
            Gpu::Standin(standin) => standin.faults(rules),
            Gpu::Real(_) => panic!("a real driver fails when it likes"),
        }
    }

    /// Waits until the broker has seen what the program's context takes, in the place of an estimate.
    pub(crate) fn wait_until_measured(&self) {
        self.ledger.wait("the context measured", |state| {
            lease(state, "guest").members.iter().any(|member| member.overhead_measured).then_some(())
        });
    }

    /// What the broker's books say is in use of the card, by leases or beside them.
    pub(crate) fn on_books(&self) -> Bytes {
        let books = self.ledger.memory();
        let beside = books.overhead_bytes + books.off_book_bytes.unwrap_or(0);
        Bytes::new(books.held_bytes + books.draining_bytes + books.quarantined_bytes + beside)
    }

    /// Waits until all that is used of the card is in the books.
    #[track_caller]
    pub(crate) fn wait_until_booked(&self) {
        eventually("what is used is in the books", || match (self.card.used(), self.on_books()) {
            (used, booked) if booked.saturating_add(STEP) >= used => Ok(()),
            (used, booked) => Err(format!("{used} used, and {booked} in the books")),
        });
    }

    /// What the ledger says that the program has: held memory, and its own of the card.
    pub(crate) fn charged(&self) -> Bytes {
        let state = self.ledger.now();
        let lease = lease(&state, "guest");
        Bytes::new(lease.held_bytes + lease.overhead_bytes + lease.draining_bytes)
    }
}

/// The code of a call that was refused, or what it answered.
pub(crate) fn code(answer: Result<String, String>) -> Result<String, u32> {
    answer.map_err(|words| {
        let code = words.split_whitespace().find_map(|word| word.strip_prefix("code="));
        code.and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no code in {words:?}"))
    })
}
