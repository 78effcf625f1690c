//! Zones, disks, ReadWriteOncePod claims, and volume limits of drivers.

use super::*;

#[test]
fn zone_labels_of_volumes_bind_pods() {
    let labelled = |label: &str, zone: &str| json!({"metadata": {"labels": {label: zone}}});
    const ZONE: &str = "topology.kubernetes.io/zone";
    const OLD: &str = "failure-domain.beta.kubernetes.io/zone";
    let conflict = "node(s) had no available volume zone";
    let rows = [
        ("same zone", labelled(ZONE, "b"), "bind b".to_owned()),
        (
            "old label on the volume",
            labelled(OLD, "b"),
            "bind b".to_owned(),
        ),
        (
            "one of several",
            labelled(ZONE, "z__b"),
            "bind b".to_owned(),
        ),
        ("elsewhere", labelled(ZONE, "z"), both(conflict)),
        (
            "a label that cannot be read",
            labelled(ZONE, "z__"),
            "bind".to_owned(),
        ),
        (
            "a region that no node has",
            labelled("topology.kubernetes.io/region", "r"),
            both(conflict),
        ),
    ];
    for (case, change, expected) in rows {
        let mut engine = cluster();
        set(&mut engine, "pvc", bound("c", "v"));
        set(&mut engine, "pv", volume("v", "made", change));
        let out = place(&mut engine, pod("p", uses(&["c"]), None));
        assert!(out[0].starts_with(&expected), "{case}: {out:?}");
    }
    let mut engine = cluster();
    node(&mut engine, "plain", json!({}));
    set(&mut engine, "pvc", bound("c", "v"));
    set(&mut engine, "pv", volume("v", "made", labelled(ZONE, "z")));
    let out = place(&mut engine, pod("p", uses(&["c"]), None));
    assert_eq!(
        out,
        ["bind plain"],
        "a node without such labels takes anything"
    );
}

#[test]
fn disks_and_claims_for_one_pod_are_not_shared() {
    let gce =
        |ro: bool| json!([{"name": "d", "gcePersistentDisk": {"pdName": "x", "readOnly": ro}}]);
    let ebs = json!([{"name": "d", "awsElasticBlockStore": {"volumeID": "x", "readOnly": true}}]);
    let iscsi = |ro: bool, lun: i32| json!([{"name": "d", "iscsi": {"targetPortal": "t", "iqn": "x", "lun": lun, "readOnly": ro}}]);
    let rbd = |monitor: &str, pool: Option<&str>, ro: bool| json!([{"name": "d", "rbd": {"monitors": [monitor, "m0"], "image": "i", "pool": pool, "readOnly": ro}}]);
    let rows = [
        ("GCE", gce(false), gce(true), true),
        ("GCE, read only", gce(true), gce(true), false),
        ("EBS", ebs.clone(), ebs, true),
        ("iSCSI", iscsi(true, 0), iscsi(false, 1), true),
        ("iSCSI, read only", iscsi(true, 0), iscsi(true, 0), false),
        (
            "RBD",
            rbd("m1", None, false),
            rbd("m2", Some("rbd"), false),
            true,
        ),
        (
            "RBD, other pool",
            rbd("m1", Some("p"), false),
            rbd("m1", None, false),
            false,
        ),
        (
            "RBD, read only",
            rbd("m1", None, true),
            rbd("m1", None, true),
            false,
        ),
    ];
    for (case, first, second, clash) in rows {
        let mut engine = crate::small::engine(&["VolumeRestrictions"], json!({}));
        node(&mut engine, "a", json!({}));
        engine.pod_applied(pod("p", first, Some("a")), at(0));
        let out = place(&mut engine, pod("q", second, None));
        let expected = if clash {
            "0/1 nodes are available: 1 node(s) had no available disk."
        } else {
            "bind a"
        };
        assert_eq!(out, [expected], "{case}");
    }

    let mut engine = crate::small::engine(&["VolumeRestrictions"], json!({}));
    for name in ["a", "b"] {
        node(&mut engine, name, json!({}));
    }
    let once = json!({"spec": {"accessModes": ["ReadWriteOncePod"]}});
    set(&mut engine, "pvc", claim("once", "made", once));
    set(&mut engine, "pvc", claim("shared", "made", json!({})));
    let user = pod("p", uses(&["once", "shared"]), Some("a"));
    engine.pod_applied(user.clone(), at(0));
    assert!(place(&mut engine, pod("q", uses(&["shared"]), None))[0].starts_with("bind"));
    let out = place(&mut engine, pod("r", uses(&["once"]), None));
    assert_eq!(
        out,
        [both(
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
        )]
    );
    engine.take_outputs();
    engine.pod_deleted(&user, at(5));
    engine.schedule_one(at(5)).unwrap();
    assert!(outputs(&mut engine)[0].starts_with("bind"));
}

