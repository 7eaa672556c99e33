//! The obligations, one by one.

use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;

use gpulease_broker::device::{CHUNKS_MAX, HandleKind};
use gpulease_proto::handover::MAX_CHUNKS;
use gpulease_tests::apart;
use gpulease_tests::puppet::send;
use gpulease_words::{Bytes, GRANULARITY, mib};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, pread, pwrite};

use super::bench::{Bench, chunks, pause, sum};

const SIZE: Bytes = mib(16);

/// All of them, on fresh devices.
pub(super) fn run(bench: &Bench) {
    if !apart::is_apart() {
        return;
    }
    for (name, obligation) in OBLIGATIONS {
        println!("{name}");
        obligation(bench);
    }
}

type Obligation = fn(&Bench);

const OBLIGATIONS: &[(&str, Obligation)] = &[
    ("what is made can be mapped by others and holds nobody's data", made_to_be_mapped),
    ("what makes no sense is refused and leaves nothing", nonsense_is_refused),
    ("never more than there is", never_more_than_there_is),
    ("what nobody has is free at once and can be made again", free_at_once),
    ("what a living process maps is not free, and it is named", a_liar_is_named),
    ("what a killed process had is free", the_killed_let_go),
    ("a descriptor kept by a process that calls nothing keeps it", a_kept_descriptor),
    ("the last of two holders counts", the_last_of_two),
    ("one that stays keeps no other from coming back", others_come_back),
    ("a descriptor under way counts", a_descriptor_under_way),
    ("what is swapped out is free, and comes back where it was", swapped_out_and_back),
    ("nothing is left of a dropped device", nothing_is_left),
];

fn made_to_be_mapped(bench: &Bench) {
    assert_eq!(CHUNKS_MAX, MAX_CHUNKS, "a frame takes a segment's chunks");
    let mut subject = bench.open();
    let (segment, handover) = subject.make(SIZE);
    let parts = chunks(&handover);
    assert!((1..=CHUNKS_MAX).contains(&parts.len()));
    assert!(parts.iter().all(|(_, bytes)| bytes.is_granular() && !bytes.is_zero()));
    assert_eq!(parts.iter().map(|(_, bytes)| *bytes).sum::<Bytes>(), SIZE);
    for (fd, _) in parts {
        assert!(
            fcntl_getfd(fd).expect("it is open").contains(FdFlags::CLOEXEC),
            "a program would inherit it"
        );
    }
    let (writer, reader) = (bench.process(), bench.process());
    assert_eq!(writer.map("s", &handover), "0");
    writer.fill("s", 90, &handover);
    assert_eq!(reader.map("s", &handover), "90");
    let count = parts.len();
    for process in [&writer, &reader] {
        process.unmap("s", count);
    }
    subject.take_back(segment, handover);
    subject.until_freed(segment);
    // The next tenant reads nothing of it.
    let (segment, handover) = subject.make(SIZE);
    assert_eq!(reader.map("t", &handover), "0");
    reader.unmap("t", chunks(&handover).len());
    subject.take_back(segment, handover);
    subject.until_freed(segment);
    assert_eq!(subject.made(), Bytes::ZERO);
}

fn nonsense_is_refused(bench: &Bench) {
    let mut subject = bench.open();
    let total = subject.device.description().total;
    for bytes in [Bytes::ZERO, Bytes::new(1), mib(3), Bytes::MAX, Bytes::MAX.round_down()] {
        let why = subject.try_make(bytes, HandleKind::Descriptor).expect_err("it makes no sense");
        assert!(why.contains(&bytes.to_string()), "{why}");
    }
    let more = total.round_down().saturating_add(GRANULARITY);
    let why = subject.try_make(more, HandleKind::Descriptor).expect_err("it makes no sense");
    assert!(why.contains(&total.to_string()), "{why}");
    assert_eq!(subject.made(), Bytes::ZERO);
}

