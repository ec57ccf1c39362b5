"""Where the steps of a pipeline read what they are given."""
