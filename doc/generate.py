# ruff: noqa: INP001 - a folder of pages, and no package
"""Write the pages of this folder that are made from the code: ``python -m doc.generate``, from the project's root.

``settings.md`` comes from ``nodemanager/config/text/settings.py`` and the meanings below; ``lifecycle.md`` from the
table in ``nodemanager/planner/state/lifecycle.py`` and the comments beside it; the man pages and the bash
completion from those settings and the parser of ``nodemanager/cli/main.py``, by ``manuals.py``.
``tests/project/test_docs.py`` compares them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic.fields import FieldInfo

from doc import manuals
from nodemanager.cli import main
from nodemanager.config.text.settings import (
    BudgetSettings,
    CloudSettings,
    FluxSettings,
    JoinSettings,
    LimitsSettings,
    NodeSettings,
    PolicySettings,
    SectionSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    WebSettings,
    allowed_keys,
)
from nodemanager.core import nodes
from nodemanager.core.notation import format_fsd
from nodemanager.planner.state import lifecycle

FOLDER = Path(__file__).parent

SECTIONS: Mapping[str, type[SectionSettings]] = {
    "Site": SiteSettings,
    "Flux": FluxSettings,
    "Cloud": CloudSettings,
    "Limits": LimitsSettings,
    "Timing": TimingSettings,
    "Policy": PolicySettings,
    "Join": JoinSettings,
    "Budget": BudgetSettings,
    "Web": WebSettings,
    "Simulation": SimulationSettings,
    "Node NAME": NodeSettings,
}

FOR_PROVIDERS = "For providers that have such a thing. The local and the simulated one ignore it."
OF_THE_CLOUD = "Not given: that of `[Cloud]`."

# What a key means, where its name and what may be written do not say all of it.
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "Site": {
        "cluster": "The cluster's name. Every node carries it as a tag, by which nodes are listed: it must stay "
        "what it is while one stands.",
        "cluster_uuid": "Tells the nodes of this cluster from those of another one of its name. `init` makes it "
        "and keeps it in `state_dir/cluster-uuid`, where it is found; a simulated Flux needs none.",
        "state_dir": "Where the UUID and the nodes of a local cloud lie. Relative to the file's folder.",
        "mode": "`observe`: decide, say what would be done, change nothing. `act`: do it. A node type may have its "
        "own.",
    },
    "Flux": {
        "uri": "Leads to rank 0: `local://PATH`, of its socket, a path being relative to the file's "
        "folder; or `simulated`. Not given: what `FLUX_URI` names, else the system instance.",
        "head_host": "Rank 0's name in the bootstrap table. No slot may have it.",
        "head_address": "Where nodes reach rank 0. Must be given, unless Flux is simulated. A loopback address is "
        "bound as it is; for any other, rank 0 listens on all interfaces.",
        "port": "The TCP port on which rank 0 waits for nodes.",
        "join": "How a node comes by the bootstrap. `directory`: it reads `bootstrap_dir`, on a file system that "
        "it shares with rank 0. `service`: it redeems a ticket at the join service. `image`: its image holds it. "
        "`flub`: it asks rank 0, which needs a flux-core with pull request 5184 ([joining.md](joining.md)).",
        "bootstrap_dir": "What `init` wrote, as the nodes see it. Relative to the file's folder; not given: "
        "`flux` in `state_dir`.",
        "head_cores": "What is declared for rank 0, which runs no jobs.",
        "image_start": "With `join = image`: what a node's shell runs at boot. `$SLOT` is the slot, by whose "
        "name its broker is to join.",
        "boot_server": "With `join = flub`: a URI by which nodes reach rank 0, such as `ssh://HOST/PATH`. Not "
        "given: `uri`.",
        "restart_command": "By which `resize` restarts rank 0, such as `systemctl restart flux`; it runs without a "
        "shell. Not given: `resize` ends rank 0, and waits for whoever supervises it to start it again.",
    },
    "Cloud": {
        "provider": "`local`: nodes are processes on this machine. `simulated`: nodes are values; for a simulated "
        "Flux only. `ec2`, `openstack`, `gce`, `azure`: see [clouds.md](clouds.md). `flux`: nodes are jobs of an "
        "outer Flux instance, for an instance that runs inside it.",
        "outer_uri": "For `flux`: leads to the outer instance. Not given: what `FLUX_URI` names.",
        "image": FOR_PROVIDERS,
        "network": FOR_PROVIDERS + " `openstack`: by name or id, several with commas between.",
        "zones": FOR_PROVIDERS + " `ec2` and `gce` try them in their order (for `ec2`, unless given, those of "
        "`subnets`); `openstack` and `azure` take one.",
        "region": "For `ec2`: must be given. For `openstack`: needed if its catalog has several. For `azure`: the "
        "location.",
        "endpoint": "For `ec2`: where its API answers. Not given: the region's own.",
        "subnets": "For `ec2`: the subnet that nodes are put into, for each zone. Not given: the zone's default "
        "subnet.",
        "security_groups": "For `ec2`: their ids; for `openstack`: by name. Not given: the default one.",
        "key_name": "For `ec2` and `openstack`: the key pair to log in by. Not given: none.",
        "instance_profile": "For `ec2`: the name or ARN of the role that nodes have. Not given: none.",
        "auth_url": "For `openstack`: the identity service.",
        "microversion": "For `openstack`: of Nova's API.",
        "config_drive": "For `openstack`: whether servers get their user-data from a drive, where the metadata "
        "service cannot be reached.",
        "project": "For `gce`: the project's id.",
        "resource_group": "For `azure`: the one in which nodes are made.",
        "ssh_public_key": "For `azure`: who may log in to a node, as `azureuser`.",
        "calls_in_flight_max": "Creates and destroys under way at once. Each has a thread of its own.",
        "creates_per_s": "The rate at which create calls are let out in the long run.",
        "creates_burst": "How many of them may go out together.",
        "boot_delay": "For `local`: how long a node is pending before it runs its user-data.",
        "call_timeout": "How long the answer to a call, of the cloud or of Flux, is waited for. Then its subject "
        "is looked at again; the call is not cut off.",
    },
    "Limits": {
        "nodes_max": "Nodes that cost, or may cost, at once: those that come and those that go are counted.",
        "nodes_min": "Nodes that are kept though no job needs them. What is short is bought of the cheapest type.",
        "price_per_hour_max": "What all those nodes may cost an hour together, in the currency of the prices "
        "below.",
    },
    "Timing": {
        "settle": "Nothing is bought until no new job has come for so long.",
        "settle_max": "Nor is it put off for longer than this.",
        "probe": "Flux is asked for news at least so often; so is the cloud while a node is on its way in or out.",
        "relist": "The queue and the cloud are read whole at least so often. A destroy is repeated at this pace "
        "until the node is gone.",
        "sweep": "How often the provider is asked for what nodes left behind: volumes, interfaces, addresses. What "
        "two sweeps in a row find is deleted; in mode `act` only.",
        "boot_timeout": "From the order of a node until its rank must be online. Then the node is given up.",
        "rejoin_timeout": "How long the broker of a node may be away before the node is given up.",
        "stale_after": "Nothing is decided on a source that has not answered for so long. Longer than `probe` and "
        "`relist`.",
        "orphan_grace": "How long a node of ours that no launch owns, and whose slot is not free to take it back, "
        "is left alone before it is destroyed.",
        "create_grace": "For so long a node must be missing, beside `absences`, before its create is taken to "
        "have never happened.",
        "absences": "Lists in a row that must lack a node before its absence counts.",
        "boot_retry": "Once boots of a type and image failed `boot_failures_max` times in a row: after so long "
        "one node of it is tried again; twice as long after each that fails, four hours at the most.",
        "safe_mode_max": "How long it is doubted that a large part of the fleet is away (`unready_max`). Then it "
        "is believed.",
        "housekeeping_max": "How long the housekeeping after a job may take on a node. Then it is killed there, "
        "and the node goes.",
        "manager_silence_max": "With `join = service`: how long a node hears of no manager before it ends itself, "
        "once no job runs there.",
    },
    "Policy": {
        "idle_confirmations": "Looks in a row that must find a node idle before it may go.",
        "idle_timeout": "A node whose billing window is no longer than this goes at the end of a window once it "
        "was without work for so long. For one with a longer window only the end of its window counts.",
        "queue_policy": "`fifo`: a job that cannot start holds up all behind it, as under sched-simple; no node is "
        "bought or kept for those. `backfill`: those behind it may go first.",
        "stop_lead": "How long before the end of a paid window an idle node is sent away, until it is known how "
        "long that takes: nine in ten of the latest ends of its type.",
        "patience": "Room that a running job must leave within its time is waited for where it comes sooner than "
        "a new node would, and so much longer.",
        "packing": "What shares a node that is bought. `spread`: all that fits, for the fewest nodes. `walltime`: "
        "jobs that may run for about as long, so that nodes empty; Flux places jobs without regard to it.",
        "misfit": "What becomes of a node that has less than its slot declares ([slots.md](slots.md)). `drain`: it "
        "gets no work and goes, and its type is not bought for a while. `accept`: nothing. `retype`: as `drain`, "
        "and the instance declares the type as it is. For `local`, unless given, `accept`.",
        "boot_failures_max": "So many boots in a row of a node type and image that fail stop its being bought.",
        "unready_max": "Where a larger share than this of the nodes that were up, and more than three, are away or "
        "hang at once, nothing is done: safe mode.",
    },
    "Web": {
        "listen": "Where status, control and the dashboard are served. `unix`: on the socket `web.sock` in "
        "`state_dir`, which only its owner may use; a path is relative to the file's folder. `HOST:PORT`: on TCP, "
        "for everybody who can reach it. `off`: nowhere, and the verbs that ask the service do not work.",
        "token_file": "What those who steer must know. Made, readable by its owner only, where it is missing. "
        "Relative to the file's folder; not given: `token` in `state_dir`.",
        "hosts": "Names by which the service may be called over TCP, beside `localhost` and the address it listens "
        "on. A request for another host is refused.",
        "jobs_shown_to": "Whom the list of jobs is shown, and why each waits. `owner`: who uses the socket or has "
        "the token; others see counts. `everybody`: everybody.",
    },
    "Join": {
        "listen": "Where the join service listens. Not given, and rank 0 on a loopback address: there.",
        "addresses": "Where nodes look for it, tried in turn. Not given: `head_address`, and the port of `listen`.",
        "material_dir": "Keys, certificates, and what the manager and the service leave for each other. Relative "
        "to the file's folder; not given: `join` in `state_dir`.",
        "flux_version": "What nodes must have, exactly. Not given: that of the `flux` on the service's PATH.",
        "check_source": "Whether a ticket is taken only from an address that the provider shows for its node. Not "
        "with NAT in between.",
        "destroy_on_replay": "Whether a node whose ticket was shown by two is drained and destroyed, once idle. "
        "It is an error in the log in any case.",
        "renew": "How often a node asks whether its slot is still its own: so late it hears of new addresses.",
        "requests_per_s": "What one source address may ask in the long run. Raise it where many nodes share one.",
        "requests_burst": "How many of them may come together.",
        "client": "The path of flux-node-join in the nodes' image. Not given: it is fetched from the service.",
        "flux": "The nodes' flux: a name on their PATH, or a path.",
        "node_user": "Who runs the broker on a node; must have the uid that owns the instance. Not given: whoever "
        "runs the user-data.",
        "node_dir": "Where a node keeps what it was given. For `local`, unless given, `flux-node-join` in the "
        "folder in which it begins.",
        "hosts_file": "Where slot names and their addresses are written. For `local`, unless given, `hosts` in "
        "that folder.",
        "poweroff": "How a node ends itself. For `local`, unless given, it kills its own init.",
        "systemd": "Whether a node's systemd, where it runs one, keeps the client running, across reboots too. "
        "For `local`, unless given, no.",
    },
    "Budget": {
        "per_day": "What all nodes may cost in a day (UTC), by the forecast: what is paid, and what jobs that run "
        "or have their nodes may still take, as far as they have a time limit. From nine "
        "tenths on only the types with the cheapest cores are bought, at the whole none; "
        "once so much is spent, idle nodes go, and those at work take no new job. The sum lies in Flux's KVS: "
        "a restart knows it.",
        "per_month": "The same for a calendar month (UTC).",
        "user_per_day": "What each user's jobs may cost in a day, by their share of the cores; those that run or "
        "wait count for as long as they may run. Beyond it no node is bought for that user.",
        "user_per_month": "The same for a calendar month.",
        "queue_per_day": "The same for each queue, in a day.",
        "queue_per_month": "The same for each queue, in a calendar month.",
    },
    "Simulation": {
        "time_scale": "Simulated seconds in one of ours.",
        "seed": "Of all that is drawn.",
        "workload": "What is submitted. There is one, `builtin`; it repeats every two simulated hours.",
        "boot_delay": "How long a node takes to boot, a fifth more or less.",
        "stop_delay": "How long a node takes to end, a fifth more or less.",
        "boot_failures": "For `simulate`: the share of nodes that end instead of joining.",
        "spot_reclaims_per_hour": "For `simulate`: how often an hour the provider takes a spot node back; its jobs "
        "begin anew.",
        "capacity": "For `simulate`: how many nodes the provider has at once; beyond, a create is refused. 0: as "
        "many as are asked for.",
    },
    "Node NAME": {
        "size": "The provider's own name for the type. Not given: NAME.",
        "cores": "What is declared to Flux for each slot. No node is held to it, so it must be true.",
        "gpus": "The same for GPUs.",
        "memory": "Told to the provider. Flux's R has no memory, and its simple scheduler heeds none.",
        "price_per_hour": "In any currency, the same for all. 0 is a price. It is an estimate: no disks, no "
        "traffic.",
        "billing": "The step in which what has begun is paid. `free` costs nothing more by staying.",
        "billing_minimum": "What is paid at the least, however short a node's life.",
        "market": "`spot` on `ec2` and `gce`: cheaper, and may be taken away. `openstack` and `azure` have none, "
        "nor have the local and the simulated cloud.",
        "properties": "Declared to Flux, for jobs and queues to ask for.",
        "slots": "The placeholder ranks of this type. `init` numbers them in the order of the file, from rank 1 "
        "on.",
        "spares": "Nodes that stand ready beyond what jobs need, so that the next job starts at once. They cost.",
        "mode": "`act`: nodes of this type are bought and sent away. `observe`: it is only said; what stands "
        "stays. Not given: that of `[Site]`.",
        "image": OF_THE_CLOUD,
        "zones": OF_THE_CLOUD,
        "network": OF_THE_CLOUD,
        "subnets": OF_THE_CLOUD,
        "security_groups": OF_THE_CLOUD,
        "key_name": OF_THE_CLOUD,
        "instance_profile": OF_THE_CLOUD,
    },
}

SETTINGS_HEAD = """\
# Settings

