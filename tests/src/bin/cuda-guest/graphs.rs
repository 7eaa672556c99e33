//! Memory of graphs.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null, null_mut};

use crate::doors::{Driver, Failed, call};
use crate::linear::free;
use crate::pools::{PLAIN, Properties};
use crate::virtual_memory::{HERE, Location};
use crate::ways::Taken;

const ALLOCATE: c_uint = 10;
const NON_BLOCKING: c_uint = 1;
const RELAXED: c_uint = 2;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
struct Allocation {
    properties: Properties,
    rights: *const Right,
    rights_count: usize,
    bytes: usize,
    at: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Right {
    location: Location,
    flags: c_uint,
}

/// `CUgraphNodeParams` of a node that allocates.
#[repr(C)]
struct AnyNode {
    kind: c_uint,
    reserved: [c_int; 3],
    allocation: Allocation,
    rest: [u8; 232 - size_of::<Allocation>()],
    reserved_too: i64,
}

fn allocation(bytes: usize) -> Allocation {
    Allocation { properties: PLAIN, rights: null(), rights_count: 0, bytes, at: 0 }
}

pub(crate) fn of_node(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    with_graph(driver, |graph| {
        let (right, mut wanted, mut node) =
            (Right { location: HERE, flags: 3 }, allocation(bytes), null_mut());
        (wanted.rights, wanted.rights_count) = (&raw const right, 1);
        call!(driver, "cuGraphAddMemAllocNode" "" (*mut *mut c_void, *mut c_void, *const c_void, usize, *mut Allocation)
            (&raw mut node, graph, null(), 0, &raw mut wanted))?;
        launch(driver, graph)?;
        freed_by_trim(driver, wanted.at, bytes, mark)
    })
}

pub(crate) fn of_any_node(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    with_graph(driver, |graph| {
        let mut node = null_mut();
        let mut wanted = AnyNode {
            kind: ALLOCATE,
            reserved: [0; 3],
            allocation: allocation(bytes),
            rest: [0; 232 - size_of::<Allocation>()],
            reserved_too: 0,
        };
        // Since CUDA 12.3 the name means the form that takes edges, too.
        call!(driver, "cuGraphAddNode" "_v2"
            (*mut *mut c_void, *mut c_void, *const c_void, *const c_void, usize, *mut AnyNode)
            (&raw mut node, graph, null(), null(), 0, &raw mut wanted))?;
        launch(driver, graph)?;
        freed_by_trim(driver, wanted.allocation.at, bytes, mark)
    })
}

/// `cuMemAllocAsync` while a stream is captured.
pub(crate) fn captured(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (mut stream, mut graph, mut at) = (null_mut(), null_mut(), 0);
    call!(driver, "cuStreamCreate" "" (*mut *mut c_void, c_uint)(&raw mut stream, NON_BLOCKING))?;
    call!(driver, "cuStreamBeginCapture" "_v2" (*mut c_void, c_uint)(stream, RELAXED))?;
    let allocated =
        call!(driver, "cuMemAllocAsync" "" (*mut u64, usize, *mut c_void)(&raw mut at, bytes, stream));
    let ended =
        call!(driver, "cuStreamEndCapture" "" (*mut c_void, *mut *mut c_void)(stream, &raw mut graph));
    call!(driver, "cuStreamDestroy" "_v2" (*mut c_void)(stream))?;
    allocated?;
    ended?;
    let launched = launch(driver, graph);
    call!(driver, "cuGraphDestroy" "" (*mut c_void)(graph))?;
    launched?;
    freed_by_trim(driver, at, bytes, mark)
}

fn with_graph(
    driver: &Driver,
    make: impl FnOnce(*mut c_void) -> Result<Taken, Failed>,
) -> Result<Taken, Failed> {
    let mut graph = null_mut();
    call!(driver, "cuGraphCreate" "" (*mut *mut c_void, c_uint)(&raw mut graph, 0))?;
    let taken = make(graph);
    call!(driver, "cuGraphDestroy" "" (*mut c_void)(graph))?;
    taken
}

/// Launches it once; what it allocates is there afterwards.
fn launch(driver: &Driver, graph: *mut c_void) -> Result<(), Failed> {
    let mut ready = null_mut();
    call!(driver, "cuGraphInstantiateWithFlags" "" (*mut *mut c_void, *mut c_void, c_ulonglong)(&raw mut ready, graph, 0))?;
    let launched = call!(driver, "cuGraphLaunch" "" (*mut c_void, *mut c_void)(ready, null_mut()));
    let waited = driver.synchronize();
    call!(driver, "cuGraphExecDestroy" "" (*mut c_void)(ready))?;
    launched.and(waited)
}

fn freed_by_trim(driver: &Driver, at: u64, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    Taken::at(driver, at, bytes, mark, move |driver| {
        free(driver, at)?;
        call!(driver, "cuDeviceGraphMemTrim" "" (c_int)(0))
    })
}
