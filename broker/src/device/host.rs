//! Host memory as a device: one memfd for each segment.
//!
//! The broker keeps a description of its own and hands over another one; that its own is the last
//! is the proof of freedom ([`memory_file`](crate::memory_file)).

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, Pid, SegmentId};
use rustix::io::Errno;

use crate::memory_file;

use super::holders::{Identity, Search};
use super::{Description, Device, Gauge, HandleKind, Handover, Kind, Proof};

/// Past this a segment that is still held somewhere is reported: a client unmaps before it tells, and the kernel takes
/// a killed process's memory apart at gigabytes a second.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// Host memory of a fixed size.
#[derive(Debug)]
pub struct HostDevice {
    description: Description,
    segments: BTreeMap<SegmentId, Segment>,
    segments_max: usize,
    /// The sum over the segments.
    existing: Bytes,
    gauge: Arc<Gauge>,
}

#[derive(Debug)]
struct Segment {
    own: OwnedFd,
    bytes: Bytes,
    reclaim: Option<Reclaim>,
}

#[derive(Debug)]
struct Reclaim {
    since: Instant,
    search: Option<Search>,
}

impl HostDevice {
    /// The `index`th host device, of `total` bytes. It makes at most `segments_max` segments at one time, since each costs descriptors.
    #[must_use]
    pub fn new(index: u32, total: Bytes, segments_max: usize) -> Self {
        let description = Description {
            kind: Kind::Host,
            uuid: format!("host-{index}"),
            name: format!("host memory, {total}"),
            total,
            overhead_estimate: Bytes::ZERO,
        };
        Self {
            description,
            segments: BTreeMap::new(),
            segments_max,
            existing: Bytes::ZERO,
            gauge: Arc::default(),
        }
    }

    fn count(&mut self, existing: Option<Bytes>) {
        self.existing = existing.expect("what exists is the sum of the segments and at most the total");
        self.gauge.set(self.existing);
    }

    /// Refuses what does not fit, before anything is made.
    fn admit(&self, bytes: Bytes, kind: HandleKind) -> Result<(), String> {
        let (total, existing) = (self.description.total, self.existing);
        if kind == HandleKind::CudaIpc {
            return Err("host memory has no CUDA IPC handle; ask for the default kind".into());
        }
        if bytes.is_zero() || !bytes.is_granular() {
            return Err(format!("{bytes} is no positive multiple of 2 MiB"));
        }
        if self.segments.len() >= self.segments_max {
            return Err(format!(
                "{} segments exist, which is the most that the broker's limit of open files allows; free some, or raise the limit",
                self.segments.len()
            ));
        }
        match existing.checked_add(bytes) {
            Some(sum) if sum <= total => Ok(()),
            Some(_) | None => {
                Err(format!("{bytes} more than the {existing} that exist is over the {total} of this device"))
            }
        }
    }
}

impl Device for HostDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String> {
        self.admit(bytes, kind)?;
        assert!(!self.segments.contains_key(&segment), "segment {segment} is made twice");
        let (own, given) = memory_file::make(&format!("gpulease-{segment}"), bytes)
            .map_err(|errno| refused(bytes, errno))?;
        self.segments.insert(segment, Segment { own, bytes, reclaim: None });
        self.count(self.existing.checked_add(bytes));
        Ok(Handover::Descriptors(vec![(given, bytes)].into()))
    }

    fn reclaim(&mut self, segment: SegmentId) {
        let segment = self.segments.get_mut(&segment).expect("only what was made is taken back");
        segment.reclaim = Some(Reclaim { since: Instant::now(), search: None });
    }

    fn prove(&mut self, id: SegmentId) -> Proof {
        let segment = self.segments.get_mut(&id).expect("only what was made is proven");
        let reclaim = segment.reclaim.as_mut().expect("only what is taken back is proven");
        if memory_file::is_sole_holder(segment.own.as_fd()) {
            let bytes = segment.bytes;
            memory_file::empty(segment.own.as_fd(), bytes);
            self.segments.remove(&id);
            self.count(self.existing.checked_sub(bytes));
            return Proof::Freed;
        }
        if reclaim.since.elapsed() < OVERDUE_AFTER {
            return Proof::NotYet;
        }
        let Some(file) = Identity::of(segment.own.as_fd()) else { return Proof::Overdue(Vec::new()) };
        let search = reclaim.search.get_or_insert_with(|| Search::start(file));
        search.found().map_or(Proof::NotYet, |pids: &[Pid]| Proof::Overdue(pids.to_vec()))
    }

    fn gauge(&self) -> Arc<Gauge> {
        self.gauge.clone()
    }
}

