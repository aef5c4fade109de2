"""What-if: replay a workload under another policy and compare cost and waits."""
