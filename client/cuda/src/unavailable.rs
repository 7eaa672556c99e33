//! Why there is no CUDA here, and what helps.

use crate::error::{CudaError, CudaVersion, NO_DEVICE};

/// Why this process can't use CUDA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// No driver library, or one that does not load.
    #[error(
        "no CUDA driver library: {detail}; install the NVIDIA driver, or put the directory of its libcuda.so.1 on LD_LIBRARY_PATH"
    )]
    NoLibrary {
        /// What the dynamic loader said.
        detail: String,
    },
    /// The driver is too old.
    #[error(
        "the NVIDIA driver is too old: it has no {symbol}, which came with CUDA {needed}, and {}; update the driver",
        found_text(*.found)
    )]
    SymbolMissing {
        /// The function that it does not have.
        symbol: &'static str,
        /// The CUDA version of the driver, where it could be asked.
        found: Option<CudaVersion>,
        /// The CUDA version that brought the function.
        needed: CudaVersion,
    },
    /// The driver is there and does not start.
    #[error("{error}{hint}")]
    InitFailed {
        /// What `cuInit` said.
        error: CudaError,
        /// What helps, starting with "; ", or nothing where that is not known.
        hint: &'static str,
    },
    /// The driver works and shows no GPU to this process.
    #[error("the CUDA driver shows this process no GPU{}", visible_text(.visible_devices.as_deref()))]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES` of this process.
        visible_devices: Option<String>,
    },
    /// This process was forked from one that had initialised CUDA, which CUDA does not allow.
    #[error(
        "CUDA was initialised before this process was forked and can't be used after that; start the process anew (spawn or exec) instead"
    )]
    Forked,
}

pub(crate) fn no_device() -> Unavailable {
    Unavailable::NoDevice { visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

pub(crate) fn init_failed(error: CudaError) -> Unavailable {
    if error.code() == NO_DEVICE {
        return no_device();
    }
    let hint = match error.code() {
        34 => {
            "; the libcuda.so found is the toolkit's stub, for linking only: take its directory off LD_LIBRARY_PATH"
        }
        46 => "; the GPU is taken by a process in exclusive mode: see nvidia-smi",
        304 => {
            "; in a pid namespace of its own a process needs /proc mounted for that namespace (unshare --mount-proc), and in a container the NVIDIA devices"
        }
        802 => "; the fabric manager of this host is not ready: see systemctl status nvidia-fabricmanager",
        803 | 804 => {
            "; library and kernel module of the driver have different versions: reboot, or install them alike"
        }
        999 => {
            "; often the kernel module nvidia_uvm is not loaded: run nvidia-modprobe -u, or nvidia-smi once as root"
        }
        _ => "",
    };
    Unavailable::InitFailed { error, hint }
}

fn found_text(found: Option<CudaVersion>) -> String {
    match found {
        Some(version) => format!("this driver speaks CUDA {version}"),
        None => "this driver does not tell its version".to_owned(),
    }
}

fn visible_text(visible: Option<&str>) -> String {
    match visible {
        Some(list) => format!(": CUDA_VISIBLE_DEVICES is {list:?}; unset it, or name a GPU of this host"),
        None => "; check with nvidia-smi that one is there and not lost".to_owned(),
    }
}
