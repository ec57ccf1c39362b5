"""The kinds of device programs, a file each; kind.py says what each one answers."""
