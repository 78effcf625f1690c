"""Sets clusters up on two servers, lets their schedulers process one event after the other, and compares what users read.

    run.py OURS THEIRS CLUSTERS SEED KNOWN COMPAT OUT

OURS and THEIRS are plain HTTP. See bench/twin.
"""
import collections
import datetime
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "manager")]
import api  # noqa: E402
import kubernetes  # noqa: E402, F401
import koordinator  # noqa: E402, F401
from clusters import CLASSES, THEMES, Cluster  # noqa: E402
from compare import Known  # noqa: E402
from meant import CHECKS  # noqa: E402
from readable import SAID, States, VOLATILE, snapshot  # noqa: E402

api.KINDS |= {
    "PodGroup": ("/apis/scheduling.sigs.k8s.io/v1alpha1", "podgroups", True),
    "Reservation": ("/apis/scheduling.koordinator.sh/v1alpha1", "reservations", False),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "PersistentVolume": ("/api/v1", "persistentvolumes", False),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "CSINode": ("/apis/storage.k8s.io/v1", "csinodes", False),
    "Event": ("/api/v1", "events", True),
}
# Requests in flight to a server.
AT_ONCE = 8
# Clusters that exist at a time.
TOGETHER = 60
# Waiting pods are retried at most a second later. An object that a scheduler has not changed for this many
# seconds, while it changed others, is decided.
PAUSE = 2.2
# After this many polls, an object that still changes is RESTLESS.
LOOKS = 12
RESTLESS = "restless"
MARK = "mark"
# A scheduler that does not bind a pod within this many seconds has failed.
GONE = 300
# Koordinator's takes the first of equal nodes (Kubernetes 1.35.6 draws only when an extender scored), ours draws by
# the node's version: this is how often an event is undone, every node relabeled for a new draw, and the event
# repeated, and how often a whole cluster is repeated.
TRIES, AGAIN = 8, 5
LOT = "twin-lot"
PLACES = ("node", "nominated", "resource-status", "device-allocated", "(object)")


class Side:
    def __init__(self, url):
        self.api, self.marks = api.Api(url), 0
        self.api.create({"kind": "PriorityClass", "metadata": {"name": MARK}, "value": -1})
        self.api.create(marked())
        for name, value in CLASSES.items():
            policy = {"preemptionPolicy": "Never"} if name == "twin-never" else {}
            self.api.create({"kind": "PriorityClass", "metadata": {"name": name}, "value": value, **policy})

    def mark(self):
        """Waits until the scheduler has bound a pod created after all others: then it has tried those."""
        self.marks += 1
        name, since = f"{MARK}-{self.marks}", time.monotonic()
        self.api.create({"kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
            "schedulerName": "koord-scheduler", "priorityClassName": MARK, "nodeSelector": {"twin": MARK}, "enableServiceLinks": False,
            "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}})
        while not self.api.call("GET", self.api.path("Pod", name, "default"))["spec"].get("nodeName"):
            if time.monotonic() - since > GONE:
                raise SystemExit(f"twin: {name} was not bound in {GONE} s")
            time.sleep(0.1)

    def settle(self):
        """Waits until pods and statuses are stable, while the scheduler runs. What is written again and again is RESTLESS."""
        def placed(seen):
            return {cluster: {what: {field: value for field, value in fields.items() if not field.startswith(VOLATILE)}
                              for what, fields in things.items()} for cluster, things in seen.items() if cluster != MARK}

        rests, moved = None, set()
        for look in range(LOOKS):
            self.mark()
            rest = placed(snapshot(self.api, False))
            if rest == rests:
                break
            if look > LOOKS / 2:
                moved |= {(cluster, what, field) for cluster, things in rest.items() for what, fields in things.items() for field in fields
                          if rests.get(cluster, {}).get(what, {}).get(field) != fields[field]}
            rests = rest
            time.sleep(PAUSE)
        seen = snapshot(self.api, True)
        seen.pop(MARK, None)
        self.start(seen)
        for cluster, what, field in moved:
            if what in seen.get(cluster, {}):
                seen[cluster][what][field] = RESTLESS
        return seen

    def start(self, seen):
        """Acts as the kubelet: bound pods start, in the order of names. Of equal victims the youngest are evicted."""
        bound = [what.removeprefix("Pod/") for things in seen.values() for what, fields in things.items()
                 if what.startswith("Pod/") and fields["node"] and not fields["started"]]
        api.Api.each(bound, lambda name: self.api.patch("Pod", name, {"status": {
            "startTime": f"2026-01-01T00:{int(name.split('-p')[1]):02}:00Z"}}, "default", "status"))
        for things in seen.values():
            for fields in things.values():
                fields.pop("started", None)

    def set_up(self, cluster):
        for thing in cluster.things:
            self.api.create(timed(thing))
            if thing["kind"] == "PodDisruptionBudget":
                self.api.patch(thing["kind"], thing["metadata"]["name"], {"status": thing["status"]}, "default", "status")

    def do(self, event):
        match event:
            case ["create", thing]:
                self.api.create(thing)
            case ["delete", kind, name]:
                self.api.delete(kind, name, "default")
            case ["patch", kind, name, part, change]:
                self.api.patch(kind, name, timed(change), "default", part)

    def clear(self, cluster):
        """Deletes the remaining objects of the cluster, and ignores deleted ones."""
        made = [event[1] for event in cluster.events if event[0] == "create"]
        for thing in [*made, *reversed(cluster.things)]:
            meta = thing["metadata"]
            self.api.delete(thing["kind"], meta["name"], meta.get("namespace", ""))


def timed(thing):
    """Returns a report with the current time."""
    if (thing.get("status") or {}).get("updateTime") != "now":
        return thing
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**thing, "status": {**thing["status"], "updateTime": now}}


def marked():
    """Returns the node for marker pods."""
    room = {"cpu": "1", "memory": "1Gi", "pods": "1000000"}
    return {"kind": "Node", "metadata": {"name": f"{MARK}-node", "labels": {"twin": MARK}}, "spec": {},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}}


