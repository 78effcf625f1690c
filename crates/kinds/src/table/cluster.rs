//! Table rows of all kinds but pods and workloads.

use jiff::Timestamp;
use serde_json::Value;

use super::{Printer, age, created, int_at, labels_text, list_at, or_none};
use crate::meta::{self, str_at};
use crate::quantity;

pub(super) const NODE: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Roles", "string", 0),
        ("Age", "string", 0),
        ("Version", "string", 0),
        ("Internal-IP", "string", 1),
        ("External-IP", "string", 1),
        ("OS-Image", "string", 1),
        ("Kernel-Version", "string", 1),
        ("Container-Runtime", "string", 1),
    ],
    cells: node,
};

/// Printer of `metrics.k8s.io`, with the metrics server's headings. The usage of a pod is the sum of its
/// containers.
pub(super) const USAGE: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("cpu", "string", 0),
        ("memory", "string", 0),
        ("Window", "string", 0),
    ],
    cells: |o, _| {
        let sum = |name: &str| -> Value {
            let all = list_at(o, &["containers"]).iter().chain([o]);
            let all = all.filter_map(|part| quantity::parse(meta::at(part, &["usage", name])?));
            let sum = all.reduce(|sum, part| sum + part);
            sum.map_or(Value::Null, |sum| sum.to_string().into())
        };
        vec![
            meta::name(o).into(),
            sum("cpu"),
            sum("memory"),
            str_at(o, &["window"]).into(),
        ]
    },
};

/// Returns the cells of a Node.
fn node(o: &Value, now: Timestamp) -> Vec<Value> {
    let ready = list_at(o, &["status", "conditions"])
        .iter()
        .find(|c| str_at(c, &["type"]) == "Ready")
        .map_or("Unknown", |c| match str_at(c, &["status"]) {
            "True" => "Ready",
            _ => "NotReady",
        });
    let mut status = ready.to_owned();
    if meta::is_true(o, &["spec", "unschedulable"]) {
        status.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        list_at(o, &["status", "addresses"])
            .iter()
            .find(|a| str_at(a, &["type"]) == kind)
            .map_or("", |a| str_at(a, &["address"]))
    };
    let info = |key: &str| {
        let text = str_at(o, &["status", "nodeInfo", key]);
        if text.is_empty() { "<unknown>" } else { text }
    };
    vec![
        meta::name(o).into(),
        status.into(),
        roles(o).into(),
        created(o, now),
        str_at(o, &["status", "nodeInfo", "kubeletVersion"]).into(),
        or_none(address("InternalIP")),
        or_none(address("ExternalIP")),
        info("osImage").into(),
        info("kernelVersion").into(),
        info("containerRuntimeVersion").into(),
    ]
}

fn roles(o: &Value) -> String {
    let mut roles: Vec<&str> = Vec::new();
    let labels = meta::at(o, &["metadata", "labels"]).and_then(Value::as_object);
    for (key, v) in labels.into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
            if !role.is_empty() {
                roles.push(role);
            }
        } else if key == "kubernetes.io/role"
            && let Some(role) = v.as_str().filter(|r| !r.is_empty())
        {
            roles.push(role);
        }
    }
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    }
}

pub(super) const NAMESPACE: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            str_at(o, &["status", "phase"]).into(),
            created(o, now),
        ]
    },
};

pub(super) const EVENT: Printer = Printer {
    heads: &[
        ("Last Seen", "string", 0),
        ("Type", "string", 0),
        ("Reason", "string", 0),
        ("Object", "string", 0),
        ("Subobject", "string", 1),
        ("Source", "string", 1),
        ("Message", "string", 0),
        ("First Seen", "string", 1),
        ("Count", "string", 1),
        ("Name", "string", 1),
    ],
    cells: event,
};

