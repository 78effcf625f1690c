"""Attacks on the machine itself: by a tenant's pod, and by another local user."""
import http.client
import os
import re
import stat
import socket
import ssl
import time

from cluster import TENANT

PODS = f"/api/v1/namespaces/{TENANT}/pods"
# A user without permissions, as in Kubernetes' examples.
NOBODY = 65534
HARDENED = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
    "runAsUser": NOBODY, "runAsGroup": NOBODY,
}
# What needs no credentials on a kubelet's read-only port or on any component.
HEALTH = ("/healthz", "/livez", "/readyz")
REQUESTS = (
    ("GET", "/pods"), ("GET", "/configz"), ("GET", "/metrics"), ("GET", f"/containerLogs/{TENANT}/secret/c"),
    ("GET", "/debug/scheduler/pending"), ("GET", "/debug/descheduler"), ("GET", "/debug/status"), ("GET", "/events"),
    ("PUT", "/debug/flags/v"), ("DELETE", "/metrics"),
)


def run_pod(cluster, name, script, security=None, seconds=40):
    """(phase, log) of a pod that runs `script`; (None, why) when it is refused."""
    container = {"name": "c", "image": "koord.local/host", "command": ["/bin/sh", "-c", script]}
    if security:
        container["securityContext"] = security
    made = cluster.tenant.call("POST", PODS, {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]}})
    if made is None or made.status != 201:
        return None, "no answer" if made is None else made.json().get("message", "")
    deadline = time.monotonic() + seconds
    phase, why = "Pending", ""
    while time.monotonic() < deadline:
        status = cluster.admin.must("GET", f"{PODS}/{name}")["status"]
        phase, why = status.get("phase", "Pending"), status.get("message", "")
        if phase in ("Succeeded", "Failed"):
            break
        # A node that refuses a container reports it in the container's state.
        waiting = [s["state"].get("waiting", {}) for s in status.get("containerStatuses", []) if "state" in s]
        if any("Error" in w.get("reason", "") or "Invalid" in w.get("reason", "") for w in waiting):
            return "refused", "; ".join(w.get("message", "") for w in waiting)
        time.sleep(0.1)
    log = cluster.admin.call("GET", f"{PODS}/{name}/log")
    text = log.body.decode(errors="replace") if log and log.status == 200 else ""
    if phase == "Failed" and not text:
        return "refused", why
    return phase, text


def pods(cluster, report, short):
    """What a pod of a tenant may do as a process of this machine."""
    data = cluster.data
    script = f"""
        echo "uid=$(id -u) gid=$(id -g)"
        grep -E '^(CapEff|CapBnd|NoNewPrivs|Groups):' /proc/self/status
        [ -r {data}/kubeconfig ] && cat {data}/kubeconfig > /dev/null && echo "reads=kubeconfig"
        for f in $(find {data} -type f 2> /dev/null); do [ -r "$f" ] && head -c1 "$f" > /dev/null 2>&1 && echo "reads=$f"; done
        touch {data}/planted 2> /dev/null && echo "writes=1"
        exit 0"""
    phase, log = run_pod(cluster, "secret", script)
    if phase != "Succeeded":
        held = None if phase is not None else True
        report("a pod's capabilities", f"it did not run: {phase} {log[:120]}", "none", held)
        report("a pod reads the data directory", "it did not run", "0 files", held)
    else:
        field = fields(log)
        effective = int(field.get("CapEff", "0"), 16)
        identity = re.search(r"uid=\d+ gid=\d+", log).group()
        report("a pod's capabilities", f"{identity}, {bin(effective).count('1')} effective (CapEff {effective:x})",
               "none", effective == 0)
        # Its own log and files of its own volumes are its own.
        read = {line[6:] for line in log.splitlines() if line.startswith("reads=")}
        read = {path for path in read if f"{TENANT}_" not in path and TENANT not in os.path.basename(path)}
        wrote = ", writes there" if "writes=1" in log else ""
        report("a pod reads the data directory", f"{len(read)} files{example(read)}{wrote}", "0 files",
               not read and not wrote)

    script = """
        echo "uid=$(id -u) gid=$(id -g)"
        grep -E '^(CapEff|CapBnd|NoNewPrivs|Groups):' /proc/self/status
        for d in /tmp /var/tmp /; do touch $d/koord-attack-$$ 2> /dev/null && rm $d/koord-attack-$$ && echo "writes=$d"; done
        exit 0"""
    phase, log = run_pod(cluster, "hardened", script, HARDENED)
    name = "a pod's own security settings"
    if phase != "Succeeded":
        refused = phase in (None, "refused")
        report(name, f"{'refused' if refused else phase}: {log[:120]}", "honored or refused", refused or None)
        return
    field, broken = fields(log), []
    if f"uid={NOBODY} " not in log:
        broken.append("runAsUser")
    if f"gid={NOBODY}\n" not in log:
        broken.append("runAsGroup")
    if [g for g in field.get("Groups", "").split() if g != str(NOBODY)]:
        broken.append("groups")
    if field.get("NoNewPrivs") != "1":
        broken.append("allowPrivilegeEscalation")
    if int(field.get("CapBnd", "0"), 16):
        broken.append("capabilities.drop")
    if "writes=" in log:
        broken.append("readOnlyRootFilesystem")
    report(name, "ignored: " + ", ".join(broken) if broken else "all six in force", "honored or refused", not broken)


