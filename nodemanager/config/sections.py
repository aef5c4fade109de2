"""Read the sections of a site one by one, and collect their faults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from nodemanager.config import clouds as several
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import (
    ENSEMBLE_NAME,
    ENSEMBLE_NAME_ALLOWED,
    HOST_NAME,
    HOST_NAME_ALLOWED,
    NAME,
    NAME_ALLOWED,
    BudgetSettings,
    DisruptionSettings,
    FluxSettings,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    NotifySettings,
    PolicySettings,
    SectionSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    WebSettings,
    allowed_keys,
)

NODE = "Node "
PEER = "Peer "
ENSEMBLE = "Ensemble "
SCHEDULE = "Schedule "

# How sections with names may be named.
_NAMED = {
    NODE: (NAME, NAME_ALLOWED),
    several.NAMED: (ENSEMBLE_NAME, ENSEMBLE_NAME_ALLOWED),
    PEER: (HOST_NAME, HOST_NAME_ALLOWED),
    ENSEMBLE: (ENSEMBLE_NAME, ENSEMBLE_NAME_ALLOWED),
    SCHEDULE: (NAME, NAME_ALLOWED),
}
SECTIONS = (
    "Site",
    "Flux",
    "Cloud",
    credentials.SECTION,
    "Limits",
    "Timing",
    "Policy",
    "Join",
    "Budget",
    "Disruption",
    "Web",
    "Journal",
    "Notify",
    "Simulation",
)

# The sections without a name of their own, but those of clouds, whose keys depend on the provider.
SETTINGS: Mapping[str, type[SectionSettings]] = {
    "Site": SiteSettings,
    "Flux": FluxSettings,
    "Limits": LimitsSettings,
    "Timing": TimingSettings,
    "Policy": PolicySettings,
    "Join": JoinSettings,
    "Budget": BudgetSettings,
    "Disruption": DisruptionSettings,
    "Web": WebSettings,
    "Journal": JournalSettings,
    "Notify": NotifySettings,
    "Simulation": SimulationSettings,
}
_COMMENT = re.compile(r"\s[;#]")

_S = TypeVar("_S", bound=SectionSettings)


class Sections:
    """The sections of one document. ``faults``: all that were found so far. ``folder``: of the site's file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.folder: Path = document.file.parent
        self.faults: list[Fault] = [*document.faults, *_unknown_sections(document)]

    def read(self, name: str, settings: type[_S]) -> _S | None:
        """Read a section's settings. If any key is wrong, add a fault for each wrong key and return None."""
        allowed = allowed_keys(settings)
        entries = self.document.section(name).entries
        for key in entries.keys() - allowed.keys():
            elsewhere = [it for it, other in SETTINGS.items() if it != name and key in allowed_keys(other)]
            nearest = nearest_name(key, allowed) if not elsewhere else ""
            problem = "no such key" + ("" if nearest else f"; the keys are {', '.join(allowed)}")
            if elsewhere:
                problem = f"no such key here: it belongs in [{elsewhere[0]}]"
            # Nobody knows whether the value of an unknown key is a secret.
            self.faults.append(self.document.fault(name, key, problem, nearest, shows_value=False))
        texts = {key: entry.text for key, entry in entries.items() if key in allowed and entry.text is not None}
        try:
            return settings.model_validate(texts)
        except ValidationError as error:
            for detail in error.errors():
                key = str(detail["loc"][0])
                if detail["type"] != "missing":
                    comment = _COMMENT.search(entries[key].written) if key in entries else None
                    advice = ". A comment needs a line of its own" if comment else ""
                    self.fault(name, key, f"{detail['ctx']['error']}{advice}")
                elif key not in entries:  # a key that is there names an unset variable, which is already a fault
                    self.fault(name, key, f"must be given: {allowed[key]}")
            return None

    def named(self, kind: str, settings: type[_S]) -> dict[str, _S]:
        """Read every ``[KIND NAME]``, in the order of the file. One with faults is left out."""
        names = [name for name in self.document.sections if name.startswith(kind)]
        read = {name.removeprefix(kind): self.read(name, settings) for name in names}
        return {name: section for name, section in read.items() if section is not None}

    def fault(self, section: str, key: str, problem: str, nearest: str = "") -> None:
        """Add a fault of a key, or of a section if ``key`` is empty. ``nearest``: what was probably meant."""
        self.faults.append(self.document.fault(section, key, problem, nearest))


def without_credentials(document: Document) -> Document:
    """Return the document as if it had no section of credentials."""
    sections = {name: section for name, section in document.sections.items() if not _is_secret(name)}
    faults = tuple(fault for fault in document.faults if not _is_secret(fault.section))
    return replace(document, sections=sections, faults=faults)


def _is_secret(section: str) -> bool:
    return several.is_cloud_section(section) and section.endswith("Credentials")


def _unknown_sections(document: Document) -> Iterator[Fault]:
    for name in document.sections:
        if _is_secret(name):
            continue
        kind = next((kind for kind in _NAMED if name.startswith(kind)), None)
        if kind is not None and not several.is_misspelt(name):
            pattern, allowed = _NAMED[kind]
            if not pattern.fullmatch(name.removeprefix(kind)):
                yield document.fault(name, "", f"[{kind}NAME] needs a name: {allowed}")
        elif name not in SECTIONS:
            _, _, rest = name.partition(" ")
            named = [kind + (rest or "NAME") for kind in _NAMED]
            misspelt = several.is_misspelt(name)
            nearest = credentials.SECTION if misspelt else nearest_name(name, (*SECTIONS, *named))
            known = ", ".join((*SECTIONS, *(f"{kind}NAME" for kind in _NAMED)))
            problem = "no such section" + ("" if nearest else f"; the sections are {known}")
            yield document.fault(name, "", problem, nearest)
