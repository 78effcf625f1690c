use super::*;
use koord_api::duration::GoDuration;
use std::ffi::OsString;
use std::io::Write as _;

fn args(line: &str) -> Result<Args, String> {
    let argv = std::iter::once("koord-descheduler").chain(line.split_whitespace());
    let parsed = flags::parse::<Args>(argv.map(OsString::from));
    parsed
        .map(|parsed| parsed.args)
        .map_err(|error| error.to_string())
}

fn resolve(line: &str) -> Result<ResolvedConfig, String> {
    args(line)?.resolve().map_err(|error| error.to_string())
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

const HEAD: &str = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n";

#[test]
fn defaults_are_upstreams() {
    let defaults = args("").unwrap();
    assert_eq!(defaults.secure_port, 10258);
    assert_eq!(
        defaults.secure_address().unwrap(),
        Some("0.0.0.0:10258".parse().unwrap())
    );
    let settled = defaults.resolve().unwrap();
    assert_eq!(settled.config, Configuration::default());
    assert_eq!(settled.config.healthz_bind_address, "0.0.0.0:10251");
    assert_eq!(settled.notes, [""; 0]);
    let election = settled.config.leader_election;
    assert_eq!(
        (&*election.resource_namespace, &*election.resource_name),
        ("koordinator-system", "koord-descheduler")
    );
}

#[test]
fn of_a_file_flags_override_the_leader_election_alone() {
    let file = file(&format!(
        "{HEAD}deschedulingInterval: 30s\nhealthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: 127.0.0.1:2\n\
         leaderElection: {{resourceName: a, leaseDuration: 20s}}\n"
    ));
    let path = file.path().display();
    let from_file = resolve(&format!("--config={path}")).unwrap().config;
    assert_eq!(from_file.leader_election.resource_name, "a");
    let from_flags = resolve(&format!(
        "--config {path} --address=10.0.0.1 --port=99 --leader_elect=false --leader-elect-resource-name=b \
         --leader-elect-renew-deadline=11s --leader-elect-retry-period=3s \
         --leader-elect-resource-namespace=n"
    ))
    .unwrap();
    let election = &from_flags.config.leader_election;
    assert!(!election.leader_elect);
    assert_eq!(
        (&*election.resource_name, &*election.resource_namespace),
        ("b", "n")
    );
    assert_eq!(election.lease_duration, GoDuration::from_secs(20));
    assert_eq!(election.renew_deadline, GoDuration::from_secs(11));
    assert_eq!(election.retry_period, GoDuration::from_secs(3));
    assert_eq!(from_flags.config.healthz_bind_address, "127.0.0.1:1");
    assert_eq!(from_flags.config.metrics_bind_address, "127.0.0.1:2");
    // Ignored flags are reported.
    let [note] = &from_flags.notes[..] else {
        panic!("{:?}", from_flags.notes);
    };
    assert!(note.starts_with("--address and --port"), "{note}");
    let without = resolve("--address=127.0.0.1 --port=0").unwrap().config;
    assert_eq!(without.healthz_bind_address, "127.0.0.1:0");
    assert_eq!(without.metrics_bind_address, "127.0.0.1:0");
}

#[test]
fn upstreams_manifest_and_its_other_flags_are_accepted() {
    let line = "--v=4 --secure-port=0 --cert-dir=apiserver.local.config/certificates --tls-min-version=VersionTLS12 \
                --http2-max-streams-per-connection=7 --permit-port-sharing --disabled-metrics=a \
                --logging-format=text --vmodule= --log-flush-frequency=5s --log-text-split-stream \
                --feature-gates=DisablePVCReservation=true,PriorityTransformer=true,WebhookFramework=false";
    let parsed = args(line).unwrap();
    assert_eq!(parsed.secure_address().unwrap(), None);
    let settled = parsed.resolve().unwrap();
    assert!(settled.gates.enabled("DisablePVCReservation"));
    let about: Vec<_> = settled
        .notes
        .iter()
        .map(|note| note.split(" has no effect: ").next().unwrap())
        .collect();
    assert_eq!(
        about,
        [
            "--cert-dir=apiserver.local.config/certificates",
            "--http2-max-streams-per-connection=7",
            "--permit-port-sharing=true",
            "--tls-min-version=VersionTLS12",
            "--disabled-metrics=a",
            "--log-text-split-stream=true",
            "--feature-gates=PriorityTransformer=true",
            "--feature-gates=WebhookFramework=false",
        ]
    );
}

#[test]
fn places_are_looked_for_beforehand_on_request() {
    assert!(!args("").unwrap().find_targets);
    for line in [
        "--find-targets",
        "--find-targets=true --scheduler-config=/x",
    ] {
        let parsed = args(line).unwrap();
        assert!(parsed.find_targets, "{line}");
        assert_eq!(parsed.resolve().unwrap().notes, [""; 0]);
    }
    let notes = resolve("--scheduler-config=/x").unwrap().notes;
    assert_eq!(
        notes,
        ["--scheduler-config has no effect without --find-targets"]
    );
}

#[test]
fn mistakes_name_the_flag_or_the_field() {
    let wrong = file(&format!("{HEAD}deschedulingIntervall: 30s\n"));
    let other_kind = file("apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n");
    for (line, names) in [
        ("--port=65536".to_owned(), "65536"),
        ("--address=localhost".to_owned(), "--address: \"localhost\""),
        ("--bind-address=::g".to_owned(), "--bind-address"),
        ("--config=/nowhere/at/all".to_owned(), "/nowhere/at/all"),
        (
            format!("--config={}", wrong.path().display()),
            "deschedulingIntervall",
        ),
        (
            format!("--config={}", other_kind.path().display()),
            "DeschedulerPolicy",
        ),
        (
            "--leader-elect-resource-lock=endpoints".to_owned(),
            "leaderElection.resourceLock: \"endpoints\"",
        ),
        (
            "--leader-elect-lease-duration=10s".to_owned(),
            "leaderElection.leaseDuration: 10s",
        ),
        ("--feature-gates=Nope=true".to_owned(), "Nope"),
        ("--policy-config-file=x".to_owned(), "--policy-config-file"),
        ("now".to_owned(), "now"),
    ] {
        let error = resolve(&line).unwrap_err();
        assert!(error.contains(names), "{line}: {error}");
    }
}

#[test]
fn kubeconfig_of_file_precedes_flag() {
    let parsed = args("--kubeconfig=/flag").unwrap();
    let mut config = Configuration::default();
    assert_eq!(
        parsed.client_kubeconfig(&config),
        Some(PathBuf::from("/flag"))
    );
    config.client_connection.kubeconfig = "/file".to_owned();
    assert_eq!(
        parsed.client_kubeconfig(&config),
        Some(PathBuf::from("/file"))
    );
}
