"""Check what was built: ``python -m tests.project.packaged SDIST WHEEL SBOM``, as bin/package does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.paths import ROOT

# What is in the checkout for those who work on it, and nothing to an operator or a distributor.
LEFT_OUT = (".ci/", ".git", ".dockerignore")


def missing_in_sbom(sbom: str) -> list[str]:
    """The dependencies of the lock file that the SBOM lacks, or has without a hash."""
    lock = (ROOT / "requirements" / "service.txt").read_text(encoding="utf-8")
    locked = set(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    components = json.loads(Path(sbom).read_text(encoding="utf-8"))["components"]
    listed = {
        (it["name"], it["version"])
        for it in components
        if any(reference.get("hashes") for reference in it["externalReferences"])
    }
    return [f"{sbom} lacks {name} {version}, or its hashes" for name, version in sorted(locked - listed)]


def main(sdist: str, wheel: str, sbom: str) -> int:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    tracked = {name for name in listed if Path(name).exists()}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    missing = [f"{wheel} lacks {name}" for name in sorted(tracked - in_wheel) if name.startswith("nodemanager/")]
    missing += [f"{sdist} lacks {name}" for name in sorted(tracked - in_sdist) if not name.startswith(LEFT_OUT)]
    foreign = {name.partition("/")[0] for name in in_wheel} - {"nodemanager"}
    missing += [f"{wheel} has {name}" for name in sorted(foreign) if not name.startswith("flux_node_manager-")]
    missing += missing_in_sbom(sbom)
    print("\n".join(missing) or f"whole: {len(in_sdist)} names in the sdist, {len(in_wheel)} in the wheel")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