class Slot:
    """A cluster's progress through its events."""

    def __init__(self, cluster):
        self.cluster, self.runs, self.ties, self.stale = cluster, 0, 0, 0
        self.begin()

    def begin(self):
        self.number, self.tries, self.before = -1, 0, [{}, {}]
        self.next, self.differences, self.outcomes = "set_up", [], []

    def event(self):
        return self.cluster.events[self.number]

    def act(self, side):
        if self.next == "set_up":
            side.set_up(self.cluster)
        elif self.next == "event":
            side.do(self.event())
        elif self.next == "undo":
            thing = self.event()[1]
            side.do(("delete", thing["kind"], thing["metadata"]["name"]))
            for node in self.cluster.nodes:
                side.do(("patch", "Node", node["metadata"]["name"], "", {"metadata": {"labels": {LOT: str(self.tries)}}}))
        elif self.next == "clear":
            side.clear(self.cluster)

    def see(self, seen, known, states):
        """Continues after both are stable. Returns True when the cluster is done."""
        if self.next == "clear":
            self.begin()
            return False
        found = self.compare(seen, known)
        elsewhere = all(line.split()[1].startswith(PLACES) and "null" not in line for line in found)
        if found and not elsewhere and self.next != "look" and self.next != "undo":
            # One may need longer than the other, even when both are stable.
            self.did, self.next = self.next, "look"
            return False
        if self.next == "look":
            self.next = self.did
        if self.next == "undo":
            # Undo and repeat the event; else the whole cluster.
            self.next = "event" if not found and seen[1].keys() == self.before[1].keys() else self.once_more(True)
            return False
        if found:
            self.differences = [f"event {self.number} ({self.told()}) {line}" for line in found]
            about = {line.split()[0] for line in found}
            said = [f"{who} of {what}: {text}" for what in sorted(about) for who, side in zip(("ours", "theirs"), seen)
                    for text in side.get(what, {}).get(SAID, [])]
            self.outcomes.append([*self.differences, *said])
            self.tries += 1
            drawn = any(line.split()[1].startswith(PLACES) for line in found)
            again = drawn and self.next == "event" and self.event()[0] == "create" and self.tries < TRIES and all(
                self.before[side].keys() <= seen[side].keys() for side in range(2))
            self.next = "undo" if again else self.once_more(drawn)
            return self.next == "done"
        if self.number >= 0:
            states.see(self.before[0], seen[0], self.event())
            self.ties += self.tries > 0
        self.number, self.tries, self.before, self.next, self.outcomes = self.number + 1, 0, seen, "event", []
        self.differences = []
        return self.number == len(self.cluster.events)

    def compare(self, seen, known):
        """Returns unexpected differences."""
        found = []
        event = self.event() if self.number >= 0 else ("set_up",)
        about = f"{event[1]['kind']}/{event[1]['metadata']['name']}" if event[0] == "create" else ""
        for what in sorted(set(seen[0]) | set(seen[1])):
            sides = [side.get(what) for side in seen]
            if None in sides:
                sides = [{"(object)": "there"} if side is not None else {} for side in sides]
            for field in sorted((set(sides[0]) | set(sides[1])) - {SAID}):
                values = [side.get(field) for side in sides]
                if values[0] == values[1]:
                    continue
                # A waiting pod keeps its message until it is retried, which each side does in its own time.
                if what != about and field.startswith(VOLATILE) and any(
                        self.before[side].get(what, {}).get(field) == values[side] for side in range(2)):
                    self.stale += 1
                    continue
                ours, theirs = (json.dumps(value, sort_keys=True) for value in values)
                said = f"{ours}:{theirs}".replace(" ", "")
                # Equal nodes would agree by now.
                if field == "node" and self.tries == TRIES - 1 and any(
                        name.startswith("Reservation/") and fields.get("node") == values[1] for name, fields in seen[1].items()):
                    said += "+reserved"
                if not any(known.row(theme, what.split("/")[0], field, said, values) for theme in self.cluster.themes):
                    found.append(f"{what} {field}: {ours} != {theirs}")
        return found

    def once_more(self, drawn):
        self.runs += 1
        return "done" if self.runs > (AGAIN if drawn else 1) else "clear"

    def tell(self):
        if self.differences:
            print("\n  ".join([f"DIFFERS {self.cluster.name} ({', '.join(self.cluster.themes)}):", *self.differences[:6]]), flush=True)

    def told(self):
        event = self.event() if self.number >= 0 else ("set_up",)
        if event[0] == "create":
            return f"create {event[1]['kind']}/{event[1]['metadata']['name']}"
        return " ".join(str(part) for part in event[:3])


