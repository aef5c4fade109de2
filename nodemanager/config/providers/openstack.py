"""Check the keys of a site with ``provider = openstack``."""

from __future__ import annotations

from collections.abc import Iterator

from nodemanager.config.providers import common
from nodemanager.config.providers.common import Nodes
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

MICROVERSION_LEAST = (2, 52)  # needed for tags in a create; since 2.37 networks must be named

_UNSUPPORTED = (
    "project",
    "node_service_account",
    "resource_group",
    "ssh_public_key",
    "nodes_per_call",
    "identity_certificate",
)
_NAME = "OpenStack"
_USER = ("username", "password", "project")
_APPLICATION_CREDENTIAL = ("application_credential_id", "application_credential_secret")
_DOMAINS = ("user_domain", "project_domain_id")


def faults(document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
    """Find what Nova would refuse later, at a create."""
    yield from common.missing_cloud_keys(
        document, cloud, {"auth_url": 'the identity service, such as "https://cloud.example:5000/v3"'}
    )
    needed = {"image": "an image, by id or name", "network": "networks, by id or name; separate several by commas"}
    yield from common.missing_node_keys(document, cloud, nodes, needed)
    yield from common.unsupported_spot(document, nodes, _NAME)
    yield from common.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, _NAME)
    major, _, minor = cloud.microversion.partition(".")
    if (int(major), int(minor)) < MICROVERSION_LEAST:
        yield document.fault(
            "Cloud", "microversion", "2.52 or later is needed: older versions cannot tag a server at its creation"
        )
    yield from common.credential_faults(document, (_USER, _APPLICATION_CREDENTIAL), optional=_DOMAINS)
    for section, settings in common.provider_sections(cloud, nodes):
        if len(settings.zones) > 1:
            yield document.fault(
                section, "zones", "give only one zone: a full zone is reported too late to try the next one"
            )
