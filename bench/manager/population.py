"""The objects that both managers are run on. The same text each time; times are relative to the start."""
import json
import random
from datetime import datetime, timedelta, timezone

GI = 1 << 30
STRATEGY = "node.koordinator.sh/colocation-strategy"
RESERVATION = "node.koordinator.sh/reservation"
THIRD = "node.koordinator.sh/thirdPartyAllocations"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"
BANDWIDTH = "node.koordinator.sh/network-bandwidth"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"
NORMALIZE = "node.koordinator.sh/cpu-normalization-enabled"
LABEL_RATIOS = ("cpu-reclaim-ratio", "memory-reclaim-ratio", "mid-static-cpu-reserved-ratio",
                "mid-static-memory-reserved-ratio")


def text(value):
    return value if isinstance(value, str) else json.dumps(value)


def ago(minutes):
    return (datetime.now(timezone.utc) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def used(cpu, memory):
    return {"resources": {"cpu": cpu, "memory": memory}}


class World:
    """The objects to create, by kind."""

    def __init__(self):
        self.nodes, self.metrics, self.pods, self.others = {}, {}, [], []

    def node(self, name, cpu="32", memory="64Gi", labels=None, annotations=None, allocatable=None, more=None,
             ready=True, unschedulable=False, metric="plain", pods="mixed"):
        """A node with a NodeMetric (`None`: without; a dict: that status) and pods (`mixed`, a list, or none)."""
        capacity = {"cpu": cpu, "memory": memory, "pods": "250", "ephemeral-storage": "100Gi", **(more or {})}
        capacity = {key: value for key, value in capacity.items() if value is not None}
        left = {**capacity, **(allocatable or {})}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        if annotations is not None:
            meta["annotations"] = {key: text(value) for key, value in annotations.items()}
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self.nodes[name] = {"kind": "Node", "metadata": meta,
                            "spec": {"unschedulable": True} if unschedulable else {},
                            "status": {"capacity": capacity, "allocatable": left, "conditions": [condition]}}
        if pods == "mixed":
            pods = mixed()
        listed = []
        for at, pod in enumerate(pods or []):
            pod = json.loads(json.dumps(pod))
            usage = pod.pop("usage", None)
            pod["metadata"] = {"name": f"{name}-{at}", "namespace": "default", **pod.get("metadata", {})}
            pod["spec"] = {"nodeName": name, "schedulerName": "none", "automountServiceAccountToken": False,
                           **pod["spec"]}
            self.pods.append({"kind": "Pod", **pod})
            if usage is not None:
                listed.append({"namespace": "default", "name": pod["metadata"]["name"], "podUsage": used(*usage),
                               **({"priority": pod["reported"]} if "reported" in pod else {})})
            pod.pop("reported", None)
        if metric is None:
            return
        if metric == "plain":
            metric = {}
        status = {"nodeMetric": {"nodeUsage": used("12", "24Gi"), "systemUsage": used("1500m", "3Gi")},
                  "prodReclaimableMetric": {"resource": used("3", "5Gi")}}
        status.update(metric)
        status["podsMetric"] = listed + status.get("podsMetric", [])
        age = status.pop("age", 0)
        self.metrics[name] = ({key: value for key, value in status.items() if value is not None}, age)

    def add(self, kind, name, spec=None, labels=None, annotations=None, namespace=None, **rest):
        meta = {"name": name}
        if namespace:
            meta["namespace"] = namespace
        if labels:
            meta["labels"] = labels
        if annotations:
            meta["annotations"] = {key: text(value) for key, value in annotations.items()}
        thing = {"kind": kind, "metadata": meta, **rest}
        if spec is not None:
            thing["spec"] = spec
        self.others.append(thing)

    def topology(self, name, zones, annotations=None, **more):
        """Zones are (name, {resource: amount})."""
        listed = [{"name": zone, "type": "Node",
                   "resources": [{"name": key, "capacity": value, "allocatable": value, "available": value}
                                 for key, value in resources.items()]} for zone, resources in zones]
        self.add("NodeResourceTopology", name, annotations=annotations, topologyPolicies=["None"], zones=listed, **more)


def pod(cpu=None, memory=None, qos=None, priority=None, phase="Running", usage=None, annotations=None, labels=None,
        reported=None, containers=None, **spec):
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    found = {"spec": {"containers": containers or [container(requests)], **spec}, "status": {"phase": phase},
             "metadata": {}}
    labels = dict(labels or {})
    if qos:
        labels["koordinator.sh/qosClass"] = qos
    if labels:
        found["metadata"]["labels"] = labels
    if annotations:
        found["metadata"]["annotations"] = {key: text(value) for key, value in annotations.items()}
    if priority is not None:
        found["spec"]["priority"] = priority
    if usage:
        found["usage"] = usage
    if reported:
        found["reported"] = reported
    return found


def container(requests=None, limits=None, name="c", **more):
    resources = {}
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    return {"name": name, "image": "none", "resources": resources, **more}


def mixed():
    """A few pods that leave resources to reclaim."""
    return [pod("4", "8Gi", qos="LS", priority=9500, usage=("2200m", "5Gi"), reported="koord-prod"),
            pod("2", "4Gi", qos="LSR", priority=9000, usage=("1", "3Gi"), reported="koord-prod"),
            pod("1", "2Gi", qos="BE", priority=5500, usage=("3", "2Gi"), reported="koord-batch"),
            pod("500m", "512Mi")]


def of_nodes(world):
    """Sizes, reservations, ratios, annotations: valid and invalid."""
    for cpu, memory in (("2", "4Gi"), ("3920m", "7900Mi"), ("96", "395123456Ki"), ("128", "1Ti"), ("0", "0"),
                        (None, "16Gi"), ("16", None), ("8", "17179869184"), ("1", "1G")):
        world.node(f"size-{(cpu or 'none').lower()}-{(memory or 'none').lower()}", cpu, memory)
    world.node("kube-reserved", allocatable={"cpu": "28500m", "memory": "60Gi"})
    world.node("kube-reserved-more-than-system", allocatable={"cpu": "20", "memory": "30Gi"})
    world.node("allocatable-above-capacity", allocatable={"cpu": "40", "memory": "80Gi"})
    world.node("no-annotations-empty", annotations={})
    world.node("cordoned", unschedulable=True, labels={"pool": "profile"})
    world.node("not-ready", ready=False, labels={"pool": "profile"})
    world.node("in-profile", labels={"pool": "profile"}, more={"nvidia.com/gpu": "4"})
    for at, reservation in enumerate((
            {"resources": {"cpu": "4", "memory": "8Gi"}}, {"resources": {"cpu": "500m"}},
            {"resources": {"cpu": "4"}, "reservedCPUs": "0-9"}, {"reservedCPUs": "0,2,4,6-9"},
            {"reservedCPUs": "0-3", "applyPolicy": "ReservedCPUsOnly"},
            {"reservedCPUs": "0-1,1,1-2"}, {"resources": {"cpu": "100", "memory": "1Ti"}},
            {"resources": {"memory": "40Gi"}, "applyPolicy": "Default"}, {"Resources": {"cpu": "6", "Memory": "6Gi"}},
            {}, {"resources": {}}, {"resources": {"cpu": 4, "memory": 8589934592}})):
        world.node(f"reservation-{at}", annotations={RESERVATION: reservation})
    for at, reservation in enumerate((
            "{", "", "[]", "null", '"text"', {"resources": "4"}, {"resources": {"cpu": "four"}},
            {"resources": {"cpu": "-4"}}, {"reservedCPUs": "a-b"}, {"reservedCPUs": "0 - 3"},
            {"reservedCPUs": " 0-3 "}, {"reservedCPUs": "0-3,"}, {"reservedCPUs": "3-1"}, {"reservedCPUs": "0-3, 5"},
            {"reservedCPUs": "-1"}, {"reservedCPUs": "1--2"}, {"reservedCPUs": 4},
            {"resources": {"cpu": "2"}, "reservedCPUs": "x"}, {"resources": {"cpu": "2"}, "applyPolicy": "Never"})):
        world.node(f"reservation-bad-{at}", annotations={RESERVATION: reservation})
    for at, ratio in enumerate(("0.29", "0.57", "0.8", "1", "1.5", "0", "-1", "NaN", "Inf", "abc", "", "1e-1", ".5",
                                "0x1p-2", "1_0", "0.999999")):
        world.node(f"ratio-{at}", labels={f"node.koordinator.sh/{key}": ratio for key in LABEL_RATIOS}
                   if valid_label(ratio) else {})
    for at, strategy in enumerate((
            {"cpuReclaimThresholdPercent": 40, "memoryReclaimThresholdPercent": 50},
            {"enable": False}, {"enable": True}, {"CPUReclaimThresholdPercent": 45},
            {"cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "maxUsageRequest"},
            {"memoryCalculatePolicy": "request", "batchCPUThresholdPercent": 10, "batchMemoryThresholdPercent": 5},
            {"cpuCalculatePolicy": "request"}, {"degradeTimeMinutes": 600},
            {"midReclaimMode": "static", "midStaticCPUReservedPercent": 20, "midStaticMemoryReservedPercent": 30},
            {"midCPUThresholdPercent": 5, "midMemoryThresholdPercent": 5, "midUnallocatedPercent": 50},
            {"metricAggregateDurationSeconds": 60, "metricReportIntervalSeconds": 20,
             "metricAggregatePolicy": {"durations": ["1m", "90s"]}, "metricMemoryCollectPolicy": "usageWithPageCache"},
            {"cpuReclaimThresholdPercent": 110}, {"cpuReclaimThresholdPercent": 300},
            {"extensions": {"x": 1}}, {"unknownField": "x"}, {"resourceDiffThreshold": 0.5})):
        world.node(f"strategy-{at}", annotations={STRATEGY: strategy}, metric={"age": 30 if at == 7 else 0})
    for at, strategy in enumerate((
            "{", "", "[]", "null", "{}", {"cpuReclaimThresholdPercent": -1}, {"cpuReclaimThresholdPercent": "50"},
            {"cpuReclaimThresholdPercent": 50.0}, {"cpuReclaimThresholdPercent": 50.5}, {"degradeTimeMinutes": 0},
            {"cpuCalculatePolicy": "guess"}, {"memoryCalculatePolicy": 5}, {"midReclaimMode": "other"},
            {"midCPUThresholdPercent": 101}, {"updateTimeThresholdSeconds": 0}, {"metricMemoryCollectPolicy": ""},
            {"metricMemoryCollectPolicy": "nonsense"}, {"resourceDiffThreshold": 0},
            '{"cpuReclaimThresholdPercent":30,"cpuReclaimThresholdPercent":20}')):
        world.node(f"strategy-bad-{at}", annotations={STRATEGY: strategy})
    world.node("strategy-and-ratio", annotations={STRATEGY: {"cpuReclaimThresholdPercent": 40}},
               labels={"node.koordinator.sh/cpu-reclaim-ratio": "0.7"})
    for at, bandwidth in enumerate(("10G", "1500M", "0", "bad", "", "-1", "1e10", "10Gbps")):
        world.node(f"bandwidth-{at}", annotations={BANDWIDTH: bandwidth}, labels={"slo": "system"} if at % 2 else {})
    for pool in ("a", "b", "c"):
        for tier in ("gold", "tin"):
            world.node(f"pool-{pool}-{tier}", labels={"pool": pool, "tier": tier, f"only-{pool}": ""})
    for leftover in ("fresh", "stale"):
        old = {"kubernetes.io/batch-cpu": "9000", "kubernetes.io/batch-memory": "9G", "kubernetes.io/mid-cpu": "77",
               "kubernetes.io/mid-memory": "77Mi"}
        world.node(f"leftovers-{leftover}", more=old, annotations={RATIO: "1.20", AMPLIFICATION: '{"cpu":1.20}'},
                   metric={"age": 0 if leftover == "fresh" else 60})
    world.node("leftovers-off", more={"kubernetes.io/batch-cpu": "9000", "koordinator.sh/batch-cpu": "5"},
               annotations={STRATEGY: {"enable": False}, AMPLIFICATION: '{"cpu":1.20}', RATIO: "1.20"})


def valid_label(value):
    return all(c.isalnum() or c in "-_." for c in value) and (not value or value[0].isalnum() and value[-1].isalnum())


def of_metrics(world):
    """Reports of every shape."""
    world.node("metric-none", metric=None)
    world.node("metric-only-spec", metric={"nodeMetric": None, "prodReclaimableMetric": None, "age": None})
    shapes = {
        "no-node-metric": {"nodeMetric": None},
        "no-system-usage": {"nodeMetric": {"nodeUsage": used("12", "24Gi")}},
        "no-node-usage": {"nodeMetric": {"systemUsage": used("1500m", "3Gi")}},
        "node-usage-cpu-only": {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "3"}}, "systemUsage": used("1", "1Gi")}},
        "system-usage-memory-only": {"nodeMetric": {"nodeUsage": used("12", "24Gi"),
                                                    "systemUsage": {"resources": {"memory": "1Gi"}}}},
        "stale": {"age": 20}, "nearly-stale": {"age": 10}, "future": {"age": -30}, "ancient": {"age": 60 * 24 * 400},
        "above-capacity": {"nodeMetric": {"nodeUsage": used("99", "99Gi"), "systemUsage": used("40", "80Gi")}},
        "odd-amounts": {"nodeMetric": {"nodeUsage": used("12345678901n", "25769803776.5"),
                                       "systemUsage": used("1.0001", "1e9")}},
        "milli-memory": {"nodeMetric": {"nodeUsage": used("1u", "1500m"), "systemUsage": used("0.5m", "3221225472001m")}},
        "zero": {"nodeMetric": {"nodeUsage": used("0", "0"), "systemUsage": used("0", "0")}},
        "negative": {"nodeMetric": {"nodeUsage": used("-1", "-1Gi"), "systemUsage": used("-2", "-2Gi")}},
        "no-reclaimable": {"prodReclaimableMetric": None},
        "empty-reclaimable": {"prodReclaimableMetric": {"resource": {}}},
        "reclaimable-above-unused": {"prodReclaimableMetric": {"resource": used("31", "63Gi")}},
        "reclaimable-negative": {"prodReclaimableMetric": {"resource": used("-3", "-1Gi")}},
        "reclaimable-cpu-only": {"prodReclaimableMetric": {"resource": {"resources": {"cpu": "2"}}}},
        "aggregated": {"nodeMetric": {"nodeUsage": used("12", "24Gi"), "systemUsage": used("1", "2Gi"),
                                      "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": used("20", "30Gi")}}]}},
    }
    for name, shape in shapes.items():
        world.node(f"metric-{name}", metric=shape)
    gone = [{"namespace": "default", "name": f"gone-{priority or 'none'}", "podUsage": used("1", "1Gi"),
             **({"priority": priority} if priority else {})}
            for priority in ("koord-prod", "koord-mid", "koord-batch", "koord-free", "", "nonsense")]
    world.node("dangling-all", metric={"podsMetric": gone})
    for one in gone:
        world.node(f"dangling-{one.get('priority') or 'none'}", metric={"podsMetric": [one]})
    world.node("dangling-without-usage", metric={"podsMetric": [
        {"namespace": "default", "name": "gone", "podUsage": {}, "priority": "koord-prod"}]})
    world.node("reported-twice", metric={"podsMetric": [gone[0], gone[0]]})
    for priority in ("koord-prod", "koord-mid", "koord-batch", "koord-free", "", "nonsense"):
        app = {"name": "app", "usage": used("2", "3Gi"), **({"priority": priority} if priority else {})}
        world.node(f"host-app-{priority or 'none'}", metric={"hostApplicationMetric": [app]})
    world.node("host-apps", metric={"hostApplicationMetric": [
        {"name": "a", "usage": used("2", "3Gi"), "priority": "koord-prod", "qos": "LS"},
        {"name": "b", "usage": used("1", "1Gi"), "priority": "koord-batch", "qos": "BE"},
        {"name": "c", "usage": {}, "priority": "koord-prod"}]})


