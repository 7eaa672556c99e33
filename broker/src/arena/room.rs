//! How much host memory an arena may have: what the host has free, and what the broker's own bounds leave.

use std::fs;
use std::path::{Path, PathBuf};

use gpulease_words::{Bytes, Size};
use rustix::process::{Resource, getrlimit};

/// What the host and the kernel's bounds on this process leave for memory files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// All memory of the host.
    total: Bytes,
    /// What is available now.
    available: Bytes,
    /// What the memory cgroups of the broker leave, the tightest, and its file.
    cgroup: Option<(Bytes, PathBuf)>,
    /// The largest file it may make.
    file_size: Option<Bytes>,
}

impl Room {
    /// As it is now.
    pub(crate) fn look() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let own_groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            total: field(&meminfo, "MemTotal:").unwrap_or_default(),
            available: field(&meminfo, "MemAvailable:").unwrap_or_default(),
            cgroup: tightest(Path::new("/sys/fs/cgroup"), &own_groups),
            file_size: getrlimit(Resource::Fsize).current.map(Bytes::new),
        }
    }

    /// The arena that was asked for, where host devices take so much beside it.
    ///
    /// # Errors
    /// Where there is not so much, with the figures and what to do.
    pub(crate) fn arena(&self, asked: Size, beside: Bytes) -> Result<Bytes, String> {
        let arena = asked.of(self.total).round_down();
        if arena.is_zero() {
            return Ok(arena);
        }
        let needed = arena.saturating_add(beside);
        let with = if beside.is_zero() {
            String::new()
        } else {
            format!(" beside {beside} of devices in host memory")
        };
        if needed > self.available {
            let available = self.available;
            return Err(format!(
                "arena: {arena} are asked for{with}, and the host has {available} of {} available; give less, like \"25%\", or 0B for none",
                self.total
            ));
        }
        if let Some((left, file)) = &self.cgroup
            && needed > *left
        {
            let file = file.display();
            return Err(format!(
                "arena: {arena} are asked for{with}, and the broker's memory cgroup leaves {left} ({file}); raise that (MemoryMax= of the unit), or give less"
            ));
        }
        if let Some(largest) = self.file_size.filter(|largest| *largest < arena) {
            return Err(format!(
                "arena: host copies are memory files, and the broker may make none above {largest} (ulimit -f); raise that, or give no more"
            ));
        }
        Ok(arena)
    }
}

fn field(meminfo: &str, name: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes::new(kib.saturating_mul(1_024)))
}

/// What the tightest of the process's memory cgroups leaves: its own and all above it.
fn tightest(root: &Path, own_groups: &str) -> Option<(Bytes, PathBuf)> {
    let unified = own_groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = root.join(unified.trim_start_matches('/'));
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(left).min_by_key(|(left, _)| *left)
}

fn left(group: &Path) -> Option<(Bytes, PathBuf)> {
    let figure = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse().ok().map(Bytes::new);
    let (file, most) = (group.join("memory.max"), figure("memory.max")?);
    let used = figure("memory.current").unwrap_or_default();
    Some((most.checked_sub(used).unwrap_or_default(), file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::gib;

    fn room() -> Room {
        Room { total: gib(64), available: gib(40), cgroup: None, file_size: None }
    }

    #[test]
    fn an_arena_is_what_was_asked_for_or_refused_in_numbers() {
        assert_eq!(room().arena(Size::Share(2_500), Bytes::ZERO), Ok(gib(16)));
        assert_eq!(room().arena(Size::Amount(gib(40)), Bytes::ZERO), Ok(gib(40)));
        assert_eq!(room().arena(Size::Amount(Bytes::ZERO), gib(64)), Ok(Bytes::ZERO));
        let why = room().arena(Size::Amount(gib(40)), gib(1)).expect_err("a GiB too much");
        assert!(why.contains("40 GiB") && why.contains("1 GiB of devices"), "{why}");
        let group = Some((gib(8), PathBuf::from("/sys/fs/cgroup/x/memory.max")));
        let why = Room { cgroup: group, ..room() }.arena(Size::Amount(gib(9)), Bytes::ZERO);
        assert!(why.expect_err("above it").contains("/sys/fs/cgroup/x/memory.max"));
        let why = Room { file_size: Some(gib(1)), ..room() }.arena(Size::Amount(gib(2)), Bytes::ZERO);
        assert!(why.expect_err("above it").contains("ulimit -f"));
    }

    #[test]
    fn the_tightest_group_above_the_process_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).expect("folders");
        let write =
            |group: &Path, name: &str, text: &str| fs::write(group.join(name), text).expect("written");
        write(&inner, "memory.max", "max\n");
        assert_eq!(tightest(root.path(), "0::/a/b\n"), None);
        write(&root.path().join("a"), "memory.max", "1073741824\n");
        write(&root.path().join("a"), "memory.current", "73741824\n");
        let file = root.path().join("a/memory.max");
        assert_eq!(tightest(root.path(), "0::/a/b\n"), Some((Bytes::new(1_000_000_000), file)));
        assert_eq!(tightest(root.path(), "1:name=x:/\n"), None);
    }

    #[test]
    fn this_host_has_memory() {
        let room = Room::look();
        assert!(room.total > room.available && !room.available.is_zero(), "{room:?}");
    }
}
