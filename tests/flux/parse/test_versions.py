"""What differs between the supported versions of flux-core."""

from __future__ import annotations

import pytest

from nodemanager.flux.parse.versions import FLOOR, named_broker, parse_version, why_too_old

SAID = "commands:    \t\t{0}\nlibflux-core:\t\t{0}\nbuild-options:\t\t+systemd+hwloc.api==2.8.0+zmq==4.3.4\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.88.0", (0, 88)), ("0.88.0-8-g1234abc", (0, 88)), (SAID.format("0.72.0"), (0, 72)), ("1.0.3", (1, 0))],
)
def test_a_version_is_read(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_a_version_below_the_floor_is_refused_with_both_versions_and_the_remedy() -> None:
    why = why_too_old(SAID.format("0.71.0"))
    assert "flux-core 0.71" in why
    assert "0.72 or later" in why
    assert "install a newer flux-core" in why
    assert parse_version("0.72.0") == FLOOR
    assert why_too_old("0.72.0") == why_too_old("1.0.0") == why_too_old("nothing") == ""


def test_a_broker_gets_its_name_as_its_version_takes_it() -> None:
    assert named_broker("flux", "n1", (0, 81)) == (["env", "FLUX_FAKE_HOSTNAME=n1", "flux", "broker"], [])
    assert named_broker("flux", "n1", (0, 82)) == (["flux", "broker"], ["-Shostname=n1"])
    assert named_broker("flux", "n1", None) == (["flux", "broker"], ["-Shostname=n1"])
