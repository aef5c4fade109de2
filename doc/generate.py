# ruff: noqa: INP001 - a folder of pages, not a package
"""Write the generated pages of this folder: ``python -m doc.generate``, from the project's root.

``reasons.md`` and ``reference.md`` come from the code, by ``code_tables.py``.
``settings.md`` comes from ``nodemanager/config/text/settings.py`` and the meanings below; ``lifecycle.md`` from the
table in ``nodemanager/planner/snapshot.py`` and its comments; the man pages and the bash completion from the
same settings and the parser in ``nodemanager/cli/main.py``, by ``manuals.py``. ``tests/project/test_docs.py`` fails
when a page is out of date.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from doc import code_tables, manuals, path_table
from nodemanager.cli import main
from nodemanager.config.provider import provider_named
from nodemanager.config.reload import NOT_RELOADABLE, RELOADABLE, key_in_file
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import (
    BudgetSettings,
    CloudSettings,
    DisruptionSettings,
    EnsembleSettings,
    FluxSettings,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    NodeSettings,
    NotifySettings,
    PeerSettings,
    PolicySettings,
    ScheduleSettings,
    SectionSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    ValueFormat,
    WebSettings,
    allowed_keys,
)
from nodemanager.core import nodes
from nodemanager.core.notation import format_bytes, format_fsd
from nodemanager.planner import snapshot

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
    "Disruption": DisruptionSettings,
    "Web": WebSettings,
    "Journal": JournalSettings,
    "Notify": NotifySettings,
    "Simulation": SimulationSettings,
    "Node NAME": NodeSettings,
    "Peer NAME": PeerSettings,
    "Ensemble NAME": EnsembleSettings,
    "Schedule NAME": ScheduleSettings,
}

PROVIDER_ONLY = "The local and the simulated cloud ignore this key."
FROM_CLOUD = "Default: the value in `[Cloud]`."

# What each key means, as far as its name and its allowed values do not say.
MEANINGS: Mapping[str, Mapping[str, str]] = {
    "Site": {
        "cluster": "The cluster's name. Every node carries it as a tag, and the manager lists nodes by this tag. "
        "Do not change it while a node exists.",
        "cluster_uuid": "Distinguishes this cluster's nodes from those of another cluster of the same name. "
        "Default: the UUID in `state_dir/cluster-uuid`, which `init` creates. A simulated Flux needs none.",
        "state_dir": "The folder for the UUID, the token, the history and the nodes of a local cloud. Relative to "
        "the site file's folder.",
        "mode": "`observe`: decide and report, change nothing. `act`: carry the decisions out. A node type can "
        "have its own mode.",
        "currency": "Written with every amount, for people only: prices are never converted. Default: amounts are "
        "plain numbers.",
    },
    "Flux": {
        "uri": "How to reach rank 0: `local://PATH` with the path of its socket, relative to the site file's "
        "folder; or `simulated`. Default: the environment variable `FLUX_URI`, then the system instance.",
        "bridge": "Whether the manager speaks to Flux through a process that flux-core's own Python runs "
        "(`flux python`). `auto`: if the manager's Python cannot import flux-core's bindings. If no `flux` is on "
        "PATH and `uri` is `ssh://HOST/PATH`, the process runs on HOST.",
        "head_host": "The name of rank 0 in the bootstrap table. No slot may have this name.",
        "head_address": "The address at which nodes reach rank 0. Required unless Flux is simulated. If it is a "
        "loopback address, rank 0 listens only there; for any other address it listens on all interfaces. Give an "
        "IPv6 address without brackets; brokers then use IPv6 as well. A name must have an IPv4 address.",
        "port": "The TCP port on which rank 0 waits for nodes.",
        "join": "How a node gets the bootstrap. `directory`: it reads `bootstrap_dir` on a file system shared with "
        "rank 0. `service`: it redeems a ticket at the join service. `image`: its image contains it. `flub`: it "
        "asks rank 0, which needs a flux-core with pull request 5184 ([joining.md](joining.md)).",
        "bootstrap_dir": "The folder that `init` wrote, as the nodes see it. Relative to the site file's folder. "
        "Default: `flux` in `state_dir`.",
        "head_cores": "The number of cores declared for rank 0, which runs no jobs.",
        "image_start": "With `join = image`: the command that a node's shell runs at boot. `$SLOT` is the name of "
        "the slot. The node's broker must join under this name.",
        "boot_server": "With `join = flub`: the URI by which nodes reach rank 0, such as `ssh://HOST/PATH`. "
        "Default: `uri`.",
        "restart_command": "The command by which `resize` restarts rank 0, such as `systemctl restart flux`. It "
        "runs without a shell. Default: `resize` stops rank 0 and waits for its supervisor to start it again.",
    },
    "Cloud": {
        "provider": "`local`: nodes are processes on this machine. `simulated`: nodes exist only in memory, for a "
        "simulated Flux. `ec2`, `openstack`, `gce`, `azure`: see [clouds.md](clouds.md). `flux`: nodes are jobs of "
        "an outer Flux instance, for an instance that runs inside it. `minicluster`: nodes are pods of a "
        "MiniCluster ([kubernetes.md](kubernetes.md)). `static`: nodes are own hosts "
        "([clouds/static.md](clouds/static.md)).",
        "outer_uri": "For `flux`: how to reach the outer instance. Default: the environment variable `FLUX_URI`.",
        "image": "The image that nodes boot. " + PROVIDER_ONLY,
        "network": "The network of the nodes. " + PROVIDER_ONLY + " For `openstack`: names or ids, separated by "
        "commas.",
        "zones": "The zones for new nodes. " + PROVIDER_ONLY + " `ec2` and `gce` try them in order; for `ec2` the "
        "default is the zones of `subnets`. `openstack` and `azure` take one zone.",
        "price_list": "A file with the prices of `sizes`, and what each size has ([slots.md](slots.md)). The "
        "default for `ec2` is libcloud's list, which is as old as its release.",
        "region": "For `ec2`: required. For `openstack`: required if its catalogue has several. For `azure`: the "
        "location.",
        "endpoint": "For `ec2`: the address of its API. Default: the region's own.",
        "subnets": "For `ec2`: the subnet for new nodes in each zone. Default: the zone's default subnet.",
        "security_groups": "For `ec2`: the ids of the security groups; for `openstack`: their names. Default: the "
        "provider's default group.",
        "key_name": "For `ec2` and `openstack`: the key pair for logging in. Default: none.",
        "instance_profile": "For `ec2`: the name or ARN of the nodes' role. Default: none.",
        "auth_url": "For `openstack`: the address of the identity service.",
        "microversion": "For `openstack`: the version of Nova's API.",
        "config_drive": "For `openstack`: whether servers read their user-data from a drive. Use it if the "
        "metadata service cannot be reached.",
        "project": "For `gce`: the project's id.",
        "node_service_account": "For `gce`: the mail address of the service account of the nodes. With it and "
        "`join = service`, one call creates several nodes: each proves its identity by a token that Google signs "
        "for an instance with such an account. Default: none.",
        "resource_group": "For `azure`: the resource group for new nodes.",
        "ssh_public_key": "For `azure`: the key for logging in to a node as `azureuser`.",
        "name": "For `minicluster`: the name of the MiniCluster.",
        "namespace": "For `minicluster`: its namespace. Default: that of the kubeconfig's context, or of the "
        "manager's pod.",
        "kubeconfig": "For `minicluster`: the file with the API server and the credentials. Default: the service "
        "account of the manager's pod.",
        "owner": "For `minicluster`: who changes its size. `us`: only the manager; nodes that others add are "
        "adopted and leave when they are idle. `shared`: others too; the manager never removes the nodes that "
        "they add.",
        "service": "For `minicluster`: the gRPC service that changes the size, if several MiniClusters share pods "
        "(`ensemble serve --miniclusters`). Default: the manager changes it itself.",
        "service_material": "For `minicluster`: the folder with the service's `tls.crt` and this member's `token`.",
        "wake": "For `static`: the command that wakes the host `{node}`. It reads the host's user-data from its "
        "standard input ([clouds/static.md](clouds/static.md)).",
        "sleep": "For `static`: the command that puts the host `{node}` to sleep.",
        "probe": "For `static`: a command whose exit status is 0 if the host `{node}` is awake, and 1 if it is "
        "asleep. Default: the other two commands tell.",
        "calls_in_flight_max": "How many create and terminate calls may be in flight at once. Each has its own "
        "thread.",
        "creates_per_s": "The long-term rate at which nodes are created. If one call creates several nodes (see "
        "`nodes_per_call`), the default is 2 for `ec2`, as its own, and 20 for `gce`.",
        "creates_burst": "How many nodes may be created together. If one call creates several nodes, the default "
        "is 1000, as EC2's own.",
        "nodes_per_call": "For `ec2` and `gce`: how many nodes one call creates at most, and for `ec2` also "
        "terminates. One call creates several only with `join = service`, and for `gce` only with "
        "`node_service_account` ([joining.md](joining.md)). 1: each node has a call of its own. If "
        "`[Join] client` names a client in the image, each node has its own create call unless you set this key: "
        "an older client cannot join as a node of several.",
        "identity_certificate": "For `ec2` with `join = service`: a file with the certificate, as PEM, by which "
        "the provider proves an instance's identity. Default: the one that AWS publishes for the region. Without "
        "it, for example at an `endpoint` of your own, each node is created by a call of its own.",
        "boot_delay": "For `local`: how long a node stays pending before it runs its user-data.",
        "call_timeout": "How long to wait for the answer to a call to the cloud or to Flux. After that the manager "
        "looks at the node again. The call itself is not aborted.",
        "nodes_max": "The most nodes of this cloud, within `[Limits] nodes_max`. Default: no limit of its own.",
        "price_per_hour_max": "The most that the nodes of this cloud may cost an hour, within `[Limits] "
        "price_per_hour_max`. Default: no limit of its own.",
        "priority": "With several clouds: the clouds with the highest number are used first, whatever their price. "
        "Among equals the price decides ([clouds.md](clouds.md#several-clouds)).",
        "egress_price_per_gib": "What a GiB costs that leaves this cloud. It counts for jobs that say with "
        "`node-manager.near` and `node-manager.data` that they read data here "
        "([clouds.md](clouds.md#several-clouds)). Default: unknown.",
        "per_day": "What the nodes of this cloud may cost in a day (UTC), within `[Budget] per_day`. Once that is "
        "used up, jobs get nodes of other clouds. Default: no budget of its own.",
        "per_month": "The same for a month.",
    },
    "Limits": {
        "nodes_max": "How many nodes may cost money at once. Booting and leaving nodes count, and so do nodes that "
        "may exist.",
        "nodes_min": "How many nodes to keep even if no job needs them. Missing ones are bought of the cheapest "
        "type.",
        "price_per_hour_max": "What all these nodes together may cost an hour, in the currency of the site's "
        "prices.",
    },
    "Timing": {
        "settle": "Buy nothing until no new job has arrived for this long.",
        "settle_max": "Do not delay buying for longer than this, even if new jobs keep arriving.",
        "probe": "Ask Flux for news at least this often. Ask the cloud this often while a node boots or leaves.",
        "relist": "Read the whole queue and the whole cloud list at least this often. Also the interval at which a "
        "termination is repeated until the node is gone.",
        "sweep": "How often to search the provider for leftovers of nodes: volumes, interfaces, addresses. A "
        "leftover that two sweeps in a row find is deleted, in mode `act` only.",
        "boot_timeout": "Give a node up if its rank is not online this long after its order. With `flux`: after "
        "its job has started.",
        "rejoin_timeout": "Give a node up if its broker has been disconnected for this long.",
        "stale_after": "Decide nothing on a source that has not answered for this long. Must be longer than "
        "`probe` and `relist`.",
        "orphan_grace": "A node of ours that no launch owns and whose slot is taken is terminated after this long.",
        "create_grace": "How long a node must be missing, in addition to `absences`, before the manager concludes "
        "that its create never happened. If the provider lists new nodes later than this, a node that was "
        "created just before a restart of the manager is bought a second time; the extra one is then terminated.",
        "absences": "How many lists in a row must lack a node before it counts as absent.",
        "boot_retry": "After `boot_failures_max` failed boots in a row, wait this long and then try one node of "
        "the type and image. The wait doubles after each further failure, up to four hours.",
        "safe_mode_max": "If a large part of the fleet disappears at once (`unready_max`), the manager suspects "
        "the report for this long before it acts on it.",
        "housekeeping_max": "How long the housekeeping after a job may take. Then it is killed, and the node "
        "leaves.",
        "manager_silence_max": "With `join = service`: a node that has heard of no manager for this long "
        "terminates itself once no job runs on it. With `provider = flux`: so does a node that has "
        "not reached rank 0 for this long.",
    },
    "Policy": {
        "idle_confirmations": "How many looks in a row must find a node idle before it may leave.",
        "idle_timeout": "A node whose billing window is no longer than this leaves at the end of a window, once it "
        "has been idle for this long. For longer windows only the end of the window counts.",
        "queue_policy": "`fifo`: a job that cannot start holds up all jobs behind it, as under sched-simple; no "
        "node is bought or kept for those. `backfill`: jobs behind it may start first.",
        "unserved": "What happens to a job that the site's limits, a budget, or the drains that its user "
        "caused keep from being served for long. `block`: it keeps its place, and in queue order "
        "nothing is bought for the jobs behind it. `hold`: it gets urgency 0, so that Flux passes "
        "it over, until it can be served. `skip`: nodes are bought for the jobs behind it; Flux's "
        "scheduler must pass it over by itself, which sched-simple does not. `hold-users`: as `hold` if "
        "only jobs of the same user are concerned (`user_*` budgets, drains), otherwise as `block`.",
        "stop_lead": "How long before the end of its paid time an idle node begins to leave. Once stops of its "
        "type have been measured, the time within which nine of ten finished is used instead.",
        "patience": "How much longer than a boot a job may wait for cores that a running job must free within its "
        "time limit. If that would take longer, a new node is bought.",
        "packing": "Which jobs share a new node. `spread`: any jobs that fit, for the fewest nodes. `walltime`: "
        "jobs with similar time limits, so that nodes become empty; Flux itself does not place jobs by time limit.",
        "misfit": "What to do with a node that has less than its slot declares ([slots.md](slots.md)). `drain`: it "
        "gets no work and leaves, and its type is not bought for a while. `accept`: nothing. `retype`: like "
        "`drain`, and the instance then declares the type as it really is, also if its nodes have more. For "
        "`local` the default is `accept`.",
        "foreign_drain": "What to do with a node that Flux itself has drained, for example because a prolog failed "
        "there or a job was `terminated before first barrier`. `retire`: terminate it once no job runs there and "
        "`foreign_drain_after` has passed. `hold`: keep it until somebody undrains it. A node that a person has "
        "drained is always kept ([flux.md](flux.md#drains)).",
        "foreign_drain_after": "With `foreign_drain = retire`: how long a node that Flux itself has drained is "
        "kept for somebody to look at.",
        "boot_failures_max": "After this many failed boots in a row, stop buying that node type with that image.",
        "unready_max": "Enter safe mode, in which nothing is bought or terminated, if more than three nodes and "
        "more than this share of the nodes that were up are disconnected or hang at once.",
        "spot_share_max": "Buy spot nodes only up to this share of all nodes.",
        "spot_reclaims_assumed": "How often the provider takes a spot node back. The manager counts the work that "
        "would be lost as part of the price. What it measures replaces this estimate over time.",
        "consolidate": "Whether to keep new jobs off nodes that the fleet can do without, so that they empty "
        "([upkeep.md](upkeep.md#consolidation)).",
        "consolidate_gain": "Consolidate only if that saves at least this share of what the fleet costs an hour.",
        "drift": "What to do with a node that was made from another image, size, network, zone or user-data than "
        "the site says now. `replace`: replace it in its turn, as `[Disruption]` allows "
        "([upkeep.md](upkeep.md)). `warn`: only show it in `status`. `ignore`: nothing.",
        "wait_for_data": "Nodes with this property stay until somebody has said that the data of their jobs was "
        "copied off ([upkeep.md](upkeep.md#data-is-safe)). `never`: no node waits.",
        "early_release": "Whether nodes that a running job has given back (`release-idle`) are terminated before "
        "the job ends ([upkeep.md](upkeep.md#early-release)).",
        "data_max": "Warn if the data of an ended job is not safe after this time.",
        "burst": "Which jobs run in another instance ([delegation.md](delegation.md)). `ask`: those submitted with "
        "`--dependency=delegate:TARGET`. `peers`: also other jobs of the instance's owner, if a peer is better "
        "than own nodes by cost and wait. `never`: none.",
        "delegate_to": "The targets that users may name. `peers`: the site's `[Peer NAME]` sections, and `any` of "
        "them. `any`: also any URI of an instance; `ssh` then uses the manager's keys.",
    },
    "Web": {
        "listen": "Where to serve status, control and the dashboard. `unix`: on the socket `web.sock` in "
        "`state_dir`, which only its owner can use. `unix:PATH`: on another socket, relative to the site file's "
        "folder. `HOST:PORT`: on TCP, for everybody who can reach it, and on `web.sock` for the owner. `off`: "
        "nowhere; the verbs that query or "
        "steer the service then do not work.",
        "token_file": "The file with the token that steering requires. If it is missing, the service creates it, "
        "readable only by its owner. Relative to the site file's folder. Default: `token` in `state_dir`.",
        "tokens_file": "A file with a token for each operator of a team, one `NAME ROLE TOKEN` a line "
        "([operating.md](operating.md#a-team-of-operators)). Only its owner may read it. Relative to the site "
        "file's folder. `reload` reads it again.",
        "hosts": "Additional names by which clients may call the service over TCP. `localhost` and the address it "
        "listens on are always allowed. Requests for other hosts are refused.",
        "jobs_shown_to": "Who sees the list of jobs and the reason why each waits. `owner`: users of the socket "
        "and holders of the token; others see counts. `everybody`: everybody.",
        "grpc_listen": "Where to answer ensembles of other instances that ask for nodes ([ensembles.md]"
        "(ensembles.md)). `off`: nowhere. It needs the extra `ensemble`.",
        "grpc_material": "The folder with `token`, `tls.crt` and `tls.key` of `grpc_listen`. If they are missing, "
        "the service creates them. Relative to the site file's folder. Default: `grpc` in `state_dir`.",
        "grpc_plaintext": "Use neither TLS nor token for `grpc_listen`. It must then be an address of the loopback "
        "interface. Every user of the machine may then ask for nodes.",
    },
    "Disruption": {
        "max": "How many nodes may be out of service at once because they are replaced ([upkeep.md](upkeep.md)): a "
        "number, or a share of the nodes that are up. A share above 0 allows at least one node. 0: replace none.",
        "windows": "When to begin replacing a node, as days, times and a time zone. A replacement that has begun "
        "goes on after the window. Default: at any time.",
    },
    "Journal": {
        "size_max": "The largest size of the history file, `journal.sqlite` in `state_dir`. When the file is "
        "larger, its oldest rows are deleted, even if they would otherwise be kept longer.",
    },
    "Notify": {
        "command": "A command to run when one of `events` happens, with a JSON object on its standard input "
        "([operating.md](operating.md#notices)). It runs in the site file's folder. Default: none.",
        "events": "The events to tell. `budget`: 90 % of a budget of the site is spent. `breaker`: nodes of a type "
        "keep failing. `safe-mode`: it begins. `leak`: the provider has a node of ours that no launch knows. "
        "`never-runs`: no node type can ever run a job, or no limit or budget ever allows its nodes. Default: all.",
    },
    "Join": {
        "listen": "The address and port of the join service, such as `[::]:8443` for IPv6. If rank 0 has a "
        "loopback address, the default is that address. If it has another IPv6 address, it is `[::]:8443`.",
        "addresses": "Where nodes reach the join service; they try the addresses in turn. An IPv6 address is in "
        "brackets. Default: `head_address` with the port of `listen`.",
        "material_dir": "The folder for keys, certificates, and the files that the manager and the join service "
        "exchange. Relative to the site file's folder. Default: `join` in `state_dir`.",
        "flux_version": "The exact version of flux-core that nodes must have. Default: that of the `flux` on the "
        "join service's PATH.",
        "check_source": "Accept a ticket only from an address that the provider shows for its node. Does not work "
        "through NAT.",
        "destroy_on_replay": "If two clients presented a node's ticket, drain the node and terminate it once idle. "
        "The log shows an error in any case.",
        "renew": "How often a node asks whether it still owns its slot. It also learns new addresses this often.",
        "requests_per_s": "How many requests a second one source address may send in the long term. Raise it if "
        "many nodes share an address.",
        "requests_burst": "How many requests one source address may send at once.",
        "client": "The path of flux-node-join in the nodes' image. Default: nodes fetch it from the join service.",
        "flux": "The `flux` command on the nodes: a name on their PATH, or a path.",
        "node_user": "The user that runs the broker on a node. It must have the same uid as the instance's owner. "
        "Default: the user that runs the user-data.",
        "node_dir": "The folder in which a node keeps its secrets. For `local` the default is `flux-node-join` in "
        "the node's own folder.",
        "hosts_file": "The file in which a node lists slot names and their addresses. For `local` the default is "
        "`hosts` in the node's own folder.",
        "poweroff": "The command by which a node ends itself. For `local` the default kills the node's own init; "
        "for `static` it leaves the host on.",
        "systemd": "Whether the node's systemd, if it has one, restarts the client, also after a reboot. For "
        "`local` the default is no.",
    },
    "Budget": {
        "per_day": "What all nodes may cost in a day (UTC): the bill so far, plus the forecast until the time "
        "limits of the jobs on running and booting nodes. From nine tenths on, only the types with the cheapest "
        "cores are bought. If the forecast reaches the budget, nothing is bought. Once the budget is spent, idle "
        "and booting nodes are terminated, and busy nodes take no new job. Flux's KVS keeps the amount across "
        "restarts.",
        "per_month": "The same for a calendar month (UTC).",
        "user_per_day": "What each user's jobs may cost in a day, by their share of the cores or of the GPUs, "
        "whichever is larger. Running and waiting jobs count up to their time limits. Beyond the budget no node is "
        "bought for that user.",
        "user_per_month": "The same for a calendar month.",
        "queue_per_day": "The same for each queue, in a day.",
        "queue_per_month": "The same for each queue, in a calendar month.",
    },
    "Simulation": {
        "time_scale": "Simulated seconds in one real second.",
        "seed": "The seed for all random numbers.",
        "workload": "The jobs that are submitted. `builtin` is the only choice. It repeats every two simulated "
        "hours.",
        "boot_delay": "How long a node takes to boot, plus or minus a fifth.",
        "stop_delay": "How long a node takes to end, plus or minus a fifth.",
        "boot_failures": "For `simulate`: the share of nodes that end instead of joining.",
        "spot_reclaims_per_hour": "For `simulate`: how many times an hour the provider takes back a spot node. Its "
        "jobs start from the beginning.",
        "capacity": "For `simulate`: how many nodes the provider has. Further creates are refused. 0 means "
        "unlimited.",
    },
    "Node NAME": {
        "size": "The provider's name for this type. Default: NAME.",
        "sizes": "Instead of `size`: the sizes that may serve as nodes of this type, by name or by pattern. The "
        "cheapest one that can be had is bought ([slots.md](slots.md)).",
        "cores": "The number of cores that each slot declares to Flux. Flux does not check it, so it must be "
        "right.",
        "gpus": "The number of GPUs that each slot declares to Flux. Flux does not check it either.",
        "memory": "The memory of a node, for jobs that request memory ([how-it-decides.md](how-it-decides.md)). "
        "Flux's R contains no memory, and its simple scheduler ignores it.",
        "price_per_hour": "The price, in the same currency for all types. 0 is allowed. All costs are estimates "
        "from it, without disks and traffic. With `sizes`: the price of those that the price list lacks.",
        "billing": "The step in which the provider bills; a step that has begun is paid in full. With `free` a "
        "running node costs nothing more: its price counts as 0, also in the limits.",
        "billing_minimum": "The least time that is billed, however short a node's life.",
        "spot_price_per_hour": "The price of a spot node, with `market = any` or `spot`. A `[Cloud] price_list` "
        "may give it for each size instead.",
        "market": "`spot`, on `ec2` and `gce`: cheaper nodes that the provider may take back. `any`: spot or on "
        "demand, whichever costs less if the risk is counted ([slots.md](slots.md)). Other providers have no spot "
        "market.",
        "properties": "Properties that the slots declare to Flux, which jobs and queues can require.",
        "slots": "The placeholder ranks of this type. `init` assigns ranks in the order of the file, starting at "
        "1.",
        "hosts": "For `static`: the hosts of this type, at least as many as its slots.",
        "placement": "`cluster`, on `ec2`, `gce`, `azure` and `openstack`: nodes of this type are created near "
        "each other, in a placement group for each zone ([slots.md](slots.md#nodes-near-each-other)).",
        "only_for": "`gpu`: buy nodes of this type only for jobs that ask for GPUs. `any`: for every job. Default: "
        "a type with GPUs is bought for jobs that ask for GPUs, and for a job that the other types could never "
        "serve. Flux does not know this rule and starts any job on a node that is up "
        "([flux.md](flux.md#traps)).",
        "spares": "How many idle nodes to keep ready beyond what jobs need, so that the next job starts at once. "
        "They cost money.",
        "prepaid": "So many nodes of this type cost nothing more, at once: reserved instances, savings plans, your "
        "own hardware. They are bought first, and stay once they are up ([upkeep.md](upkeep.md#prepaid-nodes)).",
        "prepaid_valid_until": "The last day (UTC) on which nodes are prepaid. Default: no end.",
        "price_valid_until": "The last day (UTC) on which the price is right. Then `status` warns. Default: none.",
        "max_age": "Replace nodes of this type that are older than this, as `[Disruption]` allows. Default: at no "
        "age.",
        "disruption_max": "How many nodes of this type may be out of service at once because they are replaced, "
        "within the `max` of `[Disruption]`. Default: only that counts.",
        "disruption_windows": "When to begin replacing a node of this type. Default: the `windows` of "
        "`[Disruption]`.",
        "mode": "`act`: nodes of this type are bought and terminated. `observe`: decisions are only reported, and "
        "existing nodes stay. Default: the value in `[Site]`.",
        "cloud": "The NAME of the `[Cloud NAME]` in which its nodes are created. Default: `[Cloud]`, or the only "
        "cloud.",
        "image": FROM_CLOUD,
        "zones": FROM_CLOUD,
        "network": FROM_CLOUD,
        "subnets": FROM_CLOUD,
        "security_groups": FROM_CLOUD,
        "key_name": FROM_CLOUD,
        "instance_profile": FROM_CLOUD,
    },
    "Schedule NAME": {
        "when": "The windows in which the rest of the section applies ([upkeep.md](upkeep.md#schedules)).",
        "node_types": "The node types to which the other keys apply, each by itself. Default: the whole fleet.",
        "nodes_min": "Replaces `nodes_min` of `[Limits]`. With `node_types`: so many nodes of each type are kept "
        "up.",
        "nodes_max": "Replaces `nodes_max` of `[Limits]`. With `node_types`: at most so many nodes of each type, "
        "within that of `[Limits]`. 0 closes the type.",
        "price_per_hour_max": "Replaces `price_per_hour_max` of `[Limits]`. With `node_types`: what the nodes of "
        "each type may cost an hour, within that of `[Limits]`.",
        "spares": "Replaces `spares` of the node types.",
        "idle_timeout": "Replaces `idle_timeout` of `[Policy]`.",
    },
    "Ensemble NAME": {
        "file": "An `ensemble.yaml` that the service runs on its instance, once ([ensembles.md](ensembles.md)). "
        "Relative to the site file's folder.",
        "weight": "If several ensembles ask for more nodes than `nodes_max` of `[Limits]` allows, each gets a "
        "share by its weight. An ensemble that somebody runs beside the service has the weight 1.",
        "nodes_min": "As many of the nodes that it asks for come before the shares of others.",
        "nodes_max": "The largest number of nodes that it may ask for. Default: no limit of its own.",
        "per_day": "What the nodes kept for it may cost on one day (UTC). Each counts at the mean price of the "
        "fleet's nodes. When it is spent, none are kept until the next day. Default: no such budget.",
        "allow_custom": "Whether the custom functions of the file may run. They run as the service's user.",
    },
    "Peer NAME": {
        "uri": "The address of a Flux instance in which jobs of this one may run: `ssh://HOST/PATH`, "
        "`local:///PATH`, or one that `flux uri` resolves. The manager's user must own it. NAME is what users "
        "write in `--dependency=delegate:NAME`, and what the nodes column of a delegated job shows.",
        "price_per_core_hour": "The price of a core there, in the currency of the node types. `delegate:any` "
        "prefers the cheapest peer that starts the job within its patience.",
        "jobs_max": "The largest number of this instance's jobs that the peer gets at once.",
        "output_max": "How much of a job's output is copied from the peer to `flux job attach`. The rest stays "
        "there, and a line says so.",
    },
}

SETTINGS_HEAD = """\
# Settings