<!-- Made by `python -m doc.generate` from nodemanager/config/text/settings.py. Do not edit. -->

A site is one INI file. `flux-node-manager check --config site.ini` reads it and names every fault at once, each
with its line; the exit status is then 78. A key that is not known is a fault.

Durations are Flux's: `90s`, `5m`, `1.5h`, `1h30m`; a number alone is seconds. Sizes have a binary unit: `512MiB`,
`4GiB`. Slots are a host list: `cloud[1-4],gpu[01-02]`. Comments stand on lines of their own. `${NAME}` is a
variable of the environment, in any value.

`[Site]`, `[Cloud]` and `[Limits]` hold keys that must be given; so does every `[Node NAME]`, of which there is at
least one. A real Flux needs `head_address` too.
"""

CREDENTIALS = """\
## [Cloud Credentials]

Who calls, for providers that ask. `ec2` takes `access_key_id`, `secret_access_key` and `session_token`
([clouds/ec2.md](clouds/ec2.md)); `openstack` takes `username`, `password` and `project`, or
`application_credential_id` and `application_credential_secret`; `gce` takes `service_account` and `key`, or
neither; `azure` takes `tenant_id`, `subscription_id`, `client_id` and `client_secret`; the local and the simulated
cloud ask nobody. A secret is written as `KEY = ${NAME}`, or as `KEY_file = PATH` of a file that only its owner can
read. A key whose name says that it is a secret (`secret`, `password`, `passwd`, `passphrase`, `token`, `key`) may
stand in the site itself only if nobody else can read that. No value of this section is printed anywhere.
"""

LIFECYCLE_HEAD = """\
# How a node lives

