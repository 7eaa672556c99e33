//! What only the stand-in can show: old drivers, broken drivers, drivers that fail when told.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_tests::standin::Standin;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

const MIB: u64 = 1 << 20;

fn on(standin: Standin) -> (Gpu, Puppet) {
    let gpu = Gpu::Standin(standin);
    let puppet = Puppet::start(&gpu);
    (gpu, puppet)
}

fn faults(gpu: &Gpu, rules: &str) {
    match gpu {
        Gpu::Standin(standin) => standin.faults(rules),
        Gpu::Real(_) => panic!("a real driver fails when it likes"),
    }
}

#[test]
fn a_driver_from_before_a_symbol_is_named_with_its_version() {
    let standin = Standin::with(&[("VERSION", "10010")]).without_symbol("cuMemCreate");
    let (_gpu, puppet) = on(standin);
    let why = puppet.ask("load").unwrap_err();
    assert_eq!(
        why,
        "the NVIDIA driver is too old: it has no cuMemCreate, which came with CUDA 10.2, and this driver \
         speaks CUDA 10.1; update the driver"
    );
    assert_eq!(puppet.ask("create a 0 2MiB").unwrap_err(), why, "and again, without a panic");
}

#[test]
fn a_driver_too_old_for_cudarc_still_lends_memory() {
    let (_gpu, puppet) = on(Standin::with(&[("VERSION", "11010")]).without_symbol("cuMemAllocAsync"));
    puppet.must("create a 0 2MiB");
    let why = puppet.ask("cudarc 0").unwrap_err();
    assert!(why.contains("it has no cuMemAllocAsync, which came with CUDA 11.2"), "{why}");
}

#[test]
fn no_driver_is_a_sentence() {
    if Gpu::real_or_why().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    let puppet = Puppet::start(&Gpu::Real(Turn::unneeded()));
    let why = puppet.ask("load").unwrap_err();
    assert!(why.starts_with("no CUDA driver library: libcuda.so.1: cannot open shared object file"), "{why}");
    assert!(why.ends_with("on LD_LIBRARY_PATH"), "{why}");
    assert!(puppet.ask("cudarc 0").is_err(), "and no panic of cudarc's");
}

