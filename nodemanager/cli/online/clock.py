"""Compares this machine's clock with the provider's, whose replies carry the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import requests

from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.config.site import Provider, Site

WITHIN_S = 10.0
# EC2 refuses a call that was signed more than five minutes before or after its own time. A proxy may delay a reply.
WARN_FROM_S = 30.0
FAULT_FROM_S = 240.0
REMEDY = "Let an NTP client set this machine's clock (timedatectl set-ntp true)"


def check_clock(site: Site) -> Iterator[Finding]:
    """Ask the provider for its time, without keys. Nothing is yielded for a provider that is this machine."""
    url = _url_of(site)
    if not url:
        return
    try:
        before_at = time.time()
        with requests.head(url, timeout=WITHIN_S, allow_redirects=False) as reply:
            sent = reply.headers.get("Date", "")
        after_at = time.time()
        their_at = parsedate_to_datetime(sent).timestamp()
    except (requests.RequestException, ValueError, TypeError) as error:
        # The check of the account tells more.
        yield Finding("clock", Verdict.WARNING, f"{url} did not tell its time: {error}")
        return
    yield compare_clocks(before_at, their_at, after_at)


def compare_clocks(before_at: float, their_at: float, after_at: float) -> Finding:
    """``their_at``: whole seconds, as HTTP sends them, at some time between the other two."""
    off_s = max(0.0, their_at - after_at, before_at - (their_at + 1.0))
    if off_s < WARN_FROM_S:
        return Finding("clock", Verdict.OK, "it agrees with the provider's")
    verdict = Verdict.FAULT if off_s >= FAULT_FROM_S else Verdict.WARNING
    direction = "behind" if their_at > after_at else "ahead of"
    return Finding("clock", verdict, f"it is {off_s:.0f} s {direction} the provider's", REMEDY)


def _url_of(site: Site) -> str:
    match site.cloud.provider:
        case Provider.EC2:
            from nodemanager.cloud.ec2.driver import endpoint_of  # noqa: PLC0415

            endpoint = endpoint_of(site.cloud.region, site.cloud.endpoint)
            scheme = "https" if endpoint.secure else "http"
            return f"{scheme}://{endpoint.host}:{endpoint.port}/"
        case Provider.OPENSTACK:
            return site.cloud.auth_url
        case Provider.GCE:
            return "https://compute.googleapis.com/"
        case Provider.AZURE:
            return "https://management.azure.com/"
        case _:
            return ""
