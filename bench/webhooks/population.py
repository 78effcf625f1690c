"""Objects of both API servers before the reviews: profiles, quotas, namespaces, nodes, settings."""
import json

PROFILE = "config.koordinator.sh/v1alpha1"
QUOTA = "scheduling.sigs.k8s.io/v1alpha1"
DOMAIN = "quota.scheduling.koordinator.sh"
GI = "Gi"


def thing(version, kind, name, namespace=None, labels=None, annotations=None, **rest):
    meta = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if labels:
        meta["labels"] = labels
    if annotations:
        meta["annotations"] = annotations
    return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}


def profile(name, annotations=None, **spec):
    """A profile for pods with the label `profile: NAME`, unless it has selectors of its own."""
    if "selector" not in spec and "namespaceSelector" not in spec:
        spec["selector"] = {"matchLabels": {"profile": name}}
    return thing(PROFILE, "ClusterColocationProfile", name, annotations=annotations, spec=spec)


CLASSES = {"prod": "koord-prod", "mid": "koord-mid", "batch": "koord-batch", "free": "koord-free"}


def profiles():
    yield profile("batch", qosClass="BE", priorityClassName="koord-batch", koordinatorPriority=1000,
                  schedulerName="koord-scheduler", labels={"by": "profile", "app": "overwritten"},
                  annotations={"note": "overwritten"})
    for name, qos in [("mid", "BE"), ("prod", "LSR"), ("free", "BE")]:
        yield profile(name, qosClass=qos, priorityClassName=CLASSES[name])
    yield profile("only-qos", qosClass="LS")
    yield profile("only-class", priorityClassName="koord-batch")
    yield profile("only-labels", labels={"one": "1", "two": ""}, annotations={"three": "3"})
    yield profile("empty")
    for name, probability in [("p-zero", 0), ("p-all", 100), ("p-zero-text", "0%"), ("p-all-text", "100%"),
                              ("p-word", "often"), ("p-plain-text", "100"), ("p-big", 250), ("p-negative", -1)]:
        yield profile(name, probability=probability, labels={"probability": name})
    yield profile("no-class", priorityClassName="nowhere", labels={"before": "it"})
    yield profile("high", priorityClassName="high-priority")
    yield profile("never", priorityClassName="never-preempts")
    yield profile("sub", koordinatorPriority=0)
    yield profile("sub-negative", koordinatorPriority=-7)
    yield profile("mapping", labelKeysMapping={"from": "to", "absent": "nothing", "app": "app"},
                  annotationKeysMapping={"a-from": "a-to", "a-absent": "a-nothing"})
    yield profile("suffix", labelSuffixes={"app": "-batch", "absent": "-x"})
    yield profile("chain", labels={"chain": "label"}, labelKeysMapping={"chain": "chained"}, labelSuffixes={"chained": "-end"})
    yield profile("skip-resources", {"config.koordinator.sh/skip-update-resources": ""}, qosClass="BE",
                  priorityClassName="koord-batch")
    yield profile("p-zero-skip", {"config.koordinator.sh/skip-update-resources": "true"}, probability=0,
                  labels={"never": "seen"})
    # Two for one pod: by name, the later wins.
    both = {"matchLabels": {"profile": "two"}}
    yield profile("two-a", selector=both, labels={"who": "a", "a": "yes"}, qosClass="LS", priorityClassName="koord-prod")
    yield profile("two-b", selector=both, labels={"who": "b"}, qosClass="BE", priorityClassName="koord-batch")
    # The first one does not change what selects the second one.
    yield profile("link-a", selector={"matchLabels": {"profile": "link"}}, labels={"profile": "linked"})
    yield profile("link-b", selector={"matchLabels": {"profile": "linked"}}, labels={"linked": "yes"})
    team = {"matchLabels": {"team": "a"}}
    yield profile("team-only", namespaceSelector=team, labels={"of-team": "a"})
    yield profile("team-and-pod", namespaceSelector=team, selector={"matchLabels": {"profile": "team-and-pod"}},
                  labels={"both": "yes"})
    yield profile("all-in", namespaceSelector={}, selector={"matchLabels": {"profile": "all-in"}}, labels={"all": "in"})
    yield profile("bad-selector", selector={"matchExpressions": [{"key": "profile", "operator": "Like", "values": ["x"]}]},
                  namespaceSelector={"matchLabels": {"team": "bad"}}, labels={"bad": "selector"})
    yield profile("bad-namespaces", selector={"matchLabels": {"profile": "bad-namespaces"}},
                  namespaceSelector={"matchExpressions": [{"key": "team", "operator": "In"}]}, labels={"bad": "namespaces"})
    yield profile("expressions", selector={"matchExpressions": [
        {"key": "profile", "operator": "In", "values": ["expressions", "also"]},
        {"key": "not", "operator": "DoesNotExist"}, {"key": "kind", "operator": "NotIn", "values": ["service"]},
        {"key": "app", "operator": "Exists"}]}, labels={"matched": "yes"})
    patches = {
        "merge": {"metadata": {"annotations": {"patched": "yes"}}, "spec": {"terminationGracePeriodSeconds": 5}},
        "null": {"metadata": {"labels": {"app": None}}, "spec": {"nodeSelector": None}},
        "tolerations": {"spec": {"tolerations": [{"key": "batch", "operator": "Exists"}]}},
        "container": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "patched"}]}]}},
        "new-container": {"spec": {"containers": [{"name": "more", "image": "more"}]}},
        "volumes": {"spec": {"volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}]}},
        "replace": {"spec": {"containers": [{"$patch": "replace"}, {"name": "other", "image": "other"}]}},
        "delete": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}},
        "primitive": {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"], "finalizers": ["c/d"]}},
        "order": {"spec": {"$setElementOrder/containers": [{"name": "side"}, {"name": "main"}],
                           "containers": [{"name": "side", "image": "ordered"}]}},
        "retain": {"spec": {"volumes": [{"name": "data", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}},
        "unknown": {"spec": {"nothingKnows": 1, "priority": 7}},
        "wrong": {"spec": {"containers": "text"}},
        "wrong-type": {"spec": {"priority": "high"}},
        "affinity": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "batch", "operator": "Exists"}]}]}}}}},
        "resources": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "3"}, "requests": None}}]}},
        "spread": {"spec": {"topologySpreadConstraints": [
            {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"}]}},
    }
    for name, patch in patches.items():
        yield profile(f"patch-{name}", patch=patch)


def quota(name, parent="", max=None, min=None, tree=None, is_parent=False, namespace="quotas", labels=None,
          annotations=None):
    marks = {f"{DOMAIN}/is-parent": "true" if is_parent else "false", **(labels or {})}
    if parent:
        marks[f"{DOMAIN}/parent"] = parent
    if tree:
        marks[f"{DOMAIN}/tree-id"] = tree
    return thing(QUOTA, "ElasticQuota", name, namespace, marks, annotations, spec={"max": max or {}, "min": min or {}})


def amounts(cores, gib):
    return {"cpu": str(cores), "memory": f"{gib}Gi"}


ROOT = "koordinator-root-quota"
PLENTY = amounts(100000, 100000)


def quotas():
    system = "koordinator-system"
    yield quota(ROOT, "", {}, {}, is_parent=True, namespace=system)
    yield quota("koordinator-system-quota", ROOT, PLENTY, {}, namespace=system)
    yield quota("koordinator-default-quota", ROOT, PLENTY, {}, namespace=system)
    # A family of two children, each 20 of 60 guaranteed.
    yield quota("family", ROOT, amounts(100, 100), amounts(60, 60), is_parent=True)
    yield quota("child-a", "family", amounts(100, 100), amounts(20, 20))
    yield quota("child-b", "family", amounts(100, 100), amounts(20, 20))
    # Families whose children come with reviews.
    for name in ["full", "room", "keys", "forced"]:
        yield quota(name, ROOT, amounts(40, 40), amounts(10, 10), is_parent=True)
    yield quota("full-child", "full", amounts(40, 40), amounts(10, 10))
    yield quota("emptied", ROOT, amounts(40, 40), amounts(10, 10), is_parent=True)
    yield quota("leaf", ROOT, amounts(40, 40), amounts(10, 10))
    for name in ["gone-1", "gone-2", "with-pods", "changed-1", "changed-2", "changed-3", "changed-4", "changed-5", "changed-6"]:
        yield quota(name, ROOT, amounts(40, 40), amounts(10, 10))
    yield quota("bound", ROOT, amounts(40, 40), amounts(10, 10),
                annotations={f"{DOMAIN}/namespaces": json.dumps(["bound-1", "bound-2"])})
    yield quota("team-a", ROOT, amounts(40, 40), amounts(10, 10), namespace="team-a")
    # A tree, and the profile that its pods' node affinity is of.
    yield quota("tree-root", ROOT, amounts(100, 100), amounts(100, 100), tree="tree-1", is_parent=True,
                labels={f"{DOMAIN}/is-root": "true"})
    yield quota("tree-leaf", "tree-root", amounts(50, 50), amounts(10, 10), tree="tree-1")
    yield quota("tree-lost", ROOT, amounts(50, 50), amounts(10, 10), tree="tree-absent", is_parent=True,
                labels={f"{DOMAIN}/is-root": "true"})
    # Those that pods are charged to.
    yield quota("small", ROOT, amounts(4, 4), amounts(1, 1))
    yield quota("capped", ROOT, amounts(40, 40), amounts(1, 1),
                annotations={f"{DOMAIN}/admission": json.dumps({"cpu": "2"})})
    yield quota("used", ROOT, amounts(4, 4), amounts(1, 1),
                annotations={f"{DOMAIN}/child-request": json.dumps({"cpu": "3500m", "memory": "1Gi"})})
    yield quota("batch-only", ROOT, {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}, {})
    yield quota("odd-keys", ROOT, {"example.com/thing": "1"}, {})
    yield quota("twice", ROOT, amounts(40, 40), {}, namespace="team-a")
    yield quota("twice", ROOT, amounts(40, 40), {}, namespace="team-b")


def tree_profiles():
    version = "quota.koordinator.sh/v1alpha1"
    yield thing(version, "ElasticQuotaProfile", "tree-1", "quotas", {f"{DOMAIN}/tree-id": "tree-1"},
                spec={"quotaName": "tree-root", "nodeSelector": {
                    "matchLabels": {"pool": "a"},
                    "matchExpressions": [{"key": "kind", "operator": "NotIn", "values": ["gpu", "old"]}]}})


def pod(name, namespace, labels):
    return thing("v1", "Pod", name, namespace, labels, spec={
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]})


SETTINGS = {
    "colocation-config": {"enable": True, "nodeConfigs": [
        {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuReclaimThresholdPercent": 70},
        {"name": "b", "nodeSelector": {"matchLabels": {"pool": "b"}}, "cpuReclaimThresholdPercent": 60}]},
    "resource-threshold-config": {"clusterStrategy": {"enable": True}, "nodeStrategies": [
        {"name": "old", "nodeSelector": {"matchLabels": {"kind": "old"}}, "cpuSuppressThresholdPercent": 50},
        {"name": "c", "nodeSelector": {"matchLabels": {"pool": "c"}}, "cpuSuppressThresholdPercent": 60}]},
}
RULES = [{"name": "owner", "requiredLabels": ["owner", "cost"], "namespaceWhitelist": [
    "default", "team-a", "team-b", "plain", "bound-1", "quotas", "kube-system", "tree-1", "tree-leaf", "ghost", ""]}]


def everything():
    for name, labels in [("koordinator-system", {"control-plane": "koordinator"}), ("team-a", {"team": "a"}),
                         ("team-b", {"team": "b"}), ("plain", None), ("bad", {"team": "bad"}), ("strict", None),
                         ("quotas", None), ("bound-1", None), ("bound-2", None), ("tree-leaf", None)]:
        yield thing("v1", "Namespace", name, labels=labels)
    version = "scheduling.k8s.io/v1"
    yield thing(version, "PriorityClass", "high-priority", value=100000)
    yield thing(version, "PriorityClass", "never-preempts", value=5100, preemptionPolicy="Never")
    for i, pool in enumerate("aabb"):
        room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        yield thing("v1", "Node", f"node-{i}", labels={"pool": pool, **({"kind": "old"} if i == 3 else {})},
                    status={"capacity": room, "allocatable": room})
    for make in (profiles, quotas, tree_profiles):
        yield from make()
    name = f"{DOMAIN}/name"
    yield pod("with-1", "plain", {name: "with-pods"})
    yield pod("with-2", "plain", {name: "with-pods"})
    yield pod("with-3", "plain", {name: "with-pods"})
    yield pod("team-1", "team-a", {name: "changed-6"})
    yield pod("waits", "plain", {"app": "waits"})
    yield pod("may-be-bound", "plain", {"koordinator.sh/binding-admission-bypass": ""})
    system = "koordinator-system"
    yield thing("v1", "ConfigMap", "slo-controller-config", system, {"koordinator.sh/configmap-type": "slo-controller-config"},
                data={key: json.dumps(value) for key, value in SETTINGS.items()})
    yield thing("v1", "ConfigMap", "pod-enhanced-validator-config", system,
                data={"enable": "true", "rules": json.dumps(RULES)})
