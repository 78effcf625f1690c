//! Roll-out of node strategies to a percentage of the nodes.

use super::*;
use crate::nodeslo;
use crate::object::ObjectChange;
use koord_api::configmap::rollout;
use koord_api::slo::NodeSLOSpec;
use std::collections::BTreeSet;

const NODES: u32 = 300;

/// Returns the settings with a strategy in each section for `percent` of the nodes in pool `a`.
fn settings(percent: &Value) -> Config {
    let pool = json!({"matchLabels": {"pool": "a"}});
    let section = |mut strategy: Value| {
        strategy["name"] = json!("canary");
        strategy["nodeSelector"] = pool.clone();
        strategy["rolloutPercent"] = percent.clone();
        json!({"clusterStrategy": {}, "nodeStrategies": [strategy]}).to_string()
    };
    let inline = |mut section: Value, list: &str| {
        for item in section[list].as_array_mut().unwrap() {
            item["nodeSelector"] = pool.clone();
            item["rolloutPercent"] = percent.clone();
        }
        section.to_string()
    };
    let threshold = section(json!({"enable": true, "cpuSuppressThresholdPercent": 50}));
    let qos = section(json!({"beClass": {"cpuQOS": {"enable": true, "groupIdentity": -1}}}));
    let burst = section(json!({"policy": "auto"}));
    let system = section(json!({"watermarkScaleFactor": 200}));
    let suppress = section(json!({"mode": "upstream"}));
    let applications = json!({"nodeConfigs": [{"applications": [{"name": "nginx"}]}]});
    let colocation = json!({"enable": false, "nodeConfigs": [{"cpuReclaimThresholdPercent": 11}]});
    let entries = [
        (keys::RESOURCE_THRESHOLD, threshold),
        (keys::RESOURCE_QOS, qos),
        (keys::CPU_BURST, burst),
        (keys::SYSTEM, system),
        (crate::suppress::CONFIG_KEY, suppress),
        (keys::HOST_APPLICATION, inline(applications, "nodeConfigs")),
        (keys::COLOCATION, inline(colocation, "nodeConfigs")),
    ];
    let entries: Vec<(&str, &str)> = entries.iter().map(|(key, text)| (*key, &**text)).collect();
    Config::default().updated(&data(&entries)).0
}

fn nodes() -> Vec<Node> {
    let node = |number: u32| {
        let pool = if number.is_multiple_of(3) { "b" } else { "a" };
        let mut node = node(json!({"pool": pool}), json!({}));
        node.metadata.name = Some(format!("node-{number}"));
        node
    };
    (0..NODES).map(node).collect()
}

/// Updates the NodeSLO of each node to `config`, as the controller does.
fn reconcile(slos: &mut BTreeMap<String, NodeSLOSpec>, config: &Config) {
    for node in nodes() {
        let name = node.metadata.name.clone().unwrap();
        let (change, problem) = nodeslo::plan(Some(&node), slos.get(&name), config);
        assert_eq!(problem, None);
        match change {
            ObjectChange::Create(spec) | ObjectChange::Update(spec) => {
                slos.insert(name, spec);
            }
            ObjectChange::Nothing => {}
            ObjectChange::Delete => panic!("{name} is deleted"),
        }
    }
}

#[test]
fn rollout_widens_by_adding_nodes_and_is_taken_back_exactly() {
    let mut slos = BTreeMap::new();
    reconcile(&mut slos, &settings(&json!(0)));
    let original = slos.clone();
    let mut without = BTreeMap::new();
    // The cluster strategy of cpu-suppress-config is in force with any percentage.
    reconcile(&mut without, &settings(&json!(null)));
    let changed = |slos: &BTreeMap<String, NodeSLOSpec>| -> BTreeSet<String> {
        let differing = slos.iter().filter(|(name, slo)| original[*name] != **slo);
        differing.map(|(name, _)| name.clone()).collect()
    };
    let everywhere = changed(&without);
    assert_eq!(everywhere.len(), 200, "all of pool a");
    let mut stages = vec![(0, BTreeSet::new(), slos.clone())];
    for percent in [25_u8, 50, 100] {
        reconcile(&mut slos, &settings(&json!(percent)));
        let now = changed(&slos);
        let (_, before, _) = stages.last().unwrap();
        assert!(now.is_superset(before), "{percent}");
        let expected = usize::from(percent) * 2;
        assert!(
            now.len().abs_diff(expected) <= 20,
            "{percent}: {}",
            now.len()
        );
        for (name, slo) in &slos {
            let included = everywhere.contains(name) && rollout::bucket(name) < percent;
            let expected = if included { &without } else { &original };
            assert_eq!(*slo, expected[name], "{name} at {percent} %");
        }
        stages.push((percent, now, slos.clone()));
    }
    assert_eq!(slos, without);
    while let Some((percent, _, expected)) = stages.pop() {
        reconcile(&mut slos, &settings(&json!(percent)));
        assert_eq!(slos, expected, "back to {percent} %");
    }
    assert_eq!(slos, original);
}

#[test]
fn sections_share_their_first_nodes_and_colocation_follows() {
    let config = settings(&json!(10));
    for node in nodes() {
        let name = node.metadata.name.clone().unwrap();
        let in_pool = node.metadata.labels.as_ref().unwrap()["pool"] == "a";
        let included = in_pool && rollout::bucket(&name) < 10;
        let (strategy, ..) = config.resolved(&node);
        let reclaims = strategy.cpu_reclaim_threshold_percent == Some(11);
        let (slo, _) = config.slo(&node);
        let suppresses = slo.resource_used_threshold_with_be.unwrap().enable == Some(true);
        assert_eq!((reclaims, suppresses), (included, included), "{name}");
    }
}

#[test]
fn invalid_percentage_applies_to_no_node() {
    let mut slos = BTreeMap::new();
    reconcile(&mut slos, &settings(&json!(0)));
    let original = slos.clone();
    for percent in [json!("50"), json!(-5), json!(150), json!(12.5)] {
        reconcile(&mut slos, &settings(&percent));
        assert_eq!(slos, original, "{percent}");
    }
}