#[test]
fn node_volume_limit_of_driver_is_respected() {
    let csi = |name: &str, handle: &str| {
        volume(
            name,
            "made",
            json!({"spec": {"csi": {"driver": "csi.example", "volumeHandle": handle}}}),
        )
    };
    let limit = |count: i32| {
        json!({"metadata": {"name": "a"}, "spec": {"drivers": [
            {"name": "csi.example", "nodeID": "a", "allocatable": {"count": count}}]}})
    };
    let old = json!({"metadata": {"name": "a", "annotations":
        {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}},
        "spec": {"drivers": [{"name": "ebs.csi.aws.com", "nodeID": "a", "allocatable": {"count": 1}}]}});
    let attached = json!({"metadata": {"name": "at"}, "spec": {"attacher": "csi.example",
        "nodeName": "a", "source": {"persistentVolumeName": "v2"}}, "status": {"attached": true}});
    let full = "0/1 nodes are available: 1 node(s) exceed max volume count.";
    let ebs = |name: &str| {
        volume(
            name,
            "made",
            json!({"spec": {"awsElasticBlockStore": {"volumeID": name}}}),
        )
    };
    // Columns: case, objects, claims of the pod on the node, claims of the new pod, expected result.
    type Row = (
        &'static str,
        Objects,
        &'static [&'static str],
        &'static [&'static str],
        &'static str,
    );
    let rows: Vec<Row> = vec![
        (
            "room",
            vec![("csinode", limit(2))],
            &["c1"],
            &["c2"],
            "bind a",
        ),
        ("full", vec![("csinode", limit(1))], &["c1"], &["c2"], full),
        (
            "the same volume",
            vec![("csinode", limit(1))],
            &["c1"],
            &["c1"],
            "bind a",
        ),
        ("no limit known", vec![], &["c1"], &["c2"], "bind a"),
        (
            "two at once",
            vec![("csinode", limit(2))],
            &["c1"],
            &["c2", "c3"],
            full,
        ),
        (
            "still attached",
            vec![("csinode", limit(2)), ("attachment", attached)],
            &["c1"],
            &["c3"],
            full,
        ),
        (
            "not made yet",
            vec![
                ("csinode", limit(1)),
                ("pvc", claim("new", "made", json!({}))),
            ],
            &["c1"],
            &["new"],
            full,
        ),
        (
            "of another driver",
            vec![
                ("csinode", limit(1)),
                ("pv", ebs("e1")),
                ("pvc", bound("ce1", "e1")),
            ],
            &["c1"],
            &["ce1"],
            "bind a",
        ),
        (
            "moved to CSI",
            vec![
                ("csinode", old),
                ("pv", ebs("e1")),
                ("pvc", bound("ce1", "e1")),
                ("pv", ebs("e2")),
                ("pvc", bound("ce2", "e2")),
            ],
            &["ce1"],
            &["ce2"],
            full,
        ),
        (
            "no such claim",
            vec![("csinode", limit(1))],
            &["c1"],
            &["nope"],
            "0/1 nodes are available: 1 persistentvolumeclaim \"nope\" not found.",
        ),
    ];
    for (case, objects, there, new, expected) in rows {
        let mut engine = crate::small::engine(&["NodeVolumeLimits"], json!({}));
        node(&mut engine, "a", json!({}));
        set(
            &mut engine,
            "sc",
            class("made", "csi.example", "Immediate", json!({})),
        );
        for number in 1..=3 {
            let name = format!("v{number}");
            set(&mut engine, "pv", csi(&name, &name));
            set(&mut engine, "pvc", bound(&format!("c{number}"), &name));
        }
        for (kind, value) in objects {
            set(&mut engine, kind, value);
        }
        engine.pod_applied(pod("p", uses(there), Some("a")), at(0));
        let out = place(&mut engine, pod("q", uses(new), None));
        assert_eq!(out, [expected], "{case}");
    }
}
