"""Small clusters, drawn from a number: initial objects, and then events, one at a time.

A cluster is one theme (kubernetes.py, koordinator.py), or two whose events come in turns. Its nodes carry
its name as a label that its pods select, so that clusters side by side do not mix.
"""
import json
import random

CLASSES = {"twin-low": 1, "twin-high": 1000, "twin-never": 2000}
THEMES = {}


def theme(function):
    """Registers the function as a theme that adds to a cluster."""
    THEMES[function.__name__] = function
    return function


class Cluster:
    """`things` exist from the start. `events` are ("create", object), ("delete", kind, name) and
    ("patch", kind, name, part, change), one after the other."""

    def __init__(self, number, seed):
        self.name = f"c{number}"
        self.draw = random.Random(f"{seed}/{number}")
        names = list(THEMES)
        first = names[number % len(names)]
        self.themes = [first] + ([self.draw.choice(names)] if self.some(0.25) else [])
        self.themes = list(dict.fromkeys(self.themes))
        self.things, self.count = [], 0
        # A theme may define its own nodes, else there are some of every kind.
        self.nodes = []
        turns = []
        for name in self.themes:
            self.events = []
            THEMES[name](self)
            turns.append(self.events)
        if not self.nodes:
            for _ in range(self.draw.randint(2, 4)):
                self.node()
        self.events = []
        while any(turns):
            turn = self.draw.choice([some for some in turns if some])
            self.events.append(turn.pop(0))

    def some(self, chance):
        return self.draw.random() < chance

    def label(self, name):
        """Returns a name that is unique to this cluster."""
        return f"{self.name}-{name}"

    def zone(self, index):
        return self.label(f"z{index}")

    def node(self, room=None, labels=None, annotations=None, **spec):
        """Adds a node of unique size; zones in turns."""
        index = len(self.nodes)
        name = self.label(f"n{index}")
        room = {"cpu": str(self.draw.choice([8, 12, 16])), "memory": f"{self.draw.randint(17000, 41000)}Mi", "pods": "110", **(room or {})}
        node = {"kind": "Node", "metadata": {"name": name, "annotations": annotations or {}, "labels": {
            "twin": self.name, "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": self.zone(index % 2), **(labels or {})}},
            "spec": spec, "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}
        self.nodes.append(node)
        self.things.append(node)
        return name

    def also(self, kind, name, namespaced=False, **rest):
        meta = rest.pop("metadata", {})
        self.things.append({"kind": kind, "metadata": {"name": name, **({"namespace": "default"} if namespaced else {}), **meta}, **rest})

    def usage(self, node, cpu, memory):
        """A report of a node's usage: milli-cores and MiB."""
        self.also("NodeMetric", node, spec={}, status={"updateTime": "now", "nodeMetric": {"nodeUsage": {
            "resources": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}}}})

    def topology(self, node, cpus, numas=2, threads=2, policy=None, memory=None, annotations=None):
        """A report of a node's CPUs, and of NUMA nodes of equal size."""
        per = cpus // numas
        detail = [{"id": i, "core": i // threads, "socket": i // per, "node": i // per} for i in range(cpus)]
        amounts = {"cpu": str(per), **({"memory": f"{memory // numas}Mi"} if memory else {})}
        zones = [{"name": f"node-{i}", "type": "Node", "resources": [
            {"name": what, "capacity": amount, "allocatable": amount, "available": amount} for what, amount in amounts.items()]}
            for i in range(numas)]
        self.also("NodeResourceTopology", node, topologyPolicies=[policy or "None"], zones=zones, metadata={"annotations": {
            "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}), **(annotations or {})}})

    def pod(self, requests, labels=None, annotations=None, limits=None, **spec):
        """Adds an event that creates a pod of one container; returns its name."""
        name = self.label(f"p{self.count}")
        self.count += 1
        extended = {key: value for key, value in requests.items() if "/" in key}
        resources = {"requests": requests, "limits": {**extended, **(limits or {})}}
        self.events.append(("create", {
            "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels or {}, "annotations": annotations or {}},
            "spec": {"schedulerName": "koord-scheduler", "nodeSelector": {"twin": self.name}, "terminationGracePeriodSeconds": 0,
                     "automountServiceAccountToken": False, "enableServiceLinks": False,
                     "containers": [{"name": "c", "image": "i", "resources": resources}], **spec}}))
        return name

    def gone(self, name, kind="Pod"):
        """Adds an event that deletes an object."""
        self.events.append(("delete", kind, name))

    def change(self, kind, name, change, part=""):
        """Adds an event that changes an object, its status if `part` is so."""
        self.events.append(("patch", kind, name, part, change))

    def amounts(self, most=4000):
        return {"cpu": f"{self.draw.randint(most // 8, most)}m", "memory": f"{self.draw.randint(100, 6000)}Mi"}
