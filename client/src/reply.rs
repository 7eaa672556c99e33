//! Refusals inside replies that mean the session or the broker, and not the request.

use gpulease_proto::v1::{self, allocate_reply as allocate, join_reply as join, resize_reply as resize};
use gpulease_words::Reason;

/// A reply of the service for jobs.
pub(crate) trait Reply {
    /// The refusal in it.
    fn denied(&self) -> Option<&v1::Denied>;
}

/// Why the same request may succeed later or in a fresh session, where this refusal says so: the
/// broker was restarted and has not heard of the session, or is just going.
pub(crate) fn passing(denied: &v1::Denied) -> Option<&str> {
    match denied.reason.parse() {
        Ok(reason) if is_passing(reason) => Some(&denied.message),
        Ok(_) | Err(_) => None,
    }
}

pub(crate) fn is_passing(reason: Reason) -> bool {
    matches!(reason, Reason::NoSuchSession | Reason::Stopping)
}

macro_rules! replies {
    (field: $($field:ident)*; outcome: $($reply:ident $outcome:path;)*; none: $($none:ident)*) => {
        $(impl Reply for v1::$field {
            fn denied(&self) -> Option<&v1::Denied> {
                self.denied.as_ref()
            }
        })*
        $(impl Reply for v1::$reply {
            fn denied(&self) -> Option<&v1::Denied> {
                match &self.outcome {
                    Some($outcome(denied)) => Some(denied),
                    Some(_) | None => None,
                }
            }
        })*
        $(impl Reply for v1::$none {
            fn denied(&self) -> Option<&v1::Denied> {
                None
            }
        })*
    };
}

replies! {
    field: AdmitReply ReleaseReply FreeReply ReportReply PinReply;
    outcome:
        JoinReply join::Outcome::Denied;
        ResizeReply resize::Outcome::Denied;
        AllocateReply allocate::Outcome::Denied;;
    none: WithdrawReply
}
