//! In a lease: what is taken is counted or refused, by every way and through every door.

use gpulease_tests::ledger::{lease, memory};
use gpulease_tests::proc::eventually;
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, mib};

use super::lab::{Card, DOORS, LAZY, Lab, OLD_FORM, STEP, WAYS, code};
use super::turns::{ROOM, TURNS};

const NOT_PERMITTED: u32 = 800;
const NOT_SUPPORTED: u32 = 801;
const OUT_OF_MEMORY: u32 = 2;

/// Ways whose memory comes from the broker, which can be taken back. It is in the ledger before the program has it; what
/// the driver gives the broker sees when it looks next.
const SERVED: [&str; 7] = ["alloc", "pitch", "create", "create-many", "async", "default-pool", "own-pool"];
/// HAMi-core#79: some allocation calls were not counted. Here what the card gave is in the ledger, within one step,
/// or the call was refused with an error that programs know.
#[test]
fn field_01_what_is_taken_by_any_way_is_in_the_ledger() {
    for lab in Lab::all("field_01_what_is_taken_by_any_way_is_in_the_ledger") {
        let mut wrong = Vec::new();
        for (turn, door) in DOORS.into_iter().enumerate() {
            let guest = lab.leased("256MiB", door);
            drop(guest.ask("launch 1"));
            lab.wait_until_measured();
            let used = lab.card.used();
            // What waits for the broker's next look goes through one door each: which one makes no difference to it.
            let others = WAYS.into_iter().filter(|way| !SERVED.contains(way)).skip(turn).step_by(DOORS.len());
            for way in SERVED.into_iter().chain(others) {
                if let Err(why) = counted(&lab, &guest, way) {
                    wrong.push(format!("{way} through {door} on {}: {why}", lab.card.gpu));
                }
            }
            // One piece is enough to keep.
            lab.card.wait_until_used(used.saturating_add(mib(64)));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// Takes 64 MiB and gives them back.
fn counted(lab: &Lab, guest: &Puppet, way: &str) -> Result<(), String> {
    // A card may say of these only that they are used, and not by whom.
    let is_nobodys = LAZY.contains(&way) || way == "managed";
    let booked = || if is_nobodys { lab.on_books() } else { lab.charged() };
    if way == "managed" {
        // A card has some memory for it from the first on, which stays.
        let (used, before) = (lab.card.used(), booked());
        let first = guest.must("take managed 64MiB");
        guest.must(&format!("give {first}"));
        let stays = || lab.card.used().saturating_sub(used);
        if !waited(|| booked().saturating_sub(before).saturating_add(STEP) >= stays()) {
            return Err(format!("{} of the first are not in the books", stays()));
        }
    }
    // What the way before took has left the card and the books alike.
    lab.ledger.wait("nothing on its way back", |state| (memory(state).draining_bytes == 0).then_some(()));
    let (used, before, charged) = (lab.card.used(), booked(), lab.charged());
    match code(guest.ask(&format!("take {way} 64MiB"))) {
        Err(NOT_PERMITTED | NOT_SUPPORTED) if !SERVED.contains(&way) => {
            lab.card.wait_until_used(used);
            Ok(())
        }
        Err(code) => Err(format!("refused with {code}")),
        Ok(number) => {
            let more = lab.card.used().saturating_sub(used);
            let so = || {
                // What is nobody's may have been another's shortly before: all that the card says is used counts then.
                let (booked, more) = if is_nobodys {
                    (booked(), lab.card.used())
                } else {
                    (booked().saturating_sub(before), more)
                };
                booked.saturating_add(STEP) >= more
            };
            let in_time = if SERVED.contains(&way) { so() } else { waited(so) };
            // What the way before had may be on its way back in the books while the card has it already.
            let is_just = waited(|| booked().saturating_sub(before) <= more.saturating_add(STEP));
            let found = booked().saturating_sub(before);
            guest.must(&format!("check {number}"));
            guest.must(&format!("give {number}"));
            // A piece may be kept for the next time; then it is in the ledger still.
            let kept = || lab.charged().saturating_sub(charged);
            let given = waited(|| lab.card.used() <= [used, kept(), STEP].into_iter().sum());
            // What a process has beside its lease is seen to be less in time, too, and the next way counts from there.
            if !SERVED.contains(&way) && !waited(|| booked() <= before.saturating_add(STEP)) {
                return Err(format!("{} are in the books still, {before} before", booked()));
            }
            if !given {
                return Err(format!("{} of the card are still used, {used} before", lab.card.used()));
            }
            if in_time && is_just {
                Ok(())
            } else {
                Err(format!("the card gave {more}, the ledger says {found}"))
            }
        }
    }
}

fn waited(so: impl Fn() -> bool) -> bool {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while std::time::Instant::now() < until {
        if so() {
            return true;
        }
    }
    so()
}

/// Nobody takes more than the lease's limit, however he asks.
#[test]
fn more_than_the_budget_is_refused_by_every_way_through_every_door() {
    for lab in Lab::all("more_than_the_budget_is_refused_by_every_way_through_every_door") {
        let mut wrong = Vec::new();
        for door in DOORS {
            let guest = lab.leased("256MiB", door);
            drop(guest.ask("launch 1"));
            for way in WAYS {
                let used = lab.card.used();
                let answer = code(guest.ask(&format!("take {way} 320MiB")));
                let more = lab.card.used().saturating_sub(used);
                match answer {
                    Err(OUT_OF_MEMORY) => {}
                    Err(NOT_PERMITTED | NOT_SUPPORTED) if !SERVED.contains(&way) => {}
                    Err(code) => wrong.push(format!("{way} through {door} on {}: code {code}", lab.card.gpu)),
                    Ok(number) => {
                        wrong.push(format!("{way} through {door} on {}: it took {more}", lab.card.gpu));
                        guest.must(&format!("give {number}"));
                    }
                }
                // The broker has it back once the card says so.
                lab.card.wait_until_used(used);
            }
            // It lives on, and what fits is still granted.
            guest.must("take alloc 128MiB");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// A segment and memory of the driver that were asked for at one time both passed for fitting.
#[test]
fn of_two_that_ask_at_once_one_fits() {
    let lab = Lab::on(Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]))), &[]);
    for ways in ["create-by-nccl alloc", "alloc create-by-nccl", "managed create-by-nccl"] {
        let guest = lab.leased("256MiB", "handle");
        // What the driver gives is not counted as given for so long.
        lab.faults("cuMemCreate 1 delay 1000");
        let codes = guest.must(&format!("at-once {ways} 192MiB"));
        lab.faults("");
        assert!(["[0, 2]", "[2, 0]"].contains(&codes.as_str()), "{ways}: {codes}");
        guest.kill();
    }
}

#[test]
fn the_form_of_old_is_no_way_around() {
    for lab in Lab::all("the_form_of_old_is_no_way_around") {
        // What it does without a lease is the control.
        println!("on {}: {:?}", lab.card.gpu, lab.card.bare("handle").ask(&format!("take {OLD_FORM} 64MiB")));
        let guest = lab.leased("256MiB", "handle");
        let used = lab.card.used();
        for size in ["64MiB", "320MiB"] {
            let refused = code(guest.ask(&format!("take {OLD_FORM} {size}")));
            assert!(
                matches!(refused, Err(2 | NOT_PERMITTED | NOT_SUPPORTED)),
                "on {}: {refused:?}",
                lab.card.gpu
            );
        }
        lab.card.wait_until_used(used);
    }
}

/// The functions that take memory and those that work on it are the preload's, by every door: what works on memory has
/// to pass the gate, or it would meet memory that is away.
#[test]
fn no_function_that_takes_or_touches_memory_is_the_drivers() {
    for lab in Lab::all("no_function_that_takes_or_touches_memory_is_the_drivers") {
        let strange: Vec<(&str, String)> = DOORS
            .into_iter()
            .map(|door| (door, lab.leased("64MiB", door).must("not-of libgpulease_preload")))
            .filter(|(_, strange)| !strange.is_empty())
            .collect();
        assert!(strange.is_empty(), "on {}: {strange:#?}", lab.card.gpu);
    }
}

/// nvshare#11: a new release of a framework bypassed the shim. Whichever way a program finds the driver, what it is
/// told of the card is its lease, before it has allocated anything.
#[test]
fn field_03_every_door_leads_to_the_lease() {
    for lab in Lab::all("field_03_every_door_leads_to_the_lease") {
        let all = mib(256).get();
        for door in DOORS {
            let guest = lab.started("256MiB", door);
            guest.must("init");
            assert_eq!(guest.must("total"), format!("total={all}"), "{door} on {}", lab.card.gpu);
            guest.must("context");
            assert_eq!(guest.must("info"), format!("free={all} total={all}"), "{door} on {}", lab.card.gpu);
        }
    }
}

/// HAMi#1370: tiny limits made the memory query fail. Here the query works and its figures make sense, or the lease is
/// refused with what it needs at least.
#[test]
fn field_09_tiny_budgets_have_figures_or_are_refused() {
    for lab in Lab::all("field_09_tiny_budgets_have_figures_or_are_refused") {
        for budget in ["1B", "1MiB", "2097151B", "2MiB", "64MiB", "345MB"] {
            let output = lab.run(budget, &["init", "total", "context", "info"]);
            let (said, complaint) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                assert!(said.is_empty() && complaint.contains("2 MiB"), "{budget}: {said}{complaint}");
                continue;
            }
            let figures: Vec<u64> = said
                .split_whitespace()
                .filter_map(|word| word.split_once('='))
                .map(|(_, figure)| figure.parse().expect("a number"))
                .collect();
            let [total, free, again] = figures[..] else { panic!("{budget}: {said}{complaint}") };
            assert_eq!(total, again, "{budget}");
            assert!(free <= total && total >= mib(2).get(), "{budget}: {free} of {total}");
        }
    }
}

/// pytorch#58466: a per-process cap ignored context and libraries. Here they are a line of their own beside the lease: charged
/// as they are seen, and nothing of the limit.
#[test]
fn field_12_a_context_is_charged_beside_the_lease_and_takes_nothing_of_its_limit() {
    for lab in Lab::all("field_12_a_context_is_charged_beside_the_lease_and_takes_nothing_of_its_limit") {
        let guest = lab.leased("256MiB", "address-2");
        lab.wait_until_measured();
        let beside = || lease(&lab.ledger.now(), "guest").overhead_bytes;
        // A look may have been while it was made.
        eventually("a context is charged", || match beside() {
            context if context > mib(32).get() => Ok(()),
            context => Err(format!("{context} bytes")),
        });
        let context = beside();
        assert_eq!(guest.must("info"), format!("free={0} total={0}", mib(256).get()));
        let all = guest.must("take alloc 256MiB");
        let held = lease(&lab.ledger.now(), "guest").held_bytes;
        guest.must(&format!("give {all}"));
        guest.must("take variable 64MiB");
        eventually("a library's memory is charged, too", || match beside() {
            more if more + STEP.get() >= context + mib(64).get() => Ok(()),
            more => Err(format!("{more} bytes, {context} before")),
        });
        let state = lab.ledger.now();
        let own = lease(&state, "guest");
        assert_eq!((held, own.limit_bytes), (mib(256).get(), mib(256).get()));
        assert_eq!(memory(&state).overhead_bytes, own.overhead_bytes, "the books of the device say so, too");
    }
}

/// vllm#56830: a start-up failed because a neighbour freed memory while it measured. What a job sees depends on its own
/// lease alone.
#[test]
fn field_31_a_neighbour_changes_no_figure() {
    for lab in Lab::all("field_31_a_neighbour_changes_no_figure") {
        let (one, other) = (lab.leased("256MiB", "address-2"), lab.leased("512MiB", "handle"));
        let stranger = lab.card.bare("handle");
        one.must("take alloc 64MiB");
        let before = one.must("info");
        assert_eq!(before, format!("free={} total={}", mib(192).get(), mib(256).get()));
        let number = other.must("take alloc 256MiB");
        let unleased = stranger.must("take alloc 256MiB");
        assert_eq!(one.must("info"), before);
        other.must(&format!("give {number}"));
        stranger.must(&format!("give {unleased}"));
        assert_eq!(one.must("info"), before);
    }
}

/// A context that is reset gives the lease back what was allocated in it, and the program goes on.
#[test]
fn a_reset_gives_the_lease_its_memory_back() {
    for lab in Lab::all("a_reset_gives_the_lease_its_memory_back") {
        let guest = lab.leased("256MiB", "address-2");
        for way in ["alloc", "async", "alloc"] {
            guest.must(&format!("take {way} 64MiB"));
        }
        guest.must("reset");
        eventually("the lease holds nothing", || match lease(&lab.ledger.now(), "guest").held_bytes {
            0 => Ok(()),
            held => Err(format!("{held} bytes")),
        });
        guest.must("context");
        let number = guest.must("take alloc 192MiB");
        guest.must(&format!("check {number}"));
    }
}

/// After all ends, nothing is left in the ledger or on the card.
#[test]
fn what_a_program_leaves_behind_is_given_back() {
    for lab in Lab::all("what_a_program_leaves_behind_is_given_back") {
        // A card keeps some memory after the first that was managed, and says of nobody that he has it.
        let first = lab.leased("256MiB", "address-2");
        first.must("take managed 64MiB");
        first.kill();
        lab.ledger.wait_for_nobody_to_have_any();
        let used = lab.card.used();
        for way in WAYS {
            let guest = lab.leased("256MiB", "address-2");
            // Refused or not: the program ends with whatever it has.
            drop(guest.ask(&format!("take {way} 64MiB")));
            guest.kill();
        }
        lab.ledger.wait_for_nobody_to_have_any();
        lab.card.wait_until_used(used);
        lab.daemon.stop();
    }
}

/// A segment that other devices or objects of the driver refer to can't be moved: it is not given to them, or the lease stays where
/// it is. This needs places that are none, which a card's driver does not look at.
#[test]
fn leased_memory_goes_nowhere_that_it_cannot_leave() {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    assert_eq!(card.bare("handle").must("trial elsewhere"), "[1, 1, 1, 801]");
    let lab = Lab::configured(card, &ROOM, TURNS);
    let guest = lab.leased("256MiB", "handle");
    guest.must("take create 32MiB");
    assert!(lease(&lab.ledger.now(), "guest").suspendable);
    assert_eq!(guest.must("trial elsewhere"), "[801, 801, 801, 801]");
    assert!(
        lease(&lab.ledger.now(), "guest").suspendable,
        "who asks a card without descriptors pins nothing"
    );
}

/// The pool of a device has a second name since CUDA 13, and is the lease's by either.
#[test]
fn the_pool_of_a_device_is_of_the_lease_by_its_new_name_too() {
    let card = Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB"), ("VERSION", "13000")]);
    let lab = Lab::on(Card::of(Gpu::Standin(card)), &[]);
    let guest = lab.leased("256MiB", "handle");
    guest.must("trial default-pool-13");
    assert_eq!(lease(&lab.ledger.now(), "guest").held_bytes, mib(64).get());
}

/// Memory that could be exported is a segment, which can't be, unless a library asks that lives by exports. NCCL is one,
/// by its own name or by the symbols of what it was linked into.
#[test]
fn what_nccl_makes_for_export_can_be_exported_wherever_it_was_linked_into() {
    for lab in Lab::all("what_nccl_makes_for_export_can_be_exported_wherever_it_was_linked_into") {
        let guest = lab.leased("256MiB", "handle");
        lab.wait_until_measured();
        let held = || lease(&lab.ledger.now(), "guest").held_bytes;
        let (before, segments) = (lab.on_books(), held());
        assert_eq!(code(guest.ask("take create-exportable 64MiB")), Err(NOT_SUPPORTED));
        let number = guest.must("take create-by-nccl 64MiB");
        guest.must(&format!("check {number}"));
        assert_eq!(held(), segments, "it is no segment");
        // A card lists for nobody what is shared: then it is off-book.
        eventually("it is in the books beside the segments", || match lab.on_books() {
            more if more.saturating_add(STEP) >= before.saturating_add(mib(64)) => Ok(()),
            more => Err(format!("{more}, {before} before")),
        });
        // The broker would still give that much: the library counts both.
        let beyond = mib(256 - 64 + 32).saturating_sub(Bytes::new(held()));
        let answer = code(guest.ask(&format!("take alloc {}B", beyond.get())));
        assert_eq!(answer, Err(OUT_OF_MEMORY), "it counts against the limit, like segments");
        guest.must(&format!("give {number}"));
    }
}
