//! What is printed: answers on standard output, everything else on standard error.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::arguments::Common;
use crate::exit::{Exit, Failure};
use crate::state::SCHEMA_VERSION;

/// Prints an answer.
///
/// # Errors
/// Where it cannot be written. A reader that has gone away, as in `gpulease | head`, ends the
/// program quietly as SIGPIPE would.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(Exit::Signal(libc::SIGPIPE), String::new()),
        _ => Failure::new(Exit::Failed, format!("cannot write the answer: {error}")),
    })
}

/// Prints an answer as one indented document.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_document(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).expect("our documents have only text keys");
    print(&(text + "\n"))
}

/// Prints an answer as one line, for streams of them.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_line(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(document).expect("our documents have only text keys");
    print(&(text + "\n"))
}

/// Says something to the person, on standard error.
pub(crate) fn say(text: &str) {
    // There is nobody left to tell where standard error is gone.
    let _ = writeln!(io::stderr().lock(), "gpulease: {text}");
}

/// Says a document to the program that called us, on standard error as one line.
pub(crate) fn say_document(document: &impl Serialize) {
    let text = serde_json::to_string(document).expect("our documents have only text keys");
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[derive(Serialize)]
struct FailureDocument<'a> {
    schema_version: u32,
    error: FailureFields<'a>,
}

#[derive(Serialize)]
struct FailureFields<'a> {
    exit_code: u8,
    reason: Option<&'a str>,
    message: &'a str,
}

/// Reports why the program ends, on standard error: as a sentence, or as a document with `--json`.
pub(crate) fn report(failure: &Failure, common: &Common) {
    if failure.message.is_empty() {
        return;
    }
    if common.json {
        let reason = Some(failure.reason.as_str()).filter(|reason| !reason.is_empty());
        let error = FailureFields { exit_code: failure.exit.code(), reason, message: &failure.message };
        say_document(&FailureDocument { schema_version: SCHEMA_VERSION, error });
    } else {
        say(&crate::escape::printable(&failure.message));
    }
}
