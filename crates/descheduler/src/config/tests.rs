use super::*;

const HEAD: &str = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n";

fn parse(body: &str) -> Result<Configuration, ConfigError> {
    Configuration::parse(&format!("{HEAD}{body}"))
}

/// Returns the configuration of the chart.
pub(crate) fn shipped() -> Configuration {
    let text = include_str!("../../../../charts/koord/files/descheduler/config.yaml");
    Configuration::parse(text).unwrap()
}

#[test]
fn empty_file_is_the_default() {
    let config = parse("").unwrap();
    assert_eq!(config, Configuration::default());
    let nulls = parse("profiles:\nnodeSelector: null\nleaderElection: {leaseDuration: }\n");
    assert_eq!(nulls.unwrap(), config);
    let zeros = parse(
        "leaderElection: {leaseDuration: 0s, renewDeadline: 0s, retryPeriod: 0s, resourceLock: '',\
         resourceName: '', resourceNamespace: ''}\n\
         clientConnection: {qps: 0, burst: 0, acceptContentTypes: text, contentType: ''}\n\
         profiles: [{}]\n",
    );
    assert_eq!(zeros.unwrap(), config);
    assert_eq!(
        (config.client_connection.qps, config.client_connection.burst),
        (50.0, 100)
    );
    let election = &config.leader_election;
    assert_eq!(
        [
            election.lease_duration,
            election.renew_deadline,
            election.retry_period
        ]
        .map(|time| time.to_string()),
        ["15s", "10s", "2s"]
    );
    assert_eq!(config.profiles[0].name, "koord-descheduler");
    let quiet = parse("enableProfiling: false\n").unwrap();
    assert_eq!(quiet.enable_contention_profiling, Some(false));
}

#[test]
fn shipped_manifest_is_parsed_completely() {
    let config = shipped();
    assert_eq!(config.descheduling_interval.to_string(), "10s");
    assert_eq!(config.healthz_bind_address, "127.0.0.1:10251");
    let [profile] = &config.profiles[..] else {
        panic!("one profile: {config:?}");
    };
    assert!(merged(&profile.plugins).balance.enabled.is_empty());
    assert_eq!(
        profile.plugin_config[1].args["highThresholds"]["memory"],
        80
    );
}

#[test]
fn written_configuration_parses_to_the_same() {
    let mut config = shipped();
    config.node_selector =
        Some(serde_json::from_value(serde_json::json!({"matchLabels": {"a": "b"}})).unwrap());
    config.max_no_of_pods_to_evict_total = Some(3);
    let text = config.written().unwrap();
    assert_eq!(Configuration::parse(&text).unwrap(), config, "{text}");
}

#[test]
fn addresses_are_completed() {
    for (address, completed) in [
        (":10", "0.0.0.0:10"),
        ("10.0.0.1", "10.0.0.1:10251"),
        ("::1", "[::1]:10251"),
        ("[::1]:7", "[::1]:7"),
        ("host:0", "host:0"),
    ] {
        let config = parse(&format!("healthzBindAddress: '{address}'\n")).unwrap();
        assert_eq!(config.healthz_bind_address, completed);
    }
    for address in [
        "",
        "host",
        "1.2.3.4:",
        "0.0.0.0:111:222",
        "h:http",
        "h:65536",
        "[::1]7",
    ] {
        for field in ["healthzBindAddress", "metricsBindAddress"] {
            let error = parse(&format!("{field}: '{address}'\n")).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(field) && error.contains(address), "{error}");
        }
    }
}

#[test]
fn defaults_are_merged_with_profiles() {
    let set = |text: &str| {
        let plugins = format!("profiles: [{{plugins: {{evict: {text}}}}}]\n");
        let config = parse(&plugins).unwrap();
        let merged = merged(&config.profiles[0].plugins);
        let names = merged
            .evict
            .enabled
            .iter()
            .map(|plugin| plugin.name.as_str());
        let names = names.collect::<Vec<_>>().join(" ");
        let merged_again = PluginsConfig {
            filter: PluginSet {
                disabled: vec![PluginRef {
                    name: "*".to_owned(),
                }],
                ..PluginSet::default()
            },
            ..merged.clone()
        };
        assert_eq!(super::merged(&merged_again).evict, merged.evict, "{text}");
        names
    };
    assert_eq!(set("{}"), "MigrationController");
    assert_eq!(set("{disabled: [{name: '*'}]}"), "");
    assert_eq!(set("{disabled: [{name: MigrationController}]}"), "");
    assert_eq!(set("{enabled: [{name: A}]}"), "MigrationController A");
    let replaced = "{enabled: [{name: A}, {name: MigrationController}, {name: B}]}";
    assert_eq!(set(replaced), "MigrationController A B");
    let off = "{disabled: [{name: '*'}], enabled: [{name: A}, {name: MigrationController}]}";
    assert_eq!(set(off), "A MigrationController");
    // Duplicates are kept, and reported when the profile is built.
    assert_eq!(
        set("{enabled: [{name: A}, {name: A}]}"),
        "MigrationController A A"
    );
    let twice = "{enabled: [{name: MigrationController}, {name: MigrationController}]}";
    assert_eq!(set(twice), "MigrationController MigrationController");
}

