//! Who a process is, for people.

use gpulease_words::{Pid, Uid};

use crate::kernel;

/// The most letters of a command that are kept; the kernel's own limit is 15.
const COMMAND_MAX: usize = 32;

/// Its real user, where the kernel tells.
#[must_use]
pub(crate) fn user(pid: Pid) -> Option<Uid> {
    let status = kernel::told(pid, "status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok().map(Uid::new)
}

/// Its command, without anything that a terminal would obey; empty where the kernel does not tell.
#[must_use]
pub(crate) fn command(pid: Pid) -> String {
    printable(&kernel::told(pid, "comm").unwrap_or_default())
}

/// "pid 4711 (python3 of user 1000)", as far as the kernel tells.
#[must_use]
pub(crate) fn describe(pid: Pid) -> String {
    let who = match (command(pid), user(pid)) {
        (command, Some(uid)) if !command.is_empty() => format!(" ({command} of user {uid})"),
        (_, Some(uid)) => format!(" (of user {uid})"),
        (command, None) if !command.is_empty() => format!(" ({command})"),
        (_, None) => String::new(),
    };
    format!("pid {pid}{who}")
}

fn printable(text: &str) -> String {
    text.trim_end().chars().filter(|c| !c.is_control()).take(COMMAND_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let me = Pid::new(std::process::id());
        assert_eq!(user(me), Some(Uid::new(rustix::process::getuid().as_raw())));
        assert!(!command(me).is_empty());
        assert!(describe(me).starts_with(&format!("pid {me} (")));
    }

    #[test]
    fn a_process_that_is_gone_has_a_number_only() {
        let gone = Pid::new(u32::MAX);
        assert_eq!((user(gone), command(gone).as_str()), (None, ""));
        assert_eq!(describe(gone), "pid 4294967295");
    }

    #[test]
    fn a_command_cannot_speak_to_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\n"), "a[2Jbc");
    }
}
