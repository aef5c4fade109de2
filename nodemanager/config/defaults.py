"""Fill in the defaults that depend on other keys, and make paths absolute."""

from __future__ import annotations

import os
from pathlib import Path

from nodemanager.config.provider import rules_of
from nodemanager.config.text.settings import (
    CloudSettings,
    FluxSettings,
    JoinMethod,
    JoinSettings,
    PeerSettings,
    PolicySettings,
    WebSettings,
    bracketed,
    is_ipv6_address,
    is_loopback,
)
from nodemanager.core.slots import Misfit

_LOCAL = "local://"  # followed by a socket's path, which may be relative to the site's folder


def complete_flux(flux: FluxSettings, cloud: CloudSettings | None, site_dir: Path, state_dir: Path) -> FluxSettings:
    """Complete ``[Flux]``. ``site_dir``: the folder of the site's file."""
    folder = site_dir if "bootstrap_dir" in flux.model_fields_set else state_dir
    uri = flux.uri
    if uri.startswith(_LOCAL):
        uri = _LOCAL + str(absolute(site_dir / uri.removeprefix(_LOCAL)))
    completed: dict[str, object] = {"uri": uri, "bootstrap_dir": absolute(folder / flux.bootstrap_dir)}
    if cloud and rules_of(cloud).configures_nodes and not flux.simulated:
        completed["join"] = JoinMethod.IMAGE
    return flux.model_copy(update=completed)


def complete_cloud(cloud: CloudSettings, site_dir: Path) -> CloudSettings:
    """Complete one cloud's section."""
    completed = {"service_material": absolute(site_dir / cloud.service_material)}
    if cloud.kubeconfig is not None:
        completed["kubeconfig"] = absolute(site_dir / cloud.kubeconfig)
    if cloud.identity_certificate is not None:
        completed["identity_certificate"] = absolute(site_dir / cloud.identity_certificate)
    return cloud.model_copy(update=completed)


def complete_web(web: WebSettings, site_dir: Path, state_dir: Path) -> WebSettings:
    """Complete ``[Web]``. Files that the site does not name are in ``state_dir``."""
    listen = web.listen
    if listen == "unix":
        listen = f"unix:{state_dir / 'web.sock'}"
    elif listen.startswith("unix:"):
        listen = f"unix:{absolute(site_dir / listen.removeprefix('unix:'))}"
    folder = site_dir if "token_file" in web.model_fields_set else state_dir
    material = site_dir if "grpc_material" in web.model_fields_set else state_dir
    return web.model_copy(
        update={
            "listen": listen,
            "token_file": absolute(folder / web.token_file),
            "tokens_file": absolute(site_dir / web.tokens_file) if web.tokens_file else None,
            "grpc_material": absolute(material / web.grpc_material),
        }
    )


def complete_join(
    join: JoinSettings, flux: FluxSettings, cloud: CloudSettings, site_dir: Path, state_dir: Path
) -> JoinSettings:
    """Fill in the keys that were not given: addresses from rank 0's, a node's paths from the provider."""
    given = join.model_fields_set
    port = join.listen.rpartition(":")[2]
    rank_0 = bracketed(flux.head_address)
    folder = site_dir if "material_dir" in given else state_dir
    completed: dict[str, object] = {"material_dir": absolute(folder / join.material_dir)}
    if "listen" not in given and is_ipv6_address(flux.head_address):
        completed["listen"] = f"{rank_0 if is_loopback(flux.head_address) else '[::]'}:{port}"
    elif "listen" not in given and is_loopback(flux.head_address):
        completed["listen"] = f"127.0.0.1:{port}"
    if not join.addresses and flux.head_address:
        completed["addresses"] = (f"{rank_0}:{port}",)
    completed |= {key: value for key, value in rules_of(cloud).join_defaults.items() if key not in given}
    return join.model_copy(update=completed)


def with_default_misfit(policy: PolicySettings, *clouds: CloudSettings) -> PolicySettings:
    """Accept misfits if all nodes are parts of machines, unless the site says otherwise."""
    shares = all(rules_of(cloud).shares_machines for cloud in clouds)
    if shares and "misfit" not in policy.model_fields_set:
        return policy.model_copy(update={"misfit": Misfit.ACCEPT})
    return policy


def with_absolute_uri(peer: PeerSettings, site_dir: Path) -> PeerSettings:
    """Return a peer whose socket does not depend on the folder of the process."""
    if not peer.uri.startswith(_LOCAL):
        return peer
    path = absolute(site_dir / peer.uri.removeprefix(_LOCAL))
    return peer.model_copy(update={"uri": _LOCAL + str(path)})


def absolute(path: Path) -> Path:
    """Return the path from the root, without ``..``."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - removes "..", but does not follow links
