"""The verb ``support-bundle``: one file that a user can send to whoever helps, without secrets.

Of the site it has the values of known keys that are neither secrets nor commands, and no comments. From every text
it removes the values of the secrets that this machine has: of the site, of the files that it names, of the
environment. What looks like a secret in a text of others, such as a log, is removed too.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from nodemanager.cli.parsing.verb import PROGRAM
from nodemanager.config.clouds import is_cloud_section
from nodemanager.config.provider import provider_named
from nodemanager.config.sections import ENSEMBLE, NODE, PEER, SCHEDULE, SETTINGS
from nodemanager.config.text.ini import Document, is_secret_key, read_ini, without_url_secrets
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import (
    HOST_NAME,
    CloudSettings,
    EnsembleSettings,
    NodeSettings,
    PeerSettings,
    ScheduleSettings,
    SectionSettings,
    allowed_keys,
)
from nodemanager.core.notation import escape_unprintable
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.history.store.schema import HISTORY_FILE

LEFT_OUT = "(left out)"
UNIT = "flux-node-manager"
DECISIONS_MAX = 2_000
LOG_LINES_MAX = 2_000
LOG_BYTES_MAX = 4 << 20
SECRET_FILE_BYTES_MAX = 1 << 20
SHORTEST_SECRET = 4  # characters: shorter ones occur in any text
SHORTEST_UNKNOWN = 8  # of the value of an unknown key, which is probably a number or a name
COMMAND_WITHIN_S = 60.0

NAMED_SETTINGS: Mapping[str, type[SectionSettings]] = {
    NODE: NodeSettings,
    PEER: PeerSettings,
    ENSEMBLE: EnsembleSettings,
    SCHEDULE: ScheduleSettings,
}
INTRODUCTION = """\
What flux-node-manager support-bundle found, for somebody who helps. Look through it before you send it: it has no
secrets, but it names hosts, users and jobs.

site.ini        the site, without comments. Values of secrets, of commands and of unknown keys are left out
check.txt       what check says of it
status.json     what the running service shows
nodes.json      its nodes
decisions.jsonl the last decisions and events of the history
log.txt         the last lines of the service's log
versions.txt    of this program, Python, Flux and the libraries
"""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# Bounded, so that a long word in a log does not take long.
_USER_OF_ADDRESS = re.compile(
    r"(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)[^/\s@\"':]{0,256}:[^/\s@\"']{0,256}@", re.IGNORECASE
)
# As in password=x, --token x, "client_secret": "x", Authorization: Bearer x.
_WORD = r"(?:secret|passw(?:or)?d|passphrase|token|(?:api|access|private)[-_]?key|authorization)"
_NAME = rf"[\w.-]{{0,64}}?{_WORD}[\w.-]{{0,64}}"
_VALUE = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;}\]]+"
_NAMED_SECRET = re.compile(
    rf"(?<![\w.-])(?P<name>(?:{_NAME}[\"']?\s{{0,4}}[:=]\s{{0,4}}|--{_NAME}\s{{1,4}})(?:bearer\s+|basic\s+)?|bearer\s+)"
    rf"(?P<value>{_VALUE})",
    re.IGNORECASE,
)


class BundleError(Exception):
    """The bundle cannot be written. The message says why."""


def write_bundle(site_file: Path, output: Path | None, log: Path | None) -> Path:
    """Write the bundle to a new file that only its owner can read, and return its path. Raises ``BundleError``."""
    name = f"{PROGRAM}-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = output or Path(f"{name}.tar.gz")
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BundleError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with open(file, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as bundle:  # noqa: PTH123
            for member, text in texts_of(site_file, log):
                content = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{name}/{member}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                bundle.addfile(entry, io.BytesIO(content))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise BundleError(f"{path} cannot be written: {error.strerror}") from error
        raise
    return path


def texts_of(
    site_file: Path, log: Path | None, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, str]]:
    """Yield each file's name and its text, without secrets."""
    document = read_ini(site_file, environment)
    remove = Secrets(document, environment).remove
    state_dir = _state_dir(document)

    def verb(*words: str) -> str:
        return _output_of(sys.executable, "-m", "nodemanager", *words, "--config", str(site_file))

    makers: Sequence[tuple[str, Callable[[], str]]] = (
        ("site.ini", lambda: site_text(document)),
        ("check.txt", lambda: verb("check")),
        ("status.json", lambda: verb("status", "--json")),
        ("nodes.json", lambda: verb("nodes", "--json")),
        ("decisions.jsonl", lambda: _decisions(state_dir / HISTORY_FILE)),
        ("log.txt", lambda: _log_text(log)),
        ("versions.txt", _versions),
    )
    yield "README.txt", INTRODUCTION
    for name, make in makers:
        yield name, remove(make())


# --- the site ---------------------------------------------------------------------------------------------


def site_text(document: Document) -> str:
    """The site without comments, secrets, commands, and what it does not know. Its faults are below."""
    lines: list[str] = []
    for name, section in document.sections.items():
        keys = _known_keys(document, name)
        if keys is None:
            lines += ["", "[a section that is not known]"]
            continue
        lines += ["", f"[{name}]"]
        unknown = 0
        for key, entry in section.entries.items():
            if key not in keys:
                unknown += 1
            elif is_secret_key(key) or keys[key].startswith("a command"):
                lines.append(f"{key} = {LEFT_OUT}")
            else:
                lines.append(f"{key} = " + without_url_secrets(entry.written).replace("\n", "\n    "))
        lines += [f"# {unknown} keys that are not known {LEFT_OUT}"] if unknown else []
    return "\n".join([*lines[1:], ""])


