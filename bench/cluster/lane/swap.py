"""Steps in which Koordinator's programs and koord's take turns, in an installation by Koordinator's chart."""

import json
import re
import shutil
import time
from pathlib import Path

import image
from cluster import BATCH, BATCH_VALUES, GANG, NAMESPACE, PINNED, PROFILE, QUOTA, RESERVATION, SERVICE
from node import Failed, eventually
from steps import COMPONENTS, STEPS, Skipped, expect, expect_values, koord_pods_ready, mount_stat, pinned_agrees, rolled_out, step

# Where the lane imports images of Koordinator's programs.
HOST = "koordinator.local"
# Annotations and status that hold an allocation.
ALLOCATIONS = ("scheduling.koordinator.sh/resource-status", "scheduling.koordinator.sh/device-allocated",
               "scheduling.koordinator.sh/reservation-allocated")


class Manifests:
    """Objects of a rendered chart, as texts by kind and name."""

    def __init__(self, text):
        self.objects = {}
        for part in re.split(r"(?m)^---.*\n", text):
            kind = re.search(r"(?m)^kind: (\S+)", part)
            name = re.search(r"(?m)^metadata:\n(?:  .*\n)*?  name: (\S+)", part)
            if kind and name:
                # Images come from archives.
                self.objects[kind[1], name[1]] = part.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")

    def of(self, program):
        """Returns the objects of a program, other than state that it writes itself."""
        def belongs(kind, name):
            if kind.endswith("WebhookConfiguration") or (kind, name) == ("Service", "koordinator-webhook-service"):
                return program == "koord-manager"
            return kind not in ("Secret", "CustomResourceDefinition") and name.startswith(program)
        return {key: text for key, text in self.objects.items() if belongs(*key)}


def apply(run, objects):
    run.node.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-",
                     given="---\n".join(objects.values()), seconds=180)


def render(run, chart, *settings):
    # The requests of all replicas are more than this node has.
    small = [part for name in COMPONENTS if name != "koordlet"
             for part in ("--set", f"{name}.replicas=1", "--set", f"{name}.resources.requests.cpu=50m")]
    return Manifests(run.node.run(run.helm, "template", "koord", chart, *small, *settings, seconds=60))


def batch_follows(run, what):
    """Creates a batch pod. Koordinator's koordlet writes the files of its container within some seconds of its start."""
    pod, ready = run.cluster.create_pod(BATCH)
    start = time.monotonic()
    expect_values(run.cluster, pod, BATCH_VALUES, f"{what}: files of the batch pod", 60)
    return f"a new batch pod is ready after {ready:.1f} s, with its values {time.monotonic() - start:.1f} s later"


def allocations(run):
    """Returns what a program must not change of pods and objects when it takes over."""
    found = {}
    for pod in run.cluster.pods("default"):
        name = pod["metadata"]["name"]
        if name == "batch":
            continue
        annotations = pod["metadata"].get("annotations", {})
        status = pod["status"].get("containerStatuses", [{}])[0]
        found[f"pod {name}"] = (pod["spec"].get("nodeName"), status.get("containerID"), status.get("restartCount"),
                                {key: annotations[key] for key in ALLOCATIONS if key in annotations})
    reservation = run.cluster.get("reservation", "swap")["status"]
    found["reservation"] = {key: reservation.get(key) for key in ("phase", "nodeName", "allocatable", "allocated")}
    group = run.cluster.get("podgroup", "swap")["status"]
    found["gang"] = {key: group.get(key) for key in ("phase", "scheduled", "running")}
    quota = run.cluster.get("elasticquota", "swap")
    found["quota"] = (quota["spec"], quota.get("status", {}).get("used"))
    found["NodeSLO"] = run.cluster.get("nodeslo")["items"][0]["spec"]
    return found


