"""A frobnicator plugin of Flux: turn ``--dependency=delegate:TARGET`` into a job that runs nothing here.

The job waits on a hold, and pretends to hold one core of a node that is named after its target. flux-node-manager
runs the real job in another instance, and moves this one along with it. Load it in the instance's configuration:

    [ingest.frobnicator]
    plugins = ["defaults", "constraints", "/PATH/flux_delegate.py"]

    [job-manager]
    plugins = [{ load = "alloc-bypass.so" }]
"""

from __future__ import annotations

import os
import re
from typing import Any

from flux.job.frobnicator import FrobnicatorPlugin

SCHEME = "delegate"
HOLD_UNTIL = "4102444800"  # 2100-01-01
ENDS_AFTER = "3650d"  # flux-node-manager ends the job; without a long duration Flux would


class Frobnicator(FrobnicatorPlugin):  # type: ignore[misc]
    def frob(self, jobspec: Any, user: int, urgency: int, flags: int) -> None:  # noqa: ARG002 - as Flux calls it
        system = jobspec.attributes.get("system", {})
        dependencies = system.get("dependencies", [])
        targets = [it.get("value", "") for it in dependencies if it.get("scheme") == SCHEME]
        if not targets:
            if SCHEME in system:
                raise ValueError("to delegate a job use --dependency=delegate:TARGET, not the attribute")
            return
        if len(targets) > 1:
            raise ValueError("a job can be delegated once: give one --dependency=delegate:TARGET")
        if not targets[0]:
            raise ValueError("--dependency=delegate:TARGET needs a target: a peer's name, a URI, or any")
        if user != os.getuid():
            raise ValueError("only jobs of the instance's owner can be delegated: submit it without delegate:")
        others = [it for it in dependencies if it.get("scheme") != SCHEME]
        hold = {"scheme": "begin-time", "value": HOLD_UNTIL}
        # Flux lifts only the last begin-time of a job by itself: that must be the user's, if there is one.
        jobspec.setattr("system.dependencies", [hold, *others])
        jobspec.setattr("system." + SCHEME, targets[0])
        jobspec.setattr("system.alloc-bypass", {"R": pretended_resources(targets[0])})
        jobspec.setattr("system.exec", {"test": {"override": 1, "run_duration": ENDS_AFTER}})


def pretended_resources(target: str) -> dict[str, Any]:
    host = re.sub("[^A-Za-z0-9.-]", "-", target)
    return {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0", "children": {"core": "0"}}],
            "nodelist": [host],
            "starttime": int(HOLD_UNTIL),  # Flux needs one to change a running job's time limit
            "expiration": 0,
        },
    }
