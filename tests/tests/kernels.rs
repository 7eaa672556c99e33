//! The GPU kernels that are shipped compiled.

use std::ffi::CStr;

/// Each kernel file: its name, its source, and what was made of it.
const KERNELS: [(&str, &[u8], &str); 2] = [
    (
        "sums.cu",
        include_bytes!("../../client/cuda/kernels/sums.cu"),
        include_str!("../../client/cuda/kernels/sums.ptx"),
    ),
    (
        "training.cu",
        include_bytes!("../../examples/kernels/training.cu"),
        include_str!("../../examples/kernels/training.ptx"),
    ),
];

/// The check sum that POSIX defines for `cksum`.
fn cksum(bytes: &[u8]) -> u32 {
    let length = bytes.len().to_le_bytes();
    let digits = length.len() - length.iter().rev().take_while(|byte| **byte == 0).count();
    let sum = bytes.iter().chain(&length[..digits]).fold(0_u32, |sum, byte| {
        (0..8).fold(sum ^ (u32::from(*byte) << 24), |sum, _| {
            if sum >> 31 == 1 { (sum << 1) ^ 0x04c1_1db7 } else { sum << 1 }
        })
    });
    !sum
}

#[test]
fn the_ptx_is_compiled_from_the_present_source() {
    assert_eq!(cksum(b"123456789"), 930_766_865, "as cksum prints it");
    for (name, source, ptx) in KERNELS {
        let stamp = format!("// {name} {} {}", cksum(source), source.len());
        assert_eq!(ptx.lines().next(), Some(stamp.as_str()), "run `just kernels`");
    }
}

#[test]
fn old_drivers_and_cards_take_the_ptx() {
    for (name, _, ptx) in KERNELS {
        let line = |word: &str| ptx.lines().find(|line| line.starts_with(word));
        assert_eq!(line(".version"), Some(".version 6.4"), "{name}");
        assert_eq!(line(".target"), Some(".target sm_75"), "{name}");
        assert!(CStr::from_bytes_with_nul(format!("{ptx}\0").as_bytes()).is_ok(), "{name}");
    }
}
