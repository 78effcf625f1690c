use super::*;
use std::ffi::OsString;

fn parse(line: &str) -> Result<Options, String> {
    let argv = std::iter::once("koord-scheduler").chain(line.split_whitespace());
    let parsed = flags::parse::<Args>(argv.map(OsString::from)).map_err(|e| e.to_string())?;
    let options = parsed.args.options(Registry::default());
    options.map_err(|error| error.to_string())
}

#[test]
fn upstreams_manifests_are_accepted() {
    // The Helm chart's line, and the one of config/manager.
    for line in [
        "--port=10251 --authentication-skip-lookup=true --v=4 --feature-gates= \
         --enable-network-topology-manager=false",
        "--port=10251 --authentication-skip-lookup=true --v=4 \
         -feature-gates=CompatibleCSIStorageCapacity=false -s 0 -f=false -d=false \
         --leader-elect --scheduling-timeout=30s --vmodule=x=4 --secure-port 10259",
    ] {
        let options = parse(line).unwrap();
        assert_eq!(options.notes, [""; 0], "{line}");
    }
}

#[test]
fn the_files_kubeconfig_counts_before_the_flags() {
    let dir = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("{head}{text}")).unwrap();
        path.display().to_string()
    };
    let named = write("named", "clientConnection: {kubeconfig: /file}\n");
    let silent = write("silent", "");
    for (line, expected) in [
        (format!("--config={named}"), Some("/file")),
        (
            format!("--config={named} --kubeconfig=/flag"),
            Some("/file"),
        ),
        (
            format!("--config={silent} --kubeconfig=/flag"),
            Some("/flag"),
        ),
        ("--kubeconfig=/flag".to_owned(), Some("/flag")),
        (format!("--config={silent}"), None),
    ] {
        let argv = std::iter::once("koord-scheduler").chain(line.split_whitespace());
        let args = flags::parse::<Args>(argv.map(OsString::from)).unwrap().args;
        let options = args.options(Registry::default()).unwrap();
        let kubeconfig = args.client_kubeconfig(&options);
        assert_eq!(kubeconfig, expected.map(PathBuf::from), "{line}");
    }
}

#[test]
fn flags_without_effect_are_noted() {
    for (line, expected) in [
        (
            "--requestheader-client-ca-file=ca.crt",
            "--requestheader-client-ca-file=ca.crt",
        ),
        (
            "--enable-workload-auditor",
            "--enable-workload-auditor=true",
        ),
        ("--sync-hard-timeout=2m", "--sync-hard-timeout=2m"),
        ("--profiling=false", "--profiling=false"),
        ("--feature-gates=ResizePod=true", "ResizePod=true"),
    ] {
        let notes = parse(line).unwrap().notes;
        assert!(
            notes.len() == 1 && notes[0].contains(expected),
            "{line}: {notes:?}"
        );
    }
}

#[test]
fn network_topology_manager_follows_its_flag() {
    for (line, on) in [
        ("", false),
        ("--enable-network-topology-manager", true),
        ("--enable-network-topology-manager=true", true),
        ("--enable-network-topology-manager=false", false),
    ] {
        let options = parse(line).unwrap();
        assert_eq!(options.build.network_topology, on, "{line}");
        assert_eq!(options.notes, [""; 0], "{line}");
    }
}

#[test]
fn all_gates_are_accepted_and_set() {
    let options =
        parse("--feature-gates=PriorityTransformer=true,SchedulerQueueingHints=true").unwrap();
    let gate = |name: &str| options.build.gates.get(name).copied();
    assert_eq!(gate("PriorityTransformer"), Some(true));
    assert_eq!(gate("DynamicSchedulerCheck"), Some(true));
    assert_eq!(gate("GangPendingPodsConditionPatch"), Some(true));
    assert_eq!(gate("ResizePod"), Some(false));
    assert!(options.notes.is_empty(), "{:?}", options.notes);
    for gate in GATES {
        let line = format!("--feature-gates={}=true", gate.name);
        assert!(parse(&line).is_ok(), "{line}");
        let equal_gates = GATES.iter().filter(|other| other.name == gate.name);
        assert_eq!(equal_gates.count(), 1, "{}", gate.name);
    }
    let options = parse("--feature-gates=SchedulerPopFromBackoffQ=false").unwrap();
    assert_eq!(
        options.notes,
        [
            "--feature-gates SchedulerPopFromBackoffQ=false has no effect: this scheduler behaves as \
          with its default"
        ]
    );
}

