//! What Python sees when something goes wrong.

use gpulease_client::{AskError, Error};
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(
    gpulease,
    GpuleaseError,
    PyException,
    "What gpulease could not do; the message says what to do."
);
create_exception!(gpulease, NotInALease, GpuleaseError, "This process was not started in a lease.");
create_exception!(gpulease, BrokerUnreachable, GpuleaseError, "No broker answers.");
create_exception!(
    gpulease,
    Refused,
    GpuleaseError,
    "The broker's answer is no: `args` are its sentence and the reason's word."
);

/// A refusal or failure as Python's exception.
pub(crate) fn raised(error: AskError) -> PyErr {
    match error {
        AskError::Denied(denied) => Refused::new_err((denied.message, denied.reason.to_string())),
        AskError::Failed(error) => failed(&error),
    }
}

/// A failure as Python's exception.
pub(crate) fn failed(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::NotInAJob { .. } => NotInALease::new_err(text),
        Error::Refused(denied) => Refused::new_err((denied.message.clone(), denied.reason.to_string())),
        Error::NoBroker { .. }
        | Error::Deaf { .. }
        | Error::Permission { .. }
        | Error::NotABroker { .. }
        | Error::WrongPeer { .. }
        | Error::WrongDirectory { .. }
        | Error::Unreachable { .. }
        | Error::Gone { .. }
        | Error::Silent { .. } => BrokerUnreachable::new_err(text),
        Error::Lost { .. }
        | Error::StillAway { .. }
        | Error::BytesLost { .. }
        | Error::Forked { .. }
        | Error::Parted
        | Error::Protocol(_)
        | Error::Broker { .. }
        | Error::HandOver(_)
        | Error::Map(_)
        | Error::Environment { .. }
        | Error::Thread(_) => GpuleaseError::new_err(text),
    }
}
