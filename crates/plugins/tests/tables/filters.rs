//! Filter results of NodeResourcesFit and VolumeZone.

use super::*;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

/// Parses amounts such as `1/2 a=3`: milli-cores, bytes, and other resources by letter.
fn amounts(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        if let Some((cpu, memory)) = token.split_once('/') {
            out["cpu"] = json!(format!("{cpu}m"));
            out["memory"] = json!(memory);
        } else if let Some((name, amount)) = token.split_once('=') {
            let name = match name {
                "a" => "example.com/aaa",
                "b" => "example.com/bbb",
                "k" => "kubernetes.io/something",
                "l" => "subdomain.kubernetes.io/something",
                "h" => "hugepages-2Mi",
                "e" => "ephemeral-storage",
                "pods" => "pods",
                other => panic!("{other}"),
            };
            out[name] = json!(amount);
        }
    }
    out
}

/// Parses a pod: containers, init containers (sidecars start with `~`), overhead and pod-level requests,
/// separated by `|`; containers are separated by `+`.
fn pod(text: &str) -> Value {
    let parts: Vec<&str> = text.split('|').map(str::trim).collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let container = |text: &str| {
        let (text, policy) = match text.trim().strip_prefix('~') {
            Some(text) => (text, Some("Always")),
            None => (text, None),
        };
        json!({"name": "c", "restartPolicy": policy, "resources": {"requests": amounts(text)}})
    };
    let list = |text: &str| -> Value {
        let all = text.split('+').filter(|part| !part.trim().is_empty());
        all.map(container).collect()
    };
    let mut spec = json!({"containers": list(part(0)), "initContainers": list(part(1))});
    if !part(2).is_empty() {
        spec["overhead"] = amounts(part(2));
    }
    if !part(3).is_empty() {
        spec["resources"] = json!({"requests": amounts(part(3))});
    }
    json!({"metadata": {}, "spec": spec})
}

fn fits(args: Value, room: &str, there: &str, asks: &str) -> String {
    let mut alone = Alone::new("NodeResourcesFit", args);
    alone.node(
        "n",
        json!({}),
        json!({"status": {"allocatable": amounts(room)}}),
    );
    if !there.is_empty() {
        alone.add_pod("n", pod(there));
    }
    alone.judge(pod(asks), "n")
}

const ROOM: &str = "10/20 pods=32 a=5 e=20 h=5";

