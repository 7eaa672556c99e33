//! Every way to take memory of a GPU, each as a function that takes about so many bytes.

use std::ffi::c_void;

use crate::doors::{Driver, Failed, call};
use crate::{arrays, graphs, kernels, linear, pools, virtual_memory};

/// How memory is taken: bytes, and the byte to leave in it.
pub(crate) type Take = fn(&Driver, usize, u8) -> Result<Taken, Failed>;

/// The ways, by the names that tests use.
pub(crate) const WAYS: &[(&str, Take)] = &[
    ("alloc", linear::alloc),
    ("pitch", linear::pitch),
    ("managed", linear::managed),
    ("create", virtual_memory::create),
    ("create-exportable", virtual_memory::create_exportable),
    ("create-by-nccl", virtual_memory::create_by_nccl),
    ("create-many", virtual_memory::create_many),
    ("create-small", virtual_memory::create_small),
    ("create-pair", virtual_memory::create_pair),
    ("async", pools::of_stream),
    ("default-pool", pools::of_default_pool),
    ("own-pool", pools::of_own_pool),
    ("export-pool", pools::of_export_pool),
    ("array", arrays::array),
    ("array-3d", arrays::array_3d),
    ("mipmap", arrays::mipmap),
    ("graph-node", graphs::of_node),
    ("graph-any-node", graphs::of_any_node),
    ("captured", graphs::captured),
    ("ipc", linear::ipc),
    ("variable", kernels::variable),
    ("variable-options", kernels::variable_with_options),
    ("variable-file", kernels::variable_of_file),
    ("library-variable", kernels::library_variable),
    ("library-file", kernels::library_of_file),
    ("heap", kernels::heap),
    ("printed", kernels::printed),
    ("old-form", linear::old_form),
];

/// How memory is given back.
type Give = Box<dyn FnOnce(&Driver) -> Result<(), Failed>>;

/// Memory that was taken, and how it is given back.
pub(crate) struct Taken {
    /// Where a byte of it can be read at both ends, if it has addresses.
    seen: Option<Seen>,
    give: Give,
}

/// Memory at an address, and what was written to its ends.
#[derive(Clone, Copy)]
struct Seen {
    at: u64,
    bytes: usize,
    mark: u8,
}

impl Taken {
    /// Memory at an address, whose ends are written to.
    pub(crate) fn at(
        driver: &Driver,
        at: u64,
        bytes: usize,
        mark: u8,
        give: impl FnOnce(&Driver) -> Result<(), Failed> + 'static,
    ) -> Result<Self, Failed> {
        let seen = Seen { at, bytes, mark };
        for end in seen.ends() {
            call!(driver, "cuMemcpyHtoD" "_v2" (u64, *const c_void, usize)(end, (&raw const mark).cast(), 1))?;
        }
        Ok(Self { seen: Some(seen), give: Box::new(give) })
    }

    /// Memory that nobody can read.
    pub(crate) fn unseen(give: impl FnOnce(&Driver) -> Result<(), Failed> + 'static) -> Self {
        Self { seen: None, give: Box::new(give) }
    }

    pub(crate) fn give(self, driver: &Driver) -> Result<(), Failed> {
        (self.give)(driver)
    }

    /// Reads what was written.
    pub(crate) fn check(&self, driver: &Driver) -> Result<(), Failed> {
        let Some(seen) = self.seen else { return Ok(()) };
        for end in seen.ends() {
            let mut byte = 0_u8;
            call!(driver, "cuMemcpyDtoH" "_v2" (*mut c_void, u64, usize)((&raw mut byte).cast(), end, 1))?;
            assert_eq!(byte, seen.mark, "what was written at {end:#x} is not there any more");
        }
        Ok(())
    }
}

impl Seen {
    fn ends(self) -> [u64; 2] {
        [self.at, self.at + self.bytes as u64 - 1]
    }
}
