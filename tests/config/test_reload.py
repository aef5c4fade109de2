"""A reload of the site: which changes a running service applies, and which it refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.reload import needs_restart
from tests.paths import CONFIG

SITE = (CONFIG / "embedded.ini").read_text(encoding="utf-8")


def restart_for(folder: Path, *changes: tuple[str, str]) -> tuple[str, ...]:
    file = folder / "site.ini"
    file.write_text(SITE, encoding="utf-8")
    old = load_site(file)
    text = SITE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    file.write_text(text, encoding="utf-8")
    return needs_restart(old, load_site(file))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nodes_max = 8", "nodes_max = 7"),
        ("price_per_hour_max = 20.00", "price_per_hour_max = 5.00"),
        ("stop_lead = 1m", "stop_lead = 2m"),
        ("[Policy]", "[Timing]\nboot_timeout = 5m\n[Policy]"),
        ("[Policy]", "[Budget]\nper_day = 50\n[Policy]"),
        ("provider = simulated", "provider = simulated\ncreates_per_s = 2"),
        ("price_per_hour = 0.20", "price_per_hour = 0.30"),
        ("slots = small[1-6]", "slots = small[1-6]\nspares = 1"),
        ("slots = small[1-6]", "slots = small[1-6]\nmode = observe"),
        ("slots = small[1-6]", "slots = small[1-6]\nimage = another"),
        ("provider = simulated", "provider = simulated\nimage = another"),
        ("[Web]", "[Web]\ntokens_file = tokens"),
        ("mode = act", "mode = act\ncurrency = EUR"),
    ],
)
def test_what_only_decisions_depend_on_is_taken_up(tmp_path: Path, before: str, after: str) -> None:
    assert restart_for(tmp_path, (before, after)) == ()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("mode = act", "mode = observe", "whether the manager acts at all ([Site] mode, [Node NAME] mode)"),
        ("cluster = embedded", "cluster = other", "[Site] cluster"),
        ("[Policy]", "[Timing]\nprobe = 5s\n[Policy]", "[Timing] probe"),
        ("[Policy]", "[Timing]\nmanager_silence_max = 2h\n[Policy]", "[Timing] manager_silence_max"),
        ("[Policy]", "[Policy]\nwait_for_data = large", "[Policy] wait_for_data"),
        ("listen = 127.0.0.1:8080", "listen = 127.0.0.1:8081", "[Web] listen"),
        ("cores = 32", "cores = 64", "[Node large] cores"),
        ("memory = 128GiB", "memory = 256GiB", "[Node large] memory"),
        ("[Node gpu]", "[Node tpu]", "the list of [Node NAME]"),
    ],
)
def test_a_change_that_needs_a_restart_is_named(tmp_path: Path, before: str, after: str, named: str) -> None:
    assert restart_for(tmp_path, (before, after)) == (named,)
