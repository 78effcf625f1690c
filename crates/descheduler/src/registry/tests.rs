use super::*;
use crate::framework::{Cycle, Framework, Strategy, StrategyError};
use crate::testing::{AllowAll, TestCluster, moved};
use serde::Deserialize;
use serde_json::json;

/// A strategy that evicts the pods with one of these names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Named {
    names: Vec<String>,
    fails: bool,
}

impl Default for Named {
    fn default() -> Self {
        Self {
            names: vec!["p".to_owned()],
            fails: false,
        }
    }
}

impl Strategy for Named {
    fn name(&self) -> &'static str {
        "Named"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        if self.fails {
            let problem = "configured to fail".to_owned();
            return Err(StrategyError {
                strategy: "Named",
                problem,
            });
        }
        for pod in &cycle.snapshot().pods {
            if self.names.iter().any(|name| **name == *pod.name) && cycle.filter(pod) {
                let _ = cycle.evict(pod, "named");
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Lenient {
    #[serde(rename = "labelSelector")]
    selector: Value,
}

fn check(args: &Named) -> Result<(), String> {
    match args.names.iter().find(|name| name.is_empty()) {
        Some(name) => Err(format!("names: {name:?} is empty")),
        None => Ok(()),
    }
}

fn anything() -> PluginHandles {
    PluginHandles {
        evict: Some(Box::new(AllowAll)),
        filter: Some(Box::new(AllowAll)),
        ..PluginHandles::default()
    }
}

fn registry() -> Registry {
    Registry::default()
        .with::<Named>("Named", true, check, |args, _| {
            Ok(PluginHandles::descheduling(args))
        })
        .with::<Named>("Balancer", true, check, |args, _| {
            Ok(PluginHandles::balancing(args))
        })
        .with::<Lenient>(
            "Unable",
            false,
            |_| Ok(()),
            |_, about| Err(format!("not in {}", about.profile)),
        )
        .with::<Lenient>(
            "MigrationController",
            false,
            |_| Ok(()),
            |_, _| Ok(anything()),
        )
        .with::<Lenient>("Other", false, |_| Ok(()), |_, _| Ok(anything()))
}

fn completed(profiles: &str) -> Result<CompletedConfig, ConfigError> {
    let head = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n";
    registry().complete(Configuration::parse(&format!(
        "{head}profiles: {profiles}\n"
    ))?)
}

fn framework(profiles: &str) -> Result<Framework, ConfigError> {
    completed(profiles)?.build()
}

#[test]
fn profiles_are_made_of_plugins() {
    let mut framework = framework(
        "[{name: a, plugins: {deschedule: {enabled: [{name: Named}]}},
           pluginConfig: [{name: Named, args: {names: [q]}}]},
          {name: b, nodeSelector: {matchLabels: {x: z}},
           plugins: {balance: {enabled: [{name: Balancer}]}}}]",
    )
    .unwrap();
    let shape = |profile: &crate::framework::Profile| {
        let Some(selector) = &profile.node_selector else {
            return (profile.deschedule.len(), profile.balance.len(), 0);
        };
        let labels = selector
            .match_labels
            .as_ref()
            .map_or(0, |labels| labels.len());
        (profile.deschedule.len(), profile.balance.len(), labels)
    };
    let shapes: Vec<_> = framework.profiles.iter().map(shape).collect();
    assert_eq!(shapes, [(1, 0, 0), (0, 1, 1)]);
    let mut world = TestCluster::default();
    for node in ["a", "b"] {
        world.node(node, json!({}));
    }
    for pod in ["p", "q", "r"] {
        world.pod(pod, "a", json!({}));
    }
    assert_eq!(moved(&framework.run(&world.snapshot())), ["q", "p"]);
}

#[test]
fn a_profile_without_plugins_has_the_default_ones() {
    let framework = framework("[]").unwrap();
    let [profile] = &framework.profiles[..] else {
        panic!("one profile");
    };
    assert_eq!(profile.evictor.name(), "AllowAll");
    assert_eq!(profile.filters.len(), 1);
    assert!(profile.deschedule.is_empty() && profile.balance.is_empty());
}

#[test]
fn errors_of_strategies_are_gathered() {
    let failing = |names: &str| {
        format!(
            "[{{plugins: {{deschedule: {{enabled: [{{name: Named}}]}},
                           balance: {{enabled: [{{name: Balancer}}]}}}}, pluginConfig: {names}}}]"
        )
    };
    let run = |args: &str| {
        let mut framework = framework(&failing(args)).unwrap();
        let mut world = TestCluster::default();
        world.node("a", json!({}));
        world.node("b", json!({}));
        framework.run(&world.snapshot()).error
    };
    assert_eq!(run("[]"), None);
    let error = run("[{name: Named, args: {fails: true}}]").unwrap();
    assert!(error.contains("configured to fail"), "{error}");
}

