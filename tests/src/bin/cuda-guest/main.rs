//! A CUDA program that knows nothing of gpulease (but for [`library`]) and takes memory by every way that the driver has, through every door.
//!
//! `cuda-guest DOOR` obeys one message at a time over the socket that is its standard input, see
//! `gpulease_tests::puppet`; `cuda-guest DOOR COMMAND...` does the commands, prints an answer a line, and ends. The
//! same program runs on the stand-in driver and on a real one. [`doors::Door`] lists the doors.
//!
//! | command | does | answers |
//! |---|---|---|
//! | `init`, `context`, `reset` | `cuInit`; the primary context of device 0, made current; ends it | |
//! | `pid` | | its pid |
//! | `info`, `total` | `cuMemGetInfo`, `cuDeviceTotalMem` | `free=` and `total=` |
//! | `take WAY SIZE` | takes memory by a way of [`ways::WAYS`], writes it and reads it back | a number for it |
//! | `give NUMBER` | gives it back | |
//! | `check NUMBER` | reads what `take` wrote | |
//! | `launch COUNT` | launches a kernel that does nothing | nanoseconds for each |
//! | `not-of LIBRARY` | which of the functions in [`owners`] this door finds elsewhere | |
//! | `trial NAME` | something of [`trials`] | what it saw |
//! | `access ADDRESS` | | what the first device may do there, as `cuMemGetAccess` says |
//! | `crowd THREADS TIMES` | threads that allocate at once | |
//! | `at-once WAY WAY SIZE` | two threads that take memory at once, which stays taken | the code that each got |
//! | `fork SIZE` | what a forked child meets | codes, and the descriptors that it has |
//! | `fork-exit` | a forked child that ends with all its exit handlers | how it ended |
//! | `library take SIZE`, `library check` | the same by the gpulease library, in its lease | |
//! | `exec WHAT DOOR` | becomes this program again, its environment `kept` or `cleared` | |
//! | `child COMMAND...` | another process of this program through the same door | its answers |

mod arrays;
mod crowd;
mod doors;
mod graphs;
mod kernels;
mod library;
mod linear;
mod owners;
mod pools;
mod processes;
mod trials;
mod virtual_memory;
mod ways;

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use gpulease_tests::puppet::{receive, send};
use gpulease_words::{Bytes, Size};

use crate::doors::{Driver, Failed};
use crate::library::Library;
use crate::ways::{Take, Taken, WAYS};

/// What it has.
struct Guest {
    driver: Driver,
    taken: BTreeMap<u64, Taken>,
    last: u64,
    library: Option<Library>,
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let door = arguments.next().expect("a door");
    let driver = Driver::open(&door).unwrap_or_else(|error| panic!("through {door}: {error}"));
    let mut guest = Guest { driver, taken: BTreeMap::new(), last: 0, library: None };
    let commands: Vec<String> = arguments.collect();
    if commands.is_empty() {
        return guest.serve();
    }
    for command in commands {
        match guest.obey(&command) {
            Ok(said) => println!("ok {said}"),
            Err(failed) => println!("error {failed}"),
        }
    }
    ExitCode::SUCCESS
}

impl Guest {
    fn serve(&mut self) -> ExitCode {
        let socket = io::stdin();
        loop {
            let Ok((command, _)) = receive(socket.as_fd()) else { return ExitCode::FAILURE };
            if command.is_empty() {
                return ExitCode::SUCCESS;
            }
            let answer = match self.obey(&command) {
                Ok(said) => format!("ok {said}"),
                Err(failed) => format!("error {failed}"),
            };
            if send(socket.as_fd(), &answer, None).is_err() {
                return ExitCode::FAILURE;
            }
        }
    }

    fn obey(&mut self, command: &str) -> Result<String, Failed> {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["pid"] => Ok(std::process::id().to_string()),
            ["init"] => self.driver.init().map(|()| String::new()),
            ["context"] => self.driver.context().map(|()| String::new()),
            ["reset"] => self.driver.reset().map(|()| String::new()),
            ["info"] => self.driver.info().map(|(free, total)| format!("free={free} total={total}")),
            ["total"] => self.driver.total().map(|total| format!("total={total}")),
            ["take", way, size] => self.take(way, bytes(size)),
            ["give", number] => {
                let taken = self.taken.remove(&count(number)).expect("it was taken");
                taken.give(&self.driver).map(|()| String::new())
            }
            ["check", number] => {
                let taken = self.taken.get(&count(number)).expect("it was taken");
                taken.check(&self.driver).map(|()| String::new())
            }
            ["launch", times] => {
                kernels::launch(&self.driver, count(times)).map(|each| format!("each={each}"))
            }
            ["not-of", library] => Ok(owners::not_of(&self.driver, library)),
            ["trial", name] => trials::trial(&self.driver, name),
            ["access", at] => trials::access(&self.driver, count(at)).map(|flags| format!("access={flags}")),
            ["crowd", threads, times] => crowd::crowd(&self.driver, count(threads), count(times)),
            ["at-once", one, other, size] => {
                crowd::at_once(&self.driver, [way(one), way(other)], bytes(size))
            }
            ["fork", size] => processes::fork(&self.driver, bytes(size)),
            ["library", "take", size] => {
                let library = self.library.get_or_insert_with(Library::join);
                library.take(&self.driver, bytes(size)).map(|()| String::new())
            }
            ["library", "check"] => {
                let library = self.library.get_or_insert_with(Library::join);
                library.check(&self.driver).map(|()| String::new())
            }
            ["fork-exit"] => Ok(processes::fork_and_exit()),
            ["exec", environment, door] => Err(processes::exec(environment, door)),
            ["child", commands @ ..] => Ok(processes::child(self.driver.door_name(), commands)),
            _ => panic!("{command:?} is no command"),
        }
    }

    fn take(&mut self, name: &str, bytes: Bytes) -> Result<String, Failed> {
        let take = way(name);
        self.last += 1;
        let mark = u8::try_from(self.last % 251).expect("it is small");
        let taken = take(&self.driver, usize::try_from(bytes.get()).expect("a size of this machine"), mark)?;
        taken.check(&self.driver)?;
        self.taken.insert(self.last, taken);
        Ok(self.last.to_string())
    }
}

fn way(name: &str) -> Take {
    let (_, take) = WAYS.iter().find(|way| way.0 == name).unwrap_or_else(|| panic!("there is no way {name}"));
    *take
}

fn bytes(text: &str) -> Bytes {
    match text.parse() {
        Ok(Size::Amount(bytes)) => bytes,
        Ok(Size::Share(_)) | Err(_) => panic!("{text:?} is no amount"),
    }
}

fn count(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}
