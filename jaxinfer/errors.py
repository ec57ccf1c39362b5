"""Exceptions that jaxinfer raises for a user's mistakes and for limits; any other is a bug."""


class JaxinferError(Exception):
    """Base of every error that jaxinfer raises for a reason a user can act on."""


class ModelLoadError(JaxinferError, ValueError):
    """A model can't be loaded; the message is one line, ``<file>: <cause>``."""


class CapacityError(JaxinferError, ValueError):
    """Memory is too small, for example for one full-length request in the KV cache."""


class StepError(JaxinferError, RuntimeError):
    """A device step raised; the donated KV cache of that step is gone."""


class DistributedError(JaxinferError, RuntimeError):
    """One of an engine's processes failed, differs from the others, or did not arrive."""


class PromptTooLongError(JaxinferError, ValueError):
    """A prompt leaves no room within the model's length; agents shorten their history then.

    Args:
        message: one line that names the prompt, its size and the limit.
        num_tokens: of the prompt, or the fewest that its text can have.
        is_exact: whether the text was tokenized, so that it is exactly that many.
    """

    def __init__(self, message: str, *, num_tokens: int = 0, is_exact: bool = True) -> None:
        super().__init__(message)
        self.num_tokens = num_tokens
        self.is_exact = is_exact


class AdapterNotFoundError(JaxinferError, ValueError):
    """No LoRA adapter of this name is loaded; a server answers 404."""


class QueueFullError(JaxinferError, RuntimeError):
    """The waiting queue is full; a server answers 503.

    Args:
        message: one line for the client.
        retry_after: seconds after which it may try again.
    """

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineUnavailableError(JaxinferError, RuntimeError):
    """The engine sleeps, or is paused and refuses requests; a server answers 503."""


class ShuttingDownError(QueueFullError):
    """The service ends and takes no more requests; another one of the same model may."""


class EngineRestartingError(QueueFullError):
    """The engine's process has ended and is started anew, with its model; a server answers 503."""


class MissingPackageError(JaxinferError, ImportError):
    """An optional package is not installed; the message names the extra of jaxinfer that has it."""


class EngineDeadError(StepError):
    """The engine's process has ended, or failed for good."""
