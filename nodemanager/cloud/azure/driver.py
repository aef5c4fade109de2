"""libcloud's connection to Azure's resource manager, made safe, and the few calls of its API that a fleet needs.

libcloud's own create sends user-data as bytes that JSON cannot hold, and interfaces without tags; its list asks
three more times for each machine, and stops silently after a while; its destroy sleeps. They are not used. The
API: https://learn.microsoft.com/rest/api/compute/virtual-machines.
"""

from __future__ import annotations

import json
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

COMPUTE_API = "2021-11-01"
NETWORK_API = "2021-05-01"
_TOKEN_REFUSED = (400, 401, 403)
_UNAUTHORIZED = 401


class _Response(AzureJsonResponse):
    """Every 2xx is a success, "gone already" (204) too, which libcloud raises; errors come as they are."""

    def success(self) -> bool:
        return 200 <= self.status < 300

    def parse_body(self) -> Any:
        return super().parse_body() if self.body else {}  # type: ignore[no-untyped-call]

    def parse_error(self) -> str:
        raise_http_error(self.status, _error_text(self), self.headers)


class _Connection(AzureResourceManagementConnection):
    responseCls = _Response
    retryCls: Any = NoRetry
    expires_on = 0  # until there is a token
    login_port = 443
    login_secure = True

    def connect(self, *arguments: Any, **named: Any) -> None:
        # Not by way of Azure's: it logs in at once, and begins in a thread that must not fail.
        Connection.connect(self, *arguments, **named)  # type: ignore[no-untyped-call]

    def get_token_from_credentials(self) -> None:
        asked = {
            "grant_type": "client_credentials",
            "client_id": self.user_id,
            "client_secret": self.key,
            "resource": self.login_resource,
        }
        make: Any = self.conn_class
        connection = make(self.login_host, self.login_port, secure=self.login_secure, timeout=self.timeout)
        headers = {"Content-type": "application/x-www-form-urlencoded"}
        connection.request("POST", f"/{self.tenant_id}/oauth2/token", urlencode(asked), headers)
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
        self.expires_on = 0  # the token ended before its time, and nothing was done: once more, with a new one
        return super().request(*arguments, **named)  # type: ignore[no-untyped-call]


class AzureDriver(AzureNodeDriver):
    """One resource group. Belongs to one thread. Makes no call before it is asked to."""

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
        """``endpoint`` stands in a test for the resource manager and the login."""
        super().__init__(tenant_id, subscription_id, client_id, client_secret, timeout=timeout_s)  # type: ignore[no-untyped-call]
        self._group = f"/subscriptions/{subscription_id}/resourceGroups/{resource_group}"
        if endpoint:
            parts = urlsplit(endpoint)
            connection: Any = self.connection
            connection.host = connection.login_host = parts.hostname
            connection.port = connection.login_port = parts.port
            connection.secure = connection.login_secure = False
            connection.connect()

    def machine_id(self, name: str) -> str:
        return f"{self._group}/providers/Microsoft.Compute/virtualMachines/{name}"

    def interface_id(self, name: str) -> str:
        return f"{self._group}/providers/Microsoft.Network/networkInterfaces/{name}"

    def subnet_id(self, network: str) -> str:
        """The id of ``NETWORK/SUBNET`` in the resource group; an id stays what it is."""
        if network.startswith("/"):
            return network
        name, _, subnet = network.partition("/")
        return f"{self._group}/providers/Microsoft.Network/virtualNetworks/{name}/subnets/{subnet}"

    def machines(self) -> list[dict[str, Any]]:
        """Every machine of the resource group, from however many pages, by one call a page."""
        return list(self._pages(self.machine_id("").removesuffix("/"), COMPUTE_API))

    def interfaces(self) -> list[dict[str, Any]]:
        """Every network interface of the resource group: the machines' addresses are theirs."""
        return list(self._pages(self.interface_id("").removesuffix("/"), NETWORK_API))

    def machine(self, name: str) -> dict[str, Any]:
        return object_in(self._call(self.machine_id(name), COMPUTE_API), "a machine")

    def put_machine(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made = object_in(self._call(self.machine_id(name), COMPUTE_API, method="PUT", data=dict(body)), "a machine")
        if made.get("name") != name:
            raise malformed_reply("another machine was made than was asked for", made.get("name"))
        return made

    def put_interface(self, name: str, body: Mapping[str, Any]) -> None:
        self._call(self.interface_id(name), NETWORK_API, method="PUT", data=dict(body))

    def delete_machine(self, name: str) -> None:
        self._call(self.machine_id(name), COMPUTE_API, method="DELETE")

    def delete_interface(self, name: str) -> None:
        self._call(self.interface_id(name), NETWORK_API, method="DELETE")

    def _call(self, path: str, api: str, **named: Any) -> Any:
        connection: Any = self.connection
        return connection.request(path, params={"api-version": api}, **named).object

    def _pages(self, path: str, api: str) -> Iterator[dict[str, Any]]:
        connection: Any = self.connection
        params: dict[str, str] = {"api-version": api}
        seen: set[str] = set()
        for _ in range(PAGES_MAX):
            reply = connection.request(path, params=params).object
            yield from objects_in(reply, "value", "a list")
            following = reply.get("nextLink")
            if not following:
                return
            if following in seen:
                break
            seen.add(str(following))
            parts = urlsplit(str(following))
            path, params = parts.path, dict(parse_qsl(parts.query))
        raise malformed_reply("a list does not end", path)


def _error_text(response: Any) -> str:
    """``Code: message`` in Azure's words, or the status line."""
    try:
        body = json.loads(response.body)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return f"{error.get('code', '')}: {error.get('message', '')}"
    if isinstance(body, dict) and isinstance(error, str):
        return f"{error}: {body.get('error_description', '')}"
    return f"HTTP {response.status} {response.error or ''}".strip()
