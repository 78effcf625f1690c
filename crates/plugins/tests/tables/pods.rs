//! Scores of PodTopologySpread and InterPodAffinity.

use super::*;
use k8s_openapi::api::core::v1::{Namespace, Service};

const HOST: &str = "kubernetes.io/hostname";

/// Parses labels without values, such as `foo,bar`.
fn labels(text: &str) -> Value {
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(|name| (name.to_owned(), json!(""))).collect()
}

fn constraint(skew: i64, key: &str, selects: &str, more: Value) -> Value {
    let mut out =
        json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"});
    if selects != "-" {
        let expression = |name: &str| json!({"key": name, "operator": "Exists"});
        let names = selects.split(',').filter(|name| !name.is_empty());
        out["labelSelector"] =
            json!({"matchExpressions": names.map(expression).collect::<Value>()});
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        out[key] = value.clone();
    }
    out
}

/// Adds nodes such as `a/1 b/1 c` with their zones; `!` omits the hostname label.
fn nodes(alone: &mut Alone, text: &str) {
    for token in text.split_whitespace() {
        let (name, zone) = token
            .split_once('/')
            .map_or((token, None), |(n, z)| (n, Some(z)));
        let (name, bare) = name.strip_prefix('!').map_or((name, false), |n| (n, true));
        let mut labels = json!({"node": name});
        if !bare {
            labels[HOST] = json!(name);
        }
        if let Some(zone) = zone {
            labels["zone"] = json!(zone);
        }
        alone.node(name, labels, json!({}));
    }
}

/// Adds pods such as `a:foo a:foo,bar` with their labels; `other/` is a namespace, `!` marks a terminating
/// pod.
fn add_pods(alone: &mut Alone, text: &str) {
    for token in text.split_whitespace() {
        let (space, rest) = token.split_once('/').map_or(("", token), |(s, r)| (s, r));
        let (rest, going) = rest.strip_prefix('!').map_or((rest, false), |r| (r, true));
        let (node, names) = rest.split_once(':').unwrap();
        let going = going.then_some("2024-01-01T00:00:00Z");
        let metadata =
            json!({"namespace": space, "labels": labels(names), "deletionTimestamp": going});
        alone.add_pod(node, json!({"metadata": metadata, "spec": {}}));
    }
}

/// Repeats each `token` `count` times.
fn times(list: &[(usize, &str)]) -> String {
    let repeated = |(count, token): &(usize, &str)| format!("{token} ").repeat(*count);
    list.iter().map(repeated).collect()
}

