"""Themes of features of every Kubernetes scheduler."""
from clusters import theme

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def term(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@theme
def fit(of):
    """Until nothing fits; init containers, sidecars, overhead and gates."""
    pods = []
    for number in range(8):
        spec = {}
        if number == 2:
            spec["initContainers"] = [{"name": "i", "image": "i", "resources": {"requests": {"cpu": "5"}}},
                                      {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "700m"}}}]
        if number == 4:
            spec["schedulingGates"] = [{"name": "twin.io/wait"}]
        pods.append(of.pod(of.amounts(9000), **spec))
    of.change("Pod", pods[4], {"spec": {"schedulingGates": None}})
    of.gone(pods[0])


@theme
def taints(of):
    """Taints of every effect, a cordoned node, and both removed."""
    for index in range(3):
        effect = ["NoSchedule", "PreferNoSchedule", "NoExecute"][index]
        of.node(taints=[{"key": "dedicated", "value": f"v{index}", "effect": effect}])
    cordoned = of.node(unschedulable=True)
    wall = [{"key": "dedicated", "operator": "Equal", "value": "v0", "effect": "NoSchedule"}]
    for tolerations in [[], wall, [{"key": "dedicated", "operator": "Exists"}], [{"operator": "Exists"}],
                        [{"key": "dedicated", "operator": "Equal", "value": "v2"}], []]:
        of.pod(of.amounts(7000), tolerations=tolerations)
    of.change("Node", cordoned, {"spec": {"unschedulable": None}})
    for _ in range(2):
        of.pod(of.amounts(9000))


@theme
def affinity(of):
    """Required and preferred node affinity with every operator, and pods for one node by its name."""
    nodes = [of.node(labels={"disk": ["ssd", "hdd", "ssd", "none"][index], "size": str(index * 10)} if index else {}) for index in range(4)]
    for required in [term("disk", "In", "ssd"), term("disk", "NotIn", "ssd", "hdd"), term("size", "Gt", "15"), term("size", "Lt", "15"),
                     term("disk", "DoesNotExist"), term("disk", "In", "tape"),
                     {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [nodes[2]]}]}]:
        weights = [{"weight": of.draw.randint(1, 100), "preference": term(ZONE, "In", of.zone(of.draw.randint(0, 1)))}]
        of.pod(of.amounts(3000), affinity={"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [required]},
            "preferredDuringSchedulingIgnoredDuringExecution": weights}})
    of.change("Node", nodes[0], {"metadata": {"labels": {"disk": "tape"}}})


@theme
def spread(of):
    """Hard and soft spread over zones and hosts, with a least number of domains, and a deleted pod."""
    app = of.label("spread")
    pods = []
    for _ in range(8):
        soft = of.some(0.3)
        one = {"maxSkew": of.draw.choice([1, 1, 2]), "topologyKey": of.draw.choice([ZONE, HOST]), "labelSelector": {"matchLabels": {"app": app}},
               "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule"}
        if not soft and of.some(0.3):
            one["minDomains"] = of.draw.randint(2, 3)
        if of.some(0.3):
            one["nodeTaintsPolicy"] = "Honor"
        pods.append(of.pod(of.amounts(2000), {"app": app}, topologySpreadConstraints=[one]))
    of.gone(pods[0])


@theme
def neighbours(of):
    """Pod affinity and anti-affinity, required and preferred."""
    own = {"labelSelector": {"matchLabels": {"app": of.label("own")}}}
    web = {"labelSelector": {"matchLabels": {"app": of.label("web")}}}
    required, preferred = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
    of.pod(of.amounts(2000), {"app": of.label("db")}, affinity={"podAffinity": {required: [{**web, "topologyKey": ZONE}]}})
    for _ in range(2):
        of.pod(of.amounts(2000), {"app": of.label("web")}, affinity={"podAffinity": {required: [{**web, "topologyKey": ZONE}]}})
    for _ in range(4):
        last = of.pod(of.amounts(2000), {"app": of.label("own")}, affinity={"podAntiAffinity": {required: [{**own, "topologyKey": HOST}]}})
    of.pod(of.amounts(2000), {"app": of.label("own")})
    weights = [{"weight": of.draw.randint(1, 100), "podAffinityTerm": {**web, "topologyKey": ZONE}}]
    of.pod(of.amounts(2000), affinity={"podAntiAffinity" if of.some(0.5) else "podAffinity": {preferred: weights}})
    of.gone(last)


