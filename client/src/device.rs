//! The devices of a broker.

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId};

use crate::error::Error;

/// A device that the broker leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its place in the broker's list; not the CUDA ordinal.
    pub id: DeviceId,
    /// What it is.
    pub kind: DeviceKind,
    /// `GPU-...` of a CUDA device, `host-N` of host memory.
    pub uuid: String,
    /// Its name, for people.
    pub name: String,
    /// What the broker leases of it.
    pub capacity: Bytes,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory that stands in for a GPU: segments are byte slices.
    Host,
    /// A CUDA device: segments are device pointers.
    Cuda,
}

impl TryFrom<v1::DeviceInfo> for Device {
    type Error = Error;

    fn try_from(info: v1::DeviceInfo) -> Result<Self, Error> {
        let kind = match info.kind() {
            v1::DeviceKind::Host => DeviceKind::Host,
            v1::DeviceKind::Cuda => DeviceKind::Cuda,
            v1::DeviceKind::Unspecified => {
                return Err(Error::Protocol(format!("device {} is of no known kind", info.index)));
            }
        };
        Ok(Self {
            id: DeviceId::new(info.index),
            kind,
            uuid: info.uuid,
            name: info.name,
            capacity: Bytes::new(info.capacity_bytes),
        })
    }
}
