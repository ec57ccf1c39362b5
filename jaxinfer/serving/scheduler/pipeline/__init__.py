"""Steps of a pipeline: which requests have part, and how many steps are on their way."""
