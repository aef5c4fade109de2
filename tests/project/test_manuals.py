"""The man pages as groff reads them, and the completion as bash runs it. That they are up to date: test_docs.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from doc import generate, manuals
from nodemanager.cli import main
from nodemanager.config.text.settings import allowed_keys
from tests.paths import ROOT

COMPLETION = ROOT / "config" / "bash-completion" / "flux-node-manager"
PAGES = sorted((ROOT / "doc" / "man").iterdir())


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff; on Debian: apt-get install groff-base")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_groff_has_nothing_to_warn_of(page: Path) -> None:
    ran = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(page)], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="no man; on Debian: apt-get install man-db")
def test_man_shows_every_key_of_a_site() -> None:
    ran = subprocess.run(
        ["man", "-l", str(ROOT / "doc" / "man" / "site.ini.5")],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first_words = {line.split()[0] for line in ran.stdout.splitlines() if line.strip()}
    keys = {key for settings in generate.SECTIONS.values() for key in allowed_keys(settings)}
    assert keys - first_words == set()


def test_the_page_and_the_completion_have_every_verb_with_its_options() -> None:
    parser = main.make_parser()
    assert [name for name, _ in parser.verbs() or ()] == [*main.VERBS]
    page = manuals.command_page(parser)
    assert "Example: \\fIflux\\-node\\-manager explain" in page
    assert "\\-\\-until\\-done" in page, "of a verb of a verb"
    assert all(f'"{verb}"' not in page for verb in main.VERBS)


def test_text_never_becomes_a_request_or_an_escape() -> None:
    assert manuals._text(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert manuals._text("'x \\fB-y") == "\\(aqx \\efB\\-y"


# --- completion -------------------------------------------------------------------------------------------


def completions(*words: str, folder: Path) -> set[str]:
    """What bash offers for the last of the words."""
    script = f"""
source {COMPLETION}
complete -p flux-node-manager >/dev/null || exit 1
compopt() {{ :; }}  # bash has it only while it completes
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_flux_node_manager
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run(
        ["bash", "-c", script, "bash", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr == ""
    return set(ran.stdout.split())


def test_the_verb_is_completed(tmp_path: Path) -> None:
    assert completions("flux-node-manager", "", folder=tmp_path) == set(main.VERBS)
    assert completions("flux-node-manager", "che", folder=tmp_path) == {"check"}
    assert completions("flux-node-manager", "--config", "site.ini", "che", folder=tmp_path) == {"check"}
    assert completions("flux-node-manager", "ensemble", "st", folder=tmp_path) == {"status", "stop"}


def test_there_is_one_verb(tmp_path: Path) -> None:
    assert completions("flux-node-manager", "check", "", folder=tmp_path) == set()


def test_a_verb_has_its_own_options_only(tmp_path: Path) -> None:
    assert completions("flux-node-manager", "--conf", folder=tmp_path) == {"--config"}
    assert completions("flux-node-manager", "init", "--outp", folder=tmp_path) == {"--output"}
    assert completions("flux-node-manager", "check", "--", folder=tmp_path) == {
        "--config",
        "--help",
        "--json",
        "--online",
    }
    assert completions("flux-node-manager", "ensemble", "stop", "--", folder=tmp_path) == {"--help", "--uri"}


def test_an_option_with_a_few_values_offers_them(tmp_path: Path) -> None:
    offered = completions("flux-node-manager", "init", "--provider", "", folder=tmp_path)
    assert offered == {"ec2", "openstack", "gce", "azure", "static"}
    assert completions("flux-node-manager", "init", "--provider", "o", folder=tmp_path) == {"openstack"}


def test_jobs_that_only_flux_knows_are_asked_of_flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flux = tmp_path / "flux"
    flux.write_text("#!/bin/sh\n[ \"$*\" = 'jobs -no {id}' ] && printf 'f1Abc\\nf2Def\\n'\n")
    flux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert completions("flux-node-manager", "data-safe", "", folder=tmp_path) == {"f1Abc", "f2Def"}
    assert completions("flux-node-manager", "expand", "f2", folder=tmp_path) == {"f2Def"}


def test_names_are_asked_of_the_service(tmp_path: Path) -> None:
    """A stand-in prints its own arguments, as names."""
    program = tmp_path / "flux-node-manager"
    program.write_text('#!/bin/sh\n[ "$1" = names ] && [ "$3 $4" = "--config site.ini" ] && echo "$2-1 $2-2"\n')
    program.chmod(0o755)
    site = ("--config", "site.ini")
    (tmp_path / "site.ini").touch()
    for typed, offered in (
        (("hold", *site, ""), {"nodes-1", "nodes-2"}),
        ((*site, "explain", "job", ""), {"jobs-1", "jobs-2"}),
        (("explain", *site, "type", "types-2"), {"types-2"}),
        (("explain", *site, ""), {"ensemble", "job", "node", "type"}),
        (("explain", "--config", "=", "site.ini", "node", "nodes-1"), {"nodes-1"}),
        (("slots", *site, "--slots", ""), {"types-1=", "types-2="}),
        (("retire", *site, "--all", "--type", ""), {"types-1", "types-2"}),
        (("hold", ""), set()),
    ):
        assert completions(str(program), *typed, folder=tmp_path) == offered, typed


def test_a_value_is_not_taken_for_a_verb(tmp_path: Path) -> None:
    (tmp_path / "check.ini").touch()
    (tmp_path / "folder").mkdir()
    assert completions("flux-node-manager", "--config", "ch", folder=tmp_path) == set()  # bash completes the file
    assert completions("flux-node-manager", "init", "--existing", "f", folder=tmp_path) == {"folder"}
