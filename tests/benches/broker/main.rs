//! What a lease costs beside the calls that it is made of.
//!
//! Acquire-to-granted and allocate-to-mapped on host memory, through the client library and by the
//! bare protocol, beside a tonic server of the same calls over the same kind of socket that decides
//! nothing; then a broker with 1,000 sessions of 10 leases each, and what an idle one uses.
//!
//! `cargo bench -p gpulease-tests --bench broker`

mod contest;
mod crowded;
mod idle;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().sample_size(50).configure_from_args();
    let ratios = contest::run(&mut criterion);
    println!("\nmedians of {} rounds in turns", contest::ROUNDS);
    for ratio in ratios {
        println!("{ratio}");
    }
    crowded::run(&mut criterion);
    idle::run();
    criterion.final_summary();
}