fn refused(bytes: Bytes, errno: Errno) -> String {
    match errno {
        Errno::MFILE | Errno::NFILE => {
            "the broker has as many files open as it may; free segments, or raise its limit of open files"
                .into()
        }
        Errno::NOMEM | Errno::NOSPC => format!("the host has no {bytes} of memory left"),
        other => format!("the kernel made no memory file of {bytes}: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Descriptors;
    use gpulease_words::mib;
    use rustix::fs::{Mode, OFlags, SealFlags};
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixDatagram;
    use std::process::{Command, Stdio};

    const A: SegmentId = SegmentId::new(1);
    const B: SegmentId = SegmentId::new(2);

    fn device() -> HostDevice {
        HostDevice::new(0, mib(8), 16)
    }

    fn made(device: &mut HostDevice, segment: SegmentId) -> OwnedFd {
        let made = device.create(segment, mib(4), HandleKind::Descriptor);
        let Ok(Handover::Descriptors(Descriptors::Here(chunks))) = made else { panic!("made") };
        let mut chunks = Arc::into_inner(chunks).expect("nobody else has them");
        assert_eq!(chunks.len(), 1);
        chunks.remove(0).0
    }

    /// A process that another test starts has our descriptors for a moment, from its fork to its exec.
    fn until_freed(device: &mut HostDevice, segment: SegmentId) {
        let until = Instant::now() + Duration::from_secs(20);
        while device.prove(segment) != Proof::Freed {
            assert!(Instant::now() < until, "it comes free");
            std::thread::yield_now();
        }
    }

    fn mapped(descriptor: &OwnedFd) -> Map {
        use rustix::mm::{MapFlags, ProtFlags};
        let (length, access) = (4 << 20, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, descriptor, 0)
        };
        Map(address.expect("mapped"), length)
    }

    struct Map(*mut std::ffi::c_void, usize);

    impl Map {
        fn fill(&self) {
            // SAFETY: the mapping is ours alone, writable, and of this length.
            unsafe { std::ptr::write_bytes(self.0.cast::<u8>(), 7, self.1) };
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours and nothing refers to it any more.
            unsafe { rustix::mm::munmap(self.0, self.1).expect("unmapped") };
        }
    }

    fn shared_memory() -> u64 {
        let meminfo = std::fs::read_to_string("/proc/meminfo").expect("a host");
        let line = meminfo.lines().find(|line| line.starts_with("Shmem:")).expect("a line");
        line.split_whitespace().nth(1).expect("a figure").parse::<u64>().expect("a number") << 10
    }

    #[test]
    fn a_segment_is_free_when_its_last_descriptor_is_gone() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        let copy = descriptor.try_clone().expect("a copy");
        device.reclaim(A);
        assert_eq!(device.prove(A), Proof::NotYet);
        drop(descriptor);
        assert_eq!(device.prove(A), Proof::NotYet);
        drop(copy);
        until_freed(&mut device, A);
    }

    #[test]
    fn a_mapping_alone_keeps_it_and_its_pages_go_back_to_the_kernel() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        let before = shared_memory();
        let map = mapped(&descriptor);
        map.fill();
        drop(descriptor);
        device.reclaim(A);
        assert_eq!(device.prove(A), Proof::NotYet);
        assert!(shared_memory() >= before + (3 << 20), "its pages are in use");
        drop(map);
        until_freed(&mut device, A);
    }

    #[test]
    fn a_descriptor_in_flight_keeps_it() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        let (near, far) = UnixDatagram::pair().expect("sockets");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let carried = [descriptor.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&carried)));
        let packet = [std::io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&near, &packet, &mut control, rustix::net::SendFlags::empty()).expect("sent");
        drop(descriptor);
        device.reclaim(A);
        assert_eq!(device.prove(A), Proof::NotYet);
        drop((near, far));
        until_freed(&mut device, A);
    }

    #[test]
    fn another_process_that_holds_it_is_named_until_it_lets_go() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        let mut holder = Command::new("cat").stdin(Stdio::piped()).stdout(descriptor).spawn().expect("cat");
        device.reclaim(A);
        let until = Instant::now() + Duration::from_secs(20);
        let suspects = loop {
            match device.prove(A) {
                Proof::Overdue(suspects) => break suspects,
                Proof::NotYet | Proof::Missing => assert!(Instant::now() < until, "it becomes overdue"),
                Proof::Freed => panic!("it is held"),
            }
            std::thread::yield_now();
        };
        assert_eq!(suspects, [Pid::new(holder.id())]);
        holder.kill().expect("killed");
        holder.wait().expect("ended");
        until_freed(&mut device, A);
    }

    #[test]
    fn a_path_only_descriptor_keeps_no_memory() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        mapped(&descriptor).fill();
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kept = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("opened");
        drop(descriptor);
        device.reclaim(A);
        until_freed(&mut device, A);
        let blocks = rustix::fs::fstat(&kept).expect("its inode is still there").st_blocks;
        assert_eq!(blocks, 0, "without pages");
        if !rustix::process::geteuid().is_root() {
            let again = format!("/proc/self/fd/{}", kept.as_raw_fd());
            assert!(rustix::fs::open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_err());
        }
    }

    #[test]
    fn never_more_exists_than_the_total() {
        let mut device = device();
        let (a, _b) = (made(&mut device, A), made(&mut device, B));
        let full = device.create(SegmentId::new(3), mib(2), HandleKind::Descriptor).expect_err("full");
        assert!(full.contains("2 MiB more than the 8 MiB that exist"), "{full}");
        assert_eq!(device.gauge().read().map(|made| made.bytes), Some(mib(8)));
        device.reclaim(A);
        assert!(device.create(SegmentId::new(3), mib(2), HandleKind::Descriptor).is_err(), "not proven yet");
        drop(a);
        until_freed(&mut device, A);
        assert_eq!(device.gauge().read().map(|made| made.bytes), Some(mib(4)));
        made(&mut device, SegmentId::new(3));
    }

    #[test]
    fn what_cannot_be_made_leaves_nothing() {
        let mut device = HostDevice::new(0, mib(64), 1);
        for (bytes, kind) in [
            (Bytes::ZERO, HandleKind::Descriptor),
            (mib(3), HandleKind::Descriptor),
            (mib(2), HandleKind::CudaIpc),
        ] {
            assert!(device.create(A, bytes, kind).is_err());
        }
        let _a = made(&mut device, A);
        let full = device.create(B, mib(2), HandleKind::Descriptor).expect_err("too many");
        assert!(full.contains("limit of open files"), "{full}");
        assert_eq!(device.gauge().read().map(|made| made.bytes), Some(mib(4)));
    }

    #[test]
    fn a_client_can_neither_resize_it_nor_reach_old_bytes() {
        let mut device = device();
        let descriptor = made(&mut device, A);
        assert_eq!(rustix::fs::ftruncate(&descriptor, 1 << 20), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&descriptor, 1 << 30), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&descriptor, SealFlags::WRITE), Err(Errno::PERM));
        mapped(&descriptor).fill();
        drop(descriptor);
        device.reclaim(A);
        until_freed(&mut device, A);
        let mut file = std::fs::File::from(made(&mut device, B));
        let mut bytes = vec![1; 4 << 20];
        file.read_exact(&mut bytes).expect("it is as long");
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
