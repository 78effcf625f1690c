"""A node in namespaces of its own: mount, network, process ids, cgroups and host name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GROUPS = Path("/sys/fs/cgroup")
GROUP = "koord-cluster"
NAME = "real-node"
ADDRESS = "10.99.0.1"
PODS = "10.88.0.0/24"
SERVICES = "10.96.0.0/16"
# Joins the groups of the node, which entering its namespaces does not do.
JOIN = 'for group in /sys/fs/cgroup/*/cgroup.procs; do echo $$ > "$group"; done 2>/dev/null; exec "$@"'


class Failed(Exception):
    """An expectation that does not hold, or a command that failed."""


def eventually(what, predicate, seconds=60, pause=0.5):
    """Waits until `predicate` returns something true, and returns it."""
    end = time.monotonic() + seconds
    last = None
    while True:
        try:
            result = predicate()
            if result:
                return result
        except (Failed, KeyError, IndexError, ValueError, OSError) as error:
            last = error
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s" + (f" ({last})" if last else ""))
        time.sleep(pause)


def groups():
    """Returns the node's directory in each hierarchy of the machine."""
    return [path / GROUP for path in sorted(GROUPS.iterdir()) if (path / "cgroup.procs").exists()]


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Node:
    """The namespaces and the programs in them. `state` has everything that they write."""

    def __init__(self, state, kubernetes, koord):
        self.state, self.kubernetes, self.koord = state, kubernetes, koord
        self.logs, self.pki = state / "log", state / "pki"
        self.debian = kubernetes / "containerd"
        self.images = []
        self.runtime_endpoint = "unix:///run/containerd/containerd.sock"
        self.kubelet_settings = ""
        self.programs = {}
        self.init = None

    # Namespaces.

    def create(self, memory):
        """Makes groups and namespaces. `memory` bounds everything in the node, in bytes."""
        for log in (self.logs, self.state / "home"):
            log.mkdir(parents=True, exist_ok=True)
        for group in groups():
            if group.exists() and any(path.read_text().split() for path in group.rglob("cgroup.procs")):
                raise Failed(f"{group} has processes: bench/cluster/stop ends a node that was left")
            group.mkdir(exist_ok=True)
            if (group / "cpuset.mems").exists():
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((group.parent / name).read_text())
            if (group / "memory.limit_in_bytes").exists():
                (group / "memory.limit_in_bytes").write_text(str(memory))
        join = "".join(f"echo $$ > {group}/cgroup.procs; " for group in groups())
        with open(self.logs / "node.log", "ab") as log:
            outer = subprocess.Popen(
                ["bash", "-c", f'{join} exec "$@"', "bash", "unshare", "--mount", "--net", "--pid", "--cgroup", "--uts",
                 "--fork", "--kill-child", "--propagation", "private",
                 str(HERE / "inside"), str(self.state), NAME, ADDRESS],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        def ready():
            if outer.poll() is not None:
                raise SystemExit(f"the node ended; {self.logs}/node.log says why")
            return (self.state / "ready").exists() and children(outer.pid)
        self.init = eventually("the node starts", ready, 30, 0.1)[0]
        (self.state / "pid").write_text(str(self.init))

    def environment(self):
        path = [self.kubernetes / "bin", self.kubernetes / "tools", self.debian / "bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        return {
            "PATH": ":".join(map(str, path)),
            "HOME": str(self.state / "home"),
            "KUBECONFIG": str(self.pki / "admin.conf"),
            "NO_PROXY": "*",
        }

    def enter(self, command):
        return ["nsenter", "-t", str(self.init), "-m", "-n", "-p", "-C", "-u", "--", "sh", "-c", JOIN, "sh", *map(str, command)]

    def run(self, *command, given=None, check=True, seconds=120):
        """Runs a command in the node and returns its output."""
        try:
            done = subprocess.run(self.enter(command), input=given, capture_output=True, text=True,
                                  env=self.environment(), timeout=seconds, cwd="/")
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{' '.join(map(str, command))[:200]}: no end after {seconds} s") from error
        if check and done.returncode:
            raise Failed(f"{' '.join(map(str, command))[:200]}: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout

    def kubectl(self, *arguments, **options):
        return self.run("kubectl", *arguments, **options)

    # Programs.

    def daemon(self, name, *command):
        with open(self.logs / f"{name}.log", "ab") as log:
            self.programs[name] = subprocess.Popen(
                self.enter(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment(), start_new_session=True, cwd="/",
            )

    def signal(self, name, number=signal.SIGTERM, seconds=60):
        """Signals a program and waits for its end."""
        program = self.programs.pop(name)
        # nsenter is its parent, in the namespace of the machine's process ids.
        inner = eventually(f"{name} has a process", lambda: children(program.pid), 5, 0.05)
        os.kill(inner[0], number)
        try:
            program.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(inner[0], signal.SIGKILL)
            program.wait(seconds)

    def alive(self, name):
        return name in self.programs and self.programs[name].poll() is None

    def start_etcd(self):
        self.daemon("etcd", self.kubernetes / "bin/etcd", "--data-dir", self.state / "etcd-data",
                    "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
                    "--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
                    "--initial-cluster", "default=http://127.0.0.1:2380", "--unsafe-no-fsync")

    def start_apiserver(self):
        pki = self.pki
        self.daemon(
            "kube-apiserver", self.kubernetes / "bin/kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
            f"--service-cluster-ip-range={SERVICES}", "--secure-port=6443", f"--advertise-address={ADDRESS}",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key", f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt", f"--kubelet-client-key={pki}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/front-ca.crt", "--requestheader-allowed-names=front-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki}/front-proxy.crt", f"--proxy-client-key-file={pki}/front-proxy.key",
            f"--audit-policy-file={HERE}/audit-policy.yaml", f"--audit-log-path={self.logs}/audit.log", "--audit-log-maxsize=500",
        )
        eventually("kube-apiserver is ready", lambda: self.kubectl("get", "--raw", "/readyz", seconds=10), 180)

    def start_controller_manager(self):
        pki = self.pki
        conf = pki / "controller-manager.conf"
        self.daemon("kube-controller-manager", self.kubernetes / "bin/kube-controller-manager", f"--kubeconfig={conf}",
                    f"--authentication-kubeconfig={conf}", f"--authorization-kubeconfig={conf}",
                    f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
                    f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
                    "--use-service-account-credentials", "--allocate-node-cidrs=false", "--leader-elect=false")

    def start_scheduler(self):
        # It binds koord's own pods.
        self.daemon("kube-scheduler", self.kubernetes / "bin/kube-scheduler", f"--kubeconfig={self.pki}/scheduler.conf", "--leader-elect=false")

    def start_proxy(self):
        self.daemon("kube-proxy", self.kubernetes / "bin/kube-proxy", f"--kubeconfig={self.pki}/proxy.conf",
                    f"--hostname-override={NAME}", "--proxy-mode=iptables", f"--cluster-cidr={PODS}", "--conntrack-max-per-core=0")

    def start_containerd(self):
        network = self.state / "cni"
        network.mkdir(exist_ok=True)
        (network / "10-node.conflist").write_text(
            f'{{"cniVersion":"1.0.0","name":"node","plugins":[{{"type":"ptp","ipMasq":false,"ipam":{{"type":"host-local",'
            f'"ranges":[[{{"subnet":"{PODS}"}}]],"routes":[{{"dst":"0.0.0.0/0"}}]}}}}]}}\n')
        (self.state / "containerd.toml").write_text(f"""version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "koord.local/busybox:1"
# Root without CAP_SYS_RESOURCE cannot set scores below its own.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{self.debian}/unpacked/usr/lib/cni"
conf_dir = "{network}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.nri.v1.nri"]
disable = false
""")
        self.daemon("containerd", self.debian / "bin/containerd", "--config", self.state / "containerd.toml")
        eventually("containerd answers", lambda: self.run("ctr", "version", seconds=10), 60)

    def import_image(self, archive):
        self.run("ctr", "-n", "k8s.io", "images", "import", archive, seconds=300)

    def start_kubelet(self):
        config = self.state / "kubelet.yaml"
        config.write_text(f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# 1.35 refuses cgroup v1 otherwise.
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: {self.runtime_endpoint}
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true, cacheTTL: 10s}}, x509: {{clientCAFile: {self.pki}/ca.crt}}}}
authorization: {{mode: Webhook}}
volumePluginDir: /var/lib/kubelet/volume-plugins
resolvConf: /etc/resolv.conf
# No server answers there: this cluster has no DNS.
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
failSwapOn: false
nodeStatusUpdateFrequency: 5s
evictionHard: {{memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%"}}
imageGCHighThresholdPercent: 100
systemReserved: {{cpu: 100m, memory: 512Mi}}
{self.kubelet_settings}
""")
        self.run("cp", config, "/var/lib/kubelet/config.yaml")
        self.daemon("kubelet", self.kubernetes / "bin/kubelet", "--config=/var/lib/kubelet/config.yaml",
                    f"--kubeconfig={self.pki}/kubelet.conf", f"--node-ip={ADDRESS}", f"--hostname-override={NAME}")

    def start_runtime_proxy(self):
        self.run("mkdir", "-p", "/run/koord-runtimeproxy")
        self.daemon("koord-runtime-proxy", self.koord / "koord-runtime-proxy",
                    "--remote-runtime-service-endpoint=/run/containerd/containerd.sock", "--v=2")

    def start_cluster(self):
        subprocess.run([HERE / "pki", self.pki, NAME, ADDRESS, SERVICES.replace(".0/16", ".1")], check=True)
        self.start_etcd()
        self.start_apiserver()
        self.start_controller_manager()
        self.start_scheduler()
        self.start_containerd()
        self.import_image(self.debian / "busybox.tar")
        self.daemon("node-stat", sys.executable, HERE / "node_stat.py")
        self.start_kubelet()
        self.start_proxy()
        eventually("the node is ready", lambda: self.is_ready(), 180)

    def replace_account_key(self):
        """Makes a new key for service account tokens; the tokens of the old one are refused from the API server's next start."""
        for file in (self.pki / "sa.key", self.pki / "sa.pub"):
            file.unlink()
        subprocess.run([HERE / "pki", self.pki, NAME, ADDRESS, SERVICES.replace(".0/16", ".1")], check=True)

    def restart(self):
        """Ends all programs and containers at once, as a loss of power does, and starts the programs again."""
        for name in list(self.programs):
            if name != "node-stat":
                self.signal(name, signal.SIGKILL)
        # Containers and their shims are left.
        self.run("sh", "-c", """
            for process in /proc/[0-9]*; do
              if grep -q kubepods "$process/cgroup" || readlink "$process/exe" | grep -q containerd-shim; then
                kill -9 "${process#/proc/}"
              fi
            done
            sleep 1
            awk '$5 ~ "^/run/" { print $5 }' /proc/self/mountinfo | sort -r | xargs -r -n 1 umount -l
            find /run -mindepth 1 -maxdepth 1 ! -name node -exec rm -rf {} +
            mkdir -p /run/lock""", check=False)
        self.start_etcd()
        self.start_apiserver()
        self.start_controller_manager()
        self.start_scheduler()
        self.start_containerd()
        self.start_kubelet()
        self.start_proxy()
        eventually("the node is ready", self.is_ready, 180)

    def is_ready(self):
        condition = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", NAME, "-o", f"jsonpath={condition}") == "True"


def stop(state):
    """Ends a node and removes its groups; everything that it mounted ends with its namespace."""
    file = state / "pid"
    if file.exists():
        pid = int(file.read_text())
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            command = []
        # Not another process that has the number now.
        if any(part == str(HERE / "inside").encode() for part in command):
            os.kill(pid, signal.SIGKILL)
        file.unlink()
    remove_groups()


def remove_groups():
    """Removes the node's groups as soon as its processes are gone."""
    end = time.monotonic() + 30
    while True:
        for group in groups():
            for path in sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                try:
                    path.rmdir()
                except OSError:
                    pass
            try:
                group.rmdir()
            except OSError:
                pass
        left = [str(group) for group in groups() if group.exists()]
        if not left:
            return
        if time.monotonic() > end:
            raise Failed(f"not removed: {' '.join(left)}")
        time.sleep(0.5)
