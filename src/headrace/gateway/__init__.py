"""Every decision in front of replicas. Pure: it is told what was sent and what has come back."""
