//! Rows of TaintToleration, NodeAffinity and ImageLocality.

use super::*;

/// Parses an effect: N is NoSchedule, P is PreferNoSchedule, empty means no effect.
fn effect(letter: &str) -> Option<&'static str> {
    match letter {
        "N" => Some("NoSchedule"),
        "P" => Some("PreferNoSchedule"),
        _ => None,
    }
}

fn taints(text: &str) -> Value {
    let parse_one = |token: &str| {
        let (rest, letter) = token.split_once(':').unwrap();
        let (key, value) = rest.split_once('=').unwrap();
        json!({"key": key, "value": value, "effect": effect(letter)})
    };
    text.split_whitespace().map(parse_one).collect()
}

/// Parses tolerations `key operator value effect`, separated by commas; `-` for a missing part.
fn tolerating(text: &str) -> Value {
    let parse_one = |tokens: &str| {
        let part = |at: usize| {
            tokens
                .split_whitespace()
                .nth(at)
                .filter(|token| *token != "-")
        };
        json!({"key": part(0), "operator": part(1), "value": part(2),
            "effect": part(3).and_then(effect)})
    };
    let all = text.split(',').filter(|part| !part.trim().is_empty());
    json!({"metadata": {}, "spec": {"tolerations": all.map(parse_one).collect::<Value>()}})
}

fn tainted(nodes: &[&str], gates: &[&str]) -> (Alone, String) {
    let mut alone = Alone::gated("TaintToleration", json!({}), gates);
    let names: Vec<String> = (0..nodes.len()).map(|at| format!("n{at}")).collect();
    for (name, text) in names.iter().zip(nodes) {
        alone.node(name, json!({}), json!({"spec": {"taints": taints(text)}}));
    }
    (alone, names.join(" "))
}

const COMPARE: &[&str] = &["TaintTolerationComparisonOperators"];

#[test]
fn taint_score_prefers_fewer_untolerated() {
    let arm = "cpu-type Equal arm64";
    let (cpu, both) = ("cpu=arm:P", "cpu=arm:P disk=ssd:P");
    let own = format!("{arm} P, disk-type Equal ssd P");
    let own = own
        .replace("cpu-type", "cpu")
        .replace("disk-type", "disk")
        .replace("arm64", "arm");
    #[rustfmt::skip]
    let rows = [
        ("tolerated or not", "foo Equal bar P", &["foo=bar:P", "foo=blah:P"][..], "100 0"),
        ("all tolerated", &*own, &["", cpu, both], "100 100 100"),
        ("the more the worse", "foo Equal bar P", &["", cpu, both], "100 50 0"),
        ("only preferences count", "cpu Equal arm N, disk Equal ssd N", &["", "cpu=arm:N", both], "100 100 0"),
        ("no tolerations", "", &["", cpu], "100 0"),
        ("above", "sla Gt 950 P", &["sla=800:P", "sla=999:P"], "0 100"),
        ("below", "sla Lt 800 P", &["sla=950:P", "sla=700:P"], "0 100"),
    ];
    for (name, tolerations, nodes, expected) in rows {
        let (mut alone, names) = tainted(nodes, COMPARE);
        assert_eq!(
            alone.scores(tolerating(tolerations), &names),
            expected,
            "{name}"
        );
    }
}

#[test]
fn untolerated_taints_reject_pods() {
    let off = "!node(s) had untolerated taint(s)";
    let mixed = "dedicated Equal user1 N, sla Gt 750 N";
    #[rustfmt::skip]
    let rows = [
        ("no toleration", "", "dedicated=user1:N", true, off),
        ("tolerated", "dedicated - user1 N", "dedicated=user1:N", true, "fits"),
        ("another value", "dedicated Equal user2 N", "dedicated=user1:N", true, off),
        ("any value", "foo Exists - N", "foo=bar:N", true, "fits"),
        ("several", "dedicated Equal user2 N, foo Exists - N", "dedicated=user2:N foo=bar:N", true, "fits"),
        ("another effect", "foo Equal bar P", "foo=bar:N", true, off),
        ("any effect", "foo Equal bar -", "foo=bar:N", true, "fits"),
        ("a preference, not tolerated", "dedicated Equal user2 N", "dedicated=user1:P", true, "fits"),
        ("a preference", "", "dedicated=user1:P", true, "fits"),
        ("not above", "level Gt 950 N", "level=800:N", true, off),
        ("above", "sla Gt 750 N", "sla=950:N", true, "fits"),
        ("not below", "level Lt 800 N", "level=950:N", true, off),
        ("below", "sla Lt 950 N", "sla=800:N", true, "fits"),
        ("no number", "sla Gt 950 N", "sla=high:N", true, off),
        ("above, without the gate", "sla Gt 750 N", "sla=950:N", false, off),
        ("below, without the gate", "sla Lt 950 N", "sla=800:N", false, off),
        ("equal and above, without the gate", mixed, "dedicated=user1:N", false, "fits"),
        ("both needed, without the gate", mixed, "dedicated=user1:N sla=950:N", false, off),
    ];
    for (name, tolerations, taints, gate, expected) in rows {
        let (mut alone, node) = tainted(&[taints], if gate { COMPARE } else { &[] });
        assert_eq!(
            alone.judge(tolerating(tolerations), &node),
            expected,
            "{name}"
        );
    }
}