<!-- Made by `python -m doc.generate` from nodemanager/planner/state/lifecycle.py. Do not edit. -->

A node begins with the lease of a slot, and ends when that lease has ended. There is no other way than those below:
a move that the table lacks is a bug, and ends the process with the node's story. What is *seen* may be old news, so
it is compared with the table first, and changes nothing where there is no row; what is *decided* is never compared.
"""


def pages() -> Mapping[str, str]:
    """Each page's name and text."""
    parser, verbs = main._parser(), {name: verb.__doc__ or "" for name, verb in main.VERBS.items()}  # noqa: SLF001
    settings = {section: [*_settings(section, of)] for section, of in SECTIONS.items()}
    return {
        "settings.md": settings_page(),
        "lifecycle.md": lifecycle_page(),
        "man/flux-node-manager.1": manuals.command_page(parser, verbs),
        "man/site.ini.5": manuals.site_page(settings, CREDENTIALS.partition("\n\n")[2]),
        "../config/bash-completion/flux-node-manager": manuals.bash_completion(parser, verbs),
    }


def _settings(section: str, settings: type[SectionSettings]) -> Iterator[manuals.Setting]:
    for key in allowed_keys(settings):
        _, meaning, written_as, default = _setting(section, settings, key)
        yield manuals.Setting(key, meaning, written_as, default)


