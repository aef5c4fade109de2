"""A safe form of libcloud's driver for Nova: expired tokens, catalogs, errors, pages and malformed replies.

Nova's API: https://docs.openstack.org/api-ref/compute/. Creating a server with tags needs microversion 2.52. Since
2.37, a create must name the server's networks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import InvalidCredsError, LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.drivers.openstack import (
    OpenStack_1_1_Response,
    OpenStack_2_Connection,
    OpenStack_2_ImageConnection,
    OpenStack_2_NetworkConnection,
    OpenStack_2_NodeDriver,
)
from libcloud.utils.iso8601 import ParseError

from nodemanager.cloud.common.transport import (
    PAGES_MAX,
    MisconfiguredError,
    NoRetry,
    malformed_reply,
    object_in,
    objects_in,
    raise_http_error,
)

_UNAUTHORIZED = 401
_PAGE_ITEMS = 1_000
_GROUP_POLICY = "soft-affinity"  # a server that finds no room near the others is created elsewhere
_ONE_POLICY_SINCE = (2, 64)  # the microversion from which on a server group has one policy instead of a list
_MAY_NOT_ASK = (403, 404)
# The exceptions that libcloud raises on malformed replies.
_PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, ParseError)


@dataclass(frozen=True, slots=True)
class Login:
    """A login to one cloud. An application credential implies its project and domain."""

    auth_url: str
    user: str  # a user's name or an application credential's id
    secret: str = field(repr=False)
    application_credential: bool = False
    project: str = ""
    user_domain: str = "Default"  # by name
    project_domain_id: str = "default"
    region: str = ""  # "" means the only one
    microversion: str = "2.52"

    @classmethod
    def from_credentials(cls, auth_url: str, region: str, credentials: Mapping[str, str]) -> Login:
        """Return the login of ``[Cloud Credentials]``: an application credential if it has one, or else a user."""
        application_credential = "application_credential_id" in credentials
        return cls(
            auth_url=auth_url,
            user=credentials["application_credential_id" if application_credential else "username"],
            secret=credentials["application_credential_secret" if application_credential else "password"],
            application_credential=application_credential,
            project=credentials.get("project", ""),
            user_domain=credentials.get("user_domain", "Default"),
            project_domain_id=credentials.get("project_domain_id", "default"),
            region=region,
        )


class _Response(OpenStack_1_1_Response):
    """Raises errors with the service's own message, in whatever form it arrives."""

    def parse_error(self) -> str:
        raise_http_error(self.status, _error_text(self), self.headers)