def difference(before, after):
    return {key: (before.get(key), after.get(key)) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def take_turn(run, program, ours, theirs):
    """Replaces a program and its objects. Pods, their files, and allocations are as before, and a new batch pod works.

    `ours` are the manifests that follow, `theirs` those that were there."""
    before, files = allocations(run), run.cluster.service_state()
    start = time.monotonic()
    objects = ours.of(program)
    apply(run, objects)
    for kind, name in theirs.of(program).keys() - objects.keys():
        run.node.kubectl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")
    rolled_out(run)
    eventually("all pods are ready", lambda: koord_pods_ready(run), 180)
    seconds = time.monotonic() - start
    told = batch_follows(run, program)

    def same():
        changed = difference(before, allocations(run)) | difference(files, run.cluster.service_state())
        expect(not changed, f"changed: {changed}")
        return True

    eventually("pods and allocations are as before", same, 90)
    # A report and a calculation later nothing has changed either.
    time.sleep(25)
    same()
    return f"rolled out in {seconds:.0f} s; {told}"


@step("Koordinator's chart is installed with its own programs; pods of each kind run")
def koordinator(run):
    if not run.koordinator:
        raise Skipped("no --koordinator")
    chart, programs = run.koordinator
    for name in COMPONENTS.values():
        archive = run.out / f"koordinator-{name}.tar"
        # koordlet runs lscpu.
        tools = [Path(shutil.which("lscpu"))] if name == "koordlet" else []
        image.write(archive, f"{HOST}/koordinator-sh/{name}:v1.8.0", programs / name, tools)
        run.node.import_image(archive)
    run.theirs, run.ours = render(run, chart, "--set", f"imageRepositoryHost={HOST}"), render(run, run.chart)
    # There is no image of its program.
    run.theirs.objects.pop(("DaemonSet", "koord-device-daemon"), None)
    # The chart mounts them, and a node that kubeadm made has them.
    run.node.run("sh", "-c", "mkdir -p /etc/kubernetes; [ -e /etc/localtime ] || touch /etc/localtime")
    # Definitions come in the same stream as objects of theirs.
    eventually("the chart is applied", lambda: apply(run, run.theirs.objects) is None, 120, 3)
    mount_stat(run)
    run.cluster.settings(**{key.replace("-", "_"): value for key, value in json.loads(run.values.read_text())["sloConfig"]["data"].items()})
    # The kernel refuses a buffer above the quota, which Koordinator's koordlet writes for a larger percentage.
    run.cluster.settings(cpu_burst_config={"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 100}})
    rolled_out(run, 300)
    eventually("all pods are ready", lambda: koord_pods_ready(run), 180)
    eventually("batch-cpu above 500", lambda: int(run.cluster.allocatable("kubernetes.io/batch-cpu") or 0) > 500, 180)
    eventually("the profile is accepted", lambda: run.cluster.apply(PROFILE) is None, 60)
    run.cluster.create_pod(SERVICE)
    pod, _ = run.cluster.create_pod(PINNED)
    pinned_agrees(run, pod)
    burst = lambda: int(run.cluster.service_state()["service"][2].get("cpu.cfs_burst_us", 1)) > 0  # noqa: E731
    eventually("the service may burst", burst, 90)
    eventually("quota, gang and reservation are accepted", lambda: run.cluster.apply(QUOTA, RESERVATION, *GANG[:1]) is None, 60)
    eventually("the reservation is available", lambda: run.cluster.get("reservation", "swap")["status"]["phase"] == "Available", 60)
    run.cluster.apply(*GANG[1:])
    eventually("the gang runs", lambda: run.cluster.get("podgroup", "swap")["status"].get("phase") == "Running", 120)
    return batch_follows(run, "Koordinator")


for program in COMPONENTS.values():
    @step(f"koord's {program} takes over from Koordinator's", ["koordinator"])
    def forth(run, program=program):
        return take_turn(run, program, run.ours, run.theirs)
    STEPS[-1] = (f"to_{program}", *STEPS[-1][1:])


for program in COMPONENTS.values():
    @step(f"Koordinator's {program} takes over again", ["koordinator"])
    def back(run, program=program):
        return take_turn(run, program, run.theirs, run.ours)
    STEPS[-1] = (f"back_{program}", *STEPS[-1][1:])


@step("containers that restarted in all turns", ["koordinator"])
def disturbed(run):
    count = sum(s["restartCount"] for p in run.cluster.pods("default") for s in p["status"].get("containerStatuses", []))
    run.figures["restarts of pods in all turns"] = count
    if count:
        raise Failed(f"{count} restarts")
    return "0"