def _known_keys(document: Document, name: str) -> Mapping[str, str] | None:
    """The keys of a section, with how their values are written; none of credentials. None: no such section."""
    if is_cloud_section(name):
        if name.endswith("Credentials"):
            return {}
        provider = document.section(name).entries.get("provider")
        known = provider is not None and provider.written in PROVIDERS
        return allowed_keys(provider_named(provider.written).settings if provider and known else CloudSettings)
    for kind, settings in NAMED_SETTINGS.items():
        if name.startswith(kind):
            return allowed_keys(settings) if HOST_NAME.fullmatch(name.removeprefix(kind)) else None
    return allowed_keys(SETTINGS[name]) if name in SETTINGS else None


def _state_dir(document: Document) -> Path:
    entry = document.section("Site").entries.get("state_dir")
    return document.file.parent / ((entry.text if entry is not None else None) or ".")


# --- secrets ----------------------------------------------------------------------------------------------


class Secrets:
    """The secrets that this machine has, and how to remove them from a text."""

    def __init__(self, document: Document, environment: Mapping[str, str]) -> None:
        values = {value for name, value in environment.items() if is_secret_key(name)}
        for file in (document.file.parent / "token", _state_dir(document) / "token"):
            values |= _words_of(file)
        for name, section in document.sections.items():
            known = _known_keys(document, name)
            values |= {name} if known is None else set()
            for key, entry in section.entries.items():
                is_probably = known is not None and key not in known and len(entry.written) >= SHORTEST_UNKNOWN
                if entry.text and key.endswith("_file"):
                    values |= _words_of(document.file.parent / entry.text)
                elif is_secret_key(key) or not known or is_probably:
                    values |= {entry.written, entry.text or ""}
                elif key in known and known[key].startswith("a command"):
                    values |= {entry.written, *_options_of(entry.written), *_options_of(entry.text or "")}
        lines = {line.strip() for value in values for line in (value, *value.splitlines())}
        forms = {form for line in lines if len(line) >= SHORTEST_SECRET for form in _forms(line)}
        longest_first = sorted(forms, key=lambda it: (-len(it), it))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def remove(self, text: str) -> str:
        """Return the text without the known secrets, and without what looks like one."""
        if self._known is not None:
            text = self._known.sub(LEFT_OUT, text)
        text = _PRIVATE_KEY.sub(LEFT_OUT, text)
        text = _USER_OF_ADDRESS.sub(rf"\g<scheme>{LEFT_OUT}@", text)
        return _NAMED_SECRET.sub(_without_value, without_url_secrets(text))


def _without_value(found: re.Match[str]) -> str:
    quotes = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{quotes}{LEFT_OUT}{quotes}"


def _forms(secret: str) -> Iterator[str]:
    """A secret as it may be written: as it is, in JSON, escaped for a terminal, in a web address."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield escape_unprintable(secret)
    yield quote(secret, safe="")


def _options_of(command: str) -> Iterator[str]:
    """The values of a command's options, one of which may be a password."""
    words = command.split()
    yield from (after for word, after in pairwise(words) if word.startswith("-"))
    yield from (word.partition("=")[2] for word in words if word.startswith("-"))


def _words_of(file: Path) -> set[str]:
    """The lines and words of a file of secrets; none if it cannot be read."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:  # noqa: PTH123
            text = opened.read(SECRET_FILE_BYTES_MAX).decode(errors="replace")
    except (OSError, ValueError):
        return set()
    return {*text.splitlines(), *text.split()}


# --- what is asked ----------------------------------------------------------------------------------------


def _output_of(*command: str) -> str:
    """What a command printed, on both outputs, and its exit status unless that is 0."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words, and no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}\n"
    status = f"exit status {done.returncode}\n" if done.returncode else ""
    return done.stdout.decode(errors="replace") + status


def _decisions(path: Path) -> str:
    if not path.exists():
        return f"{path}: there is no history\n"
    try:
        events = HistoryReader(path).events(limit=DECISIONS_MAX)
    except HistoryUnreadable as error:
        return f"{error}\n"
    return "".join(f"{json.dumps(event, default=str)}\n" for event in events)


def _log_text(log: Path | None) -> str:
    if log is not None:
        try:
            with log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_BYTES_MAX))
                lines = file.read(LOG_BYTES_MAX).decode(errors="replace").splitlines()
        except (OSError, ValueError) as error:
            return f"{log}: {error}\n"
        return "".join(f"{line}\n" for line in lines[-LOG_LINES_MAX:])
    if shutil.which("journalctl") is None:
        return "there is no journalctl here: give the log by --log FILE\n"
    return _output_of("journalctl", "--unit", UNIT, "--lines", str(LOG_LINES_MAX), "--no-pager", "--quiet")


def _versions() -> str:
    libraries: list[str] = []
    with suppress(PackageNotFoundError):
        for needed in distribution(PROGRAM).requires or ():
            name = re.split(r"[^\w.-]", needed, maxsplit=1)[0]
            with suppress(PackageNotFoundError):
                libraries.append(f"{name} {version(name)}\n")
    flux = _output_of("flux", "version") if shutil.which("flux") else "no flux is on PATH\n"
    head = f"{PROGRAM} {version(PROGRAM)}\nPython {sys.version}\n{platform.platform()}\n"
    return head + "".join(dict.fromkeys(libraries)) + flux
