//! A job as the director sees it: `gpulease run` around a training process, heard over two pipes.

use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc::UnboundedSender;

use super::cast::Part;
use super::{Command as Order, tether};
use crate::signals::Mask;

/// Longer than the demo lasts, so that no ask outlives it.
const PATIENCE: &str = "1h";

/// Something that a job told.
#[derive(Debug)]
pub(super) struct Told {
    /// The job.
    pub(super) who: String,
    /// What.
    pub(super) what: What,
}

/// What a job told.
#[derive(Debug)]
pub(super) enum What {
    /// A document of `gpulease run` or of the training process.
    Document(Value),
    /// A line that is no document.
    Line(String),
    /// It is over.
    Ended(ExitStatus),
}

/// What to start.
pub(super) struct Casting<'a> {
    pub(super) who: String,
    pub(super) part: Part,
    pub(super) device: u32,
    pub(super) seed: u64,
    pub(super) socket: &'a Path,
    pub(super) mask: Mask,
}

/// A running job. Dropping it kills all of its processes.
pub(super) struct Actor {
    input: ChildStdin,
    group: Pid,
}

impl Actor {
    /// Starts the job; what it tells goes to `tell`.
    ///
    /// # Errors
    /// Where the process cannot be started.
    pub(super) fn start(casting: &Casting<'_>, tell: &UnboundedSender<Told>) -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command.args(arguments(casting, program.into_os_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        tether(&mut command, casting.mask);
        let mut child = command.spawn()?;
        let gone = || std::io::Error::from_raw_os_error(libc::ESRCH);
        let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or_else(gone)?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let hear_output = output.map(|out| tokio::spawn(hear(out, casting.who.clone(), tell.clone())));
        let hear_errors = errors.map(|out| tokio::spawn(hear(out, casting.who.clone(), tell.clone())));
        let (who, tell) = (casting.who.clone(), tell.clone());
        tokio::spawn(async move {
            let ended = child.wait().await;
            // Both pipes are read to their end first, so that the end is the last thing told.
            for hearing in [hear_output, hear_errors].into_iter().flatten() {
                let _ = hearing.await;
            }
            if let Ok(status) = ended {
                let _ = tell.send(Told { who, what: What::Ended(status) });
            }
        });
        Ok(Self { input: input.ok_or_else(gone)?, group })
    }

    /// Tells the training process what to do. One that has ended hears nothing.
    pub(super) async fn order(&mut self, order: Order) {
        let line = format!("{}\n", order.word());
        let _ = self.input.write_all(line.as_bytes()).await;
        let _ = self.input.flush().await;
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The wrapper leads the group and its training process is in it; both may have ended.
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

fn arguments(casting: &Casting<'_>, program: OsString) -> Vec<OsString> {
    let Part { reserve, limit } = casting.part;
    let memory = format!("{}B..{}B", reserve.get(), limit.get());
    let device = casting.device.to_string();
    let seed = casting.seed.to_string();
    let words = ["run", "-m", &memory, "--device", &device, "-n", &casting.who, "--wait", PATIENCE];
    let mut arguments: Vec<OsString> = vec!["--json".into(), "--socket".into(), casting.socket.into()];
    arguments.extend(words.map(OsString::from));
    // The jobs use the client library.
    arguments.extend(["--no-preload", "--"].map(OsString::from));
    arguments.push(program);
    arguments.extend(["demo-job", "--seed", &seed, "--name", &casting.who].map(OsString::from));
    arguments
}

async fn hear(pipe: impl AsyncRead + Unpin, who: String, tell: UnboundedSender<Told>) {
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let what = match serde_json::from_str(&line) {
            Ok(document) => What::Document(document),
            Err(_) => What::Line(line),
        };
        if tell.send(Told { who: who.clone(), what }).is_err() {
            break;
        }
    }
}