#[test]
fn fit_requires_requested_resources() {
    let (cpu, memory, a, b) = (
        "Insufficient cpu",
        "Insufficient memory",
        "Insufficient example.com/aaa",
        "!Insufficient example.com/bbb",
    );
    let (never_a, never_h) = (
        "!Insufficient example.com/aaa",
        "!Insufficient hugepages-2Mi",
    );
    let (k, l) = (
        "!Insufficient kubernetes.io/something",
        "!Insufficient subdomain.kubernetes.io/something",
    );
    #[rustfmt::skip]
    let rows = [
        ("nothing", "10/20", "", "fits"),
        ("too much of both", "10/20", "1/1", "Insufficient cpu, Insufficient memory"),
        ("init container, cpu", "8/19", "1/1 | 3/1", cpu),
        ("the largest init container, cpu", "8/19", "1/1 | 3/1 + 2/1", cpu),
        ("init container, memory", "9/19", "1/1 | 1/3", memory),
        ("the largest init container, memory", "9/19", "1/1 | 1/3 + 1/2", memory),
        ("the larger of both, not the sum", "9/19", "1/1 | 1/1", "fits"),
        ("the largest, not the sum", "9/19", "1/1 | 1/1 + 1/1", "fits"),
        ("both fit", "5/5", "1/1", "fits"),
        ("memory fits", "9/5", "2/1", cpu),
        ("cpu fits", "5/19", "1/2", memory),
        ("to the last", "5/19", "5/1", "fits"),
        ("to the last, init container", "5/19", "4/1 | 5/1", "fits"),
        ("another resource", "0/0", "a=1", "fits"),
        ("another resource, init container", "0/0", "0/0 | a=1", "fits"),
        ("more than the node has", "a=0", "1/1 a=10", never_a),
        ("more than the node has, init container", "a=0", "0/0 | 1/1 a=10", never_a),
        ("more than is left", "a=5", "1/1 a=1", a),
        ("more than is left, init container", "a=5", "0/0 | 1/1 a=1", a),
        ("the sum of containers", "a=2", "1/1 a=3 + 1/1 a=3", never_a),
        ("not the sum of init containers", "a=2", "0/0 | 1/1 a=3 + 1/1 a=3", "fits"),
        ("the largest of init containers", "a=2", "0/0 | 1/1 a=6 + 1/1 a=3", never_a),
        ("unknown", "0/0", "1/1 b=1", b),
        ("unknown, init container", "0/0", "0/0 | 1/1 b=1", b),
        ("of Kubernetes", "0/0", "1/1 k=10", k),
        ("of Kubernetes, init container", "0/0", "0/0 | 1/1 l=10", l),
        ("huge pages", "h=0", "1/1 h=10", never_h),
        ("huge pages, init container", "h=0", "0/0 | 1/1 h=10", never_h),
        ("huge pages, the sum of containers", "h=2", "1/1 h=3 + 1/1 h=3", never_h),
        ("with overhead", "5/5", "1/1 || 3/13", "fits"),
        ("with too much overhead", "5/5", "1/1 || 1/15", memory),
        ("none of what is overdrawn", "a=6", "1/1 a=0", "fits"),
        ("none of cpu and memory, which are overdrawn", "20/30 a=1", "a=1", "fits"),
        ("the pod as a whole", "5/5", "1/1 ||| 1/2", "fits"),
        ("the pod as a whole, cpu", "5/5", "1/1 ||| 7/2", cpu),
        ("the pod as a whole, memory", "5/19", "1/1 ||| 3/2", memory),
        ("the pod as a whole, huge pages", "", "||| 3/2 h=5", "fits"),
        ("the pod as a whole and a container, huge pages", "", "1/1 h=3 ||| 3/2 h=5", "fits"),
        ("the pod as a whole, too many huge pages", "", "||| 3/2 h=10", never_h),
        ("the pod as a whole, with init containers", "5/19", "1/1 | 1/1 || 3/2", memory),
        ("no storage", "2/10", "1/1", "fits"),
        ("too much storage", "2/2", "e=25", "!Insufficient ephemeral-storage"),
        ("storage is there", "2/2 e=10", "e=5", "fits"),
        ("storage", "2/2", "e=10", "fits"),
    ];
    for (name, there, asks, expected) in rows {
        assert_eq!(fits(json!({}), ROOM, there, asks), expected, "{name}");
    }
    let names = json!({"ignoredResources": ["example.com/bbb"]});
    assert_eq!(
        fits(names, ROOM, "0/0", "1/1 b=1"),
        "fits",
        "left out by name"
    );
    let groups = json!({"ignoredResourceGroups": ["example.com"]});
    assert_eq!(
        fits(groups, ROOM, "0/0", "1/1 b=1 k=1"),
        k,
        "left out by group"
    );
}

#[test]
fn pods_and_sidecars_are_counted() {
    #[rustfmt::skip]
    let rows = [
        ("no room for a pod", "10/20 pods=1", "10/20", "", "Too many pods"),
        ("both fit", "10/20 pods=1", "5/5", "1/1", "Too many pods"),
        ("to the last", "10/20 pods=1", "5/19", "5/1", "Too many pods"),
        ("to the last, init container", "10/20 pods=1", "5/19", "5/1 | 5/1", "Too many pods"),
        ("no side container", "2/0 pods=1", "", "0/0", "fits"),
        ("a side container", "2/0 pods=1", "", "0/0 | ~0/0", "fits"),
        ("both are counted", "2/0 pods=1", "", "1/0 | ~1/0", "fits"),
        ("both are too much", "2/0 pods=1", "", "1/0 | ~2/0", "!Insufficient cpu"),
    ];
    for (name, room, there, asks, expected) in rows {
        assert_eq!(fits(json!({}), room, there, asks), expected, "{name}");
    }
}

