//! The fields of the Docker API that hook servers get and change. All others stay unchanged.

use koord_rpc::hooks::LinuxContainerResources as Resources;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

type Object = Map<String, Value>;

pub(super) const LABELS: &str = "Labels";
pub(super) const HOST_CONFIG: &str = "HostConfig";
const ENV: &str = "Env";
const PARENT: &str = "CgroupParent";
const SCORE: &str = "OomScoreAdj";

/// Labels that identify a kubelet's containers.
const KIND: &str = "io.kubernetes.docker.type";
const SANDBOX: &str = "podsandbox";
const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";

/// Prefix of labels that contain annotations of Kubernetes.
const ANNOTATION: &str = "annotation.";

/// Returns the id of the pause container that a container belongs to; `None` for a pause container.
pub(super) fn sandbox_of(config: &Object) -> Option<String> {
    let labels = config.get(LABELS)?;
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    if label(KIND) == Some(SANDBOX) {
        return None;
    }
    label(SANDBOX_ID).map(ToOwned::to_owned)
}

/// Splits labels into labels and annotations of Kubernetes.
pub(super) fn split(
    labels: Option<&Value>,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut plain, mut annotations) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        let Some(value) = value.as_str() else {
            continue;
        };
        match key.strip_prefix(ANNOTATION) {
            Some(key) => annotations.insert(key.to_owned(), value.to_owned()),
            None => plain.insert(key.clone(), value.to_owned()),
        };
    }
    (plain, annotations)
}

/// Changes the object in a field, creating it if it is missing.
pub(super) fn edit(of: &mut Object, field: &str, change: impl FnOnce(&mut Object)) {
    let mut object = match of.remove(field) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    };
    change(&mut object);
    of.insert(field.to_owned(), Value::Object(object));
}

