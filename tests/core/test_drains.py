from __future__ import annotations

import pytest

from nodemanager.core.drains import drain_text, hold_text, is_drain_by_flux, is_our_drain, job_of_drain
from nodemanager.core.nodes import LaunchId

BY_FLUX = {
    "ƒ2YXZLLFZPj terminated before first barrier": "ƒ2YXZLLFZPj",
    "job ƒ2YXZLLFZPj start timeout: possible node hang": "ƒ2YXZLLFZPj",
    "unkillable user processes for job f2YXZLLFZPj": "f2YXZLLFZPj",  # a locale without ƒ
    "prolog failed for job ƒ2YXZLLFZPj": "ƒ2YXZLLFZPj",
    "epilog failed for job ƒ2YXZLLFZPj": "ƒ2YXZLLFZPj",
    "epilog timed out for job ƒ2YXZLLFZPj": "ƒ2YXZLLFZPj",
    "prolog canceled then timed out for job ƒ2YXZLLFZPj": "ƒ2YXZLLFZPj",
    "sdexec reports unkillable processes for job ƒ2YXZLLFZPj": "ƒ2YXZLLFZPj",
    "sdexec constraint check failed on cloud1 for job ƒ2YXZLLFZPj: AllowedCPUs": "ƒ2YXZLLFZPj",
    "housekeeping@f2YXZLLFZPj exit-code: exited 1": "f2YXZLLFZPj",
    "rank 3 got hostname 'vm', expected 'cloud3'": "",
    "rank 3 (cloud3) missing resources: core[2-3]": "",
    "rank 3 (cloud3) has extra resources: gpu0": "",
    "rank 3 not found in expected ranks": "",
}


@pytest.mark.parametrize("reason", BY_FLUX)
def test_drains_that_flux_makes_itself_are_told_by_their_reason(reason: str) -> None:
    assert is_drain_by_flux(reason)
    assert job_of_drain(reason) == BY_FLUX[reason]


@pytest.mark.parametrize(
    "reason",
    [
        None,
        "",
        "broken fan",
        "prolog failed",
        "prolog failed for job ƒ2YXZLLFZPj, ada looks at it",
        "see ƒ2YXZLLFZPj terminated before first barrier",
        drain_text(LaunchId("cloud1-1")),
        hold_text(LaunchId("cloud1-1")),
    ],
)
def test_any_other_drain_is_not_taken_for_one_by_flux(reason: str | None) -> None:
    assert not is_drain_by_flux(reason)


def test_our_own_drain_is_ours_even_if_it_repeats_the_reason_of_flux() -> None:
    reason = f"{drain_text(LaunchId('cloud1-1'))} prolog failed for job ƒ2YXZLLFZPj"
    assert is_our_drain(reason)
    assert not is_drain_by_flux(reason)
