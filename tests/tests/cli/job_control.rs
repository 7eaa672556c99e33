//! A terminal between the person and the program: keys, stops and sizes reach the program as if
//! `gpulease run` were not there.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;

use super::*;

/// A pseudo terminal with a program in its foreground, as a shell starts it.
struct Terminal {
    keys: File,
    screen: mpsc::Receiver<String>,
    shown: String,
    child: Child,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let (master, slave) = pair();
        let stdio = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio()).env("TERM", "xterm");
        // SAFETY: both calls are async-signal-safe system calls on the child's own descriptor 0.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("the program starts");
        let mut reader = master.try_clone().expect("a descriptor");
        let (tell, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if tell.send(String::from_utf8_lossy(&bytes[..n]).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self { keys: master, screen, shown: String::new(), child }
    }

    /// Waits until this text has appeared since the last call.
    #[track_caller]
    fn see(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            match self.screen.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(more) => self.shown.push_str(&more),
                Err(_) => panic!("{text:?} is never shown, but {:?}", self.shown),
            }
        }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let size = libc::winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both numbers are valid for writing, null for name and settings is allowed, and the size is initialised.
    let made = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &raw const size as *mut _,
        )
    };
    assert_eq!(made, 0, "a pseudo terminal can be made");
    // SAFETY: the call succeeded, so both are open and nobody else's.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}

fn run(daemon: &Daemon, arguments: &[&str]) -> Terminal {
    Terminal::start(command(&daemon.socket()).args(arguments))
}

#[test]
fn ctrl_c_reaches_the_program_once_and_its_answer_counts() {
    let daemon = Daemon::on_host("64MiB");
    let script = "n=0; trap 'n=$((n+1)); echo caught $n' INT; echo ready; while ! read line; do :; done; echo total $n; exit 9";
    let mut terminal = run(&daemon, &["run", "-m", "8MiB", "--", "sh", "-c", script]);
    terminal.see("ready");
    terminal.type_keys("\u{3}");
    terminal.see("caught 1");
    terminal.type_keys("\u{3}");
    terminal.see("caught 2");
    terminal.type_keys("enough\n");
    terminal.see("total 2");
    assert_eq!(wait_for(&mut terminal.child, PATIENCE).map(code), Some(9));
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn ctrl_c_alone_ends_program_and_wrapper() {
    let daemon = Daemon::on_host("64MiB");
    let mut terminal = run(&daemon, &["run", "-m", "8MiB", "--", "sh", "-c", "echo ready; exec sleep 100"]);
    terminal.see("ready");
    terminal.type_keys("\u{3}");
    assert_eq!(wait_for(&mut terminal.child, PATIENCE).map(code), Some(130));
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn the_program_has_the_terminal_its_size_and_its_input() {
    let daemon = Daemon::on_host("64MiB");
    let mut terminal =
        run(&daemon, &["run", "-m", "8MiB", "--", "sh", "-c", "stty size; read line; echo got $line"]);
    terminal.see("33 111");
    terminal.type_keys("hello\n");
    terminal.see("got hello");
    assert_eq!(wait_for(&mut terminal.child, PATIENCE).map(code), Some(0));
    daemon.stop();
}

#[test]
fn ctrl_z_stops_both_and_a_shell_takes_them_up_again() {
    let daemon = Daemon::on_host("64MiB");
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "shell> ").env("GPULEASE_SOCKET", daemon.socket());
    let mut terminal = Terminal::start(&mut shell);
    terminal.see("shell> ");
    let script = format!(
        "'{}' run -q -m 8MiB -- sh -c 'echo rea''dy; read line; echo got $line'",
        programs::gpulease().display()
    );
    terminal.type_keys(&format!("{script}\n"));
    terminal.see("ready");
    terminal.type_keys("\u{1a}");
    terminal.see("Stopped");
    terminal.see("shell> ");
    assert_eq!(count(&state(&daemon), "leases"), 1, "a stopped job keeps its lease");
    terminal.type_keys("fg\n");
    terminal.type_keys("again\n");
    terminal.see("got again");
    terminal.see("shell> ");
    terminal.type_keys("exit\n");
    assert_eq!(wait_for(&mut terminal.child, PATIENCE).map(code), Some(0));
    until_empty(&daemon);
    daemon.stop();
}

#[test]
fn a_wait_is_one_line_that_is_written_over() {
    let daemon = Daemon::on_host("64MiB");
    let mut held = Running::start(&daemon, ["hold", "-m", "48MiB", "-n", "holder"]);
    held.hear("gives it back");
    let mut terminal = run(&daemon, &["run", "-m", "32MiB", "--", "sh", "-c", "echo started"]);
    terminal.see("waits as number 1: 16 MiB short");
    // It is drawn again as time passes.
    terminal.see("\r");
    terminal.see("waits as number 1");
    assert!(!terminal.shown.contains('\n'), "{:?}", terminal.shown);
    held.signal(Signal::INT);
    held.end();
    terminal.see("\r\u{1b}[K");
    terminal.see("started");
    assert_eq!(wait_for(&mut terminal.child, PATIENCE).map(code), Some(0));
    daemon.stop();
}

#[test]
fn a_page_on_a_terminal_is_coloured_unless_that_is_unwanted() {
    let daemon = Daemon::on_host("64MiB");
    let mut terminal = run(&daemon, &["status"]);
    terminal.see("\u{1b}[1mDevices (1)");
    wait_for(&mut terminal.child, PATIENCE);
    let mut plain = Terminal::start(command(&daemon.socket()).arg("status").env("NO_COLOR", "1"));
    plain.see("Leases (0)");
    assert!(wait_for(&mut plain.child, PATIENCE).is_some_and(|status| status.success()));
    let rest: String = plain.screen.try_iter().collect();
    assert!(!plain.shown.contains('\u{1b}') && !rest.contains('\u{1b}'));
    assert!(plain.keys.as_raw_fd() >= 0);
    daemon.stop();
}