#[test]
fn a_failing_start_comes_with_what_helps() {
    for (code, words) in [
        (304, ["cuInit failed: CUDA_ERROR_OPERATING_SYSTEM (304)", "unshare --mount-proc"]),
        (803, ["cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "different versions"]),
        (12_345, ["cuInit failed: an error that this driver has no name for (12345)", "no description"]),
    ] {
        let standin = Standin::new();
        standin.faults(&format!("cuInit * error {code}"));
        let (_gpu, puppet) = on(standin);
        let why = puppet.ask("load").unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
}

#[test]
fn a_device_that_cannot_lend_says_so_by_name() {
    for (field, words) in [
        ("VMM", "gpulease stand-in has no virtual memory management"),
        ("DESCRIPTORS", "can't export its memory"),
    ] {
        let (_gpu, puppet) = on(Standin::with(&[(field, "off")]));
        let devices = puppet.must("devices");
        assert!(devices.lines().all(|line| line.contains(words)), "{devices}");
        assert!(puppet.ask("create a 0 2MiB").is_err());
    }
}

#[test]
fn failures_come_when_told() {
    let (gpu, puppet) = on(Standin::new());
    faults(&gpu, "cuMemCreate 3 error 2\ncuMemExportToShareableHandle * delay 50");
    puppet.must("create a 0 2MiB");
    puppet.must("create b 0 2MiB");
    let refused = puppet.ask("create c 0 2MiB").unwrap_err();
    assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    puppet.must("create c 0 2MiB");
    let start = Instant::now();
    puppet.take("export a").unwrap();
    assert!(start.elapsed() >= Duration::from_millis(50));
    faults(&gpu, "");
    for name in ["d", "e", "f"] {
        puppet.must(&format!("create {name} 0 2MiB"));
    }
}

#[test]
fn errors_of_drop_are_kept() {
    let (gpu, puppet) = on(Standin::new());
    for index in 0..20 {
        puppet.must(&format!("create {index} 0 2MiB"));
    }
    faults(&gpu, "cuMemRelease * error 999");
    for index in 0..20 {
        puppet.must(&format!("drop {index}"));
    }
    let kept = puppet.must("kept");
    assert_eq!(kept.matches("cuMemRelease failed: CUDA_ERROR_UNKNOWN (999)").count(), 16, "{kept}");
    assert!(kept.ends_with("more=4"), "{kept}");
    assert_eq!(puppet.must("kept"), " more=0");
}

#[test]
fn what_could_not_be_unmapped_is_tried_again() {
    let (gpu, puppet) = on(Standin::new());
    puppet.must("reserve r 6MiB");
    for (index, name) in ["a", "b", "c"].iter().enumerate() {
        puppet.must(&format!("create {name} 0 2MiB"));
        puppet.must(&format!("map r {name} {}MiB", 2 * index));
        puppet.must(&format!("release {name}"));
    }
    let before = puppet.nvml(0)["used"];
    faults(&gpu, "cuMemUnmap 2 error 999");
    let failed = puppet.ask("unmap r").unwrap_err();
    assert!(failed.contains("cuMemUnmap failed: CUDA_ERROR_UNKNOWN"), "{failed}");
    assert_eq!(puppet.nvml(0)["used"], before - 4 * MIB, "the others are gone");
    puppet.must("unmap r");
    assert_eq!(puppet.nvml(0)["used"], before - 6 * MIB);
    puppet.must("unreserve r");
}

/// A thread of a program with two devices: our calls in one context leave the other current.
#[test]
fn another_devices_context_stays_current() {
    let (_gpu, puppet) = on(Standin::new());
    puppet.must("context 0");
    puppet.must("context 1");
    puppet.must("make-current 1");
    puppet.must("timing 0");
    assert_eq!(puppet.must("current 1"), "this");
    assert_eq!(puppet.must("current 0"), "another");
}

#[test]
fn new_memory_is_zero_unless_asked_to_be_dirty() {
    let gpu = Gpu::Standin(Standin::new());
    for (dirty, byte) in [("off", "0"), ("on", "165")] {
        let puppet = Puppet::start_with(&gpu, |command| command.env("GPULEASE_STANDIN_DIRTY", dirty));
        puppet.must("context 0");
        puppet.must("create a 0 4MiB");
        puppet.must("reserve r 4MiB");
        puppet.must("map r a 0B");
        puppet.must("access r 0 rw");
        assert_eq!(puppet.must("read r 0 0B 4MiB"), byte);
        puppet.must("alloc m 0 2MiB");
        assert_eq!(puppet.must("read m 0 0B 2MiB"), byte);
    }
}

#[test]
fn devices_and_cards_do_not_mix() {
    let (_one, here) = on(Standin::with(&[("DEVICES", "3"), ("BYTES", "1GiB")]));
    let (_other, there) = on(Standin::with(&[("DEVICES", "1")]));
    assert_eq!(here.must("devices").lines().count(), 3);
    here.must("create a 0 512MiB");
    here.must("create b 2 512MiB");
    let used: Vec<u64> = (0..3).map(|index| here.nvml(index)["used"] / (512 * MIB)).collect();
    assert_eq!(used, [1, 0, 1]);
    there.must("load");
    assert_eq!(there.nvml(0)["used"] / (512 * MIB), 0);
    let uuids: Vec<String> =
        [&here, &there].iter().map(|puppet| puppet.must("nvml 0")[..40].to_owned()).collect();
    assert_ne!(uuids[0], uuids[1]);
}

/// The books say the same as NVML, which every test of the broker leans on.
#[test]
fn the_cards_books_can_be_read_by_the_test() {
    let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "1GiB")]);
    let card = standin.card();
    assert_eq!(card.survey().unwrap().used(0).get(), 0);
    let (_gpu, puppet) = on(standin);
    puppet.must("create a 0 100MiB");
    assert_eq!(card.survey().unwrap().used(0).get(), puppet.nvml(0)["used"]);
    assert!(card.survey().unwrap().residents(0).is_empty());
    puppet.must("context 0");
    assert_eq!(card.survey().unwrap().residents(0)[0].pid, puppet.pid());
}

/// Exports memory of the card and has it mapped as a segment that can be swapped out; its pattern is 7. Two copies
/// carry it, of five pieces. Returns its host copy.
fn movable(puppet: &Puppet) -> OwnedFd {
    puppet.must("context 0");
    puppet.must("create a 0 66MiB");
    let arena = memfd_create("arena", MemfdFlags::CLOEXEC).expect("a memory file can be made");
    ftruncate(&arena, 66 * MIB).expect("it takes a size");
    give_chunk(puppet);
    puppet.give("keep", arena.as_fd()).expect("it takes a descriptor");
    puppet.must("swap-map 0 66MiB");
    puppet.must("swap-fill 7");
    // For the way back.
    give_chunk(puppet);
    arena
}

fn give_chunk(puppet: &Puppet) {
    let chunk = puppet.take("export a").expect("it is exported");
    puppet.give("keep", chunk.as_fd()).expect("it takes a descriptor");
}

/// Turns one bit of the host copy round.
fn spoil(arena: &OwnedFd, at: u64) {
    let mut byte = [0];
    pread(arena, &mut byte, at).expect("it is open");
    pwrite(arena, &[byte[0] ^ 1], at).expect("it is open");
}

