//! Memory of graphs: nodes that allocate and free, and what each device keeps for them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::Origin;
use crate::capture::Step;
use crate::code::{Code, Outcome};
use crate::driver::{Driver, Held};
use crate::entry::entry_points;
use crate::graph::{Graphs, Node};
use crate::pointer::{handle, put};
use crate::pool_properties::Properties;
use crate::pools::Gauge;
use crate::vmm::create;

const ALLOCATE: u32 = 10;
const FREE: u32 = 11;

/// What each device has for graphs.
#[derive(Default)]
pub(crate) struct GraphMemory(BTreeMap<u32, Kept>);

#[derive(Default)]
struct Kept {
    free: Vec<Arc<Held>>,
    used: Gauge,
    reserved: Gauge,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
struct AllocateParameters {
    properties: Properties,
    rights: *const c_void,
    rights_count: usize,
    size: usize,
    at: u64,
}

/// `CUgraphNodeParams`, of which this driver knows the two kinds here.
#[repr(C)]
struct NodeParameters {
    kind: u32,
    reserved: [i32; 3],
    of_kind: [u64; 29],
    reserved_too: i64,
}

/// Puts memory behind an allocation of a graph that is launched.
pub(crate) fn allocate(driver: &Driver, at: u64, asked: u64, device: u32) -> Outcome {
    if driver.state().addresses.starting(at).is_some() {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = Bytes::new(asked).round_up().ok_or(Code::OUT_OF_MEMORY)?;
    let fits = |held: &Arc<Held>| held.memory().bytes() == bytes;
    let mut state = driver.state();
    let kept = state.graph_memory.0.entry(device).or_default();
    let held = match kept.free.iter().position(fits) {
        Some(index) => kept.free.swap_remove(index),
        None => {
            let held = Arc::new(create(driver, device, bytes)?);
            kept.reserved.add(bytes.get());
            held
        }
    };
    kept.used.add(bytes.get());
    state.addresses.back(at, asked, held)
}

/// Takes the memory from behind an allocation of a graph; its device keeps it for other graphs.
pub(crate) fn free(driver: &Driver, at: u64) -> Outcome {
    let mut state = driver.state();
    match state.addresses.starting(at).map(|mapping| mapping.origin) {
        Some(Origin::Graph { .. }) => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    let held = state.addresses.unback(at)?;
    let (device, size) = (held.memory().device(), held.memory().bytes().get());
    let kept = state.graph_memory.0.entry(device).or_default();
    kept.used.now = kept.used.now.saturating_sub(size);
    kept.free.push(held);
    Ok(())
}

fn add_allocation(driver: &Driver, graph: usize, parameters: &mut AllocateParameters) -> Result<usize, Code> {
    let device = driver.device(parameters.properties.device()?)?;
    let bytes = Bytes::new(parameters.size as u64).round_up().filter(|bytes| !bytes.is_zero());
    let mut state = driver.state();
    let at = state.addresses.reserve(bytes.ok_or(Code::INVALID_VALUE)?.get())?;
    parameters.at = at;
    let step = Step::Allocate { at, asked: parameters.size as u64, device };
    state.graphs.add(graph, Node::new(step))
}

fn add_free(graphs: &mut Graphs, graph: usize, at: u64) -> Result<usize, Code> {
    graphs.add(graph, Node::new(Step::Free { at }))
}

entry_points! {
    11040 fn cuGraphAddMemAllocNode(
        driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize, parameters: *mut AllocateParameters,
    ) {
        // SAFETY: the header wants a pointer to parameters, or null.
        let parameters = unsafe { parameters.as_mut() }.ok_or(Code::INVALID_VALUE)?;
        let node = add_allocation(driver, graph.addr(), parameters)?;
        // SAFETY: the header wants a pointer to a node, or null.
        unsafe { put(out, handle(node)) }
    }

    11040 fn cuGraphAddMemFreeNode(driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize, at: u64) {
        let node = add_free(&mut driver.state().graphs, graph.addr(), at)?;
        // SAFETY: as above.
        unsafe { put(out, handle(node)) }
    }

    12020 fn cuGraphAddNode(
        driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize, parameters: *mut NodeParameters,
    ) {
        // SAFETY: the header wants pointers to a node and to parameters, or null.
        unsafe { add(driver, out, graph.addr(), parameters) }
    }

    12030 fn cuGraphAddNode_v2(
        driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _edges: *const c_void, _count: usize,
        parameters: *mut NodeParameters,
    ) {
        // SAFETY: as above.
        unsafe { add(driver, out, graph.addr(), parameters) }
    }

    11040 fn cuDeviceGraphMemTrim(driver, device: i32) {
        let device = driver.device(device)?;
        let mut state = driver.state();
        let kept = state.graph_memory.0.entry(device).or_default();
        kept.free.clear();
        kept.reserved.now = kept.used.now;
        Ok(())
    }

    11040 fn cuDeviceGetGraphMemAttribute(driver, device: i32, attribute: u32, out: *mut u64) {
        let device = driver.device(device)?;
        let mut state = driver.state();
        let kept = state.graph_memory.0.entry(device).or_default();
        let value = match attribute {
            0 => kept.used.now,
            1 => kept.used.high,
            2 => kept.reserved.now,
            3 => kept.reserved.high,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: the header wants a pointer to 64 bits, or null.
        unsafe { put(out, value) }
    }

    11040 fn cuDeviceSetGraphMemAttribute(driver, device: i32, attribute: u32, _value: *mut u64) {
        let device = driver.device(device)?;
        let mut state = driver.state();
        let kept = state.graph_memory.0.entry(device).or_default();
        match attribute {
            1 => kept.used.high = kept.used.now,
            3 => kept.reserved.high = kept.reserved.now,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}

/// # Safety
/// Both pointers are null or may be written to.
unsafe fn add(
    driver: &Driver,
    out: *mut *mut c_void,
    graph: usize,
    parameters: *mut NodeParameters,
) -> Outcome {
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters.as_mut() }.ok_or(Code::INVALID_VALUE)?;
    let node = match parameters.kind {
        ALLOCATE => {
            // SAFETY: for this kind the union is these parameters, which are no larger than it.
            let of_kind = unsafe { &mut *parameters.of_kind.as_mut_ptr().cast::<AllocateParameters>() };
            add_allocation(driver, graph, of_kind)?
        }
        FREE => add_free(&mut driver.state().graphs, graph, parameters.of_kind[0])?,
        _ => return Err(Code::NOT_SUPPORTED),
    };
    // SAFETY: the caller's promise.
    unsafe { put(out, handle(node)) }
}
