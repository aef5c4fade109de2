"""Access rules: the owner has the Unix socket or the token. Others may see everything except single jobs.

A team has named tokens: each lets one operator see jobs, and steer too if its role says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from nodemanager.web.state.token import NamedToken, Role


class RequestRefused(Exception):
    """A request is refused, with an HTTP status and the reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(slots=True)
class Team:
    """The named tokens. A reload puts others in their place, so a token that is taken out no longer works."""

    tokens: tuple[NamedToken, ...] = ()

    @property
    def may_steer(self) -> bool:
        """Whether one of the tokens lets its bearer steer."""
        return any(it.role is Role.OPERATE for it in self.tokens)


@dataclass(frozen=True, slots=True)
class Caller:
    """The bearer of a token. ``name``: the operator's; None with the owner's token, which names nobody."""

    name: str | None
    role: Role


@dataclass(slots=True)
class Access:
    """The access rules of one server.

    ``token``: the owner's; None while it cannot be read or made. ``by_socket``: the server listens on its Unix
    socket, so only the owner can connect.
    """

    token: str | None
    by_socket: bool
    jobs_for_everybody: bool = False
    team: Team = field(default_factory=Team)

    def caller(self, request: Request) -> Caller | None:
        """The bearer of the request's token; None if it carries none that is valid."""
        return self._bearer(request.headers.get("authorization", ""))

    def is_token(self, authorization: str) -> bool:
        """Whether the value of an ``Authorization`` header is a valid token."""
        return self._bearer(authorization) is not None

    def _bearer(self, authorization: str) -> Caller | None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        secret = given.strip().encode()
        if self.token is not None and secrets.compare_digest(secret, self.token.encode()):
            return Caller(None, Role.OPERATE)
        # All are compared, so that the time of the answer does not tell which one is near.
        found = [it for it in self.team.tokens if secrets.compare_digest(secret, it.secret.encode())]
        return Caller(found[0].name, found[0].role) if found else None

    def may_see_jobs(self, request: Request) -> bool:
        """Whether the request may see single jobs."""
        return self.jobs_for_everybody or self.by_socket or self.caller(request) is not None

    def name(self, request: Request) -> str | None:
        """The operator that the request's token names; None if it names nobody."""
        caller = self.caller(request)
        return caller.name if caller is not None else None

    def may_steer(self, request: Request) -> bool:
        """Whether the request has a token that may steer."""
        caller = self.caller(request)
        return caller is not None and caller.role is Role.OPERATE

    def must_see_jobs(self, request: Request) -> None:
        """Raise ``RequestRefused`` unless the request may see jobs."""
        if not self.may_see_jobs(request):
            raise RequestRefused(401, "only the owner may see jobs: send the token, or use the Unix socket")

    def must_steer(self, request: Request) -> None:
        """Raise ``RequestRefused`` unless the request has a token that may steer."""
        caller = self.caller(request)
        if caller is None and self.token is None:
            raise RequestRefused(503, "the service has no token of its own: see the warnings of status")
        if caller is None:
            raise RequestRefused(401, "this needs the token: Authorization: Bearer TOKEN ([Web] token_file)")
        if caller.role is not Role.OPERATE:
            raise RequestRefused(403, f"the token of {caller.name} may view, not operate ([Web] tokens_file)")


AccessCheck = Callable[[Access, Request], None]


def allow_anybody(access: Access, request: Request) -> None:
    """Let every request pass."""
    del access, request
