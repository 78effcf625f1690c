#!/usr/bin/env python3
"""Parts of bench/compare-descheduler: URL is that of a `kubectl proxy`.

run.py populate URL SEED script|scheduler     creates a cluster with hot nodes; who places pods
run.py play URL SEED script|scheduler SECONDS WHO PID FILE
                                              plays kubelets, koordlets and controllers until all is quiet, at most so long;
                                              figures go to FILE
run.py migrated URL                           checks that jobs that are done were done by way of their reservations
run.py clear URL                              deletes everything
run.py ranges FILE...                         figures of several runs, by who
"""
import datetime
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "manager")]
import api  # noqa: E402
from hotspots import CORES, GI, HIGH, SYSTEM, Cluster  # noqa: E402

api.KINDS |= {
    "ReplicaSet": ("/apis/apps/v1", "replicasets", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "PodMigrationJob": ("/apis/scheduling.koordinator.sh/v1alpha1", "podmigrationjobs", False),
    "Reservation": ("/apis/scheduling.koordinator.sh/v1alpha1", "reservations", False),
}
TICK, REPORT, START, STOP = 0.5, 3, 2, 1  # seconds: between two polls, between two reports, for a pod's start and end
QUIET = 20  # the run ends when no node is hot and nothing has moved for this many seconds
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def size(by):
    """30 nodes when a script places pods; with a scheduler, which places all of them first, 6."""
    return {"nodes": int(os.environ.get("NODES", 30 if by == "script" else 6)), "blocked": int(os.environ.get("BLOCKED", 0))}


class Play:
    def __init__(self, url, seed, by):
        self.api, self.cluster, self.by = api.Api(url), Cluster(seed, **size(by)), by
        self.begun = self.reported = time.monotonic()
        self.bound, self.ending, self.below, self.violations, self.samples = {}, {}, set(), 0, []
        self.uids = {}

    def owners(self):
        self.uids = {thing["metadata"]["name"]: thing["metadata"]["uid"] for thing in self.api.list("ReplicaSet")}

    def create(self, slot):
        spec = dict(Cluster.pod_spec())
        if slot.node:
            spec["nodeName"] = slot.node
        self.api.create({"kind": "Pod", "metadata": {
            "name": slot.pod, "namespace": "default", "labels": {"app": slot.workload},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": slot.workload, "uid": self.uids[slot.workload],
                                 "controller": True, "blockOwnerDeletion": True}]}, "spec": spec})

    def populate(self):
        self.api.each([thing for thing in self.cluster.objects() if thing["kind"] == "Node"], self.api.create)
        self.api.each([thing for thing in self.cluster.objects() if thing["kind"] != "Node"], self.api.create)
        self.owners()
        # With a scheduler, the pods' real usage makes nodes hot.
        for slot in self.cluster.slots:
            slot.node = slot.node if self.by == "script" else None
        self.api.each(self.cluster.slots, self.create)
        self.api.each(self.cluster.nodes, lambda node: self.api.create({"kind": "NodeMetric", "metadata": {"name": node}, "spec": {}}))

    def budgets(self, seen, budgets):
        """Acts as the disruption controller, which does not run here."""
        for budget in budgets:
            name, status = budget["metadata"]["name"], budget.get("status") or {}
            mine = [pod for pod in seen.values() if pod["metadata"]["labels"]["app"] == name]
            doomed = {pod: when for pod, when in (status.get("disruptedPods") or {}).items()
                      if pod in seen and "deletionTimestamp" not in seen[pod]["metadata"]}
            healthy = sum(ready(pod) and pod["metadata"]["name"] not in doomed for pod in mine)
            desired = self.cluster.replicas[name] - self.cluster.may_miss[name]
            if healthy < desired and name not in self.below:
                self.violations += 1
            (self.below.add if healthy < desired else self.below.discard)(name)
            wanted = {"disruptionsAllowed": max(0, healthy - desired), "currentHealthy": healthy, "desiredHealthy": desired,
                      "expectedPods": self.cluster.replicas[name], "observedGeneration": budget["metadata"]["generation"]}
            if doomed:
                wanted["disruptedPods"] = doomed
            if {key: value for key, value in status.items() if key != "conditions"} != wanted:
                try:
                    self.api.call("PUT", self.api.at(budget, "status"), {**budget, "status": wanted})
                except api.Refused as refused:
                    # A pod was evicted in between: the next round sees it.
                    if refused.status != 409:
                        raise

    def look(self):
        budgets = [{**budget, "kind": "PodDisruptionBudget", "apiVersion": "policy/v1"} for budget in self.api.list("PodDisruptionBudget")]
        seen = {pod["metadata"]["name"]: pod for pod in self.api.list("Pod")}
        at = time.monotonic()
        for name, pod in seen.items():
            if "deletionTimestamp" in pod["metadata"]:
                if at - self.ending.setdefault(name, at) >= STOP:
                    self.api.delete("Pod", name, "default")
        starting = []
        for slot in self.cluster.slots:
            pod = seen.get(slot.pod)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                was, slot.generation = slot.node, slot.generation + 1
                slot.node = self.cluster.place(slot) if self.by == "script" else None
                slot.moved.append((at - self.begun, was, slot.node))
                self.create(slot)
            else:
                slot.node = pod["spec"].get("nodeName")
                if slot.node and not ready(pod) and at - self.bound.setdefault(slot.pod, at) >= START:
                    starting.append(slot.pod)
        self.api.each(starting, lambda name: self.api.patch("Pod", name, {"status": {"phase": "Running", "startTime": now(), "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now()} for kind in ("PodScheduled", "Ready")]}}, "default", "status"))
        self.budgets(seen, budgets)
        return seen

    def report(self, seen):
        """Acts as the koordlets."""
        stamp, pods = now(), {node: [] for node in self.cluster.nodes}
        for slot in self.cluster.slots:
            if slot.node and slot.pod in seen and ready(seen[slot.pod]):
                milli = round(slot.cores * 1000 * self.cluster.noise.uniform(0.97, 1.03))
                pods[slot.node].append((slot.pod, milli))

        def one(node):
            used = sum(milli for _, milli in pods[node]) + round(SYSTEM * 1000)
            memory = GI * 2**30 * 3 // 10
            usage = lambda milli, memory: {"resources": {"cpu": f"{milli}m", "memory": str(memory)}}  # noqa: E731
            status = {"updateTime": stamp, "nodeMetric": {"nodeUsage": usage(used, memory), "systemUsage": usage(round(SYSTEM * 1000), 2**30)},
                      "podsMetric": [{"namespace": "default", "name": name, "priority": "koord-prod", "podUsage": usage(milli, 2**29)}
                                     for name, milli in pods[node]]}
            self.api.patch("NodeMetric", node, {"status": status}, sub="status")

        self.api.each(self.cluster.nodes, one)

    def sample(self):
        loads = list(self.cluster.loads().values())
        self.samples.append((time.monotonic() - self.begun, statistics.pstdev(loads), sum(load > HIGH for load in loads), max(loads)))

    def settle(self):
        """Waits until all pods are placed and ready."""
        until = time.monotonic() + 300
        while True:
            seen = self.look()
            if all(ready(pod) for pod in seen.values()) and len(seen) == len(self.cluster.slots):
                break
            if time.monotonic() > until:
                raise SystemExit("compare-descheduler: pods were not placed")
            time.sleep(TICK)
        for slot in self.cluster.slots:
            slot.moved.clear()

    def heat(self):
        """Gives placed pods a usage that makes a fifth of the nodes hot."""
        nodes = sorted(self.cluster.nodes)
        for number, node in enumerate(nodes):
            there = [slot for slot in self.cluster.slots if slot.node == node]
            load = 0.85 if number < max(1, len(nodes) // 5) else 0.35
            for slot in there:
                slot.cores = (load * CORES - SYSTEM) / len(there)

    def run(self, seconds, hurry):
        """With `hurry`, ends as soon as no node is hot and nothing changes."""
        self.begun, self.violations, self.reported = time.monotonic(), 0, 0
        self.below.clear()
        while True:
            since = time.monotonic()
            seen = self.look()
            if since - self.reported >= REPORT:
                self.report(seen)
                self.reported = since
            self.sample()
            at = since - self.begun
            last = max((moved[0] for slot in self.cluster.slots for moved in slot.moved), default=0)
            hot = max((when for when, _, hot, _ in self.samples if hot), default=0)
            if at > seconds or hurry and at > QUIET and at - max(last, hot) > QUIET:
                return
            time.sleep(max(0, TICK - (time.monotonic() - since)))

    def figures(self, who, pid):
        moves = sorted(moved for slot in self.cluster.slots for moved in slot.moved)
        hot = [when for when, _, hot, _ in self.samples if hot]
        last = self.samples[-1]
        balanced = None if last[2] else round(max(hot, default=0), 1)
        late = [when for when, stddev, _, _ in self.samples if last[0] - when < 10]
        jobs = {}
        for job in self.api.list("PodMigrationJob"):
            status = job.get("status") or {}
            key = " ".join(filter(None, [status.get("phase", ""), status.get("reason", "")])) or "untouched"
            jobs[key] = jobs.get(key, 0) + 1
        return {"who": who, "nodes": len(self.cluster.nodes), "pods": len(self.cluster.slots), "seconds": round(last[0], 1),
                "stddevBefore": round(self.samples[0][1] * 100, 2),
                "stddevAfter": round(statistics.mean(sample[1] for sample in self.samples[-len(late):]) * 100, 2),
                "hotBefore": self.samples[0][2], "hotAfter": last[2],
                "maxLoadBefore": round(self.samples[0][3] * 100, 1), "maxLoadAfter": round(last[3] * 100, 1),
                "moves": len(moves), "movesUntilBalanced": sum(moved[0] <= balanced for moved in moves) if balanced is not None else None,
                "secondsToBalance": balanced, "maxMovesPerPod": max((len(slot.moved) for slot in self.cluster.slots), default=0),
                "pdbViolations": self.violations, "jobs": dict(sorted(jobs.items())), **process(pid)}


def ready(pod):
    conditions = (pod.get("status") or {}).get("conditions") or []
    return "deletionTimestamp" not in pod["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def process(pid):
    if not int(pid):
        return {}
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    peak = next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM"))
    return {"cpuSeconds": round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2), "peakRssMiB": int(peak) // 1024}


def clear(url):
    client = api.Api(url)
    for kind in ("PodMigrationJob", "Reservation", "Pod", "PodDisruptionBudget", "ReplicaSet", "NodeMetric", "Node"):
        client.each(client.list(kind), lambda thing, kind=kind: client.delete(
            kind, thing["metadata"]["name"], thing["metadata"].get("namespace", "")))


def migrated(url):
    """Returns the jobs, and whether the status of finished ones is true."""
    client = api.Api(url)
    pods = {pod["metadata"]["uid"]: pod for pod in client.list("Pod")}
    reservations = {thing["metadata"]["name"]: thing for thing in client.list("Reservation")}
    wrong, done = [], 0
    for job in client.list("PodMigrationJob"):
        name, status, spec = job["metadata"]["name"], job.get("status") or {}, job["spec"]
        if status.get("phase") != "Succeeded":
            continue
        done += 1
        reservation = reservations.get((spec.get("reservationOptions") or {}).get("reservationRef", {}).get("name"))
        if reservation is None:
            wrong.append(f"{name}: its Reservation is not there")
            continue
        state = reservation["status"]
        owners = [owner["uid"] for owner in state.get("currentOwners") or []]
        pod = pods.get(owners[0]) if owners else None
        for is_so, text in [
                (spec["podRef"]["uid"] not in pods, "the pod it was for is still there"),
                (state.get("phase") == "Succeeded", f"its Reservation is {state.get('phase')}"),
                (pod is not None, "no pod used its Reservation"),
                (pod is None or pod["spec"].get("nodeName") == state.get("nodeName") == status.get("nodeName"), "the new pod is not on the reserved node"),
                (pod is None or reservation["metadata"]["uid"] in pod["metadata"].get("annotations", {}).get(ALLOCATED, ""), "the new pod does not say that it used it"),
                (pod is None or ready(pod), "the new pod is not ready")]:
            if not is_so:
                wrong.append(f"{name}: {text}")
    print(json.dumps({"jobsSucceeded": done, "wrong": wrong}))
    return 1 if wrong or not done else 0


def ranges(files):
    runs = [json.load(open(file)) for file in files]
    for who in sorted({run["who"] for run in runs}):
        mine = [run for run in runs if run["who"] == who]
        shown = {}
        for key in ("stddevBefore", "stddevAfter", "hotBefore", "hotAfter", "maxLoadBefore", "maxLoadAfter", "moves", "movesUntilBalanced",
                    "secondsToBalance", "maxMovesPerPod", "pdbViolations", "cpuSeconds", "peakRssMiB"):
            values = [run[key] for run in mine if run.get(key) is not None]
            if values:
                shown[key] = f"{min(values)} to {max(values)}" + ("" if len(values) == len(mine) else f" in {len(values)} of {len(mine)}")
        print(json.dumps({"who": who, "runs": len(mine), **shown}))


def main(argv):
    match argv:
        case ["populate", url, seed, by]:
            Play(url, seed, by).populate()
        case ["play", url, seed, by, seconds, who, pid, file]:
            play = Play(url, seed, by)
            play.owners()
            play.settle()
            if by == "scheduler":
                play.heat()
            play.run(int(seconds), who != "none")
            figures = play.figures(who, pid)
            json.dump(figures, open(file, "w"), indent=1)
            print(json.dumps(figures))
        case ["migrated", url]:
            return migrated(url)
        case ["clear", url]:
            clear(url)
        case ["ranges", *files]:
            ranges(files)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


sys.exit(main(sys.argv[1:]))
