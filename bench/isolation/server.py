"""Attacks on the API server: long work, memory and connections."""
import json
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import h2
from cluster import TENANT, Bystander

PODS = f"/api/v1/namespaces/{TENANT}/pods"
CONTAINERS = 9000
FIELDS = 270_000
WATCHES = 2000
CONNECTIONS = 8192
# Growth of a server's memory at which an attack is stopped, in MiB.
GIVE_UP = 1536
MIB = 1 << 20


def pod(name, containers):
    # No scheduler has this name, so that the pod runs nowhere.
    spec = {"schedulerName": "none", "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def wait_limit(short):
    """Seconds that others may wait: a debug build on a busy machine is slow by itself."""
    return 2.0 if short else 0.1


def play(cluster, attack, count, seconds):
    """Runs `attack(number)` `count` times at once; returns the longest wait of other clients, and all answers."""
    answers = [None] * count

    def one(number):
        answers[number] = attack(number, seconds)

    with Bystander(cluster) as others:
        time.sleep(0.3)
        others.worst = 0.0
        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0.2)
    return others.worst, answers


def describe(answers):
    return ", ".join("none in time" if a is None else f"{a.status} in {a.seconds:.1f} s" for a in answers)


def merges(cluster, report, short):
    """A strategic merge patch that changes each of 9,000 containers, in reverse order."""
    containers = [{"name": f"c{number:04}", "image": "i"} for number in range(CONTAINERS)]
    made = cluster.tenant.call("POST", PODS, pod("merge", containers), timeout=60)
    patch = [{"name": c["name"], "image": "img:2"} for c in reversed(containers)]
    patch = json.dumps({"spec": {"containers": patch}}, separators=(",", ":"))

    def attack(_, seconds):
        kind = "application/strategic-merge-patch+json"
        return cluster.tenant.call("PATCH", PODS + "/merge", patch, kind, timeout=seconds, fresh=True)

    for count in (2,) if short else (1, 2, 4):
        name = f"merge of {len(patch) >> 10} KiB into 9,000 containers, {count} at once"
        if made is None or made.status not in (201, 400, 413, 422):
            report(name, "the pod was not created: " + describe([made]), "others wait", None)
            continue
        if made.status != 201:
            report(name, f"the pod is refused ({made.status})", "", True)
            continue
        worst, answers = play(cluster, attack, count, 20 if short else 60)
        limit = wait_limit(short)
        # The merged list has the order of the patch, and containers of a pod may not change places: 422.
        held = worst <= limit and all(a and a.status in (200, 422, 429) for a in answers)
        report(name, f"others wait {worst * 1000:.0f} ms; {describe(answers)}", f"{limit * 1000:.0f} ms", held)
        if not cluster.recover():
            return


def unknown_fields(cluster, report, short):
    """A pod of 3 MB with one duplicate key and 270,000 unknown fields, refused (Strict) or warned of (Warn)."""
    fields = ",".join(f'"u{number:06}":0' for number in range(FIELDS))
    body = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"fields"},"kind":"Pod",'
    body += '"spec":{"schedulerName":"none","containers":[{"name":"c","image":"i"}]},' + fields + "}"
    body = body[:body.rfind(",", 0, (3 << 20) - 100)] + "}" if len(body) > 3 << 20 else body

    def attack(mode):
        path = f"{PODS}?dryRun=All&fieldValidation={mode}"
        return lambda _, seconds: raw_post(cluster, path, body, seconds)

    for mode, what in (("Strict", "errors"), ("Warn", "warnings")):
        name = f"a duplicate key and 270,000 unknown fields, {what}"
        worst, (answer,) = play(cluster, attack(mode), 1, 20 if short else 60)
        limit = wait_limit(short)
        if answer is None:
            report(name, f"others wait {worst * 1000:.0f} ms; no answer in time", f"{limit * 1000:.0f} ms", False)
            cluster.recover()
            continue
        status, size, warnings, seconds = answer
        figure = f"others wait {worst * 1000:.0f} ms; {status} in {seconds:.1f} s, {size} bytes, {warnings} warnings"
        # 4 KiB of warnings and as much again around them, or 100 errors of field validation.
        held = worst <= limit and size <= 64 << 10 and seconds <= (10 if short else 2)
        report(name, figure, f"{limit * 1000:.0f} ms, 64 KiB, {10 if short else 2} s", held)


