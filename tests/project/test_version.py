"""The version stands in pyproject.toml, and CHANGELOG.md is ready for its tag."""

from __future__ import annotations

import re
import tomllib

from tests.paths import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_version_has_its_section_with_a_date_below_what_is_unreleased() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(VERSION)}\] - [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}", sections[1])


def test_the_version_is_written_in_one_place() -> None:
    files = [
        path for folder in ("nodemanager", "config", "bin") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    files += [ROOT / "Dockerfile", ROOT / "README.md"]
    texts = {path: path.read_bytes() for path in files if path.suffix != ".pyc"}
    again = [
        str(path) for path, text in texts.items() if re.search(rb"\b" + re.escape(VERSION.encode()) + rb"\b", text)
    ]
    assert again == []