# --- settings ---------------------------------------------------------------------------------------------


def settings_page() -> str:
    parts = [SETTINGS_HEAD]
    for section, settings in SECTIONS.items():
        rows = [_setting(section, settings, key) for key in allowed_keys(settings)]
        parts.append(f"## [{section}]\n\n" + _table(("key", "meaning", "written as", "default"), rows))
        if section == "Cloud":
            parts.append(CREDENTIALS)
    return "\n".join(parts)


def _setting(section: str, settings: type[SectionSettings], key: str) -> tuple[str, ...]:
    name, field = next(
        (name, field) for name, field in settings.model_fields.items() if key in (name, field.validation_alias)
    )
    return f"`{key}`", MEANINGS[section][key], allowed_keys(settings)[key], _default(name, field)


def _default(name: str, field: FieldInfo) -> str:
    """The default as one would write it in the file."""
    if field.is_required():
        return "must be given"
    value = field.default
    if isinstance(value, float):
        is_duration = field.validation_alias is not None and name.endswith("_s")
        return f"`{format_fsd(value)}`" if is_duration else f"`{value:g}`"
    return f"`{value}`" if value or isinstance(value, int) else "none"


# --- the lifecycle ----------------------------------------------------------------------------------------


def lifecycle_page() -> str:
    states = _comments_of_members(Path(nodes.__file__), "NodeState")
    events = _comments_of_members(Path(lifecycle.__file__), "Event")
    moves = _comments_of_rows(Path(lifecycle.__file__), "NEXT_STATE")
    rows = [
        (str(state), str(event), str(after), moves[index])
        for index, ((state, event), after) in enumerate(lifecycle.NEXT_STATE.items())
    ]
    drawn = [f"    {state} --> {after} : {event}" for state, event, after, _ in rows]
    return "\n".join(
        (
            LIFECYCLE_HEAD,
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {nodes.NodeState.REQUESTED}",
            *drawn,
            f"    {nodes.NodeState.GONE} --> [*]",
            "```",
            "",
            "## States\n",
            _table(("state", "meaning"), [(str(state), states[state.name]) for state in nodes.NodeState]),
            "## Events\n",
            "What is seen, unless it says that it is decided.\n",
            _table(("event", "meaning"), [(str(event), events[event.name]) for event in lifecycle.Event]),
            "## Moves\n",
            _table(("from", "event", "to", ""), rows),
        )
    )


def _comments_of_members(file: Path, name: str) -> Mapping[str, str]:
    """The comment behind each member of a class."""
    tree, comments = _read(file)
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        target.id: comments.get(node.lineno, "what its name says")
        for node in found.body
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
    }


def _comments_of_rows(file: Path, name: str) -> Sequence[str]:
    """The comment behind each row of a table that stands one row a line."""
    tree, comments = _read(file)
    [rows] = [
        node.value.keys
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
        and isinstance(node.value, ast.Dict)
    ]
    return [comments.get(row.lineno, "") if row is not None else "" for row in rows]


def _read(file: Path) -> tuple[ast.Module, Mapping[int, str]]:
    """A module, and the comment on each of its lines."""
    text = file.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {it.start[0]: it.string.lstrip("# ") for it in tokens if it.type == tokenize.COMMENT}
    return ast.parse(text), comments


# --- writing ----------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _cells(head, rows))


def _cells(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    yield head
    yield ["---"] * len(head)
    for row in rows:
        yield [cell.replace("|", "\\|") for cell in row]


if __name__ == "__main__":
    for page, text in pages().items():
        (FOLDER / page).write_text(text, encoding="utf-8")