#[test]
fn a_copy_that_fails_on_the_way_out_leaves_everything_where_it_is() {
    let (gpu, puppet) = on(Standin::new());
    movable(&puppet);
    for call in ["cuMemcpyDtoHAsync_v2 2", "cuLaunchKernel 1"] {
        faults(&gpu, &format!("{call} error 700"));
        let why = puppet.ask("swap-out").unwrap_err();
        let name = call.split(' ').next().expect("it has a name");
        assert!(why.contains(&format!("{name} failed: CUDA_ERROR_ILLEGAL_ADDRESS")), "{why}");
        faults(&gpu, "");
        puppet.must("swap-check 7");
    }
    assert_eq!(puppet.must("swap-out"), "pinned, sums on the GPU");
    assert!(puppet.ask("swap-check 7").is_err(), "it is unmapped");
}

#[test]
fn a_copy_that_fails_on_the_way_back_can_be_made_again() {
    let (gpu, puppet) = on(Standin::new());
    movable(&puppet);
    puppet.must("swap-out");
    faults(&gpu, "cuMemSetAccess 1 error 999");
    let why = puppet.ask("swap-back 66MiB").unwrap_err();
    assert!(why.contains("cuMemSetAccess failed"), "{why}");
    for call in ["cuMemcpyHtoDAsync_v2", "cuLaunchKernel"] {
        faults(&gpu, &format!("{call} 2 error 700"));
        give_chunk(&puppet);
        let why = puppet.ask("swap-back 66MiB").unwrap_err();
        assert!(why.contains(&format!("{call} failed")), "{why}");
        puppet.must("swap-vacate");
    }
    faults(&gpu, "");
    give_chunk(&puppet);
    puppet.must("swap-back 66MiB");
    puppet.must("swap-check 7");
}

/// Each way of copying, with each kind of sums: bytes come back, and one that does not is found.
#[test]
fn a_byte_changed_in_the_host_copy_is_found_by_sums_of_either_kind() {
    let refused = "cuModuleLoadData * error 209";
    let unlocked = "cuMemHostRegister_v2 * error 2";
    for (rules, way) in [
        (String::new(), "pinned, sums on the GPU"),
        (refused.to_owned(), "pinned, sums on host threads (XXH3)"),
        (unlocked.to_owned(), "pageable, sums on the GPU"),
        (format!("{refused}\n{unlocked}"), "pageable, sums on host threads (XXH3)"),
    ] {
        let (gpu, puppet) = on(Standin::new());
        faults(&gpu, &rules);
        let arena = movable(&puppet);
        assert_eq!(puppet.must("swap-out"), way);
        puppet.must("swap-back 66MiB");
        puppet.must("swap-check 7");
        puppet.must("swap-out");
        // In the first copy and in the last, each not in its first piece or at its edge.
        for (at, piece) in [(0, "0 B"), (50 * MIB - 1, "48 MiB"), (66 * MIB - 1, "64 MiB")] {
            spoil(&arena, at);
            give_chunk(&puppet);
            let why = puppet.ask("swap-back 66MiB").unwrap_err();
            assert!(why.contains(&format!("was changed at {piece} of 66 MiB")), "{way}, {at}: {why}");
            puppet.must("swap-vacate");
            spoil(&arena, at);
        }
        give_chunk(&puppet);
        puppet.must("swap-back 66MiB");
        puppet.must("swap-check 7");
    }
}

/// A lane that was made later may be of another kind than the one that the bytes went out on.
#[test]
fn sums_are_checked_as_they_were_made_on_whatever_lane() {
    for (first, second) in [("", "cuModuleLoadData * error 209"), ("cuModuleLoadData * error 209", "")] {
        let (gpu, puppet) = on(Standin::new());
        faults(&gpu, first);
        let arena = movable(&puppet);
        let way = puppet.must("swap-out");
        faults(&gpu, second);
        puppet.must("swap-lane");
        spoil(&arena, 20 * MIB);
        let why = puppet.ask("swap-back 66MiB").unwrap_err();
        assert!(why.contains("was changed at 16 MiB"), "{why}");
        puppet.must("swap-vacate");
        spoil(&arena, 20 * MIB);
        give_chunk(&puppet);
        puppet.must("swap-back 66MiB");
        puppet.must("swap-check 7");
        assert_ne!(puppet.must("swap-out"), way, "and out goes what the new lane makes");
    }
}

#[test]
fn a_launch_over_what_is_not_mapped_is_refused() {
    let (_gpu, puppet) = on(Standin::new());
    puppet.must("context 0");
    puppet.must("create a 0 4MiB");
    puppet.must("reserve r 4MiB");
    let refused = |words: &str| {
        let why = puppet.ask(words).unwrap_err();
        assert!(why.contains("cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS"), "{why}");
    };
    refused("sums r 0 4MiB");
    puppet.must("map r a 0B");
    refused("sums r 0 4MiB");
    puppet.must("access r 0 ro");
    puppet.must("sums r 0 4MiB");
    refused("sums r 0 6MiB");
}
