"""The table of operations: it alone names them, and each of them once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import adamcb.gradnorm
from adamcb.gradnorm import _layouts, _table, register_rule
from adamcb.gradnorm._call import Operation

ROOM = Path(adamcb.gradnorm.__file__).parent
NAMES = {*_table.OPERATIONS, *_table.BACKWARD, *_table.PLAIN, *_table.TENSOR_ATTRIBUTES}
# What is spelled like an operation's name, and is none.
EXCEPTIONS = {
    "_batch": {"floor"},  # a way of rounding
    "_engine": {"mode"},  # an argument of `PerSampleNorms`
    "_guard": {"cpu"},  # a device
    "_indexing": {"dim"},  # an argument of torch's operations, here and below
    "_layouts": {"dim", "pad", "var"},
    "_lookup_rules": {"max", "mean"},  # what `embedding_bag` does with a bag
    "_packed": {"data"},
    "_parts": {"cpu"},
    "_patches": {"stride"},
    "_probe": {"cpu"},
}


def literals(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named_operations(file: Path) -> set[str]:
    """Return the strings that are nothing but names of operations: one, or several with blanks in between."""
    found = {text: text.split() for text in literals(file)}
    return {text for text, words in found.items() if words and set(words) <= NAMES}


@pytest.mark.parametrize("file", sorted(ROOM.glob("*.py")), ids=lambda file: file.stem)
def test_operations_are_named_in_the_table_alone(file):
    found = named_operations(file)
    assert found >= {"linear", "mv dot"} if file.stem == "_table" else found == EXCEPTIONS.get(file.stem, set())


def test_a_name_that_stands_twice_is_refused():
    rows = [("sin cos", Operation(_layouts.kept)), ("tan sin", Operation(_layouts.lined_up))]
    with pytest.raises(ValueError, match="`sin` must stand once"):
        _table.table_of(rows)
    with pytest.raises(ValueError, match="`sin` must stand once"):
        _table.table_of([("sin sin", Operation(_layouts.kept))])


def test_a_rule_of_the_user_leaves_the_rest_of_an_entry_as_it_is(monkeypatch):
    monkeypatch.setattr(_table, "OPERATIONS", dict(_table.OPERATIONS))
    before = _table.operation_of("batch_norm")
    register_rule(torch.batch_norm, print)
    assert _table.operation_of("batch_norm") == before._replace(rule=print)
