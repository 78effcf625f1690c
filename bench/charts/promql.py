"""Parses PromQL, and computes which series an expression selects and which labels its result has.

The grammar is that of Prometheus 2 without its experimental functions. Variables of Grafana are allowed in label
values ($name, ${name}, ${name:regex}); $__rate_interval and $__interval are durations, and so is $__range.
"""

import re
from dataclasses import dataclass, field

AGGREGATIONS = {"sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"}
# Aggregations that keep the labels of the series that they select.
SELECTIONS = {"bottomk", "topk"}
# Functions of a range, by what they may be applied to: a counter, a gauge, or both.
RANGE_FUNCTIONS = {
    "rate": "counter", "irate": "counter", "increase": "counter", "resets": "counter",
    "delta": "gauge", "idelta": "gauge", "deriv": "gauge", "predict_linear": "gauge",
    "changes": "", "absent_over_time": "", "last_over_time": "", "present_over_time": "",
    **{f"{name}_over_time": "gauge" for name in ("avg", "min", "max", "sum", "stddev", "stdvar", "quantile", "mad")},
    "count_over_time": "",
}
# Cumulative values of a counter may be compared over time, too.
RANGE_FUNCTIONS["max_over_time"] = RANGE_FUNCTIONS["min_over_time"] = ""
VECTOR_FUNCTIONS = {
    "abs", "ceil", "floor", "round", "exp", "ln", "log2", "log10", "sqrt", "sgn", "sort", "sort_desc", "timestamp",
    "clamp", "clamp_min", "clamp_max", "label_replace", "label_join", "histogram_quantile", "absent", "scalar", "vector",
    "time", "minute", "hour", "day_of_week", "day_of_month",
}
DURATIONS = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}

TOKENS = re.compile(r"""
    (?P<space>\s+|\#[^\n]*)
  | (?P<duration>[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdwy]))*(?![A-Za-z0-9_]))
  | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|0x[0-9a-fA-F]+)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
  | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
  | (?P<op>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],:@])
""", re.X)
PRECEDENCE = [{"or"}, {"and", "unless"}, {"==", "!=", ">", "<", ">=", "<="}, {"+", "-"}, {"*", "/", "%", "atan2"}]
VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([A-Za-z_]\w*)|\[\[(\w+)(?::\w+)?\]\]")


class SyntaxFault(Exception):
    """An expression that is not PromQL."""


@dataclass
class Matcher:
    label: str
    operator: str
    value: str

    def variables(self) -> list:
        """Returns the variables of Grafana in the value."""
        return [next(filter(None, found)) for found in VARIABLE.findall(self.value)]


@dataclass
class Selector:
    name: str
    matchers: list
    is_range: bool = False
    # The function that is applied to the range.
    function: str = ""


@dataclass
class Result:
    """Type of a part of an expression: `labels` is None for a scalar or a string, `kind` is selector, range or empty."""

    labels: frozenset | None
    kind: str = ""
    # Buckets of a histogram.
    is_bucket: bool = False
    literal: str | None = None


@dataclass
class Analysis:
    """Selectors of an expression, the labels of its result, and why parts of it never have a result."""

    selectors: list = field(default_factory=list)
    faults: list = field(default_factory=list)
    labels: frozenset | None = None


def variables(text: str) -> set:
    """Returns the variables of Grafana in a text, without the built-in ones."""
    found = {next(filter(None, names)) for names in VARIABLE.findall(text)}
    return {name for name in found if not name.startswith("__")}


