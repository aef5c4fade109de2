"""Limits the rate of requests per source, with a bounded number of token buckets."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

SOURCES_MAX = 10_000
NETWORK_BITS = 48  # of an IPv6 address: whoever rents a network is given up to a whole /48


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address in any notation; None if ``text`` is not one. ``::ffff:10.0.0.5`` becomes 10.0.0.5."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@lru_cache(SOURCES_MAX)
def network_of(source: str) -> str:
    """Return the key by which a source is counted: its IPv4 address, or the /48 of its IPv6 address.

    A text that is not an address is returned unchanged.
    """
    address = parse_address(source)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, NETWORK_BITS), strict=False))
    return str(address or source)


class TokenBuckets:
    """A token bucket for each source. Each bucket fills at ``rate_per_s`` up to ``burst`` tokens.

    If there are more than ``sources_max`` sources, the least recently used one is forgotten.
    """

    def __init__(self, rate_per_s: float, burst: float, sources_max: int = SOURCES_MAX) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._sources_max = sources_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, source: str, now_s: float) -> float:
        """Take a token from the source's bucket and return 0. If there is none, return the seconds until one."""
        left, since_s = self._left.pop(source, (self._burst, now_s))
        left = min(self._burst, left + max(0.0, now_s - since_s) * self._rate_per_s)
        granted = left >= 1.0
        self._left[source] = (left - 1.0 if granted else left, now_s)
        if len(self._left) > self._sources_max:
            self._left.popitem(last=False)
        return 0.0 if granted else (1.0 - left) / self._rate_per_s

    def give_back(self, source: str) -> None:
        """Give a token back that was taken from the source's bucket."""
        if source in self._left:
            left, since_s = self._left[source]
            self._left[source] = (min(self._burst, left + 1.0), since_s)
