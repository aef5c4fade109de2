"""What must not be delegated is not: jobs of others, URIs that the site does not allow, or without the set-up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually
from tests.live.multi_user import OWNER, MultiUserSite, guests, site

__all__ = ["guests", "site"]  # the fixtures


@pytest.fixture(scope="module")
def own() -> Iterator[Delegating]:
    with delegating() as running:
        yield running


@pytest.mark.parametrize("uri", ["local:///tmp/another/sock", "ssh://another.example/run/flux/local", "exec:true"])
def test_only_the_site_s_peers_are_opened_unless_it_allows_any(own: Delegating, uri: str) -> None:
    before = own.copies()
    job = own.submit("true", to=uri)
    assert own.ends(job)[0] == "F"
    assert "is no peer of the site, and [Policy] delegate_to = peers: it has b" in own.field(job, "exception.note")
    assert own.copies() == before


def test_without_the_plugin_nothing_is_delegated_and_it_is_named(own: Delegating) -> None:
    """A delegated job would take real cores. Once the plugin is there the job goes on."""
    own.manager.kill()
    own.flux("jobtap", "remove", "alloc-bypass.so")
    manager = own.elastic.start_manager()
    # At first it may say that the name is not taken yet.
    eventually("it says why", lambda: "alloc-bypass" in str(manager.said("delegation_stopped")))
    job = own.submit(*own.counting("job", "exit 3"))
    assert (
        'add plugins = [{ load = "alloc-bypass.so" }]' in json.loads(own.elastic.verb("peers", "--json"))["fault"]
    )
    assert own.state(job) == "D"
    assert own.runs("job") == 0
    own.flux("jobtap", "load", "alloc-bypass.so")
    manager.until_said("delegation_ready")
    assert own.ends(job) == ("F", "3")
    assert own.runs("job") == 1


@pytest.mark.parametrize("site", [{"budget": "[Peer b]\nuri = local:///tmp/nowhere/sock\n"}], indirect=True)
def test_only_the_owner_can_delegate(site: MultiUserSite, guests: Mapping[str, int]) -> None:
    guest = next(iter(guests))
    with pytest.raises(AssertionError, match="only jobs of the instance's owner can be delegated"):
        site.flux(guest, "submit", "--dependency=delegate:b", "true")
    with pytest.raises(AssertionError, match="use --dependency=delegate:TARGET, not the attribute"):
        site.flux(guest, "submit", "--setattr=system.delegate=b", "true")
    assert not site.flux(OWNER, "jobs", "-aAno", "{id}")
    job = site.flux(OWNER, "submit", "--dependency=delegate:b", "true")
    site.eventually("it waits", lambda: site.flux(OWNER, "jobs", "-no", "{state}", job) == "DEPEND")
