//! Reaching the broker, and what its errors mean to the shell.

use std::path::{Path, PathBuf};

use gpulease_client::{AskError, Client, Denied, Error, Observer, Operator, Options};

use crate::arguments::Common;
use crate::exit::{Exit, Failure};

/// The name of the operators' socket, beside the job socket.
const ADMIN_SOCKET: &str = "admin.sock";

impl Common {
    /// The socket that was named; an empty name is none.
    fn named_socket(&self) -> Option<&Path> {
        self.socket.as_deref().filter(|path| !path.as_os_str().is_empty())
    }
}

/// A connection that looks at the state.
///
/// # Errors
/// Where no broker answers, or it may not be used.
pub(crate) async fn observer(common: &Common) -> Result<Observer, Failure> {
    let observer = match common.named_socket() {
        Some(socket) => Observer::connect_to(socket).await,
        None => Observer::connect().await,
    };
    Ok(observer?)
}

/// A session of our own.
///
/// # Errors
/// Where no broker answers, or it may not be used.
pub(crate) async fn client(common: &Common) -> Result<Client, Failure> {
    let options = match common.named_socket() {
        Some(socket) => Options::default().socket(socket),
        None => Options::default(),
    };
    Ok(Client::connect_with(options).await?)
}

/// The operators' connection: `--socket` may name their socket, or the job socket beside it.
///
/// # Errors
/// Where no broker answers, or the caller is no operator.
pub(crate) async fn operator(common: &Common) -> Result<Operator, Failure> {
    let operator = match common.named_socket() {
        Some(socket) => Operator::connect_to(beside(socket)).await,
        None => Operator::connect().await,
    };
    Ok(operator?)
}

fn beside(socket: &Path) -> PathBuf {
    if socket.file_name().is_some_and(|name| name == ADMIN_SOCKET) {
        socket.to_owned()
    } else {
        socket.with_file_name(ADMIN_SOCKET)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Refused(denied) => denied.into(),
            Error::NoBroker { .. }
            | Error::Deaf { .. }
            | Error::NotABroker { .. }
            | Error::Unreachable { .. }
            | Error::Gone { .. }
            | Error::Silent { .. } => Self::new(Exit::NoBroker, message),
            Error::Permission { .. } | Error::WrongPeer { .. } | Error::WrongDirectory { .. } => {
                Self::new(Exit::NotAllowed, message)
            }
            Error::StillAway { .. } => Self::new(Exit::NoRoom, message),
            Error::Lost { .. }
            | Error::BytesLost { .. }
            | Error::Forked { .. }
            | Error::Parted
            | Error::Protocol(_)
            | Error::Broker { .. }
            | Error::HandOver(_)
            | Error::Map(_)
            | Error::NotInAJob { .. }
            | Error::Environment { .. }
            | Error::Thread(_) => Self::new(Exit::Failed, message),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::refused(denied.reason.word(), &denied.message)
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Denied(denied) => denied.into(),
            AskError::Failed(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_socket_is_beside_the_job_socket() {
        assert_eq!(beside(Path::new("/run/x/gpulease.sock")), Path::new("/run/x/admin.sock"));
        assert_eq!(beside(Path::new("/run/x/admin.sock")), Path::new("/run/x/admin.sock"));
    }

    #[test]
    fn no_broker_is_69_and_a_refusal_has_the_code_of_its_reason() {
        let socket = PathBuf::from("/nowhere");
        let nobody = Error::NoBroker { tried: vec![socket.clone()] };
        assert_eq!(Failure::from(nobody).exit, Exit::NoBroker);
        assert_eq!(Failure::from(Error::Permission { socket }).exit, Exit::NotAllowed);
        let denied = Denied { reason: gpulease_words::Reason::OverBudget, message: "too much".into() };
        let failure = Failure::from(AskError::Denied(denied));
        assert_eq!((failure.exit, failure.reason.as_str()), (Exit::NotAllowed, "over_budget"));
    }
}
