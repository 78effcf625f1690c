"""Themes of Koordinator's features."""
import json

from clusters import theme

GPU = "koordinator.sh/gpu"
QUOTA = "quota.scheduling.koordinator.sh"
SCHEDULING = "scheduling.koordinator.sh"
GANG = "gang.scheduling.koordinator.sh"
LSR = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}


@theme
def load(of):
    """Nodes with high usage, one with thresholds of its own, and reports that change."""
    nodes = [of.node(), of.node(), of.node(annotations={f"{SCHEDULING}/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 30}})}), of.node()]
    for node in nodes[:3]:
        of.usage(node, of.draw.randint(100, 4000), of.draw.randint(100, 20000))
    for _ in range(4):
        of.pod(of.amounts(4000), limits={"cpu": "4500m"} if of.some(0.3) else None)
    change = {"status": {"updateTime": "now", "nodeMetric": {"nodeUsage": {"resources": {"cpu": "16", "memory": "1Gi"}}}}}
    of.change("NodeMetric", nodes[0], change, "status")
    for _ in range(2):
        of.pod(of.amounts(6000))
    for node in nodes[1:3]:
        of.change("NodeMetric", node, change, "status")
    of.pod({"cpu": "2", "memory": "20Gi"}, nodeSelector={"twin": of.name, "kubernetes.io/hostname": nodes[1]})
    of.change("NodeMetric", nodes[1], {"status": {"updateTime": "now", "nodeMetric": {"nodeUsage": {"resources": {"cpu": "100m"}}}}}, "status")


@theme
def batch(of):
    """Pods that request reclaimed resources."""
    for _ in range(3):
        of.node({"kubernetes.io/batch-cpu": str(of.draw.randint(2000, 9000)), "kubernetes.io/batch-memory": f"{of.draw.randint(3000, 20000)}Mi"})
    for _ in range(8):
        of.pod({"kubernetes.io/batch-cpu": str(of.draw.randint(500, 4000)), "kubernetes.io/batch-memory": f"{of.draw.randint(100, 8000)}Mi"},
               {"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"}, priorityClassName="koord-batch")


@theme
def gangs(of):
    """Members that wait for the last one; a gang by annotations; one that fits nowhere; two in one group."""
    # With room for some members only, Koordinator's scheduler writes without end, so all fit or none does.
    # Each prefers a node, as members that are bound cannot be drawn again.
    nodes = [of.node(), of.node(), of.node()]

    def member(gang, size="300m", annotations=None):
        labels = {} if annotations else {"pod-group.scheduling.sigs.k8s.io": gang}
        there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [of.draw.choice(nodes)]}]}
        return of.pod({"cpu": size, "memory": f"{of.draw.randint(50, 400)}Mi"}, labels, annotations, affinity={"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": there}]}})

    first, large = of.label("g0"), of.label("g1")
    for name in (first, large):
        of.also("PodGroup", name, True, spec={"minMember": 3, "scheduleTimeoutSeconds": 600})
    for _ in range(3):
        member(first)
    noted = {f"{GANG}/name": of.label("g2"), f"{GANG}/min-available": "2"}
    for _ in range(2):
        member(noted[f"{GANG}/name"], annotations=noted)
    for _ in range(3):
        member(large, "100")
    both = json.dumps([f"default/{of.label(name)}" for name in ("g3", "g4")])
    for name in ("g3", "g4"):
        of.also("PodGroup", of.label(name), True, spec={"minMember": 1, "scheduleTimeoutSeconds": 600}, metadata={
            "name": of.label(name), "namespace": "default", "annotations": {f"{GANG}/groups": both}})
        member(of.label(name))
    member(first)


