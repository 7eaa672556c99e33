//! One GPU, as the driver sees it. Nothing here needs a context.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::str::FromStr;

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUuuid,
};
use gpulease_words::Bytes;

use crate::driver::{Driver, call};
use crate::error::CudaError;

/// A device of this process. Copying it costs nothing and holds nothing on the card.
#[derive(Clone, Copy)]
pub struct Device {
    driver: &'static Driver,
    ordinal: c_int,
    raw: CUdevice,
}

/// Why a device can't lend its memory to other processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// No virtual memory management.
    #[error(
        "{device} has no virtual memory management, so its memory can't be mapped by other processes; a GPU of the Pascal generation or newer has it"
    )]
    NoVirtualMemory {
        /// Its name.
        device: String,
    },
    /// Its memory can't be passed on as a file descriptor.
    #[error(
        "{device} can't export its memory as a file descriptor (virtual GPUs and Windows drivers may lack that), so it can't be lent"
    )]
    NoDescriptors {
        /// Its name.
        device: String,
    },
    /// The driver would not say.
    #[error("what the device supports is not known: {0}")]
    Unknown(#[from] CudaError),
}

impl Device {
    pub(crate) fn at(driver: &'static Driver, ordinal: c_int) -> Result<Self, CudaError> {
        let mut raw = 0;
        // SAFETY: the pointer is to a CUdevice of ours.
        unsafe { call!(driver, cuDeviceGet(&mut raw, ordinal)) }?;
        Ok(Self { driver, ordinal, raw })
    }

    /// The driver that it belongs to.
    #[must_use]
    pub fn driver(self) -> &'static Driver {
        self.driver
    }

    /// CUDA's number for it in this process, as cudarc's `CudaContext::new` takes it.
    #[must_use]
    pub fn ordinal(self) -> usize {
        usize::try_from(self.ordinal).expect("CUDA numbers devices from zero")
    }

    /// Its name, "NVIDIA H200" for example.
    ///
    /// # Errors
    /// What the driver says.
    pub fn name(self) -> Result<String, CudaError> {
        let mut buffer = [0; 256];
        // SAFETY: the buffer is ours and its length is told.
        unsafe { call!(self.driver, cuDeviceGetName(buffer.as_mut_ptr(), 256, self.raw)) }?;
        Ok(text(&buffer))
    }

    /// Its UUID: the one name that is the same in every process and in NVML.
    ///
    /// # Errors
    /// What the driver says.
    pub fn uuid(self) -> Result<Uuid, CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is to a CUuuid of ours.
        unsafe { call!(self.driver, cuDeviceGetUuid_v2(&mut uuid, self.raw)) }?;
        Ok(Uuid(uuid.bytes.map(byte)))
    }

    /// Its place on the PCI bus, "0000:3b:00.0" for example.
    ///
    /// # Errors
    /// What the driver says.
    pub fn pci_bus_id(self) -> Result<String, CudaError> {
        let mut buffer = [0; 32];
        // SAFETY: the buffer is ours and its length is told.
        unsafe { call!(self.driver, cuDeviceGetPCIBusId(buffer.as_mut_ptr(), 32, self.raw)) }?;
        Ok(text(&buffer))
    }

    /// All memory that the driver can give out on it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn total(self) -> Result<Bytes, CudaError> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a size of ours.
        unsafe { call!(self.driver, cuDeviceTotalMem_v2(&mut bytes, self.raw)) }?;
        Ok(Bytes::new(bytes as u64))
    }

    /// The unit in which its memory is created and mapped, if it can be lent at all.
    ///
    /// # Errors
    /// [`Unsupported`], with the device's name in the sentence.
    pub fn granularity(self) -> Result<Bytes, Unsupported> {
        use CUdevice_attribute as Attribute;
        if self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? == 0 {
            return Err(Unsupported::NoVirtualMemory { device: self.name()? });
        }
        if self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? == 0 {
            return Err(Unsupported::NoDescriptors { device: self.name()? });
        }
        let (mut bytes, kind) = (0, self.kind_of_memory());
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both pointers are to values of ours.
        unsafe { call!(self.driver, cuMemGetAllocationGranularity(&mut bytes, &kind, minimum)) }?;
        Ok(Bytes::new(bytes as u64))
    }

    fn attribute(self, attribute: CUdevice_attribute) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: the pointer is to an int of ours.
        unsafe { call!(self.driver, cuDeviceGetAttribute(&mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    pub(crate) fn raw(self) -> CUdevice {
        self.raw
    }

    /// The one kind of memory that this crate creates: on the device, exportable as a descriptor.
    pub(crate) fn kind_of_memory(self) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: self.location(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    pub(crate) fn location(self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.raw }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.ordinal)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for Device {}

/// A `char` of C as a byte: it has a sign on x86-64 and none on Arm.
pub(crate) fn byte(of: c_char) -> u8 {
    of.to_ne_bytes()[0]
}

fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().copied().map(byte).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A device's UUID, printed and read as `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVML and
/// `CUDA_VISIBLE_DEVICES` write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

/// A text that is no device UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a GPU's UUID; write it as nvidia-smi -L does, GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
)]
pub struct ParseUuidError(String);

impl Uuid {
    /// The UUID of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let wrong = || ParseUuidError(text.to_owned());
        let digits = text.strip_prefix("GPU-").ok_or_else(wrong)?.replace('-', "");
        if digits.len() != 32 || !digits.is_ascii() {
            return Err(wrong());
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| wrong())?;
        let uuid = Self(number.to_be_bytes());
        if uuid.to_string().eq_ignore_ascii_case(text) { Ok(uuid) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_printed_and_read_as_nvml_does() {
        let text = "GPU-01234567-89ab-cdef-0011-2233445566ff";
        let uuid: Uuid = text.parse().expect("it is well written");
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.as_bytes()[0], 0x01);
        assert_eq!(uuid.as_bytes()[15], 0xff);
        assert_eq!(text.to_uppercase().parse(), Ok(uuid));
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in [
            "",
            "GPU-",
            "0",
            "01234567-89ab-cdef-0011-2233445566ff",
            "GPU-0123456789abcdef00112233445566ff",
            "GPU-01234567-89ab-cdef-0011-2233445566f",
            "GPU-+1234567-89ab-cdef-0011-2233445566ff",
            "MIG-01234567-89ab-cdef-0011-2233445566ff",
        ] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