class Parser:
    """Parses and analyzes one expression. `source(selector)` returns the labels of the series of a selector."""

    def __init__(self, text: str, source):
        for name, duration in DURATIONS.items():
            text = text.replace("${" + name[1:] + "}", duration).replace(name, duration)
        self.text, self.source, self.position = text, source, 0
        self.tokens = []
        at = 0
        while at < len(text):
            match = TOKENS.match(text, at)
            if not match:
                raise SyntaxFault(f"unexpected {text[at:at + 12]!r}")
            at = match.end()
            if match.lastgroup != "space":
                self.tokens.append((match.lastgroup, match.group()))
        self.analysis = Analysis()

    def run(self) -> Analysis:
        result = self.binary(0)
        if self.position < len(self.tokens):
            raise SyntaxFault(f"unexpected {self.peek()[1]!r}")
        if result.kind == "range":
            raise SyntaxFault("the result is a range")
        self.analysis.labels = result.labels
        return self.analysis

    # Tokens

    def peek(self) -> tuple:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "end")

    def next(self) -> tuple:
        token = self.peek()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        if self.peek()[1] == text and self.peek()[0] in ("op", "name"):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise SyntaxFault(f"expected {text!r}, found {self.peek()[1]!r}")

    def fault(self, text: str) -> None:
        self.analysis.faults.append(text)

    # Grammar

    def binary(self, level: int) -> Result:
        if level == len(PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek()[1] in PRECEDENCE[level] and self.peek()[0] in ("op", "name"):
            operator = self.next()[1]
            self.accept("bool")
            matching = self.matching()
            right = self.binary(level + 1)
            left = self.join(operator, left, right, matching)
        return left

    def matching(self) -> dict:
        found = {}
        for word in ("on", "ignoring"):
            if self.accept(word):
                found[word] = self.label_list()
                for side in ("group_left", "group_right"):
                    if self.accept(side):
                        found[side] = self.label_list() if self.peek()[1] == "(" else []
        return found

    def label_list(self) -> list:
        self.expect("(")
        labels = []
        while not self.accept(")"):
            kind, text = self.next()
            if kind != "name":
                raise SyntaxFault(f"expected a label, found {text!r}")
            labels.append(text)
            if not self.accept(","):
                self.expect(")")
                break
        return labels

    def join(self, operator: str, left: Result, right: Result, matching: dict) -> Result:
        if left.labels is None or right.labels is None:
            if operator in ("and", "or", "unless"):
                self.fault(f"{operator} needs two vectors")
            return Result(left.labels if right.labels is None else right.labels)
        if "on" in matching:
            for label in matching["on"]:
                for side in (left, right):
                    if label not in side.labels:
                        self.fault(f"{operator} on ({label}): one side has no label {label}")
            keys = frozenset(matching["on"])
        else:
            ignored = frozenset(matching.get("ignoring", []))
            keys = left.labels - ignored
            if keys != right.labels - ignored and operator != "or":
                differing = sorted(keys ^ (right.labels - ignored))
                self.fault(f"{operator}: no series match, only one side has {', '.join(differing)}")
        if operator in ("and", "unless"):
            return Result(left.labels)
        if operator == "or":
            return Result(left.labels | right.labels)
        if "group_left" in matching:
            return Result(left.labels | frozenset(matching["group_left"]))
        if "group_right" in matching:
            return Result(right.labels | frozenset(matching["group_right"]))
        return Result(keys)

    def unary(self) -> Result:
        if self.accept("-") or self.accept("+"):
            return Result(self.unary().labels)
        base = self.postfix(self.atom())
        if self.accept("^"):
            exponent = self.unary()
            return self.join("^", base, exponent, {})
        return base

    def postfix(self, result: Result) -> Result:
        while True:
            if self.accept("["):
                self.duration()
                if self.accept(":"):
                    if self.peek()[0] == "duration":
                        self.next()
                    self.expect("]")
                    result = Result(result.labels, "range", result.is_bucket)
                    continue
                self.expect("]")
                if result.kind != "selector":
                    raise SyntaxFault("a range of what is no selector")
                self.analysis.selectors[-1].is_range = True
                result = Result(result.labels, "range", result.is_bucket)
            elif self.accept("offset"):
                self.accept("-")
                self.duration()
            elif self.accept("@"):
                self.next()
            else:
                return result

    def duration(self) -> None:
        kind, text = self.next()
        if kind != "duration":
            raise SyntaxFault(f"expected a duration, found {text!r}")

    def atom(self) -> Result:
        kind, text = self.next()
        if kind == "number":
            return Result(None)
        if kind == "string":
            return Result(None, literal=text[1:-1])
        if text == "(":
            result = self.binary(0)
            self.expect(")")
            return Result(result.labels, "" if result.kind == "selector" else result.kind, result.is_bucket)
        if text == "{":
            self.position -= 1
            return self.selector("")
        if kind != "name":
            raise SyntaxFault(f"unexpected {text!r}")
        if text in AGGREGATIONS and self.peek()[1] in ("(", "by", "without"):
            return self.aggregation(text)
        if self.peek()[1] == "(":
            return self.call(text)
        if text in ("inf", "Inf", "nan", "NaN"):
            return Result(None)
        return self.selector(text)

    def arguments(self) -> list:
        self.expect("(")
        found = []
        while not self.accept(")"):
            first = len(self.analysis.selectors)
            found.append((self.binary(0), first))
            if not self.accept(","):
                self.expect(")")
                break
        return found

    def aggregation(self, name: str) -> Result:
        grouping = self.grouping()
        arguments = self.arguments()
        grouping = grouping or self.grouping()
        expected = 2 if name in ("count_values", "bottomk", "topk", "quantile") else 1
        if len(arguments) != expected:
            raise SyntaxFault(f"{name} takes {expected} argument(s)")
        result = arguments[-1][0]
        if result.labels is None or result.kind == "range":
            raise SyntaxFault(f"{name} of what is no vector")
        word, labels = grouping or ("by", [])
        if word == "by":
            for label in labels:
                if label not in result.labels:
                    self.fault(f"{name} by ({label}): the series have no label {label}")
            kept = frozenset(labels)
        else:
            kept = result.labels - frozenset(labels)
        if name in SELECTIONS:
            return Result(result.labels, is_bucket=result.is_bucket)
        if name == "count_values":
            kept |= {arguments[0][0].literal}
        return Result(kept, is_bucket=result.is_bucket and name == "sum")

    def grouping(self):
        for word in ("by", "without"):
            if self.accept(word):
                return word, self.label_list()
        return None

    def call(self, name: str) -> Result:
        if name not in RANGE_FUNCTIONS and name not in VECTOR_FUNCTIONS:
            raise SyntaxFault(f"no function {name}")
        arguments = self.arguments()
        results = [result for result, _ in arguments]
        if name in RANGE_FUNCTIONS:
            index = next((at for at, result in enumerate(results) if result.kind == "range"), None)
            if index is None:
                raise SyntaxFault(f"{name} needs a range")
            for selector in self.analysis.selectors[arguments[index][1]:]:
                if selector.is_range and not selector.function:
                    selector.function = name
            labels = frozenset() if name == "absent_over_time" else results[index].labels
            return Result(labels, is_bucket=results[index].is_bucket)
        if any(result.kind == "range" for result in results):
            raise SyntaxFault(f"{name} takes no range")
        if name in ("time", "scalar"):
            return Result(None)
        if name in ("vector", "absent", "minute", "hour", "day_of_week", "day_of_month"):
            return Result(frozenset())
        if name == "histogram_quantile":
            if len(results) != 2 or results[1].labels is None:
                raise SyntaxFault("histogram_quantile takes a number and a vector")
            if "le" not in results[1].labels or not results[1].is_bucket:
                self.fault("histogram_quantile of what has no label le")
            return Result(results[1].labels - {"le"})
        if not results or results[0].labels is None:
            raise SyntaxFault(f"{name} of what is no vector")
        if name == "label_replace":
            if len(results) != 5 or any(result.literal is None for result in results[1:]):
                raise SyntaxFault("label_replace takes a vector and four strings")
            if results[3].literal not in results[0].labels:
                self.fault(f"label_replace: the series have no label {results[3].literal}")
            return Result(results[0].labels | {results[1].literal})
        if name == "label_join":
            return Result(results[0].labels | {results[1].literal})
        return Result(results[0].labels, is_bucket=results[0].is_bucket)

    def selector(self, name: str) -> Result:
        matchers = []
        if self.accept("{"):
            while not self.accept("}"):
                kind, label = self.next()
                operator = self.next()[1]
                value_kind, value = self.next()
                if kind != "name" or operator not in ("=", "!=", "=~", "!~") or value_kind != "string":
                    raise SyntaxFault(f"expected a matcher, found {label!r}")
                text = value[1:-1] if value[0] == "`" else re.sub(r"\\(.)", r"\1", value[1:-1])
                matchers.append(Matcher(label, operator, text))
                if not self.accept(","):
                    self.expect("}")
                    break
        names = [name] if name else []
        for matcher in [m for m in matchers if m.label == "__name__"]:
            matchers.remove(matcher)
            names += alternatives(matcher.value) if matcher.operator == "=~" else [matcher.value]
        if not names:
            raise SyntaxFault("a selector without a name")
        labels, is_bucket = None, False
        for found in names:
            selector = Selector(found, matchers)
            self.analysis.selectors.append(selector)
            series = self.source(selector)
            is_bucket = found.endswith("_bucket")
            labels = series if labels is None else labels & series
        return Result(labels, "selector", is_bucket)


def alternatives(pattern: str) -> list:
    """Returns the texts that a pattern lists, such as "a|b" and "x_(a|b)"; the pattern itself if it lists none."""
    match = re.fullmatch(r"([^()|]*)\(([^()]*)\)([^()|]*)", pattern)
    if match:
        return [match[1] + part + match[3] for part in match[2].split("|")]
    return pattern.split("|") if "(" not in pattern else [pattern]


def analyze(text: str, source) -> Analysis:
    """Parses an expression. `source(selector)` returns the labels of its series."""
    return Parser(text, source).run()
