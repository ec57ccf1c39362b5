"""Measurements that scripts/ run beside the named workloads, and the records that keep them."""
