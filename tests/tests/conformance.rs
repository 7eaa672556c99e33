//! One suite for every device: what `gpulease_broker::device::Device` obliges an implementation to.
//!
//! Each device is opened in a process of its own, since a process finds one driver library and
//! keeps it. Other processes are puppets.

pub(crate) mod bench;
mod gpu_only;
mod held;
mod storm;
mod suite;

use gpulease_tests::apart;
use gpulease_tests::puppet::{Gpu, Turn};
use gpulease_tests::standin::Standin;

use bench::{Bench, Temper};

#[test]
fn host_memory_conforms() {
    apart::run("conformance::the_suite_on_host_memory", &Gpu::Real(Turn::unneeded()));
}

#[test]
fn host_memory_conforms_when_it_fails() {
    apart::run("conformance::the_suite_on_faulty_host_memory", &Gpu::Real(Turn::unneeded()));
}

#[test]
fn the_stand_in_conforms() {
    apart::run("conformance::the_suite_on_a_gpu", &Gpu::Standin(Standin::new()));
}

#[test]
fn the_stand_in_conforms_when_it_fails() {
    apart::run("conformance::the_suite_on_a_faulty_gpu", &Gpu::Standin(Standin::new()));
}

#[test]
fn the_stand_in_conforms_with_a_hold() {
    apart::run("conformance::the_suite_on_a_holding_gpu", &Gpu::Standin(Standin::new()));
    apart::run("conformance::the_suite_on_a_faulty_holding_gpu", &Gpu::Standin(Standin::new()));
}

#[test]
fn a_real_gpu_conforms() {
    if let Err(why) = Gpu::real_or_why() {
        println!("skipped on a real GPU: conformance: {why}");
        return;
    }
    let gpu = Gpu::Real(Turn::wait());
    apart::run("conformance::the_suite_on_a_gpu", &gpu);
    apart::run("conformance::the_suite_on_a_faulty_gpu", &gpu);
    apart::run("conformance::the_suite_on_a_holding_gpu", &gpu);
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_host_memory() {
    suite::run(&Bench::host(Temper::Sound));
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_faulty_host_memory() {
    suite::run(&Bench::host(Temper::Faulty));
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_a_gpu() {
    suite::run(&Bench::gpu(Temper::Sound));
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_a_faulty_gpu() {
    suite::run(&Bench::gpu(Temper::Faulty));
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_a_holding_gpu() {
    suite::run(&Bench::holding_gpu(Temper::Sound));
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_suite_on_a_faulty_holding_gpu() {
    suite::run(&Bench::holding_gpu(Temper::Faulty));
}
