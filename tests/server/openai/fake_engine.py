"""Engines whose requests end in a given way, or whose texts take long."""

import time

from jaxinfer.model.text.tokenizer import Tokenizer


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

    async def generate(self, *args, **options):
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item


class SlowTokenizer(Tokenizer):
    """A tokenizer that takes long, as one does with a hostile text or template."""

    def __init__(self, tokenizer):
        vars(self).update(vars(tokenizer))
        self._tokenizer = tokenizer

    def apply_chat_template(self, *args, **options):
        time.sleep(0.8)
        return self._tokenizer.apply_chat_template(*args, **options)

    def encode(self, text, **options):
        if text.startswith("slow"):
            time.sleep(0.8)
        return self._tokenizer.encode(text, **options)


class SlowEngine(FakeEngine):
    """A real engine whose tokenizer takes 0.8 s; counts the requests that reach it."""

    def __init__(self, engine):
        super().__init__(engine)
        self.tokenizer = SlowTokenizer(engine.tokenizer)
        self.num_requests = 0

    def generate(self, *args, **options):
        self.num_requests += 1
        return self._engine.generate(*args, **options)