<!-- Made by `python -m doc.generate` from nodemanager/config/text/settings.py. Do not edit. -->

A site is one INI file. `flux-node-manager check --config site.ini` reads it and lists all faults at once, each with
its line; the exit status is then 78. An unknown key is a fault.

- Durations use Flux's notation: `90s`, `5m`, `1.5h`, `1h30m`. A number alone means seconds.
- Sizes have a binary unit: `512MiB`, `4GiB`.
- Slots are a host list: `cloud[1-4],gpu[01-02]`.
- Comments need lines of their own.
- `${NAME}` inserts an environment variable into any value.
- `reload` applies a change of the keys marked in the last column. It refuses a file that changes anything else, and
  names the keys that need a restart of the service.

`[Site]`, `[Cloud]` and `[Limits]` have required keys, and so does every `[Node NAME]`. There must be at least one
`[Node NAME]`. A real Flux also needs `head_address`.

A site with several clouds has a `[Cloud NAME]` for each, with the keys of `[Cloud]`, and credentials in a
`[Cloud NAME Credentials]` ([clouds.md](clouds.md#several-clouds)).
"""

CREDENTIALS = """\
## [Cloud Credentials]

How the manager logs in to the provider. `ec2` takes `access_key_id`, `secret_access_key` and `session_token`
([clouds/ec2.md](clouds/ec2.md)). `openstack` takes `username`, `password` and `project`, or
`application_credential_id` and `application_credential_secret`. `gce` takes `service_account` and `key`, or
neither. `azure` takes `tenant_id`, `subscription_id`, `client_id` and `client_secret`. The local and the simulated
cloud need no credentials. Write a secret as `KEY = ${NAME}`, or as `KEY_file = PATH` with a file that only its
owner can read. A key whose name suggests a secret (`secret`, `password`, `passwd`, `passphrase`, `token`, `key`)
may have its value in the site file only if nobody else can read that file. No value of this section is ever
printed.
"""

# States and events that need no comment in the code.
PLAIN: Mapping[str, str] = {
    "IDLE": "its rank is online, and neither a job nor housekeeping runs there",
    "BUSY": "a job or its housekeeping runs there",
    "JOB_BEGAN": "a job was given cores of the node",
    "JOBS_ENDED": "neither a job nor housekeeping has the node any more",
}

LIFECYCLE_HEAD = """\
# The life of a node

<!-- Made by `python -m doc.generate` from nodemanager/planner/snapshot.py. Do not edit. -->

A node begins with the lease of a slot and ends with the end of that lease. The table below lists every legal move.
An observation may be old news, so an observed event without a row changes nothing. A decided event without a row is
a bug. It ends the process with an error that lists the node's latest moves. Events and the log call the state
before a node's first one `unknown`.
"""


def pages() -> Mapping[str, str]:
    """Each page's name and text."""
    parser = main.make_parser()
    settings = {section: [*_settings(section, of)] for section, of in SECTIONS.items()}
    return {
        "settings.md": settings_page(),
        "lifecycle.md": lifecycle_page(),
        "reasons.md": code_tables.reasons_page(_table),
        "reference.md": code_tables.reference_page(parser, _table),
        "man/flux-node-manager.1": manuals.command_page(parser),
        "man/site.ini.5": manuals.site_page(settings, CREDENTIALS.partition("\n\n")[2]),
        "../config/bash-completion/flux-node-manager": manuals.bash_completion(parser),
    }


def _settings(section: str, settings: type[SectionSettings]) -> Iterator[manuals.Setting]:
    for key, meaning, written_as, default in _rows(section, settings):
        yield manuals.Setting(key.strip("`"), meaning, written_as, default)


# --- what a reload applies --------------------------------------------------------------------------------


def _reloadable(section: str, settings: type[SectionSettings], key: str) -> bool:
    """Whether ``reload`` applies a changed key."""
    name = {"Node NAME": "nodes", "Schedule NAME": "schedules"}.get(section, section.lower())
    taken = RELOADABLE.get(name, frozenset())
    keys = taken if taken is not None else settings.model_fields.keys() - NOT_RELOADABLE.get(name, frozenset())
    return key in {key_in_file(settings, it) for it in keys}


# --- settings ---------------------------------------------------------------------------------------------


def settings_page() -> str:
    parts = [SETTINGS_HEAD]
    for section, settings in SECTIONS.items():
        rows = [
            (*row, "yes" if _reloadable(section, settings, row[0].strip("`")) else "")
            for row in _rows(section, settings)
        ]
        parts.append(f"## [{section}]\n\n" + _table(("key", "meaning", "written as", "default", "reload"), rows))
        if section == "Cloud":
            parts.append(CREDENTIALS)
    return "\n".join(parts)


def _rows(section: str, settings: type[SectionSettings]) -> Iterator[tuple[str, str, str, str]]:
    """The keys of a section. Those that only one provider has are at the end of ``[Cloud]``."""
    for key in allowed_keys(settings):
        yield _setting(settings, key, MEANINGS[section][key])
    for provider in map(provider_named, PROVIDERS) if section == "Cloud" else ():
        for key, meaning in provider.meanings.items():
            yield _setting(provider.settings, key, f"For `{provider.name}`: {meaning}")


def _setting(settings: type[SectionSettings], key: str, meaning: str) -> tuple[str, str, str, str]:
    name, field = next(
        (name, field) for name, field in settings.model_fields.items() if key in (name, field.validation_alias)
    )
    return f"`{key}`", meaning, _allowed(field), _default(name, field)


def _allowed(field: FieldInfo) -> str:
    """The values that the key allows. An optional key keeps them one level deeper, beside None."""
    optional = [item for part in get_args(field.annotation) for item in getattr(part, "__metadata__", ())]
    return next(item.allowed for item in (*field.metadata, *optional) if isinstance(item, ValueFormat))


def _default(name: str, field: FieldInfo) -> str:
    """The default, written as in a site file."""
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, bool):
        return "`yes`" if value else "`no`"
    if isinstance(value, float):
        is_duration = field.validation_alias is not None and name.endswith("_s")
        return f"`{format_fsd(value)}`" if is_duration else f"`{value:g}`"
    if isinstance(value, frozenset) and value:
        return f"`{', '.join(sorted(value))}`"
    if name.endswith("_bytes"):
        return f"`{format_bytes(value)}`"
    if isinstance(value, frozenset):
        return f"`{', '.join(sorted(value))}`"
    return f"`{value}`" if value or isinstance(value, int) else "none"


# --- the lifecycle ----------------------------------------------------------------------------------------


def lifecycle_page() -> str:
    states = _comments_of_members(Path(nodes.__file__), "NodeState")
    events = _comments_of_members(Path(snapshot.__file__), "Event")
    moves = _comments_of_rows(Path(snapshot.__file__), "NEXT_STATE")
    rows = [
        (str(state), str(event), str(after), moves[index])
        for index, ((state, event), after) in enumerate(snapshot.NEXT_STATE.items())
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
            'An event is an observation unless its meaning begins with "decided".\n',
            _table(("event", "meaning"), [(str(event), events[event.name]) for event in snapshot.Event]),
            "## Moves\n",
            _table(("from", "event", "to", ""), rows),
            "## Where a step is in the code\n",
            "One node that is bought for a job and retired, by the steps of [the path of a job](design.md).\n",
            _table(("step", "fact or order", "functions"), [*path_table.rows()]),
        )
    )


def _comments_of_members(file: Path, name: str) -> Mapping[str, str]:
    """The comment after each member of a class. Members without one are explained by ``PLAIN``."""
    tree, comments = _read(file)
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {
        target.id: comments.get(node.lineno) or PLAIN[target.id]
        for node in found.body
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
    }


def _comments_of_rows(file: Path, name: str) -> Sequence[str]:
    """The comment after each row of a table, which has one row a line."""
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
