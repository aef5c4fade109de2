"""A safe connection to Azure's resource manager, and the few API calls that a fleet needs.

It does not use libcloud's own create, list and destroy. That create sends user-data as bytes, which JSON cannot
hold, and interfaces without tags. That list makes three more calls for each machine and silently stops early. That
destroy sleeps. The API: https://learn.microsoft.com/rest/api/compute/virtual-machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from libcloud.common.azure_arm import AzureJsonResponse, AzureResourceManagementConnection
from libcloud.common.base import Connection
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import InvalidCredsError
from libcloud.compute.drivers.azure_arm import AzureNodeDriver

from nodemanager.cloud.common.transport import (
    PAGES_MAX,
    NoRetry,
    malformed_reply,
    object_in,
    objects_in,
    raise_http_error,
)
from nodemanager.core.untrusted import read_json

COMPUTE_API = "2021-11-01"
NETWORK_API = "2021-05-01"
_TOKEN_REFUSED = (400, 401, 403)
_UNAUTHORIZED = 401


class _Response(AzureJsonResponse):
    """Accepts every 2xx status, even 204 ("already gone"), which libcloud raises. Passes errors on unchanged."""

    def success(self) -> bool:
        return 200 <= self.status < 300

    def parse_body(self) -> Any:
        return super().parse_body() if self.body else {}  # type: ignore[no-untyped-call]

    def parse_error(self) -> str:
        raise_http_error(self.status, _error_text(self), self.headers)


class _Connection(AzureResourceManagementConnection):
    responseCls = _Response
    retryCls: Any = NoRetry
    expires_on = 0  # there is no token yet
    login_port = 443
    login_secure = True

    def connect(self, *arguments: Any, **named: Any) -> None:
        # Do not call Azure's connect: it logs in at once, and starting a thread must not fail.
        Connection.connect(self, *arguments, **named)  # type: ignore[no-untyped-call]

    def get_token_from_credentials(self) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self.user_id,
            "client_secret": self.key,
            "resource": self.login_resource,
        }
        connection_class: Any = self.conn_class
        connection = connection_class(
            self.login_host, self.login_port, secure=self.login_secure, timeout=self.timeout
        )
        headers = {"Content-type": "application/x-www-form-urlencoded"}
        connection.request("POST", f"/{self.tenant_id}/oauth2/token", urlencode(form), headers)
        try:
            token = object_in(_Response(connection.getresponse(), self).object, "a login")  # type: ignore[no-untyped-call]
            self.access_token, self.expires_on = str(token["access_token"]), int(token["expires_on"])
        except BaseHTTPError as error:
            if error.code in _TOKEN_REFUSED:
                raise InvalidCredsError(str(error.message)) from error
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise malformed_reply("the reply to the login cannot be read", error) from error

    def request(self, *arguments: Any, **named: Any) -> Any:
        try:
            return super().request(*arguments, **named)  # type: ignore[no-untyped-call]
        except BaseHTTPError as error:
            if error.code != _UNAUTHORIZED:
                raise
        # The token became invalid early, and the request had no effect. Repeat it once with a new token.
        self.expires_on = 0
        return super().request(*arguments, **named)  # type: ignore[no-untyped-call]


class AzureDriver(AzureNodeDriver):
    """Calls the API for one resource group. Serves one thread. Constructing it makes no call."""

    connectionCls = _Connection

    def __init__(
        self,
        tenant_id: str,
        subscription_id: str,
        client_id: str,
        client_secret: str,
        resource_group: str,
        *,
        timeout_s: float = 60.0,
        endpoint: str = "",
    ) -> None:
        """``endpoint`` replaces the resource manager and the login service in tests."""
        super().__init__(tenant_id, subscription_id, client_id, client_secret, timeout=timeout_s)  # type: ignore[no-untyped-call]
        self._subscription = f"/subscriptions/{subscription_id}"
        self._group = f"{self._subscription}/resourceGroups/{resource_group}"
        if endpoint:
            parts = urlsplit(endpoint)
            connection: Any = self.connection
            connection.host = connection.login_host = parts.hostname
            connection.port = connection.login_port = parts.port
            connection.secure = connection.login_secure = False
            connection.connect()

    def machine_id(self, name: str) -> str:
        """Return the resource id of a machine."""
        return f"{self._group}/providers/Microsoft.Compute/virtualMachines/{name}"

    def interface_id(self, name: str) -> str:
        """Return the resource id of a network interface."""
        return f"{self._group}/providers/Microsoft.Network/networkInterfaces/{name}"

    def group_id(self, name: str) -> str:
        """Return the resource id of a proximity placement group."""
        return f"{self._group}/providers/Microsoft.Compute/proximityPlacementGroups/{name}"

    def subnet_id(self, network: str) -> str:
        """Return the id of ``NETWORK/SUBNET`` in the resource group. An argument that is an id stays unchanged."""
        if network.startswith("/"):
            return network
        name, _, subnet = network.partition("/")
        return f"{self._group}/providers/Microsoft.Network/virtualNetworks/{name}/subnets/{subnet}"

    def machines(self) -> list[dict[str, Any]]:
        """Return every machine of the resource group, with one call for each page."""
        return list(self._pages(self.machine_id("").removesuffix("/"), COMPUTE_API))

    def interfaces(self) -> list[dict[str, Any]]:
        """Return every network interface of the resource group. They hold the machines' addresses."""
        return list(self._pages(self.interface_id("").removesuffix("/"), NETWORK_API))

    def groups(self) -> list[dict[str, Any]]:
        """Return every proximity placement group of the resource group."""
        return list(self._pages(self.group_id("").removesuffix("/"), COMPUTE_API))

    def marketplace_path(self, region: str, publisher: str, offer: str, sku: str) -> str:
        """Return the path of the versions of a marketplace image."""
        images = f"{self._subscription}/providers/Microsoft.Compute/locations/{region}/publishers/{publisher}"
        return f"{images}/artifacttypes/vmimage/offers/{offer}/skus/{sku}/versions"

    def resource(self, path: str, api: str) -> Any:
        """Read one resource by its id, or a list that has no pages."""
        return self._call(path, api)

    def offered(self, path: str, api: str, **query: str) -> list[dict[str, Any]]:
        """Return every object of a list of the subscription, from all pages. ``path``: below the subscription."""
        return list(self._pages(f"{self._subscription}{path}", api, **query))

    def machine(self, name: str) -> dict[str, Any]:
        """Read one machine."""
        return object_in(self._call(self.machine_id(name), COMPUTE_API), "a machine")

    def put_machine(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create or update a machine, and return it."""
        made = object_in(self._call(self.machine_id(name), COMPUTE_API, method="PUT", data=dict(body)), "a machine")
        if made.get("name") != name:
            raise malformed_reply(f"the reply names another machine than {name}", made.get("name"))
        return made

    def put_interface(self, name: str, body: Mapping[str, Any]) -> None:
        """Create or update a network interface."""
        self._call(self.interface_id(name), NETWORK_API, method="PUT", data=dict(body))

    def put_group(self, name: str, body: Mapping[str, Any]) -> None:
        """Create a proximity placement group, or update it."""
        self._call(self.group_id(name), COMPUTE_API, method="PUT", data=dict(body))

    def delete_group(self, name: str) -> None:
        """Delete a proximity placement group. Azure refuses it if a machine is in the group."""
        self._call(self.group_id(name), COMPUTE_API, method="DELETE")

    def delete_machine(self, name: str) -> None:
        """Start deleting a machine."""
        self._call(self.machine_id(name), COMPUTE_API, method="DELETE")

    def delete_interface(self, name: str) -> None:
        """Start deleting a network interface."""
        self._call(self.interface_id(name), NETWORK_API, method="DELETE")

    def _call(self, path: str, api: str, **named: Any) -> Any:
        connection: Any = self.connection
        return connection.request(path, params={"api-version": api}, **named).object

    def _pages(self, path: str, api: str, **query: str) -> Iterator[dict[str, Any]]:
        connection: Any = self.connection
        params: dict[str, str] = {"api-version": api, **query}
        seen: set[str] = set()
        for _ in range(PAGES_MAX):
            reply = connection.request(path, params=params).object
            yield from objects_in(reply, "value", "a list")
            next_link = reply.get("nextLink")
            if not next_link:
                return
            if next_link in seen:
                break
            seen.add(str(next_link))
            parts = urlsplit(str(next_link))
            path, params = parts.path, dict(parse_qsl(parts.query))
        raise malformed_reply("a list does not end", path)


def _error_text(response: Any) -> str:
    """Return Azure's error as ``Code: message``, or the status line."""
    try:
        body = read_json(response.body)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return f"{error.get('code', '')}: {error.get('message', '')}"
    if isinstance(body, dict) and isinstance(error, str):
        return f"{error}: {body.get('error_description', '')}"
    return f"HTTP {response.status} {response.error or ''}".strip()