def quota(of, name, low, high, parent="koordinator-root-quota", is_parent=False):
    """Returns min and max in cores and the same number of Gi."""
    of.also("ElasticQuota", name, True,
            metadata={"name": name, "namespace": "default", "labels": {
                f"{QUOTA}/parent": parent, f"{QUOTA}/is-parent": json.dumps(is_parent)}},
            spec={"min": {"cpu": str(low), "memory": f"{low}Gi"}, "max": {"cpu": str(high), "memory": f"{high}Gi"}})


@theme
def quotas(of):
    """A quota that is used up, grows and is released; more important pods of one preempt others."""
    name = of.label("q0")
    of.node({"cpu": "24"}), of.node({"cpu": "24"})
    quota(of, name, of.draw.randint(1, 3), 6)
    mine = {f"{QUOTA}/name": name}

    # All pods before the more important one fit: otherwise any waiting pod could use what it frees.
    def wants():
        return {"cpu": f"{of.draw.randint(1550, 2200)}m", "memory": f"{of.draw.randint(100, 1400)}Mi"}

    pods = [of.pod(wants(), mine, priorityClassName="twin-low") for _ in range(4)]
    of.change("ElasticQuota", name, {"spec": {"max": {"cpu": "9", "memory": "9Gi"}}})
    of.pod({"cpu": "3", "memory": "1Gi"}, mine, priorityClassName="twin-high")
    of.pod(wants(), {**mine, f"{QUOTA}/preemptible": "false"}, priorityClassName="twin-low")
    of.gone(pods[0])


@theme
def tree(of):
    """Two quotas below one: each may use what the other leaves, up to the parent's."""
    root, left, right = (of.label(name) for name in ("q1", "q2", "q3"))
    of.node({"cpu": "32"}), of.node({"cpu": "32"})
    quota(of, root, 6, 8, is_parent=True)
    quota(of, left, 2, 8, root)
    quota(of, right, of.draw.randint(1, 4), 7, root)
    for name in [left, left, right, left, right, right, left]:
        of.pod({"cpu": f"{of.draw.randint(800, 2500)}m", "memory": f"{of.draw.randint(100, 900)}Mi"}, {f"{QUOTA}/name": name})


def reserve(of, name, size, **spec):
    of.events.append(("create", {"kind": "Reservation", "metadata": {"name": name, "labels": spec.pop("labels", {})}, "spec": {
        "ttl": "0s", "owners": [{"labelSelector": {"matchLabels": {"app": name}}}],
        "template": {"metadata": {"namespace": "default"}, "spec": {
            "schedulerName": "koord-scheduler", "nodeSelector": {"twin": of.name},
            "containers": [{"name": "c", "image": "i", "resources": {"requests": size}}]}}, **spec}}))


@theme
def reservations(of):
    """Reservations for one or several pods, with and without other capacity of the node; pods that need one, and pods that are no owners."""
    for _ in range(2):
        of.node({"cpu": "10"})
    owners = []

    def used(index, once, policy):
        app = of.label(f"r{index}")
        cpu, memory = of.draw.randint(375, 3000), of.draw.randint(100, 6000)

        def part(least, most):
            share = of.draw.randint(least, most)
            return {"cpu": f"{cpu * share // 100}m", "memory": f"{memory * share // 100}Mi"}

        # Only owners that are limited to the reservation request more: see `beyond`.
        strict = once or policy["allocatePolicy"] == "Restricted"
        reserve(of, app, part(100, 100), allocateOnce=once, **policy)
        owners.append(of.pod(part(100, 100) if strict and of.some(0.5) else part(20, 60), {"app": app}))
        of.pod(of.amounts(3000) if strict else part(10, 40), {"app": app},
               {f"{SCHEDULING}/reservation-affinity": json.dumps({"name": app})} if of.some(0.5) else None)

    used(0, False, {"allocatePolicy": "Aligned"})
    used(1, False, {"allocatePolicy": "Restricted"})
    of.pod(of.amounts(6000))
    of.pod(of.amounts(500), {"app": "absent"}, {f"{SCHEDULING}/reservation-affinity": json.dumps({"reservationSelector": {"no": "such"}})})
    of.gone(owners[1])
    of.gone(of.label("r0"), "Reservation")
    # Last, as Koordinator's counts it twice from then on.
    used(2, True, {"allocatePolicy": of.draw.choice(["Aligned", "Restricted"])} if of.some(0.5) else {})


