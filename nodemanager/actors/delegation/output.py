"""Copy what a job writes at its peer into the job here, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodemanager.actors.delegation.state import DelegationState, PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.delegation.next_step import OutputState, StreamOutput
from nodemanager.delegation.ports import (
    AppendOutput,
    CopyOutput,
    CopyOutputEnded,
    CountOutput,
    FollowOutput,
    StopOutput,
)
from nodemanager.delegation.relay import EXEC, OUTPUT, OutputRelay


class OutputStreams:
    """The output of all jobs. ``step`` takes the next step of a job."""

    def __init__(self, state: DelegationState, step: Callable[[JobId], None]) -> None:
        self._state = state
        self._step = step

    def follow(self, tracked: TrackedJob, step: StreamOutput) -> None:
        """Begin to copy, after asking what the job here has already."""
        if tracked.relay is None and tracked.shown_by_us:
            self.begin(tracked.proxy.id, {})
            return
        if tracked.relay is None:
            self._state.ask_home(tracked, CountOutput(tracked.proxy.id))
            return
        tracked.stream += 1
        tracked.output = OutputState.FLOWING
        self._state.peers[step.peer].port.send(FollowOutput(step.remote, tracked.stream))
        self._step(tracked.proxy.id)

    def begin(self, job: JobId, counts: Mapping[str, int]) -> None:
        """Take what the job here has already."""
        tracked = self._state.jobs.get(job)
        if tracked is None or tracked.proxy.placed is None:
            return
        placed = tracked.proxy.placed
        peer = self._state.peers[placed.peer].peer
        where = f"flux proxy {peer.uri} flux job attach {format_job_id(placed.remote)}"
        tracked.relay = OutputRelay(counts, peer.output_max_bytes, where)
        tracked.has_output = counts.get(OUTPUT, 0) > 0
        tracked.answered()
        self._step(job)

    def take(self, peer: PeerState, fact: CopyOutput) -> None:
        """Copy some output."""
        tracked = self._followed(peer, fact)
        if tracked is None or tracked.relay is None:
            return
        if lines := tracked.relay.take(fact.key, fact.events):
            tracked.has_output |= fact.key == OUTPUT
            if tracked.has_output:
                self._append(tracked, fact.key, lines)
            else:
                tracked.held_back += lines
        if tracked.relay.cut and not tracked.stream_ended:
            peer.port.send(StopOutput(fact.remote))
            tracked.stream_ended = True

    def end(self, peer: PeerState, fact: CopyOutputEnded) -> None:
        """The peer has sent everything."""
        if (tracked := self._followed(peer, fact)) is not None:
            tracked.stream_ended = True
            if tracked.held_back:
                self._append(tracked, EXEC, "")
            self._done_if_all_is_written(tracked)

    def appended(self, request: AppendOutput) -> None:
        """Some output is written, or cannot be."""
        if (tracked := self._state.jobs.get(request.job)) is not None and tracked.appends:
            tracked.appends -= 1
            self._done_if_all_is_written(tracked)

    def stop(self, tracked: TrackedJob) -> None:
        """Our instance is lost: begin again once it is back."""
        placed = tracked.proxy.placed
        if tracked.output is OutputState.FLOWING and placed is not None and placed.peer in self._state.peers:
            self._state.peers[placed.peer].port.send(StopOutput(placed.remote))
        tracked.drop_output()
        tracked.relay, tracked.held_back, tracked.shown_by_us = None, "", False

    def _append(self, tracked: TrackedJob, key: str, lines: str) -> None:
        """Append lines, together with those that were held back."""
        texts = {EXEC: tracked.held_back, OUTPUT: ""}
        texts[key] += lines
        tracked.held_back = ""
        tracked.appends += 1
        self._state.home.send(AppendOutput(tracked.proxy.id, {key: text for key, text in texts.items() if text}))

    def _done_if_all_is_written(self, tracked: TrackedJob) -> None:
        if tracked.output is OutputState.FLOWING and tracked.stream_ended and not tracked.appends:
            tracked.output = OutputState.DONE
            self._step(tracked.proxy.id)

    def _followed(self, peer: PeerState, fact: CopyOutput | CopyOutputEnded) -> TrackedJob | None:
        job = peer.job_of.get(fact.remote)
        tracked = self._state.jobs.get(job) if job is not None else None
        return tracked if tracked is not None and tracked.stream == fact.stream else None
