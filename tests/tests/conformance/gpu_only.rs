//! What only a GPU's device does: pieces, sentences about room, CUDA IPC handles and their exporter.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use gpulease_broker::device::cuda::{Canary, Choice, CudaDevice, visible};
use gpulease_broker::device::{Descriptors, Device, HandleKind, Handover, IpcHandle};
use gpulease_broker::exporter::Scrubbing;
use gpulease_tests::puppet::{Gpu, Puppet, Turn};
use gpulease_tests::standin::Standin;
use gpulease_tests::{apart, on_cards};
use gpulease_words::{Bytes, Pid, SegmentId, gib, mib};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use super::bench::{Bench, Subject, Temper, chunks, cuda, exporter, first, pause};

const SIZE: Bytes = mib(64);
const PATIENCE: Duration = Duration::from_secs(30);

on_cards! {
    fn a_card_without_a_large_piece_gives_several([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        let process = puppet();
        process.must("context 0");
        // No whole one, and the second half is refused: quarters.
        faults("cuMemCreate 1 error 2\ncuMemCreate 3 error 2");
        let (segment, handover) = subject.make(mib(66));
        let sizes: Vec<Bytes> = chunks(&handover).iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(sizes, [mib(18), mib(16), mib(16), mib(16)]);
        for (n, (fd, bytes)) in chunks(&handover).iter().enumerate() {
            process.give(&format!("import c{n} {}B", bytes.get()), fd.as_fd()).expect("it is imported");
        }
        assert_eq!(process.nvml(0)["used"] - mib(523 + 66).get(), base(&process), "the refused ones are gone");
        (0..4).for_each(|n| drop(process.must(&format!("release c{n}"))));
        subject.take_back(segment, handover);
        subject.until_freed(segment);
    }

    fn a_refusal_says_how_much_is_free_and_who_has_the_rest([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        let hog = puppet();
        hog.must("context 0");
        hog.must("alloc most 0 6GiB");
        let used = hog.nvml(0)["used"];
        let why = subject.try_make(gib(4), HandleKind::Descriptor).expect_err("there is no room");
        let user = rustix::process::getuid().as_raw();
        let uses = format!("and pid {} (cuda-puppet of user {user}) uses 6.5 GiB", hog.pid());
        assert!(why.starts_with("4 GiB could not be made on gpulease stand-in: 1.4 GiB of its 8 GiB are free"), "{why}");
        assert!(why.contains("0 B are leased") && why.ends_with(&uses), "{why}");
        assert_eq!(hog.nvml(0)["used"], used);
    }

    fn a_failure_on_the_way_leaves_nothing([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        let watcher = puppet();
        watcher.must("load");
        let used = watcher.nvml(0)["used"];
        for (rule, words) in [
            ("cuMemExportToShareableHandle 1 error 999", "cuMemExportToShareableHandle failed: CUDA_ERROR_UNKNOWN"),
            ("cuMemCreate 1 error 719", "cuMemCreate failed: an error that this driver has no name for (719)"),
            ("cuMemCreate 1+ error 2", "are free"),
        ] {
            faults(rule);
            let why = subject.try_make(SIZE, HandleKind::Descriptor).expect_err("it was told to fail");
            assert!(why.contains(words), "{why}");
            assert_eq!(watcher.nvml(0)["used"], used, "{rule}");
        }
        faults("");
        let (segment, handover) = subject.make(SIZE);
        subject.take_back(segment, handover);
        subject.until_freed(segment);
    }

    fn descriptors_that_follow_are_the_segments(Gpu::all("descriptors_that_follow_are_the_segments")) {
        let mut subject = Subject::of(cuda());
        let (segment, owed) = subject.try_make(SIZE, HandleKind::DescriptorToFollow).expect("it is made");
        let Handover::Descriptors(Descriptors::Owed(_)) = &owed else { panic!("the driver's work was not put off: {owed:?}") };
        subject.device.export(segment);
        let handover = delivered(owed).expect("it is exported");
        let bench = Bench::gpu(Temper::Sound);
        let process = bench.process();
        process.map("a", &handover);
        process.fill("a", 7, &handover);
        subject.take_back(segment, handover);
        subject.is_held(segment);
        process.unmap("a", 1);
        subject.until_freed(segment);
    }

    fn what_can_not_be_exported_is_told_to_who_waits([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        let (segment, owed) = subject.try_make(SIZE, HandleKind::DescriptorToFollow).expect("it is made");
        faults("cuMemExportToShareableHandle 1 error 999");
        subject.device.export(segment);
        faults("");
        let why = delivered(owed).expect_err("it was told to fail");
        assert!(why.contains("can't be shared: cuMemExportToShareableHandle failed") && why.contains("free"), "{why}");
        subject.device.reclaim(segment);
        subject.until_freed(segment);
    }

    fn without_nvml_a_probe_proves_what_it_can(Gpu::without_nvml("without_nvml_a_probe_proves_what_it_can")) {
        let device = cuda();
        assert!(device.nvml_trouble().is_some_and(|why| why.starts_with("no NVML: ")), "{:?}", device.nvml_trouble());
        let mut subject = Subject::of(device);
        let (small, handover) = subject.make(SIZE);
        subject.take_back(small, handover);
        subject.until_freed(small);
        // Too much to be made twice: as long as it is held the probe fails.
        let liar = puppet();
        let (large, handover) = subject.make(gib(5));
        liar.give("keep", chunks(&handover)[0].0.as_fd()).expect("it takes a descriptor");
        subject.take_back(large, handover);
        subject.is_held(large);
        liar.must("let-go");
        subject.until_freed(large);
    }

    fn cards_are_numbered_by_their_place_on_the_bus(Gpu::all("cards_are_numbered_by_their_place_on_the_bus")) {
        let said = puppet().must("devices");
        let mut cards: Vec<(&str, &str)> = said.lines().map(bus_and_uuid).collect();
        cards.sort_unstable();
        for (number, (_, uuid)) in cards.iter().enumerate() {
            let choice: Choice = format!("cuda:{number}").parse().expect("a number is a choice");
            let device = CudaDevice::open(&choice, exporter(), Canary::Skip).expect("it opens");
            assert_eq!(device.description().uuid, *uuid);
        }
        let all = visible().expect("the driver works");
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names, cards.iter().map(|(_, uuid)| format!("cuda:{uuid}")).collect::<Vec<_>>());
    }

    fn a_card_that_is_not_there_is_refused_by_name([standin(&[])]) {
        for (text, words) in [
            ("cuda:7", "there is no cuda:7: the CUDA driver shows 2 GPUs"),
            ("cuda:GPU-00000000-0000-0000-0000-000000000000", "there is no cuda:GPU-00000000"),
        ] {
            let why = refused(&text.parse().expect("it names a GPU"));
            assert!(why.contains(words), "{why}");
        }
    }

    fn a_card_in_mig_mode_is_refused([standin(&[("MIG", "on")])]) {
        let why = refused(&Choice::Number(0));
        assert!(why.contains("is in MIG mode") && why.contains("nvidia-smi -mig 0"), "{why}");
    }

    fn a_card_without_virtual_memory_is_refused([standin(&[("VMM", "off")])]) {
        let why = refused(&Choice::Number(0));
        assert!(why.starts_with("cuda:0 can't be lent: gpulease stand-in has no virtual memory management"), "{why}");
    }

    fn a_card_without_descriptors_is_refused([standin(&[("DESCRIPTORS", "off")])]) {
        assert!(refused(&Choice::Number(0)).contains("can't export its memory as a file descriptor"));
    }

    fn an_old_driver_is_refused([Gpu::Standin(Standin::with(&[("VERSION", "10010")]).without_symbol("cuMemCreate"))]) {
        let why = refused(&Choice::Number(0));
        assert!(why.starts_with("cuda:0 can't be had: the NVIDIA driver is too old: it has no cuMemCreate"), "{why}");
        assert!(visible().is_err());
    }

    fn the_canary_sees_a_driver_that_scrubs(Gpu::all("the_canary_sees_a_driver_that_scrubs")) {
        let start = Instant::now();
        let device = CudaDevice::open(&first(), exporter(), Canary::Run).expect("it opens");
        println!("measured: a device with its canary is open after {:?}", start.elapsed());
        assert_eq!(*device.scrubbing(), Scrubbing::Seen);
    }

    fn a_nearly_full_card_is_not_troubled_with_a_canary([standin(&[("BYTES", "4GiB")])]) {
        let device = CudaDevice::open(&first(), exporter(), Canary::Run).expect("it opens");
        assert!(matches!(device.scrubbing(), Scrubbing::Unknown(why) if why.contains("were free")));
    }

    fn a_handle_opens_elsewhere_until_it_is_freed(Gpu::all("a_handle_opens_elsewhere_until_it_is_freed")) {
        let mut subject = Subject::of(cuda());
        assert_eq!(helpers(&subject), []);
        let consumer = puppet();
        consumer.must("context 0");
        let start = Instant::now();
        let (segment, handle) = export(&mut subject, SIZE);
        println!("measured: the first CUDA IPC segment is there after {:?}", start.elapsed());
        assert_eq!(helpers(&subject).len(), 1, "the exporter is shown");
        open(&consumer, "o", handle);
        consumer.must("fill o 0 0B 21 64MiB");
        assert_eq!(consumer.must("read o 0 0B 64MiB"), "21");
        let (other, second) = export(&mut subject, SIZE);
        assert_eq!(helpers(&subject).len(), 1, "one exporter for all");
        assert!(handle != second);

        subject.device.reclaim(segment);
        assert_eq!(subject.until_suspected(segment), [Pid::new(consumer.pid())]);
        subject.is_held(segment);
        consumer.must("close o");
        subject.until_freed(segment);
        subject.device.reclaim(other);
        subject.until_freed(other);
        assert_eq!(subject.made(), Bytes::ZERO);
    }

    fn an_exporters_death_hurts_neither_consumer_nor_broker(Gpu::all("an_exporters_death_hurts_neither_consumer_nor_broker")) {
        let mut subject = Subject::of(cuda());
        let consumer = puppet();
        consumer.must("context 0");
        let (held, handle) = export(&mut subject, SIZE);
        let (unused, _) = export(&mut subject, SIZE);
        open(&consumer, "o", handle);
        consumer.must("fill o 0 0B 22 64MiB");
        let first = helpers(&subject)[0];
        kill(first);
        until(|| helpers(&subject).is_empty(), "the exporter's end is seen");
        let (segment, _) = export(&mut subject, SIZE);
        assert_ne!(helpers(&subject), [first], "another one is started");
        assert_eq!(consumer.must("read o 0 0B 64MiB"), "22");
        for lost in [held, unused] {
            subject.device.reclaim(lost);
        }
        assert!(subject.until_suspected(held).contains(&Pid::new(consumer.pid())));
        subject.is_held(held);
        consumer.must("close o");
        consumer.must("end-context 0");
        for lost in [held, unused] {
            subject.until_freed(lost);
        }
        subject.device.reclaim(segment);
        subject.until_freed(segment);
        assert_eq!(subject.made(), Bytes::ZERO);
    }

    fn an_exporter_without_work_gives_its_context_back([standin(&[])]) {
        let device = CudaDevice::open(&first(), exporter().with_idle(Duration::from_secs(1)), Canary::Skip);
        let mut subject = Subject::of(device.expect("it opens"));
        let (segment, _) = export(&mut subject, SIZE);
        let first = helpers(&subject);
        // With a segment it stays, however long.
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(helpers(&subject), first);
        subject.device.reclaim(segment);
        subject.until_freed(segment);
        until(|| helpers(&subject).is_empty(), "the exporter ends by itself");
        let (again, _) = export(&mut subject, SIZE);
        assert_ne!(helpers(&subject), first);
        subject.device.reclaim(again);
        subject.until_freed(again);
    }

    fn an_exporter_that_cannot_start_is_a_sentence([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        faults("cuDevicePrimaryCtxRetain * error 2");
        let why = subject.try_make(SIZE, HandleKind::CudaIpc).expect_err("it was told to fail");
        assert!(why.starts_with("64 MiB with a CUDA IPC handle could not be made"), "{why}");
        assert!(why.contains("no room for the exporter's context") && why.contains("are free"), "{why}");
        faults("cuMemAlloc_v2 * error 2");
        let why = subject.try_make(SIZE, HandleKind::CudaIpc).expect_err("it was told to fail");
        assert!(why.contains("cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY"), "{why}");
        faults("");
        let (segment, _) = export(&mut subject, SIZE);
        subject.device.reclaim(segment);
        subject.until_freed(segment);
    }

    fn an_exporter_that_hangs_holds_up_nobody_for_long([standin(&[])]) {
        let mut subject = Subject::of(cuda());
        let (segment, _) = export(&mut subject, SIZE);
        let exporter = helpers(&subject)[0];
        signal(exporter, Signal::STOP);
        let start = Instant::now();
        let why = subject.try_make(SIZE, HandleKind::CudaIpc).expect_err("nobody answers");
        assert!(start.elapsed() < PATIENCE && why.contains("does not answer"), "{why}");
        subject.device.reclaim(segment);
        assert_eq!(subject.until_suspected(segment), [exporter]);
        // Other segments are served meanwhile.
        let (other, handover) = subject.make(SIZE);
        subject.take_back(other, handover);
        subject.until_freed(other);
        signal(exporter, Signal::CONT);
        subject.until_freed(segment);
        // What came too late is freed too.
        let watcher = puppet();
        watcher.must("load");
        let context = mib(523).get();
        until(|| watcher.nvml(0)["used"] == base(&watcher) + context, "the late segment is freed");
    }

    fn a_dropped_device_takes_its_exporter_with_it(Gpu::all("a_dropped_device_takes_its_exporter_with_it")) {
        let mut subject = Subject::of(cuda());
        let (segment, _) = export(&mut subject, SIZE);
        let exporter = pidfd(helpers(&subject)[0]);
        subject.device.reclaim(segment);
        subject.until_freed(segment);
        drop(subject);
        assert!(has_ended(&exporter, Duration::ZERO), "a dropped device leaves no process");
    }
}

#[test]
fn a_dirty_driver_is_refused() {
    let card = standin(&[]);
    apart::run_with("conformance::gpu_only::refused_for_dirt", &card, &[("GPULEASE_STANDIN_DIRTY", "on")]);
}

#[test]
#[ignore = "runs in a process of its own"]
fn refused_for_dirt() {
    if apart::is_apart() {
        let why = CudaDevice::open(&first(), exporter(), Canary::Run).expect_err("memory is dirty");
        assert!(why.contains("another process's data"), "{why}");
    }
}

#[test]
fn without_a_driver_there_is_no_gpu() {
    if Gpu::real_or_why().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    apart::run("conformance::gpu_only::no_driver", &Gpu::Real(Turn::unneeded()));
}

#[test]
#[ignore = "runs in a process of its own"]
fn no_driver() {
    if apart::is_apart() {
        let why = refused(&Choice::Number(0));
        assert!(why.starts_with("cuda:0 can't be had: no CUDA driver library"), "{why}");
        assert_eq!(visible(), Ok(Vec::new()));
    }
}

/// A broker that is killed while a consumer has mapped its memory.
#[test]
fn a_brokers_death_does_not_reach_its_consumers() {
    for gpu in Gpu::all("a_brokers_death_does_not_reach_its_consumers") {
        let consumer = Puppet::start(&gpu);
        consumer.must("context 0");
        let mut broker = Broker::start(&gpu);
        let (handle, exporter) = broker.exports_to(&consumer);
        consumer.must(&format!("open o 0 {handle}"));
        consumer.must("fill o 0 0B 23 64MiB");
        let exporter = pidfd(exporter);
        let used = consumer.nvml(0)["used"];
        broker.child.kill().expect("it is our child");
        broker.child.wait().expect("it is our child");
        // What nobody was given is freed, and the rest is not.
        until(|| consumer.nvml(0)["used"] <= used - SIZE.get(), "the other segment is freed");
        assert!(consumer.nvml(0)["used"] > used - SIZE.get() * 2, "the consumer's is not");
        assert!(!has_ended(&exporter, Duration::ZERO));
        assert_eq!(consumer.must("read o 0 0B 64MiB"), "23");
        consumer.kill();
        assert!(has_ended(&exporter, PATIENCE), "it ends with its last consumer");
    }
}

/// Exports two segments, and hands one of them to the process that it is told.
#[test]
#[ignore = "runs in a process of its own"]
fn a_broker() {
    if !apart::is_apart() {
        return;
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test writes");
    let consumer = Pid::new(line.trim().parse().expect("a pid"));
    let mut subject = Subject::of(cuda());
    let (segment, handle) = export(&mut subject, SIZE);
    let (_unused, _) = export(&mut subject, SIZE);
    subject.device.handed(segment, consumer);
    println!("\nexported {} {}", hex(handle), helpers(&subject)[0]);
    line.clear();
    std::io::stdin().read_line(&mut line).expect("the test never writes again");
}

struct Broker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Broker {
    fn start(gpu: &Gpu) -> Self {
        let mut child = apart::start("conformance::gpu_only::a_broker", gpu);
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, stdin, stdout }
    }

    fn exports_to(&mut self, consumer: &Puppet) -> (String, Pid) {
        writeln!(self.stdin, "{}", consumer.pid()).expect("it reads");
        let lines = (&mut self.stdout).lines().map_while(Result::ok);
        let line =
            lines.into_iter().find(|line| line.starts_with("exported ")).expect("it says what it exported");
        let [_, handle, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        (handle.to_owned(), Pid::new(pid.parse().expect("a pid")))
    }
}

fn standin(settings: &[(&str, &str)]) -> Gpu {
    Gpu::Standin(Standin::with(settings))
}

/// A process that finds the same card as this one.
fn puppet() -> Puppet {
    Puppet::start(&Gpu::Real(Turn::unneeded()))
}

/// Sets failures of the stand-in from inside.
/// A handover whose descriptors are there.
fn delivered(owed: Handover) -> Result<Handover, String> {
    let Handover::Descriptors(descriptors) = owed else { panic!("descriptors were asked for") };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(descriptors.arrive()).map(|chunks| Handover::Descriptors(Descriptors::Here(chunks)))
}

fn faults(rules: &str) {
    let directory = std::env::var_os(gpulease_standin_card::DIRECTORY).expect("this is the stand-in");
    gpulease_standin_card::Faults::write(std::path::Path::new(&directory), rules)
        .expect("the directory takes a file");
}

/// What the stand-in's driver itself uses.
fn base(_: &Puppet) -> u64 {
    gpulease_standin_card::Settings::BASE.get()
}

fn refused(choice: &Choice) -> String {
    CudaDevice::open(choice, exporter(), Canary::Skip).expect_err("it can't be lent")
}

fn bus_and_uuid(line: &str) -> (&str, &str) {
    let mut fields = line.split('|').skip(1);
    let uuid = fields.next().expect("a line has a UUID");
    (fields.next().expect("a line has a place on the bus"), uuid)
}

fn export(subject: &mut Subject, bytes: Bytes) -> (SegmentId, IpcHandle) {
    match subject.try_make(bytes, HandleKind::CudaIpc).expect("it is exported") {
        (segment, Handover::CudaIpc(handle)) => (segment, handle),
        (_, Handover::Descriptors(_)) => panic!("a handle was asked for"),
    }
}

fn open(consumer: &Puppet, name: &str, handle: IpcHandle) {
    consumer.must(&format!("open {name} 0 {}", hex(handle)));
}

fn hex(handle: IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn helpers(subject: &Subject) -> Vec<Pid> {
    subject.device.gauge().read().expect("nothing changes between calls").helpers.into_iter().collect()
}

fn raw(pid: Pid) -> rustix::process::Pid {
    i32::try_from(pid.get()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid is positive")
}

fn kill(pid: Pid) {
    signal(pid, Signal::KILL);
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(raw(pid), signal).expect("it lives and is ours");
}

fn pidfd(pid: Pid) -> OwnedFd {
    pidfd_open(raw(pid), PidfdFlags::empty()).expect("it lives")
}

fn has_ended(pidfd: &OwnedFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).expect("seconds fit");
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&within)) == Ok(1)
}

/// Waits for what raises no event.
fn until(mut come: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !come() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        pause();
    }
}
