"""An engine in a process of its own, and the processes in front of it that take its requests."""
