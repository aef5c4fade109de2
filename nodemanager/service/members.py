"""Answer ensembles of other instances inside the service: ``[Web] grpc_listen``."""

from __future__ import annotations

import threading
from typing import Any

import structlog

from nodemanager.config.site import Site
from nodemanager.flux.ensembles.operator import InstanceMembers
from nodemanager.web.grpc.material import MaterialUnusable, read_address, service_material
from nodemanager.web.grpc.messages import GrpcMissing
from nodemanager.web.grpc.server import MembersServer
from nodemanager.web.listen import CannotListen

RETRY_S = 5.0
STOP_WITHIN_S = 1.0


class MembersService:
    """The gRPC service of a site. While it cannot listen it tries again: nodes depend on the manager, not on it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_WITHIN_S)

    def _run(self) -> None:
        log: Any = structlog.get_logger()
        said = ""
        while not self._stopped.is_set():
            try:
                server = self._listen()
            except (CannotListen, GrpcMissing, MaterialUnusable) as error:
                if (why := str(error)) != said:
                    said = why
                    log.error("ensemble_service_waits", why=why, again_s=RETRY_S)  # noqa: TRY400 - not our fault
                self._stopped.wait(RETRY_S)
            else:
                self._stopped.wait()
                server.stop()

    def _listen(self) -> MembersServer:
        web = self._site.web
        address = read_address(web.grpc_listen, plaintext=web.grpc_plaintext)
        material = None if web.grpc_plaintext else service_material(web.grpc_material)
        server = MembersServer(address, InstanceMembers(self._site.flux.uri), material)
        server.start()
        return server