#[test]
fn spread_score_rows() {
    let host = |skew: i64| json!([constraint(skew, HOST, "foo", json!({}))]);
    let zone = |selects: &str| constraint(1, "zone", selects, json!({}));
    let on_host = |selects: &str| constraint(1, HOST, selects, json!({}));
    let three_nodes = times(&[(2, "a:foo"), (1, "b:foo"), (3, "d:foo")]);
    let stairs = times(&[(4, "a:foo"), (3, "b:foo"), (2, "c:foo"), (1, "d:foo")]);
    let four_nodes = times(&[(4, "a:foo"), (2, "b:foo"), (1, "x:foo"), (3, "y:foo")]);
    let two = times(&[(2, "a:foo"), (1, "b:foo"), (2, "x:foo"), (4, "y:foo")]);
    let mixed = "a:foo b:foo,bar y:foo y:bar";
    let zones = "a/1 b/1 x/2 y/2";
    let first = "a/1 b/1 c/2 d/2";
    let keyed = |selects: &str, key: &str, by: &str| {
        constraint(1, key, selects, json!({"matchLabelKeys": [by]}))
    };
    #[rustfmt::skip]
    let rows = [
        ("no pods", host(1), "a b", "a b", "", "100 100"),
        ("one candidate", host(1), "a b", "a", "a:foo a:foo b:foo", "100"),
        ("as many everywhere", host(1), "a b", "a b", "a:foo b:foo", "100 100"),
        ("four candidates", host(1), "a b c d", "a b c d", &*three_nodes, "20 60 100 0"),
        ("no selector", json!([constraint(1, HOST, "-", json!({}))]), "a b c d", "a b c d", &three_nodes, "100 100 100 100"),
        ("a skew of two", host(2), "a b c d", "a b c d", &three_nodes, "33 66 100 16"),
        ("a skew of three", host(3), "a b c d", "a b c d", &stairs, "44 66 77 100"),
        ("by the service", json!([]), "a b c d", "a b c d", &stairs, "44 66 77 100"),
        ("three candidates of four", host(1), "a b x y", "a b x", &four_nodes, "33 83 100"),
        ("a node without the key", host(1), "a !b x y", "a b x", &four_nodes, "16 0 100"),
        ("zones", json!([zone("foo")]), zones, "a b x", &four_nodes, "75 75 100"),
        ("zones and hosts", json!([zone("foo"), on_host("foo")]), zones, "a x", &two, "100 63"),
        ("zones twice", json!([zone("foo"), zone("bar")]), "!a/1 !b/1 !x/2 !y/2", "a x",
            "a:foo,bar a:foo b:foo,bar y:foo y:foo,bar y:foo", "85 100"),
        ("selectors differ", json!([zone("foo"), on_host("bar")]), zones, "a b x y", mixed, "60 20 100 60"),
        ("some without pods", json!([zone("foo"), on_host("bar")]), zones, "a b x y",
            "b:bar x:foo y:foo,bar", "100 60 40 0"),
        ("selectors differ, three candidates", json!([zone("foo"), on_host("bar")]), zones, "a b x", mixed, "50 25 100"),
        ("another namespace", host(1), "a b", "a b", "other/a:foo a:foo b:foo b:foo", "100 33"),
        ("a pod that is going", host(1), "a b", "a b", "!a:foo b:foo", "100 0"),
        ("minDomains has no say", json!([constraint(2, "node", "foo", json!({"minDomains": 10}))]),
            "a b c", "a b c", "a:foo a:foo b:foo b:foo c:foo", "75 75 100"),
        ("keys and no selector", json!([keyed("", "zone", "foo"), keyed("", HOST, "bar")]), first, "a b c d",
            "a:foo b:foo,bar c:foo c:bar", "60 20 60 100"),
        ("keys and a selector", json!([zone("foo"), keyed("bar", HOST, "baz")]), first, "a b c d",
            "a:foo b:foo,bar,baz c:foo c:bar c:bar,baz", "60 20 60 100"),
    ];
    for (name, constraints, places, candidates, pods, expected) in rows {
        let mut alone = Alone::new("PodTopologySpread", json!({"defaultingType": "System"}));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": ""}, "spec": {"selector": {"foo": ""}}
        }))
        .unwrap();
        if name == "by the service" {
            alone.object("services.v1.", Arc::new(service));
        }
        nodes(&mut alone, places);
        add_pods(&mut alone, pods);
        let pod = json!({"metadata": {"labels": labels("foo,bar,baz")},
            "spec": {"topologySpreadConstraints": constraints}});
        assert_eq!(alone.scores(pod, candidates), expected, "{name}");
    }
}

#[test]
fn spread_domains_follow_inclusion_rules() {
    let selector = json!({"nodeSelector": {"foo": ""}});
    let expression = json!({"key": "foo", "operator": "In", "values": [""]});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
    let honor = "0 33 100";
    let ignore = "66 100 100";
    #[rustfmt::skip]
    let rows = [
        ("selector, honoured", &selector, json!({}), false, honor),
        ("selector, ignored", &selector, json!({"nodeAffinityPolicy": "Ignore"}), false, ignore),
        ("affinity, honoured", &affinity, json!({}), false, honor),
        ("affinity, ignored", &affinity, json!({"nodeAffinityPolicy": "Ignore"}), false, ignore),
        ("taints, honoured", &json!({}), json!({"nodeTaintsPolicy": "Honor"}), true, honor),
        ("taints, ignored", &json!({}), json!({}), true, ignore),
    ];
    for (name, spec, policy, tainted, expected) in rows {
        let mut alone = Alone::new("PodTopologySpread", json!({"defaultingType": "System"}));
        for name in ["a", "b", "c"] {
            let mut labels = json!({"node": name});
            let mut rest = json!({});
            if name != "c" {
                labels["foo"] = json!("");
            } else if tainted {
                rest["spec"]["taints"] = json!([{"key": "k", "value": "", "effect": "NoSchedule"}]);
            }
            alone.node(name, labels, rest);
        }
        add_pods(&mut alone, "a:foo a:foo b:foo c:foo");
        let mut spec = spec.clone();
        spec["topologySpreadConstraints"] = json!([constraint(1, "node", "foo", policy)]);
        let pod = json!({"metadata": {"labels": labels("foo")}, "spec": spec});
        assert_eq!(alone.scores(pod, "a b c"), expected, "{name}");
    }
}

fn term(key: &str, expressions: Value) -> Value {
    json!({"labelSelector": {"matchExpressions": expressions}, "topologyKey": key})
}

fn security(operator: &str, values: &[&str]) -> Value {
    match values {
        [] => json!({"key": "security", "operator": operator}),
        _ => json!({"key": "security", "operator": operator, "values": values}),
    }
}

