use gpulease_words::{gib, mib};

use super::*;
use crate::look::Paint;
use crate::state::State;

fn lease() -> v1::LeaseStatus {
    v1::LeaseStatus {
        id: 7,
        name: "resnet".into(),
        user: "alice".into(),
        uid: 1001,
        pid: 4242,
        members: vec![v1::Member {
            pid: 4243,
            command: "python".into(),
            overhead_bytes: mib(640).get(),
            overhead_measured: false,
        }],
        state: "active".into(),
        device_indices: vec![0, 1],
        reserve_bytes: gib(8).get(),
        limit_bytes: gib(20).get(),
        held_bytes: mib(9_728).get(),
        overhead_bytes: mib(640).get(),
        age_ms: 123_000,
        ..Default::default()
    }
}

fn state() -> v1::StatusReply {
    let memory = v1::DeviceMemory {
        total_bytes: mib(143_771).get(),
        capacity_bytes: gib(64).get(),
        free_bytes: gib(40).get(),
        set_aside_bytes: gib(8).get(),
        overhead_bytes: mib(640).get(),
        held_bytes: mib(15_744).get(),
        off_book_bytes: None,
        peak_charged_bytes: gib(24).get(),
        device_used_bytes: None,
        hold_bytes: None,
        ..Default::default()
    };
    let info = v1::DeviceInfo {
        index: 0,
        kind: v1::DeviceKind::Cuda.into(),
        uuid: "GPU-12".into(),
        name: "NVIDIA H200".into(),
        capacity_bytes: gib(64).get(),
    };
    v1::StatusReply {
        generation: 12,
        broker: Some(v1::BrokerStatus {
            version: "0.1.0".into(),
            pid: 99,
            uptime_ms: 5_400_000,
            socket: "/run/gpulease/gpulease.sock".into(),
            hold: "none".into(),
            helpers: vec![],
            arena: None,
        }),
        devices: vec![v1::DeviceStatus {
            info: Some(info),
            memory: Some(memory),
            strangers: vec![v1::Stranger {
                pid: 777,
                uid: None,
                user: String::new(),
                command: "python \u{1b}[2Jtrain.py".into(),
                bytes: gib(3).get(),
            }],
            strangers_known: true,
            trouble: String::new(),
        }],
        leases: vec![lease()],
        waiting: vec![v1::WaitingStatus {
            id: 3,
            name: "bert".into(),
            user: String::new(),
            uid: 1002,
            pid: 51,
            position: 1,
            reserve_bytes: gib(48).get(),
            limit_bytes: gib(48).get(),
            short_by_bytes: gib(8).get(),
            reason: "no_room".into(),
            waited_ms: 12_000,
            at_latest_ms: None,
            devices_wanted: 2,
            ..Default::default()
        }],
        accounts: vec![],
    }
}

const PAGE: &str = "\
gpuleased 0.1.0, pid 99, up 1h30m, /run/gpulease/gpulease.sock

