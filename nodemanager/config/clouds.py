"""The clouds of a site: ``[Cloud]``, which is called ``default``, and each ``[Cloud NAME]``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nodemanager.config.provider import rules_of
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, IniSection, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, TypeName

SECTION = "Cloud"
NAMED = "Cloud "  # followed by the name
_NODE = "Node "
_CREDENTIALS = credentials.SECTION.removeprefix(SECTION)

# Of two clouds of one provider, what tells their accounts apart, besides the credentials.
_ACCOUNT_KEYS = ("region", "endpoint", "auth_url", "project", "resource_group")


@dataclass(frozen=True, slots=True)
class CloudSection:
    """A cloud's name, and the name of its section."""

    name: CloudName
    section: str

    @property
    def credentials(self) -> str:
        """The section of its credentials."""
        return self.section + _CREDENTIALS

    def in_own_words(self, text: str) -> str:
        """A text about this cloud as if it were the only one, with the sections as they are in the file."""
        text = text.replace(f"[{SECTION}]", f"[{self.section}]")
        return text.replace(f"[{credentials.SECTION}]", f"[{self.credentials}]")


def section_of(name: CloudName) -> CloudSection:
    """The section of a cloud."""
    return CloudSection(name, SECTION if name == DEFAULT_CLOUD else NAMED + name)


def is_cloud_section(name: str) -> bool:
    """Whether a section belongs to one cloud, be it its own or that of its credentials."""
    return name == SECTION or (name.startswith(NAMED) and not is_misspelt(name))


def is_misspelt(name: str) -> bool:
    """Whether a section was probably meant to be ``[Cloud Credentials]``. No cloud may have such a name."""
    rest = name.removeprefix(NAMED) if name.startswith(NAMED) else ""
    return rest.lower().startswith("cred") and name != credentials.SECTION


def cloud_sections(document: Document) -> list[CloudSection]:
    """The clouds of a site, ``[Cloud]`` first. A site without any is a site that lacks ``[Cloud]``."""
    own = (it for it in document.sections if is_cloud_section(it) and not it.endswith(_CREDENTIALS))
    names = [it for it in own if it != SECTION]
    named = [section_of(CloudName(it.removeprefix(NAMED))) for it in names]
    plain = {SECTION, credentials.SECTION} & document.sections.keys() or not named
    return [section_of(DEFAULT_CLOUD), *named] if plain else named


def document_of(cloud: CloudSection, document: Document) -> Document:
    """The document as if this cloud were the only one."""
    own = {cloud.section: SECTION, cloud.credentials: credentials.SECTION}
    sections: dict[str, IniSection] = {}
    for name, section in document.sections.items():
        if name in own:
            sections[own[name]] = replace(section, name=own[name])
        elif not is_cloud_section(name):
            sections[name] = section
    return replace(document, sections=sections)


def in_own_words(fault: Fault, cloud: CloudSection) -> Fault:
    """A fault of :func:`document_of`, as it is in the file."""
    named = {SECTION: cloud.section, credentials.SECTION: cloud.credentials}
    return replace(
        fault, section=named.get(fault.section, fault.section), problem=cloud.in_own_words(fault.problem)
    )


def name_faults(document: Document, clouds: Iterable[CloudSection]) -> Iterator[Fault]:
    """Find credentials of a cloud that is not there, and names that mean something else."""
    known = {it.credentials for it in clouds}
    for name in document.sections:
        if is_cloud_section(name) and name.endswith(_CREDENTIALS) and name not in known:
            problem = f"there is no [{name.removesuffix(_CREDENTIALS)}]"
            yield document.fault(name, "", problem, nearest_name(name, known))
        if name == NAMED + DEFAULT_CLOUD:
            yield document.fault(name, "", f"{DEFAULT_CLOUD} is the name of [Cloud] itself: give this one another")


def find_homes(
    document: Document, nodes: Mapping[TypeName, NodeSettings], clouds: Iterable[CloudSection]
) -> tuple[dict[TypeName, CloudName], list[Fault]]:
    """Find the cloud of each node type, and the faults of those that name none."""
    names = [it.name for it in clouds]
    known = ", ".join(names)
    homes: dict[TypeName, CloudName] = {}
    faults: list[Fault] = []
    for name, node in nodes.items():
        if node.cloud and node.cloud not in names:
            problem = f"there is no such cloud; the site has {known}"
            faults.append(document.fault(_NODE + name, "cloud", problem, nearest_name(node.cloud, names)))
        elif node.cloud or len(names) == 1 or DEFAULT_CLOUD in names:
            homes[name] = CloudName(node.cloud) if node.cloud else names[0]
        else:
            faults.append(document.fault(_NODE + name, "cloud", f"must be given: one of {known}"))
    if not faults and nodes:
        faults += [
            document.fault(it.section, "", f"no [Node NAME] has cloud = {it.name}: add one, or remove the section")
            for it in clouds
            if it.name not in homes.values()
        ]
    return homes, faults


def faults_of_several(
    document: Document,
    clouds: Mapping[CloudSection, CloudSettings],
    secrets: Mapping[CloudName, Mapping[str, object]],
) -> Iterator[Fault]:
    """Find the faults of a site with several clouds."""
    accounts: dict[object, CloudSection] = {}
    for cloud, settings in clouds.items():
        if rules_of(settings).is_alone:
            problem = "nodes of this provider cannot be mixed with those of another cloud: give a site of its own"
            yield document.fault(cloud.section, "provider", problem)
        if not rules_of(settings).has_account:
            continue
        where = [settings.provider, *(getattr(settings, key) for key in _ACCOUNT_KEYS)]
        account = (*where, *sorted((key, str(hash(value))) for key, value in secrets.get(cloud.name, {}).items()))
        first = accounts.setdefault(account, cloud)
        if first is not cloud:
            problem = f"the same account and region as [{first.section}]: one section is enough for both"
            yield document.fault(cloud.section, "provider", problem)
