"""Reads the draft head that an engine drafts with, and refuses what it can't do."""

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import resolve_model
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.files import DraftHead, check_drafts, read_draft_head
from jaxinfer.model.draft_head.readers import READERS
from jaxinfer.model.draft_head.shipped import shipped_head


def read_head_of(config: EngineConfig, model_config: ModelConfig) -> DraftHead | None:
    """The draft head that `speculative_config` names; None if it names none.

    Raises:
        ModelLoadError: as of `shipped_head`, `resolve_model` and `read_draft_head`.
        ValueError: it can't draft as many tokens as are asked for.
    """
    drafts = config.speculative_config
    if drafts is None or drafts.model is None:
        return None
    name, method = drafts.model, drafts.method
    try:
        named = shipped_head(name, method, model_config) or name
        directory = resolve_model(named, drafts.revision)
        head = read_draft_head(directory, model_config, READERS[method])
    except (ModelLoadError, OSError) as error:
        raise ModelLoadError(f"speculative_config: model: {error}") from error
    check_drafts(head, drafts.num_speculative_tokens)
    return head
