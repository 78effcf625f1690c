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
        ("extenders: [{prioritizeVerb: p}]\n", "extenders[0].weight"),
        ("extenders: [{urlPrefx: p}]\n", "urlPrefx"),
        ("extenders: [{bindVerb: b}, {bindVerb: b}]\n", "extenders"),
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
fn what_is_not_done_is_said() {
    let config = parse(
        "percentageOfNodesToScore: 50\n\
         extenders: [{urlPrefix: 'http://x', filterVerb: f, enableHTTPS: false, httpTimeout: 5s}]\n\
         profiles: [{percentageOfNodesToScore: 100}]\n",
    );
    let notes = config.unwrap().notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("http://x"), "{notes:?}");
    assert!(
        notes[1].contains("percentageOfNodesToScore=50"),
        "{notes:?}"
    );
}
