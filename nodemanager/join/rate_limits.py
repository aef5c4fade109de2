"""How much one source may ask: token buckets, so many of them at the most."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

SOURCES_MAX = 10_000
NETWORK_BITS = 64  # of an IPv6 address: whoever has one has as a rule the whole network


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, however it is written: ``::ffff:10.0.0.5`` is one of IPv4. None for what is none, as a name."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def network_of(source: str) -> str:
    """Whom an address is counted for: itself, or its /64 where it is of IPv6; what is no address, as it is."""
    address = parse_address(source)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, NETWORK_BITS), strict=False))
    return str(address or source)


class TokenBuckets:
    """A bucket a source, filled at ``rate_per_s`` up to ``burst``. The longest unheard of is forgotten first."""

    def __init__(self, rate_per_s: float, burst: float, sources_max: int = SOURCES_MAX) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._sources_max = sources_max
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, source: str, now_s: float) -> float:
        """Take one from the source's bucket; 0, or how long until there is one."""
        left, since_s = self._left.pop(source, (self._burst, now_s))
        left = min(self._burst, left + max(0.0, now_s - since_s) * self._rate_per_s)
        granted = left >= 1.0
        self._left[source] = (left - 1.0 if granted else left, now_s)
        if len(self._left) > self._sources_max:
            self._left.popitem(last=False)
        return 0.0 if granted else (1.0 - left) / self._rate_per_s
