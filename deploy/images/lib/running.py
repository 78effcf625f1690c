"""Runs images in a containerd of their own, below one directory and in namespaces of their own, until they are healthy."""

import base64
import fcntl
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from programs import USER

ROOT = Path(__file__).resolve().parents[3]
CONTAINERD = ROOT / "bench/containerd"
NODE = "image-check"


class Unhealthy(Exception):
    """A program did not do what it has to do."""


def loopback():
    """Brings the interface of a new network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 0x1 | 0x40))


def answer(url: str) -> str | None:
    """Returns the text of a successful answer, else None. Certificates are made at start, so none can be verified."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as got:
            return got.read(200).decode(errors="replace").strip()
    except (OSError, urllib.error.URLError, ValueError):
        return None


def apply(kubeconfig: Path, path: str, document: str):
    """Applies an object to the cluster of a kubeconfig of `koord up`."""
    fields = dict(re.findall(r"^\s*([\w-]+): (\S+)$", kubeconfig.read_text(), re.M))
    certificate = kubeconfig.with_suffix(".pem")
    certificate.touch(mode=0o600)
    names = "client-certificate-data", "client-key-data"
    certificate.write_bytes(b"".join(base64.b64decode(fields[name]) for name in names))
    authority = base64.b64decode(fields["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    context.load_cert_chain(certificate)
    request = urllib.request.Request(
        f"{fields['server']}{path}?fieldManager=images",
        document.encode(),
        {"Content-Type": "application/apply-patch+yaml"},
        method="PATCH",
    )
    try:
        with urllib.request.urlopen(request, timeout=10, context=context):
            pass
    except urllib.error.HTTPError as e:
        raise Unhealthy(f"{path}: {e.read(1000).decode(errors='replace')}") from e


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def runtime_version(path: Path) -> str | None:
    """Calls Version of the CRI on a socket, and returns the name of the runtime."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/runtime.v1.RuntimeService/Version",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    text = lambda s: bytes([len(s)]) + s.encode()  # noqa: E731
    head = b"".join(b"\0" + text(name) + text(value) for name, value in fields.items())
    request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
    request += _frame(1, 4, 1, head) + _frame(0, 1, 1, bytes(5))
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(str(path))
            s.sendall(request)
            got = b""
            while b"containerd" not in got:
                more = s.recv(4096)
                if not more:
                    return None
                got += more
            return "containerd"
    except OSError:
        return None


class Runtime:
    """A containerd, with a namespace of its own for these containers."""

    def __init__(self, programs: Path, work: Path):
        self.programs, self.work, self.run = programs, work, work / "run"
        self.namespace = work.name
        subprocess.run([CONTAINERD, "start", programs, self.run], check=True)

    def ctr(self, *arguments: str) -> str:
        command = [self.programs / "bin/ctr", "--address", self.run / "containerd.sock", "--namespace", self.namespace]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise Unhealthy(f"ctr {arguments[0]} {arguments[1]}: {done.stderr.strip()}")
        return done.stdout

    def load(self, archive):
        self.ctr("images", "import", "--snapshotter", "native", str(archive.path))
        if archive.name not in self.ctr("images", "ls", "-q").split():
            raise Unhealthy(f"containerd has no {archive.name} after the import")

    def start(self, archive, container: str, arguments, mounts=(), env=(), user=None):
        command = ["run", "--detach", "--net-host", "--read-only", "--snapshotter", "native"]
        command += ["--cgroup", f"/{self.namespace}/{container}", "--log-uri", f"file://{self.log(container)}"]
        for source, target, how in mounts:
            command += ["--mount", f"type=bind,src={source},dst={target},options=rbind:{how}"]
        for variable in env:
            command += ["--env", variable]
        if user:
            command += ["--user", user]
        self.ctr(*command, archive.name, container, *arguments)

    def log(self, container: str) -> Path:
        return self.work / f"{container}.log"

    def tail(self, container: str) -> str:
        path = self.log(container)
        return "\n".join(path.read_text(errors="replace").splitlines()[-8:]) if path.exists() else ""

    def pid(self, container: str) -> int | None:
        """Returns the process of a container that is running."""
        for line in self.ctr("tasks", "ls").splitlines()[1:]:
            name, pid, status = line.split()
            if name == container and status == "RUNNING":
                return int(pid)
        return None

    def remove(self, container: str) -> float:
        """Stops a container with SIGTERM, and returns the seconds that this takes."""
        since = time.monotonic()
        if self.pid(container) is not None:
            self.ctr("tasks", "kill", "--signal", "SIGTERM", container)
            while self.pid(container) is not None:
                if time.monotonic() - since > 20:
                    self.ctr("tasks", "kill", "--signal", "SIGKILL", container)
                    raise Unhealthy(f"{container} does not stop within 20 s")
                time.sleep(0.05)
        took = time.monotonic() - since
        self.ctr("tasks", "delete", "--force", container)
        self.ctr("containers", "delete", container)
        return took

    def close(self):
        try:
            for container in self.ctr("containers", "ls", "-q").split():
                try:
                    self.ctr("tasks", "delete", "--force", container)
                except Unhealthy:
                    pass
        except Unhealthy:
            pass
        subprocess.run([CONTAINERD, "stop", self.programs, self.run])


class Runs:
    """Starts the programs one after the other; the first is `koord up`, which the others need."""

    def __init__(self, runtime: Runtime, timeout: float):
        self.runtime, self.timeout = runtime, timeout
        self.work = runtime.work
        self.kubeconfig = None

    def directory(self, name: str, owner: int = 0) -> Path:
        path = self.work / name
        path.mkdir(exist_ok=True)
        os.chown(path, owner, owner)
        return path

    def healthy(self, container: str, ask, since: float) -> str:
        """Waits for the first answer, and returns it with the time that it took."""
        while (got := ask()) is None:
            if self.runtime.pid(container) is None:
                raise Unhealthy(f"{container} ended:\n{self.runtime.tail(container)}")
            if time.monotonic() - since > self.timeout:
                raise Unhealthy(f"{container} is not healthy after {self.timeout:g} s:\n{self.runtime.tail(container)}")
            time.sleep(0.1)
        return f"{got!r} after {time.monotonic() - since:.1f} s"

    def check_user(self, container: str, expected: str):
        pid = self.runtime.pid(container)
        if pid is None:
            raise Unhealthy(f"{container} ended:\n{self.runtime.tail(container)}")
        status = Path(f"/proc/{pid}/status").read_text()
        ids = ":".join(re.search(rf"^{key}:\s+(\d+)", status, re.M)[1] for key in ("Uid", "Gid"))
        if ids != expected:
            raise Unhealthy(f"{container} runs as {ids}")

    def version(self, archive) -> str:
        """Runs a program only to print its version."""
        container = f"{archive.program.name}-version"
        self.runtime.start(archive, container, [f"/{archive.program.name}", "--version"])
        for _ in range(int(self.timeout * 10)):
            if self.runtime.pid(container) is None:
                break
            time.sleep(0.1)
        said = self.runtime.tail(container)
        self.runtime.remove(container)
        version = archive.config["config"]["Labels"]["org.opencontainers.image.version"]
        if said.split()[-1:] != [version]:
            raise Unhealthy(f"--version of {archive.program.name} prints {said!r}; expected {version}")
        return said

    def _plan(self, name: str):
        """Returns arguments, mounts, environment and how to ask; None if there is no cluster for it."""
        config = [(self.kubeconfig, "/kubeconfig", "ro")]
        flag = "--kubeconfig=/kubeconfig"
        if name == "koord":
            data = self.directory("cluster", USER)
            arguments = ["up", "--memory", "--data-dir=/data", "--port=6443"]
            arguments += ["--components=-manager,-scheduler,-descheduler,-koordlet"]
            return arguments, [(data, "/data", "rw")], [], lambda: answer("https://127.0.0.1:6443/readyz")
        if name == "koord-runtime-proxy":
            sockets = self.directory("sockets")
            mounts = [(sockets, "/var/run/koord-runtimeproxy", "rw")]
            mounts += [(self.runtime.run / "containerd.sock", "/containerd.sock", "rw")]
            arguments = ["--remote-runtime-service-endpoint=/containerd.sock"]
            return arguments, mounts, [], lambda: runtime_version(sockets / "runtimeproxy.sock")
        if self.kubeconfig is None:
            return None
        if name == "koord-manager":
            # It is ready when its webhooks are.
            for document in (ROOT / "charts/koord/files/manager/webhooks.yaml").read_text().split("\n---\n"):
                kind = re.search(r"^kind: (\w+WebhookConfiguration)$", document, re.M)
                if kind:
                    named = re.search(r"^  name: (\S+)$", document, re.M)[1]
                    path = f"/apis/admissionregistration.k8s.io/v1/{kind[1].lower()}s/{named}"
                    apply(self.kubeconfig, path, document)
            return [flag], config, ["POD_NAMESPACE=koordinator-system"], lambda: answer("http://127.0.0.1:8000/readyz")
        if name == "koord-scheduler":
            return [flag, "--port=0"], config, [], lambda: answer("https://127.0.0.1:10259/healthz")
        if name == "koord-descheduler":
            return [flag, "--port=0"], config, [], lambda: answer("https://127.0.0.1:10258/healthz")
        if name == "koordlet":
            # Directories of its own instead of the machine's, so that nothing of the machine is changed.
            places = ["host-cgroup", "host-sys-fs", "host-var-run", "host-var-run-koordlet", "host-etc-hookserver"]
            places += ["prediction-checkpoints", "metric-data", "var/log/koordlet", "var/lib/kubelet"]
            mounts = [(self.directory(f"koordlet-{p.replace('/', '-')}"), f"/{p}", "rw") for p in places]
            mounts += [("/sys", "/host-sys", "ro")]
            arguments = [flag, "--addr=127.0.0.1:9316", "--pod-source=apiserver", "--audit-log-dir=/var/log/koordlet"]
            arguments += ["--prediction-checkpoint-filepath=/prediction-checkpoints"]
            env = [f"NODE_NAME={NODE}", "agent_mode=dsMode"]
            return arguments, mounts + config, env, lambda: answer("http://127.0.0.1:9316/readyz")
        return None

    def run(self, archive) -> str:
        """Loads an image and runs it, and returns what it answered."""
        name = archive.program.name
        self.runtime.load(archive)
        said = self.version(archive)
        plan = self._plan(name)
        if plan is None:
            return f"{said}; not started: there is no cluster without koord.tar"
        arguments, mounts, env, ask = plan
        since = time.monotonic()
        self.runtime.start(archive, name, [f"/{name}", *arguments], mounts, env)
        got = self.healthy(name, ask, since)
        self.check_user(name, archive.program.user)
        if name == "koord":
            # It stays for the others.
            self.kubeconfig = self.work / "kubeconfig"
            shutil.copyfile(self.work / "cluster/kubeconfig", self.kubeconfig)
            os.chown(self.kubeconfig, USER, USER)
            self.kubeconfig.chmod(0o600)
            node = f"{{apiVersion: v1, kind: Node, metadata: {{name: {NODE}}}}}"
            apply(self.kubeconfig, f"/api/v1/nodes/{NODE}", node)
            return f"{said}; healthy: {got}"
        took = self.runtime.remove(name)
        return f"{said}; healthy: {got}; stopped in {took:.1f} s"

    def end(self, container: str) -> str:
        return f"stopped in {self.runtime.remove(container):.1f} s"

    def exporter(self, archive) -> str:
        """Runs the command of koord that has a DaemonSet: as root, because the kubelet's socket is root's."""
        name = "koord-topology-exporter"
        arguments = ["/koord", "topology-exporter", "--port=8081", "--kubeconfig=/kubeconfig", "--kubelet-state-dir="]
        arguments += ["--kubelet-config-uri=file:///kubelet.yaml"]
        config = self.work / "kubelet.yaml"
        config.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
        mounts = [(self.kubeconfig, "/kubeconfig", "ro"), (config, "/kubelet.yaml", "ro")]
        since = time.monotonic()
        self.runtime.start(archive, name, arguments, mounts, [f"NODE_NAME={NODE}"], user="0:0")
        got = self.healthy(name, lambda: answer("http://127.0.0.1:8081/healthz"), since)
        self.check_user(name, "0:0")
        self.runtime.remove(name)
        return f"healthy: {got}"
