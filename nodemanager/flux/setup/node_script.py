"""Build the script that a node runs at boot, if it can read the bootstrap folder or asks rank 0 for a rank.

The script runs the broker of a slot until SIGTERM. A node that joins by ticket runs ``flux_node_join`` instead.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from nodemanager.config.site import JoinMethod, Site
from nodemanager.config.text.flux_toml import ConfigFile, FluxConfigError, bootstrap_hosts
from nodemanager.core.slots import SlotName
from nodemanager.flux.setup.bootstrap import broker_command, find_flux, site_admits_guests


def follower_command(site: Site, slot: SlotName, flux_command: str = "flux") -> list[str]:
    """Return the command of a broker that joins as ``slot``, for a node that can read the bootstrap folder."""
    if slot not in site.slots and slot not in _current_table_hosts(site):
        raise ValueError(f'"{slot}" is not a slot of {site.path}')
    return broker_command(flux_command, site.flux.bootstrap_dir, slot)


def _current_table_hosts(site: Site) -> list[str]:
    """Read the bootstrap table's current hosts: it may have grown since the site was loaded."""
    try:
        return bootstrap_hosts(ConfigFile.find(site.flux.bootstrap_dir).read())
    except FluxConfigError:
        return []


def user_data(site: Site, slot: SlotName, flux_command: str = "flux") -> str:
    """Return the shell script that a node runs at boot. It runs the broker, and restarts it until SIGTERM.

    A node of this machine or of an outer instance ends if rank 0 stays away.

    Raises :class:`BootstrapError` if there is no flux, or if the instance's configuration cannot be read.
    """
    if site.flux.join is JoinMethod.IMAGE:
        return _IMAGE_USER_DATA.format(slot=shlex.quote(slot), start=site.flux.image_start)
    flux = find_flux(flux_command)
    flub = site.flux.join is JoinMethod.FLUB
    broker = shlex.join(_flub_follower_command(site, slot, flux) if flub else follower_command(site, slot, flux))
    return _USER_DATA.format(
        slot=shlex.quote(slot),
        path=shlex.quote(f"{Path(flux).parent}:/usr/bin:/bin"),
        open_rundir=_OPEN_RUNDIR if site_admits_guests(site) else "",
        survivors="" if _shares_its_session(site) else _SURVIVORS,
        end_survivors=":" if _shares_its_session(site) else "end_survivors",
        watch=_WATCH.format(away_max_s=math.ceil(_rank_0_away_max_s(site))) if _ends_itself(site) else "",
        prepare=_FLUB_PREPARE if flub else ":",
        broker=f'{broker} --config-path="$rundir/node.toml"' if flub else broker,
    )


def _shares_its_session(site: Site) -> bool:
    """Whether other jobs' processes are in the script's session: those of an outer instance's jobs are."""
    return site.rules.shares_session


def _ends_itself(site: Site) -> bool:
    """Whether the end of the script ends the node. Another provider's machine would cost as much without it."""
    return site.rules.ends_with_script


def _rank_0_away_max_s(site: Site) -> float:
    timing = site.timing
    return timing.boot_timeout_s if site.rules.is_this_machine else timing.manager_silence_max_s


def _flub_follower_command(site: Site, slot: SlotName, flux: str) -> list[str]:
    """Return the command of a broker that gets its rank from Flux and uses the slot as its host name (``flub``)."""
    server = site.flux.boot_server or site.flux.uri
    return [flux, "broker", f"-Sbroker.boot-server={server}", f"-Shostname={slot}", "-Stbon.topo=kary:0"]


# The broker starts with a configuration of its own. Without noverify it would drain itself, because its host name
# is not the placeholder's.
_FLUB_PREPARE = """printf '[resource]\\nnoverify = true\\n' >"$rundir/node.toml\""""

# The image contains the configuration and the certificate. The slot becomes the node's unique host name.
_IMAGE_USER_DATA = """\
#!/bin/sh
# Starts the Flux broker of a slot, with the configuration in the image.
SLOT={slot}
export SLOT
{start}
"""

# A guest's job connects to the broker's socket. On a local node, and in a job of an outer instance, the folder
# above belongs to this user too.
_OPEN_RUNDIR = """
# The instance admits guests: their jobs must reach the broker's socket.
chmod go+x "${TMPDIR:-/tmp}" 2>/dev/null
chmod 0755 "$rundir" || exit 1"""

