//! Compares the command line with the flags of upstream's program.

use clap::CommandFactory as _;
use koord_app::features::FeatureStage;
use koord_app::flags::{self, boolean, duration};
use koord_manager::{Args, GATES};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// Returns the words after the first one, for each line that starts with `first`.
fn facts(first: &str) -> Vec<Vec<&'static str>> {
    let lines = include_str!("upstream-flags.txt").lines();
    let rows = lines.filter_map(|line| line.strip_prefix(first)?.strip_prefix(' '));
    let rows: Vec<_> = rows.map(|row| row.split(' ').collect()).collect();
    assert!(!rows.is_empty());
    rows
}

/// Returns all options that a command line results in, as text, and the notes about its flags.
fn outcome(argument: Option<&str>) -> Result<(String, Vec<String>), String> {
    let argv = ["koord-manager"].into_iter().chain(argument);
    let parsed = flags::parse::<Args>(argv.map(OsString::from)).map_err(|e| e.to_string())?;
    let args = parsed.args;
    let mut options = args.options().map_err(|error| error.to_string())?;
    options.identity.clear();
    if let Some(election) = &mut options.election {
        election.identity.clear();
    }
    let mut notes = std::mem::take(&mut options.notes);
    let mut logging = parsed.logging;
    notes.append(&mut logging.notes);
    let client = args.client_options(&prometheus::Registry::new()).unwrap();
    let client = (client.qps, client.burst, args.kubeconfig());
    Ok((format!("{options:?} {client:?} {logging:?}"), notes))
}

/// Returns a value that is not the default, and one that is invalid for the type; `None` if any text is
/// valid.
fn values(name: &str, kind: &str, default: &str) -> (&'static str, Option<&'static str>) {
    match (name, kind) {
        (_, "bool") if boolean(default) == Ok(true) => ("false", Some("perhaps")),
        (_, "bool") => ("true", Some("perhaps")),
        (_, "duration") => ("77s", Some("soon")),
        (_, "int" | "Level") => ("77", Some("many")),
        (_, "uint") => ("77", Some("-1")),
        (_, "float") => ("7.5", Some("much")),
        (_, "severity") => ("ERROR", Some("LOUD")),
        (_, "moduleSpec") => ("file=7", Some("file")),
        (_, "traceLocation") => ("file.go:7", Some("file.go")),
        (_, "mapStringBool") => ("MultiQuotaTree=true", Some("MultiQuotaTree=perhaps")),
        ("controllers", "strings") => ("nodeslo", Some("nodeslo,nothing")),
        ("noderesource-plugins", "strings") => ("BatchResource", Some("-Nothing")),
        (name, "string") if name.ends_with("-addr") => ("127.0.0.1:7777", Some("nowhere")),
        ("leader-elect-resource-lock", _) => ("leases", Some("endpoints")),
        ("node-strategy-name-need-check", _) => ("true", None),
        // Any text is valid.
        (_, "string") => ("x", None),
        other => panic!("unexpected type {other:?}"),
    }
}

/// Flags without effect upstream while logs go to standard error, which is the default.
const ONLY_FOR_LOG_FILES: [&str; 5] = [
    "alsologtostderr",
    "log_file_max_size",
    "one_output",
    "skip_log_headers",
    "stderrthreshold",
];

#[test]
fn upstream_flags_take_effect_or_are_noted() {
    let (plain, notes) = outcome(None).unwrap();
    assert_eq!(notes, [""; 0]);
    let mut without_effect = BTreeSet::new();
    for row in facts("flag") {
        let (name, kind) = (row[0], row[1]);
        let (value, wrong) = values(name, kind, row.get(2).copied().unwrap_or_default());
        let (changed, notes) = outcome(Some(&format!("--{name}={value}"))).unwrap();
        match &notes[..] {
            [] if changed == plain => assert!(
                ONLY_FOR_LOG_FILES.contains(&name) || name == "leader-elect-resource-lock",
                "{name} has no effect, but no note"
            ),
            [] => {}
            [note] => {
                assert!(
                    note.starts_with(&format!("--{}", name.replace('_', "-"))),
                    "{note}"
                );
                assert!(note.contains(" has no effect: "), "{note}");
                assert_eq!(changed, plain, "{name} has an effect despite its note");
                without_effect.insert(name);
            }
            _ => panic!("{name}: {notes:?}"),
        }
        if kind == "bool" {
            let short = outcome(Some(&format!("-{name}"))).unwrap();
            assert_eq!(
                short,
                outcome(Some(&format!("--{name}=true"))).unwrap(),
                "{name}"
            );
        }
        if let Some(wrong) = wrong {
            let error = outcome(Some(&format!("--{name}={wrong}"))).unwrap_err();
            let (_, end) = wrong.rsplit_once([',', '=']).unwrap_or(("", wrong));
            assert!(
                error.contains(name) && error.contains(end),
                "{name}={wrong}: {error}"
            );
        }
    }
    let expected = [
        "add_dir_header",
        "colocation-profile-expire-pod-cache-duration",
        "disable-no-deepcopy",
        "log_backtrace_at",
        "log_dir",
        "log_file",
        "logtostderr",
        "namespace",
        "skip_headers",
        "sync-period",
        "vmodule",
    ];
    assert_eq!(without_effect, BTreeSet::from(expected));
}

