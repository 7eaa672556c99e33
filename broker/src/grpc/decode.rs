//! Requests of the wire as the arbiter's words. Whatever makes no sense is refused with a sentence.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{Denial, DeviceWish, Guard, Idleness, Patience, Pinning, SegmentKind, Terms};
use gpulease_proto::v1;
use gpulease_proto::v1::wait_policy::Policy;
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId, SessionId, Uid};

use crate::driver::{News, SegmentWish, Shown};
use crate::text;

/// The most devices that a request may name; hosts have a dozen.
const DEVICES_NAMED: usize = 64;

/// The session that a request names. One without a session is refused as if it had a wrong one.
pub(super) fn session(reference: Option<v1::SessionRef>) -> Result<Shown, Denial> {
    let reference = reference.ok_or(Denial::NoSuchSession)?;
    Ok(Shown { session: SessionId::new(reference.session_id), secret: reference.secret.to_vec() })
}

/// What an `Acquire` asks for. Where it has no name, its session's program is to give it one.
pub(super) fn terms(request: v1::AcquireRequest) -> Result<Terms, Denial> {
    let name = request.name.as_str();
    let reserve = rounded(request.reserve_bytes);
    let limit = if request.limit_bytes == 0 { reserve } else { rounded(request.limit_bytes) };
    Ok(Terms {
        name: if name.is_empty() { "" } else { text::name(name).map_err(Denial::Malformed)? }.to_owned(),
        reserve,
        limit,
        devices: wish(request.devices)?,
        patience: patience(request.wait, Patience::Endless),
        pinning: if request.pinned { Pinning::Pinned } else { Pinning::Movable },
        guest: request.guest_uid.map(Uid::new),
    })
}

/// The next multiple of the granularity; more than any device has where that does not fit.
pub(super) fn rounded(bytes: u64) -> Bytes {
    Bytes::new(bytes).round_up().unwrap_or(Bytes::MAX.round_down())
}

fn wish(devices: Option<v1::acquire_request::Devices>) -> Result<DeviceWish, Denial> {
    use v1::acquire_request::Devices;
    match devices {
        None => Ok(DeviceWish::Any(NonZeroU32::MIN)),
        Some(Devices::AnyDevices(count)) => NonZeroU32::new(count)
            .map(DeviceWish::Any)
            .ok_or(Denial::Malformed("no devices are asked for; ask for at least one")),
        Some(Devices::TheseDevices(list)) if list.indices.is_empty() => {
            Err(Denial::Malformed("the list of devices is empty; name at least one"))
        }
        Some(Devices::TheseDevices(list)) if list.indices.len() > DEVICES_NAMED => {
            Err(Denial::Malformed("more than 64 devices are named; name those that the broker has"))
        }
        Some(Devices::TheseDevices(list)) => {
            let indices: BTreeSet<_> = list.indices.into_iter().map(DeviceId::new).collect();
            Ok(DeviceWish::These(indices))
        }
    }
}

fn patience(wait: Option<v1::WaitPolicy>, unsaid: Patience) -> Patience {
    match wait.and_then(|wait| wait.policy) {
        Some(Policy::NoWait(true)) => Patience::None,
        Some(Policy::AtMostMs(0)) => Patience::None,
        Some(Policy::AtMostMs(ms)) => Patience::AtMost(Duration::from_millis(ms)),
        Some(Policy::Forever(true)) => Patience::Endless,
        Some(Policy::NoWait(false) | Policy::Forever(false)) | None => unsaid,
    }
}

/// What an `Allocate` asks for. It waits only where it says so.
pub(super) fn segment_wish(request: &v1::AllocateRequest) -> Result<SegmentWish, Denial> {
    let kind = match v1::SegmentKind::try_from(request.kind) {
        Ok(v1::SegmentKind::Unspecified) => SegmentKind::Descriptor,
        Ok(v1::SegmentKind::CudaIpc) => SegmentKind::CudaIpc,
        Err(_) => {
            return Err(Denial::Malformed(
                "the kind of segment is unknown to this broker; it is of an older version than the client",
            ));
        }
    };
    Ok(SegmentWish {
        lease: LeaseId::new(request.lease_id),
        device: DeviceId::new(request.device_index),
        bytes: rounded(request.bytes),
        kind,
        patience: patience(request.wait, Patience::None),
        guard: if request.inside_guard { Guard::Inside } else { Guard::Outside },
        ask_name: request.ask_name,
    })
}

/// What a member reports.
pub(super) fn news(news: Option<v1::report_request::News>) -> Result<News, Denial> {
    use v1::report_request::News as Wire;
    match news {
        Some(Wire::Drained(v1::Nothing {})) => Ok(News::Drained),
        Some(Wire::SwappedOutSegmentId(segment)) => Ok(News::SwappedOut(SegmentId::new(segment))),
        Some(Wire::SwapFailed(why)) => Ok(News::SwapFailed(text::sentence(&why))),
        Some(Wire::RestoredSegmentId(segment)) => Ok(News::Restored(SegmentId::new(segment))),
        Some(Wire::IdleForMs(_)) => Ok(News::Guards(Idleness::Idle)),
        Some(Wire::Busy(v1::Nothing {})) => Ok(News::Guards(Idleness::Busy)),
        None => Err(Denial::Malformed(
            "the report says nothing that this broker knows; is it of an older version than the client?",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::mib;

    #[test]
    fn sizes_are_rounded_up_and_the_absurd_stays_too_large() {
        assert_eq!(rounded(1), mib(2));
        assert_eq!(rounded(0), Bytes::ZERO);
        assert_eq!(rounded(u64::MAX), Bytes::MAX.round_down());
        let request =
            v1::AcquireRequest { reserve_bytes: 3 << 20, name: "train".into(), ..Default::default() };
        let terms = terms(request).expect("it makes sense");
        assert_eq!((terms.reserve, terms.limit, terms.name.as_str()), (mib(4), mib(4), "train"));
        assert_eq!(terms.patience, Patience::Endless);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        use v1::acquire_request::Devices;
        for devices in [
            Devices::AnyDevices(0),
            Devices::TheseDevices(v1::DeviceList { indices: vec![] }),
            Devices::TheseDevices(v1::DeviceList { indices: vec![0; 65] }),
        ] {
            let request = v1::AcquireRequest { devices: Some(devices), ..Default::default() };
            assert!(matches!(terms(request), Err(Denial::Malformed(_))));
        }
        let request = v1::AcquireRequest { name: "a\x1b[0m".into(), ..Default::default() };
        assert!(matches!(terms(request), Err(Denial::Malformed(_))));
        assert!(segment_wish(&v1::AllocateRequest { kind: 77, ..Default::default() }).is_err());
        assert!(matches!(session(None), Err(Denial::NoSuchSession)));
    }
}
