"""What an account offers, and what a person chooses of it: of this ``init --provider`` writes a first site file."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from nodemanager.config.price_list import read_bundled_table
from nodemanager.core.ports import Clock

CALL_TIMEOUT_S = 60.0
DEFAULT_CLUSTER = "lab"
NODE_PORTS = (8050, 8443)  # rank 0 and the join service, unless the site says otherwise
CHOICES_SHOWN_MAX = 20

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class OfferedImage:
    """An image. ``architecture``: "" if the provider does not say."""

    id: str
    name: str
    created: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class OfferedNetwork:
    """A network, as a site names it.

    ``subnets``: one (zone, subnet) for each zone. ``security_group``: its default. ``addresses``: as 10.0.0.0/20.
    """

    id: str
    name: str = ""
    subnets: tuple[tuple[str, str], ...] = ()
    security_group: str = ""
    addresses: str = ""


@dataclass(frozen=True, slots=True)
class OfferedSize:
    """A size. ``cores``: physical ones, if the provider tells. ``price_per_hour``: None if no list has it.

    ``note``: what a person must judge, such as devices that may be GPUs.
    """

    name: str
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal | None
    architectures: frozenset[str] = frozenset()
    note: str = ""

    def runs(self, image: OfferedImage | None) -> bool:
        """Whether an image can boot on it."""
        return image is None or not image.architecture or image.architecture in self.architectures


@dataclass(frozen=True, slots=True)
class Survey:
    """One region of an account. Every list has the entry first that a new site should name."""

    region: str
    regions: tuple[str, ...]
    zones: tuple[str, ...]
    images: tuple[OfferedImage, ...]
    networks: tuple[OfferedNetwork, ...]
    sizes: tuple[OfferedSize, ...]
    security_groups: tuple[str, ...] = ()  # if they belong to the project, and not to a network
    unusual_sizes: tuple[OfferedSize, ...] = ()  # never proposed, but used if somebody names one; ``note`` says why


def typical_sizes(sizes: Sequence[OfferedSize]) -> tuple[OfferedSize, ...]:
    """The cheapest size with 2 cores or more, and the cheapest with 16 or more. Without prices: the smallest.

    Each has 1 GiB a core or more, and neither GPUs nor other devices.
    """
    chosen: list[OfferedSize] = []
    usual = [it for it in sizes if not it.gpus and not it.note and it.memory_bytes >= it.cores * _GIB]
    for cores in (2, 16):
        enough = [size for size in usual if size.cores >= cores]
        priced = [size for size in enough if size.price_per_hour is not None]
        if best := min(priced or enough, key=_cost, default=None):
            chosen.append(best)
    return tuple(dict.fromkeys(chosen)) or tuple(sorted(sizes, key=_cost)[:1])


def _cost(size: OfferedSize) -> tuple[Decimal, int, int, str]:
    return (size.price_per_hour or Decimal(0), size.cores, size.memory_bytes, size.name)


def cost_per_core(size: OfferedSize) -> tuple[bool, Decimal, int, str]:
    """Sorts sizes: the cheapest per core first, those without a price last, the smallest first."""
    price = size.price_per_hour
    return (price is None, (price or Decimal(0)) / max(1, size.cores), size.cores, size.name)


# --- asks a person on a terminal to choose. Without one, the options answer, or the first choice does -----


class Unanswered(Exception):
    """An answer is needed, and nobody is there to give it. The message names the option that gives it."""


class Questions:
    """``ask``: shows a prompt and returns the line typed; None if there is no terminal."""

    def __init__(self, ask: Callable[[str], str] | None) -> None:
        self._ask = ask

    @classmethod
    def on_terminal(cls) -> Questions:
        """Ask on the terminal if standard input and standard error are one."""
        return cls(_read_line if sys.stdin.isatty() and sys.stderr.isatty() else None)

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer."""
        return self._ask is not None

    def choose(self, what: str, option: str, given: str | None, choices: Sequence[tuple[str, str]]) -> str:
        """Return the answer: ``given``, or the one typed, or the first choice.

        ``what``: a noun, without an article. ``choices``: each a value and a text about it, the best first. Any
        other value may be given too. Raises ``Unanswered`` if nobody can be asked, and there are no choices.
        """
        if given:
            return given
        if self._ask is not None:
            return self._choose_on_terminal(self._ask, what, choices)
        if not choices:
            raise Unanswered(f"give {option}: the {what}")
        return choices[0][0]

    @staticmethod
    def _choose_on_terminal(ask: Callable[[str], str], what: str, choices: Sequence[tuple[str, str]]) -> str:
        for number, (value, text) in enumerate(choices[:CHOICES_SHOWN_MAX], 1):
            sys.stderr.write(f"  {number:>2}  {value}  {text}".rstrip() + "\n")
        hidden = len(choices) - CHOICES_SHOWN_MAX
        if hidden > 0:
            sys.stderr.write(f"      and {hidden} more\n")
        default = f" [{choices[0][0]}]" if choices else ""
        while True:
            typed = ask(f"{what.capitalize()}{default}: ").strip()
            if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(choices):
                return choices[int(typed) - 1][0]
            if typed or choices:
                return typed or choices[0][0]


def _read_line(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise Unanswered("the input ended before the last question")
    return line


# --- asks an account --------------------------------------------------------------------------------------


class Account(ABC):
    """One provider's part of ``init --provider``. Making it may ask for what the survey needs."""

    price_source = ""
    network_intro = "A security group of their own, which both sides need:"
    keys_remedy: str  # what to do if the account refuses the keys, or if there are none
    missing_image: OfferedImage  # written if the account has none. It is valid in a site, and no account has it

    @abstractmethod
    def survey(self, clock: Clock) -> Survey:
        """Read what the account offers. Raises :class:`CloudError`."""

    def find_image(self, image_id: str, clock: Clock) -> OfferedImage | None:
        """Describe an image that the survey does not list; None if there is none. Raises :class:`CloudError`."""
        del clock
        return OfferedImage(image_id, "")

    @abstractmethod
    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        """The keys of ``[Cloud]`` after ``provider``."""

    def credentials(self) -> dict[str, str]:
        """The keys of ``[Cloud Credentials]``. A secret is the name of its environment variable."""
        return {}

    def write_beside(self, site_file: Path, cluster: str) -> Iterator[str]:
        """Write what belongs to the site beside its file, and say what was written."""
        del site_file, cluster
        yield from ()

    @abstractmethod
    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        """The provider's commands that let nodes reach rank 0 and the join service."""


def describe_price_list(provider: str) -> str:
    """The source and the age of the bundled prices."""
    table = read_bundled_table(provider, {})
    return f"{table.source} of {table.updated}"


def choose_region(
    given: str | None, environment: Mapping[str, str], variables: tuple[str, ...], usual: str, questions: Questions
) -> str:
    """The region of the option, of the first variable that is set, or of a person. Raises ``Unanswered``."""
    found = given or next((environment[name] for name in variables if environment.get(name)), None)
    if found is None and not questions.can_ask:
        raise Unanswered(f"give --region, such as {usual}, or set {variables[0]}")
    return questions.choose("region", "--region", found, [(usual, "")])
