"""An extension of Griffe: "Example:" in a docstring opens a section of code, as "Examples:" does."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the heading before the docstring is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Hear of every object with its docstring."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
