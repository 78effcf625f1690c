"""Clusters with hot nodes, drawn by seed."""
import random

CORES, GI = 16, 32
SYSTEM = 0.3  # cores that a node uses without pods
MAX_UNAVAILABLE = 2
HIGH = 0.65  # as in config.yaml


class Slot:
    """One replica, whatever its pod's name: its usage moves with it."""

    def __init__(self, workload, number, node, cores):
        self.workload, self.number, self.node, self.cores = workload, number, node, cores
        self.generation, self.moved = 0, []

    @property
    def pod(self):
        return f"{self.workload}-{self.number}-{self.generation}"


class Cluster:
    """A fifth of the nodes uses 80 to 97 % of its cores, the others 25 to 50 %. Pods request half a core each, and use
    more or less. Every workload has a pod on every second node or so, and a PodDisruptionBudget; each `blocked`-th of them
    allows no eviction."""

    def __init__(self, seed, nodes=30, per_node=12, replicas=12, blocked=0):
        draw = random.Random(f"hotspots {seed}")
        self.nodes = [f"node-{number:03}" for number in range(nodes)]
        hot = set(draw.sample(self.nodes, nodes // 5))
        places = [node for node in self.nodes for _ in range(per_node)]
        draw.shuffle(places)
        self.slots = []
        for at, node in enumerate(places):
            self.slots.append(Slot(f"w{at // replicas:02}", at % replicas, node, 0))
        for node in self.nodes:
            there = [slot for slot in self.slots if slot.node == node]
            weights = [0.2 + draw.expovariate(1) for _ in there]
            load = draw.uniform(0.80, 0.97) if node in hot else draw.uniform(0.25, 0.50)
            for slot, weight in zip(there, weights):
                slot.cores = (load * CORES - SYSTEM) * weight / sum(weights)
        self.workloads = sorted({slot.workload for slot in self.slots})
        self.replicas = {name: sum(slot.workload == name for slot in self.slots) for name in self.workloads}
        blocks = {name for at, name in enumerate(self.workloads) if blocked and at % blocked == 0}
        self.may_miss = {name: 0 if name in blocks else MAX_UNAVAILABLE for name in self.workloads}
        self.noise = random.Random(f"noise {seed}")

    def objects(self):
        room = {"cpu": str(CORES), "memory": f"{GI}Gi", "pods": "110"}
        for node in self.nodes:
            yield {"kind": "Node", "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}},
                   "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in self.workloads:
            labels = {"app": name}
            yield {"kind": "ReplicaSet", "metadata": {"name": name, "namespace": "default"}, "spec": {
                "replicas": self.replicas[name], "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self.pod_spec()}}}
            yield {"kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": "default"}, "spec": {
                "maxUnavailable": self.may_miss[name], "selector": {"matchLabels": labels}}}

    @staticmethod
    def pod_spec():
        return {"schedulerName": "koord-scheduler", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}

    def loads(self, without=()):
        """Share of its cores that each node uses."""
        cores = dict.fromkeys(self.nodes, SYSTEM)
        for slot in self.slots:
            if slot.node and slot not in without:
                cores[slot.node] += slot.cores
        return {node: used / CORES for node, used in cores.items()}

    def place(self, slot):
        """A node for `slot`, as a load-aware scheduler chooses it: the least loaded with room for the requests."""
        loads = self.loads(without=(slot,))
        asked = dict.fromkeys(self.nodes, 0)
        for other in self.slots:
            if other is not slot and other.node:
                asked[other.node] += 0.5
        return min((node for node in self.nodes if asked[node] + 0.5 <= CORES), key=lambda node: (loads[node], node))
