"""Turns a provider's good answers into odd ones, as a seed says."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

STATUSES = (204, 301, 302, 304, 400, 401, 403, 404, 405, 408, 409, 410, 412, 418, 422, 429, 500, 502, 503, 504, 599)
HTML = "<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e308,
    10**400,
    "",
    "\0\ud800",
    "x" * 100_000,
    [],
    {},
    [None],
    [[]],
)
ODD_TYPES = ("", "text/html", "application/octet-stream", "application/json; charset=utf-77", "\u2603")


class OddAnswers:
    """Mutates texts. ``lost_all``: whether the last one was mutated so that nothing of it can be read."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lost_all = False

    def text(self, text: str) -> str:
        """Return the text as it came, or something else."""
        self.lost_all = False  # of a call that is repeated, the last answer counts
        change = self.draw.choice((self._as_it_is, self._whole, self._part, self._part, self._part))
        return change(text)

    @staticmethod
    def _as_it_is(text: str) -> str:
        return text

    def _whole(self, text: str) -> str:
        self.lost_all = True
        deep = self.draw.choice((200, 100_000))
        cut = self.draw.randrange(max(1, len(text.rstrip()) - 1)) if text else 0
        odd = (
            "",
            HTML,
            text[:cut],
            "[" * deep,
            "<a>" * deep,
            '{"a":' * deep,
            "null",
            "[]",
            "7",
            '"x"',
            "NaN",
            "\0",
        )
        return self.draw.choice(odd)

    def _part(self, text: str) -> str:
        try:
            found = json.loads(text)
        except ValueError:
            return self._part_of_xml(text)
        for _ in range(self.draw.randint(1, 3)):
            self._change_one(found)
        return json.dumps(found)

    def _change_one(self, found: Any) -> None:
        places = list(_places(found))
        if not places:
            return
        within, key = self.draw.choice(places)
        match self.draw.randrange(4):
            case 0:
                del within[key]
            case 1:
                deep: Any = within[key]
                for _ in range(self.draw.choice((3, 250))):
                    deep = [deep]
                within[key] = deep
            case _:
                # A copy, since a later change may be within it.
                within[key] = copy.deepcopy(self.draw.choice(ODD_VALUES))

    def _part_of_xml(self, text: str) -> str:
        names = sorted(set(re.findall(r"<(\w+)[ >]", text)))
        for name in self.draw.sample(names, min(len(names), self.draw.randint(1, 2))):
            element = rf"<{name}(?: [^>]*)?>.*?</{name}>"
            odd = self.draw.choice(("", f"<{name}/>", f"<{name}>{'9' * 5000}</{name}>", f"<{name}><a/>x</{name}>"))
            text = re.sub(element, odd, text, count=self.draw.choice((0, 1)), flags=re.DOTALL)
        return text

    @contextmanager
    def over_http(self) -> Iterator[None]:
        """Meanwhile the answers to all HTTP requests of this process are odd."""
        send = HTTPAdapter.send

        def odd_send(adapter: HTTPAdapter, *args: Any, **options: Any) -> requests.Response:
            answer = send(adapter, *args, **options)
            body = self.text(answer.content.decode(errors="replace"))
            setattr(answer, "_content", body.encode(errors="surrogatepass"))  # noqa: B010 - it has no other way
            answer.encoding = "utf-8"
            if self.draw.random() < 0.2:
                self.lost_all = True
                answer.status_code = self.draw.choice(STATUSES)
                answer.headers["Location"] = str(answer.url)
                answer.headers["Retry-After"] = self.draw.choice(("", "-1", "soon", "9" * 400))
            if self.draw.random() < 0.2:
                answer.headers["Content-Type"] = self.draw.choice(ODD_TYPES)
            return answer

        setattr(HTTPAdapter, "send", odd_send)  # noqa: B010
        try:
            yield
        finally:
            setattr(HTTPAdapter, "send", send)  # noqa: B010

    @contextmanager
    def in_files(self, folder: Path, pattern: str) -> Iterator[None]:
        """Meanwhile the files are odd. Files that were changed since are not restored."""
        kept = {file: file.read_bytes() for file in sorted(folder.glob(pattern))}
        odd = {file: self.text(text.decode()).encode(errors="surrogatepass") for file, text in kept.items()}
        for file, text in odd.items():
            file.write_bytes(text)
        try:
            yield
        finally:
            for file, text in kept.items():
                if file.exists() and file.read_bytes() == odd[file]:
                    file.write_bytes(text)


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Return each place of a JSON document: the object or list, and the key or index in it."""
    items = (
        list(found.items())
        if isinstance(found, dict)
        else list(enumerate(found))
        if isinstance(found, list)
        else []
    )
    for key, value in items:
        yield found, key
        yield from _places(value)
