//! The log, on standard error.
//!
//! A reader that reads no more must not stop the broker, so lines go through a thread of their own
//! and are dropped, and counted, where they do not fit any more.

use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{BadSetting, Log, LogFormat};

/// Lines that may wait to be written.
const LINES_WAITING: usize = 4_096;

/// How long the end of the process waits for a reader of its log.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Starts the log of this process.
///
/// # Errors
/// When its level makes no sense, or the kernel gives no thread.
pub(super) fn start(log: &Log) -> Result<Lines, super::StartError> {
    let level = log.level.as_deref().unwrap_or("info");
    sound(level)?;
    let filter = EnvFilter::try_new(level).map_err(|error| {
        BadSetting(format!("{level:?} is no log level: {error}; write error, warn, info or debug"))
    })?;
    let lines = Lines::start(io::stderr())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines.clone());
    match log.format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(lines)
}

/// Whether each directive ends in a level. The filter alone takes a misspelt level for the name of a target, and what it does
/// not know for nothing.
///
/// # Errors
/// The directive that does not, and what to write.
pub(super) fn sound(level: &str) -> Result<(), BadSetting> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in level.split(',').map(str::trim) {
        let said = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if !LEVELS.iter().any(|level| said.eq_ignore_ascii_case(level)) {
            return Err(BadSetting(format!(
                "{directive:?} of the log's {level:?} is no level; write error, warn, info or debug, or TARGET=LEVEL"
            )));
        }
    }
    Ok(())
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Everything before it is written.
    Mark(SyncSender<()>),
}

/// Where lines are put that are to be written.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    waiting: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (waiting, lines) = sync_channel(LINES_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || write(out, &lines, &counted))?;
        Ok(Self { waiting, dropped })
    }

    /// Waits until what was said is written, for a moment.
    pub(super) fn flush(&self) {
        let (reached, mark) = sync_channel(1);
        if self.waiting.try_send(Item::Mark(reached)).is_ok() {
            // Then the reader does not read, and the end does not wait for him.
            let _ = mark.recv_timeout(FLUSH_MAX);
        }
    }
}

fn write(mut out: impl Write, lines: &Receiver<Item>, dropped: &AtomicU64) {
    for item in lines {
        match item {
            // There is nowhere to say that the log cannot be written.
            Item::Line(line) => drop(out.write_all(&line)),
            // Whoever waited may have given up.
            Item::Mark(reached) => {
                let _ = reached.try_send(());
            }
        }
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            drop(writeln!(out, "{missing} lines of the log were not read in time and are left out here"));
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { bytes: Vec::new(), lines: self }
    }
}

/// One line; it is put when it is whole.
pub(super) struct Line<'a> {
    bytes: Vec<u8>,
    lines: &'a Lines,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if self.lines.waiting.try_send(Item::Line(std::mem::take(&mut self.bytes))).is_err() {
            self.lines.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_level_that_is_none_is_refused() {
        for good in ["info", "INFO", "info,gpulease::arbiter=debug", "off, h2=trace"] {
            assert_eq!(sound(good), Ok(()), "{good}");
        }
        for bad in ["", "verbos", "nonsense=zzz", "info,x=", "info,,debug"] {
            assert!(sound(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_log_that_is_not_read_stops_nobody_and_says_what_is_missing() {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let lines = Lines::start(near).expect("a thread");
        let count = LINES_WAITING * 2;
        for i in 0..count {
            let mut line = lines.make_writer();
            writeln!(line, "line {i} {}", "x".repeat(1_000)).expect("never fails");
        }
        drop(lines);
        far.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let mut text = String::new();
        far.read_to_string(&mut text).expect("the log ends");
        let written = text.lines().filter(|line| line.starts_with("line ")).count();
        let missing: usize = text
            .lines()
            .filter_map(|l| l.split_once(" lines of"))
            .map(|(n, _)| n.parse::<usize>().expect("a number"))
            .sum();
        assert!(missing > 0 && written + missing == count, "{written} and {missing} of {count}");
    }
}
