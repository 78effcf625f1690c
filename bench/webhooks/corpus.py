"""The reviews: the same at each run, in the same order."""
import itertools
import json
from dataclasses import dataclass

from population import CLASSES, DOMAIN, PLENTY, QUOTA, ROOT, SETTINGS, amounts

POD, BIND = "/mutate-pod", "/validate-pod-binding"
CHECK = "/validate-pod"
QUOTA_FILL = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
QUOTA_CHECK = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
NODE, NODE_CHECK = "/mutate-node-status", "/validate-node"
SETTING = "/validate-configmap"
RESERVE = "/mutate-reservation"


@dataclass
class Case:
    name: str
    path: str
    body: object


KINDS = {"pods": ("", "v1", "Pod"), "nodes": ("", "v1", "Node"), "configmaps": ("", "v1", "ConfigMap"),
         "elasticquotas": ("scheduling.sigs.k8s.io", "v1alpha1", "ElasticQuota"),
         "reservations": ("scheduling.koordinator.sh", "v1alpha1", "Reservation"),
         "deployments": ("apps", "v1", "Deployment")}
RESOURCE = {POD: "pods", CHECK: "pods", BIND: "pods", QUOTA_FILL: "elasticquotas", QUOTA_CHECK: "elasticquotas",
            NODE: "nodes", NODE_CHECK: "nodes", SETTING: "configmaps", RESERVE: "reservations"}
numbers = itertools.count(1)