@theme
def ports(of):
    """Ports of the host, by protocol and address; one pod waits for the port of another."""
    pods = []
    for _ in range(3):
        of.node()
    for protocol, address in [("TCP", ""), ("UDP", ""), ("TCP", "10.0.0.1"), ("TCP", ""), ("TCP", "10.0.0.2"), ("TCP", "")]:
        port = {"containerPort": 80, "hostPort": 8080, "protocol": protocol, **({"hostIP": address} if address else {})}
        wants = of.amounts(1500)
        pods.append(of.pod(wants, containers=[{"name": "c", "image": "i", "ports": [port], "resources": {"requests": wants}}]))
    of.gone(pods[0])


@theme
def preemption(of):
    """Preemption of less important pods, with budgets where possible, and pods that preempt none."""
    app = of.label("kept")
    budget = of.draw.randint(0, 1)
    of.also("PodDisruptionBudget", app, True, spec={"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
            status={"disruptionsAllowed": budget, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1})
    for _ in range(2):
        of.node({"cpu": of.draw.choice(["6", "8"])})
    for number in range(5):
        of.pod({"cpu": f"{of.draw.randint(1800, 4000)}m", "memory": f"{of.draw.randint(100, 3000)}Mi"},
               {"app": app} if number % 2 else {}, priorityClassName="twin-low")
    # It might use what is freed for others.
    of.gone(of.pod({"cpu": "3900m"}, priorityClassName="twin-never", preemptionPolicy="Never"))
    for _ in range(2):
        of.pod({"cpu": f"{of.draw.randint(3000, 5000)}m"}, priorityClassName="twin-high")
    of.pod({"cpu": "20"}, priorityClassName="twin-high")


@theme
def volumes(of):
    """Claims that are bound: where their volumes are, for one pod at a time, and how many a node attaches."""
    for _ in range(3):
        of.also("CSINode", of.node(), spec={"drivers": [{"name": "twin.csi", "nodeID": "x", "allocatable": {"count": 2}}]})
    for index in range(6):
        name = of.label(f"v{index}")
        where = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term(ZONE, "In", of.zone(index % 2))]}}} if index < 3 else {}
        mode = ["ReadWriteOncePod"] if index == 2 else ["ReadWriteOnce"]
        of.also("PersistentVolume", name, spec={"capacity": {"storage": "1Gi"}, "accessModes": mode, "storageClassName": "",
                                                "csi": {"driver": "twin.csi", "volumeHandle": name}, **where,
                                                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}})
        of.also("PersistentVolumeClaim", name, True, metadata={"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, spec={
            "accessModes": mode, "storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}})
    pods = [of.pod(of.amounts(2500), volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": of.label(claim)}}])
            for claim in ["v0", "v1", "v2", "v2", "v3", "v4", "v5", "v0", "lost"]]
    of.gone(pods[2])


@theme
def daemons(of):
    """A pod for each node by name, which cordons and usage reports do not block."""
    nodes = [of.node(unschedulable=index == 1) for index in range(3)]
    of.usage(nodes[0], 11500, 900)
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": of.label("ds"), "uid": "11111111-2222-3333-4444-555555555555", "controller": True}]
    for name in [*nodes, of.label("absent")]:
        only = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}
        of.pod(of.amounts(2000), tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
               affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": only}})
        of.events[-1][1]["metadata"]["ownerReferences"] = owner
    of.pod(of.amounts(2000))
    of.gone(nodes[2], "Node")
