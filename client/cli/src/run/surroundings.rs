//! The environment of the child: what it needs to join the lease and to see its devices.

use std::ffi::{OsStr, OsString};

use gpulease_client::{Device, DeviceKind, Lease};

/// A variable for the child.
pub(crate) type Variable = (&'static str, OsString);

/// How CUDA numbers devices, so that it agrees with other tools.
const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// All that the child of a lease gets.
pub(crate) fn of(lease: &Lease, devices: &[Device]) -> Vec<Variable> {
    let granted: Vec<&Device> =
        lease.devices().iter().filter_map(|id| devices.iter().find(|device| device.id == *id)).collect();
    let mut variables = lease.env().to_vec();
    variables.extend(cuda(&granted));
    variables
}

/// What makes CUDA see the granted devices and no others. A lease of host memory hides no GPU.
fn cuda(granted: &[&Device]) -> Vec<Variable> {
    let gpus = granted.iter().filter(|device| device.kind == DeviceKind::Cuda);
    let uuids: Vec<&str> = gpus.map(|device| device.uuid.as_str()).collect();
    if uuids.is_empty() {
        return Vec::new();
    }
    vec![(ORDER.0, ORDER.1.into()), (VISIBLE, uuids.join(",").into())]
}

/// A sentence for each of the user's own variables that the lease puts aside.
pub(crate) fn replaced(variables: &[Variable], current: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
    let ours = variables.iter().filter(|(name, _)| *name == ORDER.0 || *name == VISIBLE);
    let changed = ours.filter_map(|(name, value)| Some((name, value, current(name)?)));
    let changed = changed.filter(|(_, value, was)| was != *value);
    changed.map(|(name, value, was)| sentence(name, value, &was)).collect()
}

fn sentence(name: &str, value: &OsStr, was: &OsStr) -> String {
    let (value, was) = (value.to_string_lossy(), was.to_string_lossy());
    format!(
        "{name} was {was:?} and is {value} for the program, since the lease is on that device; choose with --device"
    )
}

#[cfg(test)]
mod tests {
    use gpulease_words::{DeviceId, gib};

    use super::*;

    fn device(kind: DeviceKind, uuid: &str) -> Device {
        Device { id: DeviceId::new(0), kind, uuid: uuid.into(), name: "d".into(), capacity: gib(1) }
    }

    #[test]
    fn cuda_sees_the_granted_devices_by_uuid() {
        let (a, b) = (device(DeviceKind::Cuda, "GPU-a"), device(DeviceKind::Cuda, "GPU-b"));
        assert_eq!(
            cuda(&[&b, &a]),
            [("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()), ("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a".into())]
        );
        assert_eq!(cuda(&[&device(DeviceKind::Host, "host-0")]), []);
    }

    #[test]
    fn what_the_user_set_is_not_put_aside_in_silence() {
        let variables = cuda(&[&device(DeviceKind::Cuda, "GPU-a")]);
        let user =
            |visible: &'static str| move |name: &str| (name == VISIBLE).then(|| OsString::from(visible));
        let told = replaced(&variables, user("0"));
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("was \"0\" and is GPU-a"), "{told:?}");
        assert!(replaced(&variables, user("GPU-a")).is_empty());
        assert!(replaced(&variables, |_| None).is_empty());
    }
}
