"""The text of a first site file, from what an account offers and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from nodemanager.cloud.common.survey import OfferedImage, OfferedSize, Survey, cost_per_core
from nodemanager.cloud.providers import cloud_provider
from nodemanager.core.notation import format_bytes

SLOTS_PER_TYPE = 4
LISTED_MAX = 20
STATE_DIR = "/var/lib/flux-node-manager"


@dataclass(frozen=True, slots=True)
class SiteChoices:
    """What a person chose. ``cloud``: the keys of ``[Cloud]`` that only this provider has, in order."""

    provider: str
    cluster: str
    head_address: str
    image: OfferedImage
    sizes: Sequence[OfferedSize]
    cloud: Mapping[str, str]
    credentials: Mapping[str, str] = field(default_factory=dict)
    price_source: str = ""
    state_dir: str = STATE_DIR


def site_text(survey: Survey, chosen: SiteChoices) -> str:
    """The site file: valid, observing, and with a comment for every value that a person may want to change."""
    site = site_section(chosen.provider, chosen.cluster, chosen.head_address, chosen.state_dir)
    parts = (site, _cloud(survey, chosen), _limits(chosen), _nodes(chosen), _other_sizes(survey, chosen))
    return "\n".join(line for part in parts for line in part)


def site_section(provider: str, cluster: str, head_address: str, state_dir: str) -> Iterator[str]:
    """The head of the file, and its sections ``[Site]`` and ``[Flux]``."""
    yield from (
        f"# Written by flux-node-manager init --provider {provider}. doc/settings.md explains every key.",
        "",
        "[Site]",
        "# Every node is tagged with this name.",
        f"cluster = {cluster}",
        f"state_dir = {state_dir}",
        "# observe: log what would be bought, and buy nothing. When you agree with the log, set act.",
        "mode = observe",
        "",
        "[Flux]",
        f"# The socket of rank 0, where init --output {state_dir}/flux puts it.",
        f"uri = local://{state_dir}/flux/run/local-0",
        "# The address of rank 0 in the nodes' network.",
        f"head_address = {head_address}",
        "# Nodes join by ticket, at port 8443 of that address (doc/joining.md).",
        "join = service",
        "",
    )


def _cloud(survey: Survey, chosen: SiteChoices) -> Iterator[str]:
    yield "[Cloud]"
    yield f"provider = {chosen.provider}"
    if len(survey.regions) > 1:
        yield from _wrapped("# The account's regions: ", survey.regions)
    for image in [it for it in survey.images if it != chosen.image][:LISTED_MAX]:
        yield f"# Another image: {image.id} {image.name} {image.created[:10]}".rstrip()
    if not survey.images:
        yield "# The account has no image of its own. The nodes need one with rank 0's version of flux-core."
    if groups := [it for it in survey.security_groups if it != chosen.cloud.get("security_groups")]:
        yield from _wrapped("# The project's other security groups: ", groups[:LISTED_MAX])
    yield from (f"{key} = {value}" for key, value in chosen.cloud.items())
    yield ""
    if chosen.credentials:
        yield "[Cloud Credentials]"
        yield from (f"{key} = {value}" for key, value in chosen.credentials.items())
        yield ""


def _limits(chosen: SiteChoices) -> Iterator[str]:
    slots = SLOTS_PER_TYPE * len(chosen.sizes)
    all_cost = SLOTS_PER_TYPE * sum((price_of(size, chosen) or Decimal(0) for size in chosen.sizes), Decimal(0))
    yield from (
        "[Limits]",
        f"nodes_max = {slots}",
        f"# What {slots} nodes cost, one in each slot below. Lower both to what you want to pay.",
        f"price_per_hour_max = {all_cost or Decimal(1)}",
        "",
    )


def price_of(size: OfferedSize, chosen: SiteChoices) -> Decimal | None:
    """The price that the site gives a size; None if a person must look it up."""
    worth_per_core = cloud_provider(chosen.provider).worth_per_core
    if size.price_per_hour is None and worth_per_core is not None and not size.gpus and not size.note:
        return worth_per_core * size.cores
    return size.price_per_hour


def _nodes(chosen: SiteChoices) -> Iterator[str]:
    provider = cloud_provider(chosen.provider)
    worth_per_core = provider.worth_per_core
    for number, (name, size) in enumerate(zip(type_names(chosen.sizes), chosen.sizes, strict=True)):
        price = price_of(size, chosen)
        yield f"[Node {name}]"
        yield f"size = {size.name}"
        yield "# What a job sees on the node. Declare less, never more, than the node has."
        yield f"cores = {size.cores}"
        if size.gpus:
            yield f"gpus = {size.gpus}"
        if size.note:
            devices = " If these are GPUs, write gpus = and their number." if worth_per_core is not None else ""
            yield f"# {size.note}.{devices}"
        yield f"memory = {format_bytes(size.memory_bytes)}"
        if worth_per_core is not None and price is not None:
            what = f"Set what a node is worth to you; this is {worth_per_core} a core."
            yield f"# {provider.title} has no prices. {what}"
        elif worth_per_core is not None:
            what = "Write what a node is worth to you, and remove the # of the next line."
            yield f"# {provider.title} has no prices. {what}"
        elif price is None:
            yield "# No price list has this size. Look it up, write it here, and remove the # of the next line."
        else:
            yield f"# From {chosen.price_source}. Compare it with your bill."
        yield f"price_per_hour = {price}" if price is not None else "#price_per_hour ="
        yield from provider.billing
        if size.gpus or number:
            yield "# Jobs can require this property, so that small jobs do not start on this type."
            yield f"properties = {name}"
        yield f"slots = {name}[1-{SLOTS_PER_TYPE}]"
        yield ""


def type_names(sizes: Sequence[OfferedSize]) -> list[str]:
    """Names for node types: gpu for those with GPUs, and small, medium, large for the others, by cores."""
    plain = sorted((size for size in sizes if not size.gpus), key=lambda size: (size.cores, size.memory_bytes))
    words = {1: ["cpu"], 2: ["small", "large"], 3: ["small", "medium", "large"]}
    names = words.get(len(plain)) or [f"cpu-{_letters(number)}" for number in range(len(plain))]
    by_size = dict(zip((size.name for size in plain), names, strict=True))
    with_gpus = [size.name for size in sizes if size.gpus]
    gpu_names = ["gpu"] if len(with_gpus) == 1 else [f"gpu-{_letters(number)}" for number in range(len(with_gpus))]
    by_size |= dict(zip(with_gpus, gpu_names, strict=True))
    return [by_size[size.name] for size in sizes]


def _letters(number: int) -> str:
    # A name must not end in a digit, because the slots' numbers follow it.
    return chr(ord("a") + number % 26) * (number // 26 + 1)


def _other_sizes(survey: Survey, chosen: SiteChoices) -> Iterator[str]:
    """The cheapest other sizes for a core, as comments."""
    others = [size for size in survey.sizes if size not in chosen.sizes and size.runs(chosen.image) and size.cores]
    if not others:
        return

    priced = [replace(size, price_per_hour=price_of(size, chosen)) for size in others]
    others = sorted(priced, key=cost_per_core)
    region = survey.region or "the region"
    yield f"# {min(len(others), LISTED_MAX)} of {len(others)} other sizes in {region}, the cheapest per core first:"
    yield f"# {'size':<22} {'cores':>5} {'GPUs':>4} {'memory':>9}  price per hour"
    for size in others[:LISTED_MAX]:
        shown = "no price known" if size.price_per_hour is None else str(size.price_per_hour)
        hardware = f"{size.cores:>5} {size.gpus:>4} {format_bytes(size.memory_bytes):>9}"
        yield f"# {size.name:<22} {hardware}  {shown}  {size.note}".rstrip()
    yield ""


def _wrapped(begin: str, words: Sequence[str]) -> Iterator[str]:
    line = begin + words[0]
    for word in words[1:]:
        if len(line) + len(word) > 110:
            yield line + ","
            line = f"# {word}"
        else:
            line += f", {word}"
    yield line