def of_pods(world):
    """All qualities of service, priorities, phases, with and without a measurement."""
    for qos in ("LSE", "LSR", "LS", "BE", "SYSTEM", "", "odd"):
        for priority in (9500, 7500, 5500, 3500, 8500, 2000001000, None):
            pods = [pod("3", "4Gi", qos=qos, priority=priority, usage=("1700m", "5Gi")),
                    pod("2", "1Gi", qos=qos, priority=priority)]
            world.node(f"pods-{(qos or 'none').lower()}-{priority or 'none'}", pods=pods)
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
        world.node(f"phase-{phase.lower()}", pods=[
            pod("3", "4Gi", qos="LS", priority=9500, phase=phase, usage=("2", "5Gi"), reported="koord-prod"),
            pod("3", "4Gi", qos="BE", priority=5500, phase=phase, usage=("2", "5Gi"), reported="koord-batch")])
    forever = {"restartPolicy": "Always"}
    world.node("pod-init", pods=[pod(
        containers=[container({"cpu": "1", "memory": "1Gi"}), container({"cpu": "500m"}, name="d")],
        initContainers=[container({"cpu": "1500m", "memory": "5Gi"}, name="i"),
                        container({"cpu": "700m", "memory": "1Gi"}, name="s", **forever),
                        container({"cpu": "2500m", "memory": "1Mi"}, name="j")], priority=9500)])
    world.node("pod-limits-only", pods=[pod(containers=[container(limits={"cpu": "2", "memory": "2Gi"})])])
    world.node("pod-best-effort", pods=[pod(usage=("1", "1Gi"))])
    world.node("pod-level", pods=[pod("1", "1Gi", priority=9500, resources={"requests": {"cpu": "3", "memory": "3Gi"}})])
    world.node("pod-class-label", pods=[
        pod("2", "2Gi", priority=5500, labels={"koordinator.sh/priority-class": "koord-prod"}, usage=("1", "1Gi")),
        pod("2", "2Gi", priority=9500, labels={"koordinator.sh/priority-class": "koord-batch"}, usage=("1", "1Gi")),
        pod("2", "2Gi", priority=9500, labels={"koordinator.sh/priority-class": "odd"}, usage=("1", "1Gi"))])
    world.node("pod-guaranteed", pods=[pod(containers=[container({"cpu": "2", "memory": "2Gi"}, {"cpu": "2", "memory": "2Gi"})],
                                           usage=("1", "1Gi"))])
    world.node("pod-batch-resources", pods=[pod(priority=5500, qos="BE", containers=[container(
        {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"},
        {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"})], usage=("1", "1Gi"))])
    world.node("pod-fractions", pods=[pod("333m", "1234567890", priority=9500, usage=("123456789n", "987654321m")),
                                      pod("1001m", "0.5Gi", priority=9500)])
    world.node("pods-many", "64", "256Gi", pods=[
        pod(f"{100 + 37 * i}m", f"{200 + 13 * i}Mi", qos=("LS", "LSR", "BE", "")[i % 4],
            priority=(9500, 9100, 5500, None)[i % 4],
            **({"usage": (f"{50 + 21 * i}m", f"{100 + 17 * i}Mi")} if i % 3 else {})) for i in range(40)])
    world.node("pods-none", pods=None)


def of_third_parties(world):
    def third(*allocations):
        return {"allocations": [{"name": f"party-{at}", "priority": priority, "resources": resources}
                                for at, (priority, resources) in enumerate(allocations)]}

    batch = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}
    for name, value in {
            "batch": third(("koord-batch", batch)), "mid": third(("koord-mid", batch)), "prod": third(("koord-prod", batch)),
            "two": third(("koord-batch", batch), ("koord-batch", {"kubernetes.io/batch-cpu": "500"})),
            "all": third(("koord-batch", {"kubernetes.io/batch-cpu": "999000", "kubernetes.io/batch-memory": "9Ti"})),
            "other-resource": third(("koord-batch", {"cpu": "2", "memory": "1Gi"})),
            "negative": third(("koord-batch", {"kubernetes.io/batch-cpu": "-2000"})),
            "keys-any-case": '{"Allocations":[{"Name":"p","Priority":"koord-batch","Resources":{"kubernetes.io/batch-cpu":"3000"}}]}',
            "broken": "{", "empty": "", "list": "[]", "bad-amount": third(("koord-batch", {"kubernetes.io/batch-cpu": "many"})),
            "no-priority": {"allocations": [{"name": "p", "resources": batch}]}}.items():
        world.node(f"third-{name}", annotations={THIRD: value})
    world.node("origin-foreign-keys", annotations={ORIGIN: {"resources": {
        "kubernetes.io/batch-cpu": "1", "kubernetes.io/mid-cpu": "5", "example.com/thing": "7"}, "more": True}})
    world.node("origin-text", annotations={ORIGIN: {"resources": {"kubernetes.io/batch-cpu": "1k",
                                                                  "kubernetes.io/batch-memory": "33G"}}})
    world.node("origin-broken", annotations={ORIGIN: "{"})
    world.node("origin-off", annotations={ORIGIN: {"resources": {"kubernetes.io/batch-cpu": "1000"}},
                                          STRATEGY: {"enable": False}})
    world.node("origin-third-stale", annotations={THIRD: third(("koord-batch", batch)), ORIGIN: {
        "resources": {"kubernetes.io/batch-cpu": "1000"}}}, metric={"age": 60})


def of_topologies(world):
    info = {"cpuModel": "XYZ", "hyperThreadEnabled": True, "turboEnabled": True, "catL3CbmMask": "fff", "vendorID": "V"}

    def bound(*nodes):
        return {"scheduling.koordinator.sh/resource-status":
                {"numaNodeResources": [{"node": node, "resources": {"cpu": "1"}} for node in nodes]}}

    pods = [pod("4", "8Gi", qos="LSR", priority=9500, usage=("2", "5Gi"), annotations=bound(0)),
            pod("6", "4Gi", qos="LS", priority=9500, usage=("3", "6Gi"), annotations=bound(1)),
            pod("2", "4Gi", qos="LSE", priority=9500, usage=("1", "3Gi"), annotations=bound(0, 1)),
            pod("2", "2Gi", qos="LS", priority=9500, annotations=bound(0)),
            pod("2", "2Gi", qos="LS", priority=9500, usage=("1", "1Gi"), annotations=bound(77)),
            pod("3", "3Gi", qos="BE", priority=5500, usage=("2", "2Gi"), annotations=bound(0)),
            pod("1", "1Gi", qos="LS", priority=9500, usage=("1", "1Gi")),
            pod("1", "1Gi", qos="LS", priority=9500, usage=("1", "1Gi"),
                annotations={"scheduling.koordinator.sh/resource-status": "{"})]
    for count in (1, 2, 4, 12):
        world.node(f"numa-{count}", "48", "96Gi", pods=pods)
        world.topology(f"numa-{count}", [(f"node-{i}", {"cpu": str(48 // count), "memory": f"{96 // count}Gi"})
                                         for i in range(count)])
    zone = {"cpu": "16", "memory": "32Gi"}
    for name, zones in {
            "names": [("zero", zone), ("one", zone)], "unsorted": [("node-1", zone), ("node-0", {"cpu": "8", "memory": "8Gi"})],
            "no-resources": [("node-0", {}), ("node-1", {})], "cpu-only": [("node-0", {"cpu": "16"}), ("node-1", {"cpu": "16"})],
            "one-empty": [("node-0", zone), ("node-1", {})], "uneven": [("node-0", {"cpu": "30", "memory": "10Gi"}),
                                                                        ("node-1", {"cpu": "2", "memory": "54Gi"})],
            "other-resources": [("node-0", {**zone, "gpu": "2"}), ("node-1", zone)],
            "leftovers": [("node-0", {**zone, "kubernetes.io/batch-cpu": "77", "kubernetes.io/batch-memory": "77Mi"}),
                          ("node-1", {**zone, "kubernetes.io/batch-cpu": "5"})],
            "milli": [("node-0", {"cpu": "15500m", "memory": "33554431Ki"}), ("node-1", zone)]}.items():
        world.node(f"numa-{name}", pods=pods)
        world.topology(f"numa-{name}", zones)
    world.node("numa-stale", pods=pods, metric={"age": 60})
    world.topology("numa-stale", [("node-0", {**zone, "kubernetes.io/batch-cpu": "77"}), ("node-1", zone)])
    world.node("numa-off", pods=pods, annotations={STRATEGY: {"enable": False}})
    world.topology("numa-off", [("node-0", {**zone, "kubernetes.io/batch-cpu": "77"}), ("node-1", zone)])
    world.node("numa-policies", pods=pods, annotations={STRATEGY: {
        "cpuCalculatePolicy": "maxUsageRequest", "memoryCalculatePolicy": "request", "batchCPUThresholdPercent": 20}})
    world.topology("numa-policies", [("node-0", zone), ("node-1", zone)])
    world.node("numa-host-apps-and-dangling", pods=pods, annotations={RESERVATION: {"resources": {"cpu": "3", "memory": "9Gi"}}}, metric={
        "hostApplicationMetric": [{"name": "a", "usage": used("2", "3Gi"), "priority": "koord-prod"}],
        "podsMetric": [{"namespace": "default", "name": "gone", "podUsage": used("3", "1Gi"), "priority": "koord-prod"}]})
    world.topology("numa-host-apps-and-dangling", [("node-0", zone), ("node-1", zone)])
    basic = "node.koordinator.sh/cpu-basic-info"
    for at, (label, found, old) in enumerate((
            ("true", info, None), ("true", {**info, "turboEnabled": False}, None),
            ("true", {**info, "hyperThreadEnabled": False}, "1.50"),
            ("true", {**info, "hyperThreadEnabled": False, "turboEnabled": False}, "bad"),
            ("true", {**info, "cpuModel": "unlisted"}, "1.20"), ("true", {**info, "cpuModel": "no-base"}, None),
            ("true", {**info, "cpuModel": "too-much"}, "1.10"), ("true", {**info, "cpuModel": "too-little"}, None),
            ("true", "{", "1.10"), ("true", None, "1.10"), ("false", info, "1.30"), ("odd", info, "1.30"), ("T", info, None),
            ("0", info, "-1"), (None, info, None), (None, None, None), ("true", {"CPUModel": "XYZ"}, None),
            ("", info, "1.30"), ("true", {}, None))):
        name = f"normalize-{at}"
        world.node(name, labels={NORMALIZE: label} if label is not None else {},
                   annotations={RATIO: old} if old else None)
        world.topology(name, [("node-0", zone), ("node-1", zone)], annotations={basic: found} if found is not None else None)
    for at, old in enumerate(('{"cpu":1.50}', "{", '{"memory":2.00}', "{}", "", '{"cpu":"1.5"}')):
        world.node(f"amplified-{at}", annotations={AMPLIFICATION: old, **({RATIO: "1.50"} if at == 2 else {})},
                   labels={"pool": "a"} if at % 2 else {})


def of_devices(world):
    def gpu(minor, health=True, resources=None, **more):
        return {"type": "gpu", "minor": minor, "id": f"gpu-{minor}", "health": health,
                "resources": resources or {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi",
                                           "koordinator.sh/gpu-memory-ratio": "100"}, **more}

    def rdma(minor, health=True):
        return {"type": "rdma", "minor": minor, "health": health, "resources": {"koordinator.sh/rdma": "100"}}

    labels = {"node.koordinator.sh/gpu-model": "A100", "node.koordinator.sh/gpu-driver-version": "535.1"}
    npu = {"huawei.com/npu-core": "20", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100",
           "koordinator.sh/gpu-memory": "32Gi", "koordinator.sh/gpu-memory-ratio": "100"}
    for name, (devices, found) in {
            "gpu-two": ([gpu(0), gpu(1)], labels), "gpu-one-sick": ([gpu(0), gpu(1, False)], labels),
            "gpu-all-sick": ([gpu(0, False)], labels), "gpu-no-labels": ([gpu(0)], None),
            "gpu-nvidia": ([gpu(0)], {**labels, "node.koordinator.sh/gpu-vendor": "nvidia"}),
            "gpu-huawei": ([gpu(0, resources=npu), gpu(1, resources=npu)], {**labels, "node.koordinator.sh/gpu-vendor": "huawei"}),
            "gpu-amd": ([gpu(0)], {"node.koordinator.sh/gpu-vendor": "amd"}),
            "gpu-odd-amounts": ([gpu(0, resources={"koordinator.sh/gpu-memory": "16.5Gi", "example.com/x": "5"})], labels),
            "gpu-no-resources": ([{"type": "gpu", "minor": 0, "health": True}], labels),
            "rdma": ([rdma(0), rdma(1), rdma(2, False)], None), "gpu-and-rdma": ([gpu(0), rdma(0)], labels),
            "rdma-sick": ([rdma(0, False)], None), "fpga": ([{"type": "fpga", "minor": 0, "health": True,
                                                              "resources": {"koordinator.sh/fpga": "100"}}], None),
            "none": ([], labels), "odd-type": ([{"type": "toaster", "minor": 0, "health": True}], None),
            "gpu-old-labels": ([gpu(0)], {"kubernetes.io/gpu-model": "old", "kubernetes.io/gpu-driver": "1"})}.items():
        world.node(f"device-{name}")
        world.add("Device", f"device-{name}", {"devices": devices}, labels=found)
    left = {"koordinator.sh/gpu": "100", "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi",
            "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/rdma": "100"}
    world.node("device-gone", more=left, labels={"node.koordinator.sh/gpu-model": "A100"})
    world.node("device-only-rdma-now", more=left)
    world.add("Device", "device-only-rdma-now", {"devices": [rdma(0)]})
    world.node("device-off", more=left, annotations={STRATEGY: {"enable": False}})
    world.add("Device", "device-off", {"devices": [gpu(0), gpu(1)]}, labels=labels)
    world.node("device-stale", metric={"age": 60})
    world.add("Device", "device-stale", {"devices": [gpu(0)]}, labels=labels)


def of_slos(world):
    """NodeSLOs and NodeMetrics that exist already, also of nodes that do not."""
    world.node("slo-foreign", metric="plain")
    world.add("NodeSLO", "slo-foreign", {"extensions": {"Object": {"theirs": {"a": 1}}, "beside": 2},
                                         "resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 11}})
    world.node("slo-empty")
    world.add("NodeSLO", "slo-empty", {})
    world.add("NodeSLO", "slo-of-no-node", {})
    world.add("NodeMetric", "metric-of-no-node", {})
    world.node("metric-other-spec", metric=None)
    world.add("NodeMetric", "metric-other-spec", {"metricCollectPolicy": {"aggregateDurationSeconds": 7}})
    world.node("metric-empty-spec", metric=None)
    world.add("NodeMetric", "metric-empty-spec", {})


def of_quotas(world):
    pool = {"matchLabels": {"pool": "profile"}}
    keys = "quota.scheduling.koordinator.sh/resource-keys"
    for name, spec, labels, annotations in (
            ("plain", {"nodeSelector": pool}, None, None),
            ("ratio", {"nodeSelector": pool, "resourceRatio": "0.9"}, None, None),
            ("ratio-one", {"nodeSelector": pool, "resourceRatio": "1"}, None, None),
            ("ratio-above", {"nodeSelector": pool, "resourceRatio": "1.1"}, None, None),
            ("ratio-zero", {"nodeSelector": pool, "resourceRatio": "0"}, None, None),
            ("ratio-bad", {"nodeSelector": pool, "resourceRatio": "most"}, None, None),
            ("ratio-nan", {"nodeSelector": pool, "resourceRatio": "NaN"}, None, None),
            ("ratio-small", {"nodeSelector": pool, "resourceRatio": "0.333"}, None, None),
            ("keys", {"nodeSelector": pool}, None, {keys: ["cpu", "nvidia.com/gpu", "example.com/none"]}),
            ("keys-empty", {"nodeSelector": pool}, None, {keys: []}),
            ("keys-bad", {"nodeSelector": pool}, None, {keys: "cpu"}),
            ("tree", {"nodeSelector": pool}, {"quota.scheduling.koordinator.sh/tree-id": "my-tree"}, None),
            ("labels", {"nodeSelector": pool, "quotaLabels": {"a": "b", "quota.scheduling.koordinator.sh/is-parent": "true"}},
             None, None),
            ("nothing", {"nodeSelector": {"matchLabels": {"pool": "none-such"}}}, None, None),
            ("everything", {"nodeSelector": {}}, None, None),
            ("expressions", {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]},
                                                                   {"key": "tier", "operator": "NotIn", "values": ["tin"]}]}},
             None, None),
            ("selector-bad", {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Near"}]}}, None, None),
            ("present", {"nodeSelector": pool}, None, None), ("no-name", {"nodeSelector": pool, "quotaName": ""}, None, None)):
        world.add("ElasticQuotaProfile", f"profile-{name}", {"quotaName": f"quota-{name}", **spec}, namespace="default",
                  labels=labels, annotations=annotations)
    world.add("ElasticQuota", "quota-present", {"min": {"cpu": "1", "example.com/x": "3"}, "max": {"cpu": "5"}}, namespace="default",
              labels={"mine": "stays", "quota.scheduling.koordinator.sh/tree-id": "other"},
              annotations={"mine": "stays", "quota.scheduling.koordinator.sh/total-resource": "{}"})


def of_profiles(world):
    """Waiting pods, and profiles that the controller applies to them."""
    def profile(name, spec, managed=True, **annotations):
        labels = {"config.koordinator.sh/controller-managed": "true"} if managed else None
        world.add("ClusterColocationProfile", name, spec, labels=labels, annotations=annotations)

    def waits(name, labels=None, annotations=None, **more):
        found = pod("1", "1Gi", phase="Pending", labels=labels, annotations=annotations, **more)
        found["metadata"].update(name=name, namespace="default")
        found["spec"].update(schedulerName="none", automountServiceAccountToken=False)
        world.pods.append({"kind": "Pod", **found})

    app = {"matchLabels": {"app": "one"}}
    profile("one", {"selector": app, "qosClass": "BE", "koordinatorPriority": 1111, "labels": {"added": "label"},
                    "annotations": {"added": "annotation"}, "priorityClassName": "koord-batch", "schedulerName": "koord"})
    profile("not-managed", {"selector": {"matchLabels": {"app": "two"}}, "qosClass": "BE", "labels": {"never": "seen"}}, False)
    profile("maps", {"selector": {"matchLabels": {"app": "three"}}, "labelKeysMapping": {"app": "app-copy", "absent": "absent-copy"},
                     "annotationKeysMapping": {"from": "to"}, "patch": {"metadata": {"labels": {"patched": "yes"}}}})
    profile("no-selector", {"labels": {"by": "no-selector"}})
    profile("namespace", {"selector": {"matchLabels": {"app": "four"}}, "namespaceSelector": {"matchLabels": {"none": "has"}},
                          "labels": {"by": "namespace"}})
    profile("namespace-default", {"selector": {"matchLabels": {"app": "four"}}, "namespaceSelector": {
        "matchLabels": {"kubernetes.io/metadata.name": "default"}}, "labels": {"by-default": "namespace"}})
    profile("probability-none", {"selector": {"matchLabels": {"app": "five"}}, "probability": "0%", "qosClass": "BE"})
    profile("probability-all", {"selector": {"matchLabels": {"app": "six"}}, "probability": 100, "qosClass": "LS"})
    for app in ("one", "two", "three", "four", "six"):
        waits(f"waits-{app}", {"app": app, "already": "there"}, {"from": "value"})
    waits("waits-no-profile")
    waits("waits-with-qos", {"app": "one", "koordinator.sh/qosClass": "LS"})


def of_chance(world, count):
    """Nodes with some of everything."""
    dice = random.Random(11)
    for at in range(count):
        cpu, memory = dice.choice((4, 16, 32, 64, 128)), dice.choice((8, 32, 64, 256))
        kept, annotations, labels = {}, {}, {}
        if dice.random() < 0.5:
            kept = {"cpu": f"{cpu * 1000 - dice.randrange(0, 2000)}m", "memory": f"{memory * 1024 - dice.randrange(0, 2048)}Mi"}
        if dice.random() < 0.3:
            annotations[RESERVATION] = {"resources": {"cpu": str(dice.randrange(0, 5)), "memory": f"{dice.randrange(0, 4)}Gi"}}
        if dice.random() < 0.3:
            annotations[STRATEGY] = {"cpuReclaimThresholdPercent": dice.randrange(0, 100),
                                     "memoryReclaimThresholdPercent": dice.randrange(0, 100),
                                     "cpuCalculatePolicy": dice.choice(("usage", "maxUsageRequest")),
                                     "memoryCalculatePolicy": dice.choice(("usage", "request", "maxUsageRequest"))}
        if dice.random() < 0.3:
            annotations[THIRD] = {"allocations": [{"name": "yarn", "priority": dice.choice(("koord-batch", "koord-mid")),
                                                   "resources": {"kubernetes.io/batch-cpu": str(dice.randrange(0, 9000)),
                                                                 "kubernetes.io/batch-memory": f"{dice.randrange(0, 9000)}Mi"}}]}
        if dice.random() < 0.3:
            labels["node.koordinator.sh/cpu-reclaim-ratio"] = f"{dice.random():.2f}"
        if dice.random() < 0.3:
            labels["pool"] = dice.choice("abc")
        pods = []
        for _ in range(dice.randrange(0, 12)):
            asked, size = dice.randrange(0, 300 * cpu // 8), dice.randrange(0, 1024 * memory // 12)
            usage = {"usage": (f"{dice.randrange(0, asked + 100)}m", f"{dice.randrange(0, size + 100)}Mi")} \
                if dice.random() < 0.8 else {}
            pods.append(pod(f"{asked}m", f"{size}Mi", qos=dice.choice(("LSE", "LSR", "LS", "BE", "")),
                            priority=dice.choice((9500, 7500, 5500, None)), phase=dice.choice(("Running", "Pending", "Running", "Succeeded")),
                            reported=dice.choice(("koord-prod", "koord-mid", "koord-batch", None)), **usage))
        metric = {"nodeMetric": {"nodeUsage": used(f"{dice.randrange(0, cpu * 800)}m", f"{dice.randrange(0, memory * 800)}Mi"),
                                 "systemUsage": used(f"{dice.randrange(0, 3000)}m", f"{dice.randrange(0, 3000)}Mi")},
                  "prodReclaimableMetric": {"resource": used(f"{dice.randrange(0, cpu * 300)}m", f"{dice.randrange(0, memory * 300)}Mi")},
                  "hostApplicationMetric": [{"name": "app", "usage": used("700m", "900Mi"), "priority": priority}
                                            for priority in ("koord-prod", "koord-batch") if dice.random() < 0.3]}
        world.node(f"chance-{at}", str(cpu), f"{memory}Gi", labels=labels, annotations=annotations or None, allocatable=kept,
                   metric=metric, pods=pods)
        if dice.random() < 0.4:
            zones = dice.choice((1, 2, 4))
            world.topology(f"chance-{at}", [(f"node-{i}", {"cpu": str(cpu // zones or 1), "memory": f"{memory // zones}Gi"})
                                            for i in range(zones)])


def everything(chance=40):
    world = World()
    for part in (of_nodes, of_metrics, of_pods, of_third_parties, of_topologies, of_devices, of_slos, of_quotas, of_profiles):
        part(world)
    of_chance(world, chance)
    return world


def two():
    """The smallest useful population."""
    world = World()
    world.node("kube-reserved", allocatable={"cpu": "28500m", "memory": "60Gi"})
    world.node("metric-none", metric=None)
    return world
