//! Arrays and mipmaps, managed memory, memory of graphs, and the heap and stacks of kernels: the driver's own memory,
//! [charged](crate::charged) to the lease. What opens memory to other processes is here, too.

use std::ffi::{c_int, c_uint, c_void};

use gpulease_client::Bytes;

use crate::charged::{Given, patiently};
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, check, code_of};
use crate::driver;
use crate::entries::real;
use crate::job::{self, Job};
use crate::report::Once;

/// Arrays without memory of their own.
const SPARSE: c_uint = 0x40;
const DEFERRED: c_uint = 0x80;

const STACK: c_uint = 0;
const PRINTED: c_uint = 1;
const HEAP: c_uint = 2;
/// The driver's own setting, which a context is made with.
const USUAL_STACK: usize = 1024;
const USUAL_PRINTED: usize = 1 << 20;
const USUAL_HEAP: usize = 8 << 20;
const PROCESSORS: c_uint = 16;
const THREADS_OF_A_PROCESSOR: c_uint = 39;

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
const MEMORY_NODE: c_uint = 10;

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: the properties of its pool, and what is asked for.
#[repr(C)]
pub(crate) struct MemoryNode {
    kind: c_uint,
    handle_types: c_uint,
    location: c_uint,
    device: c_int,
    pool: [u64; 9],
    rights: *const c_void,
    rights_count: usize,
    bytes: usize,
    at: u64,
}

/// The beginning of `CUgraphNodeParams`.
#[repr(C)]
pub(crate) struct AnyNode {
    kind: c_uint,
    reserved: [c_int; 3],
    memory: MemoryNode,
}

/// Something that is counted, where there is a job; else as the driver does it.
fn counted(
    bytes: impl FnOnce() -> Option<Bytes>,
    ask: impl Fn() -> Code,
    given: impl FnOnce() -> Given,
) -> Code {
    let served = || match (job::current()?, bytes()) {
        (Some(job), Some(bytes)) => {
            check(job.charges.take(job, driver::current_device()?, bytes, ask, given))
        }
        (None, _) | (_, None) => check(ask()),
    };
    code_of(served())
}

/// Something that is not there any more.
fn gone(code: Code, given: Given) -> Code {
    if code == SUCCESS
        && let Some(job) = job::if_joined()
    {
        job.charges.give(given);
    }
    code
}

/// `cuMemAllocManaged`
pub(crate) unsafe fn managed(out: *mut u64, bytes: usize, flags: c_uint) -> Code {
    // SAFETY: the caller's arguments, passed on; on success the driver has written the address.
    unsafe {
        counted(
            || Some(Bytes::new(bytes as u64)),
            || real::cuMemAllocManaged(out, bytes, flags),
            || Given::At(*out),
        )
    }
}

/// `cuArrayCreate`
pub(crate) unsafe fn create(out: *mut *mut c_void, shape: *const Flat) -> Code {
    // SAFETY: the caller's arguments, passed on; on success the driver has written the handle.
    unsafe {
        counted(
            || shape.as_ref().map(|shape| shape.bytes()),
            || real::cuArrayCreate_v2(out, shape),
            || Given::Array(*out as usize),
        )
    }
}

/// `cuArray3DCreate`
pub(crate) unsafe fn create_solid(out: *mut *mut c_void, shape: *const Solid) -> Code {
    // SAFETY: as in `create`.
    unsafe {
        counted(
            || shape.as_ref().map(|shape| shape.bytes()),
            || real::cuArray3DCreate_v2(out, shape),
            || Given::Array(*out as usize),
        )
    }
}

/// `cuArrayDestroy`
pub(crate) unsafe fn destroy(array: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    gone(unsafe { real::cuArrayDestroy(array) }, Given::Array(array as usize))
}

/// `cuMipmappedArrayCreate`: all its levels are a third more than the first.
pub(crate) unsafe fn create_mipmap(out: *mut *mut c_void, shape: *const Solid, levels: c_uint) -> Code {
    let all = |bytes: Bytes| Bytes::new(bytes.get().saturating_add(bytes.get() / 3));
    // SAFETY: as in `create`.
    unsafe {
        counted(
            || shape.as_ref().map(|shape| all(shape.bytes())),
            || real::cuMipmappedArrayCreate(out, shape, levels),
            || Given::Mipmap(*out as usize),
        )
    }
}

/// `cuMipmappedArrayDestroy`
pub(crate) unsafe fn destroy_mipmap(array: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    gone(unsafe { real::cuMipmappedArrayDestroy(array) }, Given::Mipmap(array as usize))
}

/// `cuCtxSetLimit`
pub(crate) unsafe fn limit(which: c_uint, value: usize) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let ask = || unsafe { real::cuCtxSetLimit(which, value) };
    let served = || {
        let Some(job) = job::current()?.filter(|_| matches!(which, STACK | PRINTED | HEAP)) else {
            return check(ask());
        };
        let device = driver::current_device()?;
        let bytes = beyond_usual(device, which, value);
        // The new setting is instead of the former one.
        let before = job.charges.strike(Given::Limit(device, which));
        let set = check(job.charges.take(job, device, bytes, ask, || Given::Limit(device, which)));
        if set.is_err() {
            job.charges.keep(Given::Limit(device, which), before);
        }
        set
    };
    code_of(served())
}

