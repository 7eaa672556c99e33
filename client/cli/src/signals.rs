//! Signals as values, so that they can be passed on, or end a wait.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use tokio::sync::mpsc;

/// The signals that people and batch systems send to a job. Those of job control (TSTP, CONT,
/// WINCH and so on) are left alone: the terminal sends them to the child as well.
const TAKEN: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGXCPU,
    libc::SIGPWR,
];

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    /// Its number.
    pub(crate) number: i32,
    /// Who sent it.
    pub(crate) sender: Sender,
}

/// Who sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The kernel, as for Ctrl-C: every process of the foreground group has it, so the child has, too.
    Kernel,
    /// A process, which meant this one alone.
    Process,
}

impl Caught {
    /// Whether it asks a program that waits to end. The others are for a job that runs.
    pub(crate) const fn ends_a_wait(self) -> bool {
        matches!(self.number, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGXCPU)
    }
}

/// The signals of this process, from now on.
pub(crate) struct Signals {
    came: mpsc::UnboundedReceiver<Caught>,
    before: Mask,
}

/// A set of blocked signals.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    /// Blocks exactly these signals in the calling thread. Safe between fork and exec.
    pub(crate) fn set(&self) -> io::Result<()> {
        // SAFETY: the set is initialised, and null for the old mask is allowed.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Signals {
    /// Takes the signals over. Called before any other thread exists, so that all threads have
    /// them blocked. Those that are ignored (as under `nohup`) stay ignored.
    ///
    /// # Errors
    /// Where the kernel or the thread refuses.
    pub(crate) fn take() -> io::Result<Self> {
        let set = set_of(TAKEN.into_iter().filter(|number| !is_ignored(*number)));
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `set` is initialised and `before` is valid for writing.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, before.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the call above succeeded, so it wrote the old mask.
        let before = Mask(unsafe { before.assume_init() });
        let (tell, came) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("signals".into()).spawn(move || listen(set, &tell))?;
        Ok(Self { came, before })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Caught {
        match self.came.recv().await {
            Some(caught) => caught,
            // The thread ends with the process; without it no signal comes.
            None => std::future::pending().await,
        }
    }

    /// What was blocked before, which is what a child shall have.
    pub(crate) const fn before(&self) -> Mask {
        self.before
    }
}

fn set_of(numbers: impl Iterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for number in numbers {
        // SAFETY: the set is initialised and the number one of TAKEN.
        unsafe { libc::sigaddset(&raw mut set, number) };
    }
    set
}

fn is_ignored(number: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: null for the new action only asks; `action` is valid for writing.
    let asked = unsafe { libc::sigaction(number, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it wrote the action.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn listen(set: libc::sigset_t, tell: &mpsc::UnboundedSender<Caught>) {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: the set is initialised and `info` is valid for writing.
        let number = unsafe { libc::sigwaitinfo(&raw const set, info.as_mut_ptr()) };
        if number <= 0 {
            // Interrupted by a signal outside the set, or by a debugger.
            continue;
        }
        // SAFETY: the call returned a signal, so it wrote the information.
        let code = unsafe { info.assume_init() }.si_code;
        let sender = if code > 0 { Sender::Kernel } else { Sender::Process };
        if tell.send(Caught { number, sender }).is_err() {
            return;
        }
    }
}

/// The name of a signal, for people.
pub(crate) fn name(number: i32) -> String {
    let known = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}
