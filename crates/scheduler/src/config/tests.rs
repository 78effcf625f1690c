use super::*;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn parse(body: &str) -> Result<Configuration, ConfigError> {
    Configuration::parse(&format!("{HEAD}{body}"))
}

#[test]
fn a_profile_as_users_write_it_is_read_with_defaults() {
    let config = parse(
        r"
leaderElection: {leaderElect: true, resourceName: koord-scheduler, resourceNamespace: koordinator-system, leaseDuration: 1m30s}
profiles:
  - schedulerName: koord-scheduler
    pluginConfig:
      - name: LoadAwareScheduling
        args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: LoadAwareSchedulingArgs, usageThresholds: {cpu: 0}}
    plugins:
      filter: {enabled: [{name: LoadAwareScheduling}]}
      score: {enabled: [{name: LoadAwareScheduling, weight: 1}], disabled: [{name: '*'}]}
",
    )
    .unwrap();
    assert_eq!(config.client_connection.qps, 50.0);
    assert_eq!(config.leader_election.lease_duration.to_string(), "1m30s");
    assert_eq!(config.leader_election.retry_period.to_string(), "2s");
    assert_eq!(config.profiles[0].plugins.score.enabled[0].weight, Some(1));
    assert_eq!(
        config.profiles[0].plugin_config[0].args["usageThresholds"]["cpu"],
        0
    );
}

#[test]
fn mistakes_are_refused_by_name() {
    for (body, expected) in [
        ("profilez: []\n", "profilez"),
        ("profiles: [{schedulerNam: x}]\n", "schedulerNam"),
        ("profiles: [{plugins: {filters: {}}}]\n", "filters"),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]\n",
            "profiles[1].schedulerName",
        ),
        ("podInitialBackoffSeconds: 20\n", "podMaxBackoffSeconds"),
        ("podMaxBackoffSeconds: soon\n", "podMaxBackoffSeconds"),
        (
            "percentageOfNodesToScore: 101\n",
            "percentageOfNodesToScore",
        ),
        (
            "leaderElection: {leaseDuration: 5x}\n",
            "leaderElection.leaseDuration",
        ),
        (
            "leaderElection: {leaseDuration: 10s, renewDeadline: 10s}\n",
            "leaderElection.leaseDuration",
        ),
        (
            "leaderElection: {renewDeadline: 1s}\n",
            "leaderElection.renewDeadline",
        ),
        (
            "leaderElection: {retryPeriod: 0s}\n",
            "leaderElection.retryPeriod",
        ),
        ("leaderElection: {resourceLock: endpoints}\n", "endpoints"),
        (
            "leaderElection: {resourceName: ''}\n",
            "leaderElection.resourceName",
        ),
        ("parallelism: 0\n", "parallelism"),
        (
            "profiles: [{percentageOfNodesToScore: -1}]\n",
            "profiles[0]",
        ),
        ("healthzBindAddress: 0.0.0.0\n", "healthzBindAddress"),
        ("clientConnection: {qsp: 1}\n", "qsp"),
        (
            "profiles: [{plugins: {bind: {enabled: [{name: a}, {name: a}]}}}]\n",
            "profiles[0].plugins.bind.enabled[1].name",
        ),
        (
            "profiles: [{pluginConfig: [{name: a}, {name: a}]}]\n",
            "profiles[0].pluginConfig[1].name",
        ),
        (
            "extenders: [{urlPrefix: 'http://a', prioritizeVerb: p}]\n",
            "extenders[0].weight",
        ),
        ("extenders: [{urlPrefx: p}]\n", "urlPrefx"),
        (
            "extenders: [{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]\n",
            "extenders: 2 implement bind",
        ),
        (
            "extenders: [{urlPrefix: 'http://a'}, {urlPrefix: a, filterVerb: f}]\n",
            "extenders[1].urlPrefix: \"a\"",
        ),
        (
            "extenders: [{httpTimeout: -1s}]\n",
            "extenders[0].httpTimeout: -1s",
        ),
        (
            "extenders: [{managedResources: [{name: a.com/x}]}, {managedResources: [{name: a.com/x}]}]\n",
            "extenders[1].managedResources[0].name: \"a.com/x\" is managed twice",
        ),
        (
            "extenders: [{managedResources: [{name: kubernetes.io/foo}]}]\n",
            "extenders[0].managedResources[0].name: \"kubernetes.io/foo\" is not an extended",
        ),
        (
            "extenders: [{tlsConfig: {insecure: true, caFile: f}}]\n",
            "extenders[0].tlsConfig.insecure",
        ),
        (
            "extenders: [{tlsConfig: {certData: YQ==}}]\n",
            "extenders[0].tlsConfig: a certificate",
        ),
        ("extenders: [{tlsConfig: {caPath: f}}]\n", "caPath"),
    ] {
        let error = parse(body).unwrap_err().to_string();
        assert!(error.contains(expected), "{body}: {error}");
    }
    let old = "apiVersion: kubescheduler.config.k8s.io/v1beta2\nkind: KubeSchedulerConfiguration\n";
    assert!(
        Configuration::parse(old)
            .unwrap_err()
            .to_string()
            .contains("v1beta2")
    );
}

#[test]
fn settings_without_effect_are_noted() {
    let config = parse(
        "percentageOfNodesToScore: 50\n\
         profiles: [{percentageOfNodesToScore: 100}]\n",
    );
    let notes = config.unwrap().notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("percentageOfNodesToScore=50"),
        "{notes:?}"
    );
}

/// Checks the valid rows of kube-scheduler's validation of extenders.
#[test]
fn extenders_are_read() {
    let config = parse(
        r"
extenders:
  - {urlPrefix: 'http://127.0.0.1:8081/extender', prioritizeVerb: prioritize, weight: 2, ignorable: true}
  - {urlPrefix: 'http://127.0.0.1:8081/extender', filterVerb: filter, httpTimeout: 0s}
  - {urlPrefix: 'https://127.0.0.1:8081/extender', preemptVerb: preempt, enableHTTPS: true, httpTimeout: 1s,
     tlsConfig: {caData: YQ==, serverName: x},
     managedResources: [{name: foo.com/bar, ignoredByScheduler: true}, {name: foo.com/baz}]}
",
    )
    .unwrap();
    let ordered = sort_extenders(&config.extenders);
    let timeouts: Vec<u64> = ordered.iter().map(|it| it.timeout().as_secs()).collect();
    assert_eq!(timeouts, [5, 1, 5], "those that may be ignored come last");
    assert_eq!(ignored(&config.extenders), ["foo.com/bar"]);
    assert!(config.notes().is_empty());
}