def review(path, thing=None, old=None, operation="CREATE", namespace=None, sub="", user="admin", resource=None,
           version="v1", dry=False, kind=None):
    resource = resource or RESOURCE[path]
    group, api, what = KINDS[resource]
    some = thing if isinstance(thing, dict) else old if isinstance(old, dict) else {}
    meta = some.get("metadata") if isinstance(some.get("metadata"), dict) else {}
    request = {
        "uid": f"00000000-0000-4000-8000-{next(numbers):012}",
        "kind": {"group": group, "version": api, "kind": kind or what},
        "resource": {"group": group, "version": api, "resource": resource},
        "name": meta.get("name", ""), "namespace": namespace if namespace is not None else meta.get("namespace", ""),
        "operation": operation, "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": thing, "oldObject": old, "dryRun": dry,
        "options": {"kind": f"{operation.title()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    if sub:
        request["subResource"] = sub
    return {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}


def container(name="main", requests=None, limits=None, **more):
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value is not None}
    return {"name": name, "image": name, "resources": resources, **more}


def pod(labels=None, annotations=None, containers=None, namespace="plain", name="pod", priority=None, **spec):
    meta = {"name": name, "namespace": namespace}
    if labels is not None:
        meta["labels"] = labels
    if annotations is not None:
        meta["annotations"] = annotations
    if priority is not None:
        spec["priority"] = priority
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {
        "containers": containers or [container(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2", "memory": "2Gi"})],
        **spec}}


QOS = "koordinator.sh/qosClass"
CLASS = "koordinator.sh/priority-class"
SUB = "koordinator.sh/priority"
EXTENDED = "node.koordinator.sh/extended-resource-spec"


def batch(cpu="1000", memory="1Gi", **more):
    return {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory, **more}


def cases(gates):
    seen = set()
    for part in (pods_mutated, pods_checked, bindings, quotas_filled, quotas_checked, nodes, settings, reservations, shapes):
        for name, path, body in part():
            name = f"{part.__name__}/{name}"
            if name in seen:
                raise SystemExit(f"two cases are called {name}")
            seen.add(name)
            yield Case(name, path, body)


def pods_mutated():
    def create(name, thing, **more):
        return name, POD, review(POD, thing, **more)

    def labelled(profile, containers=None, **more):
        return pod({"profile": profile, "app": "web", "from": "here"}, {"a-from": "there", "note": "mine"}, containers, **more)

    yield create("no-profile", pod())
    yield create("no-labels", pod(labels=None))
    yield create("empty-maps", pod({}, {}))
    for profile in ["batch", "mid", "prod", "free", "only-qos", "only-class", "only-labels", "empty", "p-zero", "p-all",
                    "p-zero-text", "p-all-text", "p-word", "p-plain-text", "p-big", "p-negative", "no-class", "high",
                    "never", "sub", "sub-negative", "mapping", "suffix", "chain", "skip-resources", "p-zero-skip", "two",
                    "link", "team-and-pod", "all-in", "bad-namespaces", "expressions", "unknown-profile"]:
        yield create(f"profile/{profile}", labelled(profile))
    for profile in ["merge", "null", "tolerations", "container", "new-container", "volumes", "replace", "delete",
                    "primitive", "order", "retain", "unknown", "wrong", "wrong-type", "affinity", "resources", "spread"]:
        thing = labelled(f"patch-{profile}", [container(requests={"cpu": "1"}, env=[
            {"name": "A", "value": "1"}, {"name": "B", "value": "2"}]), container("side")],
            nodeSelector={"zone": "a"}, tolerations=[{"key": "mine", "operator": "Exists"}],
            volumes=[{"name": "data", "emptyDir": {}}, {"name": "rest", "hostPath": {"path": "/rest"}}],
            topologySpreadConstraints=[{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}])
        thing["metadata"]["finalizers"] = ["a/b", "e/f"]
        yield create(f"patch/{profile}", thing)
        yield create(f"patch-of-little/{profile}", pod({"profile": f"patch-{profile}"}))
    # By namespace.
    for namespace in ["team-a", "team-b", "plain", "ghost"]:
        yield create(f"namespace/{namespace}", labelled("team-and-pod", namespace=namespace))
        yield create(f"namespace-all/{namespace}", labelled("all-in", namespace=namespace))
    yield create("namespace/bad-selector", labelled("nothing", namespace="bad"))
    thing = labelled("batch")
    del thing["metadata"]["namespace"]
    yield create("namespace/of-the-request", thing, namespace="plain")
    thing = labelled("team-and-pod")
    del thing["metadata"]["namespace"]
    yield create("namespace/of-the-request-team", thing, namespace="team-a")
    thing = labelled("batch")
    thing["metadata"].update(generateName="pod-", name="")
    yield create("generated-name", thing)
    # Amounts of every shape, translated.
    shapes = {
        "limits-only": dict(limits={"cpu": "500m", "memory": "512Mi"}), "requests-only": dict(requests={"cpu": "1500m", "memory": "1G"}),
        "fractions": dict(requests={"cpu": "0.1", "memory": "1.5Gi"}, limits={"cpu": "1.0005", "memory": "128974848"}),
        "exponent": dict(requests={"cpu": "1e1", "memory": "1e9"}), "zero": dict(requests={"cpu": "0", "memory": "0"}),
        "nano": dict(requests={"cpu": "100n", "memory": "100m"}), "large": dict(requests={"cpu": "100k", "memory": "1Ei"}),
        "others": dict(requests={"cpu": "1", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "1"}),
        "already": dict(requests={"cpu": "1", **batch("700")}, limits=batch("900")), "none": {},
        "limit-extended": dict(limits=batch("900")), "numbers": dict(requests={"cpu": 2, "memory": 1073741824}),
        "different": dict(requests={"cpu": "1"}, limits={"memory": "1Gi"}), "negative": dict(requests={"cpu": "-1"}),
        "hugepages": dict(requests={"cpu": "1", "hugepages-2Mi": "4Mi"}, limits={"hugepages-2Mi": "4Mi"}),
    }
    for profile in ["batch", "mid", "free", "prod"]:
        for shape, resources in shapes.items():
            yield create(f"amounts/{profile}/{shape}", labelled(profile, [container(**resources)]))
    yield create("amounts/init", labelled("batch", initContainers=[
        container("first", {"cpu": "1"}, {"cpu": "2"}), container("sidecar", {"cpu": "1", "memory": "1Gi"}, restartPolicy="Always")]))
    yield create("amounts/overhead", labelled("batch", overhead={"cpu": "250m", "memory": "64Mi"}))
    yield create("amounts/overhead-mid", labelled("mid", overhead={"cpu": "250m", "memory": "64Mi"}))
    yield create("amounts/pod-level", labelled("batch", resources={"requests": {"cpu": "2"}, "limits": {"memory": "2Gi"}}))
    yield create("amounts/two", labelled("batch", [container("a", {"cpu": "1"}), container("b", None, {"cpu": "1"})]))
    yield create("amounts/ephemeral", labelled("batch", ephemeralContainers=[{"name": "debug", "image": "debug"}]))
    # Classes and QoS that the pod has.
    for priority in [None, 0, 2999, 3000, 3999, 4500, 5000, 5500, 5999, 6500, 7000, 7999, 8500, 9000, 9999, 10000, 2000000000, -1]:
        yield create(f"priority/{priority}", pod({"profile": "empty"}, priority=priority))
    for name in [*CLASSES.values(), "koord-nothing", ""]:
        yield create(f"class-label/{name or 'empty'}", pod({"profile": "empty", CLASS: name}, priority=5500))
    for qos in ["BE", "LS", "LSR", "LSE", "SYSTEM", "be", "", "Burstable"]:
        yield create(f"qos-label/{qos or 'empty'}", pod({"profile": "empty", QOS: qos}))
    yield create("best-effort", pod({"profile": "empty"}, containers=[container()]))
    yield create("brought-class", labelled("batch", priorityClassName="high-priority", priority=100000, preemptionPolicy="Never"))
    # The annotation with extended resources.
    for name, note in {"empty-object": "{}", "stale": json.dumps({"containers": {"main": {"requests": {"kubernetes.io/batch-cpu": "1"}}}}),
                       "not-json": "{", "list": "[]", "null": "null", "text": "\"x\"", "empty": "", "other-case": json.dumps({"Containers": {}}),
                       "wrong-type": json.dumps({"containers": []}), "unknown": json.dumps({"more": 1})}.items():
        yield create(f"extended/{name}", pod(annotations={EXTENDED: note}))
        yield create(f"extended-batch/{name}", pod({QOS: "BE"}, {EXTENDED: note}, [container(requests=batch(), limits=batch())]))
    yield create("extended/same", pod({QOS: "BE"}, {EXTENDED: json.dumps({"containers": {"main": {"limits": batch("1k"), "requests": batch("1000", "1024Mi")}}})},
                                      [container(requests=batch(), limits=batch())]))
    yield create("extended/mid", pod(containers=[container(requests={"kubernetes.io/mid-cpu": "500"})]))
    yield create("extended/init", pod(containers=[container()], initContainers=[container("i", batch())]))
    yield create("extended/several", pod(containers=[container("a", batch()), container("b", None, batch("5")), container("c")]))
    # Trees of quotas.
    for name, labels in {"leaf": {f"{DOMAIN}/name": "tree-leaf"}, "no-profile": {f"{DOMAIN}/name": "tree-lost"},
                         "no-tree": {f"{DOMAIN}/name": "leaf"}, "unknown": {f"{DOMAIN}/name": "absent"}}.items():
        yield create(f"tree/{name}", pod(labels))
    yield create("tree/by-namespace", pod(namespace="tree-leaf"))
    yield create("tree/bound-namespace", pod(namespace="bound-1"))
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for name, affinity in {"terms": {"nodeAffinity": {required: {"nodeSelectorTerms": [term, {"matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}},
                           "no-terms": {"nodeAffinity": {required: {"nodeSelectorTerms": []}}},
                           "preferred": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}},
                           "pods": {"podAffinity": {}}, "empty": {}}.items():
        yield create(f"tree/affinity-{name}", pod({f"{DOMAIN}/name": "tree-leaf"}, affinity=affinity))
    # Devices.
    for name, resources in devices().items():
        yield create(f"device/{name}", pod(containers=[container(**resources)]))
    yield create("device/init", pod(initContainers=[container("i", {"koordinator.sh/gpu": "100"}, {"koordinator.sh/gpu": "100"})]))
    yield create("device/with-profile", labelled("batch", [container("g", {"cpu": "1", "koordinator.sh/gpu": "200"}, {"cpu": "1", "koordinator.sh/gpu": "200"})]))
    # Immutable fields.
    yield create("update", labelled("batch"), old=labelled("batch"), operation="UPDATE")
    yield create("update-asked-for", pod({"profile": "batch", "pod.koordinator.sh/mutating-update": "true"}),
                 old=pod({"profile": "batch"}), operation="UPDATE")
    yield create("delete", None, old=labelled("batch"), operation="DELETE")
    yield create("connect", labelled("batch"), operation="CONNECT", sub="exec")
    yield create("status", labelled("batch"), operation="UPDATE", sub="status")
    yield create("sub-resource", labelled("batch"), sub="ephemeralcontainers")
    yield create("other-resource", labelled("batch"), resource="deployments")
    yield create("dry", labelled("batch"), dry=True)
    yield create("v1beta1", labelled("batch"), version="v1beta1")


def devices():
    """Resources of containers, by name."""
    gpu = "koordinator.sh/gpu"

    def both(**amounts_of):
        wanted = {f"koordinator.sh/{key.replace('_', '-').replace('shared', 'gpu.shared')}": value for key, value in amounts_of.items()}
        return {"requests": dict(wanted), "limits": dict(wanted)}

    yield_of = {}
    for value in ["0", "1", "50", "100", "101", "150", "200", "800", "1.5", "-100", "1k"]:
        yield_of[f"gpu-{value}"] = both(gpu=value)
    for value in ["50", "100", "150", "200", "0"]:
        yield_of[f"ratio-{value}"] = both(gpu_memory_ratio=value)
        yield_of[f"core-{value}"] = both(gpu_core=value)
        yield_of[f"core-ratio-{value}"] = both(gpu_core=value, gpu_memory_ratio=value)
        yield_of[f"core-memory-{value}"] = both(gpu_core=value, gpu_memory="8Gi")
    yield_of |= {
        "memory": both(gpu_memory="16Gi"), "memory-ratio": both(gpu_memory="16Gi", gpu_memory_ratio="50"),
        "shared": both(shared="2"), "shared-ratio": both(shared="2", gpu_memory_ratio="100"),
        "shared-odd": both(shared="3", gpu_memory_ratio="100"), "shared-core": both(shared="2", gpu_core="100", gpu_memory_ratio="100"),
        "shared-core-odd": both(shared="2", gpu_core="75", gpu_memory_ratio="100"), "shared-zero": both(shared="0", gpu_memory_ratio="100"),
        "shared-memory": both(shared="2", gpu_memory="16Gi"), "shared-negative": both(shared="-1", gpu_memory_ratio="100"),
        "gpu-and-shared": both(gpu="100", shared="1"), "gpu-and-core": both(gpu="100", gpu_core="50"),
        "nothing-of-memory": both(shared="1", gpu_core="50"), "memory-zero": both(shared="1", gpu_memory="0"),
        "core-and-ratio-differ": both(gpu_core="150", gpu_memory_ratio="200"), "big-ratio": both(gpu_memory_ratio="250", gpu_core="200"),
        "requests-only": {"requests": {gpu: "100"}}, "limits-only": {"limits": {gpu: "100"}},
        "core-requests-only": {"requests": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}},
        "core-limits-only": {"limits": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}},
        "shared-requests-only": {"requests": {"koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-memory-ratio": "50"}},
        "differ": {"requests": {gpu: "100"}, "limits": {gpu: "200"}},
        "nvidia": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        "rdma": both(rdma="100"), "rdma-odd": both(rdma="150"), "rdma-gpu": both(rdma="50", gpu="100"), "fpga": both(fpga="101"),
        "npu": {"requests": {"huawei.com/npu-core": "4", "koordinator.sh/gpu.shared": "1"}, "limits": {"huawei.com/npu-core": "4"}},
        "npu-zero": {"requests": {"huawei.com/npu-core": "0", "koordinator.sh/gpu.shared": "1"}},
        "npu-dvpp": {"requests": {"huawei.com/npu-core": "4", "huawei.com/npu-dvpp": "100", "koordinator.sh/gpu-memory": "1Gi"}},
        "deprecated": {"requests": {"kubernetes.io/gpu": "100"}, "limits": {"kubernetes.io/gpu": "100"}},
    }
    return yield_of


def pods_checked():
    def create(name, thing, **more):
        return name, CHECK, review(CHECK, thing, **more)

    def update(name, old, new, **more):
        return name, CHECK, review(CHECK, new, old=old, operation="UPDATE", **more)

    whole = [container(requests={"cpu": "2", "memory": "1Gi"})]
    priorities = {"prod": 9500, "mid": 7500, "batch": 5500, "free": 3500, "none": None, "gap": 8500, "system": 2000000000}
    for qos in ["LSE", "LSR", "LS", "BE", "SYSTEM", "", "bad"]:
        labels = {QOS: qos} if qos else {}
        for name, priority in priorities.items():
            yield create(f"matrix/{qos or 'none'}/{name}", pod(dict(labels), containers=whole, priority=priority))
        for name, label in [*CLASSES.items(), ("unknown", "x")]:
            yield create(f"matrix-by-label/{qos or 'none'}/{name}", pod({**labels, CLASS: label}, containers=whole))
        yield create(f"batch-resources/{qos or 'none'}", pod(dict(labels), containers=[container(requests=batch(), limits=batch())], priority=5500))
    amounts_of_lsr = {"fraction": {"cpu": "1500m"}, "none": {}, "zero": {"cpu": "0"}, "whole-milli": {"cpu": "2000m"}, "memory": {"memory": "1Gi"}}
    for name, requests in amounts_of_lsr.items():
        for qos in ["LSR", "LSE"]:
            yield create(f"whole-cores/{qos}/{name}", pod({QOS: qos}, containers=[container(requests=requests)], priority=9500))
    halves = [container("a", {"cpu": "500m"}), container("b", {"cpu": "1500m"})]
    yield create("whole-cores/together", pod({QOS: "LSR"}, containers=halves, priority=9500))
    yield create("whole-cores/limits", pod({QOS: "LSR"}, containers=[container(limits={"cpu": "2"})], priority=9500))
    yield create("whole-cores/init", pod({QOS: "LSR"}, containers=whole, initContainers=[container("i", {"cpu": "500m"})], priority=9500))
    yield create("whole-cores/init-larger", pod({QOS: "LSR"}, containers=whole, initContainers=[container("i", {"cpu": "2500m"})], priority=9500))
    yield create("whole-cores/overhead", pod({QOS: "LSR"}, containers=whole, overhead={"cpu": "100m"}, priority=9500))
    yield create("whole-cores/pod-level", pod({QOS: "LSR"}, containers=[container()], resources={"requests": {"cpu": "2"}}, priority=9500))
    yield create("batch/zero", pod(containers=[container(requests=batch("0", "0"))]))
    yield create("batch/limits", pod(containers=[container(limits=batch())]))
    yield create("batch/memory", pod(containers=[container(requests={"kubernetes.io/batch-memory": "1"})]))
    yield create("batch/init", pod(containers=[container()], initContainers=[container("i", batch())]))
    yield create("mid/LS", pod({QOS: "LS"}, containers=[container(requests={"kubernetes.io/mid-cpu": "100"})], priority=7500))
    yield create("several-mistakes", pod({QOS: "LSR"}, containers=[container(requests=batch())], priority=5500))
    yield create("sub-priority/bad", pod({SUB: "much"}))
    yield create("sub-priority/good", pod({SUB: "-10"}))
    for where in ["scheduling.koordinator.sh/reserve-pod"]:
        for value in ["true", "", "false"]:
            yield create(f"reserved/{value or 'empty'}", pod(annotations={where: value}))
            yield update(f"reserved-update/{value or 'empty'}", pod(), pod(annotations={where: value}))
        yield update("reserved-update/before", pod(annotations={where: "x"}), pod(annotations={where: "x"}))
    # Unchanged fields.
    for key, values in {QOS: ["LS", "BE", None, "bad"], SUB: ["1", "2", None, ""], CLASS: ["koord-prod", "koord-batch", None, "x"],
                        f"{DOMAIN}/preemptible": ["true", "false", None, "x"]}.items():
        short = key.rpartition("/")[2]
        for a, b in itertools.product(values, values):
            one, two = ({key: value} if value is not None else {} for value in (a, b))
            # BE requires batch, so that only the change counts.
            priority = 5500 if key == QOS else None
            yield update(f"update/{short}/{a}-{b}", pod(one, priority=priority), pod(two, priority=priority))
    for a, b in [(9500, 9501), (9500, 5500), (None, 5500), (5500, None), (None, 100)]:
        yield update(f"update/value/{a}-{b}", pod(priority=a), pod(priority=b))
    yield update("update/wrong-before", pod({QOS: "BE"}, priority=9500), pod({QOS: "BE", "more": "1"}, priority=9500))
    yield update("update/no-old", None, pod())
    # Quotas.
    name = f"{DOMAIN}/name"
    little = [container(requests={"cpu": "1", "memory": "1Gi"})]
    for quota in ["leaf", "family", "absent", ROOT, "koordinator-default-quota", "koordinator-system-quota", "tree-leaf", "tree-root",
                  "twice", "odd-keys", "emptied", ""]:
        yield create(f"quota/{quota or 'empty'}", pod({name: quota}, containers=little))
        yield create(f"quota-dry/{quota or 'empty'}", pod({name: quota}, containers=little), dry=True)
    for namespace in ["team-a", "bound-1", "tree-leaf", "plain", "ghost"]:
        yield create(f"quota-by-namespace/{namespace}", pod(namespace=namespace, containers=little))
    yield update("quota/to-parent", pod({name: "leaf"}), pod({name: "family"}))
    yield update("quota/in-parent", pod({name: "family"}), pod({name: "family", "x": "y"}))
    leaving = pod({name: "family"})
    leaving["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0)
    yield update("quota/leaving-parent", leaving, leaving)
    # Charged: four of four cores, one by one, then none.
    for i in range(5):
        yield create(f"charge/small-{i}", pod({name: "small"}, name=f"small-{i}", containers=little))
    yield create("charge/capped", pod({name: "capped"}, containers=[container(requests={"cpu": "3"})]))
    yield create("charge/capped-fits", pod({name: "capped"}, containers=[container(requests={"cpu": "2", "memory": "100Gi"})]))
    yield create("charge/used", pod({name: "used"}, containers=little))
    yield create("charge/used-fits", pod({name: "used"}, containers=[container(requests={"cpu": "500m"})]))
    yield create("charge/used-other", pod({name: "used"}, containers=[container(requests={"nvidia.com/gpu": "1"})]))
    yield create("charge/nothing", pod({name: "used"}, containers=[container()]))
    yield create("charge/batch", pod({name: "batch-only", QOS: "BE"}, containers=[container(requests=batch("3000"))], priority=5500))
    yield create("charge/batch-fits", pod({name: "batch-only", QOS: "BE"}, containers=[container(requests=batch("1000"))], priority=5500))
    yield create("charge/overhead", pod({name: "batch-only", QOS: "BE"}, containers=[container(requests=batch("500"))], priority=5500,
                                        overhead=batch("1000")))
    yield create("charge/replaced", pod({name: "used"}, {"pod.koordinator.sh/replace-resources": "cpu:example.com/cpu"}, little))
    yield update("charge/moved", pod({name: "leaf"}, containers=little), pod({name: "used"}, containers=little))
    yield update("charge/stays", pod({name: "used"}, containers=little), pod({name: "used", "x": "y"}, containers=little))
    # Devices.
    for kind, resources in devices().items():
        yield create(f"device/{kind}", pod(containers=[container(**resources)]))
    yield create("device/second", pod(containers=[container("a"), container("b", {"koordinator.sh/gpu": "150"})]))
    yield create("device/init", pod(initContainers=[container("i", {"koordinator.sh/gpu": "150"})]))
    yield update("device/update", pod(containers=[container(requests={"koordinator.sh/gpu": "150"})]),
                 pod(containers=[container(requests={"koordinator.sh/gpu": "150"})]))
    # Labels that a rule requires.
    for kind, labels in {"none": None, "one": {"owner": "x"}, "both": {"owner": "x", "cost": "y"}, "empty": {"owner": "", "cost": ""},
                         "skipped": {"pod.koordinator.sh/skip-enhanced-validation": "true"},
                         "not-skipped": {"pod.koordinator.sh/skip-enhanced-validation": "True"}}.items():
        yield create(f"labels/{kind}", pod(labels, namespace="strict"))
        yield update(f"labels-update/{kind}", pod(labels, namespace="strict"), pod(labels, namespace="strict"))
    # Deletions and the rest.
    yield "delete", CHECK, review(CHECK, None, pod(), "DELETE")
    yield "delete/no-old", CHECK, review(CHECK, None, None, "DELETE", namespace="plain")
    yield create("status", pod({QOS: "BE"}), sub="status", operation="UPDATE")
    yield create("eviction", pod({QOS: "BE"}), sub="eviction")
    yield create("other-resource", pod({QOS: "BE"}), resource="deployments")
    yield create("v1beta1", pod({QOS: "BE"}), version="v1beta1")
    yield create("v1beta1-good", pod(), version="v1beta1")


def bindings():
    def bind(name, user, pod_name="waits", namespace="plain", **more):
        thing = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod_name, "namespace": namespace},
                 "target": {"kind": "Node", "name": "node-0"}}
        return name, BIND, review(BIND, thing, sub=more.pop("sub", "binding"), user=user, kind="Binding", **more)

    for user in ["koord-scheduler", "system:serviceaccount:koordinator-system:koord-scheduler", "not-koord-scheduler-at-all",
                 "system:kube-scheduler", "", "admin", "KOORD-SCHEDULER"]:
        yield bind(f"user/{user or 'absent'}", user)
    yield bind("kube-system", "admin", namespace="kube-system")
    yield bind("unknown-pod", "admin", "absent")
    yield bind("bypass", "admin", "may-be-bound")
    yield bind("not-binding", "admin", sub="status")
    yield bind("not-create", "admin", operation="UPDATE")
    yield bind("dry", "admin", dry=True)


def quota(name, parent=ROOT, max=None, min=None, labels=None, annotations=None, namespace="quotas", is_parent=None, tree=None, **more):
    marks = dict(labels or {})
    if parent is not None:
        marks[f"{DOMAIN}/parent"] = parent
    if is_parent is not None:
        marks[f"{DOMAIN}/is-parent"] = is_parent
    if tree is not None:
        marks[f"{DOMAIN}/tree-id"] = tree
    spec = {key: value for key, value in (("max", max), ("min", min)) if value is not None}
    thing = {"apiVersion": QUOTA, "kind": "ElasticQuota", "metadata": {"name": name, "namespace": namespace}, "spec": spec, **more}
    if marks:
        thing["metadata"]["labels"] = marks
    if annotations is not None:
        thing["metadata"]["annotations"] = annotations
    return thing


SHARE = f"{DOMAIN}/shared-weight"


def quotas_filled():
    def create(name, thing, **more):
        return name, QUOTA_FILL, review(QUOTA_FILL, thing, **more)

    ten = amounts(10, 10)
    yield create("plain", quota("new", max=ten, min=ten))
    yield create("no-parent", quota("new", None, ten, ten))
    yield create("empty-parent", quota("new", "", ten, ten))
    yield create("no-labels", quota("new", None, ten))
    yield create("unknown-parent", quota("new", "absent", ten))
    yield create("unknown-parent-with-tree", quota("new", "absent", ten, tree="t"))
    yield create("tree-of-parent", quota("new", "tree-root", ten))
    yield create("tree-of-its-own", quota("new", "tree-root", ten, tree="other"))
    yield create("tree-empty", quota("new", "tree-root", ten, tree=""))
    yield create("parent-without-tree", quota("new", "family", ten))
    yield create("itself", quota("new", "new", ten))
    yield create("root", quota(ROOT, None, ten))
    yield create("system", quota("koordinator-system-quota", None, ten))
    yield create("no-max", quota("new", min=ten))
    yield create("empty-max", quota("new", max={}))
    thing = quota("new")
    del thing["spec"]
    yield create("no-spec", thing)
    shares = {"empty": "", "same": json.dumps(ten), "fewer": json.dumps({"cpu": "5"}), "more": json.dumps({**ten, "nvidia.com/gpu": "1"}),
              "none-of": json.dumps({"nvidia.com/gpu": "1"}), "empty-object": "{}", "not-json": "{", "list": "[]", "null": "null",
              "bad-amount": json.dumps({"cpu": "much"}), "numbers": json.dumps({"cpu": 5, "memory": 1}), "other-text": '{"memory":"10Gi","cpu":"10000m"}',
              "negative": json.dumps({"cpu": "-1", "memory": "1"})}
    for name, text in shares.items():
        yield create(f"share/{name}", quota("new", max=ten, annotations={SHARE: text}))
    yield create("fractions", quota("new", max={"cpu": "1500m", "memory": "1.5Gi"}))
    yield create("exists", quota("leaf", max=ten))
    yield create("bad-amount", quota("new", max={"cpu": "much"}))
    yield create("bad-max", quota("new", max=["cpu"]))
    yield create("status-kept", quota("new", max=ten, status={"used": {"cpu": "1"}}))
    yield create("update", quota("leaf", max=ten), old=quota("leaf", max=ten), operation="UPDATE")
    yield create("delete", None, old=quota("leaf"), operation="DELETE")
    yield create("dry", quota("new", max=ten), dry=True)
    yield create("sub-resource", quota("new", max=ten), sub="status")
    yield create("other-kind", pod())
    yield create("namespace-of-request", quota("new", max=ten, namespace=""), namespace="plain")


def quotas_checked():
    def create(name, thing, **more):
        return name, QUOTA_CHECK, review(QUOTA_CHECK, thing, **more)

    def update(name, old, new, **more):
        return name, QUOTA_CHECK, review(QUOTA_CHECK, new, old=old, operation="UPDATE", **more)

    def delete(name, thing, **more):
        return name, QUOTA_CHECK, review(QUOTA_CHECK, None, old=thing, operation="DELETE", **more)

    some, forty, hundred = amounts(5, 5), amounts(40, 40), amounts(100, 100)
    notes = f"{DOMAIN}/namespaces"
    yield create("good", quota("n-good", max=forty, min=some))
    yield create("twice", quota("n-good", max=forty, min=some))
    yield create("exists", quota("leaf", max=forty, min=some))
    yield create("exists-elsewhere", quota("leaf", max=forty, min=some, namespace="plain"))
    yield create("dry", quota("n-dry", max=forty), dry=True)
    yield create("after-dry", quota("n-dry", max=forty))
    selves = {
        "negative-max": dict(max={"cpu": "-1"}), "negative-min": dict(max=some, min={"cpu": "-1"}),
        "negative-share": dict(max=some, annotations={SHARE: json.dumps({"cpu": "-1"})}),
        "zero-max": dict(max={"cpu": "0"}), "min-above": dict(max=some, min=forty), "min-equal": dict(max=some, min=some),
        "min-more-keys": dict(max={"cpu": "5"}, min=some), "min-fewer-keys": dict(max=some, min={"cpu": "1"}),
        "no-max": dict(min=some), "nothing": {}, "min-other-unit": dict(max={"cpu": "1"}, min={"cpu": "1000m"}),
        "min-hair-above": dict(max={"cpu": "1"}, min={"cpu": "1001m"}),
        "bad-share": dict(max=some, annotations={SHARE: "{"}), "bad-guarantee": dict(max=some, annotations={f"{DOMAIN}/guaranteed": "{"}),
        "bad-namespaces": dict(max=some, annotations={notes: "bound-9"}), "bad-admission": dict(max=some, annotations={f"{DOMAIN}/admission": "{"}),
        "strict": dict(max=some, labels={f"{DOMAIN}/x": "y"}, annotations={f"{DOMAIN}/max-strict-check-resource-keys": json.dumps(["cpu"])},
                       status={"used": {"cpu": "6"}}),
        "strict-fits": dict(max=some, annotations={f"{DOMAIN}/max-strict-check-resource-keys": json.dumps(["cpu"])}, status={"used": {"cpu": "5"}}),
        "strict-other-key": dict(max=some, annotations={f"{DOMAIN}/max-strict-check-resource-keys": json.dumps(["gpu"])}, status={"used": {"gpu": "5"}}),
        "strict-bad": dict(max=some, annotations={f"{DOMAIN}/max-strict-check-resource-keys": "cpu"}, status={"used": {"cpu": "6"}}),
        "used-above": dict(max=some, status={"used": {"cpu": "6"}}),
        "bad-is-parent": dict(max=some, is_parent="perhaps"), "parent-true": dict(max=some, is_parent="true"),
        "is-root": dict(max=some, labels={f"{DOMAIN}/is-root": "true"}),
        "bad-lent": dict(max=some, labels={f"{DOMAIN}/allow-lent-resource": "perhaps"}),
    }
    for name, of in selves.items():
        yield create(f"self/{name}", quota(f"s-{name}", **of))
    # Trees.
    yield create("tree/unknown-parent", quota("t-1", "absent", some, some))
    yield create("tree/parent-is-leaf", quota("t-2", "leaf", forty, some))
    yield create("tree/itself", quota("t-3", "t-3", forty, some))
    yield create("tree/no-parent", quota("t-4", None, forty, some))
    yield create("tree/room", quota("t-5", "room", forty, some))
    yield create("tree/room-to-the-brim", quota("t-6", "room", forty, some))
    yield create("tree/no-room", quota("t-7", "room", forty, {"cpu": "1"}))
    yield create("tree/full", quota("t-8", "full", forty, some))
    yield create("tree/full-of-memory", quota("t-9", "full", forty, {"memory": "1"}))
    yield create("tree/full-but-nothing", quota("t-10", "full", forty, {}))
    yield create("tree/forced", quota("t-11", "full", forty, some, {f"{DOMAIN}/allow-force-update": "true"}))
    yield create("tree/fewer-keys", quota("t-12", "keys", {"cpu": "1"}, {}))
    yield create("tree/more-keys", quota("t-13", "keys", {**forty, "nvidia.com/gpu": "1"}, {}))
    yield create("tree/max-above-parent", quota("t-14", "keys", hundred, {}))
    yield create("tree/min-keys", quota("t-15", "keys", {**forty}, {"cpu": "1"}))
    yield create("tree/id-of-parent", quota("t-16", "tree-root", hundred, {}, tree="tree-1"))
    yield create("tree/other-id", quota("t-17", "tree-root", hundred, {}, tree="tree-2"))
    yield create("tree/no-id", quota("t-18", "tree-root", hundred, {}))
    yield create("tree/id-below-root", quota("t-19", ROOT, hundred, {}, tree="tree-9"))
    yield create("tree/id-below-none", quota("t-20", "keys", forty, {}, tree="tree-9"))
    yield create("tree/below-default", quota("t-21", "koordinator-default-quota", forty, {}))
    yield create("tree/below-system", quota("t-22", "koordinator-system-quota", forty, {}))
    yield create("tree/root-itself", quota(ROOT, None, forty, {}))
    yield create("tree/system-itself", quota("koordinator-system-quota", ROOT, forty, {}))
    yield create("namespaces/taken", quota("b-1", max=some, annotations={notes: json.dumps(["bound-2"])}))
    yield create("namespaces/free", quota("b-2", max=some, annotations={notes: json.dumps(["b-2a", "b-2b"])}))
    yield create("namespaces/taken-now", quota("b-3", max=some, annotations={notes: json.dumps(["b-2b"])}))
    yield create("namespaces/twice-in-one", quota("b-4", max=some, annotations={notes: json.dumps(["b-4", "b-4"])}))
    yield create("namespaces/null", quota("b-5", max=some, annotations={notes: "null"}))
    yield create("namespaces/empty", quota("b-6", max=some, annotations={notes: ""}))
    yield create("namespaces/wrong-type", quota("b-7", max=some, annotations={notes: "{}"}))

    # Changes.
    def stored(name, parent=ROOT, max=None, min=None, is_parent="false", **more):
        return quota(name, parent, max or forty, min or amounts(10, 10), is_parent=is_parent, **more)

    yield update("update/same", stored("leaf"), stored("leaf"))
    yield update("update/label", stored("leaf"), stored("leaf", labels={"any": "thing"}))
    yield update("update/annotation", stored("leaf"), stored("leaf", annotations={"any": "thing"}))
    yield update("update/max", stored("changed-1"), stored("changed-1", max=hundred))
    yield update("update/max-below-min", stored("changed-1", max=hundred), stored("changed-1", max=some))
    yield update("update/min", stored("changed-2"), stored("changed-2", min=some))
    yield update("update/other-text", stored("changed-2", min=some), stored("changed-2", min={"cpu": "5000m", "memory": "5120Mi"}))
    yield update("update/unknown", stored("absent"), stored("absent", max=hundred))
    yield update("update/unknown-same", stored("absent"), stored("absent"))
    of_koord = dict(namespace="koordinator-system")
    yield update("update/system", quota("koordinator-system-quota", ROOT, PLENTY, {}, **of_koord),
                 quota("koordinator-system-quota", ROOT, forty, {}, **of_koord))
    yield update("update/default", quota("koordinator-default-quota", ROOT, PLENTY, {}, is_parent="false", **of_koord),
                 quota("koordinator-default-quota", ROOT, forty, {}, is_parent="false", **of_koord))
    yield update("update/root", quota(ROOT, "", {}, {}, is_parent="true", **of_koord), quota(ROOT, "", forty, {}, is_parent="true", **of_koord))
    yield update("update/same-name-elsewhere", stored("leaf"), stored("leaf", max=hundred, namespace="plain"))
    yield update("update/tree-id", stored("changed-3"), stored("changed-3", tree="new"))
    yield update("update/parent-to-leaf", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", max=hundred, min=amounts(60, 60)))
    yield update("update/emptied-to-leaf", stored("emptied", is_parent="true"), stored("emptied"))
    yield update("update/leaf-to-parent", stored("changed-3"), stored("changed-3", is_parent="true"))
    yield update("update/with-pods-to-parent", stored("with-pods"), stored("with-pods", is_parent="true"))
    yield update("update/one-pod-to-parent", stored("changed-6"), stored("changed-6", is_parent="true"))
    yield update("update/bound-to-parent", stored("bound", annotations={notes: json.dumps(["bound-1", "bound-2"])}),
                 stored("bound", is_parent="true", annotations={notes: json.dumps(["bound-1", "bound-2"])}))
    yield update("update/moved", stored("changed-4"), stored("changed-4", "family", max=hundred))
    yield update("update/moved-to-leaf", stored("changed-5"), stored("changed-5", "leaf"))
    yield update("update/moved-to-absent", stored("changed-5"), stored("changed-5", "absent"))
    yield update("update/moved-below-itself", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", "child-a", max=hundred, min=amounts(60, 60), is_parent="true"))
    yield update("update/child-min", stored("child-a", "family", hundred, amounts(20, 20)), stored("child-a", "family", hundred, amounts(41, 20)))
    yield update("update/family-min", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", max=hundred, min=amounts(30, 60), is_parent="true"))
    yield update("update/family-min-forced", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", max=hundred, min=amounts(59, 60), is_parent="true", labels={f"{DOMAIN}/allow-force-update": "true"}))
    yield update("update/family-keys", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", max={"cpu": "100"}, min={"cpu": "60"}, is_parent="true"))
    yield update("update/family-more-keys", stored("family", max=hundred, min=amounts(60, 60), is_parent="true"),
                 stored("family", max={**hundred, "nvidia.com/gpu": "8"}, min=amounts(60, 60), is_parent="true"))
    yield update("update/child-keys", stored("child-b", "family", hundred, amounts(20, 20)),
                 stored("child-b", "family", {"cpu": "100"}, {"cpu": "20"}))
    yield update("update/namespaces", stored("changed-5"), stored("changed-5", annotations={notes: json.dumps(["c-5"])}))
    yield update("update/namespaces-taken", stored("changed-5"), stored("changed-5", annotations={notes: json.dumps(["bound-1"])}))
    yield update("update/namespaces-bad", stored("changed-5"), stored("changed-5", annotations={notes: "["}))
    yield update("update/negative", stored("changed-5"), stored("changed-5", min={"cpu": "-1"}))
    yield update("update/guarantee", stored("tree-leaf", "tree-root", amounts(50, 50), amounts(10, 10), tree="tree-1"),
                 stored("tree-leaf", "tree-root", amounts(50, 50), amounts(10, 10), tree="tree-1", annotations={f"{DOMAIN}/guaranteed": json.dumps(some)}))
    yield update("update/guarantee-min", stored("tree-leaf", "tree-root", amounts(50, 50), amounts(10, 10), tree="tree-1"),
                 stored("tree-leaf", "tree-root", amounts(50, 50), amounts(20, 20), tree="tree-1"))
    yield update("update/no-old", None, stored("changed-5"))
    yield delete("delete/leaf", stored("gone-1"))
    yield delete("delete/again", stored("gone-1"))
    yield delete("delete/dry", stored("gone-2"), dry=True)
    yield delete("delete/after-dry", stored("gone-2"))
    yield delete("delete/parent", stored("full", is_parent="true"))
    yield delete("delete/with-pods", stored("with-pods"))
    yield delete("delete/unknown", stored("absent"))
    yield delete("delete/no-old", None)
    for name in [ROOT, "koordinator-default-quota", "koordinator-system-quota"]:
        yield delete(f"delete/{name}", quota(name, None, **of_koord))
    yield create("status", quota("leaf"), sub="status", operation="UPDATE")
    yield create("other-kind", pod())
    yield create("v1beta1", quota("v-1", max=forty), version="v1beta1")


def nodes():
    ratio = "node.koordinator.sh/resource-amplification-ratio"
    raw = "node.koordinator.sh/raw-allocatable"

    def node(allocatable=None, annotations=None, name="node-0", labels=None):
        thing = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {}}
        if annotations is not None:
            thing["metadata"]["annotations"] = annotations
        if labels is not None:
            thing["metadata"]["labels"] = labels
        if allocatable is not None:
            thing["status"] = {"allocatable": allocatable, "capacity": allocatable}
        return thing

    def update(name, old, new, user="system:node:node-0", **more):
        return name, NODE, review(NODE, new, old=old, operation=more.pop("operation", "UPDATE"), sub="status", user=user, **more)

    room, more_room = {"cpu": "16", "memory": "64Gi", "pods": "110"}, {"cpu": "20", "memory": "64Gi", "pods": "110"}
    twice = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    two = {ratio: json.dumps({"cpu": 2})}
    kept = {**two, raw: json.dumps({"cpu": "16", "memory": "64Gi"})}
    yield update("plain", node(room), node(room))
    yield update("create", None, node(room, two), operation="CREATE")
    yield update("no-allocatable", node(None, two), node(None, two))
    yield update("first", node(room, two), node(room, two))
    yield update("kept", node(twice, kept), node(twice, kept))
    yield update("kubelet-says-again", node(twice, kept), node(room, kept))
    yield update("kubelet-says-more", node(twice, kept), node(more_room, kept))
    yield update("kubelet-says-amplified", node(room, kept), node(twice, kept))
    yield update("manager-says-again", node(twice, kept), node(room, kept), user="system:serviceaccount:koordinator-system:koord-manager")
    yield update("ratio-gone", node(twice, kept), node(room, {raw: kept[raw]}))
    yield update("ratio-empty", node(twice, kept), node(room, {raw: kept[raw], ratio: ""}))
    yield update("raw-gone", node(twice, kept), node(twice, two))
    for name, text in {"not-json": "{", "list": "[]", "below-one": json.dumps({"cpu": 0.5}), "one": json.dumps({"cpu": 1}),
                       "fraction": json.dumps({"cpu": 1.35, "memory": 1.1}), "text": json.dumps({"cpu": "2"}), "null": "null",
                       "other-key": json.dumps({"pods": 2}), "negative": json.dumps({"cpu": -2}), "odd": json.dumps({"cpu": 0.29, "memory": 1.0001})}.items():
        yield update(f"ratio/{name}", node(room, {ratio: text}), node(room, {ratio: text}))
        yield update(f"ratio-kept/{name}", node(room, {ratio: text, raw: kept[raw]}), node(room, {ratio: text, raw: kept[raw]}))
    for name, text in {"not-json": "{", "list": "[]", "empty": "", "null": "null", "cpu-only": json.dumps({"cpu": "8"}), "bad-amount": json.dumps({"cpu": "much"})}.items():
        yield update(f"raw/{name}", node(room, {**two, raw: text}), node(room, {**two, raw: text}))
    yield update("no-old", None, node(room, two))
    yield update("delete", node(room, two), None, operation="DELETE")
    yield "spec-update", NODE, review(NODE, node(more_room, two), old=node(room, two), operation="UPDATE")

    def check(name, old, new, **more):
        return name, NODE_CHECK, review(NODE_CHECK, new, old=old, operation=more.pop("operation", "UPDATE"), **more)

    yield check("check/create", None, node(room, labels={"pool": "a", "kind": "old"}), operation="CREATE")
    yield check("check/same", node(room, labels={"pool": "a"}), node(room, labels={"pool": "a"}))
    yield check("check/moved", node(room, labels={"pool": "a"}), node(room, labels={"pool": "b"}))
    yield check("check/both", node(room, labels={"pool": "a"}), node(room, labels={"pool": "c", "kind": "old"}))
    yield check("check/both-before", node(room, labels={"pool": "c", "kind": "old"}), node(room, labels={"pool": "c", "kind": "old", "x": "y"}))
    yield check("check/of-two-keys", node(room), node(room, labels={"pool": "a", "kind": "old"}))
    yield check("check/none", node(room, labels={"pool": "a"}), node(room))
    yield check("check/status", node(room), node(room, labels={"pool": "c", "kind": "old"}), sub="status")
    yield check("check/no-old", None, node(room, labels={"pool": "c", "kind": "old"}))
    yield check("check/delete", node(room), None, operation="DELETE")


def settings():
    def config(data, name="slo-controller-config", namespace="koordinator-system", **more):
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "data": texts, "metadata": {
            "name": name, "namespace": namespace, "labels": {"koordinator.sh/configmap-type": "slo-controller-config"}}, **more}

    def create(name, thing, **more):
        return name, SETTING, review(SETTING, thing, **more)

    def update(name, old, new, **more):
        return name, SETTING, review(SETTING, new, old=old, operation="UPDATE", **more)

    yield create("empty", config({}))
    yield create("stored", config(SETTINGS))
    yield create("other-name", config({"colocation-config": "{"}, name="other"))
    yield create("other-namespace", config({"colocation-config": "{"}, namespace="plain"))
    keys = ["colocation-config", "resource-threshold-config", "resource-qos-config", "system-config", "cpu-burst-config",
            "host-application-config", "cpu-normalization-config", "resource-amplification-config", "third-party"]
    for key in keys:
        for name, text in {"not-json": "{", "list": "[]", "empty": "", "empty-object": "{}", "null": "null", "text": '"x"',
                           "trailing": "{} x", "unknown-field": '{"nothing": 1}'}.items():
            yield create(f"{key}/{name}", config({key: text}))
    # Fields of the co-location strategy and their bounds.
    colocation = {"enable": [True, "true"], "metricAggregateDurationSeconds": [0, 1, 300, -1, "5", 1.5], "metricReportIntervalSeconds": [0, 1],
                  "cpuReclaimThresholdPercent": [-1, 0, 100, 101, 300], "memoryReclaimThresholdPercent": [-1, 0, 65, 100, 101],
                  "memoryCalculatePolicy": ["usage", "request", "maxUsageRequest", "other", ""], "cpuCalculatePolicy": ["usage", "maxUsageRequest", "other"],
                  "degradeTimeMinutes": [0, 1, -1], "updateTimeThresholdSeconds": [0, 1, -5], "resourceDiffThreshold": [0, 0.1, 1, 1.5, -0.1],
                  "midCPUThresholdPercent": [-1, 0, 100, 101], "midMemoryThresholdPercent": [0, 101], "midUnallocatedPercent": [0, 101],
                  "batchCPUThresholdPercent": [-1, 100, 101], "batchMemoryThresholdPercent": [-1, 101], "allocatableCPU": [1],
                  "metricMemoryCollectPolicy": ["usageWithoutPageCache", "x"], "extensions": [{"x": 1}]}
    for field, values in colocation.items():
        for value in values:
            yield create(f"colocation/{field}/{json.dumps(value)}", config({"colocation-config": {field: value}}))
            if not isinstance(value, dict):
                yield create(f"colocation-node/{field}/{json.dumps(value)}", config({"colocation-config": {"enable": True, "nodeConfigs": [
                    {"name": "n", "nodeSelector": {"matchLabels": {"pool": "a"}}, field: value}]}}))
    threshold = {"enable": [True, 1], "cpuSuppressThresholdPercent": [-1, 0, 65, 100, 101, 650, "65"], "cpuSuppressPolicy": ["cpuset", "cfsQuota", "x"],
                 "memoryEvictThresholdPercent": [-1, 0, 70, 100, 101], "memoryEvictLowerPercent": [0, 65, 70, 100],
                 "cpuEvictBESatisfactionLowerPercent": [0, 60], "cpuEvictBESatisfactionUpperPercent": [0, 60, 101],
                 "cpuEvictBEUsageThresholdPercent": [0, 90, 101], "cpuEvictTimeWindowSeconds": [0, 1, -1], "cpuEvictPolicy": ["evictByRealLimit", "x"],
                 "memoryEvictThresholdPercents": [1]}
    for field, values in threshold.items():
        for value in values:
            yield create(f"threshold/{field}/{json.dumps(value)}", config({"resource-threshold-config": {"clusterStrategy": {field: value}}}))
    for low, high in [(60, 70), (70, 60), (70, 70), (0, 100), (65, 70)]:
        yield create(f"threshold-pair/memory/{low}-{high}", config({"resource-threshold-config": {"clusterStrategy": {
            "memoryEvictLowerPercent": low, "memoryEvictThresholdPercent": high}}}))
        yield create(f"threshold-pair/cpu/{low}-{high}", config({"resource-threshold-config": {"clusterStrategy": {
            "cpuEvictBESatisfactionLowerPercent": low, "cpuEvictBESatisfactionUpperPercent": high}}}))
    burst = {"policy": ["auto", "none", "cpuBurstOnly", "cfsQuotaBurstOnly", "x", ""], "cpuBurstPercent": [0, 1, 1000, 10000, 10001, -1],
             "cfsQuotaBurstPercent": [99, 100, 300], "cfsQuotaBurstPeriodSeconds": [-2, -1, 0, 10], "sharePoolThresholdPercent": [-1, 0, 50, 100, 101]}
    for field, values in burst.items():
        for value in values:
            yield create(f"burst/{field}/{json.dumps(value)}", config({"cpu-burst-config": {"clusterStrategy": {field: value}}}))
    system = {"minFreeKbytesFactor": [0, 1, 100, -1], "watermarkScaleFactor": [0, 1, 400, 401], "memcgReapBackGround": [-1, 0, 1, 2],
              "totalNetworkBandwidth": ["1G", "x", 5, "-1"]}
    for field, values in system.items():
        for value in values:
            yield create(f"system/{field}/{json.dumps(value)}", config({"system-config": {"clusterStrategy": {field: value}}}))
    bandwidth = {"system-config": {"clusterStrategy": {"totalNetworkBandwidth": "10G"}}}
    for cls in ["lsrClass", "lsClass", "beClass", "systemClass"]:
        for part, field, values in [("cpuQOS", "groupIdentity", [-2, -1, 0, 2, 3]), ("cpuQOS", "schedIdle", [0, 1, 2, -1]),
                                    ("memoryQOS", "minLimitPercent", [-1, 0, 100, 101]), ("memoryQOS", "throttlingPercent", [0, 101]),
                                    ("memoryQOS", "wmarkRatio", [0, 95, 101]), ("memoryQOS", "wmarkScalePermill", [0, 1, 1000, 1001]),
                                    ("memoryQOS", "wmarkMinAdj", [-26, -25, 50, 51]), ("memoryQOS", "oomKillGroup", [0, 1, 2]),
                                    ("resctrlQOS", "catRangeStartPercent", [-1, 0, 100]), ("resctrlQOS", "catRangeEndPercent", [0, 100, 101]),
                                    ("resctrlQOS", "mbaPercent", [0, 101])]:
            for value in values:
                yield create(f"qos/{cls}/{field}/{json.dumps(value)}", config({**bandwidth, "resource-qos-config": {"clusterStrategy": {
                    cls: {part: {"enable": True, field: value}}}}}))
    network = {"percent": {"lsrClass": {"ingressRequest": 30}, "lsClass": {"ingressRequest": 30}, "beClass": {"ingressRequest": 40}},
               "too-much": {"lsrClass": {"ingressRequest": 60}, "lsClass": {"ingressRequest": 60}},
               "amounts": {"lsrClass": {"ingressRequest": "1G"}, "lsClass": {"egressRequest": "1G"}},
               "amounts-too-much": {"lsrClass": {"ingressRequest": "6G"}, "lsClass": {"ingressRequest": "6G"}},
               "mixed": {"lsrClass": {"ingressRequest": "1G"}, "lsClass": {"ingressRequest": 10}},
               "bad-amount": {"lsClass": {"ingressRequest": "much"}}, "above-hundred": {"lsClass": {"ingressLimit": 101}},
               "limit": {"lsClass": {"ingressRequest": 10, "ingressLimit": 5}}, "percent-text": {"lsClass": {"ingressRequest": "50%"}}}
    for name, classes in network.items():
        strategy = {"clusterStrategy": {cls: {"networkQOS": {"enable": True, **of}} for cls, of in classes.items()}}
        yield create(f"network/{name}", config({**bandwidth, "resource-qos-config": strategy}))
        yield create(f"network-alone/{name}", config({"resource-qos-config": strategy}))

    # Overrides by node.
    def nodes_of(*selectors, names=None):
        return [{"name": (names or "abcdef")[i], "nodeSelector": selector, "cpuReclaimThresholdPercent": 50} if selector is not None
                else {"name": "x", "cpuReclaimThresholdPercent": 50} for i, selector in enumerate(selectors)]

    label = lambda **labels: {"matchLabels": labels}
    within = lambda key, *values: {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    overlaps = {"none": [label(pool="a"), label(pool="b")], "same": [label(pool="a"), label(pool="a")], "subset": [label(pool="a"), label(pool="a", kind="x")],
                "on-a-node": [label(pool="b"), label(kind="old")], "no-node": [label(pool="z"), label(kind="z")], "in": [within("pool", "a", "b"), label(pool="b")],
                "in-apart": [within("pool", "a"), within("pool", "b")], "empty-selector": [{}], "no-selector": [None],
                "bad-operator": [{"matchExpressions": [{"key": "pool", "operator": "Like", "values": ["a"]}]}],
                "no-values": [{"matchExpressions": [{"key": "pool", "operator": "In"}]}], "bad-key": [label(**{"a b": "c"})],
                "bad-value": [label(pool="a b")], "exists": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, label(pool="a")],
                "not-in": [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["a"]}]}, label(pool="b")],
                "three": [label(pool="a"), label(pool="b"), label(pool="c")]}
    for name, selectors in overlaps.items():
        yield create(f"nodes/{name}", config({"colocation-config": {"enable": True, "nodeConfigs": nodes_of(*selectors)}}))
        yield create(f"nodes-threshold/{name}", config({"resource-threshold-config": {"clusterStrategy": {"enable": True}, "nodeStrategies": [
            {"name": entry["name"], **({"nodeSelector": entry["nodeSelector"]} if "nodeSelector" in entry else {}), "cpuSuppressThresholdPercent": 50}
            for entry in nodes_of(*selectors)]}}))
        yield create(f"nodes-normalization/{name}", config({"cpu-normalization-config": {"enable": True, "nodeConfigs": [
            {key: value for key, value in entry.items() if key != "cpuReclaimThresholdPercent"} for entry in nodes_of(*selectors)]}}))
    yield create("nodes/same-name", config({"colocation-config": {"nodeConfigs": nodes_of(label(pool="a"), label(pool="b"), names="aa")}}))
    # Keys that upstream ignores.
    yield create("host/good", config({"host-application-config": {"applications": [{"name": "nginx", "priority": "koord-prod", "qos": "LS"}]}}))
    yield create("host/bad-qos", config({"host-application-config": {"applications": [{"name": "nginx", "qos": 5}]}}))
    yield create("host/bad-path", config({"host-application-config": {"applications": [{"name": "nginx", "cgroupPath": {"base": "CgroupRoot", "relativePath": "../x"}}]}}))
    yield create("normalization/good", config({"cpu-normalization-config": {"enable": True, "ratioModel": {"m": {"baseRatio": 1.5}}}}))
    yield create("normalization/bad-ratio", config({"cpu-normalization-config": {"enable": True, "ratioModel": {"m": {"baseRatio": "1.5"}}}}))
    yield create("amplification/good", config({"resource-amplification-config": {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}}}))
    yield create("amplification/below-one", config({"resource-amplification-config": {"enable": True, "resourceAmplificationRatio": {"cpu": 0.5}}}))
    # Changes, of which only the changed part counts.
    bad = config({"colocation-config": {"cpuReclaimThresholdPercent": -1}})
    yield update("update/bad-before", bad, config({**bad["data"], "system-config": "{}"}))
    yield update("update/bad-now", config({}), bad)
    yield update("update/same", bad, bad)
    yield update("update/mended", bad, config({}))
    yield update("update/no-old", None, config({}))
    yield "delete", SETTING, review(SETTING, None, config(SETTINGS), "DELETE")
    yield create("v1beta1", config(SETTINGS), version="v1beta1")
    yield create("v1beta1-bad", bad, version="v1beta1")
    yield create("binary", config({}, binaryData={"colocation-config": "AAAA"}))
    yield create("cases", config({"colocation-config": {"Enable": True, "CPUReclaimThresholdPercent": 500}}))
    yield create("twice-the-key", config({"colocation-config": '{"cpuReclaimThresholdPercent": 50, "cpuReclaimThresholdPercent": -1}'}))


def reservations():
    def reserve(labels=None, annotations=None, template=True, **spec):
        if template:
            spec["template"] = {"metadata": {"labels": {"of": "template"}}, "spec": {
                "containers": [container(requests={"cpu": "1", "memory": "1Gi"})], "schedulerName": "mine"}}
        thing = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation", "metadata": {"name": "r"},
                 "spec": {"ttl": "1h", "owners": [{"labelSelector": {"matchLabels": {"app": "x"}}}], **spec}}
        if labels is not None:
            thing["metadata"]["labels"] = labels
        if annotations is not None:
            thing["metadata"]["annotations"] = annotations
        return thing

    def create(name, thing, **more):
        return name, RESERVE, review(RESERVE, thing, **more)

    yield create("none", reserve())
    for profile in ["batch", "mid", "prod", "only-qos", "only-class", "only-labels", "empty", "p-zero", "p-all", "p-word", "no-class", "never", "sub",
                    "mapping", "suffix", "chain", "two", "team-and-pod", "all-in", "expressions", "patch-merge", "patch-unknown", "patch-wrong",
                    "patch-null", "skip-resources"]:
        yield create(f"profile/{profile}", reserve({"profile": profile, "app": "web", "from": "here"}, {"a-from": "there"}))
        yield create(f"no-template/{profile}", reserve({"profile": profile, "app": "web"}, template=False))
    yield create("update", reserve({"profile": "batch"}), old=reserve({"profile": "batch"}), operation="UPDATE")
    yield create("delete", None, old=reserve({"profile": "batch"}), operation="DELETE")
    yield create("sub-resource", reserve({"profile": "batch"}), sub="status")
    yield create("other-resource", reserve({"profile": "batch"}), resource="pods")