Devices (1)
0  NVIDIA H200  GPU-12  leases 64 GiB of its 140.4 GiB
   [###############+========........................................]
   free 40 GiB, held 15.3 GiB, overhead 640 MiB, set aside 8 GiB, off-book N/A, peak 24 GiB, the device says used N/A
   # held, + overhead, = set aside, ~ draining or quarantined, x off-book, . free

Leases (1)
ID  NAME    USER    PID  STATE   DEVICES  RESERVE..LIMIT     HELD  OVERHEAD   AGE
L7  resnet  alice  4242  active  0,1      8 GiB..20 GiB   9.5 GiB  ~640 MiB  2m3s

The line (1)
#  ID  NAME  USER      PID  WANTS       SHORT BY  REASON   WAITED  AT LATEST
1  a3  bert  uid 1002   51  48 GiB x 2     8 GiB  no_room     12s        N/A

Outside any lease
pid 777 of N/A uses 3 GiB of device 0: python \\x1b[2Jtrain.py
start it with `gpulease run`, or end it; until then its memory is taken off what is leased

Advisory: the broker holds nothing back (hold = none), so programs that do not ask it can take leased memory.
";

#[test]
fn the_page_without_a_terminal() {
    assert_eq!(page(&state(), Look::PLAIN), PAGE);
}

#[test]
fn a_narrow_terminal_keeps_what_matters() {
    let text = page(&state(), Look { width: Some(60), height: None, paint: Paint::Plain });
    assert!(text.contains("\nID  NAME    USER    PID  STATE   RESERVE..LIMIT     HELD\n"), "{text}");
    assert!(text.contains("\n#  ID  NAME  USER      PID  WANTS       SHORT BY  REASON\n"), "{text}");
    assert!(
        text.contains("\n   free 40 GiB, held 15.3 GiB, overhead 640 MiB,\n   set aside 8 GiB,"),
        "{text}"
    );
}

#[test]
fn colour_changes_no_letter() {
    let coloured = page(&state(), Look { width: None, height: None, paint: Paint::Colour });
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some(start) = rest.find("\x1b[") {
        let end = start + rest[start..].find('m').expect("an escape ends with m");
        plain.push_str(&rest[..start]);
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    assert_eq!(plain, PAGE);
    assert_ne!(coloured, PAGE);
}

#[test]
fn states_and_growth_have_their_words() {
    let marked = v1::LeaseStatus {
        overdue: true,
        adrift: true,
        quarantined_bytes: 1,
        state: "draining".into(),
        ..lease()
    };
    assert_eq!(lease_state(&marked), "draining, overdue, adrift, quarantine");
    let growth = v1::WaitingStatus {
        lease_id: Some(7),
        reserve_bytes: gib(1).get(),
        limit_bytes: gib(1).get(),
        devices_wanted: 1,
        barrier: true,
        reason: "no_room".into(),
        ..Default::default()
    };
    assert_eq!(wants(&growth), "1 GiB more for L7");
    assert_eq!(waiting_row(&growth)[7], "no_room, barrier");
    assert_eq!(wants(&v1::WaitingStatus { devices_wanted: 1, lease_id: None, ..growth }), "1 GiB");
}

#[test]
fn accounts_have_their_limits_or_none() {
    let account = |path: &str, limit_bytes, leases_max| v1::AccountStatus {
        path: path.into(),
        limit_bytes,
        charged_bytes: gib(9).get(),
        weight: 1,
        leases: 2,
        leases_max,
        guarantee_bytes: None,
    };
    let all = [account("host", None, None), account("user.alice", Some(gib(20).get()), Some(4))];
    assert_eq!(
        accounts(&all, Look::PLAIN),
        "\
ACCOUNT     CHARGED   LIMIT  GUARANTEE  LEASES  MOST  WEIGHT
host          9 GiB    none       none       2  none       1
user.alice    9 GiB  20 GiB       none       2     4       1
"
    );
}

#[test]
fn the_document_has_null_for_what_nobody_knows() {
    let reply = state();
    let document = serde_json::to_value(State::from(&reply)).expect("a document");
    assert_eq!(document["schema_version"], 1);
    assert_eq!(document["broker"]["uptime_seconds"], 5_400.0);
    let device = &document["devices"][0];
    assert_eq!(device["kind"], "cuda");
    assert_eq!(device["memory"]["capacity_bytes"], gib(64).get());
    assert!(device["memory"]["off_book_bytes"].is_null() && device["memory"]["device_used_bytes"].is_null());
    assert!(device["trouble"].is_null());
    assert_eq!(device["strangers"][0]["uid"], serde_json::Value::Null);
    assert_eq!(document["leases"][0]["id"], "L7");
    assert_eq!(document["leases"][0]["devices"], serde_json::json!([0, 1]));
    assert_eq!(document["waiting"][0]["id"], "a3");
    assert!(document["waiting"][0]["at_latest_seconds"].is_null());

    let mut blind = state();
    blind.devices[0].strangers_known = false;
    blind.devices[0].strangers.clear();
    let document = serde_json::to_value(State::from(&blind)).expect("a document");
    assert!(document["devices"][0]["strangers"].is_null());
}

#[test]
fn the_document_has_every_field_of_the_design() {
    let reply = state();
    let document = serde_json::to_value(State::from(&reply)).expect("a document");
    let has = |value: &serde_json::Value, fields: &str| {
        let missing: Vec<&str> = fields.split(' ').filter(|field| value.get(field).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?} of {value}");
    };
    has(&document, "schema_version broker devices leases waiting");
    has(&document["broker"], "version pid uptime_seconds socket hold");
    has(&document["devices"][0], "index uuid name kind memory");
    has(
        &document["devices"][0]["memory"],
        "total_bytes capacity_bytes free_bytes set_aside_bytes held_bytes draining_bytes quarantined_bytes off_book_bytes",
    );
    has(
        &document["leases"][0],
        "id name user uid pid members state devices reserve_bytes limit_bytes held_bytes overhead_bytes guaranteed suspendable age_seconds",
    );
    has(
        &document["waiting"][0],
        "id name user uid pid position reserve_bytes short_by_bytes reason waited_seconds at_latest_seconds",
    );
}
