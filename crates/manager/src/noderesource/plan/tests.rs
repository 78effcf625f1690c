use super::*;

mod numa;
mod plugins;
mod rows;
mod tables;
use crate::config::Strategy;
use koord_api::annotations;
use koord_api::resources::{MID_CPU, MID_MEMORY};
use koord_api::slo::NodeMetric;
use serde_json::json;

const NOW: &str = "2026-01-01T01:00:00Z";

/// A node of 10 cores and 10 G, reclaimed up to 100 %, that uses 1 core and 1 G for the system.
struct PlanCase {
    node: Node,
    metric: Option<NodeMetric>,
    strategy: Option<Strategy>,
    pods: Vec<Arc<PodFacts>>,
    plugins: Selection,
    normalization: CPUNormalizationStrategy,
    amplification: ResourceAmplificationStrategy,
    topology: Option<NodeResourceTopology>,
    device: Option<Device>,
    share_gpus: bool,
    devices_always: bool,
    synced: Option<Timestamp>,
}

fn case() -> PlanCase {
    let mut strategy = Strategy::default();
    strategy.batch.cpu_reclaim_percent = 100;
    strategy.batch.memory_reclaim_percent = 100;
    let metric = json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"}, "spec": {},
        "status": {
            "updateTime": "2026-01-01T00:59:30Z",
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": "2", "memory": "2G"}},
                "systemUsage": {"resources": {"cpu": "1", "memory": "1G"}}},
            "prodReclaimableMetric": {"resource": {"resources": {"cpu": "500m", "memory": "1G"}}},
        },
    });
    PlanCase {
        node: node(json!({}), json!({})),
        metric: Some(serde_json::from_value(metric).unwrap()),
        strategy: Some(strategy),
        pods: Vec::new(),
        plugins: koord_app::flags::selection("MidResource,BatchResource").unwrap(),
        normalization: CPUNormalizationStrategy::defaults(),
        amplification: ResourceAmplificationStrategy::defaults(),
        topology: None,
        device: None,
        share_gpus: false,
        devices_always: false,
        synced: None,
    }
}

fn node(annotations: Value, extended: Value) -> Node {
    let mut list = json!({"cpu": "10", "memory": "10G"});
    json_merge(&mut list, &extended);
    serde_json::from_value(json!({
        "metadata": {"name": "n", "annotations": annotations},
        "status": {"capacity": list, "allocatable": list},
    }))
    .unwrap()
}

fn json_merge(base: &mut Value, upper: &Value) {
    for (key, value) in upper.as_object().unwrap() {
        base[key] = value.clone();
    }
}

impl PlanCase {
    fn plan(&self) -> Plan {
        let status = self
            .metric
            .as_ref()
            .and_then(|metric| metric.status.as_ref());
        let report = status.map(MetricReport::from_status);
        plan(&Input {
            node: &self.node,
            strategy: self.strategy.as_ref(),
            normalization: &self.normalization,
            amplification: &self.amplification,
            topology: self.topology.as_ref(),
            device: self.device.as_ref(),
            share_gpus: self.share_gpus,
            devices_always: self.devices_always,
            is_report_ahead: false,
            report: report.as_ref(),
            pods: &self.pods,
            plugins: &self.plugins,
            synced: self.synced,
            now: NOW.parse().unwrap(),
        })
    }

    fn status(&mut self) -> &mut koord_api::slo::NodeMetricStatus {
        self.metric.as_mut().unwrap().status.as_mut().unwrap()
    }
}

fn published() -> Value {
    json!({
        BATCH_CPU: "9k", BATCH_MEMORY: "9G", MID_CPU: "500", MID_MEMORY: "1G",
    })
}

fn assert_reset(plan: &Plan) {
    let none = json!({BATCH_CPU: null, BATCH_MEMORY: null, MID_CPU: null, MID_MEMORY: null});
    let want = json!({"status": {"capacity": none, "allocatable": none}});
    assert_eq!(plan.status.as_ref().unwrap(), &want, "{:?}", plan.reset);
}

