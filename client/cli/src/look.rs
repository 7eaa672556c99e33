//! How text looks: the width there is, and whether colour is wanted.

use std::io::IsTerminal as _;
use std::os::fd::AsFd;

/// The width and colours of where text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns; `None`: no terminal, lines may be as long as they are.
    pub(crate) width: Option<usize>,
    /// Lines; `None`: no terminal.
    pub(crate) height: Option<usize>,
    /// Whether to colour.
    pub(crate) paint: Paint,
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// No escape sequences at all.
    Plain,
    /// Bold headings and coloured words.
    Colour,
}

/// What a piece of text is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// A heading.
    Heading,
    /// Something is right, or memory that is free to use.
    Good,
    /// Something to look at.
    Warning,
    /// Something is wrong.
    Bad,
    /// Memory in use.
    Used,
    /// Of less interest.
    Dim,
}

impl Look {
    /// No terminal: no colours, no width.
    pub(crate) const PLAIN: Self = Self { width: None, height: None, paint: Paint::Plain };

    /// That of standard output.
    pub(crate) fn of_stdout() -> Self {
        Self::of(&std::io::stdout())
    }

    /// That of standard error.
    pub(crate) fn of_stderr() -> Self {
        Self::of(&std::io::stderr())
    }

    fn of(stream: &(impl AsFd + std::io::IsTerminal)) -> Self {
        if !stream.is_terminal() {
            return Self::PLAIN;
        }
        let size = rustix::termios::tcgetwinsize(stream.as_fd());
        let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        Self {
            // A terminal that does not know its size says 0.
            width: Some(if columns == 0 { 80 } else { usize::from(columns) }),
            height: Some(if rows == 0 { 24 } else { usize::from(rows) }),
            paint: if set("NO_COLOR") || dumb { Paint::Plain } else { Paint::Colour },
        }
    }

    /// Whether a person watches standard error.
    pub(crate) fn stderr_is_terminal() -> bool {
        std::io::stderr().is_terminal()
    }

    /// The text in the colour of its tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match (self.paint, tone) {
            (Paint::Plain, _) => return text.to_owned(),
            (Paint::Colour, Tone::Heading) => "1",
            (Paint::Colour, Tone::Good) => "32",
            (Paint::Colour, Tone::Warning) => "33",
            (Paint::Colour, Tone::Bad) => "31",
            (Paint::Colour, Tone::Used) => "36",
            (Paint::Colour, Tone::Dim) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
