"""Spoilt example sites: each is a site or a list of faults, never a traceback.

``FUZZED_SITES=3000`` runs more examples than the suite does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodemanager.cli import main
from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_OK
from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError
from nodemanager.service.assembly.policy import policy_of
from tests.paths import CONFIG

EXAMPLES = int(os.environ.get("FUZZED_SITES", "100"))
SITES = [path.read_text(encoding="utf-8") for path in sorted(CONFIG.glob("*.ini"))]
ENVIRONMENT = {"HOME": "/root", "USER": "root"}
ODD_VALUES = [
    *("", "0", "-1", "1e400", "nan", "inf", "infinity", "0x10", "1_000", "9" * 400, "1e-320", "None", "true"),
    *("[1-", "cloud[1-1000000000]", "cloud[9-1]", "a[1][2]", ",", "${", "${HOME", "$$", "%(x)s", "~nobody/x"),
    *("/dev/null", "/dev/full", "../..", "local://", "https://[::1", "host:99999999", "1s1h", "5 GiB", "ec2"),
    *("flux", "simulated", "act", "\x00", "\x1b[2J", "\u202e", "é", "ƒ", "\ud800"),
]
VALUES = st.one_of(st.sampled_from(ODD_VALUES), st.text(max_size=30))
HEADINGS = ["Node", "Node ", "Node x]", "Limits", "DEFAULT", "", "Join"]
CHANGES = ["value", "value", "value", "key", "drop", "repeat", "move", "section", "text"]


@st.composite
def spoilt_sites(draw: st.DrawFn) -> bytes:
    """An example site with a few lines changed, moved, repeated or dropped, and perhaps a byte or its end."""
    lines = draw(st.sampled_from(SITES)).splitlines()
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(CHANGES)):
            case "value":
                lines[at] = f"{lines[at].partition('=')[0]}= {draw(VALUES)}"
            case "key":
                lines[at] = f"{draw(st.text(max_size=12))} = {lines[at].partition('=')[2]}"
            case "drop":
                del lines[at]
            case "repeat":
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case "section":
                lines[at] = f"[{draw(st.sampled_from(HEADINGS))}]"
            case _:
                lines[at] = draw(st.text(max_size=40))
        lines = lines or [""]
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        return text
    cut = draw(st.integers(0, len(text)))
    return text[:cut] + draw(st.binary(max_size=3)) + (text[cut + 1 :] if draw(st.booleans()) else b"")


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(written=spoilt_sites())
def test_a_spoilt_site_is_read_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: bytes
) -> None:
    path = tmp_path / "site.ini"
    path.write_bytes(written)
    status = main.main(["check", "--config", str(path)])
    said = capsys.readouterr()
    assert status in (EXIT_OK, EXIT_CONFIG)
    assert "Traceback" not in said.err
    assert (": good; " in said.out) is (status == EXIT_OK)
    if status == EXIT_CONFIG:
        assert str(path) in said.err
    with suppress(ConfigError):
        policy_of(load_site(path, ENVIRONMENT))
