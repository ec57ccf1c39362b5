"""The kinds of device programs, a file each; kind.py has their common interface."""