def shapes():
    """Invalid bodies, for every path."""
    paths = [POD, CHECK, BIND, QUOTA_FILL, QUOTA_CHECK, NODE, NODE_CHECK, SETTING, RESERVE]
    for path in paths:
        short = path.strip("/").replace("scheduling-sigs-k8s-io-v1alpha1-", "")
        yield f"{short}/empty", path, b""
        yield f"{short}/not-json", path, b"{"
        yield f"{short}/text", path, b"hello"
        yield f"{short}/list", path, b"[]"
        yield f"{short}/null", path, b"null"
        yield f"{short}/object", path, b"{}"
        yield f"{short}/no-request", path, b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}'
        yield f"{short}/other-review", path, b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{}}'
        yield f"{short}/unknown-version", path, b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v9","request":{"uid":"u"}}'
        yield f"{short}/no-object", path, review(path, None, operation="CREATE", sub="binding" if path == BIND else "status" if path == NODE else "")
        sub = {BIND: "binding", NODE: "status"}.get(path, "")
        for name, thing in {"text-object": "hello", "list-object": [], "number-object": 5, "empty-object": {}, "wrong-labels": {
                "metadata": {"name": "x", "labels": {"a": 1}}}, "wrong-metadata": {"metadata": "x"}, "deployment": {
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1}}}.items():
            yield f"{short}/{name}", path, review(path, thing, sub=sub)
            yield f"{short}/{name}-update", path, review(path, thing, thing, "UPDATE", sub=sub)
    for name, change in {"bad-quantity": lambda p: p["spec"]["containers"][0]["resources"].update(requests={"cpu": "much"}),
                         "containers-text": lambda p: p["spec"].update(containers="x"), "priority-text": lambda p: p["spec"].update(priority="x"),
                         "no-spec": lambda p: p.pop("spec"), "null-spec": lambda p: p.update(spec=None), "no-containers": lambda p: p["spec"].update(containers=[]),
                         "null-container": lambda p: p["spec"].update(containers=[None]), "unknown-field": lambda p: p["spec"].update(tomorrow=1),
                         "null-labels": lambda p: p["metadata"].update(labels=None), "large-number": lambda p: p["spec"].update(priority=2 ** 40),
                         "fraction": lambda p: p["spec"].update(priority=1.5), "other-case": lambda p: p["spec"].update(Priority=5500)}.items():
        for path in (POD, CHECK):
            thing = pod({"profile": "batch"})
            change(thing)
            yield f"pod-{path.strip('/')}/{name}", path, review(path, thing)
    deep = b'{"a":' * 20000 + b"1" + b"}" * 20000
    yield "deep", POD, b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","object":' + deep + b"}}"
