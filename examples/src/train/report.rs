//! What a training run tells while it goes on.

use std::fmt;

use gpulease_client::{Bytes, Waiting};
use serde::{Deserialize, Serialize};

/// Something that a run tells. As JSON it has its name in `event`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It stands in line.
    Waiting {
        /// Its place; 1 is next.
        position: u32,
        /// What is missing.
        short_by_bytes: u64,
        /// The broker's word for why.
        reason: Option<String>,
        /// The broker's sentence.
        message: String,
    },
    /// It has its lease.
    Granted {
        /// The lease; `None` where it runs bare.
        lease: Option<u64>,
        /// The device's name.
        device: String,
        /// What is set aside for it.
        asked_bytes: u64,
        /// How far it may grow.
        limit_bytes: u64,
        /// How long it waited for that.
        waited_seconds: f64,
    },
    /// Its data set fills its memory.
    Filled {
        /// The memory.
        held_bytes: u64,
        /// Samples in it.
        samples: u64,
        /// How long the filling took.
        seconds: f64,
    },
    /// Some steps are done.
    Trained {
        /// Steps done by now.
        step: u64,
        /// Steps to do.
        steps: u64,
        /// Mean loss of the samples since the last report.
        loss: f64,
    },
    /// It got more memory.
    Grown {
        /// How much more.
        by_bytes: u64,
        /// What it holds now.
        held_bytes: u64,
    },
    /// It got no more memory, and goes on with what it has.
    NotGrown {
        /// How much more it asked for.
        by_bytes: u64,
        /// The broker's word for why.
        reason: String,
        /// The broker's sentence.
        message: String,
    },
    /// The broker asked for memory, and it gave some back.
    GaveBack {
        /// How much.
        bytes: u64,
        /// What it holds now.
        held_bytes: u64,
    },
    /// It is done.
    Finished(Summary),
    /// It ended early.
    Failed {
        /// The broker's word for why, where the broker refused.
        reason: Option<String>,
        /// What happened and what to do.
        message: String,
    },
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The job's name.
    pub name: String,
    /// The device's name.
    pub device: String,
    /// What was set aside for it.
    pub asked_bytes: u64,
    /// How far it might have grown.
    pub limit_bytes: u64,
    /// What it held at most.
    pub held_at_most_bytes: u64,
    /// How long it waited for its lease.
    pub waited_seconds: f64,
    /// How long it ran after that.
    pub seconds: f64,
    /// Steps done.
    pub steps: u64,
    /// Samples of the data set at the end.
    pub samples: u64,
    /// Mean loss of the first step.
    pub loss_first: f64,
    /// Mean loss of the last report's steps.
    pub loss_last: f64,
    /// Share of unseen digits that are named rightly.
    pub accuracy: f64,
    /// A check sum of all weights: two runs with the same are the same, bit by bit.
    pub fingerprint: String,
}

impl From<&Waiting> for Event {
    fn from(waiting: &Waiting) -> Self {
        Self::Waiting {
            position: waiting.position,
            short_by_bytes: waiting.short_by.get(),
            reason: waiting.reason.map(|reason| reason.to_string()),
            message: waiting.message.clone(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: &u64| Bytes::new(*bytes).to_string();
        match self {
            Self::Waiting { position, message, .. } => {
                write!(f, "waiting, number {position} in line: {message}")
            }
            Self::Granted { lease, device, asked_bytes, limit_bytes, waited_seconds } => {
                let (asked, limit) = (size(asked_bytes), size(limit_bytes));
                match lease {
                    Some(id) => write!(f, "granted lease {id} on {device}")?,
                    None => write!(f, "on {device}")?,
                }
                write!(f, ": {asked} set aside, up to {limit}, after {waited_seconds:.1} s in line")
            }
            Self::Filled { held_bytes, samples, seconds } => {
                write!(f, "filled {} with {samples} samples in {seconds:.1} s", size(held_bytes))
            }
            Self::Trained { step, steps, loss } => write!(f, "step {step:>6} of {steps}  loss {loss}"),
            Self::Grown { by_bytes, held_bytes } => {
                write!(f, "grew by {} to {}", size(by_bytes), size(held_bytes))
            }
            Self::NotGrown { by_bytes, message, .. } => {
                write!(f, "asked for {} more and goes on without: {message}", size(by_bytes))
            }
            Self::GaveBack { bytes, held_bytes } => {
                write!(f, "gave {} back on request, holds {}", size(bytes), size(held_bytes))
            }
            Self::Finished(summary) => summary.fmt(f),
            Self::Failed { message, .. } => f.write_str(message),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| Bytes::new(bytes).to_string();
        writeln!(
            f,
            "asked {}, held {} at most, waited {:.1} s, ran {:.1} s",
            size(self.asked_bytes),
            size(self.held_at_most_bytes),
            self.waited_seconds,
            self.seconds
        )?;
        writeln!(
            f,
            "loss {} at first, {} at last; weights {}",
            self.loss_first, self.loss_last, self.fingerprint
        )?;
        write!(f, "{:.1} % of unseen digits named rightly", 100.0 * self.accuracy)
    }
}
