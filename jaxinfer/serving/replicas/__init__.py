"""Replicas of a model on devices of their own, behind one queue: data parallelism in a process."""
