//! Graphs: nodes that run one after the other, in the order in which they were added.

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::capture::Step;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph_memory;
use crate::pointer::{handle, put};

/// Memory of allocations that are still out is freed by the next launch.
const FREE_ON_LAUNCH: u64 = 1;

/// The graphs of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Graphs {
    made: usize,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    ready: BTreeMap<usize, Ready>,
}

/// A graph that is being made.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    nodes: Vec<(usize, Node)>,
}

/// A graph that can be launched.
#[derive(Clone)]
struct Ready {
    steps: Vec<Step>,
    flags: u64,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) step: Step,
}

/// `CUgraphNodeType`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    Copy,
    Fill,
    Host,
    Empty,
}

impl Node {
    pub(crate) fn new(step: Step) -> Self {
        Self { step }
    }

    fn kind(&self) -> u32 {
        match &self.step {
            Step::Work { kind: Kind::Kernel, .. } => 0,
            Step::Work { kind: Kind::Copy, .. } => 1,
            Step::Work { kind: Kind::Fill, .. } => 2,
            Step::Work { kind: Kind::Host, .. } => 3,
            Step::Work { kind: Kind::Empty, .. } => 5,
            Step::Allocate { .. } => 10,
            Step::Free { .. } => 11,
        }
    }
}

impl Graphs {
    fn number(&mut self) -> usize {
        self.made += 1;
        0x40_0000 + self.made * 16
    }

    pub(crate) fn make(&mut self, graph: Graph) -> usize {
        let number = self.number();
        self.graphs.insert(number, graph);
        number
    }

    pub(crate) fn get(&mut self, graph: usize) -> Result<&mut Graph, Code> {
        self.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn add(&mut self, graph: usize, node: Node) -> Result<usize, Code> {
        let number = self.number();
        self.get(graph)?.nodes.push((number, node));
        Ok(number)
    }

    fn node(&self, number: usize) -> Result<&Node, Code> {
        let mut all = self.graphs.values().flat_map(|graph| &graph.nodes);
        all.find(|(known, _)| *known == number).map(|(_, node)| node).ok_or(Code::INVALID_VALUE)
    }
}

impl Driver {
    fn instantiate(&self, graph: *mut c_void, flags: u64) -> Result<*mut c_void, Code> {
        let mut state = self.state();
        let steps = state.graphs.get(graph.addr())?.nodes.iter().map(|(_, node)| node.step.clone()).collect();
        let number = state.graphs.number();
        state.graphs.ready.insert(number, Ready { steps, flags });
        Ok(handle(number))
    }

