"""An engine whose requests end in a given way."""


class FakeEngine:
    """Gives every request the same outputs, and has a real engine's facts.

    Args:
        engine: the real one.
        items: outputs, and perhaps an exception that ends them.
    """

    def __init__(self, engine, *items):
        self._engine = engine
        self._items = items

    def __getattr__(self, name):
        if name in ("pause", "sleep"):  # as of an engine that can't
            raise AttributeError(name)
        return getattr(self._engine, name)

    async def generate(self, prompt, params, request_id, *, priority=0, prefill_only=False):
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item
