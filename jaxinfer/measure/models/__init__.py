"""Models to measure: shapes of published models, random weights, and the engine around them."""
