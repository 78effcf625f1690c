"""The steps of a run, in order. Each returns a sentence for the record, raises Failed, or Skipped with the reason."""

import json
import signal
import subprocess
import time

from cluster import BATCH, BATCH_VALUES, NAMESPACE, PINNED, PROFILE, SERVICE
from node import NAME, Failed, eventually

STEPS = []
# Programs by the names of their values in the chart.
COMPONENTS = {"koordlet": "koordlet", "manager": "koord-manager", "scheduler": "koord-scheduler", "descheduler": "koord-descheduler"}
DEPLOYMENTS = ["koord-manager", "koord-scheduler", "koord-descheduler"]


class Skipped(Exception):
    """What this machine lacks."""


def step(title, needs=()):
    """Registers a step. It is skipped if one of those that it needs did not pass."""

    def register(function):
        STEPS.append((function.__name__, title, needs, function))
        return function

    return register


def expect(condition, message):
    if not condition:
        raise Failed(message)


def expect_values(cluster, pod, expected, what, seconds=20):
    def equal():
        values = cluster.values(pod)
        wrong = {name: values.get(name) for name, value in expected.items() if values.get(name) != value}
        expect(not wrong, f"{what}: {wrong}, expected {expected}")
        return values

    return eventually(what, equal, seconds)


def batch_again(run, what):
    """Creates the batch pod again and checks what its process read first, and its files now."""
    pod, seconds = run.cluster.create_pod(BATCH)
    expect_values(run.cluster, pod, BATCH_VALUES, f"{what}: files of the batch pod")
    first = run.node.kubectl("logs", "batch").split()[:3]
    expect(first == list(BATCH_VALUES.values()), f"{what}: the batch process read {first} first, expected {BATCH_VALUES}")
    return f"a new batch pod is ready after {seconds:.1f} s with its values"


def rolled_out(run, seconds=180):
    for workload in [*(f"deployment/{name}" for name in DEPLOYMENTS), "daemonset/koordlet"]:
        run.node.kubectl("-n", NAMESPACE, "rollout", "status", workload, f"--timeout={seconds}s", seconds=seconds + 10)


def koord_pods_ready(run):
    pods = run.cluster.pods(NAMESPACE)
    unready = [p["metadata"]["name"] for p in pods if not any(
        c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))]
    expect(pods and not unready, f"not ready: {unready}")
    return True


def helm(run, verb, *arguments):
    if verb == "upgrade" and run.helm_version.startswith("v4"):
        # It applies on the server, where settings that a step patched are kubectl's.
        arguments += ("--force-conflicts",)
    return run.node.run(run.helm, verb, "koord", *arguments, seconds=180)


def upgrade(run, *settings):
    """Changes values of the release, and waits for the pods."""
    helm(run, "upgrade", run.chart, "--values", run.values, *settings)
    # Both the old and the new pod are there for a moment.
    rolled_out(run)
    eventually("all pods of koord are ready", lambda: koord_pods_ready(run), 120)


def mount_stat(run):
    """Gives koordlet the /proc/stat of the node, see node_stat.py."""
    patch = [{"op": "add", "path": "/spec/template/spec/volumes/-",
              "value": {"name": "node-stat", "hostPath": {"path": "/run/node/stat", "type": "File"}}},
             {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-",
              "value": {"name": "node-stat", "mountPath": "/proc/stat", "readOnly": True}}]
    run.node.kubectl("-n", NAMESPACE, "patch", "daemonset", "koordlet", "--type=json", "-p", json.dumps(patch))


def pids(run, program):
    """Returns processes of a program in containers, as the node numbers them."""
    found = run.node.run("sh", "-c", 'for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" != "$1" ] || basename $p; done', "sh", program)
    return found.split()


# Installation


@step("images of koord's programs are built and imported")
def images(run):
    for archive in run.images:
        run.node.import_image(archive)
    return f"{len(run.images)} archives, {sum(a.stat().st_size for a in run.images) / 2**20:.0f} MiB"


