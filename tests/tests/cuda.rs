//! What gpulease relies on in a CUDA driver, asked of the stand-in and, where there is one, of a
//! real card. Each process of a case is a puppet; the test itself never loads a driver.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::{Duration, Instant};

use gpulease_tests::puppet::{Gpu, Puppet};

const MIB: u64 = 1 << 20;
/// A driver takes this long at most to give back what a dead process had.
const TEARDOWN: Duration = Duration::from_secs(10);

/// A test of every driver that this machine has.
macro_rules! on_every_gpu {
    ($($(#[$doc:meta])* fn $name:ident($gpu:ident: &Gpu) $body:block)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            for gpu in Gpu::all(stringify!($name)) {
                println!("on {gpu}");
                let $gpu = &gpu;
                $body
            }
        }
    )*};
}

on_every_gpu! {
    fn devices_say_what_they_are(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        let said = puppet.must("devices");
        for (ordinal, line) in said.lines().enumerate() {
            let [name, uuid, pci, total, granularity] = *line.split('|').collect::<Vec<_>>() else { panic!("{line}") };
            assert!(!name.is_empty() && pci.len() == 12 && pci.contains(':'), "{line}");
            assert!(total.parse::<u64>().unwrap() >= 1 << 30, "{line}");
            assert_eq!(granularity, (2 * MIB).to_string(), "{line}");
            assert_eq!(puppet.must(&format!("device {uuid}")), ordinal.to_string());
            // NVML may number devices differently, and names them alike.
            let nvml = (0..said.lines().count()).map(|index| puppet.must(&format!("nvml {index}")));
            assert!(nvml.into_iter().any(|device| device.starts_with(uuid)), "{line}");
        }
        let stranger = puppet.ask("device GPU-00000000-0000-0000-0000-000000000000");
        assert_eq!(stranger.unwrap_err(), "no such device");
    }

    fn memory_needs_no_context(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("load");
        let before = puppet.nvml(0);
        puppet.must("create a 0 64MiB");
        assert_eq!(puppet.nvml(0)["used"], before["used"] + 64 * MIB, "used is exact and current");
        let descriptor = puppet.take("export a").unwrap();
        puppet.give("import b 64MiB", descriptor.as_fd()).unwrap();
        puppet.must("reserve r 64MiB");
        puppet.must("map r b 0B");
        puppet.must("access r 0 rw");
        puppet.must("unmap r");
        puppet.must("unreserve r");
        let after = puppet.nvml(0);
        assert!(!after.contains_key(&puppet.pid().to_string()), "a process without a context is not listed: {after:?}");
        puppet.must("release a");
        puppet.must("release b");
        assert_eq!(puppet.nvml(0)["used"], before["used"] + 64 * MIB, "the descriptor keeps it");
        drop(descriptor);
        wait_for_used(&puppet, before["used"]);
        assert_eq!(puppet.must("kept"), " more=0");
    }

    fn memory_passes_by_descriptor(gpu: &Gpu) {
        let (giver, taker) = (Puppet::start(gpu), Puppet::start(gpu));
        for puppet in [&giver, &taker] {
            puppet.must("context 0");
        }
        give_mapped(&giver, &taker, "64MiB");
        giver.must("fill r 0 0B 90 64MiB");
        assert_eq!(taker.must("read r 0 0B 64MiB"), "90");
        taker.must("fill r 0 2MiB 165 4KiB");
        assert_eq!(giver.must("read r 0 2MiB 4KiB"), "165");
        assert_eq!(giver.must("read r 0 0B 64MiB"), "mixed");
    }

    /// Whole pieces and a rest, at once and one after the other; the puppet compares.
    fn a_device_sums_pieces_as_the_host_does(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("create a 0 50MiB");
        map(&puppet, "a", "50MiB");
        puppet.must("fill r 0 0B 0 50MiB");
        let zeros = puppet.must("sums r 0 50MiB");
        puppet.must("fill r 0 3MiB 9 20MiB");
        puppet.must("fill r 0 16777215B 7 1B");
        let first = puppet.must("sums r 0 50MiB");
        assert_eq!(puppet.must("sums r 0 50MiB"), first);
        assert_ne!(first, zeros);
        puppet.must("fill r 0 52428799B 1 1B");
        assert_ne!(puppet.must("sums r 0 50MiB"), first, "the last byte counts");
        assert!(puppet.ask("sums r 0 8B").unwrap_err().contains("CUDA_ERROR_INVALID_VALUE"), "half a pair");
        puppet.must("unmap r");
        assert_eq!(puppet.must("kept"), " more=0");
    }

    /// What a client does with a segment: chunks side by side, seen through cudarc, and gone when dropped.
    fn chunks_are_seen_through_cudarc_and_unmapped_with_the_segment(gpu: &Gpu) {
        let (giver, taker) = (Puppet::start(gpu), Puppet::start(gpu));
        taker.must("context 0");
        giver.must("load");
        let round = || {
            for (name, size) in [("a", "32MiB"), ("b", "4MiB")] {
                giver.must(&format!("create {name} 0 {size}"));
                let descriptor = giver.take(&format!("export {name}")).unwrap();
                taker.give("keep", descriptor.as_fd()).unwrap();
            }
            taker.must("views 0 32MiB 4MiB");
            giver.must("release a");
            giver.must("release b");
            assert_eq!(taker.must("kept"), " more=0");
        };
        // What streams and fills take of a real card once, they keep.
        round();
        let before = giver.nvml(0)["used"];
        round();
        wait_for_used(&giver, before);
        // A descriptor that is none of the driver's, and nothing stays mapped.
        taker.give("keep", std::fs::File::open("/dev/null").unwrap().as_fd()).unwrap();
        assert!(taker.ask("views 0 2MiB").is_err());
        assert_eq!(taker.must("kept"), " more=0");
    }

    /// The descriptor is passed on as it is, and imported any number of times.
    fn a_descriptor_is_good_for_many(gpu: &Gpu) {
        let giver = Puppet::start(gpu);
        giver.must("context 0");
        giver.must("create a 0 4MiB");
        let first = giver.take("export a").unwrap();
        let second = giver.take("export a").unwrap();
        for descriptor in [&first, &second, &first] {
            let taker = Puppet::start(gpu);
            taker.must("context 0");
            taker.give("import a 4MiB", descriptor.as_fd()).unwrap();
            taker.give("import b 4MiB", descriptor.as_fd()).unwrap();
            map(&taker, "a", "4MiB");
            let byte = taker.must("read r 0 0B 1B").parse::<u8>().unwrap();
            taker.must(&format!("fill r 0 0B {} 4MiB", byte + 1));
        }
        map(&giver, "a", "4MiB");
        assert_eq!(giver.must("read r 0 0B 4MiB"), "3");
    }

    fn a_descriptor_outlives_every_cuda_process(gpu: &Gpu) {
        let (watcher, giver) = (Puppet::start(gpu), Puppet::start(gpu));
        watcher.must("load");
        giver.must("context 0");
        giver.must("create a 0 32MiB");
        map(&giver, "a", "32MiB");
        giver.must("fill r 0 0B 77 32MiB");
        let descriptor = giver.take("export a").unwrap();
        giver.kill();
        let keeper = Puppet::start(gpu);
        keeper.give("keep", descriptor.as_fd()).unwrap();
        drop(descriptor);
        let taker = Puppet::start(gpu);
        taker.must("context 0");
        let before = taker.nvml(0)["used"];
        taker.must("create other 0 32MiB");
        // Only the keeper's descriptor is left of the first; it can be handed on from there too.
        assert_eq!(taker.nvml(0)["used"], before + 32 * MIB);
        keeper.must("let-go");
        wait_for_used(&watcher, before);
        taker.must("release other");
        wait_for_used(&watcher, before - 32 * MIB);
    }

    fn an_importer_outlives_the_exporter(gpu: &Gpu) {
        let (giver, taker) = (Puppet::start(gpu), Puppet::start(gpu));
        for puppet in [&giver, &taker] {
            puppet.must("context 0");
        }
        give_mapped(&giver, &taker, "4MiB");
        giver.must("fill r 0 0B 33 4MiB");
        giver.kill();
        assert_eq!(taker.must("read r 0 0B 4MiB"), "33");
        taker.must("fill r 0 0B 34 4MiB");
        assert_eq!(taker.must("read r 0 0B 4MiB"), "34");
    }

    fn more_than_the_card_is_refused_and_less_is_not(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        let free = puppet.must("load").len().min(1) as u64 * puppet.nvml(0)["free"];
        let fits = free / (2 * MIB) * 2 * MIB;
        let refused = puppet.ask(&format!("create a 0 {}B", fits + 2 * MIB)).unwrap_err();
        assert!(refused.contains("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{refused}");
        let most = fits - 512 * MIB;
        puppet.must(&format!("create a 0 {most}B"));
        let refused = puppet.ask("create b 0 1GiB").unwrap_err();
        assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
        puppet.must("release a");
        puppet.must("create b 0 1GiB");
    }

    fn a_killed_process_gives_everything_back(gpu: &Gpu) {
        let (watcher, victim) = (Puppet::start(gpu), Puppet::start(gpu));
        watcher.must("load");
        let before = watcher.nvml(0);
        victim.must("context 0");
        victim.must("create a 0 128MiB");
        map(&victim, "a", "128MiB");
        victim.must("alloc m 0 64MiB");
        assert!(watcher.nvml(0)["used"] >= before["used"] + 192 * MIB);
        let pid = victim.pid();
        victim.kill();
        wait_for_used(&watcher, before["used"]);
        assert!(!watcher.nvml(0).contains_key(&pid.to_string()));
    }

    fn what_is_unmapped_is_out_of_reach(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("create a 0 8MiB");
        map(&puppet, "a", "8MiB");
        puppet.must("fill r 0 0B 11 8MiB");
        puppet.must("unmap r");
        let refused = puppet.ask("read r 0 0B 1B").unwrap_err();
        assert!(refused.contains("CUDA_ERROR_INVALID_VALUE"), "{refused}");
    }

    /// As after a suspension: new memory, in two pieces, at the old address.
    fn new_memory_comes_at_the_same_address(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("create a 0 8MiB");
        map(&puppet, "a", "8MiB");
        let base = puppet.must("base r");
        puppet.must("unmap r");
        puppet.must("release a");
        puppet.must("create low 0 2MiB");
        puppet.must("create high 0 6MiB");
        puppet.must("map r high 2MiB");
        puppet.must("map r low 0B");
        puppet.must("access r 0 rw");
        assert_eq!(puppet.must("base r"), base);
        puppet.must("fill r 0 1MiB 12 6MiB");
        assert_eq!(puppet.must("read r 0 1MiB 6MiB"), "12");
        let occupied = puppet.ask("map r low 0B").unwrap_err();
        assert!(occupied.contains("CUDA_ERROR_INVALID_VALUE"), "{occupied}");
        let outside = puppet.ask("map r high 4MiB").unwrap_err();
        assert!(outside.contains("CUDA_ERROR_INVALID_VALUE"), "{outside}");
    }

    fn access_is_what_was_set(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("create a 0 2MiB");
        puppet.must("reserve none 2MiB");
        puppet.must("map none a 0B");
        let refused = puppet.ask("read none 0 0B 1B").unwrap_err();
        assert!(refused.contains("CUDA_ERROR_INVALID_VALUE"), "{refused}");
        puppet.must("access none 0 rw");
        puppet.must("fill none 0 0B 5 2MiB");
        // One handle, twice mapped: the importer chooses the access.
        puppet.must("reserve ro 2MiB");
        puppet.must("map ro a 0B");
        puppet.must("access ro 0 ro");
        assert_eq!(puppet.must("read ro 0 0B 2MiB"), "5");
        puppet.must("fill none 0 0B 6 2MiB");
        assert_eq!(puppet.must("read ro 0 0B 2MiB"), "6");
    }

    fn what_makes_no_sense_is_refused(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        for size in ["0B", "1B", "3MiB"] {
            let refused = puppet.ask(&format!("create a 0 {size}")).unwrap_err();
            assert!(refused.contains("CUDA_ERROR_INVALID_VALUE"), "{size}: {refused}");
        }
        puppet.must("create a 0 4MiB");
        let descriptor = puppet.take("export a").unwrap();
        puppet.give("import large 8MiB", descriptor.as_fd()).unwrap();
        puppet.must("reserve r 8MiB");
        puppet.give("import small 2MiB", descriptor.as_fd()).unwrap();
        for name in ["large", "small"] {
            let wrong = puppet.ask(&format!("map r {name} 0B")).unwrap_err();
            assert!(wrong.contains("CUDA_ERROR_NOT_SUPPORTED"), "a wrong size shows when it is mapped: {wrong}");
        }
        let again = puppet.ask("export large").unwrap_err();
        assert!(again.contains("CUDA_ERROR_INVALID_VALUE"), "an imported handle is not exported: {again}");
        let file = tempfile::tempfile().unwrap();
        let garbage = puppet.give("import x 2MiB", file.as_fd()).unwrap_err();
        assert!(garbage.contains("cuMemImportFromShareableHandle failed: CUDA_ERROR_UNKNOWN"), "{garbage}");
        assert_eq!(puppet.must("kept"), " more=0");
    }

    fn ipc_handles_open_elsewhere(gpu: &Gpu) {
        let (owner, user) = (Puppet::start(gpu), Puppet::start(gpu));
        for puppet in [&owner, &user] {
            puppet.must("context 0");
        }
        owner.must("alloc m 0 4MiB");
        owner.must("fill m 0 0B 21 4MiB");
        let handle = owner.must("ipc m");
        assert_eq!(handle.len(), 128);
        assert!(owner.ask(&format!("open o 0 {handle}")).is_err(), "one's own handle is refused");
        let first = user.must(&format!("open one 0 {handle}"));
        let second = user.must(&format!("open two 0 {handle}"));
        assert_eq!(first, second, "opened twice, it has one address");
        assert_eq!(first.split_once(' ').unwrap().1, (4 * MIB).to_string());
        user.must("close one");
        assert_eq!(user.must("read two 0 0B 4MiB"), "21");
        owner.kill();
        assert_eq!(user.must("read two 0 0B 4MiB"), "21", "it outlives its owner");
        user.must("close two");
        assert!(user.ask(&format!("open o 0 {}", "00".repeat(64))).is_err());
        assert_eq!(user.must("kept"), " more=0");
    }

    fn mappings_have_no_ipc_handle(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("create a 0 2MiB");
        map(&puppet, "a", "2MiB");
        assert_eq!(puppet.must("ipc-of r 0"), "CUDA_ERROR_INVALID_VALUE");
        puppet.must("alloc m 0 2MiB");
        assert_eq!(puppet.must("ipc-of m 0"), "CUDA_SUCCESS");
    }

    fn a_context_costs_and_is_listed(gpu: &Gpu) {
        let (watcher, puppet) = (Puppet::start(gpu), Puppet::start(gpu));
        watcher.must("load");
        puppet.must("load");
        let (before, pid) = (watcher.nvml(0), puppet.pid().to_string());
        puppet.must("context 0");
        let with = watcher.nvml(0);
        let listed = with[&pid];
        assert!(listed > 100 * MIB && with["used"] >= before["used"] + listed, "{with:?}");
        puppet.must("alloc m 0 64MiB");
        assert_eq!(watcher.nvml(0)[&pid], listed + 64 * MIB);
        puppet.must("free m");
        puppet.must("end-context 0");
        let after = watcher.nvml(0);
        assert!(!after.contains_key(&pid) && after["used"] < before["used"] + 64 * MIB, "{after:?}");
    }

    /// Claims stand in a ring: a descriptor or an import goes right behind the claim that it was made from. Memory is
    /// listed for its maker, and then for the next in the ring; for nobody where that is a descriptor. Elder imports, and
    /// those of others, were not asked of a card yet.
    fn memory_is_booked_on_the_next_in_the_ring(gpu: &Gpu) {
        for (keeps, listed) in [
            ("nothing", [0, 256, 0]),
            ("an elder descriptor", [0, 256, 0]),
            ("the descriptor", [0, 0, 0]),
            ("a later descriptor", [0, 0, 0]),
            ("an elder import of the maker", [0, 256, 0]),
            ("a later import of the maker", [0, 0, 0]),
            ("an elder import of another", [0, 256, 0]),
            ("a later import of another", [0, 0, 256]),
            ("a later import of the user", [0, 256, 0]),
        ] {
            let (maker, user, other) = (Puppet::start(gpu), Puppet::start(gpu), Puppet::start(gpu));
            user.must("context 0");
            other.must("context 0");
            let (start, pids) = (user.nvml(0), [&maker, &user, &other].map(|p| p.pid().to_string()));
            let now_listed = || {
                let now = user.nvml(0);
                let of = |seen: &BTreeMap<String, u64>, n: usize| seen.get(&pids[n]).copied().unwrap_or_default();
                [0, 1, 2].map(|n| (of(&now, n) - of(&start, n)) / MIB)
            };
            let keeper = match keeps.rsplit(' ').next() {
                Some("maker") => Some(&maker),
                Some("user") => Some(&user),
                Some("another") => Some(&other),
                _ => None,
            };
            maker.must("create a 0 256MiB");
            let mut kept = (keeps == "an elder descriptor").then(|| maker.take("export a").unwrap());
            let descriptor = maker.take("export a").unwrap();
            let import = |when: &str| {
                if let Some(keeper) = keeper.filter(|_| keeps.contains(when)) {
                    keeper.give("import b 256MiB", descriptor.as_fd()).unwrap();
                }
            };
            import("elder");
            user.give("import h 256MiB", descriptor.as_fd()).unwrap();
            map(&user, "h", "256MiB");
            user.must("release h");
            import("later");
            if keeps == "a later descriptor" {
                kept = Some(maker.take("export a").unwrap());
            }
            match keeps {
                "the descriptor" => kept = Some(descriptor),
                _ => drop(descriptor),
            }
            assert_eq!(now_listed(), [0; 3], "{keeps}: the maker has its handle");
            maker.must("release a");
            println!("measured: {keeps} is kept: {:?} MiB are listed", now_listed());
            assert_eq!(now_listed(), listed, "{keeps}");
            drop(kept);
            keeper.iter().for_each(|keeper| drop(keeper.must("release b")));
            assert_eq!(now_listed(), [0, 256, 0], "{keeps}: nobody else has it any more");
        }
    }

    fn figures_of_nvml_and_cuda_agree(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        let nvml = puppet.nvml(0);
        assert_eq!(nvml["total"], nvml["used"] + nvml["free"] + nvml["reserved"]);
        let info = puppet.must("info 0");
        let total: u64 = info.rsplit_once("total=").unwrap().1.parse().unwrap();
        assert!(total <= nvml["total"] - nvml["reserved"] && total > nvml["free"], "{info} {nvml:?}");
    }

    fn streams_events_and_pinned_memory_work(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        let took: u64 = puppet.must("timing 0").strip_suffix(" ns").unwrap().parse().unwrap();
        assert!((1..1_000_000_000).contains(&took), "{took} ns for three copies of 2 MiB");
        assert_eq!(puppet.must("pinned 0"), "01");
        assert_eq!(puppet.must("register 0"), "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
        assert_eq!(puppet.must("kept"), " more=0");
    }

    fn a_thread_keeps_its_current_context(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("context 0");
        puppet.must("info 0");
        puppet.must("timing 0");
        assert_eq!(puppet.must("current 0"), "none");
        puppet.must("make-current 0");
        puppet.must("timing 0");
        assert_eq!(puppet.must("current 0"), "this");
    }

    fn cudarc_works_beside_us(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("cudarc 0");
        puppet.must("context 0");
        puppet.must("cudarc 0");
    }

    fn a_forked_child_is_told_so(gpu: &Gpu) {
        let puppet = Puppet::start(gpu);
        puppet.must("create a 0 2MiB");
        let said = puppet.must("fork");
        assert!(said.starts_with("CUDA_ERROR_NOT_INITIALIZED: ") && said.contains("was forked"), "{said}");
        puppet.must("release a");
    }

    fn visible_devices_are_obeyed(gpu: &Gpu) {
        let all = Puppet::start(gpu).must("devices");
        let uuid = all.lines().last().unwrap().split('|').nth(1).unwrap();
        let one = Puppet::start_with(gpu, |command| command.env("CUDA_VISIBLE_DEVICES", uuid));
        assert_eq!(one.must("devices").lines().count(), 1);
        assert_eq!(one.must(&format!("device {uuid}")), "0");
        let none = Puppet::start_with(gpu, |command| command.env("CUDA_VISIBLE_DEVICES", ""));
        let why = none.ask("load").unwrap_err();
        assert!(why.contains("no GPU: CUDA_VISIBLE_DEVICES is \"\""), "{why}");
    }

    /// As in a container: other pids, the same card. NVML speaks the pids of whoever asks it.
    fn other_namespaces_import_too(gpu: &Gpu) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make namespaces");
            continue;
        }
        let giver = Puppet::start(gpu);
        giver.must("context 0");
        let words = ["unshare", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"];
        let taker = Puppet::start_behind(gpu, &words);
        taker.must("context 0");
        give_mapped(&giver, &taker, "4MiB");
        giver.must("fill r 0 0B 45 4MiB");
        assert_eq!(taker.must("read r 0 0B 4MiB"), "45");
        let inner = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", taker.pid())).unwrap();
        assert!(giver.nvml(0).contains_key(inner.trim()), "{inner} in {:?}", giver.nvml(0));
    }

    fn a_pid_namespace_without_its_proc_is_named(gpu: &Gpu) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make namespaces");
            continue;
        }
        let puppet = Puppet::start_behind(gpu, &["unshare", "--pid", "--fork", "--kill-child"]);
        let why = puppet.ask("load").unwrap_err();
        assert!(why.contains("CUDA_ERROR_OPERATING_SYSTEM") && why.contains("unshare --mount-proc"), "{why}");
    }

    fn another_user_imports_too(gpu: &Gpu) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can start a process of another user");
            continue;
        }
        let giver = Puppet::start(gpu);
        giver.must("context 0");
        let taker = Puppet::start_with(gpu, |command| command.uid(65_534).gid(65_534));
        taker.must("context 0");
        give_mapped(&giver, &taker, "4MiB");
        giver.must("fill r 0 0B 44 4MiB");
        assert_eq!(taker.must("read r 0 0B 4MiB"), "44");
    }
}

/// Maps an allocation in a range `r` of its own, for reading and writing.
fn map(puppet: &Puppet, name: &str, size: &str) {
    puppet.must(&format!("reserve r {size}"));
    puppet.must(&format!("map r {name} 0B"));
    puppet.must("access r 0 rw");
}

/// Creates memory in one process and maps it in both, with no descriptor left.
fn give_mapped(giver: &Puppet, taker: &Puppet, size: &str) {
    giver.must(&format!("create a 0 {size}"));
    let descriptor = giver.take("export a").expect("what was created is exported");
    taker.give(&format!("import a {size}"), descriptor.as_fd()).expect("what was exported is imported");
    for puppet in [giver, taker] {
        map(puppet, "a", size);
        puppet.must("release a");
    }
}

/// Asks until the card's use is this: a driver needs a while after a death.
fn wait_for_used(watcher: &Puppet, bytes: u64) {
    let start = Instant::now();
    loop {
        let used = watcher.nvml(0)["used"];
        if used == bytes {
            return;
        }
        assert!(start.elapsed() < TEARDOWN, "used is {used} and not {bytes} after {TEARDOWN:?}");
        thread::yield_now();
    }
}
