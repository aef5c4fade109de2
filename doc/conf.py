# ruff: noqa: INP001 - a folder of pages, and no package
"""How Sphinx reads this folder: ``bin/doc`` builds it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.ext.graphviz import graphviz

project = "flux-node-manager"
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
version = release = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.graphviz"]
exclude_patterns = ["_build", "man", "__pycache__"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]  # as they are drawn where the pages are read without Sphinx

html_theme = "furo"
html_title = "flux-node-manager"
html_show_copyright = False
html_copy_source = False
graphviz_output_format = "svg"

_MOVE = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (.+))?")
_ROUND = 'shape=circle label="" style=filled fillcolor="#888888" width=0.15'


class StateDiagram(Directive):
    """A state diagram of Mermaid's, drawn by Graphviz: no script, nothing fetched. Several moves are one arrow."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        moves: dict[tuple[str, str], list[str]] = {}
        for line in self.content:
            if found := _MOVE.fullmatch(line.strip()):
                before, after, event = found.groups()
                ends = ("begin" if before == "[*]" else before, "end" if after == "[*]" else after)
                moves.setdefault(ends, []).append(event or "")
        drawn = [f'"{a}" -> "{b}" [label="{BREAK.join(events)}"]' for (a, b), events in moves.items()]
        node = graphviz()
        node["code"] = "\n".join(("digraph states {", *STYLE, *drawn, "}"))
        node["options"] = {"graphviz_dot": "dot"}
        node["alt"] = "the moves of the table below"
        return [node]


BREAK = r"\n"
STYLE = (
    'graph [bgcolor="white" rankdir=TB nodesep=0.6 ranksep=0.7]',
    'node [shape=box style="rounded,filled" fillcolor="#eef3fb" color="#5577aa" fontname="sans-serif" fontsize=13]',
    'edge [color="#777777" fontname="sans-serif" fontsize=10 fontcolor="#333333"]',
    f'"begin" [{_ROUND}]',
    f'"end" [{_ROUND}]',
)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", StateDiagram)
    return {"parallel_read_safe": True}