@step("the chart is installed; all pods are ready", ["images"])
def install(run):
    run.installed = time.monotonic()
    run.node.kubectl("label", "namespace", "default", "koordinator.sh/enable-colocation=true", "--overwrite")
    helm(run, "install", run.chart, "--values", run.values)
    mount_stat(run)
    rolled_out(run, 300)
    eventually("all pods of koord are ready", lambda: koord_pods_ready(run), 180)
    run.figures["install to all ready"] = time.monotonic() - run.installed
    return f"after {run.figures['install to all ready']:.1f} s"


@step("the node offers batch-cpu and batch-memory", ["install"])
def batch_resources(run):
    # Without it the manager has nothing to calculate with.
    cpu = eventually("batch-cpu above 500", lambda: int(run.cluster.allocatable("kubernetes.io/batch-cpu") or 0) > 500
                     and run.cluster.allocatable("kubernetes.io/batch-cpu"), 180)
    memory = run.cluster.allocatable("kubernetes.io/batch-memory")
    return f"batch-cpu {cpu}, batch-memory {memory}"


@step("a ClusterColocationProfile turns a pod into a batch pod, and koord-scheduler binds it", ["batch_resources"])
def batch_pod(run):
    eventually("the profile is accepted", lambda: run.cluster.apply(PROFILE) is None, 60)
    def turned():
        pod, seconds = run.cluster.create_pod(BATCH)
        expect("kubernetes.io/batch-cpu" in pod["spec"]["containers"][0]["resources"]["requests"], "the webhook left the pod as it was")
        return pod, seconds
    pod, seconds = eventually("the profile applies", turned, 60)
    run.figures["install to first batch pod"] = time.monotonic() - run.installed
    expect(pod["spec"]["schedulerName"] == "koord-scheduler", "another scheduler")
    expect(pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE", "another class")
    return f"{run.figures['install to first batch pod']:.1f} s after the installation began, {seconds:.1f} s after its creation"


# Files of containers


@step("files of the batch container: shares, quota and memory limit from its first instruction (NRI)", ["batch_pod"])
def batch_files(run):
    told = batch_again(run, "NRI")
    pod = run.cluster.get("pod", "batch")
    values = run.cluster.values(pod, container=False)
    expect(values["cpu.cfs_quota_us"] == BATCH_VALUES["cpu.cfs_quota_us"], f"quota of the pod's cgroup: {values}")
    return f"{told}; {run.cluster.values(pod)}"


@step("files of a service: CPU burst", ["batch_pod"])
def service_files(run):
    pod, seconds = run.cluster.create_pod(SERVICE)
    if run.cluster.read("cpu/cpu.cfs_burst_us", run.cluster.directory(pod)) is None:
        raise Skipped("this kernel has no cpu.cfs_burst_us")
    def burst():
        value = int(run.cluster.values(pod)["cpu.cfs_burst_us"])
        expect(value > 0, f"cpu.cfs_burst_us is {value}")
        return value
    value = eventually("a burst buffer", burst, 60)
    return f"ready after {seconds:.1f} s; cpu.cfs_burst_us {value}, {run.cluster.values(pod)}"


@step("group identity (bvt)", ["batch_pod"])
def group_identity(run):
    pod = run.cluster.get("pod", "batch")
    value = run.cluster.read("cpu/cpu.bvt_warp_ns", run.cluster.directory(pod, container=False))
    if value is None:
        idle = run.cluster.read("cpu/cpu.idle", run.cluster.directory(pod, container=False))
        raise Skipped(f"this kernel has no cpu.bvt_warp_ns; cpu.idle of the batch pod is {idle}")
    expect(value == "-1", f"cpu.bvt_warp_ns of the batch pod is {value}")
    return "-1 for the batch pod"


@step("memory QoS", ["batch_pod"])
def memory_qos(run):
    pod = run.cluster.get("pod", "batch")
    if run.cluster.read("memory/memory.min", run.cluster.directory(pod)) is None:
        raise Skipped("cgroup v1 of this kernel has no memory.min, memory.low and memory.high")
    raise Skipped("not part of this lane")


@step("resctrl", ["batch_pod"])
def resctrl(run):
    if subprocess.run(["grep", "-qw", "resctrl", "/proc/filesystems"], check=False).returncode:
        raise Skipped("this kernel has no resctrl")
    raise Skipped("not part of this lane")


def pinned_agrees(run, pod):
    """Returns the CPUs of the pinned pod: annotation, file and first sight of its process agree."""
    status = json.loads(pod["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"])
    cpus = status["cpuset"]
    eventually("cpuset.cpus of the pinned pod", lambda: run.cluster.values(pod)["cpuset.cpus"] == cpus, 30)
    first = run.node.kubectl("logs", "pinned").split()
    expect(first[0] == cpus and first[-1] == cpus, f"the process read {first}, the annotation has {cpus}")
    return cpus


@step("an LSR pod has the CPUs of the scheduler's annotation, kubelet with CPU manager policy none", ["batch_pod"])
def cpuset(run):
    pod, seconds = run.cluster.create_pod(PINNED)
    return f"CPU {pinned_agrees(run, pod)}, ready after {seconds:.1f} s"


@step("koordlet reports the NodeResourceTopology of the real node", ["install"])
def topology(run):
    def zones():
        found = run.cluster.get("noderesourcetopologies", NAME)
        expect(found.get("zones"), "no zones")
        return found
    found = eventually("zones", zones, 60)
    cpus = json.loads(found["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"])["detail"]
    return f"{len(found['zones'])} zone, {len(cpus)} CPUs"


# Strategies


@step("suppression caps batch pods by CFS quota, and lifts the cap", ["batch_pod"])
def suppress(run):
    quota = lambda: run.cluster.read("cpu/cpu.cfs_quota_us", "kubepods/besteffort")  # noqa: E731
    run.cluster.settings(
        cpu_suppress_config={"clusterStrategy": {"mode": "upstream"}},
        resource_threshold_config={"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 30, "cpuSuppressPolicy": "cfsQuota"}},
    )
    eventually("a quota", lambda: int(quota()) > 0, 90)
    value = quota()
    run.cluster.settings(resource_threshold_config={"clusterStrategy": {"enable": False}})
    eventually("no quota", lambda: int(quota()) == -1, 90)
    return f"cpu.cfs_quota_us of besteffort {value}, then -1"


@step("memory eviction evicts the batch pod and no other", ["batch_pod"])
def evict(run):
    run.cluster.create_pod(BATCH)
    run.cluster.settings(resource_threshold_config={
        "clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 1, "memoryEvictLowerPercent": 0}})
    try:
        eventually("the batch pod is gone", lambda: "batch" not in [p["metadata"]["name"] for p in run.cluster.pods("default")], 120)
    finally:
        run.cluster.settings(resource_threshold_config={"clusterStrategy": {"enable": False}})
    events = run.cluster.events("evictPodSuccess")
    expect(any("batch" in e["message"] for e in events), "no event evictPodSuccess")
    names = sorted(p["metadata"]["name"] for p in run.cluster.pods("default"))
    expect("service" in names and "pinned" in names, f"pods left: {names}")
    time.sleep(5)
    return events[-1]["message"][:120]


# Faults: services must keep their containers and values


def fault(run, name, action, settle=60, counts=True):
    before = run.cluster.service_state()
    action()
    eventually("the node is ready", run.node.is_ready, 180)
    eventually("all pods of koord are ready", lambda: koord_pods_ready(run), 180)
    told = batch_again(run, name)
    def same():
        after = run.cluster.service_state()
        changed = {pod: (before[pod], after[pod]) for pod in before if before[pod] != after[pod]}
        expect(not changed, f"pods of services changed: {changed}")
        return True
    eventually("services are as before", same, settle)
    if counts:
        run.survived.append(name)
    return told


@step("the kubelet restarts", ["service_files", "cpuset"])
def kubelet_restart(run):
    def action():
        run.node.signal("kubelet")
        run.node.start_kubelet()
        time.sleep(8)
    return fault(run, "kubelet restarted", action)


@step("containerd is killed and starts 5 s later", ["service_files", "cpuset"])
def containerd_kill(run):
    def action():
        run.node.signal("containerd", signal.SIGKILL)
        time.sleep(5)
        run.node.start_containerd()
        time.sleep(6)
    return fault(run, "containerd killed", action)


@step("kube-apiserver is killed and starts 15 s later", ["service_files", "cpuset"])
def apiserver_kill(run):
    def action():
        run.node.signal("kube-apiserver", signal.SIGKILL)
        time.sleep(15)
        run.node.start_apiserver()
    return fault(run, "kube-apiserver killed", action, 120)


def kill_program(run, program):
    def action():
        found = pids(run, f"/{program}")
        expect(found, f"no process of {program}")
        run.node.run("kill", "-9", *found)
        time.sleep(3)
    return fault(run, f"{program} killed", action, 120)


for name in COMPONENTS.values():
    @step(f"every process of {name} is killed with SIGKILL", ["service_files", "cpuset"])
    def kill(run, program=name):
        return kill_program(run, program)
    STEPS[-1] = (f"kill_{name}", *STEPS[-1][1:])


@step("all service account tokens become invalid, and new ones follow", ["service_files", "cpuset"])
def expired_tokens(run):
    def action():
        for program in ("kubelet", "kube-controller-manager", "kube-apiserver"):
            run.node.signal(program)
        run.node.replace_account_key()
        run.node.start_apiserver()
        run.node.start_controller_manager()
        # It keeps tokens in memory until most of their hour has passed.
        run.node.start_kubelet()
        start = time.time()
        eventually("holders of leases renew them", lambda: leases_renewed(run, start), 240)
        run.figures["invalid tokens to renewed leases"] = time.time() - start
    return fault(run, "tokens invalid", action, 120)


def leases_renewed(run, start):
    leases = run.cluster.get("leases", "-n", NAMESPACE)["items"]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
    old = [lease["metadata"]["name"] for lease in leases if lease["spec"].get("renewTime", "") < stamp]
    expect(leases and not old, f"not renewed: {old}")
    return True


@step("packets to kube-apiserver are dropped for 45 s", ["service_files", "cpuset"])
def lost_watches(run):
    def action():
        rule = ["INPUT", "-p", "tcp", "--dport", "6443", "-j", "DROP"]
        run.node.run("iptables", "-I", *rule)
        try:
            time.sleep(45)
        finally:
            run.node.run("iptables", "-D", *rule)
    return fault(run, "packets to kube-apiserver dropped", action, 120)


# Other ways


@step("kubelet with the static CPU manager: LSR pod, and free amounts from PodResources", ["cpuset"])
def static_cpus(run):
    run.node.signal("kubelet")
    run.node.run("rm", "-f", "/var/lib/kubelet/cpu_manager_state")
    run.node.kubelet_settings = "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 5s\n"
    run.node.start_kubelet()
    eventually("the node is ready", run.node.is_ready, 180)
    upgrade(run, "--set", "koordlet.topologyExporter=true")
    pod, _ = run.cluster.create_pod(PINNED)
    annotation = json.loads(pod["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"])["cpuset"]
    seen = set()
    for _ in range(20):
        seen.add(run.cluster.values(pod)["cpuset.cpus"])
        time.sleep(1)
    assigned = json.loads(run.node.run("cat", "/var/lib/kubelet/cpu_manager_state")).get("entries", {}).get(pod["metadata"]["uid"], {}).get("main")
    def exported():
        topology = run.cluster.get("noderesourcetopologies", NAME)
        cpu = [r for zone in topology["zones"] for r in zone.get("resources", []) if r["name"] == "cpu"]
        expect(cpu, "no cpu in the zones")
        return cpu[0]
    cpu = eventually("free CPUs of the zone", exported, 90)
    text = (f"annotation {annotation}, kubelet's assignment {assigned}, cpuset.cpus in 20 s {sorted(seen)}; "
            f"zone: cpu capacity {cpu.get('capacity')}, allocatable {cpu.get('allocatable')}, available {cpu.get('available')}")
    expect(len(seen) == 1, f"two writers: {text}")
    return text


@step("koord-runtime-proxy between kubelet and containerd, koordlet as its hook server", ["batch_files"])
def runtime_proxy(run):
    run.node.start_runtime_proxy()
    upgrade(run, "--set", "koordlet.extraArgs={--runtime-hooks-mode=proxy}")
    run.node.signal("kubelet")
    run.node.runtime_endpoint = "unix:///run/koord-runtimeproxy/runtimeproxy.sock"
    run.node.start_kubelet()
    time.sleep(8)
    def killed():
        run.node.signal("koord-runtime-proxy", signal.SIGKILL)
        time.sleep(2)
        run.node.start_runtime_proxy()
        time.sleep(3)
    told = batch_again(run, "proxy")
    expect(run.node.kubectl("exec", "batch", "--", "echo", "works").strip() == "works", "exec through the proxy")
    fault(run, "koord-runtime-proxy killed", killed)
    return told


@step("the runtime proxy is taken out again", ["runtime_proxy"])
def runtime_proxy_out(run):
    def action():
        run.node.signal("kubelet")
        run.node.runtime_endpoint = "unix:///run/containerd/containerd.sock"
        run.node.start_kubelet()
        run.node.signal("koord-runtime-proxy")
        upgrade(run)
    return fault(run, "runtime proxy taken out", action, counts=False)


@step("the chart and the programs of the version before, then these again", ["batch_pod", "cpuset"])
def version_before(run):
    if not run.before:
        raise Skipped("no --before")
    for archive in run.before_images:
        run.node.import_image(archive)
    images = {name: {"image": {"repository": f"koord/{program}", "tag": "before"}} for name, program in COMPONENTS.items()}
    values = run.out / "before.json"
    values.write_text(json.dumps(images))
    def back():
        helm(run, "upgrade", run.before / "charts/koord", "--values", run.values, "--values", values)
        rolled_out(run)
    told = fault(run, "version before", back, 120, counts=False)
    forth = fault(run, "this version again", lambda: upgrade(run), 120, counts=False)
    return f"before: {told}; again: {forth}"


@step("services: containers that restarted", ["service_files"])
def services(run):
    restarts = sum(s["restartCount"] for p in run.cluster.pods("default") for s in p["status"].get("containerStatuses", []))
    run.figures["restarts of service pods"] = restarts
    expect(restarts == 0, f"{restarts} restarts")
    return "0"


@step("audit: requests of koord's accounts that were refused")
def refused(run):
    counts = {}
    for line in open(run.node.logs / "audit.log", errors="replace"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("responseStatus", {}).get("code") == 403:
            reference = event.get("objectRef", {})
            key = f"{event['user']['username'].split(':')[-1]} {event['verb']} {reference.get('resource', event['requestURI'])}"
            counts[key] = counts.get(key, 0) + 1
    expect(not counts, f"{counts}")
    return "none"


@step("the node restarts: all programs and containers are killed, /run is emptied", ["service_files", "cpuset"])
def node_restart(run):
    before = {name: state[2] for name, state in run.cluster.service_state().items()}
    start = time.monotonic()
    run.node.restart()
    run.cluster.wait_restarted(before)
    eventually("all pods of koord are ready", lambda: koord_pods_ready(run), 240)
    told = batch_again(run, "node restarted")
    def same():
        after = {name: state[2] for name, state in run.cluster.service_state().items()}
        expect(before == after, f"files before {before}, after {after}")
        return True
    eventually("files of services are as before", same, 120)
    run.figures["restart of the node to files as before"] = time.monotonic() - start
    run.survived.append("node restarted")
    return told


@step("the chart is uninstalled; pods of services stay", ["install"])
def uninstall(run):
    before = {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["containerID"] for p in run.cluster.pods("default")}
    helm(run, "upgrade", run.chart, "--values", run.values, "--set-json", 'sloConfig.data={"colocation-config":{"enable":false}}')
    eventually("batch-cpu is taken back", lambda: run.cluster.allocatable("kubernetes.io/batch-cpu") in (None, "0"), 120)
    helm(run, "uninstall")
    eventually("pods of koord are gone", lambda: not run.cluster.pods(NAMESPACE), 120)
    after = {p["metadata"]["name"]: p["status"]["containerStatuses"][0]["containerID"] for p in run.cluster.pods("default")}
    expect(before == after, f"pods before {before}, after {after}")
    return "batch resources are taken back, pods keep their containers"
