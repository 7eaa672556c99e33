//! One line of a scenario, taken apart word by word.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use gpulease_words::{Bytes, Size, parse_duration};

/// The words of a line that no one has taken yet.
pub(super) struct Line {
    words: Vec<String>,
}

impl Line {
    /// Splits at blanks; a word in double quotes may hold some.
    pub(super) fn new(text: &str) -> Self {
        let mut words = Vec::new();
        for (i, part) in text.split('"').enumerate() {
            match i % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        Self { words }
    }

    /// The next word.
    pub(super) fn word(&mut self, what: &str) -> Result<String, String> {
        match self.words.is_empty() {
            true => Err(format!("{what} is missing")),
            false => Ok(self.words.remove(0)),
        }
    }

    /// The next word, read as an id or a number.
    pub(super) fn id<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T, String> {
        read(&self.word(what)?)
    }

    /// The next word, read as a size.
    pub(super) fn size(&mut self, what: &str) -> Result<Bytes, String> {
        amount(&self.word(what)?)
    }

    /// The next word, read as a span of time.
    pub(super) fn span(&mut self, what: &str) -> Result<Duration, String> {
        parse_duration(&self.word(what)?).map_err(|e| e.to_string())
    }

    /// Whether `word` stands somewhere; takes it.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        let at = self.words.iter().position(|w| w == word);
        at.is_some_and(|at| {
            self.words.remove(at);
            true
        })
    }

    /// The word after `key`, where that stands somewhere; takes both.
    pub(super) fn after(&mut self, key: &str) -> Result<Option<String>, String> {
        let Some(at) = self.words.iter().position(|w| w == key) else { return Ok(None) };
        self.words.remove(at);
        match at < self.words.len() {
            true => Ok(Some(self.words.remove(at))),
            false => Err(format!("a word is missing after {key}")),
        }
    }

    /// The id or number after `key`.
    pub(super) fn id_after<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<Option<T>, String> {
        self.after(key)?.map(|word| read(&word)).transpose()
    }

    /// The size after `key`.
    pub(super) fn size_after(&mut self, key: &str) -> Result<Option<Bytes>, String> {
        self.after(key)?.map(|word| amount(&word)).transpose()
    }

    /// The span of time after `key`.
    pub(super) fn span_after(&mut self, key: &str) -> Result<Option<Duration>, String> {
        self.after(key)?.map(|word| parse_duration(&word).map_err(|e| e.to_string())).transpose()
    }

    /// That every word was taken.
    pub(super) fn done(self) -> Result<(), String> {
        match self.words.is_empty() {
            true => Ok(()),
            false => Err(format!("not understood: {}", self.words.join(" "))),
        }
    }

    /// What is left, as it stood.
    pub(super) fn rest(self) -> String {
        self.words.join(" ")
    }
}

fn read<T: FromStr<Err: Display>>(word: &str) -> Result<T, String> {
    word.parse().map_err(|e| format!("{word:?}: {e}"))
}

/// A size; there is no whole here that a share could be of.
fn amount(word: &str) -> Result<Bytes, String> {
    match word.parse::<Size>() {
        Ok(Size::Amount(bytes)) => Ok(bytes),
        Ok(Size::Share(_)) => Err(format!("{word:?} is a share of nothing; write an amount")),
        Err(e) => Err(e.to_string()),
    }
}
