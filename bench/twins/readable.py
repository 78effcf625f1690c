"""The fields of a cluster's objects that users read, without times and random values."""
import json
import re

from compare import amount

SEEN = ["Pod", "PodGroup", "ElasticQuota", "Reservation"]
ANNOTATIONS = ["resource-status", "device-allocated", "reservation-allocated"]
# Events in full, for readers of the report: not compared.
SAID = "(said)"
# Fields that may change while nothing is decided.
VOLATILE = ("nominated", "message", "preemption", "events")


def flat(thing, path=""):
    if isinstance(thing, dict) and thing:
        return {key: value for name, below in thing.items() for key, value in flat(below, f"{path}.{name}" if path else name).items()}
    if isinstance(thing, list) and thing:
        return {key: value for index, below in enumerate(thing) for key, value in flat(below, f"{path}.{index}").items()}
    return {path: thing}


def amounts(resources):
    return {name: str(amount(text).normalize()) for name, text in (resources or {}).items() if amount(text)}


def clean(text):
    """Returns a message without the parts about other clusters' nodes."""
    text = re.sub(r"0/\d+ nodes are available:?", "", text)
    text = re.sub(r"\d+ (node\(s\) (didn't match Pod's node affinity/selector|were unschedulable|had untolerated taint\(s\))"
                  r"|Preemption is not helpful for scheduling)", "", text)
    text = re.sub(r"\d+ (node\(s\) didn't satisfy plugin)", r"\1", text)
    # The named member is the one tried last; a reservation's name is a uid.
    text = re.sub(r'member Pod "[^"]*"', "member Pod", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    # Lists of which a part was removed.
    return ", ".join(filter(None, (part.strip(" .,") for part in text.split(", "))))


def reasons(message):
    """Returns a condition's message and the post-filters' text after it; without ` Nearest: …`, a row of docs/compat.md."""
    text, *after = re.split(r"[.,]? *preemption: ", message.split(" Nearest: ")[0])
    return {"message": clean(text), "preemption": [clean(one) for one in after]}


def of_pod(thing):
    notes, status = thing["metadata"].get("annotations") or {}, thing.get("status") or {}
    said = {"node": thing["spec"].get("nodeName"), "started": status.get("startTime")}
    for key in ANNOTATIONS:
        value = json.loads(notes.get(f"scheduling.koordinator.sh/{key}", "{}"))
        value.pop("uid", None)
        for zone in value.get("numaNodeResources") or []:
            zone["resources"] = amounts(zone.get("resources"))
        for device in [one for some in value.values() if key == "device-allocated" for one in some]:
            device["resources"] = amounts(device["resources"])
        said[key] = value
    if not said["node"]:
        said["nominated"] = status.get("nominatedNodeName")
    for one in status.get("conditions") or []:
        if one["type"] == "PodScheduled":
            said.update(scheduled=one["status"], reason=one.get("reason"))
            if not said["node"]:
                said.update(reasons(one.get("message", "")))
    return said


def of_reservation(thing):
    status = thing.get("status") or {}
    return {"phase": status.get("phase"), "node": status.get("nodeName"),
            "owners": sorted(owner["name"] for owner in status.get("currentOwners") or []),
            "allocatable": amounts(status.get("allocatable")), "allocated": amounts(status.get("allocated")),
            "conditions": {one["type"]: f"{one['status']} {one.get('reason')}" for one in status.get("conditions") or []}}


def readable(kind, thing):
    if kind == "Pod":
        return of_pod(thing)
    if kind == "Reservation":
        return of_reservation(thing)
    status = thing.get("status") or {}
    if kind == "PodGroup":
        return {key: status.get(key) for key in ("phase", "scheduled")}
    return {"used": amounts(status.get("used"))}


def snapshot(api, with_events):
    """Maps `Kind/name` to fields, for each cluster."""
    seen, uids = {}, {}
    for kind in SEEN:
        for thing in api.list(kind):
            meta = thing["metadata"]
            fields = flat(readable(kind, thing))
            seen.setdefault(meta["name"].split("-")[0], {})[f"{kind}/{meta['name']}"] = fields
            uids[meta["uid"]] = fields
    for event in api.list("Event") if with_events else []:
        about = event.get("involvedObject") or {}
        fields = uids.get(about.get("uid"))
        if fields is not None:
            fields["events"] = " ".join(sorted({*fields.get("events", "").split(), event.get("reason") or ""}))
            fields.setdefault(SAID, []).append(f"{event.get('reason')} x{(event.get('series') or {}).get('count') or event.get('count') or 1}: {event.get('message')}")
    return seen


class States:
    """Counts of the states that clusters reached, where both sides agree."""

    # The least counts after five runs of all themes.
    LEAST = {"bound": 500, "unschedulable": 300, "preempted": 10, "gang Scheduled": 10, "gang waits": 10, "reservation available": 20,
             "reservation consumed": 15, "reservation succeeded": 5, "cpuset": 30, "numa": 20, "part of a gpu": 15, "whole gpu": 10,
             "rdma": 5, "quota refuses": 10, "load refuses": 5, "claim refuses": 5}
    TEXTS = {"quota refuses": "quota", "load refuses": "usage exceed threshold", "claim refuses": "volume"}

    def __init__(self):
        self.counts, self.texts = {}, {}

    def add(self, what, number=1):
        self.counts[what] = self.counts.get(what, 0) + number

    def see(self, before, after, event):
        """Counts one event of a cluster, from the objects before and after it."""
        was_bound = {name for name, fields in before.items() if fields.get("node")}
        deleted = f"{event[1]}/{event[2]}" if event[0] == "delete" else None
        self.add("preempted", sum(1 for name in was_bound if name not in after and name != deleted and name.startswith("Pod/")))
        for name, now in after.items():
            old = before.get(name, {})
            if old == now:
                continue
            fresh = not old.get("node") and now.get("node")
            if name.startswith("Pod/"):
                self.pod(old, now, fresh)
            elif name.startswith("PodGroup/") and now.get("phase") != old.get("phase"):
                self.add(f"gang {now.get('phase') or 'new'}")
            elif name.startswith("Reservation/"):
                self.add("reservation available", bool(fresh))
                self.add("reservation consumed", bool(now.get("owners.0") and not old.get("owners.0")))
                self.add("reservation succeeded", now.get("phase") == "Succeeded" != old.get("phase"))
        waits = [now for name, now in after.items() if name.startswith("Pod/") and not now.get("node") and "gang" in now.get("message", "").lower()]
        self.add("gang waits", bool(waits))
        gangs = sum(1 for name in after if name.startswith("Pod/") and not before.get(name, {}).get("node") and after[name].get("node"))
        self.add("several bound at once", gangs > 1)

    def pod(self, old, now, fresh):
        if fresh:
            self.add("bound")
            self.add("cpuset", bool(now.get("resource-status.cpuset")))
            self.add("numa", any(key.startswith("resource-status.numa") for key in now))
            cores = [value for key, value in now.items() if key.startswith("device-allocated.gpu.") and key.endswith("gpu-memory-ratio")]
            self.add("part of a gpu", any(value != "1E+2" for value in cores))
            self.add("whole gpu", any(value == "1E+2" for value in cores))
            self.add("rdma", any(key.startswith("device-allocated.rdma") for key in now))
        elif now.get("message") and now["message"] != old.get("message"):
            self.add("unschedulable")
            for what, text in self.TEXTS.items():
                self.add(what, text in now["message"].lower())
            for one in re.findall(r"\d+ ([^,.]+)", now["message"]):
                self.texts[one] = self.texts.get(one, 0) + 1

    def missing(self):
        return [f"{what}: {self.counts.get(what, 0)} of {least}" for what, least in self.LEAST.items() if self.counts.get(what, 0) < least]
