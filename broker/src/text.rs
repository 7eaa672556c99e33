//! Texts that came from outside, made safe to print.

/// The longest name of a lease, in letters.
const NAME_MAX: usize = 128;

/// The longest text that is only shown, in letters.
const SHOWN_MAX: usize = 64;

/// The longest sentence of a client, in letters.
const SENTENCE_MAX: usize = 200;

/// Whether a letter can do no more to a terminal or a log than stand there.
fn is_plain(letter: char) -> bool {
    letter == ' ' || letter.is_ascii_graphic() || letter.is_alphanumeric()
}

/// The name as it is, where it can be a lease's and an account's name.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn name(text: &str) -> Result<&str, &'static str> {
    if text.chars().count() > NAME_MAX {
        return Err("the name has more than 128 letters; give a shorter one");
    }
    if !text.chars().all(is_plain) || text.trim().is_empty() {
        return Err("the name has letters that cannot be shown; use letters, digits and punctuation");
    }
    Ok(text)
}

/// The text with whatever cannot be shown replaced, cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).map(|letter| if is_plain(letter) { letter } else { '?' }).collect()
}

/// The sentence with whatever cannot be shown replaced, cut where it is long.
pub(crate) fn sentence(text: &str) -> String {
    text.chars().take(SENTENCE_MAX).map(|letter| if is_plain(letter) { letter } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_no_name() {
        for good in ["resnet", "meta/llama-3 8B", "Größe", "学习", "a"] {
            assert_eq!(name(good), Ok(good));
        }
        for bad in ["", "   ", "a\nb", "a\x1b[2J", "a\u{202e}b", "a\u{0}", "\u{9b}31m", "\u{feff}"] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert!(name(&"x".repeat(129)).is_err());
        assert_eq!(shown("a\x1b[2Jb\n"), "a?[2Jb?");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_MAX);
    }
}
