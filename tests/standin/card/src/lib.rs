//! The card of the stand-in drivers: a directory that several processes share.
//!
//! A process that is killed tells nobody, and memory lives on in descriptors that other processes
//! hold without ever calling CUDA. So nothing here is counted up and down. Each piece of memory is
//! a sparse file in the directory, and each claim to it, the maker's handle, an import, a
//! descriptor that was exported, is an open description of that file with a shared `flock`. Every
//! duplicate of a claim's descriptor, in whatever process, in flight in a socket or behind a
//! mapping, is the same description, and the kernel drops the lock with the last of them. Who wants
//! to know whether the memory still exists opens the file anew and tries for an exclusive lock:
//! refused means alive, granted means gone. What is used is the sum over the files that are alive,
//! at any moment and after any death.
//!
//! A process that has initialised the driver is such a file too; its contents say which contexts
//! it has and which memory it holds, for the process list of NVML.
//!
//! | file | what |
//! |---|---|
//! | `card` | [`Settings`], written by whoever comes first |
//! | `lock` | held exclusively by each operation; holds the counter of ids, then from which claim each was made |
//! | `memory-DEVICE-ID-BYTES` | memory, and one page behind it that says so to an importer |
//! | `process-PID-START-NAMESPACE` | a process: contexts, then what it holds |
//! | `faults` | failures to inject, see [`Faults`]; tests write it |
//! | `faults.turn` | how often they did |

mod card;
mod faults;
mod mark;
mod memory;
mod process;
mod settings;
mod survey;
mod turn;

pub use card::{Card, Failed};
pub use faults::{Fault, Faults};
pub use memory::Memory;
pub use process::{Holding, Process};
pub use settings::{Settings, Switch};
pub use survey::{Resident, Survey};

/// Names the directory of the card; without it the stand-in drivers have no device.
pub const DIRECTORY: &str = "GPULEASE_STANDIN_DIR";
