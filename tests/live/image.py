"""The container image, built by buildah on a stand-in for flux-core's image, and containers of it without a daemon.

A container is a chroot with a read-only root, and with mounts, processes and a host name of its own. It shares the
machine's network and has no cgroup. It cannot gain privileges, and runs as a user that is not root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.live.instance import flux_version, why_no_flux
from tests.paths import ROOT

UID = 1000
SITE = "/etc/flux-node-manager/site.ini"
STATE = "/var/lib/flux-node-manager"
IMAGE = "localhost/flux-node-manager:test"
BUILD_WITHIN_S = 1500
DEBIAN = "docker.io/library/debian:bookworm-slim"
# What flux-core links to, and what its Python bindings import.
PACKAGES = (
    "libarchive13 libhwloc15 libjansson4 liblua5.1-0 liblz4-1 libmunge2 libncursesw6 libpython3.11 libsqlite3-0 "
    "libsystemd0 libuuid1 libzmq5 python3 python3-cffi python3-ply python3-yaml"
)
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

# run ROOT STATE SITE UID NAME VARIABLES... COMMAND...: what a container engine does before the command.
RUN = f"""
set -eu
root=$1 state=$2 site=$3; user=$4; hostname "$5"; shift 5
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$site" "$root{SITE}"
mount --bind "$state" "$root{STATE}"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -o remount,ro,bind "$root"
exec setpriv --no-new-privs chroot --userspec="$user:$user" "$root" env -i -C {STATE} "$@"
"""


def why_no_image() -> str:
    """Why no image can be built here; "" if one can."""
    if why_not := why_no_flux():
        return why_not
    if os.geteuid() != 0:
        return "buildah and debootstrap need root here"
    missing = [it for it in ("buildah", "debootstrap", "setpriv", "unshare") if shutil.which(it) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image. ``root``: its files. ``config``: as OCI has it. ``size_bytes``: beyond its base."""

    root: Path
    config: dict[str, Any]
    size_bytes: int

    def variables(self) -> list[str]:
        return [f"HOME={STATE}", *self.config["Env"]]

    def command(self, state: Path, site: Path, name: str, command: Sequence[str], uid: int = UID) -> list[str]:
        """The command that runs another one in a container of the image, which ends with it."""
        container = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", RUN, "run"]
        return [*container, str(self.root), str(state), str(site), str(uid), name, *self.variables(), *command]


class Builder:
    """Builds images in a folder, which keeps the bases for the next time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = flux_version().split()[1].partition("-")[0]
        self.base = f"docker.io/fluxrm/flux-core:bookworm-v{self._version}"

    def build(self) -> Image:
        """Build the Dockerfile on the stand-in for flux-core's image."""
        if not self._has(self.base):
            self._make_base()
        return self._build(IMAGE, self.base, "--build-arg", f"FLUX_VERSION={self._version}")

    def build_without_flux(self) -> Image:
        """Build it on Debian alone, as the Dockerfile's first lines say."""
        if not self._has(DEBIAN):
            self._make_debian()
        without = ("--build-arg", f"FLUX_IMAGE={DEBIAN}", "--build-arg", "FLUX_VERSION=")
        return self._build(f"{IMAGE}-ssh", DEBIAN, *without)

    def _build(self, name: str, base: str, *options: str) -> Image:
        self._buildah(
            *("bud", "--pull-never", "--format", "docker", "--build-arg", "VERSION=1.2.3"),
            *(*options, "-t", name, "."),
        )
        container = self._buildah("from", "--pull-never", name)
        root = Path(self._buildah("mount", container))
        (root / SITE[1:]).parent.mkdir(exist_ok=True)
        (root / SITE[1:]).touch()  # the engine makes the place for a mount
        return Image(root, self._inspect(name)["Docker"]["config"], self._size(name) - self._size(base))

    def close(self) -> None:
        self._buildah("umount", "--all")
        self._buildah("rm", "--all")

    def _make_debian(self) -> None:
        root = self._folder / "root"
        _run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root))
        if AUTHORITIES.exists():
            # Behind a proxy, the machine may know an authority that Debian and pip do not.
            shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
            (root / "etc/pip.conf").write_text(f"[global]\ncert = {AUTHORITIES}\n", encoding="utf-8")
        shutil.rmtree(root / "var/lib/apt/lists")
        shutil.rmtree(root / "var/cache/apt")
        container = self._buildah("from", "scratch")
        self._buildah("copy", "-q", container, str(root), "/")
        self._buildah("commit", "-q", container, DEBIAN)
        self._buildah("rm", container)
        shutil.rmtree(root)

    def _make_base(self) -> None:
        """Debian with flux-core's libraries, and the flux on PATH in its own prefix."""
        if not self._has(DEBIAN):
            self._make_debian()
        prefix = Path(str(shutil.which("flux"))).resolve().parents[1]
        container = self._buildah("from", "--pull-never", DEBIAN)
        install = f"apt-get update && apt-get install --yes --no-install-recommends {PACKAGES} && apt-get clean"
        self._buildah("run", container, "--", "sh", "-c", f"{install} && rm -rf /var/lib/apt/lists/*")
        self._buildah("copy", "-q", container, str(prefix), str(prefix))
        path = f"{prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._buildah("config", "--env", f"PATH={path}", container)
        self._buildah("commit", "-q", container, self.base)
        self._buildah("rm", container)

    def _has(self, image: str) -> bool:
        return image in self._buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()

    def _inspect(self, image: str) -> dict[str, Any]:
        inspected: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", image))
        return inspected

    def _size(self, image: str) -> int:
        container = self._buildah("from", "--pull-never", image)
        root = Path(self._buildah("mount", container))
        # As du counts: a file with several names once.
        seen = {}
        for folder, _, names in os.walk(root):
            for name in names:
                status = os.lstat(Path(folder) / name)
                seen[status.st_ino] = status.st_size
        self._buildah("umount", container)
        self._buildah("rm", container)
        return sum(seen.values())

    def _buildah(self, *arguments: str) -> str:
        # Layers as plain folders, and no namespaces: both work on any machine.
        store = ["--root", str(self._folder / "store"), "--runroot", str(self._folder / "run")]
        return _run("buildah", *store, "--storage-driver", "vfs", *arguments)


def _run(*command: str) -> str:
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        capture_output=True,
        text=True,
        timeout=BUILD_WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, f"{' '.join(command[:12])}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    return ran.stdout.strip()


def processes_below(root: Path) -> list[psutil.Process]:
    """The processes whose root or command line is a container's."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(f"/proc/{process.pid}/root").resolve() == root or str(root) in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