fn numbers(resources: &mut Resources) -> [(&'static str, &mut i64); 5] {
    [
        ("CpuPeriod", &mut resources.cpu_period),
        ("CpuQuota", &mut resources.cpu_quota),
        ("CpuShares", &mut resources.cpu_shares),
        ("Memory", &mut resources.memory_limit_in_bytes),
        ("MemorySwap", &mut resources.memory_swap_limit_in_bytes),
    ]
}

fn texts(resources: &mut Resources) -> [(&'static str, &mut String); 2] {
    [
        ("CpusetCpus", &mut resources.cpuset_cpus),
        ("CpusetMems", &mut resources.cpuset_mems),
    ]
}

/// Returns the resources in a HostConfig or an update.
pub(super) fn resources(object: &Object) -> Resources {
    let mut read = Resources::default();
    let number = |field: &str| {
        object
            .get(field)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    for (field, value) in numbers(&mut read) {
        *value = number(field);
    }
    read.oom_score_adj = number(SCORE);
    for (field, value) in texts(&mut read) {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .clone_into(value);
    }
    read
}

/// Sets the resources in the body of an update request to `new`; fields with the same value stay as written.
pub(super) fn put_update(object: &mut Object, new: &Resources) {
    let (mut current, mut new) = (resources(object), new.clone());
    for ((field, new), (_, current)) in numbers(&mut new).into_iter().zip(numbers(&mut current)) {
        if new != current {
            object.insert(field.to_owned(), Value::from(*new));
        }
    }
    for ((field, new), (_, current)) in texts(&mut new).into_iter().zip(texts(&mut current)) {
        if new != current {
            object.insert(field.to_owned(), Value::from(new.clone()));
        }
    }
}

/// Sets the resources of a HostConfig to `new`; fields with the same value stay as written.
pub(super) fn put_resources(object: &mut Object, new: &Resources) {
    if resources(object).oom_score_adj != new.oom_score_adj {
        object.insert(SCORE.to_owned(), Value::from(new.oom_score_adj));
    }
    put_update(object, new);
}

/// Returns the cgroup parent in a HostConfig in the form of hook requests: with the systemd driver, the slice
/// including the slices above it.
pub(super) fn parent(host_config: &Object) -> String {
    let parent = host_config
        .get(PARENT)
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some(name) = slice(parent) else {
        return parent.to_owned();
    };
    let ends = name.match_indices('-').map(|(at, _)| at);
    let names = ends.filter_map(|index| name.get(..index)).chain([name]);
    names.map(|name| format!("/{name}.slice")).collect()
}

/// Returns the name of a single slice, without its suffix.
fn slice(parent: &str) -> Option<&str> {
    parent
        .strip_suffix(".slice")
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

/// Sets the cgroup parent of a HostConfig, in the form that it already has. An empty one changes nothing.
pub(super) fn put_parent(host_config: &mut Object, new_parent: &str) {
    if new_parent.is_empty() || new_parent == parent(host_config) {
        return;
    }
    let systemd = host_config
        .get(PARENT)
        .and_then(Value::as_str)
        .is_some_and(|now| slice(now).is_some());
    let name = if systemd {
        new_parent.rsplit('/').next().unwrap_or(new_parent)
    } else {
        new_parent
    };
    host_config.insert(PARENT.to_owned(), Value::from(name));
}

/// Returns the environment; of a repeated variable, the last value.
pub(super) fn env(config: &Object) -> BTreeMap<String, String> {
    let list = config
        .get(ENV)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let pairs = list.filter_map(|entry| entry.as_str()?.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Changes variables in place and appends new ones: a later one may refer to an earlier one.
pub(super) fn put_env(config: &mut Object, variables: &BTreeMap<String, String>) {
    let now = env(config);
    let mut list = match config.get(ENV) {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    for (key, value) in variables {
        if now.get(key) == Some(value) {
            continue;
        }
        let text = Value::from(format!("{key}={value}"));
        let is_it = |entry: &&mut Value| {
            let name = entry
                .as_str()
                .map(|text| text.split('=').next().unwrap_or_default());
            name == Some(key)
        };
        match list.iter_mut().rev().find(is_it) {
            Some(entry) => *entry = text,
            None => list.push(text),
        }
    }
    if !list.is_empty() {
        config.insert(ENV.to_owned(), Value::Array(list));
    }
}

/// Returns the id in the engine's response to a creation.
pub(super) fn id(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    Some(answer.get("Id")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Object {
        match value {
            Value::Object(object) => object,
            _ => panic!("no object"),
        }
    }

    /// Verifies the four forms of a cgroup parent in upstream's tables.
    #[test]
    fn cgroup_parents_include_their_slices() {
        for (there, told) in [
            (
                "kubepods-besteffort-podX.slice",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podX.slice",
            ),
            ("kubepods-podX.slice", "/kubepods.slice/kubepods-podX.slice"),
            ("/kubepods/besteffort/podX", "/kubepods/besteffort/podX"),
            ("", ""),
        ] {
            let mut host = object(json!({ "CgroupParent": there, "Init": true }));
            assert_eq!(parent(&host), told);
            let before = host.clone();
            put_parent(&mut host, told);
            put_parent(&mut host, "");
            assert_eq!(host, before);
        }
        let mut host = object(json!({ "CgroupParent": "kubepods-besteffort-podX.slice" }));
        put_parent(&mut host, "/kubepods.slice/kubepods-podX.slice");
        assert_eq!(host["CgroupParent"], "kubepods-podX.slice");
        let mut host = object(json!({ "CgroupParent": "/kubepods/podX" }));
        put_parent(&mut host, "/kubepods/besteffort/podX");
        assert_eq!(host["CgroupParent"], "/kubepods/besteffort/podX");
    }

    #[test]
    fn only_differences_are_written() {
        let mut host = object(json!({ "CpuShares": 2, "Memory": 64, "Binds": ["/a:/a"] }));
        let mut changed_resources = resources(&host);
        let before = host.clone();
        put_resources(&mut host, &changed_resources);
        assert_eq!(host, before);
        changed_resources.cpu_shares = 512;
        changed_resources.cpu_quota = -1;
        changed_resources.oom_score_adj = 998;
        changed_resources.cpuset_cpus = "0-1".to_owned();
        put_resources(&mut host, &changed_resources);
        let expected = json!({ "CpuShares": 512, "Memory": 64, "Binds": ["/a:/a"], "CpuQuota": -1,
            "OomScoreAdj": 998, "CpusetCpus": "0-1" });
        assert_eq!(Value::Object(host), expected);
    }

    #[test]
    fn variables_keep_their_places() {
        let mut config = object(json!({ "Env": ["A=1", "B=$(A)=x", "A=2", "C"] }));
        let read = env(&config);
        assert_eq!(read["A"], "2");
        assert_eq!(read["B"], "$(A)=x");
        let variables = [("A", "2"), ("B", "3"), ("C", ""), ("D", "4")];
        let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
        put_env(&mut config, &variables.into());
        assert_eq!(config["Env"], json!(["A=1", "B=3", "A=2", "C=", "D=4"]));
    }

    #[test]
    fn annotations_are_labels_with_a_prefix() {
        let labels = json!({ "annotation.a/b": "1", "a/b": "2", "n": 3 });
        let (labels, annotations) = split(Some(&labels));
        assert_eq!(labels, [("a/b".to_owned(), "2".to_owned())].into());
        assert_eq!(annotations, [("a/b".to_owned(), "1".to_owned())].into());
    }
}
