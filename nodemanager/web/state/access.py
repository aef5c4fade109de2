"""Who asks: the owner, by the socket or the token, or somebody who may know what is no user's business."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request


class RequestRefused(Exception):
    """An answer that says no: its HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class Access:
    """``token``: None where it could not be had; then nobody may steer. ``by_socket``: only the owner connects."""

    token: str | None
    by_socket: bool
    jobs_for_everybody: bool = False

    def has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return (
            self.token is not None
            and scheme.lower() == "bearer"
            and secrets.compare_digest(given.strip().encode(), self.token.encode())
        )

    def may_see_jobs(self, request: Request) -> bool:
        return self.jobs_for_everybody or self.by_socket or self.has_token(request)

    def must_see_jobs(self, request: Request) -> None:
        if not self.may_see_jobs(request):
            raise RequestRefused(401, "jobs are shown to the owner only: send the token, or ask by the socket")

    def must_steer(self, request: Request) -> None:
        if self.token is None:
            raise RequestRefused(503, "the token cannot be had, so nobody may steer; the service's log says why")
        if not self.has_token(request):
            raise RequestRefused(401, "this needs the token: Authorization: Bearer TOKEN ([Web] token_file)")


AccessCheck = Callable[[Access, Request], None]


def allow_anybody(access: Access, request: Request) -> None:
    """No more is asked."""
    del access, request
