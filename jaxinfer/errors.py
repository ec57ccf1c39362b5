"""The few exceptions that users of jaxinfer see, so that they can tell our errors from bugs."""


class JaxinferError(Exception):
    """Base of every error that jaxinfer raises for a reason a user can act on."""


class ModelLoadError(JaxinferError, ValueError):
    """A model can't be loaded; the message is one line, ``<file>: <cause>``."""


class CapacityError(JaxinferError, ValueError):
    """What was asked for does not fit, for example a KV cache smaller than one full request."""


class StepError(JaxinferError, RuntimeError):
    """A device step raised; the donated KV cache of that step is gone."""


class DistributedError(JaxinferError, RuntimeError):
    """One of several processes that run an engine together failed, differs, or did not come."""