#[test]
fn controllers_are_chosen_by_the_name_of_their_plugin() {
    for (line, reservation, coscheduling) in [
        ("", true, true),
        ("--controller-plugins=*,-Reservation", false, true),
        ("--controller-plugins=Reservation", true, false),
        ("--controller-plugins=-Reservation", false, false),
    ] {
        let options = parse(line).unwrap();
        let on = |name| options.build.controllers.enabled(name);
        let shown = (on("Reservation"), on("Coscheduling"));
        assert_eq!(shown, (reservation, coscheduling), "{line}");
        assert!(options.notes.is_empty(), "{line}");
    }
}

#[test]
fn mistakes_name_the_flag() {
    for (line, names) in [
        ("--feature-gates=NoSuchGate=true", "NoSuchGate"),
        ("--feature-gates=ResizePod=perhaps", "perhaps"),
        (
            "--feature-gates=CSIStorageCapacity=false",
            "CSIStorageCapacity",
        ),
        ("--leader-elect-resource-lock=endpoints", "endpoints"),
        ("--leader-elect-lease-duration=soon", "soon"),
        ("--scheduling-timeout=long", "long"),
        ("--debug-diagnosis-queue-size=many", "many"),
        ("--async-log=perhaps", "perhaps"),
        ("--no-such-flag", "no-such-flag"),
    ] {
        let error = parse(line).err().unwrap_or_default();
        assert!(error.contains(names), "{line}: {error}");
    }
}

#[test]
fn flags_override_the_election_with_and_without_a_file() {
    let options = parse(
        "--leader-elect=false --leader-elect-resource-name=mine \
         --leader-elect-resource-namespace=ns --leader-elect-lease-duration=30s",
    )
    .unwrap();
    assert!(!options.leader_elect);
    let mut section = crate::config::LeaderElection::default();
    options.election.apply(&mut section);
    assert_eq!(
        (&*section.resource_name, &*section.resource_namespace),
        ("mine", "ns")
    );
    assert_eq!(section.lease_duration.to_string(), "30s");
    assert_eq!(section.retry_period.to_string(), "2s");
    assert!(parse("--leader-elect").unwrap().leader_elect);
}

#[test]
fn debugging_and_the_monitor_are_set_by_flags() {
    let line = "-s=3 -f --debug-diagnosis --scheduling-timeout=2s --bind-annotations-with-binding";
    let options = parse(line).unwrap();
    let flags = options.debug.flags();
    assert_eq!(flags.scores.load(Ordering::Relaxed), 3);
    assert!(flags.filters.load(Ordering::Relaxed) && flags.diagnosis.load(Ordering::Relaxed));
    assert_eq!(
        options.scheduling_timeout,
        std::time::Duration::from_secs(2)
    );
    assert!(options.bind_annotations_with_binding && options.notes.is_empty());
}

#[test]
fn callers_are_judged_by_upstreams_defaults() {
    let args = |line: &str| {
        let argv = std::iter::once("koord-scheduler").chain(line.split_whitespace());
        let parsed = flags::parse::<Args>(argv.map(OsString::from));
        parsed.unwrap().args.secure.auth
    };
    let auth = args("");
    assert!(auth.authentication_tolerate_lookup_failure && !auth.authentication_skip_lookup);
    let open = auth.authorization_always_allow_paths;
    assert_eq!(open, ["/healthz", "/readyz", "/livez"]);
    let ten = std::time::Duration::from_secs(10);
    for life in [
        auth.authentication_token_webhook_cache_ttl,
        auth.authorization_webhook_cache_authorized_ttl,
        auth.authorization_webhook_cache_unauthorized_ttl,
    ] {
        assert_eq!(life, ten);
    }
    let auth = args("--authorization-always-allow-paths=/metrics --authentication-skip-lookup");
    assert_eq!(auth.authorization_always_allow_paths, ["/metrics"]);
    assert!(auth.authentication_skip_lookup);
}

#[test]
fn shadow_has_a_patience() {
    use std::time::Duration;
    assert_eq!(parse("").unwrap().shadow, None);
    assert_eq!(parse("--shadow-patience=5s").unwrap().shadow, None);
    let default = parse("--shadow").unwrap().shadow;
    assert_eq!(default, Some(Duration::from_secs(60)));
    let chosen = parse("--shadow=true --shadow-patience=5s").unwrap().shadow;
    assert_eq!(chosen, Some(Duration::from_secs(5)));
}
