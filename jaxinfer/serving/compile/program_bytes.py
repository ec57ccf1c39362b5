"""The device memory that a compiled program needs, by the compiler's analysis."""

import jax


def program_bytes(program: jax.stages.Compiled) -> int:
    """Device memory that a program needs beyond its arguments, on each device; 0 if unknown."""
    analysis = program.memory_analysis()
    if analysis is None:
        return 0
    # Aliased results are the donated pages. The other results of a step may still be alive while
    # the next step, launched before they are read, makes its own.
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes + 2 * results
