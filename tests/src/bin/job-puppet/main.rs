//! A job of the broker that does as it is told, one message at a time over the socket that is its
//! standard input. See `gpulease_tests::member`.
//!
//! Words of a job go through the client library; behind `wire` the protocol is gone through step
//! by step, so that the job can be killed, stopped or dishonest between any two.

mod asks;
mod job;
mod raw;

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use gpulease_tests::puppet::{receive, send};
use gpulease_words::{Bytes, Size};
use job::Job;
use raw::Raw;

/// A child that no test ended ends by itself after so many seconds.
const CHILD_SECONDS: u32 = 300;

/// What goes back: words, and a descriptor or none.
type Reply = Result<(String, Option<OwnedFd>), Box<dyn Error>>;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a process gets a thread");
    let (stdin, mut job, mut raw) = (io::stdin(), Job::default(), Raw::default());
    loop {
        let Ok((command, descriptor)) = receive(stdin.as_fd()) else { return ExitCode::FAILURE };
        if command.is_empty() {
            return ExitCode::SUCCESS;
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let reply = match words.as_slice() {
            ["fork"] => fork().map(|said| (said, None)),
            ["exec", program, arguments @ ..] => {
                // There is nobody to answer any more where it succeeds.
                Err(Command::new(program).args(arguments).exec().into())
            }
            ["exit"] => return ExitCode::SUCCESS,
            ["wire", words @ ..] => runtime.block_on(raw.obey(words, descriptor)),
            words => runtime.block_on(job.obey(words)).map(|said| (said, None)),
        };
        let sent = match reply {
            Ok((said, descriptor)) => {
                send(stdin.as_fd(), &format!("ok {said}"), descriptor.as_ref().map(AsFd::as_fd))
            }
            Err(error) => send(stdin.as_fd(), &format!("error {error}"), None),
        };
        if sent.is_err() {
            return ExitCode::FAILURE;
        }
    }
}

/// Forks a child that keeps what it inherited and does nothing; says its number.
fn fork() -> Result<String, Box<dyn Error>> {
    // SAFETY: the child calls only functions that are allowed after a fork of a process with threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: close, alarm and pause are async-signal-safe; the descriptor is standard input, which only the
        // parent answers on.
        unsafe {
            libc::close(0);
            libc::alarm(CHILD_SECONDS);
            loop {
                libc::pause();
            }
        }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(pid.to_string())
}

/// The job socket that the test named.
fn socket() -> Result<PathBuf, Box<dyn Error>> {
    Ok(std::env::var_os("GPULEASE_SOCKET").ok_or("GPULEASE_SOCKET is not set")?.into())
}

fn bytes(size: &str) -> Result<Bytes, Box<dyn Error>> {
    match size.parse()? {
        Size::Amount(bytes) => Ok(bytes),
        Size::Share(_) => Err("an amount, not a share".into()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let digits = text.as_bytes().chunks(2);
    let bytes = digits.map(|two| u8::from_str_radix(&String::from_utf8_lossy(two), 16));
    Ok(bytes.collect::<Result<_, _>>()?)
}