@theme
def beyond(of):
    """Owners that use more than is reserved, and a pod that fits only if that is not counted."""
    of.node({"cpu": "10"})
    app = of.label("b0")
    reserve(of, app, {"cpu": "1", "memory": "1Gi"}, allocateOnce=False, **of.draw.choice([{}, {"allocatePolicy": "Aligned"}]))
    for _ in range(2):
        of.pod({"cpu": f"{of.draw.randint(1000, 2000)}m", "memory": "600Mi"}, {"app": app})
    of.pod({"cpu": f"{of.draw.randint(8100, 8900)}m", "memory": "1Gi"})


@theme
def held(of):
    """Nodes full of reservations: their owners fit, others do not, until they are deleted."""
    names = [of.label("h0"), of.label("h1")]
    of.node({"cpu": "8"}), of.node({"cpu": "8"})
    for name in names:
        reserve(of, name, {"cpu": f"{of.draw.randint(5500, 7500)}m", "memory": "2Gi"}, allocateOnce=False,
                labels={f"{SCHEDULING}/reservation-order": str(of.draw.randint(1, 9))})
    of.pod({"cpu": "4", "memory": "1Gi"})
    of.pod({"cpu": "4", "memory": "1Gi"}, {"app": names[0]})
    of.pod({"cpu": "4", "memory": "1Gi"}, {"app": names[0]})
    of.pod({"cpu": "3", "memory": "1Gi"}, {"app": names[1]}, {f"{SCHEDULING}/reservation-affinity": json.dumps({"reservationSelector": {"a": "b"}})})
    of.gone(names[1], "Reservation")