def raw_post(cluster, path, body, seconds):
    """(status, bytes of the answer, Warning headers, seconds): the client library refuses so many headers."""
    began = time.monotonic()
    head = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Authorization: Bearer {cluster.tenant.token}\r\nContent-Length: {len(body)}\r\n\r\n")
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=seconds) as plain:
            with cluster.tls("http/1.1").wrap_socket(plain, server_hostname="127.0.0.1") as tls:
                tls.sendall(head.encode() + body.encode())
                while len(answer) < 32 * MIB:
                    tls.settimeout(max(0.1, seconds - (time.monotonic() - began)))
                    part = tls.recv(1 << 16)
                    if not part:
                        break
                    answer += part
    except OSError:
        if not answer:
            return None
    text = bytes(answer)
    status = text[9:12].decode(errors="replace")
    return status, len(text), text.lower().count(b"\nwarning:"), time.monotonic() - began


def big_pod(cluster):
    """A pod of about 1.4 MB."""
    made = cluster.tenant.call("POST", PODS, pod("big", [{"name": "c", "image": "i", "args": ["x" * 1_400_000]}]))
    if made is None or made.status != 201:
        made = describe([made])
        raise RuntimeError(f"the pod of 1.4 MB was not created: {made}")


def unread_watches(cluster, report, short):
    """2,000 watches that are not read over one pod of 1.4 MB: on one connection, then on 20."""
    big_pod(cluster)
    limit = 256
    for connections in (1, 20):
        name = f"{WATCHES} unread watches of a pod of 1.4 MB on {connections} connection{'s'[:connections > 1]}"
        before, grown, opened, sent = cluster.rss(), 0.0, [], 0
        try:
            for _ in range(connections):
                try:
                    opened.append(h2.Connection(cluster.port, cluster.tls("h2"), cluster.tenant.token))
                except (OSError, RuntimeError):
                    # The server takes no more connections.
                    break
            for _ in range(WATCHES // 100 // connections):
                for connection in opened:
                    try:
                        connection.get([PODS + "?watch=1"] * 100)
                    except OSError:
                        continue
                    connection.poll(0.05)
                grown = max(grown, cluster.rss() - before)
                if grown > GIVE_UP:
                    break
            for _ in range(4 if short else 10):
                for connection in opened:
                    connection.poll(0.02)
                time.sleep(0.2)
                grown = max(grown, cluster.rss() - before)
            sent = sum(connection.sent for connection in opened)
            left = sum(len(connection.open) for connection in opened)
        finally:
            for connection in opened:
                connection.close()
        gave_up = ", given up" if grown > GIVE_UP else ""
        report(name, f"{grown:.0f} MiB for {sent >> 10} KiB sent, {left} open{gave_up}", f"{limit} MiB", grown <= limit)
        time.sleep(1)
        cluster.recover()


def idle_connections(cluster, report, short):
    """8,192 connections on which nothing is sent, and as many after a handshake; then an administrator connects."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = 2 if short else 1
    kinds = (("without a handshake", False), ("after a handshake", True))
    for what, handshake in kinds[:1] if short else kinds:
        name = f"{CONNECTIONS} idle connections {what}"
        if files < CONNECTIONS + 500:
            report(name, f"this user may open {files} files", f"within {limit} s", None)
            continue
        context = cluster.tls("h2", "http/1.1")
        began = time.monotonic()

        def connect(_):
            # A connection request that finds the queue full is sent again after a second.
            try:
                stream = socket.create_connection(("127.0.0.1", cluster.port), timeout=3)
                return context.wrap_socket(stream, server_hostname="127.0.0.1") if handshake else stream
            except OSError:
                return None

        with ThreadPoolExecutor(16) as pool:
            streams = [stream for stream in pool.map(connect, range(CONNECTIONS + 16)) if stream]
        try:
            took = time.monotonic() - began
            answer = cluster.admin.call("GET", "/api/v1/namespaces/default", timeout=5, fresh=True)
        finally:
            for stream in streams:
                stream.close()
        figure = "no answer in 5 s" if answer is None else f"{answer.status} in {answer.seconds * 1000:.0f} ms"
        held = answer is not None and answer.status == 200 and answer.seconds <= limit
        report(name, f"{len(streams)} opened in {took:.1f} s; an administrator: {figure}", f"within {limit} s", held)
        cluster.recover()
