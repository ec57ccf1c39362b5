"""The fields at the head of an answer: its id, its time, and who made it."""

import time
import uuid
from typing import Any

from jaxinfer import __version__
from jaxinfer.server.openai.front import Front

FINGERPRINT = f"jaxinfer-{__version__}"


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def head(kind: str, prefix: str, front: Front, adapter: str | None = None) -> dict[str, Any]:
    """The fields at the head of every answer and every chunk of one."""
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": adapter or front.settings.model_name,
        "system_fingerprint": FINGERPRINT,
    }