@theme
def cpusets(of):
    """Exclusive CPUs, by whole cores or spread; a pod that requires it; odd counts on nodes of whole cores."""
    for index in range(2):
        node = of.node({"cpu": "16"}, {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"} if index and of.some(0.5) else None)
        kubelet = {"kubelet.koordinator.sh/cpu-manager-policy": json.dumps({"policy": "static", "reservedCPUs": "0-1"})} if index == 0 and of.some(0.5) else None
        of.topology(node, 16, annotations=kubelet)
    pods = []
    for cpus in [2, 4, 3, 6, 4, 8, 5, 2]:
        spec = {"preferredCPUBindPolicy": of.draw.choice(["FullPCPUs", "SpreadByPCPUs"])}
        if of.some(0.3):
            spec = {"requiredCPUBindPolicy": of.draw.choice(["FullPCPUs", "SpreadByPCPUs"])}
        if of.some(0.3):
            spec["preferredCPUExclusivePolicy"] = of.draw.choice(["PCPULevel", "NUMANodeLevel"])
        pods.append(of.pod({"cpu": str(cpus), "memory": f"{of.draw.randint(100, 3000)}Mi"}, LSR, {f"{SCHEDULING}/resource-spec": json.dumps(spec)},
                           {"cpu": str(cpus), "memory": "3000Mi"}, priorityClassName="koord-prod"))
    of.gone(pods[0])
    of.pod({"cpu": "2500m", "memory": "1Gi"}, LSR, priorityClassName="koord-prod")


@theme
def numa(of):
    """Nodes with different alignment policies; pods that fit one NUMA node, two or none."""
    policies = of.draw.sample(["SingleNUMANode", "Restricted", "BestEffort"], 2)
    # What BestEffort cannot split fails for ever on the same node in Koordinator's, which checks it only at Reserve.
    fractions = "BestEffort" not in policies
    for policy in policies:
        cpu, memory = of.draw.choice([12, 16]), of.draw.randint(16000, 30000) // 2 * 2
        node = of.node({"cpu": str(cpu), "memory": f"{memory}Mi"}, {"node.koordinator.sh/numa-topology-policy": policy})
        of.topology(node, cpu, memory=memory)
    for _ in range(7):
        labels, more = ({}, {})
        amounts = of.amounts(7000)
        if not fractions:
            amounts["cpu"] = str(of.draw.randint(1, 6))
        if of.some(0.4):
            labels, amounts["cpu"] = LSR, str(of.draw.choice([2, 3, 4, 6]))
            more = {"priorityClassName": "koord-prod"}
        of.pod(amounts, labels, None, dict(amounts), **more)
    spec = json.dumps({"numaTopologyPolicy": of.draw.choice(["SingleNUMANode", "Restricted"])})
    of.pod(of.amounts(3000), {}, {f"{SCHEDULING}/numa-topology-spec": spec})


def gpus(of, node, count, numas=2, rdma=0):
    amounts = {f"{GPU}-core": "100", f"{GPU}-memory-ratio": "100", f"{GPU}-memory": "80Gi"}
    devices = [{"type": "gpu", "id": f"{node}-gpu-{i}", "minor": i, "health": True, "resources": amounts,
                "topology": {"socketID": 0, "nodeID": i * numas // count, "pcieID": f"pci{i // 2}", "busID": f"0000:0{i}:00.0"}} for i in range(count)]
    devices += [{"type": "rdma", "id": f"{node}-nic-{i}", "minor": i, "health": True, "resources": {"koordinator.sh/rdma": "100"},
                 "topology": {"socketID": 0, "nodeID": i % numas, "pcieID": f"pci{i}", "busID": f"0000:1{i}:00.0"}} for i in range(rdma)]
    of.also("Device", node, spec={"devices": devices})


def with_gpus(count, rdma=0):
    every = str(count * 100)
    return {GPU: every, f"{GPU}-core": every, f"{GPU}-memory-ratio": every, f"{GPU}-memory": f"{count * 80}Gi",
            **({"koordinator.sh/rdma": str(rdma * 100)} if rdma else {})}


@theme
def devices(of):
    """Parts of a GPU, whole ones and several, by memory or by share; a failing device."""
    made = []
    for _ in range(2):
        count = of.draw.choice([2, 4])
        made.append(of.node(with_gpus(count)))
        gpus(of, made[-1], count)
    pods = []
    for share in [50, 30, 100, 50, 200, 70, 100, 25]:
        if of.some(0.25) and share < 100:
            wants = {f"{GPU}-core": str(share), f"{GPU}-memory": f"{share * 80 // 100}Gi"}
        else:
            wants = of.draw.choice([{GPU: str(share)}, {f"{GPU}-core": str(share), f"{GPU}-memory-ratio": str(share)}])
        pods.append(of.pod({**wants, "cpu": f"{of.draw.randint(100, 2000)}m", "memory": "1Gi"}))
    of.pod({GPU: "150", "cpu": "1"})
    of.gone(pods[2])


@theme
def joint(of):
    """GPUs with adapters of the same switch, and adapters by themselves."""
    for _ in range(2):
        gpus(of, of.node(with_gpus(4, 2)), 4, rdma=2)
    together = {f"{SCHEDULING}/device-joint-allocate": json.dumps({"deviceTypes": ["gpu", "rdma"]})}
    same = {f"{SCHEDULING}/device-joint-allocate": json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
    for whole, nics, notes in [(1, 100, together), (2, 100, same), (0, 50, None), (1, 50, same), (2, 200, together), (1, 0, None)]:
        wants = {f"{GPU}-core": str(whole * 100), f"{GPU}-memory-ratio": str(whole * 100)} if whole else {}
        of.pod({**wants, **({"koordinator.sh/rdma": str(nics)} if nics else {}), "cpu": f"{of.draw.randint(100, 2000)}m", "memory": "1Gi"},
               {}, notes)
