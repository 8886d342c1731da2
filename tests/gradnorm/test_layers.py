from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gradnorm.cases import CASES
from tests.gradnorm.checking import check, randomize


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=8)
def test_layer_agrees_with_its_slow_twin(name, data):
    build, reference = CASES[name]
    layer, inputs = build(data.draw)
    check(randomize(layer.double()), inputs, reference)


def test_there_are_at_least_thirty_cases():
    assert len(CASES) >= 30
