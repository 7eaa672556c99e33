//! Other people's text, made safe for a terminal.
//!
//! Names and commands come from any user of the host. Escape sequences in them could move the
//! cursor, set the title or fake a line, and direction marks could make one name look like another.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with every character that a terminal would act on written as an escape: control
/// characters as `\x1b`, marks of direction and other invisible ones as `\u{202e}`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_plain(c) {
            out.push(c);
        } else if u32::from(c) < 0x80 {
            write!(out, "\\x{:02x}", u32::from(c)).expect("a String takes all text");
        } else {
            write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a String takes all text");
        }
    }
    Cow::Owned(out)
}

fn is_plain(c: char) -> bool {
    let invisible = matches!(
        u32::from(c),
        0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfe00..=0xfe0f | 0xfeff | 0xfff9..=0xfffb | 0xe0000..=0xe0fff
    );
    !c.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_written_out() {
        assert_eq!(printable("resnet-50"), "resnet-50");
        assert_eq!(printable("Jürgen 研究"), "Jürgen 研究");
        assert_eq!(printable("\u{1b}[2Jgone\r\n\t\u{7}"), "\\x1b[2Jgone\\x0d\\x0a\\x09\\x07");
        assert_eq!(printable("a\u{9b}31m"), "a\\u{9b}31m");
        assert_eq!(printable("abc\u{202e}cba"), "abc\\u{202e}cba");
        assert_eq!(printable("zero\u{200b}width"), "zero\\u{200b}width");
    }

    #[test]
    fn plain_text_is_not_copied() {
        assert!(matches!(printable("plain"), Cow::Borrowed("plain")));
    }
}
