"""Reads the feature gates of the programs from their sources, for `bench/chart`.

The chart needs them to select webhooks and to name wrong gates before anything is installed. Helm cannot ask the
programs, so that charts/koord/files/gates.yaml lists them: `bench/chart gates` writes it, and the check compares.
"""

import re
from pathlib import Path

HEAD = """# Feature gates of the programs, written by `bench/chart gates` from their sources. alpha and beta: the stage, which
# AllAlpha and AllBeta set; default: whether it is open; inert: accepted without effect.
"""


def section(text: str, start: str, end: str) -> str:
    """Returns the part of a source between two texts."""
    return text.split(start, 1)[1].split(end, 1)[0]


def constructed(text: str) -> dict:
    """Returns the gates of a table of `Gate::alpha("Name", false)` and `stable("Name")`."""
    gates = {
        name: {"stage": stage, "on": default == "true"}
        for stage, name, default in re.findall(r'Gate::(alpha|beta)\(\s*"(\w+)",\s*(true|false)', text)
    }
    stable = re.findall(r'\bstable\("(\w+)"\)', text) + re.findall(r'Gate \{\s*name: "(\w+)",\s*stage: FeatureStage::Stable', text)
    gates.update({name: {"stage": "stable", "on": True} for name in stable})
    return gates


def gates(root: Path) -> dict:
    """Returns the gates by program and name."""
    read = lambda path: (root / "crates" / path).read_text()

    text = read("manager/src/features.rs")
    manager = constructed(section(text, "GATES:", "\n];"))
    inert = re.findall(r'"(\w+)"', re.sub(r'Some\(\s*"[^"]*"', "", section(text, "match gate {", "_ => None")))
    mark(manager, inert)

    text = read("koordlet/src/gates.rs")
    rows = re.findall(r"^    (\w+): (Alpha|Beta), (true|false), ([^;]*);", section(text, "\ngates! {", "\n}"), re.M)
    koordlet = {name: {"stage": stage.lower(), "on": on == "true"} for name, stage, on, _ in rows}
    mark(koordlet, [name for name, _, _, effect in rows if effect.startswith(("Nothing", "NOT_YET"))])

    text = read("scheduler/src/gates.rs")
    scheduler = constructed(section(text, "GATES:", "\n];"))
    pairs = section(text, "const WITHOUT_EFFECT", "\n];")
    inert = re.findall(r'\(\s*"(\w+)"', pairs)
    for table in ("const FIXED", "const CLAIMS"):
        inert += re.findall(r'"(\w+)"', section(text, table, "\n];"))
    mark(scheduler, inert)

    text = read("descheduler/src/args/gates.rs")
    descheduler = constructed(section(text, "GATES:", "\n];"))
    effective = re.findall(r'"(\w+)" => None', text)
    mark(descheduler, [name for name in descheduler if name not in effective])
    return {"manager": manager, "koordlet": koordlet, "scheduler": scheduler, "descheduler": descheduler}


def mark(gates: dict, inert: list) -> None:
    """Marks gates without effect."""
    for name in inert:
        gates[name]["inert"] = True


def render(root: Path) -> str:
    """Returns the text of charts/koord/files/gates.yaml."""
    lines = [HEAD.rstrip()]
    for program, table in gates(root).items():
        lines.append(f"{program}:")
        for name, gate in table.items():
            inert = ", inert: true" if gate.get("inert") else ""
            on = "true" if gate["on"] else "false"
            lines.append(f"  {name}: {{stage: {gate['stage']}, default: {on}{inert}}}")
    return "\n".join(lines) + "\n"
