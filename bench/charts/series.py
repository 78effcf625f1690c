"""Which series there can be: names, types and labels of all metrics, and label values, read from the sources.

Most definitions are tables in the sources, which are parsed. LISTED has the others: for each file, how many constructors
it has, and the metrics that they make. `load` fails if a file has another number of constructors, lacks a name or a
list of labels, or is not listed, so a new metric has to be added here.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
# Labels that Prometheus adds to the series of a PodMonitor and of a ServiceMonitor.
POD_LABELS = {"job", "instance", "namespace", "pod", "container", "endpoint"}
SERVICE_LABELS = POD_LABELS | {"service", "node"}
# Values of the label job with the monitors of the chart.
JOBS = {
    "koordlet": "koordlet",
    **{name: f"koordinator-system/koord-{name}-metrics-podmonitor" for name in ("manager", "scheduler", "descheduler")},
}


@dataclass
class Metric:
    name: str
    kind: str
    labels: tuple
    # The components that have it.
    components: set
    values: dict = field(default_factory=dict)
    # Of Kubernetes, not of koord: `labels` are all that are used here, and no scrape is checked against them.
    foreign: bool = False

    def series_labels(self) -> frozenset:
        """Returns the labels of its series in Prometheus, without le."""
        targets = SERVICE_LABELS if self.components == {"koordlet"} or self.foreign else POD_LABELS
        return frozenset(self.labels) | targets


class SourceFault(Exception):
    """The sources are not as this file describes them."""


CRATES = {"plugins": "scheduler"}
SHARED = {"manager", "scheduler", "descheduler"}
# Files with constructors: their number, and the metrics as (name, kind, labels, literal of the name in the file).
RESULTS = ("controller", "result")
STEP = ("webhook_type", "object_type", "operation", "plugin_name", "status")
OUTCOME = ("status", "reason")
WEBHOOK = "koord_manager_webhook_"
LISTED = {
    "manager/src/metrics.rs": (5, [
        *[(f"slo_controller_{name}", COUNTER, OUTCOME, name) for name in (
            "nodemetric_reconcile_count", "nodemetric_spec_parse_count", "nodeslo_reconcile_count",
            "nodeslo_spec_parse_count", "node_resource_reconcile_count")],
        ("slo_controller_node_resource_run_plugin_status", COUNTER, ("plugin", "status", "reason"), None),
        ("koord_manager_node_clock_skew_seconds", GAUGE, ("node",), None),
        ("koordinator_manager_is_leader", GAUGE, (), None),
        ("koord_manager_webhook_certificate_expiry_timestamp_seconds", GAUGE, (), None),
    ]),
    "manager/src/dry_run.rs": (2, [
        ("koord_manager_dry_run_differences", GAUGE, ("resource",), None),
        ("koord_manager_dry_run_withheld_total", COUNTER, ("resource", "verb"), None),
    ]),
    "manager/src/metrics/report_age.rs": (1, [
        ("koord_manager_oldest_node_metric_timestamp_seconds", GAUGE, (), None),
    ]),
    "manager/src/metrics/computed.rs": (1, [
        ("slo_controller_node_extended_resource_allocatable_internal", GAUGE, ("node", "resource", "unit"), None),
    ]),
    "manager/src/webhook/metrics.rs": (3, [
        (f"{WEBHOOK}webhook_duration_milliseconds", HISTOGRAM, STEP, "webhook_duration_milliseconds"),
        (f"{WEBHOOK}binding_admission_decisions_total", COUNTER, ("decision",), "binding_admission_decisions_total"),
        (f"{WEBHOOK}quota_shared_weight", GAUGE, ("elasticquota_name", "resource_name"), "quota_shared_weight"),
    ]),
    "descheduler/src/daemon/mod.rs": (4, [
        ("descheduler_pods_evicted", COUNTER, ("result", "strategy", "namespace", "node"), None),
        ("koord_descheduler_cycle_seconds", HISTOGRAM, (), None),
        ("koord_descheduler_migration_jobs", GAUGE, ("phase",), None),
        ("koord_descheduler_limited_total", COUNTER, ("rule",), None),
    ]),
    "kube/src/queue/metrics.rs": (3, [
        *[(f"workqueue_{name}_total", COUNTER, ("name", "controller"), None) for name in ("adds", "retries")],
        ("workqueue_depth", GAUGE, ("name", "controller", "priority"), None),
        *[(f"workqueue_{name}_duration_seconds", HISTOGRAM, ("name", "controller"), None) for name in ("queue", "work")],
    ]),
    "kube/src/controller/metrics.rs": (3, [
        ("controller_runtime_reconcile_total", COUNTER, RESULTS, "reconcile_total"),
        ("controller_runtime_reconcile_errors_total", COUNTER, ("controller",), "reconcile_errors_total"),
        ("controller_runtime_reconcile_panics_total", COUNTER, ("controller",), "reconcile_panics_total"),
        ("controller_runtime_reconcile_time_seconds", HISTOGRAM, ("controller",), "reconcile_time_seconds"),
        ("controller_runtime_active_workers", GAUGE, ("controller",), "active_workers"),
        ("controller_runtime_max_concurrent_reconciles", GAUGE, ("controller",), "max_concurrent_reconciles"),
    ]),
    "kube/src/client/rest_metrics.rs": (2, [
        ("rest_client_requests_total", COUNTER, ("code", "method", "host"), None),
        ("rest_client_request_retries_total", COUNTER, ("code", "verb", "host"), None),
        *[(f"rest_client_{name}", HISTOGRAM, ("verb", "host"), None) for name in (
            "request_duration_seconds", "rate_limiter_duration_seconds", "request_size_bytes", "response_size_bytes")],
    ]),
    "kube/src/lease/metrics.rs": (1, [("leader_election_master_status", GAUGE, ("name",), None)]),
    "app/src/metrics/process.rs": (7, [
        (f"process_{name}", COUNTER if name == "cpu_seconds_total" else GAUGE, (), None) for name in (
            "cpu_seconds_total", "start_time_seconds", "resident_memory_bytes", "virtual_memory_bytes",
            "virtual_memory_max_bytes", "open_fds", "max_fds")
    ]),
    "runtime-proxy/src/metrics.rs": (4, [
        ("koord_runtime_proxy_calls_total", COUNTER, ("method", "result"), None),
        ("koord_runtime_proxy_hook_duration_seconds", HISTOGRAM, ("hook", "result"), None),
        ("koord_runtime_proxy_hook_failures_total", COUNTER, ("hook", "policy"), None),
        ("koord_runtime_proxy_hook_servers", GAUGE, (), None),
    ]),
    # /metrics/slis only, which no monitor of the chart reads.
    "app/src/admin/slis.rs": (2, []),
    "koordlet/src/conditions.rs": (1, [("koordlet_condition", GAUGE, ("node", "condition"), None)]),
    "koordlet/src/states/malformed.rs": (1, [
        ("koordlet_malformed_input", GAUGE, ("node", "object", "field", "value"), None),
    ]),
    "koordlet/src/exporter/run.rs": (1, [
        (f"koord_topology_exporter_{name}_total", COUNTER, ("result",), None) for name in ("scans", "writes")
    ]),
    # Makers of the metrics that the two tables below have.
    "koordlet/src/metrics/table.rs": (3, []),
    "scheduler/src/metrics/make.rs": (6, []),
}
# The calls by which a component registers metrics that others have, too.
REGISTERING = {
    "process_": r"\bregister_process\(",
    "rest_client_": r"\bRestMetrics::register\(",
    "leader_election_": r"\bLeaderMetrics::register\(",
    "controller_runtime_": r"\bControllerMetrics\b",
    "workqueue_": r"\bControllerMetrics\b",
}
CONSTRUCTOR = re.compile(r"\b(?:Int)?(?:Counter|Gauge|Histogram)(?:Vec)?::(?:new|with_opts)\(")

# Metrics of Kubernetes: API servers, and the kubelet's cAdvisor.
CONTAINER = ("node", "namespace", "pod", "container", "image", "id", "name")
FOREIGN = [
    Metric("up", GAUGE, (), set(JOBS), foreign=True),
    Metric("apiserver_admission_webhook_fail_open_count", COUNTER, ("name", "type"), set(), foreign=True),
    Metric("apiserver_admission_webhook_rejection_count", COUNTER,
           ("name", "type", "operation", "error_type", "rejection_code"), set(),
           {"error_type": {"calling_webhook_error", "apiserver_internal_error", "no_error"}}, foreign=True),
    Metric("apiserver_admission_webhook_admission_duration_seconds", HISTOGRAM,
           ("name", "type", "operation", "rejected"), set(), {"type": {"admit", "validating"}}, foreign=True),
    *[Metric(f"container_cpu_cfs_{name}_total", COUNTER, CONTAINER, set(), foreign=True)
      for name in ("periods", "throttled_periods")],
    Metric("container_memory_working_set_bytes", GAUGE, CONTAINER, set(), foreign=True),
    *[Metric(name, GAUGE, ("node", "machine_id"), set(), foreign=True)
      for name in ("machine_cpu_cores", "machine_memory_bytes")],
]


class Sources:
    """The programs' sources, without tests."""

    def __init__(self, root: Path):
        self.root, self.files = root / "crates", {}
        for path in sorted(self.root.glob("*/src/**/*.rs")):
            if not {"tests", "testing"} & set(path.parts) and path.name not in ("tests.rs", "testing.rs"):
                text = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
                self.files[str(path.relative_to(self.root))] = text

    def text(self, file: str) -> str:
        """Returns a file below crates/."""
        if file not in self.files:
            raise SourceFault(f"there is no crates/{file}")
        return self.files[file]

    def literals(self, file: str, start: str, end: str = "\n}") -> set:
        """Returns the strings between a pattern and the next occurrence of `end`."""
        match = re.search(start, self.text(file))
        if not match:
            raise SourceFault(f"crates/{file} has no {start!r}")
        rest = self.text(file)[match.end():]
        found = set(re.findall(r'"([^"]*)"', rest[: rest.index(end)]))
        if not found:
            raise SourceFault(f"crates/{file}: no string after {start!r}")
        return found

    def words(self, file: str, *words: str) -> set:
        """Returns `words`, all of which the file must have as strings."""
        missing = [word for word in words if f'"{word}"' not in self.text(file)]
        if missing:
            raise SourceFault(f"crates/{file} does not have {missing}")
        return set(words)


