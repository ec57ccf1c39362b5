"""The pieces of the sampler, one step of the way from logits to a token each."""
