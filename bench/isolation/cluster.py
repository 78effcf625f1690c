"""A cluster of `koord up --memory` to attack, with an administrator and a tenant."""
import base64
import http.client
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time

TENANT = "mallory"


class Answer:
    def __init__(self, status, body, seconds):
        self.status, self.body, self.seconds = status, body, seconds

    def json(self):
        return json.loads(self.body)


class Client:
    """HTTP/1.1 over TLS, a connection per thread."""

    def __init__(self, port, context, token=""):
        self.port, self.context, self.token = port, context, token
        self.local = threading.local()

    def call(self, method, path, body=None, kind="application/json", timeout=30, fresh=False):
        """The answer; `None` when there is none in time."""
        headers = {"Content-Type": kind}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        began = time.monotonic()
        connection = None if fresh else getattr(self.local, "connection", None)
        for retry in (connection is not None, False):
            connection = connection or http.client.HTTPSConnection(
                "127.0.0.1", self.port, context=self.context, timeout=timeout)
            try:
                connection.timeout = timeout
                if connection.sock:
                    connection.sock.settimeout(timeout)
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                text = answer.read()
                self.local.connection = None if fresh else connection
                return Answer(answer.status, text, time.monotonic() - began)
            except (OSError, http.client.HTTPException):
                connection.close()
                # A connection that was idle may have been closed meanwhile.
                connection = self.local.connection = None
                if not retry or time.monotonic() - began > 1:
                    return None

    def must(self, method, path, body=None, **options):
        answer = self.call(method, path, body, **options)
        if answer is None or answer.status >= 300:
            text = "no answer" if answer is None else f"{answer.status} {answer.body[:500]!r}"
            raise RuntimeError(f"{method} {path}: {text}")
        return answer.json()


class Cluster:
    def __init__(self, program, keep=False):
        # Other users may enter it, so that only the modes that koord sets are tested.
        self.work = tempfile.mkdtemp(prefix="koord-attacks-")
        os.chmod(self.work, 0o755)
        self.keep = keep
        self.data = os.path.join(self.work, "data")
        self.log = open(os.path.join(self.work, "log"), "wb")
        self.process = subprocess.Popen(
            [program, "up", "--memory", "--quiet", "--port", "0", "--data-dir", self.data],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        try:
            self._connect()
        except BaseException:
            self.stop()
            raise

    def _connect(self):
        running = os.path.join(self.data, "cluster.json")
        deadline = time.monotonic() + 90
        while not os.path.exists(running):
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(self.log.name, errors="replace") as log:
                    raise RuntimeError("koord up did not start: " + log.read()[-2000:])
            time.sleep(0.05)
        with open(os.path.join(self.data, "kubeconfig")) as file:
            config = file.read()
        self.port = int(re.search(r"server: \S+:(\d+)", config).group(1))
        field = lambda name: base64.b64decode(re.search(name + r": (\S+)", config).group(1)).decode()
        self.authority = field("certificate-authority-data")
        identity = os.path.join(self.work, "admin.pem")
        with open(os.open(identity, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(field("client-certificate-data") + field("client-key-data"))
        context = self.tls()
        context.load_cert_chain(identity)
        self.admin = Client(self.port, context)
        self.stranger = Client(self.port, self.tls())
        self.tenant = Client(self.port, self.tls(), self._tenant_token())

    def tls(self, *protocols):
        context = ssl.create_default_context(cadata=self.authority)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context

    def _tenant_token(self):
        post = lambda path, body: self.admin.must("POST", path, body)
        account = {"kind": "ServiceAccount", "name": TENANT, "namespace": TENANT}
        post("/api/v1/namespaces", {"metadata": {"name": TENANT}})
        post(f"/api/v1/namespaces/{TENANT}/serviceaccounts", {"metadata": {"name": TENANT}})
        post(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{TENANT}/rolebindings", {
            "metadata": {"name": TENANT}, "subjects": [account],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}})
        token = post(f"/api/v1/namespaces/{TENANT}/serviceaccounts/{TENANT}/token", {"spec": {}})
        return token["status"]["token"]

    def rss(self):
        """Resident memory of the server, in MiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024

    def recover(self, seconds=60):
        """Waits until the server answers again; false when it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.stranger.call("GET", "/healthz", timeout=2, fresh=True)
            if answer and answer.status == 200 and answer.seconds < 0.5:
                return True
            time.sleep(0.2)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()
        if self.keep:
            print(f"attacks: {self.work} is left")
        else:
            shutil.rmtree(self.work, ignore_errors=True)


class Bystander:
    """Requests of other clients during an attack; `worst` is the longest wait of one, in seconds."""

    def __init__(self, cluster):
        self.cluster, self.worst, self.count = cluster, 0.0, 0
        self.ended = threading.Event()
        self.threads = [
            threading.Thread(target=self._ask, args=ask, daemon=True)
            for ask in ((cluster.stranger, "/healthz"), (cluster.admin, "/api/v1/namespaces/default"))]

    def _ask(self, client, path):
        while not self.ended.is_set():
            began = time.monotonic()
            client.call("GET", path, timeout=20)
            self.worst = max(self.worst, time.monotonic() - began)
            self.count += 1
            self.ended.wait(0.01)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def raise_file_limit():
    """As many open files as this user may have; the server inherits it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