/// Returns the cells of an event of either event API; the newer one has other field names.
fn event(o: &Value, now: Timestamp) -> Vec<Value> {
    let first_set = |a: &[&str], b: &[&str]| -> String {
        let text = str_at(o, a);
        if text.is_empty() { str_at(o, b) } else { text }.to_owned()
    };
    let event_time = str_at(o, &["eventTime"]);
    let shown = |text: &str| -> String {
        match (text, event_time) {
            ("", "") => "<unknown>".to_owned(),
            ("", t) | (t, _) => age(t, now),
        }
    };
    let mut first = shown(&first_set(
        &["firstTimestamp"],
        &["deprecatedFirstTimestamp"],
    ));
    let mut last = shown(&first_set(&["lastTimestamp"], &["deprecatedLastTimestamp"]));
    let mut count = int_at(o, &["count"]).max(int_at(o, &["deprecatedCount"]));
    if let Some(series) = o.get("series").filter(|s| s.is_object()) {
        last = age(str_at(series, &["lastObservedTime"]), now);
        count = int_at(series, &["count"]);
        if first == "<unknown>" && !event_time.is_empty() {
            first = age(event_time, now);
        }
    } else if count == 0 {
        count = 1;
    }
    let target = o
        .get("involvedObject")
        .or_else(|| o.get("regarding"))
        .unwrap_or(&Value::Null);
    let kind = str_at(target, &["kind"]).to_lowercase();
    let name = str_at(target, &["name"]);
    let object = if name.is_empty() {
        kind
    } else {
        format!("{kind}/{name}")
    };
    let component = {
        let old = first_set(&["source", "component"], &["deprecatedSource", "component"]);
        if old.is_empty() {
            first_set(&["reportingComponent"], &["reportingController"])
        } else {
            old
        }
    };
    let host = {
        let old = first_set(&["source", "host"], &["deprecatedSource", "host"]);
        if old.is_empty() {
            str_at(o, &["reportingInstance"]).to_owned()
        } else {
            old
        }
    };
    let source = if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    };
    vec![
        last.into(),
        str_at(o, &["type"]).into(),
        str_at(o, &["reason"]).into(),
        object.into(),
        str_at(target, &["fieldPath"]).into(),
        source.into(),
        first_set(&["message"], &["note"]).trim().into(),
        first.into(),
        count.into(),
        meta::name(o).into(),
    ]
}

fn count(o: &Value, key: &str) -> usize {
    o.get(key).map_or(0, |v| match v {
        Value::Object(m) => m.len(),
        Value::Array(a) => a.len(),
        _ => 0,
    })
}

pub(super) const CONFIG_MAP: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Data", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let data = count(o, "data") + count(o, "binaryData");
        vec![meta::name(o).into(), data.into(), created(o, now)]
    },
};

pub(super) const SECRET: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Type", "string", 0),
        ("Data", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            str_at(o, &["type"]).into(),
            count(o, "data").into(),
            created(o, now),
        ]
    },
};

pub(super) const SERVICE: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Type", "string", 0),
        ("Cluster-IP", "string", 0),
        ("External-IP", "string", 0),
        ("Port(s)", "string", 0),
        ("Age", "string", 0),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let mut external: Vec<&str> = list_at(o, &["status", "loadBalancer", "ingress"])
            .iter()
            .map(|i| match str_at(i, &["ip"]) {
                "" => str_at(i, &["hostname"]),
                ip => ip,
            })
            .collect();
        external.extend(
            list_at(o, &["spec", "externalIPs"])
                .iter()
                .filter_map(Value::as_str),
        );
        let kind = str_at(o, &["spec", "type"]);
        if kind == "ExternalName" {
            external.push(str_at(o, &["spec", "externalName"]));
        }
        let external = match external.join(",") {
            e if e.is_empty() && kind == "LoadBalancer" => "<pending>".to_owned(),
            e => e,
        };
        let ports: Vec<String> = list_at(o, &["spec", "ports"])
            .iter()
            .map(|p| {
                let port = int_at(p, &["port"]);
                let protocol = str_at(p, &["protocol"]);
                match int_at(p, &["nodePort"]) {
                    0 => format!("{port}/{protocol}"),
                    node => format!("{port}:{node}/{protocol}"),
                }
            })
            .collect();
        vec![
            meta::name(o).into(),
            kind.into(),
            or_none(str_at(o, &["spec", "clusterIP"])),
            or_none(&external),
            or_none(&ports.join(",")),
            created(o, now),
            labels_text(meta::at(o, &["spec", "selector"])).into(),
        ]
    },
};

pub(super) const SERVICE_ACCOUNT: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Secrets", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            count(o, "secrets").into(),
            created(o, now),
        ]
    },
};

pub(super) const RESOURCE_QUOTA: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Request", "string", 0),
        ("Limit", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        let hard = meta::at(o, &["status", "hard"]).and_then(Value::as_object);
        for (name, v) in hard.into_iter().flatten() {
            let used = str_at(o, &["status", "used", name]);
            let used = if used.is_empty() { "0" } else { used };
            let text = format!("{name}: {used}/{}", v.as_str().unwrap_or(""));
            if name.starts_with("limits.") {
                limits.push(text)
            } else {
                requests.push(text)
            }
        }
        vec![
            meta::name(o).into(),
            requests.join(", ").into(),
            limits.join(", ").into(),
            created(o, now),
        ]
    },
};

fn access_modes(o: &Value, path: &[&str]) -> String {
    let modes: Vec<&str> = list_at(o, path)
        .iter()
        .map(|m| match m.as_str() {
            Some("ReadWriteOnce") => "RWO",
            Some("ReadOnlyMany") => "ROX",
            Some("ReadWriteMany") => "RWX",
            Some("ReadWriteOncePod") => "RWOP",
            _ => "",
        })
        .collect();
    modes.join(",")
}

