//! Segments with CUDA IPC handles, which an exporter makes.

use std::sync::Arc;

use gpulease_words::{Bytes, Pid, SegmentId};

use super::drain::{Passage, Return};
use super::standing::Standing;
use super::{CudaDevice, Memory};
use crate::device::{Handover, IpcHandle};
use crate::exporter::{Exporter, Trouble};

impl CudaDevice {
    pub(super) fn create_exported(&mut self, segment: SegmentId, bytes: Bytes) -> Result<Handover, String> {
        let made = match self.make_exported(segment, bytes) {
            // It may have ended for want of work just when it was asked.
            Err(Trouble::Gone) => self.make_exported(segment, bytes),
            other => other,
        };
        let name = &self.description.name;
        let handle = made.map_err(|why| {
            format!("{bytes} with a CUDA IPC handle could not be made on {name}: {why}{}", self.room())
        })?;
        Ok(Handover::CudaIpc(handle))
    }

    fn make_exported(&mut self, segment: SegmentId, bytes: Bytes) -> Result<IpcHandle, Trouble> {
        self.start_exporter()?;
        let gauge = Arc::clone(&self.gauge);
        let _changing = gauge.changing();
        self.make_room(bytes);
        let exporter = self.exporter.as_mut().ok_or(Trouble::Gone)?;
        let (handle, pid) = (exporter.make(segment, bytes), exporter.pid());
        match handle {
            Ok(handle) => {
                self.add(segment, bytes, Memory::Exported(pid));
                Ok(handle)
            }
            Err(trouble) => {
                if matches!(trouble, Trouble::Gone) {
                    self.exporter = None;
                }
                self.settle();
                Err(trouble)
            }
        }
    }

    fn start_exporter(&mut self) -> Result<(), Trouble> {
        if self.exporter.as_ref().is_some_and(|exporter| !exporter.has_ended()) {
            return Ok(());
        }
        self.exporter = None;
        let exporter = Exporter::start(&self.program, &self.description.uuid, &self.gauge)?;
        tracing::info!(device = %self.description.uuid, pid = %exporter.pid(), "an exporter was started");
        self.exporter = Some(exporter);
        Ok(())
    }

    /// The exporter that has a segment, while it is the one that runs.
    fn exporter_of(&mut self, pid: Pid) -> Option<&mut Exporter> {
        self.exporter.as_mut().filter(|exporter| exporter.pid() == pid)
    }

    /// Tells the exporter what it had no room to hear before.
    pub(super) fn remind_exporter(&mut self) {
        // That it has ended shows at the next order.
        self.exporter.as_mut().into_iter().for_each(|exporter| drop(exporter.say_unheard()));
    }

    pub(super) fn order_free(&mut self, id: SegmentId, exporter: Pid, before: Option<Standing>) {
        match self.exporter_of(exporter).map(|exporter| exporter.free(id)) {
            Some(Ok(())) => self.set_memory(id, Memory::Ordered(exporter, before)),
            Some(Err(_)) | None => self.lost(id),
        }
    }

    /// Whether the broker itself has nothing of a segment any more; an exporter is asked for its answer.
    pub(super) fn is_given_up(&mut self, id: SegmentId) -> bool {
        let segment = self.segments.get_mut(&id).expect("only what was made is proven");
        let (bytes, tenants) = (segment.bytes, segment.tenants.clone());
        let Memory::Ordered(exporter, before) = &mut segment.memory else { return true };
        let (exporter, before) = (*exporter, before.take());
        match self.exporter_of(exporter).map(|exporter| exporter.has_freed(id)) {
            Some(Ok(true)) => {
                self.set_memory(id, Memory::Released(None));
                self.released(id, &[(bytes, Return::Unknown)], &Passage { before, tenants });
                true
            }
            Some(Ok(false)) => {
                self.set_memory(id, Memory::Ordered(exporter, before));
                false
            }
            Some(Err(_)) | None => {
                self.lost(id);
                true
            }
        }
    }

    /// A segment's exporter is gone: the driver frees what nobody else has.
    fn lost(&mut self, id: SegmentId) {
        self.set_memory(id, Memory::Released(None));
        let bytes = self.segments[&id].bytes;
        self.look();
        let helpers = self.exporter.as_ref().map(Exporter::pid).into_iter().collect();
        if let Some(balance) = &mut self.balance {
            balance.lost(id, bytes, &helpers);
        }
        self.look();
    }

    pub(super) fn consumer(&mut self, id: SegmentId, process: Pid) {
        let Some(Memory::Exported(pid)) = self.segments.get(&id).map(|segment| &segment.memory) else {
            return;
        };
        let pid = *pid;
        if let Some(Err(trouble)) = self.exporter_of(pid).map(|exporter| exporter.handed(id, process)) {
            tracing::warn!(segment = %id, "the exporter would not outlive the broker for pid {process}: {trouble}");
        }
    }

    fn set_memory(&mut self, id: SegmentId, memory: Memory) {
        self.segments.get_mut(&id).expect("only what was made has memory").memory = memory;
    }
}
