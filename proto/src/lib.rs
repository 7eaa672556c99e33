//! The protocol of gpulease: generated gRPC types, and the frame of the hand-over socket.
//!
//! gRPC carries every request; file descriptors travel on a second socket ([`handover`]) against
//! a ticket that came over gRPC.

pub mod handover;
pub mod refusal;

/// `gpulease.v1`: the generated messages, clients and servers.
pub mod v1 {
    #![allow(missing_docs, unreachable_pub, clippy::all, rust_2018_idioms, reason = "generated")]
    tonic::include_proto!("gpulease.v1");
}

/// The compiled description of the protocol, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpulease.v1.bin"));

/// The largest message either side takes, in bytes: a status of 10,000 leases with room to spare
/// is under 4 MiB; requests are limited to far less by the broker.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