#[test]
fn resources_are_published_with_their_origin() {
    let plan = case().plan();
    let list = published();
    assert_eq!(
        plan.status.as_ref().unwrap(),
        &json!({"status": {"capacity": list, "allocatable": list}})
    );
    // Upstream writes memory in binary form.
    let amounts = json!({BATCH_CPU: "9k", BATCH_MEMORY: "9000000000"});
    assert_eq!(origin_of(&plan), json!({"resources": amounts}));
    assert!(plan.in_sync);
    assert_eq!(plan.reset, None);
    assert!(
        plan.messages
            .iter()
            .any(|line| line.contains("batchAllocatable[CPU(Milli-Core)]:9000"))
    );
    // 15 minutes after the report, less the 30 s since, plus one.
    assert_eq!(plan.recheck, Some(Duration::from_secs(15 * 60 - 30 + 1)));
}

#[test]
fn nothing_is_written_twice() {
    let mut case = case();
    let first = case.plan();
    let mut annotations = json!({});
    json_merge(
        &mut annotations,
        &first.meta.unwrap()["metadata"]["annotations"],
    );
    case.node = node(annotations, published());
    let second = case.plan();
    assert_eq!(
        (second.meta, second.status, second.in_sync),
        (None, None, true)
    );
}

#[test]
fn unusable_reports_remove_resources() {
    let reset = |change: &dyn Fn(&mut PlanCase), reason: &str| {
        let mut case = case();
        case.node = node(json!({}), published());
        case.synced = Some(NOW.parse().unwrap());
        change(&mut case);
        let plan = case.plan();
        assert!(
            format!("{:?}", plan.reset).contains(reason),
            "{:?}",
            plan.reset
        );
        assert_reset(&plan);
    };
    reset(&|case| case.metric = None, "no report");
    reset(
        &|case| case.metric.as_mut().unwrap().status = None,
        "no report",
    );
    reset(&|case| case.status().update_time = None, "too old");
    reset(&|case| case.status().node_metric = None, "is empty");
    reset(
        &|case| {
            let old: Timestamp = "2026-01-01T00:44:59Z".parse().unwrap();
            case.status().update_time = Some(old.into());
        },
        "too old",
    );
    reset(&|case| case.strategy = None, "Disabled");
}

#[test]
fn missing_system_usage_counts_as_zero() {
    let mut case = case();
    let info = case.status().node_metric.as_mut().unwrap();
    info.system_usage = None;
    let plan = case.plan();
    assert_eq!(plan.reset, None);
    assert_eq!(plan.computed[BATCH_CPU].value(), 10);
    // Whatever nodes keep for themselves stays taken off.
    let status = case.node.status.as_mut().unwrap();
    let allocatable = status.allocatable.as_mut().unwrap();
    allocatable.get_mut("cpu").unwrap().0 = "8".to_owned();
    assert_eq!(case.plan().computed[BATCH_CPU].value(), 8);
}

#[test]
fn report_expires_after_degrade_time() {
    let mut case = case();
    case.status().update_time = Some("2026-01-01T00:45:00Z".parse::<Timestamp>().unwrap().into());
    let plan = case.plan();
    assert_eq!(plan.reset, None);
    assert_eq!(plan.recheck, Some(Duration::from_secs(1)));
}