def run(sides, clusters, known, states, note):
    """Runs all clusters, some at a time, and returns their slots. `note` receives the finished ones after each round."""
    waiting, active, done, rounds = collections.deque(Slot(cluster) for cluster in clusters), [], [], 0
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2 * AT_ONCE) as hands:
        def both(do):
            return list(pool.map(do, sides))

        def each(slots, do):
            """Calls `do` on both sides for every cluster, some in parallel; they are independent."""
            both(lambda side: list(hands.map(lambda slot: do(side, slot), slots)))

        while waiting or active:
            while waiting and len(active) < TOGETHER:
                active.append(waiting.popleft())
            each(active, lambda side, slot: slot.act(side))
            seen = both(lambda side: side.settle())
            ended = [slot for slot in active if slot.see([one.get(slot.cluster.name, {}) for one in seen], known, states)]
            each(ended, lambda side, slot: side.clear(slot.cluster))
            for slot in ended:
                slot.tell()
            done += ended
            active = [slot for slot in active if slot not in ended]
            rounds += 1
            print(f"twin: round {rounds}: {len(done)} of {len(clusters)} clusters done, {sum(slot.tries > 0 or slot.runs > 0 for slot in active)} tried again",
                  file=sys.stderr, flush=True)
            note(done)
    return done


def differing(slots):
    return sorted((slot for slot in slots if slot.differences), key=lambda slot: int(slot.cluster.name[1:]))


def summary(slots, of, seed, states, seconds):
    return {"clusters": len(slots), "of": of, "seed": seed, "themes": len(THEMES), "events": sum(len(slot.cluster.events) for slot in slots),
            "seconds": seconds, "differ": len(differing(slots)),
            "at once": sum(not slot.runs and not slot.ties for slot in slots), "drawn again": sum(slot.ties for slot in slots),
            "messages that one side has not renewed": sum(slot.stale for slot in slots),
            "from the start again": sum(slot.runs > 0 for slot in slots), "states": dict(sorted(states.counts.items())),
            "reasons": dict(sorted(states.texts.items(), key=lambda pair: -pair[1]))}


def main(ours, theirs, count, seed, known, compat, out):
    known = Known(known, open(compat).read(), CHECKS)
    begun, states = time.monotonic(), States()
    sides = [Side(ours), Side(theirs)]
    chosen, only = (set(os.environ.get(name, "").split()) for name in ("THEMES", "ONLY"))
    clusters = [cluster for cluster in (Cluster(number, seed) for number in range(int(count)))
                if (not chosen or chosen & set(cluster.themes)) and (not only or cluster.name in only)]

    def note(slots):
        """Writes the results so far, so that a stopped run leaves them."""
        report = summary(slots, len(clusters), seed, states, round(time.monotonic() - begun))
        meant = {f"line {number}": dict(sorted(uses.items())) for number, uses in sorted(known.used.items())}
        differences = {slot.cluster.name: {"themes": slot.cluster.themes, "tries": slot.outcomes or [slot.differences]} for slot in differing(slots)}
        with open(os.path.join(out, "report.json"), "w") as file:
            json.dump({**report, "meant": meant, "differences": differences}, file, indent=1)
        return report

    slots = run(sides, clusters, known, states, note)
    differ, report = differing(slots), note(slots)
    # A run of everything must reach each state.
    missing = states.missing() if len(clusters) >= 5 * len(THEMES) else []
    print(json.dumps(report, indent=1))
    for rule in known.rules:
        print(f"{'meant' if rule[-1] in known.used else 'nothing differed as line'} {rule[-1]} of known: {rule[-2]}")
    for line in missing:
        print(f"MISSING {line}")
    return 1 if differ or missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