def strings(text: str) -> tuple:
    """Returns the strings of a text, in their order."""
    return tuple(re.findall(r'"([^"]*)"', text))


def koordlet_table(sources: Sources) -> list:
    """Returns the metrics of koordlet's table."""
    table = sources.text("koordlet/src/metrics/table.rs")
    registered = sources.text("koordlet/src/metrics/mod.rs")
    rows = re.findall(r'\n    ([A-Z_]+) (?:Internal|External) "(\w+)"\s+\[([^\]]*)\]', table)
    if len(rows) != len(re.findall(r"\n    [A-Z_]+ (?:Internal|External) ", table)) or len(rows) < 30:
        raise SourceFault("koordlet/src/metrics/table.rs is not understood")
    found = []
    for identifier, name, labels in rows:
        kind = GAUGE
        if re.search(rf"\bhistogram\(t::{identifier}\b", registered):
            kind = HISTOGRAM
        elif re.search(rf"\b(?:expiring_)?counter\(t::{identifier}\b", registered):
            kind = COUNTER
        elif not re.search(rf"\bt::{identifier}\b", registered):
            raise SourceFault(f"koordlet registers no {name}")
        found.append(Metric(f"koordlet_{name}", kind, strings(labels), {"koordlet"}))
    return found


def scheduler_tables(sources: Sources) -> list:
    """Returns the metrics of the scheduler and of its plugins."""
    found = []
    for file, text in sources.files.items():
        if file == "scheduler/src/metrics.rs" or file.startswith("scheduler/src/metrics/"):
            found += made_metrics(file, text)
    for file, text in sources.files.items():
        family = r'static \w+: Family = Family \{\s*name: "(\w+)",\s*help: "[^"]*",\s*labels: &\[([^\]]*)\],\s*kind: MetricKind::(\w+)'
        rows = re.findall(family, text)
        if len(rows) != len(re.findall(r": Family = Family \{", text)) - text.count("const $id: Family"):
            raise SourceFault(f"crates/{file}: a Family is not understood")
        found += [Metric(name, kind.lower(), strings(labels), {"scheduler"}) for name, labels, kind in rows]
    return found


