//! Fills, done when the call returns.

use std::ffi::c_void;

use crate::addresses::{Access, pointer};
use crate::capture::Step;
use crate::code::{Code, Outcome};
use crate::copy::check;
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::{Kind, Node};
use crate::pointer::{handle, put};

const LEGACY: *mut c_void = std::ptr::null_mut();

/// `CUDA_MEMSET_NODE_PARAMS`, which is what every fill is: rows of elements.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    at: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

impl Fill {
    fn row(at: u64, value: u32, element: u32, width: usize) -> Self {
        Self { at, pitch: 0, value, element, width, height: 1 }
    }

    fn make(self, driver: &Driver) -> Outcome {
        let row = self.width.checked_mul(self.element as usize).ok_or(Code::INVALID_VALUE)?;
        let starts = (0..self.height as u64).map(|index| self.at + index * self.pitch as u64);
        for at in starts {
            check(driver, at, row, Access::Write)?;
            let value = &self.value.to_le_bytes()[..self.element as usize];
            // SAFETY: the range is mapped for writing; device memory has no Rust references.
            let row = unsafe { std::slice::from_raw_parts_mut(pointer(at).cast::<u8>(), row) };
            match value {
                [byte] => row.fill(*byte),
                _ => row.chunks_exact_mut(value.len()).for_each(|element| element.copy_from_slice(value)),
            }
        }
        Ok(())
    }

    fn submit(self, driver: &Driver, stream: *mut c_void) -> Outcome {
        driver.submit(stream, Kind::Fill, move |driver| self.make(driver))
    }
}

entry_points! {
    3020 & cuMemsetD8_v2_ptds fn cuMemsetD8_v2(driver, at: u64, value: u8, width: usize) {
        Fill::row(at, u32::from(value), 1, width).submit(driver, LEGACY)
    }

    3020 & cuMemsetD16_v2_ptds fn cuMemsetD16_v2(driver, at: u64, value: u16, width: usize) {
        Fill::row(at, u32::from(value), 2, width).submit(driver, LEGACY)
    }

    3020 & cuMemsetD32_v2_ptds fn cuMemsetD32_v2(driver, at: u64, value: u32, width: usize) {
        Fill::row(at, value, 4, width).submit(driver, LEGACY)
    }

    3020 & cuMemsetD8Async_ptsz fn cuMemsetD8Async(driver, at: u64, value: u8, width: usize, stream: *mut c_void) {
        Fill::row(at, u32::from(value), 1, width).submit(driver, stream)
    }

    3020 & cuMemsetD16Async_ptsz fn cuMemsetD16Async(driver, at: u64, value: u16, width: usize, stream: *mut c_void) {
        Fill::row(at, u32::from(value), 2, width).submit(driver, stream)
    }

    3020 & cuMemsetD32Async_ptsz fn cuMemsetD32Async(driver, at: u64, value: u32, width: usize, stream: *mut c_void) {
        Fill::row(at, value, 4, width).submit(driver, stream)
    }

    3020 & cuMemsetD2D8_v2_ptds fn cuMemsetD2D8_v2(driver, at: u64, pitch: usize, value: u8, width: usize, height: usize) {
        Fill { at, pitch, value: u32::from(value), element: 1, width, height }.submit(driver, LEGACY)
    }

    3020 & cuMemsetD2D16_v2_ptds fn cuMemsetD2D16_v2(driver, at: u64, pitch: usize, value: u16, width: usize, height: usize) {
        Fill { at, pitch, value: u32::from(value), element: 2, width, height }.submit(driver, LEGACY)
    }

    3020 & cuMemsetD2D32_v2_ptds fn cuMemsetD2D32_v2(driver, at: u64, pitch: usize, value: u32, width: usize, height: usize) {
        Fill { at, pitch, value, element: 4, width, height }.submit(driver, LEGACY)
    }

    3020 & cuMemsetD2D8Async_ptsz fn cuMemsetD2D8Async(
        driver, at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: *mut c_void,
    ) {
        Fill { at, pitch, value: u32::from(value), element: 1, width, height }.submit(driver, stream)
    }

    3020 & cuMemsetD2D16Async_ptsz fn cuMemsetD2D16Async(
        driver, at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: *mut c_void,
    ) {
        Fill { at, pitch, value: u32::from(value), element: 2, width, height }.submit(driver, stream)
    }

    3020 & cuMemsetD2D32Async_ptsz fn cuMemsetD2D32Async(
        driver, at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: *mut c_void,
    ) {
        Fill { at, pitch, value, element: 4, width, height }.submit(driver, stream)
    }

    10000 fn cuGraphAddMemsetNode(
        driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize, fill: *const Fill, _context: *mut c_void,
    ) {
        // SAFETY: the header wants a pointer to parameters, or null.
        let fill = *unsafe { fill.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        if !matches!(fill.element, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        let work = std::sync::Arc::new(move |driver: &Driver| fill.make(driver));
        let node = driver.state().graphs.add(graph.addr(), Node::new(Step::Work { kind: Kind::Fill, work }))?;
        // SAFETY: the header wants a pointer to a node, or null.
        unsafe { put(out, handle(node)) }
    }
}
