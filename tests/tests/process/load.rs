//! Many sessions with many leases on one daemon. What they cost is measured by `benches/broker`;
//! here it has to work.

use std::time::Instant;

use gpulease_tests::crowd::LARGE;
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::Stage;
use gpulease_tests::proc::Proc;
use gpulease_words::{Bytes, mib};

#[test]
fn a_thousand_sessions_of_ten_leases_each_are_served() {
    let size = LARGE.permitted();
    let daemon = Stage::Host.daemon(size.room());
    let ledger = Ledger::of(&daemon);
    let start = Instant::now();
    let crowd = size.gather(&daemon);
    println!("{} leases were granted in {:.1?}", size.total(), start.elapsed());
    println!("the daemon has {} in use", Proc(daemon.pid()).resident());
    let start = Instant::now();
    let state = ledger.now();
    println!("a status of {} leases took {:.1?}", state.leases.len(), start.elapsed());
    assert_eq!(state.leases.len(), size.total() as usize);
    let charged = Bytes::new(memory(&state).set_aside_bytes);
    assert_eq!(charged, Bytes::new(u64::from(size.total()) * mib(2).get()));
    let late = Stage::Host.member(&daemon);
    late.must("connect");
    let start = Instant::now();
    for command in ["acquire a 2MiB now", "take s a 2MiB", "free s", "release a"] {
        late.must(command);
    }
    println!("a lease and a segment beside them took {:.1?}", start.elapsed());
    late.kill();
    let start = Instant::now();
    crowd.into_iter().for_each(gpulease_tests::member::Member::kill);
    ledger.wait_for_no_leak();
    println!("everything was free again {:.1?} after the last death", start.elapsed());
    daemon.stop();
}
