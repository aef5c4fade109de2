# ruff: noqa: INP001 - a folder of pages, not a package
"""What ``reasons.md`` says of each reason beside its sentence and its figures: what to do, and what else to know.

``doc/generate.py`` writes the page. A code without a row here is a fault that a test finds.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.reason_codes import Code

# The reasons of failed creates, and of the blocks that follow, have one row each.
CREATE, BLOCKED = "create_", "blocked_"
KINDS: Mapping[str, str] = {
    CREATE: "The provider refused a create. `capacity`, `config`: for this type; other kinds: for every type.",
    BLOCKED: "A create failed recently. Waits: `capacity` 2 min in this zone (the next zone is tried at once), "
    "`throttled` 5 s or as long as asked, `credentials` 20 s, `config` 15 min, `gone` 1 min, `transient` 10 s. All "
    "but `capacity` and `config` double each time, up to 10 minutes.",
}
KINDS_DO: Mapping[str, str] = {
    CREATE: "See `blocked_*`.",
    BLOCKED: (
        "`throttled`: lower `creates_per_s`. `credentials`, `config`: correct the account or the site. Others pass."
    ),
}

# What to do. "": nothing.
ACTIONS: Mapping[str, str] = {
    Code.NOT_THE_ACTOR: (
        "At the start it passes. If another manager holds the name, stop one of the two. If rank 0 is "
        "away, start it."
    ),
    Code.NOT_SEEN_YET: "Wait a few seconds; then see `failure`.",
    Code.STALE: "See `failure`: the provider or Flux does not answer in time.",
    Code.PAUSED: "`flux-node-manager resume`",
    Code.INSTANCE_DIFFERS: (
        "Check that `uri` leads to the right instance. Then write the bootstrap again (`init`), `resize` "
        "the instance, correct `[Node NAME]`, or make the tree flat (`tbon.topo = kary:0`)."
    ),
    Code.SAFE_MODE: (
        "Check the network and rank 0. If the nodes are really gone, do nothing and wait, or lower "
        "`safe_mode_max` and `reload`."
    ),
    Code.NOT_STEERABLE: "Mend what `why` names. The manager looks every few seconds and goes on without a restart.",
    Code.RECORD_NOT_WRITTEN: (
        "Make room on the disk of rank 0's `statedir`: [Flux refuses to record "
        "leases](troubleshooting.md#flux-refuses-to-record-leases)."
    ),
    Code.SETTLING: "`settle` and `settle_max` in `[Timing]` set the wait.",
    Code.FITS_ON_A_NODE_THAT_IS_UP: (
        "If it stays: Flux places jobs differently than predicted, or a job ahead of it waits."
    ),
    Code.NODE_KEPT_FOR_IT: "",
    Code.NODE_FREE_SOON: "`patience` in `[Policy]` extends this wait.",
    Code.NODE_COMING: "A node that does not join is given up after `boot_timeout`.",
    Code.NODE_CREATE_FAILED: "See `detail`.",
    Code.NODE_QUEUED_OUTSIDE: "See that queue: `flux jobs` in the outer instance.",
    Code.NODE_PENDING_AT_PROVIDER: "See `kubectl describe pod`. A cluster autoscaler may just be adding a machine.",
    Code.NODE_ORDERED: "",
    Code.BEHIND_A_STUCK_JOB: "See the reason of `job`. If your scheduler backfills, set `queue_policy = backfill`.",
    Code.BEYOND_LIMITS: "Raise the limit, or cancel the job.",
    Code.BEYOND_SCHEDULE: "Wait, or change the schedule.",
    Code.BEYOND_CLOUD: "Raise the limit in the cloud's section, or cancel the job.",
    Code.BEYOND_BUDGET: "Raise `[Budget]`, or `per_day` or `per_month` of the cloud's section, or cancel the job.",
    Code.TOO_FEW_SLOTS: "Add slots of a fitting type, or submit a smaller job.",
    Code.BUDGET_CHEAPEST_ONLY: "Raise `[Budget]`, or wait for the next period.",
    Code.BUDGET_NO_NEW_NODES: "Raise `[Budget]`, or wait for the next period.",
    Code.BUDGET_LEFT: "Raise `[Budget]`, or wait for the next period.",
    Code.BUDGET_SPENT: "Raise `[Budget]`, or wait for the next period.",
    Code.BUDGET_OF_ACCOUNT: "Raise it in `[Budget]`, or wait for the next period.",
    Code.ONE_ZONE_SHORT: "Wait, name more zones, or submit the job without `node-manager.one-zone`.",
    Code.HELD: "To let it run: `flux job urgency JOBID default`.",
    Code.DEPENDENCY: "",
    Code.COPY_WAITS: "",
    Code.NOT_YET_SCHEDULED: "",
    Code.QUEUE_STOPPED: "`flux queue start`, with the queue's name if it has one.",
    Code.TOO_MANY_SHAPES: "Submit jobs with the same resources, constraint and time limit.",
    Code.TOO_MUCH_TO_PLAN: "Submit jobs with the same resources, constraint and time limit.",
    Code.USER_DRAINS_NODES: (
        "See `flux resource eventlog`, and mend the job, or the prolog or image: [Drains](flux.md#drains)."
    ),
    Code.GANG_REFUSED: (
        "Ask the provider for more capacity, or name another size, zone or type. A restart of the manager"
        " ends the wait."
    ),
    Code.UNREADABLE: "Report it, with `flux job info JOBID jobspec`.",
    Code.SET_ASIDE: "Report it, with the line `job_set_aside` of the log and `flux job info JOBID jobspec`.",
    Code.NO_TYPE_FITS: (
        "Ask for less, or add a node type. Flux also refuses such a job once it is first in the queue."
    ),
    Code.ONLY_FOR_GPU_JOBS: "Ask for less, or remove `only_for` there.",
    Code.NO_NODE_TYPE: "Add a `[Node NAME]` section.",
    Code.TYPE_LIMIT: "Wait until `until_at`, or change the schedule and run `flux-node-manager reload`.",
    Code.NO_FREE_SLOT: "Wait, or give the type more `slots` and write the bootstrap again.",
    Code.NODES_MAX: "Raise `nodes_max` if you want more nodes.",
    Code.SPOT_SHARE_MAX: "Raise it, or set `market = any` for the type.",
    Code.PRICE_PER_HOUR_MAX: "Raise `price_per_hour_max` if you want to pay more.",
    Code.ONLY_OBSERVED: "Set `mode = act` in its `[Node NAME]` if the type may be used.",
    Code.CLOUD_CLOSED: (
        "Look at `status`: it shows each cloud's last answer and failure. If nodes are left in a cloud "
        "that the site has lost, write its section again until they are gone."
    ),
    Code.CLOUD_BUDGET_SPENT: (
        "Raise `per_day` or `per_month` of the cloud's section and run `reload`, or wait for the next period."
    ),
    Code.CLOUD_BUDGET_USED_UP: (
        "Raise `per_day` or `per_month` of the cloud's section and run `reload`, or wait for the next period."
    ),
    Code.CLOUD_BUDGET_LEFT: (
        "Raise `per_day` or `per_month` of the cloud's section and run `reload`, or wait for the next period."
    ),
    Code.CLOUD_FULL: "Raise the limit in the cloud's section and run `reload`, or wait for jobs to end.",
    Code.AT_QUOTA: "Ask the provider for a higher quota, or lower `nodes_max`.",
    Code.BREAKER_OPEN: (
        "Find out why boots fail: the image, the user-data or the network. After `reload` with another "
        "image the type is tried at once."
    ),
    Code.BREAKER_TRYING: "If it joins, buying goes on.",
    Code.DELEGATION_STOPPED: "Do what `detail` says.",
    Code.DELEGATED_NEW: "",
    Code.DELEGATED_DEPENDENCY: "See `flux jobs`.",
    Code.DELEGATION_CHOOSING: "",
    Code.PEER_CHOSEN: "",
    Code.NO_PEER_READY: "See `flux-node-manager peers`.",
    Code.DELEGATION_REFUSED: "Submit a smaller job, or name another peer.",
    Code.DELEGATED_HELD: "`flux job urgency JOB default`",
    Code.DELEGATED_PENDING: "",
    Code.DELEGATED_STARTING: "",
    Code.DELEGATED_RUNNING: "To send it a signal: `flux proxy URI flux job kill REMOTE`.",
    Code.DELEGATED_ENDING: "",
    Code.DELEGATION_CALL_FAILED: "See `detail`.",
    Code.SENT_TO_A_PEER: "",
    Code.GIVEN_BACK: "",
    Code.PEER_UNREACHABLE: (
        "Bring the peer back. Or cancel the job here: its copy is cancelled once the peer is back."
    ),
    Code.ENSEMBLE_KEEPS: "",
    Code.ENSEMBLE_ASKS_FOR_NOTHING: "",
    Code.ENSEMBLE_AT_ITS_MAX: "Raise `nodes_max` of `[Limits]` or `[Ensemble NAME]`.",
    Code.ENSEMBLE_SHARE: "Raise `nodes_max`, or the ensemble's `weight` or `nodes_min`.",
    Code.ENSEMBLE_BUDGET_SPENT: "Raise `per_day` of `[Ensemble NAME]`.",
    Code.BOUGHT: "",
    Code.NODES_BEING_REMOVED: "nodes are bought as soon as these are gone.",
    Code.ALL_SLOTS_TAKEN: "Wait, or give the type more `slots` and write the bootstrap again.",
    Code.NOTHING_IS_SHORT: "",
    Code.JOB_HELD_UP: "See the reason of `job`.",
    Code.FITS_NO_JOB_THAT_IS_SHORT: "",
    Code.KEPT_FOR_GPU_JOBS: "`only_for = any` lets it serve every job.",
    Code.ANOTHER_MIX_IS_CHEAPER: "",
    Code.ANOTHER_TYPE_IS_CHEAPER: "",
    Code.ANOTHER_SIZE_IS_CHEAPER: "",
    Code.JOBS_HELD: "",
    Code.JOBS_RELEASED: "",
    Code.JOBS_SET_ASIDE: "Report it. Cancel the jobs, or let them run on nodes that are up.",
    Code.JOB_NEVER_RUNS: (
        "`flux cancel JOB`, or raise the limits. Set `[policy.limits]` in Flux's configuration, as `init`"
        " does, so that Flux refuses such jobs."
    ),
    Code.GPU_NODE_UNGUARDED: "Give the type a property, and a queue that requires it.",
    Code.DRAINED_YET_PAID: "`flux resource undrain RANK`. The manager then terminates the node when it is idle.",
    Code.IDLE_BELOW_BUSY_NODE: "If such jobs run for long, let them ask for a low rank: `--requires=rank:1`.",
    Code.GPU_NODE_TAKEN: "Give the type a property, and a queue that requires it.",
    Code.JOB_ACROSS_ZONES: (
        "If it must not happen, define types of one zone each, with a property that jobs require."
    ),
    Code.PRICE_OUT_OF_DATE: (
        "Correct `price_per_hour` and `price_valid_until`: `flux-node-manager prices` compares prices with a list."
    ),
    Code.NODES_DRIFTED: (
        "Replace them: `flux-node-manager retire --all --type TYPE --rolling`, or `drift = replace` in `[Policy]`."
    ),
    Code.REQUEUED: "",
    Code.ORIGINAL_ENDED: "",
    Code.COPY_STARTS: "",
    Code.COPY_NOT_NEEDED: "",
    Code.COPY_UNDECIDED: "Submit the job again if it failed.",
    Code.UNFIT: "See the code that `why` names.",
    Code.HANGS_AT_WORK: "Check the machine. `flux overlay disconnect RANK` gives up the node and its jobs.",
    Code.DATA_NOT_SAFE: (
        "Copy the data, then `flux-node-manager data-safe JOBID` on rank 0; or retire the node to give it up."
    ),
    Code.ANSWER_MISREAD: "Report it, with the traceback in the log (`cloud_call_not_understood`).",
    Code.GONE_AT_PROVIDER_YET_UP: "Check that the provider's account and region are the right ones.",
    Code.VANISHED_NOT_DESTROYED: "Look for the node at the provider, and correct what `detail` says.",
    Code.SLOTS_WISHED: "",
    Code.DECLARED_AS_MEASURED: "Correct `[Node NAME]` too.",
    Code.SLOTS_CHANGING: "If it lasts: see `flux_call_failed` in the log.",
    Code.SLOTS_IN_USE: "Try again when nodes of the type have gone.",
    Code.SLOTS_DO_NOT_ADD_UP: (
        "Also name a type that gives up slots. For more slots in total: `flux-node-manager resize`."
    ),
    Code.SLOTS_UNKNOWN_TYPE: "See the `[Node NAME]` sections of the site.",
    Code.DEMAND: "",
    Code.NODES_MIN: "",
    Code.SPARE: "`spares` in `[Node NAME]` sets the number.",
    Code.LEASE_TO_RECORD: "",
    Code.LEASE_NOT_WANTED: "",
    Code.LEASE_ABOVE_LIMITS: "Raise `nodes_max` or `price_per_hour_max` if they were lowered by mistake.",
    Code.CREATING: "",
    Code.CREATE_PACED: "",
    Code.CREATE_CALLS_PACED: "",
    Code.CALLS_IN_FLIGHT_MAX: "If it lasts: the provider is slow; see `cloud_call_failed` in the log.",
    Code.CALL_IN_FLIGHT: "",
    Code.RETRY_LATER: "If `tries` grows: mend what `detail` says.",
    Code.LOOKED_FOR: "It will be found, or proven not to exist.",
    Code.UNKNOWN_TYPE: "Restore the type if you removed it by mistake.",
    Code.UNKNOWN_SIZE: "Nothing, or restore the size in `sizes`.",
    Code.BOOTING: "Nothing before `boot_timeout_s`.",
    Code.QUEUED_OUTSIDE: (
        "See that queue: `flux jobs` in the outer instance. `boot_timeout` counts from when it leaves the queue."
    ),
    Code.PENDING_AT_PROVIDER: (
        "See `kubectl describe pod`. The size goes back after `boot_timeout`: raise it if machines take "
        "longer to be added."
    ),
    Code.FILLS_A_GAP: "",
    Code.LOWER_SLOT_IS_FREE: "",
    Code.BUSY: "",
    Code.WANTED: "",
    Code.IDLE_UNCONFIRMED: "",
    Code.IDLE_NOT_LONG: "",
    Code.PAID_TIME_LEFT: "It leaves when `stop_lead_s` are left.",
    Code.NEXT_WINDOW_BEGINS: "",
    Code.PREPAID: "",
    Code.DRAINED_BY_FLUX: (
        "Find out why from the job that the reason names. `flux resource undrain RANK` keeps the node; "
        "`[Policy] foreign_drain = hold` keeps all such nodes."
    ),
    Code.HELD_BY_DRAIN: "`flux resource undrain RANK` releases it. Until then it costs money.",
    Code.HELD_BY_OPERATOR: "`flux-node-manager release NODE` releases it.",
    Code.HELD_FOR_DATA: (
        "Copy the data, then `flux-node-manager data-safe JOBID` on rank 0; or retire the node to give it up."
    ),
    Code.RELEASED_BY_OPERATOR: "",
    Code.MAY_REJOIN: "Nothing before `rejoin_timeout`.",
    Code.WANTED_AGAIN: "",
    Code.JOB_SLIPPED_IN: "",
    Code.DRAINED_FOR_ANOTHER: "",
    Code.BUSY_YET_DRAINED_BY_US: "",
    Code.FIXED_BY_PROVIDER: (
        "With `provider = minicluster`: lower `spec.minSize`, or ask the one who added the index above."
    ),
    Code.OWED_TO_OTHERS: "Raise `--pods-max` of the ensemble service if there is room.",
    Code.KEPT_BY_HIGHER_NODE: "See `idle_below_busy_node`.",
    Code.TOO_OLD: "",
    Code.DRIFTED: "To keep such nodes, write `drift = warn` in `[Policy]`.",
    Code.REPLACED_BY_OPERATOR: "`flux-node-manager release NODE` takes it back.",
    Code.REPLACES: "",
    Code.REPLACED_FIRST: "",
    Code.WAITS_FOR_JOBS_TO_START: "",
    Code.WAITS_FOR_WINDOW: "If it is urgent: `flux-node-manager retire NODE` needs no window.",
    Code.WAITS_FOR_TURN: "If it is urgent: raise `max` in `[Disruption]`, or `flux-node-manager retire NODE`.",
    Code.EMPTIES: "",
    Code.NOT_REFILLED: "",
    Code.EMPTIES_NO_MORE: "",
    Code.NO_SURGE_NEEDS_IT: "",
    Code.RANK_CRITICAL: "",
    Code.WAITING_JOBS_NEED_IT: "",
    Code.KEPT_BY_MIN: "",
    Code.RANK_GIVEN_BACK: "",
    Code.NODE_GIVEN_BACK: "",
    Code.WINDOW_CLOSES: "",
    Code.MAKES_ROOM: "",
    Code.TYPE_ABOVE_NODES_MAX: "",
    Code.ABOVE_NODES_MAX: "",
    Code.RETIRED_BY_OPERATOR: "While it drains, `flux-node-manager release NODE` takes it back.",
    Code.NEVER_JOINED: "Follow [Nodes boot and do not join](troubleshooting.md#nodes-boot-and-do-not-join).",
    Code.VANISHED: "If it happens again: look for nodes of the cluster at the provider.",
    Code.FAILED_AT_PROVIDER: "If it happens again: see the provider's console.",
    Code.JOIN_FAILED: "Follow `detail`: correct the image or `[Join]`.",
    Code.TICKET_REPLAYED: "Find out who had the ticket: [joining.md](joining.md).",
    Code.LESS_THAN_DECLARED: (
        "Make `[Node NAME]` match the machines, or set `misfit = accept` or `retype` in `[Policy]`: "
        "[slots.md](slots.md)."
    ),
    Code.BROKER_LOST: "If nodes die often, find out why. Flux ended its job and does not restart it.",
    Code.HANGS: "",
    Code.RECLAIMED: "",
    Code.IMPAIRED: "If it happens again: see the provider's console.",
    Code.HOUSEKEEPING_STUCK: "Find out why it hangs: `flux housekeeping list`, and the script itself.",
    Code.HOUSEKEEPING_SURVIVES: (
        "Log in to the node and end the process or reboot; or terminate the node at the provider."
    ),
    Code.FLAPS: "Check its network.",
    Code.FOUND_DRAINED: "",
    Code.DRAIN_UNANSWERED: "",
    Code.IDLE_NODES_BELOW: "",
    Code.LEAVES_WITH_OTHERS: "",
    Code.STILL_SCHEDULABLE: "",
    Code.NOT_DRAINED: "",
    Code.BROKER_STOPPING: "",
    Code.PROCESS_SURVIVES: "End the process as root or as its user.",
    Code.STOPPING: "If it lasts, see the provider's console: the node costs money until then.",
    Code.NOTHING_TO_DESTROY: "Lists will prove that it does not exist.",
    Code.ORPHAN: "If it happens often, report it.",
    Code.GONE_YET_ONLINE: "If it lasts: check whether the node is really gone.",
    Code.SPEND_TO_RECORD: "If it lasts: Flux's KVS does not answer.",
    Code.GONE: "",
}

# What the sentence does not say.
NOTES: Mapping[str, str] = {
    Code.PAUSED: "Nothing is bought, stopped or terminated. Running nodes keep costing money.",
    Code.INSTANCE_DIFFERS: (
        "Slots are missing, declare other resources, or have other ranks below them in the tree."
    ),
    Code.SAFE_MODE: "A large part of the fleet seems to be away at once, so the manager suspects the report.",
    Code.NOT_STEERABLE: "It could not read or write its token, or cannot listen. Idle nodes still end.",
    Code.RECORD_NOT_WRITTEN: "A node without a lease could be lost, so none is created.",
    Code.SETTLING: "A node that is only a lease gives its slot back if no job needs it.",
    Code.FITS_ON_A_NODE_THAT_IS_UP: (
        "`unheeded` names requests that the scheduler ignores. The figures from `near` on compare clouds "
        "for a job that says where its data is."
    ),
    Code.BEHIND_A_STUCK_JOB: "In queue order nothing starts behind that job.",
    Code.BEYOND_LIMITS: "In queue order it holds up all jobs behind it.",
    Code.BEYOND_BUDGET: "A node that is bought counts for at least an hour.",
    Code.BUDGET_SPENT: "Busy nodes finish their jobs and then end.",
    Code.BUDGET_OF_ACCOUNT: "The forecast counts what is spent, running jobs, and waiting jobs ahead.",
    Code.GANG_REFUSED: "Nothing is kept for jobs of this shape meanwhile. The pause doubles, up to an hour.",
    Code.USER_DRAINS_NODES: "Other users are not affected.",
    Code.SET_ASIDE: "The manager itself fails on this job. Other jobs are not affected.",
    Code.UNREADABLE: "No node is bought for it. Other jobs are not affected.",
    Code.TYPE_LIMIT: "With `ends`, no schedule ever allows more.",
    Code.NODES_MAX: "Idle nodes that the job cannot use leave to make room.",
    Code.CLOUD_CLOSED: "Its list is old, much of it vanished at once, or its section is gone.",
    Code.AT_QUOTA: "At `until_s` one more is tried. Each refusal makes the wait longer.",
    Code.BREAKER_OPEN: "Only boots since the last restart count. Another image is tried at once.",
    Code.KEPT_FOR_GPU_JOBS: "The type has GPUs, and `only_for` is not `any`.",
    Code.ANOTHER_TYPE_IS_CHEAPER: "It suits the same jobs.",
    Code.JOB_NEVER_RUNS: "In queue order all jobs behind it wait.",
    Code.GPU_NODE_UNGUARDED: "sched-simple gives a job the node with the most free cores.",
    Code.HANGS_AT_WORK: "It may recover, so nothing is done while it is busy.",
    Code.VANISHED_NOT_DESTROYED: "It counts as billed. It is forgotten an hour after it was last listed.",
    Code.DEMAND: "`not_taken`: the peers that were weighed.",
    Code.NODES_MIN: "Nodes that take no jobs do not count.",
    Code.RETRY_LATER: "Or it was the call to terminate the node, which is repeated.",
    Code.IDLE_UNCONFIRMED: "A node must be idle in several looks at its rank.",
    Code.PAID_TIME_LEFT: "Until then it can be used at no extra cost.",
    Code.HELD_BY_DRAIN: "Somebody else drained it, which holds it: it costs money and gets no work.",
    Code.HELD_BY_OPERATOR: "It costs money and gets no work.",
    Code.EMPTIES: "`consolidate = yes`. A job that no other node can take gets it back at once.",
    Code.NOT_REFILLED: "`consolidate = yes`.",
    Code.MAKES_ROOM: "That job cannot use this idle node.",
    Code.DRIFTED: "It gets no more jobs and goes when the last one has ended.",
    Code.TOO_OLD: "It gets no more jobs and goes when the last one has ended.",
    Code.REPLACED_BY_OPERATOR: "It gets no more jobs and goes when the last one has ended.",
    Code.RETIRED_BY_OPERATOR: "It gets no more jobs and goes when the last one has ended.",
    Code.VANISHED: "It is destroyed, in case it exists, and only then bought again.",
    Code.LESS_THAN_DECLARED: "It takes no more jobs. Its type is not bought for 15 minutes.",
    Code.BROKER_LOST: "Flux ended its job and does not restart it.",
    Code.RECLAIMED: "It takes no more jobs. For a while its type is bought elsewhere.",
    Code.IMPAIRED: "It takes no more jobs and ends once nothing runs there.",
    Code.FLAPS: "It takes no more jobs and ends once nothing runs there.",
    Code.HOUSEKEEPING_STUCK: "The housekeeping is killed, then the node is terminated.",
    Code.HOUSEKEEPING_SURVIVES: "The node takes no jobs and costs money.",
    Code.IDLE_NODES_BELOW: "`provider = minicluster`.",
    Code.FILLS_A_GAP: "`provider = minicluster`.",
    Code.LOWER_SLOT_IS_FREE: "`provider = minicluster`.",
    Code.LEAVES_WITH_OTHERS: "`provider = minicluster`.",
    Code.DELEGATION_STOPPED: "Jobs at their peers go on.",
    Code.PEER_UNREACHABLE: "It is not started elsewhere, because it may run there.",
    Code.COPY_WAITS: "The provider takes back the node of that job.",
    Code.DRAINED_BY_FLUX: "For example because a prolog failed there.",
}
