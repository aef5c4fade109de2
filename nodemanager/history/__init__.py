"""What happened and what it cost: events, jobs, node lives and amounts, followed from the manager's snapshots."""
