"""What ``init --provider`` needs of a provider's account."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodemanager.cli.new_site.questions import Questions, Unanswered
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey
from nodemanager.config.price_list import read_bundled_table

CALL_TIMEOUT_S = 60.0
DEFAULT_CLUSTER = "lab"
NODE_PORTS = (8050, 8443)  # rank 0 and the join service, unless the site says otherwise


class Account(ABC):
    """One provider's part of ``init --provider``. Making it may ask for what the survey needs."""

    price_source = ""
    network_intro = "A security group of their own, which both sides need:"
    keys_remedy: str  # what to do if the account refuses the keys, or if there are none
    missing_image: OfferedImage  # written if the account has none. It is valid in a site, and no account has it

    @abstractmethod
    def survey(self) -> Survey:
        """Read what the account offers. Raises :class:`CloudError`."""

    def find_image(self, image_id: str) -> OfferedImage | None:
        """Describe an image that the survey does not list; None if there is none. Raises :class:`CloudError`."""
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
