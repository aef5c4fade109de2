"""EC2's error codes, which the local driver uses too."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from nodemanager.cloud.common.libcloud_port import ErrorCodes, classify
from nodemanager.core.nodes import FailureKind, QuotaScope

EC2_CODES = ErrorCodes(
    MappingProxyType(
        {
            "InsufficientInstanceCapacity": FailureKind.CAPACITY,
            "InsufficientCapacity": FailureKind.CAPACITY,
            "UnfulfillableCapacity": FailureKind.CAPACITY,
            "InsufficientHostCapacity": FailureKind.CAPACITY,
            "InsufficientReservedInstanceCapacity": FailureKind.CAPACITY,
            "InsufficientFreeAddressesInSubnet": FailureKind.CAPACITY,
            "InvalidPlacementGroup.InUse": FailureKind.TRANSIENT,
            "InvalidPlacementGroup.Unknown": FailureKind.TRANSIENT,  # deleted by a sweep, or just made
            "PlacementGroupLimitExceeded": FailureKind.QUOTA,
            "SpotMaxPriceTooLow": FailureKind.CAPACITY,
            "Unsupported": FailureKind.CAPACITY,  # this zone does not offer the type
            "InstanceLimitExceeded": FailureKind.QUOTA,
            "VcpuLimitExceeded": FailureKind.QUOTA,
            "MaxSpotInstanceCountExceeded": FailureKind.QUOTA,
            "VolumeLimitExceeded": FailureKind.QUOTA,
            "RequestLimitExceeded": FailureKind.THROTTLED,
            "Throttling": FailureKind.THROTTLED,
            "ThrottlingException": FailureKind.THROTTLED,
            "RequestThrottled": FailureKind.THROTTLED,
            "EC2ThrottledException": FailureKind.THROTTLED,
            "AuthFailure": FailureKind.CREDENTIALS,
            "UnauthorizedOperation": FailureKind.CREDENTIALS,
            "RequestExpired": FailureKind.CREDENTIALS,  # or this machine's clock is wrong
            "ExpiredToken": FailureKind.CREDENTIALS,
            "MissingAuthenticationToken": FailureKind.CREDENTIALS,
            "IncompleteSignature": FailureKind.CREDENTIALS,
            "InvalidClientTokenId": FailureKind.CREDENTIALS,
            "SignatureDoesNotMatch": FailureKind.CREDENTIALS,
            "OptInRequired": FailureKind.CREDENTIALS,
            "PendingVerification": FailureKind.CREDENTIALS,
            "Blocked": FailureKind.CREDENTIALS,
            "InvalidInstanceID.Malformed": FailureKind.GONE,
            "IdempotentParameterMismatch": FailureKind.AMBIGUOUS,  # the token made a node with other parameters
        }
    ),
    # EC2 counts vCPUs by family of types.
    MappingProxyType(
        {
            "InstanceLimitExceeded": QuotaScope.TYPE,
            "VcpuLimitExceeded": QuotaScope.TYPE,
            "MaxSpotInstanceCountExceeded": QuotaScope.MARKET,
        }
    ),
    gone_suffix=".NotFound",
)
classify_ec2 = partial(classify, codes=EC2_CODES)
