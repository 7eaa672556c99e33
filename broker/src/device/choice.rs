//! Which devices a broker serves: what `--device` says.

use std::fmt;
use std::str::FromStr;

use gpulease_words::{Bytes, Size, gib};

use super::cuda;

/// Served where there is no GPU, if the host has twice as much.
const EMBEDDED: Bytes = gib(8);

/// A device as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Every GPU, or host memory where there is none.
    Auto,
    /// This GPU.
    Cuda(cuda::Choice),
    /// So much host memory.
    Host(Bytes),
}

impl DeviceChoice {
    /// Host memory for a host without a GPU that has so much in all.
    #[must_use]
    pub fn embedded(host_total: Bytes) -> Self {
        let half = Bytes::new(host_total.get() / 2).round_down();
        Self::Host(EMBEDDED.min(half))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(choice) => write!(f, "{choice}"),
            Self::Host(bytes) => write!(f, "host:{bytes}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            Some(("cuda", _)) => {
                text.parse().map(Self::Cuda).map_err(|wrong: cuda::ParseChoiceError| wrong.to_string())
            }
            Some(("host", size)) => host(size),
            Some(_) | None => {
                Err(format!("{text:?} is no device; write auto, cuda:N or host:SIZE, like host:8GiB"))
            }
        }
    }
}

fn host(size: &str) -> Result<DeviceChoice, String> {
    match size.parse() {
        Err(error) => Err(error.to_string()),
        Ok(Size::Share(_)) => Err("host memory is given as an amount, like host:8GiB".into()),
        Ok(Size::Amount(bytes)) if bytes.is_zero() || !bytes.is_granular() => {
            Err(format!("{bytes} is no positive multiple of 2 MiB; write host:8GiB or host:64MiB"))
        }
        Ok(Size::Amount(bytes)) => Ok(DeviceChoice::Host(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::mib;

    #[test]
    fn devices_as_people_write_them() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cuda:0", DeviceChoice::Cuda(cuda::Choice::Number(0))),
            ("host:64MiB", DeviceChoice::Host(mib(64))),
            ("host:8G", DeviceChoice::Host(gib(8))),
        ] {
            assert_eq!(text.parse(), Ok(choice));
        }
        for bad in [
            "",
            "cuda",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "host",
            "host:",
            "host:50%",
            "host:0B",
            "host:1MiB",
            "gpu:0",
        ] {
            assert!(bad.parse::<DeviceChoice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_embedded_device_leaves_half_of_the_host() {
        assert_eq!(DeviceChoice::embedded(gib(64)), DeviceChoice::Host(gib(8)));
        assert_eq!(DeviceChoice::embedded(gib(4)), DeviceChoice::Host(gib(2)));
    }
}
