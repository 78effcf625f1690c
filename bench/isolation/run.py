"""Runs the attacks of bench/attacks and prints the results."""
import argparse
import json
import signal
import sys
import time
import traceback

import machine
import server
from cluster import Cluster, raise_file_limit

ATTACKS = {
    "connections": server.idle_connections,
    "watches": server.unread_watches,
    "fields": server.unknown_fields,
    "merges": server.merges,
    "pods": machine.pods,
    "files": machine.files,
    "ports": machine.ports,
}
# These do not change a server's state and share a cluster; each of the others has one of its own, so that its
# aftermath does not count against the next one.
SHARED = ("pods", "files", "ports")


class Run:
    def __init__(self, options):
        self.options, self.rows, self.cluster, self.last = options, [], None, None

    def report(self, attack, figure, limit, held):
        word = {True: "held", False: "BROKEN", None: "not played"}[held]
        self.rows.append({"attack": attack, "figure": figure, "limit": limit, "result": word.lower()})
        print(f"{word:<10}  {attack}\n            {figure}; limit: {limit}", flush=True)

    def play(self, name):
        reuse = self.options.short or {name, self.last} <= set(SHARED)
        try:
            if not (reuse and self.cluster and self.cluster.process.poll() is None and self.cluster.recover(5)):
                self.stop()
                self.cluster = Cluster(self.options.koord, self.options.keep)
            self.last = name
            ATTACKS[name](self.cluster, self.report, self.options.short)
        except (RuntimeError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            # A server in a bad state may answer anything; the other attacks run all the same.
            traceback.print_exc()
            self.report(name, f"ended with an error: {error}", "", False)
        ended = self.cluster and self.cluster.process.poll()
        if ended is not None:
            self.report(f"{name}: the server", f"ended with {ended}", "runs", False)

    def stop(self):
        if self.cluster:
            self.cluster.stop()
        self.cluster = None


def main():
    parser = argparse.ArgumentParser(prog="bench/attacks")
    parser.add_argument("koord")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = set(names) - set(ATTACKS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: expected some of {', '.join(ATTACKS)}")
    raise_file_limit()
    # The cluster has a session of its own, which must end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run, began = Run(options), time.monotonic()
    try:
        for name in names:
            run.play(name)
    finally:
        run.stop()
    broken = sum(row["result"] == "broken" for row in run.rows)
    print(f"\n{table(run.rows)}\n")
    print(f"attacks: {broken} of {len(run.rows)} broken, {time.monotonic() - began:.0f} s")
    if options.json:
        with open(options.json, "w") as file:
            report = {"short": options.short, "broken": broken, "attacks": run.rows}
            json.dump(report, file, indent=1, ensure_ascii=False)
    sys.exit(1 if broken else 0)


def table(rows):
    columns = ("attack", "figure", "limit", "result")
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(row[column].replace("|", "/") for column in columns) + " |" for row in rows]
    return "\n".join(lines)


main()
