"""Access rules: the owner has the Unix socket or the token. Others may see everything except single jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request


class RequestRefused(Exception):
    """A request is refused, with an HTTP status and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of one server.

    ``token``: None if it could not be read or made; then nobody may steer. ``by_socket``: the server listens on
    its Unix socket, so only the owner can connect.
    """

    token: str | None
    by_socket: bool
    jobs_for_everybody: bool = False

    def has_token(self, request: Request) -> bool:
        """Whether the request carries the token."""
        return self.is_token(request.headers.get("authorization", ""))

    def is_token(self, authorization: str) -> bool:
        """Whether the value of an ``Authorization`` header is the token."""
        scheme, _, given = authorization.partition(" ")
        return (
            self.token is not None
            and scheme.lower() == "bearer"
            and secrets.compare_digest(given.strip().encode(), self.token.encode())
        )

    def may_see_jobs(self, request: Request) -> bool:
        """Whether the request may see single jobs."""
        return self.jobs_for_everybody or self.by_socket or self.has_token(request)

    def must_see_jobs(self, request: Request) -> None:
        """Raise ``RequestRefused`` unless the request may see jobs."""
        if not self.may_see_jobs(request):
            raise RequestRefused(401, "only the owner may see jobs: send the token, or use the Unix socket")

    def must_steer(self, request: Request) -> None:
        """Raise ``RequestRefused`` unless the request has the token."""
        if self.token is None:
            raise RequestRefused(503, "the service has no token, so nobody may steer; its log says why")
        if not self.has_token(request):
            raise RequestRefused(401, "this needs the token: Authorization: Bearer TOKEN ([Web] token_file)")


AccessCheck = Callable[[Access, Request], None]


def allow_anybody(access: Access, request: Request) -> None:
    """Let every request pass."""
    del access, request
