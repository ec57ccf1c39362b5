"""Steps an engine until nothing is left."""


def run_engine(engine, before_step=lambda: None, after_step=lambda: None, most_steps=5000):
    """All outputs, in order."""
    outputs = []
    for _ in range(most_steps):
        if not engine.has_unfinished:
            return outputs
        before_step()
        engine.step()
        after_step()
        outputs += engine.take_outputs()
    raise AssertionError(f"requests are left after {most_steps} steps")
