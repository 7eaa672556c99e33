//! What is known of each job, from what it told.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use gpulease_words::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::actor::What;
use super::cast::Part;

/// A job falls silent with at most so many lines that are no documents kept.
const LINES_KEPT: usize = 20;

/// One job, from first to last.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) device: u32,
    pub(super) asked_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) held_at_most_bytes: u64,
    pub(super) waited_seconds: Option<f64>,
    pub(super) loss_first: Option<f64>,
    pub(super) loss_last: Option<f64>,
    pub(super) steps: u64,
    pub(super) lease: Option<String>,
    pub(super) end: Option<End>,
    /// The first update of its wait.
    #[serde(skip)]
    pub(super) wait: Option<Wait>,
    /// Its training process.
    #[serde(skip)]
    pub(super) pid: Option<u32>,
    /// What growth beyond its limit was answered: the word and the sentence.
    #[serde(skip)]
    pub(super) growth_refused: Option<(String, String)>,
    #[serde(skip)]
    pub(super) loss_told: Option<f64>,
    #[serde(skip)]
    pub(super) failure: Option<Failed>,
    #[serde(skip)]
    pub(super) lines: Vec<String>,
}

/// Why it waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) position: u64,
    pub(super) short_by: Bytes,
    pub(super) reason: String,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub(super) enum End {
    /// It did all it was told to.
    Finished,
    /// A signal ended it.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The broker refused it.
    Refused {
        /// The broker's word.
        reason: String,
        /// The broker's sentence.
        message: String,
    },
    /// Anything else.
    Failed {
        /// The exit code.
        code: i32,
        /// What it said.
        message: String,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Failed {
    reason: String,
    message: String,
}

/// What a person wants to hear of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum News {
    /// It waits.
    Waits(String),
    /// It was granted after so many seconds.
    Granted(f64),
    /// It has filled so much.
    Filled(Bytes),
    /// Its loss has fallen by half since it was last told.
    Loss(f64),
    /// It has grown to so much.
    Grown(Bytes),
    /// It may not grow; the sentence.
    NotGrown(String),
    /// It is over.
    Ended(End),
}

impl Record {
    /// A job that is about to ask.
    pub(super) fn new(name: String, device: u32, part: Part) -> Self {
        let (asked_bytes, limit_bytes) = (part.reserve.get(), part.limit.get());
        Self { name, device, asked_bytes, limit_bytes, ..Self::default() }
    }

    /// Whether its loss has fallen to this share of its first.
    pub(super) fn has_fallen_to(&self, share: f64) -> bool {
        matches!((self.loss_first, self.loss_last), (Some(first), Some(last)) if last < first * share)
    }

    /// Takes what it told; returns what is new to a person.
    pub(super) fn take(&mut self, what: What) -> Option<News> {
        match what {
            What::Document(document) => self.document(&document),
            What::Line(line) => {
                self.lines.push(line);
                self.lines.drain(..self.lines.len().saturating_sub(LINES_KEPT));
                None
            }
            What::Ended(status) => {
                let end = self.end_of(status);
                self.end = Some(end.clone());
                Some(News::Ended(end))
            }
        }
    }

    fn document(&mut self, document: &Value) -> Option<News> {
        if let Some(error) = document.get("error") {
            self.failure = Some(Failed { reason: text(error, "reason"), message: text(error, "message") });
            return None;
        }
        match document.get("event").and_then(Value::as_str)? {
            "started" => {
                self.pid = document.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok())
            }
            "waiting" => return self.waits(document),
            "granted" => {
                self.lease = Some(text(document, "id"));
                self.waited_seconds = number(document, "waited_seconds");
                return self.waited_seconds.map(News::Granted);
            }
            "filled" => return self.holds(document).map(News::Filled),
            "trained" => return self.trained(document),
            "grown" => return self.holds(document).map(News::Grown),
            "not_grown" => {
                let sentence = text(document, "message");
                self.growth_refused = Some((text(document, "reason"), sentence.clone()));
                return Some(News::NotGrown(sentence));
            }
            "failed" => {
                self.failure =
                    Some(Failed { reason: text(document, "reason"), message: text(document, "message") })
            }
            _ => {}
        }
        None
    }

    fn waits(&mut self, document: &Value) -> Option<News> {
        let wait = Wait {
            position: document.get("position").and_then(Value::as_u64)?,
            short_by: bytes(document, "short_by_bytes")?,
            reason: text(document, "reason"),
        };
        if self.wait.is_some() {
            return None;
        }
        self.wait = Some(wait);
        Some(News::Waits(text(document, "message")))
    }

    fn holds(&mut self, document: &Value) -> Option<Bytes> {
        let held = bytes(document, "held_bytes")?;
        self.held_at_most_bytes = self.held_at_most_bytes.max(held.get());
        Some(held)
    }

    fn trained(&mut self, document: &Value) -> Option<News> {
        let loss = number(document, "loss")?;
        self.steps = document.get("step").and_then(Value::as_u64)?;
        self.loss_last = Some(loss);
        self.loss_first.get_or_insert(loss);
        // Told at the first step, and each time it has halved since it was last told.
        let news = self.loss_told.is_none_or(|told| loss <= told / 2.0);
        news.then(|| {
            self.loss_told = Some(loss);
            News::Loss(loss)
        })
    }

    fn end_of(&self, status: ExitStatus) -> End {
        let code = status.code().unwrap_or(-1);
        let signal = status.signal().or((code > 128).then_some(code - 128));
        match (code, signal, &self.failure) {
            (0, _, _) => End::Finished,
            (_, Some(signal), _) => End::Killed { signal },
            (_, None, Some(Failed { reason, message })) if !reason.is_empty() => {
                End::Refused { reason: reason.clone(), message: message.clone() }
            }
            (_, None, failure) => {
                let message =
                    failure.as_ref().map_or_else(|| self.lines.join("; "), |failed| failed.message.clone());
                End::Failed { code, message }
            }
        }
    }
}

