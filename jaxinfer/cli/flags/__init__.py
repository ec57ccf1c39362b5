"""The command-line flags: the parser, and one file for each group of flags."""
