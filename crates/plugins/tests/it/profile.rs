//! Registry of plugins, as profiles use it.

use koord_scheduler::config::Configuration;
use koord_scheduler::framework::{BuildContext, Profiles};

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn build(body: &str) -> Result<Profiles, String> {
    let config = Configuration::parse(&format!("{HEAD}{body}")).map_err(|e| e.to_string())?;
    let context = BuildContext::default();
    Profiles::build(&config, &koord_plugins::registry(), &context, false).map_err(|e| e.to_string())
}

#[test]
fn empty_configuration_equals_kube_scheduler() {
    let profiles = build("").unwrap();
    let profile = &profiles.profiles[0];
    assert_eq!(profile.name, "default-scheduler");
    let named: Vec<_> = profile
        .score
        .iter()
        .map(|(at, weight)| (profiles.instances[*at].name(), *weight))
        .collect();
    let expected = [
        ("TaintToleration", 3),
        ("NodeAffinity", 2),
        ("NodeResourcesFit", 1),
        ("PodTopologySpread", 2),
        ("InterPodAffinity", 2),
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
    ];
    assert_eq!(named, expected);
}

#[test]
fn profiles_with_equal_arguments_share_instances() {
    let profiles = build("profiles: [{schedulerName: a}]\n").unwrap();
    let two = build("profiles: [{schedulerName: a}, {schedulerName: b}]\n").unwrap();
    assert_eq!(profiles.instances.len(), two.instances.len());
    assert_eq!(two.find("b"), Some(1));
}

#[test]
fn invalid_profiles_are_reported() {
    for (body, expected) in [
        (
            "profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]\n",
            "Nope",
        ),
        (
            "profiles: [{plugins: {bind: {enabled: [{name: NodeName}]}}}]\n",
            "does not extend bind",
        ),
        (
            "profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]\n",
            "at least one bind plugin",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoreResources: []}}]}]\n",
            "ignoreResources",
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit, weight: -1}]}}}]\n",
            "-1",
        ),
    ] {
        let error = build(body).err().unwrap_or_default();
        assert!(error.contains(expected), "{body}: {error}");
    }
}