def made_metrics(file: str, text: str) -> list:
    """Returns the metrics that a file of the scheduler makes by its factory."""
    call = r'\b(?:make|lasting)\s*\.\s*(counter|gauge|histogram)(s?)\(\s*"(\w+)",\s*(?:Level::)?\w+,\s*"(?:[^"\\]|\\.|\\\n)*"'
    found = []
    for match in re.finditer(call, text):
        kind, many, name = match[1], match[2], match[3]
        labels = re.match(r"\s*,\s*&\[([^\]]*)\]", text[match.end():])
        if bool(many) != bool(labels):
            raise SourceFault(f"crates/{file}: labels of {name} are not understood")
        found.append(Metric(name, kind, strings(labels[1]) if labels else (), {"scheduler"}))
    if len(found) != len(re.findall(r"\b(?:make|lasting)\s*\.\s*(?:counter|gauge|histogram)s?\(", text)):
        raise SourceFault(f"crates/{file} is not understood")
    return found


def listed(sources: Sources) -> list:
    """Returns the metrics of LISTED, after a check of the files."""
    found = []
    for file, text in sources.files.items():
        count = len(CONSTRUCTOR.findall(text))
        if file.startswith("apiserver/"):
            continue
        if count != LISTED.get(file, (0,))[0]:
            raise SourceFault(f"crates/{file} has {count} constructors of metrics, LISTED in bench/charts/series.py "
                              f"has {LISTED.get(file, (0,))[0]}")
    for file, (_, rows) in LISTED.items():
        text = sources.text(file)
        arrays = {strings(array) for array in re.findall(r"\[([^\[\]]*)\]", text)} | {()}
        for name, kind, labels, literal in rows:
            if f'"{literal or name}"' not in text:
                raise SourceFault(f"crates/{file} has no metric {name}")
            if labels not in arrays:
                raise SourceFault(f"crates/{file} has no list of labels {labels}, which {name} needs")
            crate = file.split("/")[0]
            components = {CRATES.get(crate, crate)}
            for prefix, call in REGISTERING.items():
                if name.startswith(prefix):
                    components = {c for c in JOBS if any(
                        re.search(call, other) for path, other in sources.files.items() if path.startswith(f"{c}/"))}
            found.append(Metric(name, kind, labels, components))
    return found


