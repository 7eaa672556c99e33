//! The guard under which a lease's memory may be used.

use std::marker::PhantomData;

/// While it lives, the lease's memory stays where it is.
#[derive(Debug)]
pub struct Resident<'l> {
    _lease: PhantomData<&'l ()>,
}
