//! A segment that is swapped out and back, by the client library's own engine.

use std::error::Error;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use gpulease_client::swap::{HostCopy, Lane, Site, Sums};
use gpulease_cuda::{Context, Mapping};
use gpulease_tests::mapped::{check_device, compare, fill_device, write_pattern};
use gpulease_words::Bytes;

/// A mapped segment with its host copy.
pub(crate) struct Swapper {
    site: Site,
    copy: HostCopy,
    lane: Lane,
    sums: Option<Sums>,
    /// Of a GPU's memory.
    mapped: Option<(Context, Mapping)>,
}

impl Swapper {
    /// Maps the chunks, in this context or as host memory, and page-locks the host copy where a GPU lets it.
    pub(crate) fn map(
        context: Option<&Context>,
        chunks: &[(BorrowedFd<'_>, Bytes)],
        copy: &OwnedFd,
    ) -> Result<Self, Box<dyn Error>> {
        let bytes = chunks.iter().map(|(_, bytes)| *bytes).sum();
        let copy = HostCopy::map(copy.as_fd(), bytes)?;
        let Some(context) = context else {
            return Ok(Self { site: Site::host(chunks)?, copy, lane: Lane::Host, sums: None, mapped: None });
        };
        // It works without, as in the library.
        let _ = copy.register(context);
        let mapping = Mapping::of_descriptors(context, chunks)?;
        let (site, lane) = (Site::of(&mapping), Lane::cuda(context)?);
        Ok(Self { site, copy, lane, sums: None, mapped: Some((context.clone(), mapping)) })
    }

    /// Copies it out and unmaps it.
    pub(crate) fn out(&mut self) -> Result<String, Box<dyn Error>> {
        // SAFETY: the puppet does one command at a time, and each is done when it answers.
        let (sums, vacated) = unsafe { self.lane.out(&self.site, &self.copy, || self.site.vacate()) }?;
        vacated?;
        let memory = if self.copy.is_registered() { "pinned" } else { "pageable" };
        let said = format!("{memory}, sums {}", sums.kind());
        self.sums = Some(sums);
        Ok(said)
    }

    /// Maps these chunks where it was and copies it back in.
    pub(crate) fn back(&mut self, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<String, Box<dyn Error>> {
        self.site.occupy(chunks)?;
        let sums = self.sums.as_ref().ok_or("it was never out")?;
        // SAFETY: as above.
        unsafe { self.lane.back(&self.site, &self.copy, sums) }?;
        Ok(self.address())
    }

    /// Gives the memory up again, after a way back that failed.
    pub(crate) fn vacate(&mut self) -> Result<String, Box<dyn Error>> {
        // SAFETY: as above.
        unsafe { self.site.vacate() }?;
        Ok(String::new())
    }

    /// Makes the lane anew.
    pub(crate) fn renew_lane(&mut self) -> Result<String, Box<dyn Error>> {
        self.lane = match &self.mapped {
            Some((context, _)) => Lane::cuda(context)?,
            None => Lane::Host,
        };
        Ok(String::new())
    }

    /// Its first address.
    pub(crate) fn address(&self) -> String {
        format!("{:#x}", self.site.address())
    }

    /// Writes a pattern all over it.
    pub(crate) fn fill(&mut self, seed: u64) -> Result<String, Box<dyn Error>> {
        match &self.mapped {
            Some((context, mapping)) => fill_device(context, mapping.ptr(), mapping.bytes(), seed)?,
            None => write_pattern(self.host()?, seed, 0),
        }
        Ok(String::new())
    }

    /// Compares all of it with a pattern.
    pub(crate) fn check(&mut self, seed: u64) -> Result<String, Box<dyn Error>> {
        match &self.mapped {
            Some((context, mapping)) => check_device(context, mapping.ptr(), mapping.bytes(), Some(seed))?,
            None => compare(self.host()?, Some(seed), 0)?,
        }
        Ok(String::new())
    }

    fn host(&mut self) -> Result<&mut [u8], Box<dyn Error>> {
        let Site::Host(site) = &self.site else { return Err("it is memory of a GPU".into()) };
        let length = usize::try_from(site.bytes().get())?;
        // SAFETY: the test asks only while it is mapped, and the puppet does one command at a time.
        Ok(unsafe { std::slice::from_raw_parts_mut(site.start().as_ptr(), length) })
    }
}