def fixed_values(sources: Sources, metrics: dict) -> None:
    """Sets the values of labels of which the sources have a list."""
    agent = "koordlet/src/metrics/mod.rs"
    measure, scheduler = "scheduler/src/engine/measure.rs", "scheduler/src/metrics.rs"
    outcomes = sources.literals(agent, r"\nfn status\(")
    cpu_memory, units = sources.words(agent, "cpu", "memory"), sources.words(agent, "core", "byte")
    tiers = {
        next(iter(sources.literals("api/src/resources.rs", rf"pub const {name}: &str", ";")))
        for name in ("BATCH_CPU", "BATCH_MEMORY", "MID_CPU", "MID_MEMORY")
    }
    tier_units = sources.words(agent, "byte", "integer")
    psi = {
        "psi_resource_type": sources.words("koordlet/src/collect/psi.rs", "cpu", "mem", "io"),
        "psi_precision": sources.literals(agent, r"let precisions =", ";"),
        "psi_degree": sources.words(agent, "some", "full"),
        "cpu_full_supported": sources.literals(agent, r"let full_supported =", ";"),
    }
    reason = {"reason": sources.literals("koordlet/src/evictor.rs", r"\npub const REASON: &str", ";")}
    predicted = {
        "predictor": sources.words(agent, "podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"),
        "resource": cpu_memory, "unit": units,
    }
    points = sources.literals(measure, r"pub fn name\(self\)", "\n    }")
    plugin_only = sources.words(measure, "BeforePreFilter", "AfterPreFilter", "BeforeFilter")
    phases = sources.literals("plugins/src/reservation/metrics.rs", r"\nconst PHASES[^=]*=", ";")
    annotations = sources.text("api/src/annotations.rs")
    fields = sources.literals("plugins/src/elastic_quota/metrics.rs", r"let spec_fields =", ";")
    status = sources.text("plugins/src/elastic_quota/objects.rs")
    for name in re.findall(r"annotations::(\w+)", re.search(r"STATUS_ANNOTATIONS[^=]*= \[([^\]]*)\]", status)[1]):
        fields.add(re.search(rf'const {name}: &str =\s*"[^"/]*/([^"]*)"', annotations)[1])
    fields |= sources.words("plugins/src/elastic_quota/metrics.rs", "unschedulable-resource")
    succeeded = sources.literals("manager/src/metrics.rs", r"\nfn status\(")
    attempt = {"result": sources.words(scheduler, "scheduled", "error", "unschedulable")}
    call = {
        "call_type": sources.literals(scheduler, r"\n    fn name\(self\)", "\n    }"),
        "result": sources.words(scheduler, "success", "error"),
    }
    of_queue = sources.literals(scheduler, r"for \(queue, n\) in \[", "]")
    table = {
        "koordlet_be_suppress_cpu_cores": {"type": sources.literals(agent, r"let policy = match policy", "};")},
        "koordlet_pod_eviction": reason,
        "koordlet_pod_eviction_detail": reason,
        "koordlet_pressure_guard_events_total": {
            "kind": sources.literals("koordlet/src/qos/guard/targets.rs", r"fn kind\("),
            "lever": sources.literals("model/src/guard/signal.rs", r"impl fmt::Display for Lever"),
        },
        "koordlet_condition": {"condition": sources.literals("koordlet/src/conditions.rs", r"pub fn name\(", "\n    }")},
        "koordlet_resource_update_duration_milliseconds": {
            "type": sources.literals("koordlet/src/executor/mod.rs", r"let kind = match kind \{", "};"),
            "status": sources.words(agent, "success", "failed"),
        },
        "koordlet_failures_total": {"part": sources.literals(agent, r"let part = match part", "};")},
        "koordlet_node_predicted_resource_reclaimable": predicted,
        "koordlet_node_predicted_resource_peak": predicted,
        "koordlet_node_priority_resource_reclaimable": {
            "priority": sources.words(agent, "koord-prod"), "resource": cpu_memory, "unit": units,
        },
        "koordlet_node_resource_priority_reclaimable_status": {"priority": sources.words(agent, "koord-prod")},
        **{name: {"resource": tiers, "unit": tier_units} for name in (
            "koordlet_node_resource_allocatable", "koordlet_container_resource_requests",
            "koordlet_container_resource_limits")},
        "koordlet_container_psi": psi,
        "koordlet_pod_psi": psi,
        "koordlet_container_cpi": {"cpi_field": sources.words(agent, "cycles", "instructions")},
        **{name: {"resource": cpu_memory, "unit": units} for name in metrics if name.startswith("koordlet_node_metric_")},
        **{name: {"status": outcomes} for name in metrics if re.match(
            r"koordlet_(collect_node_|core_sched_cookie_manage|runtime_)", name)},
        "koordlet_host_application_resource_usage": {"resource": cpu_memory},
        "scheduler_schedule_attempts_total": attempt,
        "koord_scheduler_shadow_results_total": {
            "result": sources.literals("scheduler/src/debug/shadow.rs", r"pub fn name\(self\)", "\n    }")},
        "koord_scheduler_shadow_withheld_total": {
            "kind": sources.literals("scheduler/src/runtime/shadow.rs", r"let kind = match output \{", "};")
            | sources.words("scheduler/src/runtime/shadow.rs", "status")},
        "koordlet_dry_run_withheld_total": {
            "type": sources.literals("koordlet/src/audit/mod.rs", r"fn name\(self\)", "\n    }")},
        "scheduler_scheduling_attempt_duration_seconds": attempt,
        "scheduler_pending_pods": {"queue": of_queue},
        "scheduler_queue_incoming_pods_total": {"queue": of_queue},
        "scheduler_cache_size": {"type": sources.literals(scheduler, r"for \(kind, n\) in \[", "]")},
        "scheduler_goroutines": {"operation": sources.words(scheduler, "binding")},
        "scheduler_inflight_events": {"event": sources.words(scheduler, "PodPopped")},
        "scheduler_plugin_execution_duration_seconds": {"extension_point": points},
        **{name: {"extension_point": points - plugin_only} for name in (
            "scheduler_framework_extension_point_duration_seconds", "scheduler_plugin_evaluation_total")},
        "scheduler_async_api_call_execution_total": call,
        "scheduler_async_api_call_execution_duration_seconds": call,
        "scheduler_pending_async_api_calls": {"call_type": call["call_type"]},
        "scheduler_volume_scheduling_stage_error_total": {
            "operation": sources.literals("plugins/src/volumes/metrics.rs", r"for \(operation, failures\) in \[", "]")},
        "scheduler_elastic_quota_status": {"field": fields, "is_parent": {"true", "false"}},
        "scheduler_elastic_quota_spec": {
            "field": sources.literals("plugins/src/elastic_quota/metrics.rs", r"if matches!\(field,", ")"),
            "is_parent": {"true", "false"},
        },
        "scheduler_reservation_status_phase": {"phase": phases},
        "scheduler_reservation_resource": {
            "type": sources.words("plugins/src/reservation/metrics.rs", "allocatable", "allocated", "utilization")},
        "koord_runtime_proxy_calls_total": {
            "result": sources.literals("runtime-proxy/src/metrics.rs", r"fn name\(self\)", "\n    }")},
        "koord_runtime_proxy_hook_duration_seconds": {
            "hook": sources.literals("runtime-proxy/src/hooks.rs", r"fn name\(self\)", "\n    }"),
            "result": sources.literals("runtime-proxy/src/metrics.rs", r"let result = if succeeded", ";"),
        },
        "koord_runtime_proxy_hook_failures_total": {
            "hook": sources.literals("runtime-proxy/src/hooks.rs", r"fn name\(self\)", "\n    }"),
            "policy": sources.words("api/src/hookserver.rs", "Ignore", "Fail"),
        },
        "descheduler_pods_evicted": {
            "result": sources.literals("descheduler/src/daemon/mod.rs", r"let result = if outcome.is_ok\(\)", ";")
            | sources.literals("descheduler/src/daemon/migration/actions.rs", r"let result = if outcome.is_ok\(\)", ";")
            | {text for text in sources.literals("descheduler/src/daemon/mod.rs", r"\nfn limit_result\(")
               if text.startswith("maximum ")}},
        "koord_descheduler_migration_jobs": {
            "phase": sources.literals("descheduler/src/daemon/migration/arbiter.rs", r"fn count_phases", ".map(")},
        "controller_runtime_reconcile_total": {
            "result": sources.literals("kube/src/controller/metrics.rs", r"for result in \[", "]")},
        f"{WEBHOOK}webhook_duration_milliseconds": {
            "status": sources.literals("manager/src/webhook/metrics.rs", r"let status = if", ";"),
            "operation": sources.literals("kube/src/webhook/mod.rs", r"pub fn as_str\(self\)", "\n    }"),
        },
        **{name: {"status": succeeded} for name in metrics if name.startswith("slo_controller_") and "status" in metrics[name].labels},
        "slo_controller_node_extended_resource_allocatable_internal": {
            "resource": tiers, "unit": sources.words("manager/src/metrics/computed.rs", "integer", "byte")},
    }
    for name, labels in table.items():
        if name not in metrics:
            raise SourceFault(f"fixed_values names {name}, which no source has")
        for label, values in labels.items():
            if label not in metrics[name].labels:
                raise SourceFault(f"fixed_values names label {label}, which {name} does not have")
            metrics[name].values[label] = values


def load(root: Path) -> dict:
    """Returns all metrics by name."""
    sources = Sources(root)
    metrics = {}
    for metric in [*koordlet_table(sources), *scheduler_tables(sources), *listed(sources), *FOREIGN]:
        if metric.name in metrics:
            raise SourceFault(f"two sources have {metric.name}")
        metrics[metric.name] = metric
    fixed_values(sources, metrics)
    for metric in metrics.values():
        if metric.components:
            # No monitor of the chart reads the runtime proxy.
            metric.values["job"] = {JOBS[component] for component in metric.components if component in JOBS}
    return metrics
