//! The native part of the Python package `gpulease`: what the broker says of this process's lease, its wishes for bytes,
//! and leased memory for a pluggable allocator. All that needs no broker is written in Python.

mod error;
mod job;
mod pool;
mod pressure;
mod state;

use pyo3::prelude::*;

/// The module `gpulease._native`.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::error::{BrokerUnreachable, GpuleaseError, NotInALease, Refused};
    #[pymodule_export]
    use crate::job::leave;
    #[pymodule_export]
    use crate::pool::{open_pool, pool_state};
    #[pymodule_export]
    use crate::pressure::{Listener, listen};
    #[pymodule_export]
    use crate::state::{state, why};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
