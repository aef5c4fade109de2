"""What proves which instance a node is, whatever the provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nodemanager.core.nodes import ProviderId
from nodemanager.core.slots import CloudName


class IdentityUnproven(Exception):
    """The document does not prove which instance shows it. The text says why."""


class ProvenInstance(NamedTuple):
    """An instance, and the clouds whose provider vouches for it: it may only be a node of these."""

    id: ProviderId
    clouds: Sequence[CloudName]


# Returns the instance that a signed document names. Raises ``IdentityUnproven``. The second argument is the purpose
# (``flux_node_join.purpose_of``): where an instance can choose what its provider signs, the document must name it.
InstanceReader = Callable[[str, str], ProvenInstance]


def by_form(documents: InstanceReader | None, tokens: InstanceReader | None) -> InstanceReader | None:
    """Return the reader of both forms: documents in base64, and tokens, whose parts dots separate."""
    if documents is None or tokens is None:
        return documents or tokens

    def instance_in(document: str, purpose: str) -> ProvenInstance:
        return (tokens if "." in document else documents)(document, purpose)

    return instance_in
