"""The least privileges of the manager on EC2. doc/clouds/ec2.md shows them for the cluster "lab"."""

from __future__ import annotations

from typing import Any

from nodemanager.config.site import cluster_of_test


def least_privileges(cluster: str, partition: str = "aws") -> dict[str, Any]:
    """The policy for the manager of one cluster. ``partition``: "aws-cn" in China, "aws-us-gov" in GovCloud."""
    ours = [cluster, cluster_of_test(cluster)]
    arn = f"arn:{partition}:ec2:*"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "Describe",
                "Effect": "Allow",
                "Action": [
                    "ec2:DescribeInstances",
                    "ec2:DescribeInstanceStatus",
                    "ec2:DescribeImages",
                    "ec2:DescribeVolumes",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeAddresses",
                    "ec2:DescribePlacementGroups",
                ],
                "Resource": "*",
            },
            {
                "Sid": "CreateWithOurTag",
                "Effect": "Allow",
                "Action": "ec2:RunInstances",
                "Resource": [f"{arn}:*:{kind}/*" for kind in ("instance", "volume", "network-interface")],
                "Condition": {"StringEquals": {"aws:RequestTag/fnm:cluster": ours}},
            },
            {
                "Sid": "CreateGroupWithOurTag",
                "Effect": "Allow",
                "Action": "ec2:CreatePlacementGroup",
                "Resource": f"{arn}:*:placement-group/fnm-*",
                "Condition": {"StringEquals": {"aws:RequestTag/fnm:cluster": ours}},
            },
            {
                "Sid": "CreateFromThese",
                "Effect": "Allow",
                "Action": "ec2:RunInstances",
                "Resource": [
                    *(f"{arn}::{kind}/*" for kind in ("image", "snapshot")),
                    *(
                        f"{arn}:*:{kind}/*"
                        for kind in (
                            "subnet",
                            "security-group",
                            "key-pair",
                            "spot-instances-request",
                            "placement-group",
                        )
                    ),
                ],
            },
            {
                "Sid": "TagAtCreation",
                "Effect": "Allow",
                "Action": "ec2:CreateTags",
                "Resource": f"{arn}:*:*/*",
                "Condition": {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreatePlacementGroup"]}},
            },
            {
                "Sid": "DeleteWithOurTag",
                "Effect": "Allow",
                "Action": [
                    "ec2:TerminateInstances",
                    "ec2:DeleteVolume",
                    "ec2:DeleteNetworkInterface",
                    "ec2:ReleaseAddress",
                    "ec2:DeletePlacementGroup",
                ],
                "Resource": "*",
                "Condition": {"StringEquals": {"aws:ResourceTag/fnm:cluster": ours}},
            },
        ],
    }


def partition_of(region: str) -> str:
    """The partition of a region, as ARNs name it."""
    return next(
        (name for start, name in (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov")) if region.startswith(start)), "aws"
    )