fn never_more_than_there_is(bench: &Bench) {
    let mut subject = bench.open();
    let total = subject.device.description().total.round_down();
    let half = Bytes::new(total.get() / 2).round_down();
    let (first, handover) = subject.make(half);
    let over = total.saturating_sub(half).saturating_add(GRANULARITY);
    let why = subject.try_make(over, HandleKind::Descriptor).expect_err("it makes no sense");
    assert!(why.contains(&half.to_string()) && why.contains(&over.to_string()), "{why}");
    let (second, rest) = subject.make(half.saturating_sub(mib(64)));
    for (segment, handover) in [(first, handover), (second, rest)] {
        subject.take_back(segment, handover);
        subject.until_freed(segment);
    }
    assert_eq!(subject.made(), Bytes::ZERO);
}

fn free_at_once(bench: &Bench) {
    let mut subject = bench.open();
    let most = Bytes::new(subject.device.description().total.get() / 4 * 3).round_down();
    for bytes in [GRANULARITY, most, most, mib(10), most] {
        let start = Instant::now();
        let (segment, handover) = subject.make(bytes);
        let made = start.elapsed();
        let start = Instant::now();
        subject.take_back(segment, handover);
        subject.until_freed(segment);
        println!("measured: {bytes} made in {made:?}, proven free after {:?}", start.elapsed());
        assert_eq!(subject.made(), Bytes::ZERO);
    }
}

fn a_liar_is_named(bench: &Bench) {
    let mut subject = bench.open();
    let liar = bench.process();
    for bytes in [GRANULARITY, SIZE] {
        let (segment, handover) = subject.make(bytes);
        let count = chunks(&handover).len();
        liar.map("s", &handover);
        subject.take_back(segment, handover);
        assert_eq!(subject.until_suspected(segment), [liar.pid()]);
        subject.is_held(segment);
        liar.unmap("s", count);
        subject.until_freed(segment);
    }
    assert_eq!(subject.made(), Bytes::ZERO);
}

fn the_killed_let_go(bench: &Bench) {
    let mut subject = bench.open();
    let victim = bench.process();
    let (early, handover) = subject.make(SIZE);
    victim.map("early", &handover);
    subject.take_back(early, handover);
    subject.is_held(early);
    let (late, handover) = subject.make(SIZE);
    victim.map("late", &handover);
    victim.kill();
    subject.take_back(late, handover);
    for segment in [early, late] {
        subject.until_freed(segment);
    }
}

fn a_kept_descriptor(bench: &Bench) {
    let mut subject = bench.open();
    let keeper = bench.bare_process();
    let (segment, handover) = subject.make(SIZE);
    keeper.keep(&handover);
    subject.take_back(segment, handover);
    // On a card with monitors there are other candidates: all who have the driver's files open and no context.
    assert!(subject.until_suspected(segment).contains(&keeper.pid()));
    keeper.let_go();
    subject.until_freed(segment);
}

fn the_last_of_two(bench: &Bench) {
    let mut subject = bench.open();
    let (first, second) = (bench.process(), bench.process());
    let (segment, handover) = subject.make(SIZE);
    let count = chunks(&handover).len();
    for process in [&first, &second] {
        process.map("s", &handover);
    }
    subject.take_back(segment, handover);
    subject.is_held(segment);
    first.unmap("s", count);
    subject.is_held(segment);
    assert!(subject.until_suspected(segment).contains(&second.pid()));
    second.unmap("s", count);
    subject.until_freed(segment);
}

