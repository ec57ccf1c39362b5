"""Allows one recording of an engine at a time, as recordings would disturb each other."""


class OneRecording:
    """The recording of an engine that is running, if any; used in the engine's thread."""

    def __init__(self) -> None:
        self._running: tuple[str, str] | None = None

    def begin(self, subject: str, how_to_end: str) -> None:
        """Claim the engine.

        Args:
            subject: the kind of recording, for others' messages: "memory".
            how_to_end: the way for a caller to end it.

        Raises:
            RuntimeError: another recording is running; names it, and the way to end it.
        """
        if self._running is not None:
            running, ends = self._running
            raise RuntimeError(
                f"{subject} can't be recorded now: {running} is being recorded; {ends} first"
            )
        self._running = subject, how_to_end

    def end(self) -> None:
        """End the recording, so that another may begin."""
        self._running = None
