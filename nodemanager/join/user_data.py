"""Builds the script that a node runs at boot to join by ticket. The same launch always gets the same bytes.

The /bin/sh script contains the ticket, the join service's addresses and its certificate's fingerprint, but no key.
If the image does not contain flux-node-join, the script downloads it from the service and checks the same
fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.config.site import Site
from nodemanager.config.text.flux_toml import FluxConfigError, admits_guests, imp_path, read_conf_d
from nodemanager.core.nodes import LaunchId
from nodemanager.flux.setup.bootstrap import BootstrapError, find_flux
from nodemanager.join.key_material import MaterialError, MaterialPaths, fingerprint
from nodemanager.join.tickets import KeyUnusableError, SiteKey, read_site_key

SIZE_MAX_BYTES = 4096


class UserDataError(Exception):
    """With this configuration no node can join. The text says why."""


class JoinUserData:
    """Builds the scripts of one site. Reads the site's files once. Raises :class:`UserDataError`."""

    def __init__(self, site: Site) -> None:
        paths = MaterialPaths(site.join.material_dir)
        try:
            self._key: SiteKey = read_site_key(paths.site_key)
            self._values = _script_values(site, fingerprint(paths.tls_certificate))
        except (KeyUnusableError, MaterialError, BootstrapError) as error:
            raise UserDataError(str(error)) from error
        self._client = site.join.client

    def __call__(self, launch: LaunchId) -> str:
        values = {**self._values, "LAUNCH": launch, "TICKET": self._key.ticket(launch)}
        return join_script(values, self._client)

    def for_batch(self, batch: str) -> str:
        """Return the script of all nodes of a batch. Each of them proves its identity to the join service."""
        values = {**self._values, "BATCH": batch, "TICKET": self._key.batch_ticket(batch)}
        return join_script(values, self._client)


def join_script(values: Mapping[str, str], client: str) -> str:
    """Return the script with these settings. Raises :class:`UserDataError` if it is too large.

    ``client`` is the path of flux-node-join in the image. If it is "", the script downloads the client.
    """
    lines = [f"export FLUX_NODE_JOIN_{name}={shell_quote(value)}" for name, value in sorted(values.items())]
    start = f"exec {shell_quote(client)}\n" if client else _FETCH_CLIENT
    text = _SCRIPT_HEAD + "\n".join(lines) + "\n" + start
    size_bytes = len(text.encode())
    if size_bytes >= SIZE_MAX_BYTES:
        raise UserDataError(
            f"the user-data would have {size_bytes} bytes, and must have less than {SIZE_MAX_BYTES}: shorten [Join]"
            " addresses"
        )
    return text


def shell_quote(value: str) -> str:
    """Quote a word for the shell. It always adds quotes, so it need not decide which characters are safe."""
    return "'" + value.replace("'", "'\\''") + "'"


def _script_values(site: Site, pin: str) -> dict[str, str]:
    # A local node runs this machine's flux. Every other node runs its image's flux.
    flux = find_flux(site.join.flux) if site.rules.is_this_machine else site.join.flux
    return {
        "ADDRESSES": " ".join(site.join.addresses),
        "FINGERPRINT": pin,
        "DIR": str(site.join.node_dir),
        "HOSTS": str(site.join.hosts_file),
        "POWEROFF": site.join.poweroff,
        "SILENCE_MAX_S": f"{site.timing.manager_silence_max_s:g}",
        "FLUX": flux,
        "USER": site.join.node_user,
        "SYSTEMD": "yes" if site.join.systemd else "no",
        "IMP": _imp_of_guests(site),
        "NOTICE": site.rules.notice,
    }


def _imp_of_guests(site: Site) -> str:
    """Return the path of flux-imp if the instance admits guests, or else "". Raises :class:`UserDataError`."""
    try:
        config = read_conf_d(site.flux.bootstrap_dir)
    except FluxConfigError as error:
        raise UserDataError(str(error)) from error
    if not admits_guests(config):
        return ""
    if not (imp := imp_path(config)):
        raise UserDataError(
            f"{site.flux.bootstrap_dir / 'conf.d'} sets [access] allow-guest-user, but no [exec] imp: without"
            " flux-imp no guest's job can start"
        )
    return imp


_SCRIPT_HEAD = """\
#!/bin/sh
# Joins this node to its Flux instance. The ticket is good for one use.
# shellcheck disable=SC2016 # values are kept as they are, commands too
set -u
umask 077
"""

# A node that cannot download the client must end its own cost too: it gives up after the same silence. If its
# folder cannot be created, the node first waits that long, so that somebody can inspect it.
_FETCH_CLIENT = """\
export FLUX_NODE_JOIN_PARENT="$PPID"
mkdir -p "$FLUX_NODE_JOIN_DIR" || {
  sleep "$FLUX_NODE_JOIN_SILENCE_MAX_S"
  exec /bin/sh -c "$FLUX_NODE_JOIN_POWEROFF"
}
client=$FLUX_NODE_JOIN_DIR/flux-node-join
python3 - "$client" <<'EOF' || exec /bin/sh -c "$FLUX_NODE_JOIN_POWEROFF"
import hashlib, http.client, os, ssl, sys, time
get = lambda name: os.environ["FLUX_NODE_JOIN_" + name]
class Pinned(http.client.HTTPSConnection):
    def connect(self):
        super().connect()
        if hashlib.sha256(self.sock.getpeercert(True)).hexdigest() != get("FINGERPRINT"):
            raise OSError("another certificate")
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname = False
tls.verify_mode = ssl.CERT_NONE
end = time.monotonic() + float(get("SILENCE_MAX_S"))
pause = 1
while time.monotonic() < end:
    for address in get("ADDRESSES").split():
        host, _, port = address.rpartition(":")
        try:
            service = Pinned(host.strip("[]"), int(port), timeout=10, context=tls)
            service.request("GET", "/v1/flux-node-join")
            answer = service.getresponse()
            text = answer.read()
            if answer.status == 200:
                with open(sys.argv[1], "wb") as file:
                    file.write(text)
                sys.exit()
        except (OSError, http.client.HTTPException) as fault:
            print("flux-node-join: %s: %s" % (address, fault), file=sys.stderr)
    time.sleep(pause)
    pause = min(30, 2 * pause)
sys.exit(1)
EOF
exec python3 "$client"
"""