def fields(log):
    pairs = (line.split(":", 1) for line in log.splitlines() if ":" in line and "=" not in line)
    return {key: value.strip() for key, value in pairs}


def example(paths):
    return f" ({os.path.basename(sorted(paths, key=len)[0])}, …)" if paths else ""


def files(cluster, report, short):
    """What the files under the data directory let another user of this machine read or write."""
    run_pod(cluster, "talks", "echo secret of a tenant; exit 0")
    readable, writable = set(), set()

    def visit(path, reachable):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return
        if stat.S_ISDIR(mode):
            inside = reachable and mode & stat.S_IXOTH
            if reachable and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                writable.add(path)
            for name in sorted(os.listdir(path)):
                try:
                    visit(os.path.join(path, name), inside)
                except FileNotFoundError:
                    continue
        elif reachable and mode & stat.S_IROTH and not stat.S_ISSOCK(mode):
            readable.add(path)
        if not stat.S_ISDIR(mode) and reachable and mode & stat.S_IWOTH:
            writable.add(path)

    visit(cluster.data, True)
    report("another local user reads the data directory",
           f"{len(readable)} files readable{example(readable)}, {len(writable)} writable", "0", not readable | writable)


def listeners(pid):
    """Ports of loopback, or of every address, on which a process listens."""
    inodes = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                field = line.split()
                if field[3] == "0A" and field[9] in inodes:
                    ports.add(int(field[1].rpartition(":")[2], 16))
    return ports


def ask(port, method, path, headers=None, tls=None):
    """The code of an answer without credentials, `None` when there is none."""
    make = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
    options = {} if tls is None else {"context": tls}
    connection = make("127.0.0.1", port, timeout=3, **options)
    body = "4" if method == "PUT" else None
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        answer.read(1 << 16)
        return answer.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def ports(cluster, report, short):
    """Answers of a cluster's ports to clients without credentials, and to pages of other origins."""
    run_pod(cluster, "secret", "echo secret of a tenant; exit 0")
    untrusting = ssl.create_default_context()
    untrusting.check_hostname, untrusting.verify_mode = False, ssl.CERT_NONE
    answered, foreign, asked = [], [], 0
    others = listeners(cluster.process.pid) - {cluster.port}
    for port in sorted(others):
        # A port with TLS only does not answer, or answers 400.
        plain = ask(port, "GET", "/healthz")
        tls = untrusting if plain in (None, 400) else None
        for method, path in REQUESTS:
            asked += 1
            code = ask(port, method, path, tls=tls)
            if code is not None and 200 <= code < 300:
                answered.append(f"{port} {method} {path}")
        for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
            for _, path in REQUESTS[:3]:
                code = ask(port, "GET", path, headers, tls)
                if code is not None and 200 <= code < 300:
                    foreign.append(f"{port} {path}")
    name = "ports answer without credentials"
    shown = "; ".join(answered[:3]) + ("; …" if len(answered) > 3 else "")
    report(name, f"{len(answered)} of {asked} requests on {len(others)} ports{': ' + shown if shown else ''}", "0",
           not answered)
    report("ports answer a foreign Host or Origin", f"{len(foreign)} requests", "0", not foreign)
    secret = cluster.stranger.call("GET", "/api/v1/pods", fresh=True)
    code = secret.status if secret else "no answer"
    report("the API server answers a stranger's list of pods", str(code), "401 or 403", code in (401, 403))