# A node whose rank 0 is gone for good would try to join forever. The node's own broker is asked whether rank 0
# answers. Failed looks are counted instead of reading the clock, so that a suspended laptop loses no node. Flux
# cannot tell what runs while rank 0 is away, so a shell with a task counts as a job. So does a shell of another
# user, because only root can tell to which node it belongs.
_WATCH = """
away_max_s={away_max_s}
look_s=$((away_max_s / 4 > 15 ? 15 : away_max_s / 4 + 1))

rank_0_answers() {{
    for socket in "$rundir"/local-*; do
        FLUX_URI="local://$socket" timeout "$look_s" flux ping --count=1 0 >/dev/null 2>&1 &
        wait "$!" && return 0
    done
    return 1
}}

has_job() {{
    for process in /proc/[0-9]*; do
        [ "$(cat "$process/comm" 2>/dev/null)" = flux-shell ] || continue
        [ -n "$(cat "$process"/task/*/children 2>/dev/null)" ] || continue
        grep -qs "$rundir" "$process/environ"
        [ $? -eq 1 ] || return 0
    done
    return 1
}}

watch() {{
    trap 'kill "$!"; exit' TERM INT HUP
    away_s=0
    while :; do
        sleep "$look_s" &
        wait "$!"
        away_s=$((away_s + look_s))
        if rank_0_answers; then
            away_s=0
        elif [ "$away_s" -ge "$away_max_s" ]; then
            if has_job; then
                echo "slot $slot: rank 0 has been away for $away_s s, a job keeps it from ending" >&2
                continue
            fi
            echo "slot $slot: rank 0 has been away for $away_s s, the node ends" >&2
            touch "$rundir/ends"
            kill -TERM "$$"
            exit
        fi
    done
}}
watch &
watcher=$!
"""

# After a broker's sudden death the tasks of its jobs run on, and Flux no longer knows them: no job may begin beside
# them. They are found by their session, which is this script's. Those that were there before the first broker, and
# the script's own children, do not count. A guest's process can be ended only by the guest or by root.
_SURVIVORS = """
# shellcheck disable=SC2086 # the fields are words
survivors() {
    for process in /proc/[0-9]*; do
        stat=
        while IFS= read -r line; do stat="$stat$line "; done <"$process/stat" || continue
        pid=${process#/proc/}
        # The name, in parentheses, may contain anything. After it: state, parent, group, session.
        set -- ${stat##*) }
        [ $# -ge 4 ] && [ "$4" = "$session" ] && [ "$1" != Z ] || continue
        case " $known $$ " in *" $pid "*) continue ;; esac
        case "$2" in 1) echo "$pid"; continue ;; esac
        parent=
        while IFS= read -r line; do parent="$parent$line "; done <"/proc/$2/stat" || continue
        set -- ${parent##*) }
        [ "${4:-}" = "$session" ] || echo "$pid"
    done 2>/dev/null
}

# shellcheck disable=SC2086
end_survivors() {
    told=
    while left=$(survivors) && [ -n "$left" ]; do
        kill -KILL $left 2>/dev/null
        left=$(survivors)
        if [ -n "$left" ] && [ "$left" != "$told" ]; then
            told=$left
            echo "slot $slot: the broker starts once these processes of other users have ended:" $left >&2
        fi
        sleep 1 &
        child=$!
        wait "$child"
    done
}

stat=
while IFS= read -r line; do stat="$stat$line "; done </proc/$$/stat
# shellcheck disable=SC2086
set -- ${stat##*) }
session=$4
known=
known=$(survivors)
# shellcheck disable=SC2086,SC2116
known=$(echo $known)
"""

# A broker ends when rank 0 ends, and joins again when rank 0 is back. A broker whose leader died suddenly ignores
# SIGTERM, so the script kills it after five seconds. Besides the watch, the script has at most one child at a time.
# A local node ends when its init ends, the parent of this script.
_USER_DATA = """\
#!/bin/sh
# Runs the Flux broker of a slot until SIGTERM.
set -u
slot={slot}
PATH={path}
export PATH
unset FLUX_URI FLUX_JOB_ID FLUX_KVS_NAMESPACE
rundir=$(mktemp -d -t flux-slot.XXXXXX) || exit 1{open_rundir}
child=
watcher=

leave() {{
    trap '' TERM INT HUP
    [ -z "$watcher" ] || kill -TERM "$watcher" 2>/dev/null
    if [ -n "$child" ] && kill -TERM "$child" 2>/dev/null; then
        looks=25
        while kill -0 "$child" 2>/dev/null; do
            if [ "$looks" -eq 0 ]; then
                kill -KILL "$child"
                wait "$child"
                break
            fi
            looks=$((looks - 1))
            sleep 0.2
        done
    fi
    ends=
    [ -e "$rundir/ends" ] && ends=yes
    rm -rf "$rundir"
    [ -z "$ends" ] || [ -z "${{FNM_NODE:-}}" ] || kill -KILL "$PPID"
    exit 0
}}
trap leave TERM INT HUP
{survivors}{watch}
delay=1
while :; do
    started=$(date +%s)
    {prepare}
    {broker} -Srundir="$rundir" </dev/null &
    child=$!
    wait "$child"
    status=$?
    if [ "$(($(date +%s) - started))" -ge 60 ]; then
        delay=1
    fi
    echo "slot $slot: the broker ended with $status, next start in $delay s" >&2
    {end_survivors}
    sleep "$delay" &
    child=$!
    wait "$child"
    delay=$((delay * 2))
    if [ "$delay" -gt 30 ]; then
        delay=30
    fi
done
"""
