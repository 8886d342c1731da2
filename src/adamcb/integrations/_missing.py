"""What to say when a framework is not installed."""

from __future__ import annotations


def missing(framework: str) -> ImportError:
    """Return the error that names the extra to install."""
    return ImportError(
        f"adamcb.integrations.{framework} needs {framework}, which cannot be imported: "
        f'pip install ".[{framework}]" in a clone',
        name=framework,
    )