/// Parses zone labels such as `zone=a`, with `beta-zone` and `beta-region` for the old labels.
fn places(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        let (key, value) = token.split_once('=').unwrap();
        let key = match key {
            "zone" => "topology.kubernetes.io/zone",
            "region" => "topology.kubernetes.io/region",
            "beta-zone" => "failure-domain.beta.kubernetes.io/zone",
            "beta-region" => "failure-domain.beta.kubernetes.io/region",
            other => other,
        };
        out[key] = json!(value);
    }
    out
}

#[test]
fn volumes_keep_pods_in_their_zone() {
    let conflict = "!node(s) had no available volume zone";
    let not_here = "!storageclass.storage.k8s.io \"none\" not found";
    let nameless = "!PersistentVolumeClaim had no pv name and storageClass name";
    let modeless = "!VolumeBindingMode not set for StorageClass \"now\"";
    // Labels of the volume; `class:` is the class of an unbound claim.
    #[rustfmt::skip]
    let rows = [
        ("no volume", "-", "beta-zone=a", "fits"),
        ("a node without labels", "beta-zone=a", "", "fits"),
        ("old zone", "beta-zone=a", "beta-zone=a x=none", "fits"),
        ("old region", "beta-region=r", "beta-region=r x=none", "fits"),
        ("another old region", "beta-region=r", "beta-region=s x=none", conflict),
        ("another old zone", "beta-zone=a", "beta-zone=b x=none", conflict),
        ("zone", "zone=a", "zone=a x=none", "fits"),
        ("region", "region=r", "region=r x=none", "fits"),
        ("another region", "region=r", "region=s x=none", conflict),
        ("another zone", "zone=a", "zone=b x=none", conflict),
        ("the node has no region", "zone=a region=r", "zone=a", conflict),
        ("the node has an old zone", "zone=a", "beta-zone=a", conflict),
        ("the volume has an old zone", "beta-zone=a", "zone=a", "fits"),
        ("the volume has another old zone", "beta-zone=a", "zone=b", conflict),
        ("several zones, a node without labels", "beta-zone=c__a", "", "fits"),
        ("one of several old zones", "beta-zone=c__a", "beta-zone=a x=none", "fits"),
        ("not that old zone", "beta-zone=a", "beta-zone=b x=none", conflict),
        ("one of several zones", "zone=c__a", "zone=a x=none", "fits"),
        ("not that zone", "zone=a", "zone=b x=none", conflict),
        ("bound", "beta-zone=a", "beta-zone=a x=none", "fits"),
        ("unbound, no class", "class:", "beta-zone=a", nameless),
        ("unbound, no such class", "class:none", "beta-zone=a", not_here),
        ("unbound, a class without a mode", "class:now", "beta-zone=a", modeless),
        ("unbound, waits", "class:wait", "beta-zone=a", "fits"),
    ];
    for (name, volume, node, expected) in rows {
        let mut alone = Alone::new("VolumeZone", json!({}));
        alone.node("n", places(node), json!({}));
        for (name, mode) in [("now", None), ("wait", Some("WaitForFirstConsumer"))] {
            let class: StorageClass = serde_json::from_value(json!({
                "metadata": {"name": name}, "provisioner": "p", "volumeBindingMode": mode
            }))
            .unwrap();
            alone.object("storageclasses.v1.storage.k8s.io", Arc::new(class));
        }
        let mut claim = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}});
        match volume.strip_prefix("class:") {
            Some("") => {}
            Some(class) => claim["spec"]["storageClassName"] = json!(class),
            None => {
                claim["spec"]["volumeName"] = json!("v");
                let volume: PersistentVolume = serde_json::from_value(json!({
                    "metadata": {"name": "v", "labels": places(volume.trim_matches('-'))}, "spec": {}
                }))
                .unwrap();
                alone.object("persistentvolumes.v1.", Arc::new(volume));
            }
        }
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        alone.object("persistentvolumeclaims.v1.", Arc::new(claim));
        let mut pod = json!({"metadata": {"namespace": "ns"}, "spec": {}});
        if volume != "-" {
            pod["spec"]["volumes"] =
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        }
        assert_eq!(alone.judge(pod, "n"), expected, "{name}");
    }
}
