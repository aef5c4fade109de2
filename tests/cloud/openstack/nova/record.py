"""Record a real Nova's replies into ``tests/data/openstack``: ``python -m tests.cloud.openstack.nova.record``.

Each reply is one file with its status, its body and its relevant headers. The calls go through the port where
possible, and past it only for replies that the port never receives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import requests

from nodemanager.cloud.openstack.port import cluster_tag, launch_tag
from nodemanager.core.nodes import LaunchId
from nodemanager.core.ports import CloudPort
from tests.cloud.openstack.nova.process import PASSWORD, Nova, nova_python, openstack_cloud
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type
from tests.paths import DATA

FOLDER = DATA / "openstack"
SERVICE = "http://openstack.test"  # replaces the real address
KEPT_HEADERS = {"content-type", "x-subject-token", "location"}
PAGE = 2


def main() -> None:
    nova = Nova(nova_python(), PAGE)
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        record(nova, openstack_cloud(nova, CLUSTER, CLUSTER_UUID, a_script))
    finally:
        nova.stop()


def record(nova: Nova, port: CloudPort) -> None:
    token = keep("token", requests.post(f"{nova.url}/v3/auth/tokens", json=LOGIN, timeout=60), nova)
    keep("token-refused", requests.post(f"{nova.url}/v3/auth/tokens", json=WRONG_LOGIN, timeout=60), nova)
    headers = {"X-Auth-Token": token, "OpenStack-API-Version": "compute 2.52", "Accept": "application/json"}

    def ask(name: str, method: str, path: str, body: Any = None, **changed: str) -> Any:
        return keep(
            name, requests.request(method, nova.url + path, json=body, headers=headers | changed, timeout=60), nova
        )

    mine = f"/v2.1/servers/detail?tags={cluster_tag(CLUSTER)}&sort_key=created_at&sort_dir=asc"
    one = mine.replace("&", f",{launch_tag(LaunchId('launch-1'))}&", 1)
    ask("servers-none", "GET", one)
    flavors, page = "/v2.1/flavors", 0
    while flavors:
        page += 1
        links = ask(f"flavors-page-{page}", "GET", flavors).get("flavors_links") or [{"href": ""}]
        flavors = links[0]["href"].removeprefix(nova.url)
    ask("images", "GET", "/image/v2/images?name=ami-03cf127a")
    ask("networks", "GET", "/network/v2.0/networks?name=private")
    ask("unauthorized", "GET", mine, **{"X-Auth-Token": "none"})
    ask("microversion-refused", "GET", mine, **{"OpenStack-API-Version": "compute 9.99"})
    first = port.create(a_launch("1"), a_type()).provider_id
    body = {"name": "x", "flavorRef": "1", "imageRef": IMAGE, "networks": [{"uuid": NETWORK}]}
    made = ask("server-created", "POST", "/v2.1/servers", {"server": body})["server"]["id"]
    ask("user-data-refused", "POST", "/v2.1/servers", {"server": {**body, "user_data": "c2VjcmV0" * 9_000}})
    ask("flavor-refused", "POST", "/v2.1/servers", {"server": {**body, "flavorRef": "nope"}})
    ask("server-deleted", "DELETE", f"/v2.1/servers/{made}")
    ask("server-unknown", "DELETE", "/v2.1/servers/00000000-0000-4000-8000-000000000000")
    nova.until(lambda: port.list_nodes()[0].state == "running", "a running server")
    ask("servers-one", "GET", one)
    ask("server", "GET", f"/v2.1/servers/{first}")
    nova.hosts("disable")
    second = port.create(a_launch("2", "node-2"), a_type()).provider_id
    nova.until(lambda: port.list_nodes()[1].state == "failed", "a server that fails")
    ask("server-failed", "GET", f"/v2.1/servers/{second}")
    nova.hosts("enable")
    nova.allow(2)
    ask("quota-refused", "POST", "/v2.1/servers", {"server": body})
    nova.allow(-1)
    port.create(a_launch("3", "node-3"), a_type())
    nova.until(lambda: port.list_nodes()[2].state == "running", "a running server")
    first_page = ask("servers-page-1", "GET", mine)
    ask("servers-page-2", "GET", first_page["servers_links"][0]["href"].removeprefix(nova.url))


def keep(name: str, reply: requests.Response, nova: Nova) -> Any:
    """Write a reply to a file. Return its body, or a login's token."""
    body = reply.json() if reply.content else None
    text = json.dumps(
        {
            "status": reply.status_code,
            "headers": {key: value for key, value in reply.headers.items() if key.lower() in KEPT_HEADERS},
            "body": scrubbed(body, lambda text: text.replace(nova.url, SERVICE)),
        },
        indent=1,
        ensure_ascii=False,
    )
    (FOLDER / f"{name}.json").write_text(text.replace(nova.url, SERVICE) + "\n", encoding="utf-8")
    return reply.headers.get("X-Subject-Token", body)


def scrubbed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value without passwords and administrators' details, and with long words truncated."""
    if isinstance(value, dict):
        return {key: scrubbed(item, change) for key, item in value.items() if key not in ("adminPass", "details")}
    if isinstance(value, list):
        return [scrubbed(item, change) for item in value]
    return change(value)[:400] if isinstance(value, str) else value


def login(password: str) -> dict[str, Any]:
    user = {"name": "demo", "domain": {"name": "Default"}, "password": password}
    return {
        "auth": {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"name": "demo", "domain": {"id": "default"}}},
        }
    }


LOGIN = login(PASSWORD)
WRONG_LOGIN = login("wrong")
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
NETWORK = "3cb9bc59-5699-4588-a4b1-b87f96708bc6"

if __name__ == "__main__":
    main()