#[test]
fn mistakes_are_refused_by_name() {
    for (body, expected) in [
        ("profilez: []\n", "profilez"),
        ("dryRun: false\ndryRun: true\n", "dryRun"),
        ("dryRun: soon\n", "dryRun"),
        ("leaderElection: {leaderElection: true}\n", "leaderElection"),
        ("clientConnection: {qsp: 1}\n", "qsp"),
        (
            "clientConnection: {burst: -1}\n",
            "clientConnection.burst: -1",
        ),
        ("clientConnection: {qps: -1}\n", "clientConnection.qps: -1"),
        ("deschedulingInterval: -1s\n", "deschedulingInterval: -1s"),
        ("deschedulingInterval: 5x\n", "deschedulingInterval"),
        ("maxNoOfPodsToEvictTotal: -1\n", "maxNoOfPodsToEvictTotal"),
        (
            "maxNoOfPodsToEvictPerNode: 1.5\n",
            "maxNoOfPodsToEvictPerNode",
        ),
        (
            "profiles: [{name: a}, {name: a}]\n",
            "profiles[1].name: \"a\"",
        ),
        ("profiles: [{name: a}, {}]\n", "profiles[1].name"),
        ("profiles: [{schedulerName: a}]\n", "schedulerName"),
        ("profiles: [{plugins: {sort: {}}}]\n", "sort"),
        (
            "profiles: [{plugins: {evict: {enabled: [{weight: 1}]}}}]\n",
            "weight",
        ),
        (
            "profiles: [{name: test, pluginConfig: [{name: a, args: {}}, {name: a, args: {}}]}]\n",
            "profiles[0].pluginConfig[1].name: \"a\"",
        ),
        ("profiles: [{pluginConfig: [{args: {}}]}]\n", "name"),
        (
            "leaderElection: {leaseDuration: 10s}\n",
            "leaderElection.leaseDuration: 10s must be above renewDeadline 10s",
        ),
        (
            "leaderElection: {renewDeadline: 2s}\n",
            "leaderElection.renewDeadline",
        ),
        (
            "leaderElection: {retryPeriod: -2s}\n",
            "leaderElection.retryPeriod: -2s",
        ),
        ("leaderElection: {resourceLock: endpoints}\n", "endpoints"),
        (
            "nodeSelector: {matchLabels: {test/a/b/c/d: test}}\n",
            "test/a/b/c/d",
        ),
        (
            "nodeSelector: {matchLabels: {a: -b}}\n",
            "nodeSelector.matchLabels: \"-b\"",
        ),
        (
            "nodeSelector: {matchLabel: {a: b}}\n",
            "nodeSelector: unknown field \"matchLabel\"",
        ),
        (
            "nodeSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}\n",
            "nodeSelector: selector key \"a\" has operator \"in\"",
        ),
        (
            "profiles: [{nodeSelector: {matchExpressions: [{key: a, op: In}]}}]\n",
            "profiles[0].nodeSelector.matchExpressions[0]: unknown field \"op\"",
        ),
        ("nodeSelector: a=b\n", "nodeSelector"),
    ] {
        let error = parse(body).unwrap_err().to_string();
        assert!(error.contains(expected), "{body}: {error}");
    }
    // Durations are not validated without leader election.
    assert!(parse("leaderElection: {leaderElect: false, leaseDuration: 1s}\n").is_ok());
    for (text, expected) in [
        (
            "apiVersion: descheduler/v1alpha1\nkind: DeschedulerConfiguration\n",
            "v1alpha1",
        ),
        (
            "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n",
            "DeschedulerPolicy",
        ),
        ("kind: DeschedulerConfiguration\n", "apiVersion"),
        ("", "configuration"),
        ("- a\n", "configuration"),
        ("{", "YAML"),
    ] {
        let error = Configuration::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
