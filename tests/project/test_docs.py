"""The pages agree with the code: generated pages are up to date, and no reason, package or link is missing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from doc import code_tables, generate, reason_actions, words
from nodemanager.config import sections
from nodemanager.config.text import credentials
from nodemanager.config.text.settings import allowed_keys
from nodemanager.core.reason_codes import Code
from nodemanager.web.api import metrics
from tests.paths import ROOT
from tests.project.test_imports import LAYERS

DOC = ROOT / "doc"
PACKAGE = ROOT / "nodemanager"
# The failed creates, and the blocks that follow from them, have one row each.
PREFIX = re.compile(r"^(blocked|create)_.*")
REGENERATE = "run: python -m doc.generate"


# --- the pages made from the code -------------------------------------------------------------------------


@pytest.mark.parametrize("page", generate.pages())
def test_a_page_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (DOC / page).read_text(encoding="utf-8") == generate.pages()[page], REGENERATE


def test_every_section_of_a_site_has_its_table() -> None:
    made = {name for name in generate.SECTIONS if not name.endswith(" NAME")}
    assert made == set(sections.SECTIONS) - {credentials.SECTION}


@pytest.mark.parametrize("section", generate.SECTIONS)
def test_every_key_has_its_meaning_and_no_meaning_is_left_over(section: str) -> None:
    assert list(generate.MEANINGS[section]) == list(allowed_keys(generate.SECTIONS[section]))


def test_every_metric_of_the_alerts_and_of_the_board_is_in_the_reference() -> None:
    page = (DOC / "reference.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Metrics")
    listed = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    files = [*(ROOT / "config" / "prometheus").glob("*.rules.yaml"), *(ROOT / "config" / "grafana").glob("*.json")]
    used = {name for file in files for name in re.findall(r"node_manager_(\w+)", file.read_text(encoding="utf-8"))}
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    assert len(files) == 2
    assert len(used) > 20
    assert used - listed == set()


def test_the_metrics_of_the_page_are_those_that_the_code_makes() -> None:
    source = Path(metrics.__file__).read_text(encoding="utf-8")
    made = re.findall(r"\b(?:_gauges?|_counter|counter|histogram)\(\s*\"(\w+)\"", source)
    assert {name.removesuffix("_total") for name in made} == {
        row[0].strip("`").removesuffix("_total") for row in code_tables.metric_rows()
    }


# --- reasons ----------------------------------------------------------------------------------------------


def test_every_reason_is_explained_and_none_that_is_not() -> None:
    explained = re.findall(r"^\| `([a-z_*]+)` \|", (DOC / "reasons.md").read_text(encoding="utf-8"), re.MULTILINE)
    row_of = {code: code if code in explained else PREFIX.sub(r"\1_*", code) for code in Code}
    assert len(explained) == len(set(explained)), "a code is explained twice"
    assert set(row_of.values()) - set(explained) == set(), "explain these in doc/reasons.md"
    assert set(explained) - set(row_of.values()) == set(), "doc/reasons.md explains codes that do not exist"


def test_what_to_do_is_said_for_every_reason_and_for_none_that_is_not() -> None:
    kinds = (reason_actions.CREATE, reason_actions.BLOCKED)
    assert {code for code in Code if not code.startswith(kinds)} - set(reason_actions.ACTIONS) == set()
    assert {*reason_actions.ACTIONS, *reason_actions.NOTES} - set(Code) == set()


# --- troubleshooting --------------------------------------------------------------------------------------


def test_every_message_of_the_troubleshooting_page_is_one_that_the_code_prints() -> None:
    page = (DOC / "troubleshooting.md").read_text(encoding="utf-8")
    printed = "\n".join(text for path in PACKAGE.rglob("*.py") for text in literals_in(path.read_text("utf-8")))
    shown = re.findall(r"^```text\n(.*)\n```$", page, re.MULTILINE)
    parts = {part.strip(" .") for line in shown for part in line.split("...")} - {"", "(", ")", "),", ":", ","}
    assert len(shown) > 20
    assert {part for part in parts if part not in printed} == set(), "no code prints these"


def literals_in(source: str) -> Iterator[str]:
    """The texts of a module. A NUL marks each place where an f-string inserts a value."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.JoinedStr(parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts)
            case ast.Constant(str(text)):
                yield text


