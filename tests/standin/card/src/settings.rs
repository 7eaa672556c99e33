//! What card it is.

use std::env;
use std::fmt::Write as _;

use gpulease_words::{Bytes, Size, gib, mib};

/// What the card has. The first process of a directory reads it from the environment, and all
/// others take what that one wrote down: `GPULEASE_STANDIN_` and the name of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `DEVICES`: how many devices (2).
    pub devices: u32,
    /// `BYTES`: what the driver can give out on each (8 GiB).
    pub bytes: Bytes,
    /// `RESERVED`: what NVML counts on top of that as reserved (64 MiB).
    pub reserved: Bytes,
    /// `CONTEXT`: what a context costs, as listed for its process (518 MiB).
    pub context: Bytes,
    /// `VERSION`: the CUDA version that the driver speaks (12080).
    pub version: u32,
    /// `VMM`: whether it has virtual memory management (on).
    pub vmm: Switch,
    /// `DESCRIPTORS`: whether memory can be exported as a descriptor (on).
    pub descriptors: Switch,
    /// `MIG`: whether NVML says that the devices are partitioned (off).
    pub mig: Switch,
    /// What makes the UUIDs of this card its own; never set from outside.
    pub seed: u64,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is there.
    On,
    /// It is not.
    Off,
}

impl Settings {
    /// What every process of a driver costs together, while there is one (measured: 3.25 MiB).
    pub const BASE: Bytes = Bytes::new(3_407_872);
    /// What a context costs beyond what is listed for its process (measured: about 5 MiB).
    pub const CONTEXT_UNLISTED: Bytes = mib(5);

    /// What the environment says, and else the defaults.
    ///
    /// # Panics
    /// On a value that makes no sense: the test that set it is wrong.
    #[must_use]
    pub fn from_environment() -> Self {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).expect("the kernel has random bytes");
        let mut settings = Self {
            devices: 2,
            bytes: gib(8),
            reserved: mib(64),
            context: mib(518),
            version: 12_080,
            vmm: Switch::On,
            descriptors: Switch::On,
            mig: Switch::Off,
            seed: u64::from_le_bytes(seed),
        };
        for key in ["DEVICES", "BYTES", "RESERVED", "CONTEXT", "VERSION", "VMM", "DESCRIPTORS", "MIG"] {
            if let Ok(value) = env::var(format!("GPULEASE_STANDIN_{key}")) {
                settings.set(key, &value);
            }
        }
        settings
    }

    pub(crate) fn read(text: &str) -> Self {
        let mut settings = Self::from_environment();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').expect("a line of the card file is a key and a value");
            settings.set(key, value);
        }
        settings
    }

    pub(crate) fn write(&self) -> String {
        let mut text = String::new();
        let bytes = |b: Bytes| format!("{}B", b.get());
        for (key, value) in [
            ("DEVICES", self.devices.to_string()),
            ("BYTES", bytes(self.bytes)),
            ("RESERVED", bytes(self.reserved)),
            ("CONTEXT", bytes(self.context)),
            ("VERSION", self.version.to_string()),
            ("VMM", self.vmm.word().to_owned()),
            ("DESCRIPTORS", self.descriptors.word().to_owned()),
            ("MIG", self.mig.word().to_owned()),
            ("SEED", self.seed.to_string()),
        ] {
            writeln!(text, "{key} {value}").expect("a string takes all that is written");
        }
        text
    }

    /// The UUID of a device: the same in both drivers, and of no other card.
    #[must_use]
    pub fn uuid(&self, device: u32) -> [u8; 16] {
        let mut uuid = *b"\x5a\x4d\x10\xca\xad\x00\x40\x00\x80\x00\0\0\0\0\0\0";
        uuid[2..10].copy_from_slice(&self.seed.to_be_bytes());
        uuid[12..].copy_from_slice(&device.to_be_bytes());
        uuid
    }

    /// The UUID as NVML and `CUDA_VISIBLE_DEVICES` write it.
    #[must_use]
    pub fn uuid_text(&self, device: u32) -> String {
        let hex: String = self.uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The PCI bus number of a device.
    #[must_use]
    pub fn pci_bus(device: u32) -> u32 {
        0x3b + device
    }

    /// The name of every device.
    pub const NAME: &str = "gpulease stand-in";

    fn set(&mut self, key: &str, value: &str) {
        match key {
            "DEVICES" => self.devices = number(key, value),
            "BYTES" => self.bytes = size(key, value),
            "RESERVED" => self.reserved = size(key, value),
            "CONTEXT" => self.context = size(key, value),
            "VERSION" => self.version = number(key, value),
            "VMM" => self.vmm = Switch::read(key, value),
            "DESCRIPTORS" => self.descriptors = Switch::read(key, value),
            "MIG" => self.mig = Switch::read(key, value),
            "SEED" => self.seed = number(key, value),
            _ => panic!("the card has no {key}"),
        }
    }
}

impl Switch {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }

    fn read(key: &str, value: &str) -> Self {
        match value {
            "on" => Self::On,
            "off" => Self::Off,
            _ => panic!("{key} is on or off, not {value:?}"),
        }
    }
}

fn number<N: std::str::FromStr>(key: &str, value: &str) -> N {
    value.parse().unwrap_or_else(|_| panic!("{key} is a number, not {value:?}"))
}

fn size(key: &str, value: &str) -> Bytes {
    match value.parse() {
        Ok(Size::Amount(bytes)) => bytes,
        Ok(Size::Share(_)) | Err(_) => panic!("{key} is an amount of memory, not {value:?}"),
    }
}