#[test]
fn completed_configuration_lists_plugins() {
    let completed = completed(
        "[{plugins: {deschedule: {enabled: [{name: Named}]}},
           pluginConfig: [{name: Unknown, args: {a: 1}}, {name: Balancer, args: {names: [x]}}]}]",
    )
    .unwrap();
    let [profile] = &completed.config.profiles[..] else {
        panic!("one profile");
    };
    let args: Vec<_> = profile.plugin_config.iter().collect();
    let args: Vec<_> = args.iter().map(|it| (it.name.as_str(), &it.args)).collect();
    let typed = |kind: &str, names: &str| json!({"apiVersion": "descheduler/v1alpha2", "kind": kind, "names": [names], "fails": false});
    let controller = json!({"apiVersion": "descheduler/v1alpha2", "kind": "MigrationControllerArgs",
                            "labelSelector": null});
    assert_eq!(
        args,
        [
            ("Balancer", &typed("BalancerArgs", "x")),
            ("MigrationController", &controller),
            ("Named", &typed("NamedArgs", "p")),
            ("Unknown", &json!({"a": 1})),
        ]
    );
    assert_eq!(
        completed.notes,
        ["profiles[0].pluginConfig[0].args: there is no plugin Unknown"]
    );
    // Writing and parsing it again gives the same result.
    let text = completed.config.written().unwrap();
    let reparsed = registry()
        .complete(Configuration::parse(&text).unwrap())
        .unwrap();
    let written = reparsed.config.written().unwrap();
    assert_eq!(written, text);
}

#[test]
fn mistakes_of_profiles_are_refused_by_name() {
    let plugins = |text: &str| format!("[{{plugins: {{{text}}}}}]");
    let args = |text: &str| {
        format!(
            "[{{plugins: {{deschedule: {{enabled: [{{name: Named}}]}}}}, pluginConfig: [{text}]}}]"
        )
    };
    for (profiles, expected) in [
        (
            plugins("evict: {disabled: [{name: '*'}]}"),
            "profiles[0].plugins.evict: no plugin evicts",
        ),
        (
            plugins("evict: {enabled: [{name: Other}]}"),
            "profiles[0].plugins.evict: MigrationController and Other both evict",
        ),
        (
            plugins("balance: {enabled: [{name: Nobody}]}"),
            "profiles[0].plugins.balance.enabled[0].name: there is no plugin \"Nobody\"",
        ),
        (
            plugins("balance: {enabled: [{name: Balancer}, {name: Balancer}]}"),
            "profiles[0].plugins.balance.enabled[1].name: \"Balancer\" is listed twice",
        ),
        (
            plugins(
                "filter: {enabled: [{name: MigrationController}, {name: MigrationController}]}",
            ),
            "profiles[0].plugins.filter.enabled[1].name: \"MigrationController\" is listed twice",
        ),
        (
            plugins("balance: {enabled: [{name: Named}]}"),
            "profiles[0].plugins.balance.enabled[0].name: plugin \"Named\" does nothing at balance",
        ),
        (
            plugins("deschedule: {enabled: [{name: Other}]}"),
            "plugin \"Other\" does nothing at deschedule",
        ),
        (
            plugins("filter: {enabled: [{name: Unable}]}"),
            "plugin Unable: not in koord-descheduler",
        ),
        (
            args("{name: Named, args: {nams: [a]}}"),
            "profiles[0].pluginConfig[0].args.nams: unknown field `nams`",
        ),
        (
            args("{name: Named, args: {names: [a, {}]}}"),
            "profiles[0].pluginConfig[0].args.names[1]",
        ),
        (
            args("{name: Named, args: {names: ['']}}"),
            "profiles[0].pluginConfig[0].args: names: \"\" is empty",
        ),
        (
            args("{name: Named, args: {kind: OtherArgs}}"),
            "profiles[0].pluginConfig[0].args.kind: \"OtherArgs\" is not \"NamedArgs\"",
        ),
        (
            args("{name: Named, args: {apiVersion: v1}}"),
            "profiles[0].pluginConfig[0].args.apiVersion",
        ),
        (args("{name: Named, args: [1]}"), "is not an object"),
        (
            args("{name: Balancer, args: {selector: {matchLabel: {}}}}"),
            "args.selector: unknown field \"matchLabel\"",
        ),
        (
            args("{name: Balancer, args: {defaultDeleteOptions: {preconditions: {uuid: a}}}}"),
            "args.defaultDeleteOptions.preconditions: unknown field \"uuid\"",
        ),
        (
            args("{name: Other, args: {labelSelector: {matchLabels: {'a b': c}}}}"),
            "args.labelSelector.matchLabels: \"a b\"",
        ),
    ] {
        let error = framework(&profiles).unwrap_err().to_string();
        assert!(error.contains(expected), "{profiles}: {error}");
    }
    // Values of a disabled plugin only cause a note, and some plugins accept any field.
    let off = completed("[{pluginConfig: [{name: Named, args: {names: ['']}}]}]").unwrap();
    assert!(
        off.notes[0].contains("names: \"\" is empty"),
        "{:?}",
        off.notes
    );
    framework("[{pluginConfig: [{name: Other, args: {labelSelector: {x: z}, z: 1}}]}]").unwrap();
}
