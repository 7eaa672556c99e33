//! The driver's codes, as numbers: a newer driver has codes that no list of ours names.

/// What a driver function returns.
pub(crate) type Code = u32;

/// `CUDA_SUCCESS`
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`
pub(crate) const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_FOUND`
pub(crate) const NOT_FOUND: Code = 500;
/// `CUDA_ERROR_NOT_PERMITTED`
pub(crate) const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`
pub(crate) const NOT_SUPPORTED: Code = 801;
/// `CUDA_ERROR_UNKNOWN`
pub(crate) const UNKNOWN: Code = 999;

/// A code as a `Result`, for `?`.
pub(crate) fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// A `Result` as a code.
pub(crate) fn code_of(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}
