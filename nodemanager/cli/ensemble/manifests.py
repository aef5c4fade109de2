"""The verb ``ensemble manifests``: print the Kubernetes objects of an ``Ensemble`` resource."""

from __future__ import annotations

import sys
import uuid
from argparse import Namespace
from functools import partial
from pathlib import Path

import yaml

from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_OK
from nodemanager.core.notation import escape_unprintable
from nodemanager.core.untrusted import UnreadableText, read_yaml
from nodemanager.ensemble.file.kubernetes import Choices, ResourceError, objects_of
from nodemanager.ensemble.file.kubernetes_service import Secrets
from nodemanager.web.grpc.material import default_folder, service_material, token_of_member

_NAMES = uuid.UUID("8a0f5c52-6c0d-4c1e-9d5a-0f1b1d3f7c11")  # of the UUIDs that are made from names


def manifests(chosen: Namespace) -> int:
    """Print the objects as YAML, to be applied with kubectl. Return the exit status."""
    path = Path(chosen.file)
    choices = Choices(chosen.namespace, chosen.image, chosen.cores)

    def uuid_of(name: str) -> str:
        """The same UUID for the same MiniCluster, so that a second run of the verb changes nothing."""
        return str(uuid.uuid5(_NAMES, f"{chosen.namespace}/{name}"))

    def secrets_of(ensemble: str) -> Secrets:
        """The secrets of earlier calls for this ensemble, or new ones."""
        folder = Path(chosen.material) if chosen.material else default_folder() / f"{chosen.namespace}-{ensemble}"
        made = service_material(folder)
        return Secrets(
            made.token, made.certificate.decode(), made.key.decode(), partial(token_of_member, made.token)
        )

    try:
        objects = objects_of(read_yaml(path.read_text(encoding="utf-8")), choices, uuid_of, secrets_of)
    except OSError as error:
        return _refuse(f"{path}: the file cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _refuse(f"{path}: the file is not UTF-8")
    except UnreadableText as error:
        return _refuse(f"{path}: {error}")
    except ResourceError as error:
        return _refuse(f"{path}: {error}")
    yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, explicit_start=True, width=116)
    return EXIT_OK


def _refuse(text: str) -> int:
    print(*map(escape_unprintable, text.split("\n")), sep="\n", file=sys.stderr)
    return EXIT_CONFIG