    fn launch(&self, ready: *mut c_void) -> Outcome {
        let Ready { steps, flags } =
            self.state().graphs.ready.get(&ready.addr()).cloned().ok_or(Code::INVALID_VALUE)?;
        for step in &steps {
            if let Step::Allocate { at, .. } = step
                && flags & FREE_ON_LAUNCH != 0
                && self.state().addresses.starting(*at).is_some()
            {
                graph_memory::free(self, *at)?;
            }
        }
        steps.into_iter().try_for_each(|step| match step {
            Step::Work { work, .. } => work(self),
            Step::Allocate { at, asked, device } => graph_memory::allocate(self, at, asked, device),
            Step::Free { at } => graph_memory::free(self, at),
        })
    }
}

entry_points! {
    10000 fn cuGraphCreate(driver, out: *mut *mut c_void, _flags: u32) {
        let graph = driver.state().graphs.make(Graph::default());
        // SAFETY: the header wants a pointer to a graph, or null.
        unsafe { put(out, handle(graph)) }
    }

    10000 fn cuGraphDestroy(driver, graph: *mut c_void) {
        driver.state().graphs.graphs.remove(&graph.addr()).map(drop).ok_or(Code::INVALID_VALUE)
    }

    10000 fn cuGraphClone(driver, out: *mut *mut c_void, graph: *mut c_void) {
        let mut state = driver.state();
        let copy = state.graphs.get(graph.addr())?.clone();
        let number = state.graphs.make(copy);
        // SAFETY: as above.
        unsafe { put(out, handle(number)) }
    }

    10000 fn cuGraphGetNodes(driver, graph: *mut c_void, out: *mut *mut c_void, count: *mut usize) {
        let mut state = driver.state();
        let nodes = &state.graphs.get(graph.addr())?.nodes;
        // SAFETY: the header wants a pointer to a count, or null.
        let room = *unsafe { count.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        if !out.is_null() {
            for (index, (number, _)) in nodes.iter().take(room).enumerate() {
                // SAFETY: the header wants room for as many nodes as the count says.
                unsafe { out.add(index).write(handle(*number)) };
            }
        }
        // SAFETY: as above.
        unsafe { put(count, nodes.len()) }
    }

    10000 fn cuGraphNodeGetType(driver, node: *mut c_void, out: *mut u32) {
        let kind = driver.state().graphs.node(node.addr())?.kind();
        // SAFETY: the header wants a pointer to a type, or null.
        unsafe { put(out, kind) }
    }

    10000 fn cuGraphDestroyNode(driver, node: *mut c_void) {
        let mut state = driver.state();
        state.graphs.node(node.addr())?;
        for graph in state.graphs.graphs.values_mut() {
            graph.nodes.retain(|(number, _)| *number != node.addr());
        }
        Ok(())
    }

    10000 fn cuGraphAddDependencies(driver, graph: *mut c_void, _from: *const c_void, _to: *const c_void, _count: usize) {
        driver.state().graphs.get(graph.addr()).map(drop)
    }

    11000 fn cuGraphInstantiate_v2(
        driver, out: *mut *mut c_void, graph: *mut c_void, _node: *mut *mut c_void, _log: *mut i8, _room: usize,
    ) {
        let ready = driver.instantiate(graph, 0)?;
        // SAFETY: the header wants a pointer to an executable graph, or null.
        unsafe { put(out, ready) }
    }

    11040 fn cuGraphInstantiateWithFlags(driver, out: *mut *mut c_void, graph: *mut c_void, flags: u64) {
        let ready = driver.instantiate(graph, flags)?;
        // SAFETY: as above.
        unsafe { put(out, ready) }
    }

    12000 & cuGraphInstantiateWithParams_ptsz fn cuGraphInstantiateWithParams(
        driver, out: *mut *mut c_void, graph: *mut c_void, parameters: *mut InstantiateParameters,
    ) {
        // SAFETY: the header wants a pointer to parameters, or null.
        let parameters = unsafe { parameters.as_mut() }.ok_or(Code::INVALID_VALUE)?;
        (parameters.failed_node, parameters.result) = (std::ptr::null_mut(), 0);
        let ready = driver.instantiate(graph, parameters.flags)?;
        // SAFETY: as above.
        unsafe { put(out, ready) }
    }

    10000 fn cuGraphExecDestroy(driver, ready: *mut c_void) {
        driver.state().graphs.ready.remove(&ready.addr()).map(drop).ok_or(Code::INVALID_VALUE)
    }

    11010 & cuGraphUpload_ptsz fn cuGraphUpload(driver, ready: *mut c_void, stream: *mut c_void) {
        driver.check_stream(stream)?;
        if driver.state().graphs.ready.contains_key(&ready.addr()) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    10000 & cuGraphLaunch_ptsz fn cuGraphLaunch(driver, ready: *mut c_void, stream: *mut c_void) {
        driver.check_stream(stream)?;
        if driver.is_capturing(stream)? {
            return Err(Code::NOT_SUPPORTED);
        }
        driver.launch(ready)
    }

    10000 fn cuGraphAddEmptyNode(driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize) {
        let empty = Step::Work { kind: Kind::Empty, work: std::sync::Arc::new(|_| Ok(())) };
        let node = driver.state().graphs.add(graph.addr(), Node::new(empty))?;
        // SAFETY: the header wants a pointer to a node, or null.
        unsafe { put(out, handle(node)) }
    }
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
struct InstantiateParameters {
    flags: u64,
    stream: *mut c_void,
    failed_node: *mut c_void,
    result: u32,
}
