"""Runs the units of the tarball under a systemd of their own, in namespaces: nothing of the machine's is touched."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from running import NODE, Unhealthy, answer, apply, loopback

SYSTEMD = "/lib/systemd/systemd"

# The first process of the namespaces. It ends as systemd, with these units only.
BOOT = r"""
set -eu
work=$1
mount --make-rprivate /
# The new mount shows the cgroup of this namespace only.
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/etc/new /run/etc/work /run/units
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/new,workdir=/run/etc/work /etc
for place in /usr/local/bin /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$place"; done
install -m 755 "$work"/content/bin/* /usr/local/bin/
cp "$work"/content/systemd/* /run/units/
# The check runs koordlet beside the cluster that it reports to.
sed -i '/^Conflicts=/d' /run/units/koord.service
mkdir -m 700 -p /etc/koord
mkdir /run/units/service.d /run/logs
printf '[Service]\nStandardOutput=append:/run/logs/%%n\nStandardError=append:/run/logs/%%n\n' > /run/units/service.d/log.conf
for target in basic sysinit sockets multi-user network network-online shutdown; do
  printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' "$target" > "/run/units/$target.target"
done
# Credentials of units are mounted by a process in a namespace of its own.
mount --make-rshared /
export container=koord SYSTEMD_UNIT_PATH=/run/units
exec "$2" --system --unit=basic.target --log-target=null
"""


def _systemctl(*arguments: str, check=True) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    if check and done.returncode:
        raise Unhealthy(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _main(unit: str) -> int:
    return int(_systemctl("show", "--property=MainPID", "--value", unit))


def _start(unit: str, url: str, timeout: float) -> str:
    since = time.monotonic()
    _systemctl("start", unit)
    while (got := answer(url)) is None:
        if time.monotonic() - since > timeout:
            log = Path(f"/run/logs/{unit}.service")
            said = "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else ""
            raise Unhealthy(f"{unit}.service is not healthy after {timeout:g} s:\n{said}")
        time.sleep(0.1)
    took = time.monotonic() - since
    restarts = _systemctl("show", "--property=NRestarts", "--value", unit)
    if restarts != "0":
        raise Unhealthy(f"{unit} was restarted {restarts} times")
    status = Path(f"/proc/{_main(unit)}/status").read_text()
    user, capabilities = (re.search(rf"^{key}:\s+(\w+)", status, re.M)[1] for key in ("Uid", "CapEff"))
    return f"{' '.join(got.split())!r} after {took:.1f} s, user {user}, capabilities {capabilities}"


def inside(timeout: float) -> int:
    """Starts the units one after the other, in the namespaces."""
    loopback()
    config = Path("/etc/koord")
    (config / "koord.env").write_text("KOORD_OPTIONS=--components=-manager,-scheduler,-descheduler,-koordlet\n")
    (config / "koordlet.env").write_text(f"NODE_NAME={NODE}\nKOORDLET_OPTIONS=--pod-source=apiserver\n")
    try:
        print("koord.service:", _start("koord", "https://127.0.0.1:6443/readyz", timeout), flush=True)
        kubeconfig = Path("/var/lib/koord/kubeconfig")
        for name in ("koordlet", "koord-manager", "koord-scheduler", "koord-descheduler"):
            shutil.copyfile(kubeconfig, config / f"{name}.kubeconfig")
            (config / f"{name}.kubeconfig").chmod(0o600)
        node = config / "node"
        shutil.copyfile(kubeconfig, node)
        apply(node, f"/api/v1/nodes/{NODE}", f"{{apiVersion: v1, kind: Node, metadata: {{name: {NODE}}}}}")
        for name, url in (
            # First, because without a manager nothing asks it to change anything.
            ("koordlet", "http://127.0.0.1:9316/readyz"),
            ("koord-scheduler", "https://127.0.0.1:10259/healthz"),
            ("koord-descheduler", "https://127.0.0.1:10258/healthz"),
            ("koord-manager", "http://127.0.0.1:8000/healthz"),
        ):
            print(f"{name}.service:", _start(name, url, timeout), flush=True)
            since = time.monotonic()
            _systemctl("stop", name)
            result = _systemctl("show", "--property=Result", "--value", name)
            if result != "success":
                raise Unhealthy(f"{name}.service did not stop cleanly: {result}")
            print(f"{name}.service: stopped in {time.monotonic() - since:.1f} s", flush=True)
    except (Unhealthy, OSError) as e:
        print(f"check: {e}", file=sys.stderr)
        return 1
    return 0


def boot(tarball: Path, work: Path, timeout: float) -> int:
    """Unpacks the archive and runs its units."""
    with tarfile.open(tarball) as archive:
        archive.extractall(work)
    (work / next(p.name for p in work.iterdir() if p.is_dir())).rename(work / "content")
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=work / "content")
    if sums.returncode:
        return 1
    with open("/proc/mounts") as mounts:
        unified = next((line.split()[1] for line in mounts if line.split()[2] == "cgroup2"), None)
    if unified is None or not Path(SYSTEMD).exists():
        print("check: units need systemd and the unified hierarchy of cgroups", file=sys.stderr)
        return 1
    group = Path(unified) / work.name
    group.mkdir()
    command = ["unshare", "--cgroup", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--ipc", "--kill-child"]
    command += ["bash", "-c", BOOT, "boot", str(work), SYSTEMD]
    entered = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    with open(work / "log", "wb") as log:
        outer = subprocess.Popen([*entered, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        enter = None
        for _ in range(200):
            found = subprocess.run(["pgrep", "-P", str(outer.pid)], capture_output=True, text=True).stdout.split()
            if found:
                enter = ["nsenter", "-t", found[0], "-a", "--"]
                asked = subprocess.run([*enter, "systemctl", "is-active", "-q", "basic.target"], stderr=subprocess.DEVNULL)
                if asked.returncode == 0:
                    break
            time.sleep(0.1)
        else:
            print(f"check: systemd does not start: {(work / 'log').read_text()}", file=sys.stderr)
            return 1
        check = Path(__file__).resolve().parent.parent / "check"
        command = [*enter, "env", "SYSTEMD_UNIT_PATH=/run/units", sys.executable, str(check), str(tarball.parent.resolve())]
        return subprocess.run([*command, f"--timeout={timeout}", "--booted"], stdin=subprocess.DEVNULL).returncode
    finally:
        outer.kill()
        outer.wait()
