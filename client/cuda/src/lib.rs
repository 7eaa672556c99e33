//! The CUDA driver calls that gpulease needs, as `Result`s over owned types.
//!
//! Nearly all `unsafe` CUDA of the project is here; broker, client and preload library share it.
//! Nothing in this crate panics for want of a driver: [`Driver::load`] finds the library, looks up
//! every symbol once, and says in a sentence what is missing.
//!
//! Which calls need a context, as measured on driver 580 (a context costs the card hundreds of
//! MiB, so that a broker has none):
//!
//! | no context | a context, which the call makes current and takes away again |
//! |---|---|
//! | [`Driver`], [`Device`], [`Allocation`], [`Reservation`] | [`Context`], [`Stream`], [`Event`], [`DeviceMemory`], [`IpcMapping`], [`Mapping`], [`Site`], [`PinnedMemory`], [`HostRegistration`], [`PieceSums`] |
//!
//! Memory on the card ends only when every mapping, handle and descriptor of it, in every process,
//! is gone. Types here free their own share when dropped; a failure on the way is kept and read
//! with [`Driver::take_kept_errors`].
//!
//! ```
//! use gpulease_cuda::{Allocation, Driver};
//! use gpulease_words::mib;
//!
//! match Driver::load() {
//!     Err(why) => println!("no CUDA here: {why}"),
//!     Ok(driver) => {
//!         for device in driver.devices()? {
//!             println!("{} {}", device.uuid()?, device.name()?);
//!             let memory = Allocation::create(device, mib(2))?;
//!             let descriptor = memory.export()?; // send it to another process
//! #           drop(descriptor);
//!         }
//!     }
//! }
//! # Ok::<(), gpulease_cuda::CudaError>(())
//! ```

mod allocation;
mod context;
mod copy;
mod device;
mod driver;
mod error;
mod ipc;
mod kernel;
mod mapping;
mod peers;
mod pinned;
mod preload;
mod reservation;
mod site;
mod stream;
mod sums;
mod symbols;
mod unavailable;

pub use cudarc;

pub use allocation::Allocation;
pub use context::{Context, MemoryInfo};
pub use device::{Device, ParseUuidError, Unsupported, Uuid};
pub use driver::{Driver, KeptErrors};
pub use error::{CudaError, CudaVersion};
pub use ipc::{DeviceMemory, IpcHandle, IpcMapping};
pub use mapping::{Mapping, ViewError};
pub use peers::let_in;
pub use pinned::{HostRegistration, PinnedMemory};
pub use preload::{Preload, moving};
pub use reservation::{Access, DevicePtr, Reservation};
pub use site::Site;
pub use stream::{Event, Stream};
pub use sums::{PieceSums, SumsUnderWay, sum_of_piece};
pub use unavailable::Unavailable;