/// Returns the annotation that a plan writes.
fn origin_of(plan: &Plan) -> Value {
    let meta = plan.meta.as_ref().unwrap();
    let text = &meta["metadata"]["annotations"][annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE];
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

#[test]
fn equal_origin_annotation_is_not_rewritten() {
    let key = annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE;
    let text = |cpu: &str, memory: &str| {
        let amounts = json!({BATCH_CPU: cpu, "foreign": "3", BATCH_MEMORY: memory});
        json!({ key: json!({ "Resources": amounts }).to_string() })
    };
    let mut case = case();
    case.node = node(text("9000", "9G"), published());
    assert_eq!(case.plan().meta, None);
    case.node = node(text("9001", "9G"), published());
    assert_eq!(origin_of(&case.plan())["resources"]["foreign"], "3");
}

#[test]
fn reset_empties_an_existing_origin_annotation() {
    let mut case = case();
    case.strategy = None;
    assert_eq!(case.plan().status, None);
    let text = format!("{{\"resources\":{{\"{BATCH_CPU}\":\"1\",\"yarn\":\"7\"}}}}");
    let origin = json!({annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE: text});
    case.node = node(origin, json!({BATCH_CPU: "1"}));
    let plan = case.plan();
    let none = json!({BATCH_CPU: null});
    assert_eq!(
        plan.status.as_ref().unwrap(),
        &json!({"status": {"capacity": none, "allocatable": none}})
    );
    let nothing = json!({BATCH_CPU: "0", BATCH_MEMORY: "0", "yarn": "7"});
    assert_eq!(origin_of(&plan), json!({"resources": nothing}));
}

#[test]
fn small_changes_wait_until_the_node_is_due() {
    let mut small_change = published();
    small_change[BATCH_CPU] = json!("9500");
    let mut case = case();
    case.node = node(json!({}), small_change);
    case.synced = Some("2026-01-01T00:58:00Z".parse().unwrap());
    let plan = case.plan();
    assert_eq!((plan.status, plan.meta, plan.in_sync), (None, None, false));
    assert_eq!(plan.recheck, Some(Duration::from_secs(300 - 120 + 1)));
    // The computed amounts wait, too, when third parties use all of them.
    let mut all = self::case();
    let allocations = json!({"allocations": [{"name": "yarn", "priority": "koord-batch",
        "resources": {BATCH_CPU: "90000", BATCH_MEMORY: "90G"}}]});
    let third = json!({annotations::NODE_THIRD_PARTY_ALLOCATIONS: allocations.to_string()});
    let mut nothing = published();
    nothing[BATCH_CPU] = json!("0");
    nothing[BATCH_MEMORY] = json!("0");
    all.node = node(third, nothing);
    all.synced = case.synced;
    let plan = all.plan();
    assert_eq!((plan.status, plan.meta), (None, None));
    assert_eq!(plan.recheck, Some(Duration::from_secs(300 - 120 + 1)));
    // Due: written although small.
    case.synced = Some("2026-01-01T00:54:59Z".parse().unwrap());
    let only = json!({BATCH_CPU: "9k"});
    let want = json!({"status": {"capacity": only, "allocatable": only}});
    assert_eq!(case.plan().status.unwrap(), want);
    // More than 10 %: written at once.
    let mut large_change = published();
    large_change[BATCH_CPU] = json!("10001");
    case.node = node(json!({}), large_change);
    case.synced = Some(NOW.parse().unwrap());
    assert_eq!(case.plan().status.unwrap(), want);
}

#[test]
fn third_parties_are_taken_off_but_not_off_the_origin() {
    let mut case = case();
    let allocations = json!({"allocations": [
        {"name": "yarn", "priority": "koord-batch",
         "resources": {BATCH_CPU: "4000", BATCH_MEMORY: "20G"}},
        {"name": "other", "priority": "koord-mid", "resources": {BATCH_CPU: "1000"}},
    ]});
    case.node = node(
        json!({annotations::NODE_THIRD_PARTY_ALLOCATIONS: allocations.to_string()}),
        json!({}),
    );
    let plan = case.plan();
    let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
    assert_eq!(
        (&allocatable[BATCH_CPU], &allocatable[BATCH_MEMORY]),
        (&json!("5k"), &json!("0"))
    );
    assert!(plan.meta.unwrap().to_string().contains("9k"));
    let negative = allocations.to_string().replace("4000", "-4000");
    case.node = node(
        json!({annotations::NODE_THIRD_PARTY_ALLOCATIONS: negative}),
        json!({}),
    );
    let plan = case.plan();
    let allocatable = &plan.status.as_ref().unwrap()["status"]["allocatable"];
    assert_eq!(allocatable[BATCH_CPU], "9k");
}

#[test]
fn disabled_plugin_changes_nothing() {
    let mut case = case();
    case.plugins = koord_app::flags::selection("*,-MidResource").unwrap();
    case.node = node(json!({}), json!({MID_CPU: "7"}));
    let plan = case.plan();
    let list = json!({BATCH_CPU: "9k", BATCH_MEMORY: "9G"});
    assert_eq!(
        plan.status.unwrap(),
        json!({"status": {"capacity": list, "allocatable": list}})
    );
    case.plugins = koord_app::flags::selection("-BatchResource,MidResource").unwrap();
    let plan = case.plan();
    assert_eq!(plan.meta, None);
    assert!(!plan.status.unwrap().to_string().contains("batch"));
}
