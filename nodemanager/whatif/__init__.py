"""What if: a real or a synthetic workload replayed under a policy, and what it would have cost."""
