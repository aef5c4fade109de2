# ruff: noqa: INP001 - a folder of pages, not a package
"""The tables of ``reference.md`` and ``reasons.md``, read from the code. ``doc/generate.py`` writes the pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from doc.manuals import COMMON, EXIT_STATUS
from doc.reason_actions import ACTIONS, BLOCKED, CREATE, KINDS, KINDS_DO, NOTES
from nodemanager.cli.parsing.parser import Parser
from nodemanager.core import reason_codes
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import MOMENT_FIGURES
from nodemanager.web.api import metrics
from nodemanager.web.api.endpoints import ENDPOINTS
from nodemanager.web.state.access import allow_anybody

Row = tuple[str, ...]

# --- the command line -------------------------------------------------------------------------------------


def verb_rows(parser: Parser) -> Iterator[Row]:
    """Each verb: what it does, its values and options, whether it has ``--json``."""
    for name, verb in parser.verbs() or ():
        options = [names for action in verb.options() for names in action.option_strings]
        own = [option for option in options if option.startswith("--") and option not in COMMON]
        values = "".join(f" {action.metavar}" for action in verb.arguments() if action.metavar)
        what = (verb.description or "").partition(". ")[0].rstrip(".")
        yield f"`{name}{values}`", what, ", ".join(f"`{it}`" for it in own), "yes" if "--json" in options else ""


def exit_rows(parser: Parser) -> Iterator[Row]:
    return ((status, meaning.strip()) for status, meaning in EXIT_STATUS.findall(parser.epilog or ""))


# --- HTTP and metrics -------------------------------------------------------------------------------------


def http_rows() -> Iterator[Row]:
    for it in ENDPOINTS:
        given = ", ".join(f"`{parameter.name}`" for parameter in it.parameters if parameter.location == "query")
        yield f"`{it.method} {it.path}`", it.summary, given, "" if it.access_check is allow_anybody else "yes"


_MAKERS = {"counter": "_total", "histogram": "", "_gauge": "", "_gauges": "", "_counter": "_total"}


def metric_rows() -> Iterator[Row]:
    """Each metric with its labels and its help, from the calls that make them. A help may have a name."""
    tree = ast.parse(Path(metrics.__file__).read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        yield from _metrics_of(function)


def _metrics_of(function: ast.FunctionDef) -> Iterator[Row]:
    texts: dict[str, str] = {}
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
    for node in sorted(nodes, key=lambda it: (it.lineno, it.col_offset)):
        match node:
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                texts[name] = text
            case ast.Call(ast.Name(maker), [ast.Constant(str(name)), text, *rest]) if maker in _MAKERS:
                shown = text.value if isinstance(text, ast.Constant) else texts[ast.unparse(text)]
                found = [it.value for part in rest for it in ast.walk(part) if isinstance(it, ast.Constant)]
                labels = found if maker in ("counter", "histogram") else _labels(rest)
                yield f"`{name}{_MAKERS[maker]}`", ", ".join(map(str, labels)), str(shown)


def _labels(rest: Sequence[ast.expr]) -> list[object]:
    """The labels of a gauge: the tuple of texts after its help."""
    if not rest or not isinstance(rest[0], ast.Tuple):
        return []
    return [it.value for it in rest[0].elts if isinstance(it, ast.Constant)]


# --- reasons ----------------------------------------------------------------------------------------------


_FIGURE, _OPTIONAL_PART = re.compile(r"{(\w+)}"), re.compile("<[^<>]*>")


def reason_groups() -> Iterator[tuple[str, list[Row]]]:
    """The groups of codes, as the comments in ``Code`` name them, with a row for each code."""
    for group, codes in _codes_by_group().items():
        if rows := list(_reason_rows(codes)):
            yield group, rows


def _codes_by_group() -> Mapping[str, list[Code]]:
    source = Path(reason_codes.__file__).read_text(encoding="utf-8")
    headings = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") and "# also" not in token.string
    }
    [made] = [it for it in ast.parse(source).body if isinstance(it, ast.ClassDef) and it.name == Code.__name__]
    groups: dict[str, list[Code]] = {}
    for node in made.body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            above = max(line for line in headings if line < node.lineno)
            groups.setdefault(headings[above], []).append(Code[target.id])
    return groups


def _reason_rows(codes: Iterable[Code]) -> Iterator[Row]:
    kinds: set[str] = set()
    for code in codes:
        prefix = next((it for it in (CREATE, BLOCKED) if code.startswith(it) and code not in ACTIONS), "")
        if not prefix:
            notes = f" {NOTES[code]}" if code in NOTES else ""
            yield f"`{code}`", f"{_sentence(code)}.{notes}", _other_figures(code), ACTIONS.get(code, "")
        elif prefix not in kinds:
            kinds.add(prefix)
            yield f"`{prefix}*`", KINDS[prefix], _other_figures(code), KINDS_DO[prefix]


def _sentence(code: Code) -> str:
    """The sentence without its optional parts. Moments have the names that they have once they are converted."""
    text = _FIGURE.sub(lambda it: f"{{{MOMENT_FIGURES.get(it[1], it[1])}}}", _OPTIONAL_PART.sub("", code.sentence))
    return f"{text[:1].upper()}{text[1:]}"


def _other_figures(code: Code) -> str:
    """The figures that no part of the sentence shows."""
    return ", ".join(
        f"`{it}`" for it in sorted((code.required | code.optional) - {*_FIGURE.findall(code.sentence)})
    )


Table = Callable[[Sequence[str], Sequence[Row]], str]


def reference_page(parser: Parser, table: Table) -> str:
    return REFERENCE.format(
        verbs=table(("verb", "does", "options", "`--json`"), [*verb_rows(parser)]),
        statuses=table(("status", "means"), [*exit_rows(parser)]),
        http=table(("request", "answer", "query", "token"), [*http_rows()]),
        metrics=table(("metric", "labels", "meaning"), [*metric_rows()]),
    )


def reasons_page(table: Table) -> str:
    head = ("code", "sentence", "other figures", "what to do")
    groups = (f"## {group[:1].upper()}{group[1:]}\n\n{table(head, rows)}" for group, rows in reason_groups())
    return "\n".join((REASONS, *groups))


REFERENCE = """\
# Reference

