"""Reads which running instances EC2 reports as unhealthy: failed status checks and scheduled events.

It queries only unhealthy instances, for all nodes together, once a minute at most. That takes three reads,
regardless of the number of nodes. If the query fails, nodes are still listed, and the query is repeated less and
less often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any
from xml.etree.ElementTree import Element

import structlog
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError

from nodemanager.cloud.common.libcloud_port import classify
from nodemanager.cloud.ec2.driver import Action, Ec2Driver
from nodemanager.cloud.ec2.replies import set_in, text_in
from nodemanager.core.nodes import ProviderId
from nodemanager.core.ports import Clock

HEALTH_EVERY_S = 60.0
HEALTH_EVERY_MAX_S = 960.0  # while it fails, because a query that hangs delays the list of nodes
_CHECKS = ("system", "instance")
# Each of these ends or interrupts the jobs on the instance.
_EVENTS = ("instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")
_EVENT_OVER = ("[Completed]", "[Canceled]")  # prefixes of the description of an event that is over


class Ec2Health:
    """Reads the health of one account and region.

    DescribeInstanceStatus cannot filter by tags, so the result includes instances of others.
    """

    def __init__(self, driver: Ec2Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._known: Mapping[ProviderId, str] = MappingProxyType({})
        self._asked_s: float | None = None
        self._every_s = HEALTH_EVERY_S
        self._failure = ""
        self._log: Any = structlog.get_logger()

    def impaired(self) -> Mapping[ProviderId, str]:
        """Return EC2's complaints about each unhealthy instance. If the query fails, return the last result."""
        now_s = self._clock.monotonic_s()
        if self._asked_s is None or now_s - self._asked_s >= self._every_s:
            self._asked_s = now_s
            try:
                self._known = self._fetch_impaired()
                self._failure = ""
                self._every_s = HEALTH_EVERY_S
            except (BaseHTTPError, LibcloudError, OSError) as error:
                self._every_s = min(HEALTH_EVERY_MAX_S, 2 * self._every_s)
                self._log_new_failure(classify(error, creating=False, now_at=0.0).detail)
        return self._known

    def _fetch_impaired(self) -> Mapping[ProviderId, str]:
        by_check = [{"Name": f"{check}-status.status", "Value.1": "impaired"} for check in _CHECKS]
        codes = {f"Value.{number}": code for number, code in enumerate(_EVENTS, start=1)}
        found: dict[ProviderId, str] = {}
        for query in (*by_check, {"Name": "event.code", **codes}):
            filters = {f"Filter.1.{name}": value for name, value in query.items()}
            for page in self._driver.pages(Action.DESCRIBE_INSTANCE_STATUS, filters):
                for item in set_in(page, "instanceStatusSet"):
                    if complaints := "; ".join(_complaints(item)):
                        found[ProviderId(text_in(item, "instanceId"))] = complaints
        return found

    def _log_new_failure(self, why: str) -> None:
        """Log a failure unless the previous one was the same."""
        if why != self._failure:
            self._log.warning("health_not_known", why=why, what="whether EC2 calls an instance unhealthy")
        self._failure = why


def _complaints(item: Element) -> Iterator[str]:
    for check in _CHECKS:
        if text_in(item, f"{check}Status/status") == "impaired":
            yield f"{check} status check failed"
    for event in item.iterfind("{*}eventsSet/{*}item"):
        code, description = text_in(event, "code"), text_in(event, "description")
        if code in _EVENTS and not description.startswith(_EVENT_OVER):
            yield f"{code} from {text_in(event, 'notBefore')}: {description}"
