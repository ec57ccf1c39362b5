"""A request from its call to its output: prompt, host state, completions and text."""
