//! What a pool tells of itself.

use gpulease_client::Bytes;

/// What a pool tells of itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) used: Bytes,
    pub(super) used_most: Bytes,
    pub(super) reserved: Bytes,
    pub(super) reserved_most: Bytes,
}

impl Figures {
    pub(super) fn take(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_add(bytes);
        self.reserved_most = self.reserved_most.max(self.reserved);
        self.use_again(bytes);
    }

    pub(super) fn use_again(&mut self, bytes: Bytes) {
        self.used = self.used.saturating_add(bytes);
        self.used_most = self.used_most.max(self.used);
    }

    pub(super) fn give(&mut self, bytes: Bytes) {
        self.used = self.used.saturating_sub(bytes);
    }

    pub(super) fn gone(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }
}
