"""What a verb, or a site's provider, loads: time at every call, and memory for as long as the service runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.config.test_site import ENVIRONMENT
from tests.paths import CONFIG, ROOT

DRIVERS = {
    "ec2": "nodemanager.cloud.ec2.driver",
    "openstack": "nodemanager.cloud.openstack.driver",
    "gce": "nodemanager.cloud.gce.driver",
    "azure": "nodemanager.cloud.azure.driver",
}
FACTORY = """
import sys
from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.simulation.time.world import World
cloud_factory(load_site({path!r}, {environment!r}), lambda *_: "", World(1).clock())
print(*sys.modules, sep="\\n")
"""


def loaded(*command: str) -> set[str]:
    """The modules of a Python that has run a program."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


def test_the_command_line_loads_no_verb_before_one_is_chosen() -> None:
    modules = loaded("-c", "import sys, nodemanager.cli.main; print(*sys.modules, sep='\\n')")
    assert not modules & {
        "libcloud",
        "pydantic",
        "rich",
        "importlib.metadata",
        "http.client",
        "nodemanager.config",
        "nodemanager.core.ports",
        "nodemanager.planner",
        "uvicorn",
        "starlette",
        "cryptography",
        "nodemanager.service",
        "nodemanager.whatif",
    }


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_neither_settings_nor_libraries(option: str) -> None:
    program = f"""
import contextlib, io, sys
from nodemanager.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main([{option!r}])
print(*sys.modules, sep="\\n")
"""
    modules = loaded("-c", program)
    ours = {name for name in modules if name.startswith("nodemanager.") and not name.startswith("nodemanager.cli")}
    assert ours == {"nodemanager.core", "nodemanager.core.notation"}
    assert not modules & {"pydantic", "rich", "http.client"}
    assert ("importlib.metadata" in modules) is (option == "--version"), "it takes as long as the rest"


def test_a_verb_does_without_the_libraries_of_others() -> None:
    program = "import sys; from nodemanager.cli.main import main; main(['check', '--config', 'config/ec2.ini'])"
    modules = loaded("-c", f"{program}; print(*sys.modules, sep='\\n')")
    assert not modules & {"libcloud", "uvicorn", "starlette", "nodemanager.whatif", "nodemanager.simulation"}


def test_wiring_loads_no_cloud_no_web_server_and_no_simulation() -> None:
    modules = loaded("-c", "import sys, nodemanager.service.service; print(*sys.modules, sep='\\n')")
    assert not modules & {"libcloud", "uvicorn", "cryptography", "nodemanager.simulation"}


@pytest.mark.parametrize("provider", DRIVERS)
def test_only_the_sites_provider_is_loaded(provider: str) -> None:
    path = str(CONFIG / f"{provider}.ini")
    modules = loaded("-c", FACTORY.format(path=path, environment=ENVIRONMENT))
    assert modules & set(DRIVERS.values()) == {DRIVERS[provider]}
    assert ("cryptography" in modules) is (provider == "gce"), "it has seven megabytes"


def test_the_service_loads_delegation_only_for_a_site_with_peers() -> None:
    modules = loaded(
        "-c", "import sys; from nodemanager.service import outputs, service; print(*sys.modules, sep='\\n')"
    )
    assert not modules & {"nodemanager.actors.delegation", "nodemanager.delegation.ports", "nodemanager.whatif"}