#[test]
fn preferred_node_affinity_scores() {
    let term = |weight: i64, labels: &[(&str, &str)]| {
        let parse_one =
            |(key, value): &(&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
        json!({"weight": weight, "preference": {"matchExpressions": labels.iter().map(parse_one).collect::<Value>()}})
    };
    let foo = ("foo", "bar");
    let preferring =
        |terms: Value| json!({"preferredDuringSchedulingIgnoredDuringExecution": terms});
    let pod = |terms: Value| json!({"metadata": {}, "spec": {"affinity": {"nodeAffinity": preferring(terms)}}});
    let one_term = || json!([term(2, &[foo])]);
    let three = || {
        let all = [foo, ("key", "value"), ("az", "az1")];
        json!([term(2, &[foo]), term(4, &[("key", "value")]), term(5, &all)])
    };
    let plain = || json!({"metadata": {}, "spec": {}});
    let labels = |kind: u8| match kind {
        1 => json!({"foo": "bar"}),
        2 => json!({"key": "value"}),
        3 => json!({"az": "az1"}),
        4 => json!({"abc": "az11", "def": "az22"}),
        _ => json!({"foo": "bar", "key": "value", "az": "az1"}),
    };
    let added = |terms: Value| json!({"addedAffinity": preferring(terms)});
    #[rustfmt::skip]
    let rows = [
        ("no affinity", json!({}), plain(), &[1, 2, 3][..], "0 0 0"),
        ("no match", json!({}), pod(one_term()), &[4, 2, 3], "0 0 0"),
        ("one match", json!({}), pod(one_term()), &[1, 2, 3], "100 0 0"),
        ("weights", json!({}), pod(three()), &[1, 5, 2], "18 100 36"),
        ("added by the arguments", added(one_term()), plain(), &[1, 2], "100 0"),
        ("added to the pod's", added(json!([term(3, &[("key", "value")])])), pod(one_term()), &[1, 2, 5], "40 60 100"),
    ];
    for (name, args, pod, nodes, expected) in rows {
        let mut alone = Alone::new("NodeAffinity", args);
        let mut names = Vec::new();
        for (at, kind) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            alone.node(&name, labels(*kind), json!({}));
            names.push(name);
        }
        assert_eq!(alone.scores(pod, &names.join(" ")), expected, "{name}");
    }
}

#[test]
fn image_locality_scores() {
    const MB: i64 = 1024 * 1024;
    let images = |sizes: &[i64]| -> Value {
        let parse_one = |size: &i64| json!({"names": [format!("gcr.io/{size}:latest")], "sizeBytes": size * MB});
        json!({"status": {"images": sizes.iter().map(parse_one).collect::<Value>()}})
    };
    let pod = |sizes: &[i64], first: &[i64]| {
        let list = |sizes: &[i64]| -> Value {
            let parse_one = |size: &i64| json!({"name": "c", "image": format!("gcr.io/{size}")});
            sizes.iter().map(parse_one).collect()
        };
        json!({"metadata": {}, "spec": {"containers": list(sizes), "initContainers": list(first)}})
    };
    type Sizes<'a> = &'a [i64];
    let (a, b): (Sizes<'_>, Sizes<'_>) = (&[40, 300, 2000], &[250, 10]);
    let (c, d): (Sizes<'_>, Sizes<'_>) = (&[600, 40, 900], &[300, 600, 900]);
    let (e, f): (Sizes<'_>, Sizes<'_>) = (&[4000, 30], &[20, 30, 40]);
    let none: Sizes<'_> = &[];
    #[rustfmt::skip]
    let rows = [
        ("the larger image", pod(&[40, 250], &[]), &[a, b][..], "0 5"),
        ("two on one node", pod(&[40, 300], &[]), &[a, b], "7 0"),
        ("not beyond the limit", pod(&[10, 4000], &[]), &[e, b], "100 0"),
        ("one of three nodes", pod(&[10, 4000], &[]), &[e, b, none], "66 0 0"),
        ("several large images", pod(&[300, 600, 900], &[]), &[c, d, none], "32 36 0"),
        ("small images", pod(&[30, 40], &[]), &[f, e], "1 0"),
        ("init containers", pod(&[30], &[300]), &[a, f], "6 0"),
    ];
    for (name, pod, nodes, expected) in rows {
        let mut alone = Alone::new("ImageLocality", json!({}));
        let mut names = Vec::new();
        for (at, sizes) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            alone.node(&name, json!({}), images(sizes));
            names.push(name);
        }
        assert_eq!(alone.scores(pod, &names.join(" ")), expected, "{name}");
    }
}
