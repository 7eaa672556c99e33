//! The secret with which a process joins a lease.

use std::fmt;
use std::str::FromStr;

/// 16 bytes: who shows them may join the lease. The debug form hides them; [`Self::to_text`] does not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; 16]);

impl Token {
    /// The token with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for sending.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 hexadecimal digits, as `GPULEASE_TOKEN` carries them.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is 32 hexadecimal digits")]
pub struct ParseTokenError;

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(|n| Self(n.to_be_bytes())).ok_or(ParseTokenError)
    }
}

impl TryFrom<&[u8]> for Token {
    type Error = ParseTokenError;

    fn try_from(bytes: &[u8]) -> Result<Self, ParseTokenError> {
        bytes.try_into().map(Self).map_err(|_| ParseTokenError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_is_not_shown() {
        let token = Token::new(*b"\x000123456789abcd\xff");
        assert_eq!(token.to_text().parse(), Ok(token));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for text in ["", "12", "+0000000000000000000000000000001", "0000000000000000000000000000000g"] {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError));
        }
    }
}
