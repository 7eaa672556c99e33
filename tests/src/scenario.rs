//! Scenario files: an arbiter driven by commands in a text file, with its full output beneath
//! each command.
//!
//! A command stands at the start of its line, output is indented by two spaces, `#` starts a
//! comment. [`play`] runs the commands and gives the file back with fresh output, so that a test
//! compares two texts and a reader sees what an operator would.

mod budget;
mod command;
mod line;
mod stage;
mod table;
mod telling;

use std::fmt;

use stage::Stage;

/// A command that cannot be read or makes no sense where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    line: usize,
    why: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ScenarioError {}

/// Runs the commands of `text` and returns the text with the output they have now.
///
/// # Errors
/// A line that is no command, or a command whose session, lease or segment was never made.
pub fn play(text: &str) -> Result<String, ScenarioError> {
    let mut stage = Stage::default();
    let mut fresh = String::new();
    for (i, line) in text.lines().enumerate() {
        if line.starts_with("  ") {
            continue;
        }
        fresh.push_str(line.trim_end());
        fresh.push('\n');
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let said = stage.run(line).map_err(|why| ScenarioError { line: i + 1, why })?;
        for sentence in said {
            fresh.push_str("  ");
            fresh.push_str(&sentence);
            fresh.push('\n');
        }
    }
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_output_is_dropped_and_comments_stay() {
        let text = "# why\ndevice 0 8GiB\n  old output\n\n";
        assert_eq!(play(text).as_deref(), Ok("# why\ndevice 0 8GiB\n\n"));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, word) in [
            ("device 0 8GiB\nfly L1\n", "line 2: no such command: fly"),
            ("device 0 8\n", "line 1: \"8\" is not a size"),
            ("device 0 8GiB surely\n", "line 1: not understood: surely"),
            ("device 0 8GiB\nclose s9\nopen\n", "line 3: a user is missing"),
        ] {
            let error = play(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
