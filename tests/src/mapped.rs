//! A segment mapped without the client library, and patterns by which memory is told apart.
//!
//! Unlike the library's mapping a forked child inherits this one, and descriptors may be kept.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use gpulease_cuda::{Context, DevicePtr, Driver, Mapping};
use gpulease_words::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// How much is written or compared at a time.
const PIECE: usize = 2 << 20;

/// Mapped memory of one segment; unmapped when dropped.
#[derive(Debug)]
pub enum Mapped {
    /// Memory files, each mapped on its own.
    Host(Vec<HostChunk>),
    /// A GPU's memory.
    Cuda(Context, Mapping),
}

/// A mapped memory file.
#[derive(Debug)]
pub struct HostChunk {
    base: NonNull<c_void>,
    bytes: Bytes,
}

// SAFETY: the range belongs to this value alone, wherever it goes.
unsafe impl Send for HostChunk {}
// SAFETY: it is read and written through `&mut Mapped` or by this process's one command at a time.
unsafe impl Sync for HostChunk {}

/// The word that a pattern has at a place: every seed differs from every other in nearly all of them.
const fn word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(index);
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) | 1
}

impl Mapped {
    /// Maps host memory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn host(chunks: &[(OwnedFd, Bytes)]) -> Result<Self, String> {
        let chunks = chunks.iter().map(|(descriptor, bytes)| HostChunk::map(descriptor, *bytes));
        Ok(Self::Host(chunks.collect::<Result<_, _>>()?))
    }

    /// Maps a GPU's memory on the device of this UUID.
    ///
    /// # Errors
    /// What the driver says.
    pub fn cuda(uuid: &str, chunks: &[(OwnedFd, Bytes)]) -> Result<Self, String> {
        let context = context(uuid)?;
        let chunks: Vec<_> = chunks.iter().map(|(descriptor, bytes)| (descriptor.as_fd(), *bytes)).collect();
        let mapping = Mapping::of_descriptors(&context, &chunks).map_err(|error| error.to_string())?;
        Ok(Self::Cuda(context, mapping))
    }

    /// Writes a seed's pattern over all of it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&mut self, seed: u64) -> Result<(), String> {
        match self {
            Self::Host(chunks) => {
                let mut at = 0;
                for piece in chunks.iter_mut().flat_map(|chunk| chunk.slice_mut().chunks_mut(PIECE)) {
                    write_pattern(piece, seed, at);
                    at += piece.len() as u64;
                }
                Ok(())
            }
            Self::Cuda(context, mapping) => fill_device(context, mapping.ptr(), mapping.bytes(), seed),
        }
    }

    /// Compares all of it with a seed's pattern, or with zeros.
    ///
    /// # Errors
    /// The first place that differs; what the driver says.
    pub fn check(&self, seed: Option<u64>) -> Result<(), String> {
        match self {
            Self::Host(chunks) => {
                let mut at = 0;
                for piece in chunks.iter().flat_map(|chunk| chunk.slice().chunks(PIECE)) {
                    compare(piece, seed, at)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
            Self::Cuda(context, mapping) => check_device(context, mapping.ptr(), mapping.bytes(), seed),
        }
    }
}

impl HostChunk {
    fn map(descriptor: &OwnedFd, bytes: Bytes) -> Result<Self, String> {
        let (access, length) = (ProtFlags::READ | ProtFlags::WRITE, size(bytes));
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        let base = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, descriptor, 0) }
            .map_err(|errno| errno.to_string())?;
        Ok(Self { base: NonNull::new(base).expect("the kernel maps nothing at zero unasked"), bytes })
    }

    fn slice(&self) -> &[u8] {
        // SAFETY: the range is mapped while `self` lives; the broker never writes to lent memory.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), size(self.bytes)) }
    }

    fn slice_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only reference of this process.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), size(self.bytes)) }
    }
}

impl Drop for HostChunk {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and every reference into it borrowed `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr(), size(self.bytes)) };
        unmapped.expect("a range that was mapped can be unmapped");
    }
}

/// The primary context of the device with this UUID.
///
/// # Errors
/// Where there is none, or the driver fails.
pub fn context(uuid: &str) -> Result<Context, String> {
    let driver = Driver::load().map_err(|why| why.to_string())?;
    let uuid = uuid.parse().map_err(|error| format!("{uuid}: {error}"))?;
    let device = driver.device(uuid).map_err(|error| error.to_string())?;
    let device = device.ok_or_else(|| format!("this process sees no device {uuid}"))?;
    Context::retain(device).map_err(|error| error.to_string())
}

/// Writes a seed's pattern over a device range that this process has mapped.
///
/// # Errors
/// What the driver says.
pub fn fill_device(context: &Context, to: DevicePtr, bytes: Bytes, seed: u64) -> Result<(), String> {
    let mut piece = vec![0; PIECE];
    for at in (0..bytes.get()).step_by(PIECE) {
        let length = PIECE.min(size(Bytes::new(bytes.get() - at)));
        write_pattern(&mut piece[..length], seed, at);
        // SAFETY: the range is mapped by this process, which does one command at a time.
        let copied = unsafe { context.copy_to_device(to.offset(Bytes::new(at)), &piece[..length]) };
        copied.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compares a device range with a seed's pattern, or with zeros.
///
/// # Errors
/// The first place that differs; what the driver says.
pub fn check_device(
    context: &Context,
    from: DevicePtr,
    bytes: Bytes,
    seed: Option<u64>,
) -> Result<(), String> {
    let mut piece = vec![0; PIECE];
    for at in (0..bytes.get()).step_by(PIECE) {
        let length = PIECE.min(size(Bytes::new(bytes.get() - at)));
        // SAFETY: the range is mapped by this process, which does one command at a time.
        let copied = unsafe { context.copy_to_host(&mut piece[..length], from.offset(Bytes::new(at))) };
        copied.map_err(|error| error.to_string())?;
        compare(&piece[..length], seed, at)?;
    }
    Ok(())
}

/// Writes a seed's pattern as it is from this place on.
pub fn write_pattern(piece: &mut [u8], seed: u64, at: u64) {
    for (index, place) in (at / 8..).zip(piece.chunks_exact_mut(8)) {
        place.copy_from_slice(&word(seed, index).to_le_bytes());
    }
}

/// Compares bytes with a seed's pattern from this place on, or with zeros.
///
/// # Errors
/// The first place that differs.
pub fn compare(piece: &[u8], seed: Option<u64>, at: u64) -> Result<(), String> {
    let mut wanted = vec![0; piece.len()];
    if let Some(seed) = seed {
        write_pattern(&mut wanted, seed, at);
    }
    if piece == wanted {
        return Ok(());
    }
    let place = piece.iter().zip(&wanted).position(|(is, should)| is != should).unwrap_or(0);
    let (is, should) = (piece[place], wanted[place]);
    Err(format!("differs at {}: {is:#04x} is there, {should:#04x} should be", at + place as u64))
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).expect("hosts of GPUs have 64-bit addresses")
}
