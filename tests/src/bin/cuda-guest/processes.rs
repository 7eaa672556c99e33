//! What becomes of other processes: forked ones, and those that this one turns into or starts.

use std::ffi::{c_int, c_uint};
use std::fs;
use std::io::{PipeReader, Read as _, Write as _, pipe};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use gpulease_words::Bytes;

use crate::doors::{Driver, Failed, call};

/// What a program finds a driver by; all else is cleared.
const NEEDED: [&str; 2] = ["LD_LIBRARY_PATH", "GPULEASE_STANDIN_DIR"];

/// Forks, and tells what the child meets: the codes of some calls, and its descriptors.
pub(crate) fn fork(driver: &Driver, bytes: Bytes) -> Result<String, Failed> {
    let (reader, mut writer) = pipe().expect("a pipe can be made");
    // SAFETY: the child does what a worker process of a framework does, and ends without a return.
    match unsafe { libc::fork() } {
        -1 => panic!("it can't be forked"),
        0 => {
            let said = in_child(driver, bytes);
            let told = writer.write_all(said.as_bytes());
            // SAFETY: nothing of the parent is to be run in the child: no exit handlers, no destructors.
            unsafe { libc::_exit(i32::from(told.is_err())) }
        }
        child => {
            drop(writer);
            Ok(format!("{} ended={}", all_of(reader), wait_for(child)))
        }
    }
}

/// Forks a child that ends as a program does.
pub(crate) fn fork_and_exit() -> String {
    // SAFETY: the child runs exit handlers, which is what is looked at: those of a library may meet it in any program.
    match unsafe { libc::fork() } {
        -1 => panic!("it can't be forked"),
        // SAFETY: as above.
        0 => unsafe { libc::exit(0) },
        child => format!("ended={}", wait_for(child)),
    }
}

fn in_child(driver: &Driver, bytes: Bytes) -> String {
    let code = |result: Result<(), Failed>| result.err().map_or(0, |failed| failed.code);
    let (mut at, mut count) = (0_u64, 0);
    let size = usize::try_from(bytes.get()).expect("a size of this machine");
    let init = code(call!(driver, "cuInit" "" (c_uint)(0)));
    let alloc = code(call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, size)));
    let info = code(driver.info().map(drop));
    let devices = code(call!(driver, "cuDeviceGetCount" "" (*mut c_int)(&raw mut count)));
    let files = open_files().join(",");
    format!("init={init} alloc={alloc} info={info} devices={devices} files={files}")
}

/// What the descriptors are of, without the three that every program has.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let beyond = |name: &str| name.parse().is_ok_and(|number: u32| number > 2);
    let beyond = entries.filter(|entry| entry.file_name().to_str().is_some_and(beyond));
    let targets = beyond.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.map(|target| target.to_string_lossy().replace(char::is_whitespace, "_")).collect()
}

fn all_of(mut pipe: PipeReader) -> String {
    let mut said = String::new();
    pipe.read_to_string(&mut said).expect("the child writes text");
    said
}

fn wait_for(child: c_int) -> c_int {
    let mut status = 0;
    // SAFETY: it is our child, and the status is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Becomes this program again; returns only where that fails.
pub(crate) fn exec(environment: &str, door: &str) -> Failed {
    let mut command = Command::new("/proc/self/exe");
    command.arg(door);
    if environment == "cleared" {
        command.env_clear();
        command.envs(NEEDED.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
    }
    let error = command.exec();
    panic!("it can't become itself: {error}");
}

/// Has another process of this program do something, and tells what it said.
pub(crate) fn child(door: &str, commands: &[&str]) -> String {
    let commands = commands.join(" ");
    let output = Command::new("/proc/self/exe").arg(door).args(commands.split(';')).output();
    let output = output.expect("it can be started");
    let said = String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ");
    format!("{said}; {}", output.status)
}
