"""The exceptions that users of jaxinfer see, to tell its errors from bugs."""


class JaxinferError(Exception):
    """Base of every error that jaxinfer raises for a reason a user can act on."""


class ModelLoadError(JaxinferError, ValueError):
    """A model can't be loaded; the message is one line, ``<file>: <cause>``."""


class CapacityError(JaxinferError, ValueError):
    """Something does not fit, for example one full-length request into the KV cache."""


class StepError(JaxinferError, RuntimeError):
    """A device step raised; the donated KV cache of that step is gone."""


class DistributedError(JaxinferError, RuntimeError):
    """One of an engine's processes failed, differs from the others, or did not arrive."""


class QueueFullError(JaxinferError, RuntimeError):
    """As many requests wait as the engine lets wait; a server answers 503.

    Args:
        message: one line for the client.
        retry_after: seconds after which it may try again.
    """

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDownError(QueueFullError):
    """The service ends and takes no more requests; another one of the same model may."""


class EngineDeadError(StepError):
    """The engine's process has ended, or failed for good."""
