//! A client of the broker with memory of a GPU, step by step.

use std::error::Error;
use std::sync::Arc;

use gpulease_client::blocking::{Client, Lease, Segment};
use gpulease_client::{AccessError, DeviceKind, Resident};
use gpulease_cuda::cudarc::driver::{CudaContext, CudaStream};
use gpulease_cuda::{Context, DevicePtr, Driver};
use gpulease_tests::mapped::{check_device, fill_device};
use gpulease_words::Bytes;

/// A lease and what it has taken.
pub(crate) struct Tenant {
    segments: Vec<Segment>,
    lease: Lease,
    stream: Arc<CudaStream>,
}

impl Tenant {
    /// A lease on the broker's first GPU.
    pub(crate) fn lease(socket: &str, reserve: Bytes, limit: Bytes) -> Result<Self, Box<dyn Error>> {
        let client = Client::connect_to(socket)?;
        let device = client.devices().iter().find(|device| device.kind == DeviceKind::Cuda);
        let device = device.ok_or("the broker has no GPU")?;
        let lease = client.lease(reserve).up_to(limit).on_devices([device.id]).name("tenant").acquire()?;
        let here =
            Driver::load()?.device(device.uuid.parse()?)?.ok_or("this process does not see the GPU")?;
        let stream = CudaContext::new(here.ordinal())?.new_stream()?;
        Ok(Self { segments: Vec::new(), lease, stream })
    }

    /// One segment more.
    pub(crate) fn allocate(&mut self, bytes: Bytes) -> Result<String, Box<dyn Error>> {
        let segment = self.lease.allocation(bytes).no_wait().allocate()?;
        let size = segment.bytes();
        self.segments.push(segment);
        Ok(size.get().to_string())
    }

    /// Writes numbers to both ends of every segment and reads them back.
    pub(crate) fn touch(&mut self) -> Result<String, Box<dyn Error>> {
        let resident = self.lease.enter()?;
        let numbers: Vec<u32> = (0..1_000).collect();
        for segment in &mut self.segments {
            let address = segment.device_ptr(&resident)?;
            let mut view = segment.view_mut::<u32>(&resident, &self.stream)?;
            let last = view.len() - numbers.len();
            self.stream.memcpy_htod(&numbers, &mut view.slice_mut(..numbers.len()))?;
            self.stream.memcpy_htod(&numbers, &mut view.slice_mut(last..))?;
            let view = segment.view::<u32>(&resident, &self.stream)?;
            for part in [view.slice(..numbers.len()), view.slice(last..)] {
                if self.stream.clone_dtoh(&part)? != numbers {
                    return Err("what was written did not come back".into());
                }
            }
            if !matches!(segment.as_slice::<u8>(&resident), Err(AccessError::OtherKind { .. })) {
                return Err("memory of a GPU was given out as a slice".into());
            }
            if segment.device_ptr(&resident)? != address {
                return Err("the address moved".into());
            }
        }
        Ok(String::new())
    }

    /// Writes a pattern over every segment; says their addresses.
    pub(crate) fn fill(&mut self, seed: u64) -> Result<String, Box<dyn Error>> {
        let resident = self.lease.enter()?;
        let context = self.context()?;
        for segment in &self.segments {
            let at = DevicePtr::from_raw(segment.device_ptr(&resident)?);
            fill_device(&context, at, segment.bytes(), seed)?;
        }
        self.addresses(&resident)
    }

    /// Waits for the memory and compares all of it with a pattern; says the segments' addresses.
    pub(crate) fn check(&mut self, seed: u64) -> Result<String, Box<dyn Error>> {
        let resident = self.lease.enter()?;
        let context = self.context()?;
        for segment in &self.segments {
            let at = DevicePtr::from_raw(segment.device_ptr(&resident)?);
            check_device(&context, at, segment.bytes(), Some(seed))?;
        }
        self.addresses(&resident)
    }

    fn addresses(&self, resident: &Resident<'_>) -> Result<String, Box<dyn Error>> {
        let addresses = self.segments.iter().map(|segment| segment.device_ptr(resident));
        let addresses: Vec<String> =
            addresses.map(|at| Ok(format!("{:#x}", at?))).collect::<Result<_, AccessError>>()?;
        Ok(addresses.join(" "))
    }

    fn context(&self) -> Result<Context, Box<dyn Error>> {
        let ordinal = self.stream.context().ordinal();
        let device = Driver::load()?.devices()?.get(ordinal).copied().ok_or("the GPU is gone")?;
        Ok(Context::retain(device)?)
    }

    /// Gives every segment back.
    pub(crate) fn free(&mut self) -> Result<String, Box<dyn Error>> {
        for segment in self.segments.drain(..) {
            segment.free()?;
        }
        Ok(String::new())
    }
}
