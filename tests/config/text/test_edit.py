"""Changing keys in the text of a site file."""

from __future__ import annotations

from pathlib import Path

from nodemanager.config.text.edit import KeyChange, diff_of_site, with_changes

TEXT = """\
; our site
[Limits]
nodes_max = 6

[Policy]
# [Limits]
idle_timeout=5m
   ; indented

[Node thin]
cores = 2
"""


def test_a_key_keeps_its_line_and_a_new_one_goes_to_the_end_of_its_section() -> None:
    changes = [KeyChange("Policy", "idle_timeout", "1m"), KeyChange("Limits", "nodes_min", "2")]
    changed = with_changes(TEXT, changes)
    assert changed == TEXT.replace("idle_timeout=5m", "idle_timeout = 1m").replace(
        "nodes_max = 6\n", "nodes_max = 6\nnodes_min = 2\n"
    )


def test_a_missing_section_is_added() -> None:
    changed = with_changes(TEXT, [KeyChange("Disruption", "max", "1")])
    assert changed == f"{TEXT}\n[Disruption]\nmax = 1\n"


def test_a_key_of_another_section_is_not_touched() -> None:
    assert "cores = 2\nidle_timeout = 1m\n" in with_changes(TEXT, [KeyChange("Node thin", "idle_timeout", "1m")])


def test_the_diff_shows_only_what_changes(tmp_path: Path) -> None:
    path = tmp_path / "site.ini"
    path.write_text(TEXT)
    diff = diff_of_site(path, [KeyChange("Policy", "idle_timeout", "1m")])
    assert [line for line in diff.splitlines()[2:] if line[0] in "+-"] == ["-idle_timeout=5m", "+idle_timeout = 1m"]
    assert diff_of_site(path, []) == ""