#[test]
fn flag_defaults_match_upstream() {
    let command = Args::command();
    let defaults: BTreeMap<_, _> = command
        .get_arguments()
        .filter_map(|argument| {
            let default = argument.get_default_values().first();
            let default = default.map(|text| text.to_string_lossy().into_owned());
            Some((argument.get_long()?, default.unwrap_or_default()))
        })
        .collect();
    let mut klogs = 0;
    for row in facts("flag") {
        let (name, kind) = (row[0], row[1]);
        let upstream = row.get(2).copied().unwrap_or_default();
        let Some(default) = defaults.get(name) else {
            // These flags have no visible default: setting upstream's default changes nothing.
            let (changed, notes) =
                outcome(Some(&format!("--{name}={}", zero(kind, upstream)))).unwrap();
            assert_eq!((changed, notes), outcome(None).unwrap(), "{name}");
            klogs += 1;
            continue;
        };
        match kind {
            "bool" => assert_eq!(default, zero(kind, upstream), "{name}"),
            "duration" => assert_eq!(duration(default), duration(upstream), "{name}"),
            // The default is all of them, and there is one controller more here.
            "strings" => assert_eq!(default, "*", "{name}"),
            _ => assert_eq!(default, upstream, "{name}"),
        }
    }
    assert_eq!(klogs, 13);
}

/// Returns the zero value of a type if no default is shown.
fn zero<'a>(kind: &str, default: &'a str) -> &'a str {
    match (kind, default) {
        ("bool", "") => "false",
        ("Level", "") => "0",
        ("severity", "") => "INFO",
        (_, default) => default,
    }
}

#[test]
fn full_controller_and_plugin_lists_are_accepted() {
    for name in ["controllers", "noderesource-plugins"] {
        let rows = facts("flag");
        let row = rows.iter().find(|row| row[0] == name).unwrap();
        let all = row[2].trim_matches(['[', ']']);
        outcome(Some(&format!("--{name}={all}"))).unwrap();
    }
}

#[test]
fn gates_match_upstream_stages_and_defaults() {
    let gates: BTreeMap<_, _> = GATES.iter().map(|gate| (gate.name, gate)).collect();
    let mut upstream_names = BTreeSet::new();
    let mut other_default = Vec::new();
    let mut without_effect = Vec::new();
    for row in facts("gate") {
        let (name, stage, default) = (row[0], row[1], boolean(row[2]).unwrap());
        let not = !default;
        let (_, notes) = outcome(Some(&format!("--feature-gates={name}={not}"))).unwrap();
        upstream_names.insert(name);
        if matches!(name, "AllAlpha" | "AllBeta") {
            continue;
        }
        let gate = gates
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not known"));
        let expected = if stage == "BETA" {
            FeatureStage::Beta
        } else {
            FeatureStage::Alpha
        };
        assert_eq!(gate.stage, expected, "{name}");
        if gate.default != default {
            other_default.push(name);
        }
        if let [note] = &notes[..] {
            assert!(note.starts_with(&format!("--feature-gates={name}={not} has no effect: ")));
            without_effect.push(name);
        }
    }
    assert_eq!(other_default, ["ConfigMapValidatingWebhook"]);
    let expected = [
        "DisablePVCReservation",
        "ElasticQuotaIgnorePodOverhead",
        "PreemptionPolicyTransformer",
        "PriorityTransformer",
    ];
    assert_eq!(without_effect, expected);
    let own_gates: Vec<_> = GATES
        .iter()
        .map(|gate| gate.name)
        .filter(|name| !upstream_names.contains(name))
        .collect();
    let expected = [
        "Recommender",
        "RecommendationAdmission",
        "ChargeUnmeasuredPods",
        "DeviceResourceWithoutColocation",
        "ElasticQuotaDump",
    ];
    assert_eq!(own_gates, expected, "gates that upstream would refuse");
    for (value, names) in [
        ("NoSuchGate=true", ["feature-gates", "NoSuchGate"]),
        ("MultiQuotaTree", ["feature-gates", "MultiQuotaTree"]),
        ("MultiQuotaTree=perhaps", ["MultiQuotaTree", "perhaps"]),
    ] {
        let error = outcome(Some(&format!("--feature-gates={value}"))).unwrap_err();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}
