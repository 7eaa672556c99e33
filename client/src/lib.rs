//! The library with which a program leases GPU memory from `gpuleased`.
//!
//! A program connects ([`Client`]), asks for a lease ([`LeaseBuilder`]), takes segments of memory
//! inside it ([`Lease::allocate`]) and uses them under a guard ([`Lease::enter`]). What it drops goes
//! back to the broker, and so does everything it has when it dies.
//!
//! ```no_run
//! use std::time::Duration;
//! use gpulease_client::{Client, gib};
//!
//! # async fn train() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect().await?;
//! let lease = client
//!     .lease(gib(8)) // set aside from the grant on
//!     .up_to(gib(20)) // and growth as long as there is room
//!     .name("resnet")
//!     .wait_at_most(Duration::from_secs(600))
//!     .on_waiting(|waiting| eprintln!("place {}: {}", waiting.position, waiting.message))
//!     .acquire()
//!     .await?;
//!
//! let mut weights = lease.allocate(gib(2)).await?;
//! for _step in 0..1000 {
//!     let resident = lease.enter().await?; // the memory stays while this lives
//!     weights.as_mut_slice::<f32>(&resident)?[0] += 1.0;
//! }
//! lease.release().await?;
//! # Ok(()) }
//! ```
//!
//! On the host device a segment is a slice, as above. On a GPU it is a view in cudarc's own types,
//! which launches, cuBLAS and copies take as they are:
//!
//! ```no_run
//! use gpulease_client::cudarc::driver::CudaContext;
//! # async fn copy(lease: gpulease_client::Lease) -> Result<(), Box<dyn std::error::Error>> {
//! let stream = CudaContext::new(0)?.default_stream();
//! let mut numbers = lease.allocate(gpulease_client::mib(64)).await?;
//! let resident = lease.enter().await?;
//! stream.memcpy_htod(&[1.0_f32, 2.0, 3.0], &mut numbers.view_mut::<f32>(&resident, &stream)?)?;
//! let back: Vec<f32> = stream.clone_dtoh(&numbers.view::<f32>(&resident, &stream)?.slice(..3))?;
//! # Ok(()) }
//! ```
//!
//! Callers without an async runtime use [`blocking`]; the library brings its own thread and needs no
//! runtime of theirs in either face.
//!
//! # Refused and failed
//!
//! [`AskError`] keeps the two apart: [`AskError::Denied`] is the broker's answer, with its
//! [`Reason`] and a sentence in numbers; [`AskError::Failed`] is an [`Error`], and says what to do.
//!
//! # Giving up
//!
//! Every future may be dropped at any point. A dropped ask is withdrawn; if the grant crosses the
//! withdrawal, it is given back.
//!
//! # Suspension
//!
//! Where the broker has host memory set apart for it, a lease above its account's guarantee may be suspended while others
//! need the room: the library waits for the guards and for the device, copies every segment out, unmaps it, and keeps
//! its addresses. The next [`Lease::enter`] asks for the memory, waits in line, and finds every byte where it was:
//! pointers, views and captured graphs stay good. What that asks of a program:
//!
//! * It uses the memory under a guard, one for each step. While a guard lives, nothing leaves; a program that never
//!   lets go is never suspended, and is told so by `gpulease why`.
//! * It keeps no guard over a wait for something else, such as the `enter` of another lease.
//! * It does not queue work for the device after its guard is gone.
//! * Pinned leases ([`LeaseBuilder::pinned`], [`Lease::pin`]) never leave.
//!
//! [`Lease::entry`] enters with a deadline and hears why it waits; [`Lease::presence`] says where the memory is. Each
//! piece of what was swapped out is compared with its check sum when it comes back; where one differs, this lease's
//! [`Error::BytesLost`] says so, and no other lease is touched. A GPU makes the sums of its own memory, so that they
//! take nothing from the host; where it is older than compute capability 7.5, threads of the program make them.
//!
//! # When the broker goes away
//!
//! What is mapped keeps working: the memory is this process's as long as it is mapped. The session is
//! taken up again by itself, at first after 50 ms and then at most every 2 s. What was swapped out waits. Requests, and asks that
//! wait, are put again when the broker is back; where it stays away for longer than
//! [`Options::broker_wait`] (30 s) they fail with [`Error::Gone`]. A broker that comes back without its
//! records does not know the leases any more: they are [`Standing::Lost`], can't grow and answer
//! [`Error::Lost`], and a new lease has to be acquired. So does entering one that was swapped out.
//!
//! # Processes
//!
//! * Several processes share a lease: [`Lease::env`] is the environment that a child needs for
//!   [`Client::join_from_env`], and [`Client::admit`] makes a child a member before it runs. A segment
//!   belongs to the process that took it.
//! * A **forked** child (without exec) has no part in its parent's session. Every call answers
//!   [`Error::Forked`], nothing is given back when its copies are dropped, and it does not inherit
//!   mapped host memory: touching it there would be a fault, so that a forgotten worker can't keep
//!   memory from everybody. It connects anew and joins. CUDA itself does not survive a fork either.
//! * Nothing of the library survives an exec: its descriptors are closed then. A descriptor of a
//!   segment exists only between its arrival and its mapping; a child forked in that moment holds it
//!   until it execs or ends, and the bytes count until then.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `GPULEASE_SOCKET` | the job socket to use; who listens there is believed |
//! | `XDG_RUNTIME_DIR` | where the user's own broker is looked for, after the system's |
//! | `GPULEASE_LEASE`, `GPULEASE_TOKEN` | the job's lease and its secret, for [`Client::join_from_env`] |
//! | `GPULEASE_MEMORY_BYTES` | the lease's limit on each device, for programs that size themselves by it |

mod allocation;
mod ask;
mod asked;
pub mod blocking;
mod charge;
mod client;
mod debts;
mod device;
mod duty;
mod engine;
mod entry;
mod error;
mod gate;
mod gpus;
mod handover;
mod host;
mod keeper;
mod lease;
mod lease_state;
mod leases;
mod link;
mod memory;
mod named;
mod observer;
mod operator;
mod peer;
mod place;
mod presence;
mod pressure;
mod reply;
mod resident;
mod segment;
mod session;
mod spares;
mod suspension;
pub mod swap;
mod token;
mod updates;
mod waiting;

pub use allocation::Allocation;
pub use ask::LeaseBuilder;
pub use client::{Client, Options};
pub use device::{Device, DeviceKind};
pub use entry::Entry;
pub use error::{AcquireError, AskError, Denied, Error};
pub use gate::Presence;
pub use handover::HandOverError;
pub use host::HostSite;
pub use lease::{Lease, Standing};
pub use memory::{AccessError, MapError};
pub use observer::{Observer, Updates};
pub use operator::Operator;
pub use pressure::{Pressure, PressureListener, Recall};
pub use resident::Resident;
pub use segment::Segment;
pub use token::{ParseTokenError, Token};
pub use waiting::{Holder, Waiting};

pub use bytemuck;
pub use cudarc;
pub use gpulease_cuda::{self, IpcHandle};
pub use gpulease_proto::v1 as proto;
pub use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, Reason, SegmentId, Uid, gib, mib};
