//! Moving a segment's bytes out to host memory and back, while its addresses stay.
//!
//! The library does this by itself when the broker suspends a lease; a program only ever waits in
//! [`Lease::enter`](crate::Lease::enter). It is public for who measures it, or moves memory without a broker:
//!
//! ```no_run
//! use std::os::fd::{AsFd, OwnedFd};
//! use gpulease_client::{gpulease_cuda::{Context, Mapping}, mib, swap::{HostCopy, Lane, Site}};
//!
//! # fn f(context: Context, chunk: OwnedFd, memfd: OwnedFd, again: OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
//! let mapping = Mapping::of_descriptors(&context, &[(chunk.as_fd(), mib(64))])?;
//! let (site, copy) = (Site::of(&mapping), HostCopy::map(memfd.as_fd(), mib(64))?);
//! copy.register(&context)?; // once, ahead of time
//! let lane = Lane::cuda(&context)?; // likewise
//! // SAFETY: no work of this process uses the memory now.
//! let (sums, gone) = unsafe { lane.out(&site, &copy, || site.vacate()) }?;
//! gone?;
//! // ... others use the card ...
//! site.occupy(&[(again.as_fd(), mib(64))])?;
//! // SAFETY: as above.
//! unsafe { lane.back(&site, &copy, &sums) }?;
//! # Ok(()) }
//! ```

mod crew;
mod crossing;
mod cuda_lane;
mod host_copy;
mod lane;
mod own_file;
mod site;
mod sums;

pub use cuda_lane::CudaLane;
pub use host_copy::HostCopy;
pub use lane::{Lane, SwapError};
pub use site::Site;
pub use sums::{PIECE, SumKind, Sums};
