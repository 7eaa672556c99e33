//! Refusals as gRPC statuses, for the calls whose reply has no place for a [`Denied`](crate::v1::Denied).
//!
//! The sentence is the status's message; the word of the reason travels in a trailer, so that a
//! client need not guess it from the code.

use gpulease_words::Reason;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The trailer that carries the reason's word.
pub const REASON_KEY: &str = "gpulease-reason";

/// A refusal as a status with its reason.
#[must_use]
pub fn refusal(code: Code, reason: Reason, message: impl Into<String>) -> Status {
    let mut status = Status::new(code, message);
    status.metadata_mut().insert(REASON_KEY, MetadataValue::from_static(reason.word()));
    status
}

/// The reason of a refusal, or `None` where the status is a failure or the word is unknown.
#[must_use]
pub fn reason(status: &Status) -> Option<Reason> {
    status.metadata().get(REASON_KEY)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_back_and_a_plain_failure_has_none() {
        let status = refusal(Code::NotFound, Reason::NoSuchSession, "no session s7");
        assert_eq!(reason(&status), Some(Reason::NoSuchSession));
        assert_eq!(reason(&Status::unavailable("gone")), None);
    }
}
