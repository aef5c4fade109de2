"""``init --provider``: survey the account, ask what the options leave open, and write the site file."""

from __future__ import annotations

import argparse
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from nodemanager.cli.new_site.site_text import STATE_DIR, SiteChoices, site_text
from nodemanager.cli.new_site.static import choose_hosts, host_site_text, script_of
from nodemanager.cloud.common.survey import (
    DEFAULT_CLUSTER,
    Account,
    OfferedImage,
    OfferedNetwork,
    OfferedSize,
    Questions,
    Survey,
    cost_per_core,
    typical_sizes,
)
from nodemanager.cloud.providers import cloud_provider
from nodemanager.cloud.static.survey import survey_hosts
from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError
from nodemanager.config.text.ini import nearest_name
from nodemanager.core.nodes import FailureKind
from nodemanager.core.notation import format_bytes
from nodemanager.core.ports import Clock, CloudError, unforeseen_as_cloud_error
from nodemanager.service.assembly.ports import SystemClock

DEFAULT_FILE = "site.ini"
_SITE_MODE = 0o600
_SCRIPT_MODE = 0o755


class NewSiteError(Exception):
    """No site file was written. The message says why."""


def write_new_site(
    chosen: argparse.Namespace,
    questions: Questions,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Write the site file and what belongs to it. Raises ``Unanswered`` and ``NewSiteError``."""
    file = Path(chosen.output or DEFAULT_FILE).absolute()
    _check_absent(file, file.with_suffix(".policy.json"))
    provider = cloud_provider(chosen.provider)
    if provider.own_hosts:
        _write_site_of_hosts(file, chosen, questions, say)
        return
    account = provider.account(chosen, questions, environment)
    clock = SystemClock()
    try:
        with unforeseen_as_cloud_error():
            survey = account.survey(clock)
    except CloudError as error:
        remedy = f". {account.keys_remedy}" if error.kind is FailureKind.CREDENTIALS else ""
        raise NewSiteError(f"{error.detail}{remedy}") from error
    image = _choose_image(survey, chosen.image, account, questions, clock)
    network = _choose_network(survey, chosen.network, questions)
    sizes = _choose_sizes(survey, image, chosen.size, questions)
    address = questions.choose("address of rank 0", "--head-address", chosen.head_address, [(own_address(), "")])
    cluster = chosen.cluster or DEFAULT_CLUSTER
    choices = SiteChoices(
        chosen.provider,
        cluster,
        address,
        image,
        sizes,
        account.cloud_keys(image, network),
        account.credentials(),
        account.price_source,
    )
    _write(file, site_text(survey, choices))
    say(f"Written: {file}, which observes and buys nothing.")
    for line in account.write_beside(file, cluster):
        say(line)
    say(f"Nodes must reach rank 0 and the join service. {account.network_intro}")
    for command in account.network_commands(cluster, network):
        say(f"  {command}")
    missing_image = choices.image.id if image == account.missing_image else ""
    for line in _next_steps(file, "creates one node, and terminates it", missing_image):
        say(line)


def _write_site_of_hosts(
    file: Path, chosen: argparse.Namespace, questions: Questions, say: Callable[[str], None]
) -> None:
    hosts = choose_hosts(chosen, questions, survey_hosts, own_address())
    script = file.parent / hosts.way.script if hosts.way.script else None
    if script is not None:
        _check_absent(script)
    _write(file, host_site_text(hosts))
    say(f"Written: {file}, which observes and wakes nothing.")
    if script is not None:
        _write(script, script_of(hosts.way), _SCRIPT_MODE)
        say(f"Written: {script}, which its commands run. Change it to fit your hosts.")
    say("What the hosts need before one can join: doc/clouds/static.md, How a host joins.")
    for line in _next_steps(file, "wakes one host, and puts it to sleep"):
        say(line)


def _check_absent(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise NewSiteError(f"{path} exists, and nothing is overwritten: name another file with --output")
        if not path.parent.is_dir():
            raise NewSiteError(f"{path.parent} is no folder: create it, or name another file with --output")


def _choose_image(
    survey: Survey, given: str | None, account: Account, questions: Questions, clock: Clock
) -> OfferedImage:
    by_name = {**{image.name: image for image in survey.images}, **{image.id: image for image in survey.images}}
    if given is None and not survey.images and not questions.can_ask:
        return account.missing_image
    offered = [(image.id, f"{image.name} {image.created[:10]}".strip()) for image in survey.images]
    answer = questions.choose("image", "--image", given, offered)
    if answer in by_name:
        return by_name[answer]
    try:
        with unforeseen_as_cloud_error():
            found = account.find_image(answer, clock)
    except CloudError as error:
        raise NewSiteError(f"--image {answer}: {error.detail}") from error
    if found is None:
        raise NewSiteError(f"--image {answer}: {survey.region or 'the region'} has no such image")
    return found


def _choose_network(survey: Survey, given: str | None, questions: Questions) -> OfferedNetwork:
    by_name = {**{it.name: it for it in survey.networks}, **{it.id: it for it in survey.networks}}
    if given is not None and given not in by_name:
        known = ", ".join(it.id for it in survey.networks) or "none"
        raise NewSiteError(f"--network {given}: there is no such network. The account has {known}")
    if not survey.networks:
        return OfferedNetwork("")
    offered = [(it.id, it.name or ", ".join(zone for zone, _ in it.subnets)) for it in survey.networks]
    answer = questions.choose("network", "--network", given, offered)
    if answer not in by_name:
        raise NewSiteError(f"there is no network {answer}")
    return by_name[answer]


def _choose_sizes(
    survey: Survey, image: OfferedImage, given: Sequence[str] | None, questions: Questions
) -> list[OfferedSize]:
    fitting = [size for size in survey.sizes if size.runs(image)]
    by_name = {size.name: size for size in (*survey.unusual_sizes, *survey.sizes)}
    names: Sequence[str] = given or ()
    if not names:
        usual = [size.name for size in typical_sizes(fitting)]
        if not usual:
            raise NewSiteError(
                "the account offers no size on which the image runs: choose others by --image, --size"
            )
        names = usual
        if questions.can_ask:
            shown = [(", ".join(usual), "; ".join(_describe(by_name[name]) for name in usual))]
            shown += [(size.name, _describe(size)) for size in sorted(fitting, key=cost_per_core)]
            typed = questions.choose("sizes (a number, or names with commas)", "--size", None, shown)
            names = [name.strip() for name in typed.split(",")]
    for name in names:
        if name not in by_name:
            nearest = nearest_name(name, by_name)
            hint = f": did you mean {nearest}?" if nearest else ""
            raise NewSiteError(f"--size {name}: {survey.region or 'the region'} offers no such size{hint}")
        if not by_name[name].runs(image):
            raise NewSiteError(
                f"--size {name}: it cannot boot {image.id}, whose architecture is {image.architecture}"
            )
    return [by_name[name] for name in dict.fromkeys(names)]


def _describe(size: OfferedSize) -> str:
    gpus = f", {size.gpus} GPUs" if size.gpus else ""
    price = f", {size.price_per_hour} per hour" if size.price_per_hour is not None else ""
    return f"{size.cores} cores{gpus}, {format_bytes(size.memory_bytes)}{price}"


def own_address() -> str:
    """The address that this machine's packets leave from; the loopback's if there is no network."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of RFC 5737. Connecting UDP sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _write(file: Path, text: str, mode: int = _SITE_MODE) -> None:
    with file.open("x", encoding="utf-8") as written:
        file.chmod(mode)
        written.write(text)


def _next_steps(file: Path, effect_of_test: str, missing_image: str = "") -> Iterator[str]:
    try:
        load_site(file)
    except ConfigError as error:
        yield "Complete the site file:"
        yield from (f"  {fault}" for fault in error.faults)
    if missing_image:
        yield (
            f"The account has no image of its own. Build one with rank 0's version of flux-core, and replace "
            f"{missing_image} in the site file."
        )
    site = shlex.quote(str(file))
    yield "Then, as the user who will own the instance and the site file:"
    yield f"  flux-node-manager check --online --config {site}    # until rank 0 runs, its lines are faults"
    yield f"  flux-node-manager cloud-test --config {site}    # {effect_of_test}"
    bootstrap = f"{STATE_DIR}/flux"
    yield f"  flux-node-manager init --config {site} --output {bootstrap}    # prints how to start rank 0"
    yield f"  flux-node-manager --config {site}    # runs the manager, which observes"
