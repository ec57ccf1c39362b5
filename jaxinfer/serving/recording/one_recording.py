"""Allows one recording of an engine at a time: a profile would show another's work."""


class OneRecording:
    """What is being recorded of an engine now; used in the engine's thread."""

    def __init__(self) -> None:
        self._running: tuple[str, str] | None = None

    def begin(self, subject: str, how_to_end: str) -> None:
        """Claim the engine.

        Args:
            subject: what is recorded, for others' messages: "memory".
            how_to_end: what a caller does to end it.

        Raises:
            RuntimeError: something is being recorded already; says what, and how to end it.
        """
        if self._running is not None:
            running, ends = self._running
            raise RuntimeError(
                f"{subject} can't be recorded now: {running} is being recorded; {ends} first"
            )
        self._running = subject, how_to_end

    def end(self) -> None:
        """Let others record."""
        self._running = None
