//! The driver and the GPUs that this process sees.

use gpulease_broker::device::cuda::Canary;
use gpulease_broker::witness::{self, Verdict, doctor};

use super::finding::{Finding, Level};

/// What the broker's own eyes find.
pub(super) fn findings() -> Vec<Finding> {
    doctor(Canary::Run).into_iter().map(finding).collect()
}

fn finding(found: witness::Finding) -> Finding {
    let level = match found.verdict {
        Verdict::Good => Level::Ok,
        Verdict::Notice | Verdict::Unknown => Level::Warn,
        Verdict::Bad => Level::Fail,
    };
    Finding { check: found.subject, level, message: found.says, cure: found.cure.map(str::to_owned) }
}
