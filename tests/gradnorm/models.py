"""The benchmark's models, loaded by path: a package named `benchmarks` may be installed by a peer."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[2] / "benchmarks" / "norms_models.py"
_SPEC = importlib.util.spec_from_file_location("norms_models", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = sys.modules.setdefault("norms_models", importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(_MODULE)

TinyGPT = _MODULE.TinyGPT
ConvNeXtStageClassifier = _MODULE.ConvNeXtStageClassifier