class _Connection:
    """Mixin for libcloud's connections to the services in the catalog: retries, tokens, endpoints."""

    retryCls: Any = NoRetry
    responseCls: Any = _Response
    _osa: Any

    def request(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().request(*arguments, **named)  # type: ignore[misc]
        except BaseHTTPError as error:
            if error.code != _UNAUTHORIZED:
                raise
        except Exception:
            # The token's catalog may be what was wrong, and libcloud would keep it until the token expires.
            self._osa = None
            raise
        # The token expired early, libcloud has dropped it, and the request had no effect. Repeat it once.
        try:
            return super().request(*arguments, **named)  # type: ignore[misc]
        except BaseHTTPError as error:
            if error.code == _UNAUTHORIZED:
                raise InvalidCredsError(f"{error.message} (with a new token)") from error
            raise

    def get_auth_class(self) -> Any:
        identity = super().get_auth_class()  # type: ignore[misc]
        identity.retryCls = NoRetry
        return identity

    def get_endpoint(self) -> str:
        """Return the public endpoint for the service type and region.

        libcloud also requires a service name, but names differ between clouds. Raises ``MisconfiguredError``.
        """
        this: Any = self
        region = this._ex_force_service_region
        urls = {
            endpoint.url
            for endpoint in this.service_catalog.get_endpoints(service_type=this.service_type)
            if endpoint.endpoint_type == "external" and region in ("", None, endpoint.region)
        }
        if len(urls) != 1:
            regions = ", ".join(this.service_catalog.get_regions(service_type=this.service_type)) or "none"
            raise MisconfiguredError(
                f"the catalog has {len(urls)} public endpoints of type {this.service_type} in region "
                f'"{region or ""}"; its regions are: {regions}'
            )
        # libcloud adds the version to the paths of all services except compute.
        (url,) = urls
        return str(url) if this.service_type == "compute" else re.sub(r"/v[0-9.]+/?$", "", str(url))

    def _populate_hosts_and_request_paths(self) -> None:
        try:
            super()._populate_hosts_and_request_paths()  # type: ignore[misc]
        except _PARSE_ERRORS as error:
            raise malformed_reply("the identity service's reply cannot be read", error) from error


class _Nova(_Connection, OpenStack_2_Connection):
    pass


class _Glance(_Connection, OpenStack_2_ImageConnection):
    pass


class _Neutron(_Connection, OpenStack_2_NetworkConnection):
    pass


class NovaDriver(OpenStack_2_NodeDriver):
    """Calls Nova, Glance and Neutron for one account in one region.

    Serves one thread. Constructing it makes no call.
    """

    connectionCls = _Nova
    image_connectionCls = _Glance
    network_connectionCls = _Neutron

    def __init__(self, login: Login, timeout_s: float) -> None:
        version = tuple(int(part) for part in login.microversion.split("."))
        self._has_one_policy = version >= _ONE_POLICY_SINCE
        scoped = {} if login.application_credential else {"ex_tenant_name": login.project}
        super().__init__(  # type: ignore[no-untyped-call]
            login.user,
            login.secret,
            api_version="2.2",
            ex_force_auth_url=login.auth_url.removesuffix("/").removesuffix("/v3"),
            ex_force_auth_version="3.x_appcred" if login.application_credential else "3.x_password",
            ex_domain_name=login.user_domain,
            ex_tenant_domain_id=login.project_domain_id,
            ex_force_service_region=login.region,
            ex_force_microversion=login.microversion,
            timeout=timeout_s,
            **scoped,
        )

    def tagged_servers(self, tags: Sequence[str]) -> list[Node]:
        """Return every server that carries all the tags, oldest first, from all pages."""
        query = {"tags": ",".join(tags), "sort_key": "created_at", "sort_dir": "asc"}
        servers = list(_pages(self.connection, "/servers/detail", "servers", query))
        return [self._read_tagged_server(server, set(tags)) for server in servers]

    def post_server(self, server: Mapping[str, Any], group_id: str = "") -> str:
        """Create one server, in a server group if one is given, and return its id."""
        hints = {"os:scheduler_hints": {"group": group_id}} if group_id else {}
        reply = _call(self.connection, "/servers", method="POST", data={"server": dict(server), **hints})
        made = object_in(object_in(reply, "a created server").get("server"), "a created server")
        if not isinstance(made.get("id"), str):
            raise malformed_reply("a created server without an id", sorted(made))
        return str(made["id"])

    def server(self, server_id: str) -> Node:
        """Read one server."""
        reply = object_in(_call(self.connection, f"/servers/{server_id}"), "a server")
        return self._read_server(object_in(reply.get("server"), "a server"))

    def groups(self) -> list[dict[str, Any]]:
        """Return every server group of the project, from all pages."""
        found: list[dict[str, Any]] = []
        for _ in range(PAGES_MAX):
            page = _named_objects(
                _call(self.connection, "/os-server-groups", params={"limit": _PAGE_ITEMS, "offset": len(found)}),
                "server_groups",
            )
            found += page
            if not page:
                return found
        raise malformed_reply("the list of server groups does not end", found[-1])

    def post_group(self, name: str) -> str:
        """Create a server group whose servers are on as few hosts as possible, and return its id."""
        policy = {"policy": _GROUP_POLICY} if self._has_one_policy else {"policies": [_GROUP_POLICY]}
        reply = _call(
            self.connection, "/os-server-groups", method="POST", data={"server_group": {"name": name, **policy}}
        )
        made = object_in(object_in(reply, "a created server group").get("server_group"), "a created server group")
        if not isinstance(made.get("id"), str):
            raise malformed_reply("a created server group without an id", sorted(made))
        return str(made["id"])

    def delete_group(self, group_id: str) -> None:
        """Delete a server group. Nova does so even if servers are in it."""
        _call(self.connection, f"/os-server-groups/{group_id}", method="DELETE")

    def flavor_id(self, name: str) -> str:
        """Return the id of a flavor, given its name or id. Raises ``MisconfiguredError`` if there is none."""
        for flavor in _pages(self.connection, "/flavors", "flavors", {}):
            if name in (flavor.get("name"), flavor.get("id")):
                return str(flavor.get("id"))
        raise MisconfiguredError(f'there is no flavor "{name}"')

    def image_id(self, name: str) -> str:
        """Return the id of the only active image with that name. Raises ``MisconfiguredError``."""
        reply = _call(self.image_connection, "/v2/images", params={"name": name, "status": "active"})
        return _require_one("image", name, objects_in(reply, "images", "the list of images"))

    def network_id(self, name: str) -> str:
        """Return the id of the only network with that name. Raises ``MisconfiguredError``."""
        reply = _call(self.network_connection, "/v2.0/networks", params={"name": name})
        return _require_one("network", name, objects_in(reply, "networks", "the list of networks"))

    def flavors(self) -> list[dict[str, Any]]:
        """Return every flavor with its hardware."""
        return list(_pages(self.connection, "/flavors/detail", "flavors", {}))

    def images(self) -> list[dict[str, Any]]:
        """Return the active images that the project can see, from all pages."""
        found: list[dict[str, Any]] = []
        for _ in range(PAGES_MAX):
            marker = {"marker": found[-1]["id"]} if found else {}
            reply = _call(self.image_connection, "/v2/images", params={"status": "active", **marker})
            found += _named_objects(reply, "images")
            if not reply.get("next"):
                return found
        raise malformed_reply("the list of images does not end", found[-1])

    def networks(self) -> list[dict[str, Any]]:
        """Return the networks that the project can see."""
        return _named_objects(_call(self.network_connection, "/v2.0/networks"), "networks")

    def extra_specs(self, flavor_id: str) -> dict[str, str]:
        """Return what a flavor asks of its host beyond cores and memory; nothing if the project may not ask."""
        try:
            reply = object_in(_call(self.connection, f"/flavors/{flavor_id}/os-extra_specs"), "extra specs")
        except BaseHTTPError as error:
            if error.code in _MAY_NOT_ASK:
                return {}
            raise
        specs = object_in(reply.get("extra_specs"), "extra specs")
        return {str(key): str(value) for key, value in specs.items()}

    def security_groups(self) -> list[dict[str, Any]]:
        """Return the security groups of the project; none if Neutron has no such service."""
        try:
            return _named_objects(_call(self.network_connection, "/v2.0/security-groups"), "security_groups")
        except BaseHTTPError as error:
            if error.code in _MAY_NOT_ASK:
                return []
            raise

    def zones(self) -> list[str]:
        """Return the names of the availability zones that have hosts at work."""
        reply = _call(self.connection, "/os-availability-zone")
        zones = objects_in(reply, "availabilityZoneInfo", "the list of zones")
        return sorted(
            str(zone.get("zoneName")) for zone in zones if (zone.get("zoneState") or {}).get("available", True)
        )

    def limits(self) -> dict[str, Any]:
        """Return the project's absolute limits, with what it uses: ``maxTotalCores``, ``totalCoresUsed``, ..."""
        reply = object_in(_call(self.connection, "/limits"), "the limits")
        return object_in(object_in(reply.get("limits"), "the limits").get("absolute"), "the limits")

    def _read_tagged_server(self, server: dict[str, Any], tags: set[str]) -> Node:
        if not isinstance(server.get("tags"), list) or not tags <= set(server["tags"]):
            # A service that does not know the filter ignores it and lists every server.
            raise malformed_reply(f"the list has a server without the tags {sorted(tags)}", server.get("tags"))
        return self._read_server(server)

    def _read_server(self, server: dict[str, Any]) -> Node:
        try:
            node: Node = self._to_node(server)  # type: ignore[no-untyped-call]
        except _PARSE_ERRORS as error:
            # If a server's cell is down, Nova lists only the server's id.
            raise malformed_reply(f"a server lacks a required field ({error!r})", sorted(server)) from error
        flavor = server.get("flavor")
        if isinstance(flavor, dict):
            node.extra["instance_type"] = flavor.get("original_name")  # from microversion 2.47 on
        return node


def _call(connection: Any, path: str, **named: Any) -> Any:
    """Make one call and return the body of the reply."""
    return connection.request(path, **named).object


def _error_text(response: Any) -> str:
    """Return the service's message for a refusal, or the status line."""
    try:
        body = response.parse_body()
    except LibcloudError:
        body = None
    if isinstance(body, dict):
        messages = [
            str(fault["message"]) for fault in body.values() if isinstance(fault, dict) and "message" in fault
        ]
        if messages:
            # Nova's message repeats an invalid request, and the user-data in it may hold a secret.
            return re.sub(r" Value: .*", " ...", "; ".join(messages), flags=re.DOTALL)
    return f"HTTP {response.status} {response.error or ''}".strip()


def _pages(connection: Any, path: str, key: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield every object of a list, following the service's links from page to page."""
    marker: str | None = None
    for _ in range(PAGES_MAX):
        reply = _call(connection, path, params={**query, **({"marker": marker} if marker else {})})
        yield from objects_in(reply, key, f"the list of {key}")
        next_marker = _next_marker(reply.get(f"{key}_links"))
        if next_marker is None:
            return
        if next_marker == marker:
            break
        marker = next_marker
    raise malformed_reply(f"the list of {key} does not end", marker)


def _next_marker(links: Any) -> str | None:
    """Return the marker of the next page; None after the last page."""
    if links is None:
        return None
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        raise malformed_reply("the links of a list cannot be read", links)
    next_links = [str(link.get("href")) for link in links if link.get("rel") == "next"]
    if not next_links:
        return None
    markers = parse_qs(urlsplit(next_links[0]).query).get("marker")
    if not markers:
        raise malformed_reply("the link to the next page has no marker", next_links[0])
    return markers[0]


def _named_objects(reply: Any, key: str) -> list[dict[str, Any]]:
    """Return the objects of a list. Each of them must have an id."""
    found = objects_in(reply, key, f"the list of {key}")
    if not all(isinstance(item.get("id"), str) for item in found):
        raise malformed_reply(f"the list of {key}: one has no id", reply)
    return found


def _require_one(what: str, name: str, found: list[dict[str, Any]]) -> str:
    ids = [str(item.get("id")) for item in found if item.get("name") == name]
    if len(ids) != 1:
        raise MisconfiguredError(f'there are {len(ids)} {what}s named "{name}"; name one by its id')
    return ids[0]