fn wrong() -> Value {
    json!({"key": "wrongkey", "operator": "DoesNotExist"})
}

/// Returns an affinity by the name that the rows below use.
fn affinity(name: &str) -> Value {
    let preferred =
        |terms: Value| json!({"preferredDuringSchedulingIgnoredDuringExecution": terms});
    let weighted = |weight: i64, term: Value| json!([{"weight": weight, "podAffinityTerm": term}]);
    let is = |key: &str, value: &str| term(key, json!([security("In", &[value])]));
    let spaces = || {
        let mut term = is("region", "S1");
        term["namespaces"] = json!(["subteam2.team2"]);
        term["namespaceSelector"] =
            json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["team1"]}]});
        preferred(weighted(5, term))
    };
    match name {
        "" => json!({}),
        "with S1" => json!({"podAffinity": preferred(weighted(5, is("region", "S1")))}),
        "with S2" => json!({"podAffinity": preferred(weighted(6, is("region", "S2")))}),
        "operators" => {
            let first = term(
                "region",
                json!([security("NotIn", &["S1"]), security("In", &["S2"])]),
            );
            let second = term("region", json!([security("Exists", &[]), wrong()]));
            json!({"podAffinity": preferred(json!([{"weight": 8, "podAffinityTerm": first},
                {"weight": 2, "podAffinityTerm": second}]))})
        }
        "required" => {
            let first = term("region", json!([security("In", &["S1", "value2"])]));
            let second = term("region", json!([security("Exists", &[]), wrong()]));
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [first, second]}})
        }
        "away from S1" => json!({"podAntiAffinity": preferred(weighted(5, is("az", "S1")))}),
        "away from S2" => json!({"podAntiAffinity": preferred(weighted(5, is("az", "S2")))}),
        "both" => json!({"podAffinity": preferred(weighted(8, is("region", "S1"))),
            "podAntiAffinity": preferred(weighted(5, is("az", "S2")))}),
        "namespaces" => json!({"podAffinity": spaces()}),
        "away, namespaces" => json!({"podAntiAffinity": spaces()}),
        "service" => {
            let expression = json!({"key": "service", "operator": "In", "values": ["S1"]});
            let mut term = term("region", json!([expression]));
            term["namespaces"] = json!(["", "subteam2.team2"]);
            term["namespaceSelector"] = json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["team1"]}]});
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
        }
        other => panic!("{other}"),
    }
}

/// Label such as `security=S1`, namespace, and name of an affinity.
type Who<'a> = (&'a str, &'a str, &'a str);

fn pod((label, namespace, wants): Who<'_>) -> Value {
    let labels: Value = label
        .split_once('=')
        .into_iter()
        .map(|(k, v)| (k.to_owned(), json!(v)))
        .collect();
    json!({"metadata": {"labels": labels, "namespace": namespace}, "spec": {"affinity": affinity(wants)}})
}

/// Adds nodes by place: `C`, `I`, `1`, `2`, `C1` stand for regions China and India and zones az1 and az2.
fn place(alone: &mut Alone, places: &str) -> String {
    let mut names = Vec::new();
    for (at, place) in places.split_whitespace().enumerate() {
        let mut labels = json!({});
        for letter in place.chars() {
            match letter {
                'C' => labels["region"] = json!("China"),
                'I' => labels["region"] = json!("India"),
                number => labels["az"] = json!(format!("az{number}")),
            }
        }
        let name = format!("n{}", at + 1);
        alone.node(&name, labels, json!({}));
        names.push(name);
    }
    names.join(" ")
}

fn attracted(args: Value, comes: Who<'_>, pods: &[(u8, Who<'_>)], places: &str) -> String {
    let mut alone = Alone::new("InterPodAffinity", args);
    for (name, team) in [
        ("subteam1.team1", "team1"),
        ("subteam2.team1", "team1"),
        ("subteam1.team2", "team2"),
        ("subteam2.team2", "team2"),
    ] {
        let space: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"team": team}}}))
                .unwrap();
        alone.object("namespaces.v1.", Arc::new(space));
    }
    let names = place(&mut alone, places);
    for (node, who) in pods {
        alone.add_pod(&format!("n{node}"), pod(*who));
    }
    alone.scores(pod(comes), &names)
}

