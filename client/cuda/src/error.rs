//! What the driver said.

use std::fmt;

/// The driver's `CUresult`, as the number it is: a newer driver may return codes that no binding
/// knows, so that an enum would be undefined behaviour.
pub(crate) type Code = u32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// The program ends, and the driver names no errors any more.
pub(crate) const DEINITIALIZED: Code = 4;
pub(crate) const NO_DEVICE: Code = 100;

/// A CUDA driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code}): {text}")]
pub struct CudaError {
    call: &'static str,
    code: Code,
    name: String,
    text: String,
}

impl CudaError {
    pub(crate) fn new(call: &'static str, code: Code, name: String, text: String) -> Self {
        Self { call, code, name, text }
    }

    /// The driver function, `cuMemCreate` for example.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The `CUresult`.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.code
    }

    /// CUDA's name for the code, `CUDA_ERROR_OUT_OF_MEMORY` for example.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the device had too little memory left.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

/// A version of CUDA, as a driver or a symbol of it is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(u32);

impl CudaVersion {
    /// From CUDA's own number: 12080 is 12.8.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// CUDA's own number: 12080 for 12.8.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_call_code_and_text() {
        let error =
            CudaError::new("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY".into(), "out of memory".into());
        assert_eq!(error.to_string(), "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
        assert!(error.is_out_of_memory());
        assert!(!CudaError::new("cuInit", 304, String::new(), String::new()).is_out_of_memory());
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(CudaVersion::from_number(12_080).to_string(), "12.8");
        assert_eq!(CudaVersion::from_number(13_000).to_string(), "13.0");
        assert!(CudaVersion::from_number(11_040) < CudaVersion::from_number(12_000));
    }
}