/// What a limit costs beyond what every context has of it.
fn beyond_usual(device: c_int, which: c_uint, value: usize) -> Bytes {
    let (usual, each) = match which {
        STACK => (USUAL_STACK, threads(device)),
        PRINTED => (USUAL_PRINTED, 1),
        _ => (USUAL_HEAP, 1),
    };
    Bytes::new((value.saturating_sub(usual) as u64).saturating_mul(each))
}

/// How many threads a device runs at one time, each with a stack.
fn threads(device: c_int) -> u64 {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the pointer is to an int of ours.
        let code = unsafe { driver::cuDeviceGetAttribute(&mut value, which, device) };
        u64::try_from(value).ok().filter(|_| code == SUCCESS).unwrap_or(1)
    };
    attribute(PROCESSORS).saturating_mul(attribute(THREADS_OF_A_PROCESSOR))
}

/// `cuGraphAddMemAllocNode`
pub(crate) unsafe fn memory_node(
    node: *mut *mut c_void,
    graph: *mut c_void,
    after: *const c_void,
    count: usize,
    memory: *mut MemoryNode,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let ask = || unsafe { real::cuGraphAddMemAllocNode(node, graph, after, count, memory) };
    // SAFETY: a pointer to the node's parameters, or null.
    for_graph(unsafe { memory.as_ref() }, ask)
}

/// `cuGraphAddNode`
pub(crate) unsafe fn node(
    node: *mut *mut c_void,
    graph: *mut c_void,
    after: *const c_void,
    count: usize,
    any: *mut AnyNode,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let ask = || unsafe { real::cuGraphAddNode(node, graph, after, count, any) };
    // SAFETY: a pointer to a node's parameters, or null.
    for_graph(unsafe { memory_of(any) }, ask)
}

/// `cuGraphAddNode` with data of edges.
pub(crate) unsafe fn node_v2(
    node: *mut *mut c_void,
    graph: *mut c_void,
    after: *const c_void,
    edges: *const c_void,
    count: usize,
    any: *mut AnyNode,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let ask = || unsafe { real::cuGraphAddNode_v2(node, graph, after, edges, count, any) };
    // SAFETY: a pointer to a node's parameters, or null.
    for_graph(unsafe { memory_of(any) }, ask)
}

/// # Safety
/// The pointer is to a node's parameters, or null.
unsafe fn memory_of<'a>(any: *mut AnyNode) -> Option<&'a MemoryNode> {
    // SAFETY: the kind stands first in all of them, and the rest is there for this kind.
    unsafe { if !any.is_null() && (*any).kind == MEMORY_NODE { Some(&(*any).memory) } else { None } }
}

/// A graph's memory comes when it is launched and is the driver's for as long as that keeps it, as it tells itself.
fn for_graph(memory: Option<&MemoryNode>, ask: impl Fn() -> Code) -> Code {
    let served = || {
        if let (Some(job), Some(memory)) = (job::current()?, memory) {
            job.charges.room(job, memory.device, Bytes::new(memory.bytes as u64))?;
        }
        check(ask())
    };
    code_of(served())
}

/// Memory that a stream takes for the graph that it records: where the lease has room.
pub(crate) fn recorded(job: &'static Job, bytes: usize, ask: impl Fn() -> Code) -> Code {
    let served = || {
        job.charges.room(job, driver::current_device()?, Bytes::new(bytes as u64))?;
        check(ask())
    };
    code_of(served())
}

/// Memory of a pool that is the driver's.
pub(crate) fn pooled(job: &'static Job, device: c_int, bytes: usize, ask: impl Fn() -> Code) -> Code {
    let served = || {
        let _aside = job.charges.set_aside(job, device, Bytes::new(bytes as u64))?;
        check(patiently(ask))
    };
    code_of(served())
}

/// `cuIpcGetMemHandle`: a segment has none.
pub(crate) unsafe fn ipc_handle(handle: *mut c_void, at: u64) -> Code {
    static REFUSED: Once = Once::new();
    let served = || {
        if let Some(job) = job::current()?
            && (job.heap.range_of(at).is_some() || job.vmm.range_of(at).is_some())
        {
            REFUSED.say(|| {
                "leased memory has no CUDA IPC handle (cuIpcGetMemHandle); share it through host memory, or take it \
                 with cuMemCreate for export"
                    .to_owned()
            });
            return Err(if handle.is_null() { INVALID_VALUE } else { NOT_SUPPORTED });
        }
        // SAFETY: the caller's arguments, passed on.
        check(unsafe { real::cuIpcGetMemHandle(handle, at) })
    };
    code_of(served())
}

impl Flat {
    fn bytes(&self) -> Bytes {
        bytes(&[self.width, self.height], self.format, self.channels)
    }
}

impl Solid {
    fn bytes(&self) -> Bytes {
        if self.flags & (SPARSE | DEFERRED) != 0 {
            return Bytes::ZERO;
        }
        bytes(&[self.width, self.height, self.depth], self.format, self.channels)
    }
}

/// A side of zero means that there is no such side. Formats that we don't know have 4 bytes a channel at the most.
fn bytes(sides: &[usize], format: c_uint, channels: c_uint) -> Bytes {
    let element = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    let each = u64::from(channels.max(1)) * element;
    Bytes::new(sides.iter().fold(each, |bytes, side| bytes.saturating_mul((*side).max(1) as u64)))
}
