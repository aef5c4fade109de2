"""What a site with ``provider = static`` must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError, Mode
from tests.paths import CONFIG

EXAMPLE = (CONFIG / "static.ini").read_text(encoding="utf-8")


def site_file(folder: Path, text: str) -> Path:
    file = folder / "site.ini"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_example_names_hosts_by_flux_s_notation(tmp_path: Path) -> None:
    site = load_site(site_file(tmp_path, EXAMPLE))
    (rack, gpu) = site.nodes.values()
    assert rack.hosts == tuple(f"node{number:02}" for number in range(1, 17))
    assert gpu.hosts == ("gpu1", "gpu2")
    assert site.mode is Mode.OBSERVE
    assert site.join.poweroff == "systemctl disable --now flux-node-join.service"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("wake = ", "#", "wake: must be given"),
        ("sleep = ", "#", "sleep: must be given"),
        ("{node} wake", "wake", "wake.*{node} is needed in it"),
        ("hosts = node[01-16]", "", "hosts: must be given"),
        ("hosts = node[01-16]", "hosts = node[01-15]", "16 slots need as many hosts, and hosts has 15"),
        ("hosts = gpu[1-2]", "hosts = gpu1,node01", 'host "node01" is already one of \\[Node rack\\]'),
        ("hosts = gpu[1-2]", "hosts = gpu[1-2],-rf", '"-rf" is no host name'),
        ("hosts = gpu[1-2]", "hosts = gpu1,gpu2;reboot", '"gpu2;reboot" is no host name'),
        ("hosts = gpu[1-2]", "hosts = gpu1,$(reboot)", r'"\$\(reboot\)" is no host name'),
        ("hosts = gpu[1-2]", "hosts = gpu1,../gpu2", "is no host name"),
        ("hosts = gpu[1-2]", "hosts = gpu1,head", 'host "head" is already the host of rank 0'),
        ("hosts = gpu[1-2]", "hosts = gpu[1-2],gpu2", 'host "gpu2" is listed twice'),
        ("provider = static\n", "provider = static\nregion = here\n", "does not use this key"),
        ("provider = static\n", "provider = local\n", "provider = local does not use this key"),
        ("[Node gpu]\n", "[Node gpu]\nmarket = spot\nspot_price_per_hour = 1\n", "spot nodes are not supported"),
        ("[Node gpu]\n", "[Node gpu]\nplacement = cluster\n", "no placement groups"),
        ("[Node gpu]\n", "[Join]\ncheck_source = yes\n[Node gpu]\n", "gives only the names of its nodes"),
        ("[Node gpu]\n", "[Cloud Credentials]\nkey = x\n[Node gpu]\n", "no such key"),
    ],
)
def test_what_no_command_could_do_is_a_fault(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ConfigError, match=problem):
        load_site(site_file(tmp_path, EXAMPLE.replace(old, new)))