fn others_come_back(bench: &Bench) {
    let mut subject = bench.open();
    let (honest, liar) = (bench.process(), bench.process());
    let made: Vec<_> = (0..6).map(|_| subject.make(SIZE)).collect();
    for (n, (_, handover)) in made.iter().enumerate() {
        honest.map(&format!("s{n}"), handover);
    }
    let (held, kept) = (made[1].0, made[4].0);
    liar.map("s", &made[1].1);
    liar.keep(&made[4].1);
    for (n, (_, handover)) in made.iter().enumerate() {
        honest.unmap(&format!("s{n}"), chunks(handover).len());
    }
    let segments: Vec<_> = made.iter().map(|(segment, _)| *segment).collect();
    for (segment, handover) in made {
        subject.take_back(segment, handover);
    }
    for segment in segments.into_iter().filter(|segment| ![held, kept].contains(segment)) {
        subject.until_freed(segment);
    }
    assert_eq!(subject.made(), sum(&[SIZE, SIZE]));
    liar.kill();
    for segment in [held, kept] {
        subject.until_freed(segment);
    }
    assert_eq!(subject.made(), Bytes::ZERO);
}

fn a_descriptor_under_way(bench: &Bench) {
    let mut subject = bench.open();
    let (segment, handover) = subject.make(SIZE);
    let (here, there) = std::os::unix::net::UnixDatagram::pair().expect("a pair of sockets");
    send(here.as_fd(), "x", Some(chunks(&handover)[0].0.as_fd())).expect("it is sent");
    subject.take_back(segment, handover);
    subject.is_held(segment);
    drop((here, there));
    subject.until_freed(segment);
}

fn swapped_out_and_back(bench: &Bench) {
    // More than one piece of the engine, and a rest.
    let bytes = mib(38);
    let (mut subject, tenant) = (bench.open(), bench.process());
    let arena = memfd_create("arena", MemfdFlags::CLOEXEC).expect("a memory file can be made");
    ftruncate(&arena, bytes.get()).expect("it takes a size");
    let (mut segment, mut handover) = subject.make(bytes);
    let address = tenant.map_movable(&handover, &arena);
    tenant.swap("fill 7");
    let most = Bytes::new(subject.device.description().total.get() / 4 * 3).round_down();
    for _ in 0..3 {
        tenant.swap("out");
        subject.take_back(segment, handover);
        subject.until_freed(segment);
        assert_eq!(subject.made(), Bytes::ZERO);
        let (meanwhile, whole) = subject.make(most);
        subject.take_back(meanwhile, whole);
        subject.until_freed(meanwhile);
        (segment, handover) = subject.make(bytes);
        assert_eq!(tenant.swap_back(&handover), Ok(address.clone()));
        tenant.swap("check 7");
    }
    tenant.swap("out");
    let mut byte = [0];
    let place = 17 << 20;
    pread(&arena, &mut byte, place).expect("it is open");
    pwrite(&arena, &[!byte[0]], place).expect("it is open");
    subject.take_back(segment, handover);
    subject.until_freed(segment);
    (segment, handover) = subject.make(bytes);
    let why = tenant.swap_back(&handover).expect_err("a changed byte is found");
    assert!(why.contains("was changed at 16 MiB of 38 MiB"), "{why}");
    tenant.kill();
    subject.take_back(segment, handover);
    subject.until_freed(segment);
}

fn nothing_is_left(bench: &Bench) {
    let use_it = || {
        let mut subject = bench.open();
        let (given_back, handover) = subject.make(SIZE);
        subject.take_back(given_back, handover);
        subject.until_freed(given_back);
        drop(subject.make(SIZE));
    };
    use_it();
    // Libraries keep what they opened first; a second device adds nothing to that.
    let before = here();
    use_it();
    for _ in 0..500 {
        if here() == before {
            return;
        }
        pause();
    }
    assert_eq!(here(), before);
}

/// How many threads, descriptors and children this process has.
fn here() -> [usize; 3] {
    let count = |folder: &str| fs::read_dir(folder).expect("/proc is mounted").count();
    let threads = fs::read_dir("/proc/self/task").expect("/proc is mounted").flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children = children.map(|pids| pids.split_whitespace().count()).sum();
    [count("/proc/self/task"), count("/proc/self/fd"), children]
}
