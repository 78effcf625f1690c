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
