//! Claiming a segment's descriptors.

/// Why a segment's descriptors did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The broker refused the ticket.
    #[error("the broker refused the ticket: {0}")]
    Refused(String),
}