def test_every_alert_is_answered() -> None:
    rules = (ROOT / "config" / "prometheus" / "flux-node-manager.rules.yaml").read_text(encoding="utf-8")
    page = (DOC / "troubleshooting.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert alerts == re.findall(r"^\| `(NodeManager\w+)` \|", page, re.MULTILINE)


# --- words ------------------------------------------------------------------------------------------------

# Decisions from here on are to be shortened still.
LONG_FROM = 30


def test_the_pages_are_no_longer_than_a_reader_bears() -> None:
    found = [(path, words.group_of(path, text), words.count_words(text)) for path, text in words.pages()]
    sums = Counter[str]()
    for _, group, count in found:
        sums[group] += count
    assert sums["README"] <= words.README_MAX
    assert sums["prose"] <= words.PROSE_MAX, "run: python -m doc.words"
    decisions = [(path, count) for path, group, count in found if group == "decisions"]
    short = [it for it in decisions if int(Path(it[0]).name[:4]) < LONG_FROM]
    assert len(short) == LONG_FROM - 1
    assert [it for it in short if it[1] > words.DECISION_MAX] == []


def test_marks_of_tables_are_no_words_and_generated_pages_are_no_prose() -> None:
    assert words.count_words("| a | `b c` |\n| --- | --- |\n| 1.5 | - |\n") == 4
    assert words.group_of("doc/settings.md", f"# Settings\n\n{words.GENERATED} it") == "generated"
    assert words.group_of("doc/faq.md", "# FAQ") == "prose"
    assert words.group_of("doc/measurements/flux.md", "# Flux") == "measurements"


USERS_PAGES = [page for page in DOC.rglob("*.md") if page.name not in {"design.md", "lessons.md", "reasons.md"}]
NOT_USERS = {"_build", "decisions", "measurements"}


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_for_users_names_no_module(page: Path) -> None:
    if not NOT_USERS & set(page.parts):
        text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"))
        assert re.findall(r"\bnodemanager[/.]\w+", text) == []


# --- the table of contents --------------------------------------------------------------------------------


def test_every_page_has_its_place() -> None:
    listed = set(re.findall(r"^([\w/*-]+)$", (DOC / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {str(page.relative_to(DOC).with_suffix("")) for page in DOC.rglob("*.md") if "_build" not in page.parts}
    missing = {page for page in pages if page not in listed and f"{page.rpartition('/')[0]}/*" not in listed}
    assert missing == {"index"}, "add these pages to doc/index.md"


# --- the rest ---------------------------------------------------------------------------------------------


def test_every_package_is_in_the_design_with_its_layer_and_its_folders() -> None:
    rows = re.findall(r"^\| ([0-9]+) \| `(\w+)` \|[^|]*\|([^|]*)\|$", design(), re.MULTILINE)
    named = [(int(layer), package, set(re.findall(r"`(\w+)`", folders))) for layer, package, folders in rows]
    expected = [
        (layer, package, folders_of(PACKAGE / package))
        for layer, packages in enumerate(LAYERS, start=1)
        for package in sorted(packages)
    ]
    assert named == expected, "correct the table of packages in doc/design.md"


def folders_of(package: Path) -> set[str]:
    return {file.parent.name for file in package.glob("*/__init__.py")}


def design() -> str:
    return (DOC / "design.md").read_text(encoding="utf-8")


def test_decisions_are_numbered_without_gaps_and_titled_by_their_number() -> None:
    pages = sorted((DOC / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    untitled = [page.name for page in pages if not page.read_text("utf-8").startswith(f"# {int(page.name[:4])}. ")]
    assert not untitled


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    _, *terms = re.findall(r"^\| (\w[^|]*) \|", (DOC / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) > 50
    assert terms == sorted(set(terms), key=str.lower)


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(page for page in DOC.rglob("*.md") if "_build" not in page.parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_is_broken(page: Path) -> None:
    assert list(broken_rows(page.read_text(encoding="utf-8"))) == [], "rows outside of a table"


def broken_rows(text: str) -> Iterator[int]:
    """The line numbers of table rows that do not follow a head and its rule, as after a blank line."""
    in_code, in_table = False, False
    lines = text.splitlines()
    for number, (line, following) in enumerate(pairwise([*lines, ""]), start=1):
        in_code ^= line.startswith("```")
        if in_code or not line.startswith("|"):
            in_table = False
        elif not in_table:
            in_table = re.fullmatch(r"\|( *:?-+:? *\|)+", following) is not None
            if not in_table:
                yield number


def test_a_blank_line_in_a_table_is_found() -> None:
    table = "| a | b |\n| --- | :-: |\n| 1 | 2 |\n"
    assert list(broken_rows(table)) == []
    assert list(broken_rows(f"{table}\n| 3 | 4 |\n| 5 | 6 |\n")) == [5, 6]
    assert list(broken_rows("```\n| no table |\n```\n")) == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and Sphinx make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_heading(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#: ]*)#([^) ]+)\)", text)
    targets = [((page.parent / file) if file else page, anchor) for file, anchor in links]
    assert [f"{file.name}#{it}" for file, it in targets if file.suffix == ".md" and it not in anchors(file)] == []


def test_a_heading_gets_its_anchor() -> None:
    assert {"near-a-jobs-data", "flux-core", "several-clouds"} <= anchors(DOC / "clouds.md") | anchors(
        DOC / "upgrade.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
