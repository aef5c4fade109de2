"""What our instance needs before jobs can be delegated: a frobnicator plugin and a job manager plugin.

Without alloc-bypass a delegated job would take real cores of our instance, so a missing line stops delegation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import Handle, ask_all

FROBNICATOR_FILE = "flux_delegate.py"
BYPASS = "alloc-bypass.so"
_STOCK_FROBNICATORS = ("defaults", "constraints")


class SetupIncomplete(FluxError):
    """The instance lacks a line of its configuration. The message names it."""


def flux_delegate_path() -> Path:
    """Return the path of the frobnicator plugin, which Flux loads by its path."""
    return Path(__file__).with_name(FROBNICATOR_FILE)


def frobnicator_plugins(file: Path) -> tuple[str, ...]:
    """Return the value of ``[ingest.frobnicator] plugins``: Flux's own plugins, then ours."""
    return (*_STOCK_FROBNICATORS, str(file))


def check_setup(handle: Handle, frobnicator: Path, *, timeout_s: float) -> None:
    """Return only if the instance is set up for delegation. Raises ``SetupIncomplete`` or another ``FluxError``."""
    questions: dict[str, object] = {"config.get": None, "job-manager.jobtap": {"query_only": True}}
    answers = ask_all(handle, questions, timeout_s=timeout_s)
    faults = setup_faults(answers["config.get"], answers["job-manager.jobtap"], frobnicator)
    if faults:
        raise SetupIncomplete("; ".join(faults))


def setup_faults(config: Mapping[str, Any], jobtap: Mapping[str, Any], frobnicator: Path) -> list[str]:
    """Name the missing parts of an instance's configuration (``config.get``) and in its loaded plugins.

    ``frobnicator``: where the plugin's file is, or where ``init --existing`` will write it.
    """
    faults = []
    if BYPASS not in {Path(name).name for name in jobtap.get("plugins", [])}:
        faults.append(
            f'a delegated job would take real cores: add plugins = [{{ load = "{BYPASS}" }}] to [job-manager] in'
            " the instance's configuration and restart rank 0"
        )
    loaded = config.get("ingest", {}).get("frobnicator", {}).get("plugins", [])
    if FROBNICATOR_FILE not in {Path(name).name for name in loaded}:
        plugins = ", ".join(f'"{name}"' for name in frobnicator_plugins(frobnicator))
        faults.append(
            f"--dependency=delegate:TARGET is unknown: add plugins = [{plugins}] to [ingest.frobnicator] in the"
            " instance's configuration and restart rank 0 (flux-node-manager init --existing DIR writes the file)"
        )
    return faults