#[test]
fn pod_affinity_score_rows() {
    let (s1, s2) = (("security=S1", "", ""), ("security=S2", "", ""));
    let wants = |wish: &'static str| ("security=S1", "", wish);
    let (one, two) = ("subteam1.team1", "subteam2.team1");
    let local_pod = ("security=S1", one, "");
    let sub = |space: &'static str| ("security=S1", space, "");
    let regions = "C I 1";
    let spaces = |wish: &'static str| ("security=S1", one, wish);
    let across = [
        (1, local_pod),
        (1, local_pod),
        (1, sub("subteam1.team2")),
        (2, sub(two)),
    ];
    let listed = [
        (1, local_pod),
        (1, local_pod),
        (1, sub("subteam2.team2")),
        (2, sub(two)),
    ];
    let six_pods = [(1, s2), (1, s2), (2, s2), (3, s2), (4, s2), (5, s2)];
    let same = [
        (1, s1),
        (1, s1),
        (2, s1),
        (3, s1),
        (3, s1),
        (4, s1),
        (5, s1),
    ];
    #[rustfmt::skip]
    let rows = [
        ("no affinity", s1, &[][..], regions, "0 0 0"),
        ("the place of matching pods", wants("with S1"), &[(1, s1), (2, s2), (3, s1)], regions, "100 0 0"),
        ("the whole region", ("", "", "with S1"), &[(1, s1)], "C C1 I", "100 100 0"),
        ("the region with more", wants("with S2"), &six_pods, "C I C C I", "100 0 100 100 0"),
        ("operators", wants("operators"), &[(1, s1), (2, s2), (3, s1)], regions, "20 100 0"),
        ("wanted by those there", s2, &[(1, wants("with S1")), (2, ("security=S2", "", "with S2"))], regions, "0 100 0"),
        ("wanted, by namespace", local_pod, &[(1, wants("namespaces")), (2, ("security=S2", "", "with S2"))], regions, "100 0 0"),
        ("unwanted, by namespace", local_pod, &[(1, wants("away, namespaces")), (2, ("security=S2", "", "with S2"))], regions, "0 100 100"),
        ("required by those there", s1, &[(1, wants("required")), (2, ("security=S2", "", "required"))], regions, "100 100 0"),
        ("away from its like", wants("away from S1"), &[(1, s1), (2, s2)], "1 C", "0 100"),
        ("away, no such key", wants("away from S1"), &[(1, s1), (2, s1)], "1 C", "0 100"),
        ("away from the more", wants("away from S1"), &[(1, s1), (1, s1), (2, s2)], "1 I", "0 100"),
        ("unwanted by those there", s2, &[(1, wants("away from S2")), (2, ("security=S2", "", "away from S1"))], "1 2", "0 100"),
        ("with and away", wants("both"), &[(1, s1), (2, s1)], "C 1", "100 0"),
        ("with and away, among its like", wants("both"), &same, "C1 I C C I", "100 0 100 100 0"),
        ("with, away, and wanted", wants("both"),
            &[(1, s1), (2, s2), (3, ("", "", "both")), (4, ("", "", "away from S1"))], "C 1 I 2", "100 0 100 0"),
        ("only one of a region", s1, &[(1, s1), (2, ("", "", "both"))], "C C", "0 0"),
        ("by namespace selector", spaces("namespaces"), &across, "C I", "100 0"),
        ("by namespace selector and list", spaces("namespaces"), &listed, "C I", "100 0"),
        ("away, by namespace selector", spaces("away, namespaces"), &across, "C I", "0 100"),
        ("away, by namespace selector and list", spaces("away, namespaces"), &listed, "C I", "0 100"),
        ("wishes of those there", s2, &[(1, wants("both")), (2, ("security=S2", "", "with S2"))], "C I", "0 100"),
    ];
    for (name, comes, pods, places, expected) in rows {
        let got = attracted(json!({}), comes, pods, places);
        assert_eq!(got, expected, "{name}");
    }
    let ignored = attracted(
        json!({"ignorePreferredTermsOfExistingPods": true}),
        s2,
        &[(1, wants("both")), (2, ("security=S2", "", "with S2"))],
        "C I",
    );
    assert_eq!(ignored, "0 0", "wishes of those there are ignored");
}

#[test]
fn hard_pod_affinity_weight_of_existing_pods() {
    let pods = [(1, ("", "", "service")), (2, ("", "", "service"))];
    #[rustfmt::skip]
    let rows = [
        ("default", 1, "", "100 100 0"),
        ("none", 0, "", "0 0 0"),
        ("no such namespace", 1, "subteam1.team2", "0 0 0"),
        ("by namespace selector", 1, "subteam1.team1", "100 100 0"),
        ("by namespace list", 1, "subteam2.team2", "100 100 0"),
    ];
    for (name, weight, namespace, expected) in rows {
        let args = json!({"hardPodAffinityWeight": weight});
        let got = attracted(args, ("service=S1", namespace, ""), &pods, "C I 1");
        assert_eq!(got, expected, "{name}");
    }
}
