"""Which instances a quota of AWS counts, by the names that Service Quotas gives them."""

from __future__ import annotations

import pytest

from nodemanager.cloud.ec2.account import CpuQuota, read_cpu_quotas
from nodemanager.cloud.ec2.credentials import Keys
from nodemanager.cloud.ec2.driver import endpoint_of
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market
from tests.cloud.ec2.moto_front import REGION, SECRETS, MotoFront
from tests.contract.cloud_subjects import SystemClock

NAMES = (
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "Running On-Demand G and VT instances",
    "Running On-Demand P instances",
    "Running On-Demand DL instances",
    "Running On-Demand HPC instances",
    "Running On-Demand High Memory instances",
    "Running On-Demand Inf instances",
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "All P5 Spot Instance Requests",
    "All P4, P3 and P2 Spot Instance Requests",
    "EC2-VPC Elastic IPs",
)


def quotas() -> tuple[CpuQuota, ...]:
    """Those that the adapter reads, page by page and signed."""
    front = MotoFront()
    front.cpu_quotas = {name: float(number) for number, name in enumerate(NAMES)}
    try:
        return read(front, *next(iter(SECRETS.items())))
    finally:
        front.close()


def read(front: MotoFront, key: str, secret: str) -> tuple[CpuQuota, ...]:
    return read_cpu_quotas(endpoint_of(REGION, front.url), lambda: Keys(key, secret), SystemClock(), 20.0)


@pytest.mark.parametrize(
    ("size", "market", "name"),
    [
        ("c7i.xlarge", Market.ON_DEMAND, NAMES[0]),
        ("im4gn.large", Market.ON_DEMAND, NAMES[0]),
        ("z1d.large", Market.ON_DEMAND, NAMES[0]),
        ("g6.xlarge", Market.ON_DEMAND, NAMES[1]),
        ("gr6.4xlarge", Market.ON_DEMAND, NAMES[1]),
        ("vt1.3xlarge", Market.ON_DEMAND, NAMES[1]),
        ("p5.48xlarge", Market.ON_DEMAND, NAMES[2]),
        ("dl1.24xlarge", Market.ON_DEMAND, NAMES[3]),
        ("hpc7a.96xlarge", Market.ON_DEMAND, NAMES[4]),
        ("u-6tb1.56xlarge", Market.ON_DEMAND, NAMES[5]),
        ("inf2.xlarge", Market.ON_DEMAND, NAMES[6]),
        ("c7i.xlarge", Market.SPOT, NAMES[7]),
        ("p5.48xlarge", Market.SPOT, NAMES[8]),
        ("p4d.24xlarge", Market.SPOT, NAMES[9]),
        ("trn1.2xlarge", Market.ON_DEMAND, ""),
        ("mac2.metal", Market.ON_DEMAND, ""),
    ],
)
def test_each_size_counts_to_one_quota(size: str, market: Market, name: str) -> None:
    assert "".join(it.name for it in quotas() if it.counts(size, market)) == name


def test_quotas_that_may_not_be_read_are_an_error_with_aws_s_words() -> None:
    front = MotoFront()
    try:
        with pytest.raises(CloudError, match="AccessDeniedException: not authorized to perform"):
            read(front, *next(iter(SECRETS.items())))
        with pytest.raises(CloudError, match="InvalidSignatureException"):
            read(front, "AKIAEXAMPLE", "wrong")
        with pytest.raises(CloudError) as none:
            read(front, "", "")
        assert none.value.kind is FailureKind.CREDENTIALS
    finally:
        front.close()