fn text(document: &Value, field: &str) -> String {
    document.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(document: &Value, field: &str) -> Option<f64> {
    document.get(field).and_then(Value::as_f64)
}

fn bytes(document: &Value, field: &str) -> Option<Bytes> {
    document.get(field).and_then(Value::as_u64).map(Bytes::new)
}

#[cfg(test)]
mod tests {
    use gpulease_words::mib;
    use serde_json::json;

    use super::*;

    fn record() -> Record {
        Record::new("anna".into(), 0, Part { reserve: mib(4), limit: mib(8) })
    }

    fn tell(record: &mut Record, document: Value) -> Option<News> {
        record.take(What::Document(document))
    }

    #[test]
    fn a_job_s_way_is_kept() {
        let mut anna = record();
        let waiting = json!({"event": "waiting", "position": 2, "short_by_bytes": mib(4).get(), "reason": "no_room", "message": "4 MiB short"});
        assert_eq!(tell(&mut anna, waiting.clone()), Some(News::Waits("4 MiB short".into())));
        assert_eq!(tell(&mut anna, waiting), None, "told once");
        assert_eq!(
            tell(&mut anna, json!({"event": "granted", "id": "L7", "waited_seconds": 1.5})),
            Some(News::Granted(1.5))
        );
        assert_eq!(
            tell(&mut anna, json!({"event": "filled", "held_bytes": mib(4).get()})),
            Some(News::Filled(mib(4)))
        );
        assert_eq!(
            tell(&mut anna, json!({"event": "grown", "held_bytes": mib(8).get()})),
            Some(News::Grown(mib(8)))
        );
        assert_eq!(anna.wait.as_ref().map(|wait| (wait.position, wait.short_by)), Some((2, mib(4))));
        assert_eq!((anna.lease.as_deref(), anna.held_at_most_bytes), (Some("L7"), mib(8).get()));
    }

    #[test]
    fn a_loss_is_news_when_it_has_halved() {
        let mut anna = record();
        let mut losses = Vec::new();
        for (step, loss) in [(1, 2.4), (20, 2.0), (40, 1.1), (60, 0.9), (80, 0.3), (100, 0.4), (120, 0.25)] {
            losses.extend(tell(&mut anna, json!({"event": "trained", "step": step, "loss": loss})));
        }
        assert_eq!(losses, [2.4, 1.1, 0.3].map(News::Loss));
        assert_eq!((anna.loss_first, anna.loss_last, anna.steps), (Some(2.4), Some(0.25), 120));
        assert!(anna.has_fallen_to(0.11) && !anna.has_fallen_to(0.1));
    }

    #[test]
    fn ends_are_told_apart() {
        let ended = |record: &mut Record, raw| match record.take(What::Ended(ExitStatus::from_raw(raw))) {
            Some(News::Ended(end)) => end,
            other => panic!("{other:?}"),
        };
        assert_eq!(ended(&mut record(), 0), End::Finished);
        assert_eq!(ended(&mut record(), 137 << 8), End::Killed { signal: 9 });
        assert_eq!(ended(&mut record(), 9), End::Killed { signal: 9 });
        let mut refused = record();
        tell(
            &mut refused,
            json!({"error": {"exit_code": 77, "reason": "over_budget", "message": "too much"}}),
        );
        assert_eq!(
            ended(&mut refused, 77 << 8),
            End::Refused { reason: "over_budget".into(), message: "too much".into() }
        );
        let mut failed = record();
        failed.take(What::Line("panicked".into()));
        assert_eq!(ended(&mut failed, 101 << 8), End::Failed { code: 101, message: "panicked".into() });
    }
}
