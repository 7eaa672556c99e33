//! A broker with 1,000 sessions that hold 10 leases each.

use std::time::{Duration, Instant};

use criterion::Criterion;
use gpulease_client::{Client, Observer};
use gpulease_tests::crowd::LARGE;
use gpulease_tests::member::Stage;
use gpulease_tests::proc::Proc;
use gpulease_words::mib;
use tokio::runtime::Runtime;

pub(crate) fn run(criterion: &mut Criterion) {
    let size = LARGE.permitted();
    let daemon = Stage::Host.daemon(size.room());
    let start = Instant::now();
    let crowd = size.gather(&daemon);
    println!("{} leases were granted in {:.1?}", size.total(), start.elapsed());
    println!("the daemon has {} in use", Proc(daemon.pid()).resident());
    let runtime = Runtime::new().expect("a process gets threads");
    let (client, observer) = runtime.block_on(async {
        let client = Client::connect_to(daemon.socket()).await.expect("the daemon is ready");
        (client, Observer::connect_to(daemon.socket()).await.expect("the daemon is ready"))
    });
    let mut group = criterion.benchmark_group("beside 1,000 sessions of 10 leases");
    group.bench_function("status", |b| {
        b.iter(|| {
            let state = runtime.block_on(observer.status()).expect("the daemon answers");
            assert_eq!(state.leases.len(), size.total() as usize);
        });
    });
    // A new state is shown at most ten times a second, so a look after a change may wait as long.
    group.bench_function("status after a change", |b| {
        b.iter_custom(|n| (0..n).map(|_| runtime.block_on(look_after_change(&client, &observer))).sum());
    });
    group.bench_function("grant", |b| {
        b.iter_custom(|n| (0..n).map(|_| runtime.block_on(grant_and_release(&client)).0).sum());
    });
    group.bench_function("release", |b| {
        b.iter_custom(|n| (0..n).map(|_| runtime.block_on(grant_and_release(&client)).1).sum());
    });
    group.finish();
    drop(crowd);
}

async fn look_after_change(client: &Client, observer: &Observer) -> Duration {
    let lease = client.lease(mib(2)).acquire().await.expect("there is room");
    lease.release().await.expect("it is ours");
    let start = Instant::now();
    observer.status().await.expect("the daemon answers");
    start.elapsed()
}

async fn grant_and_release(client: &Client) -> (Duration, Duration) {
    let start = Instant::now();
    let lease = client.lease(mib(2)).acquire().await.expect("there is room");
    let granted = start.elapsed();
    let start = Instant::now();
    lease.release().await.expect("it is ours");
    (granted, start.elapsed())
}
