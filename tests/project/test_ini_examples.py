"""Every INI example of the pages is read as a site file is: no key, value or section in it may be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doc import generate
from nodemanager.config.sections import Sections
from nodemanager.config.text.ini import read_ini
from tests.paths import DOC, ROOT
from tests.shell_blocks import ini_blocks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOC.rglob("*.md"))]
# Units of systemd are INI too.
UNITS = ("[Unit]", "[Service]")
EXAMPLES = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    if "_build" not in page.parts
    for number, block in enumerate(ini_blocks(page.read_text(encoding="utf-8")), start=1)
    if not block.startswith(UNITS)
]


def faults(block: str, folder: Path) -> Iterator[str]:
    """What is wrong with a part of a site. A part without a section is one of ``[Cloud]``."""
    file = folder / "site.ini"
    file.write_text(block if block.startswith("[") else f"[Cloud]\n{block}", encoding="utf-8")
    sections = Sections(read_ini(file, {}))
    for name in sections.document.sections:
        settings = generate.SECTIONS.get(name) or generate.SECTIONS.get(kind_of(name))
        if settings is not None and not name.endswith("Credentials"):
            sections.read(name, settings)
    yield from (str(it) for it in sections.faults if not it.problem.startswith("must be given"))


def kind_of(name: str) -> str:
    """``Cloud east`` is read as ``Cloud``, ``Node small`` as ``Node NAME``."""
    word = name.partition(" ")[0]
    return word if word == "Cloud" else f"{word} NAME"


@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_can_be_copied_into_a_site(block: str, tmp_path: Path) -> None:
    assert list(faults(block, tmp_path)) == []


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("[Policy]\ndrift = replace    ; or warn\n", "replace or warn or ignore"),
        ("[Policy]\ndrfit = replace\n", 'did you mean "drift"'),
        ("[Polcy]\ndrift = replace\n", "no such section"),
        ("subnet = a:b\n", 'did you mean "subnets"'),
        ("[Cloud east]\nprovider = aws\n", "ec2"),
    ],
)
def test_a_wrong_example_is_found(block: str, wrong: str, tmp_path: Path) -> None:
    assert wrong in "\n".join(faults(block, tmp_path))