pub(super) const PERSISTENT_VOLUME: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("Reclaim Policy", "string", 0),
        ("Status", "string", 0),
        ("Claim", "string", 0),
        ("StorageClass", "string", 0),
        ("Reason", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |o, now| {
        let claim = o.get("spec").and_then(|s| s.get("claimRef"));
        let claim = claim.map_or(String::new(), |c| {
            format!("{}/{}", str_at(c, &["namespace"]), str_at(c, &["name"]))
        });
        vec![
            meta::name(o).into(),
            str_at(o, &["spec", "capacity", "storage"]).into(),
            access_modes(o, &["spec", "accessModes"]).into(),
            str_at(o, &["spec", "persistentVolumeReclaimPolicy"]).into(),
            str_at(o, &["status", "phase"]).into(),
            claim.into(),
            str_at(o, &["spec", "storageClassName"]).into(),
            str_at(o, &["status", "reason"]).into(),
            created(o, now),
            str_at(o, &["spec", "volumeMode"]).into(),
        ]
    },
};

pub(super) const CLAIM: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Volume", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("StorageClass", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            str_at(o, &["status", "phase"]).into(),
            str_at(o, &["spec", "volumeName"]).into(),
            str_at(o, &["status", "capacity", "storage"]).into(),
            access_modes(o, &["status", "accessModes"]).into(),
            str_at(o, &["spec", "storageClassName"]).into(),
            created(o, now),
            str_at(o, &["spec", "volumeMode"]).into(),
        ]
    },
};

pub(super) const LEASE: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Holder", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            str_at(o, &["spec", "holderIdentity"]).into(),
            created(o, now),
        ]
    },
};

pub(super) const DISRUPTION_BUDGET: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Min Available", "string", 0),
        ("Max Unavailable", "string", 0),
        ("Allowed Disruptions", "integer", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let bound = |key: &str| match meta::at(o, &["spec", key]) {
            Some(Value::String(s)) => s.as_str().into(),
            Some(Value::Number(n)) => n.to_string().into(),
            _ => Value::from("N/A"),
        };
        vec![
            meta::name(o).into(),
            bound("minAvailable"),
            bound("maxUnavailable"),
            int_at(o, &["status", "disruptionsAllowed"]).into(),
            created(o, now),
        ]
    },
};

pub(super) const PRIORITY_CLASS: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Value", "integer", 0),
        ("Global-Default", "boolean", 0),
        ("Age", "string", 0),
        ("PreemptionPolicy", "string", 1),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            int_at(o, &["value"]).into(),
            o.get("globalDefault")
                .and_then(Value::as_bool)
                .unwrap_or(false)
                .into(),
            created(o, now),
            str_at(o, &["preemptionPolicy"]).into(),
        ]
    },
};

pub(super) const STORAGE_CLASS: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Provisioner", "string", 0),
        ("ReclaimPolicy", "string", 0),
        ("VolumeBindingMode", "string", 0),
        ("AllowVolumeExpansion", "boolean", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let mut name = meta::name(o).to_owned();
        let key = "storageclass.kubernetes.io/is-default-class";
        if str_at(o, &["metadata", "annotations", key]) == "true" {
            name.push_str(" (default)");
        }
        vec![
            name.into(),
            str_at(o, &["provisioner"]).into(),
            str_at(o, &["reclaimPolicy"]).into(),
            str_at(o, &["volumeBindingMode"]).into(),
            o.get("allowVolumeExpansion")
                .and_then(Value::as_bool)
                .unwrap_or(false)
                .into(),
            created(o, now),
        ]
    },
};

pub(super) const ROLE_BINDING: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Role", "string", 0),
        ("Age", "string", 0),
        ("Users", "string", 1),
        ("Groups", "string", 1),
        ("ServiceAccounts", "string", 1),
    ],
    cells: |o, now| {
        let role = format!(
            "{}/{}",
            str_at(o, &["roleRef", "kind"]),
            str_at(o, &["roleRef", "name"])
        );
        let of = |kind: &str| -> Value {
            let names: Vec<String> = list_at(o, &["subjects"])
                .iter()
                .filter(|s| str_at(s, &["kind"]) == kind)
                .map(|s| match str_at(s, &["namespace"]) {
                    "" => str_at(s, &["name"]).to_owned(),
                    ns => format!("{ns}/{}", str_at(s, &["name"])),
                })
                .collect();
            names.join(", ").into()
        };
        vec![
            meta::name(o).into(),
            role.into(),
            created(o, now),
            of("User"),
            of("Group"),
            of("ServiceAccount"),
        ]
    },
};

pub(super) const WEBHOOKS: Printer = Printer {
    heads: &[
        ("Name", "string", 0),
        ("Webhooks", "integer", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        vec![
            meta::name(o).into(),
            count(o, "webhooks").into(),
            created(o, now),
        ]
    },
};