<!-- Made by `python -m doc.generate` from the code. Do not edit. -->

[Settings](settings.md) lists the keys of a site file, and [Reasons](reasons.md) the reasons.

## Verbs

`flux-node-manager VERB --help` describes each option. Verbs that work on a site take `--config site.ini`.

{verbs}
## Exit status

{statuses}
The service itself ends with 0 after SIGTERM or SIGINT. With `--json` a verb's error is one line of JSON on
standard error: `{{"error": "...", "exit_status": 69}}`.

## HTTP

`/` is the dashboard, `/docs` a page with this list, `/openapi.json` its description (OpenAPI 3.0). `/events` is
a stream of server-sent events; `Last-Event-ID` resumes it. Requests marked "token" need it, or the Unix socket
for reading.

{http}
Names of times end in `_at` (seconds since the epoch), names of durations in `_s`. Money is an estimate in the
site's currency. `/healthz` answers 503 if the last decision is more than 15 s old or a source is stale: restart
the service then. `/readyz` answers 503 while no decisions are made.

## Metrics

Names begin with `node_manager_`.

{metrics}
The custom metrics path has the eleven metric names of flux-metrics-api for a HorizontalPodAutoscaler. They
count all users' jobs, and leave out rank 0.
"""

REASONS = """\
# Reasons

<!-- Made by `python -m doc.generate` from the code and doc/reason_actions.py. Do not edit. -->

Every action and every inaction has a reason: a code with figures. `explain`, `nodes`, `jobs`, `plan`, the
dashboard and the memo of a waiting job show it as a sentence. The log and JSON have the code and the figures,
for example `paid_time_left idle_s=212 window_left_s=1340 stop_lead_s=60`.

Figures that end in `_s` are seconds, in `_at` seconds since the epoch. In the log `deadline_s`, `retry_s`,
`until_s`, `settles_at_s` and `since_s` are readings of the monotonic clock: compare them with the first number
in `/proc/uptime`. Sentences show them as times (`_at`). "Other figures" are those that the sentence does not
contain. Without an entry under "what to do", there is nothing to do.
"""
