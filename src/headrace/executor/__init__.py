"""Carries out a plan: OpenVINO for real tokens, a script for tests. Knows models, not queues.

name or path --models.locate--> ModelFiles --paged.load--> PagedModel --PagedExecutor(blocks)--> run(plan)
'--OpenVinoTokenizer--> text to tokens; IncrementalDetokenizer back
"""

import sys
from types import ModuleType
from typing import cast

# `import openvino` reports itself to an analytics server through the package `openvino_telemetry`,
# unasked. None makes importing that package fail, and then OpenVINO falls back on a stub of its own
# that does nothing. It stands here because every way to OpenVINO leads through this room.
sys.modules.setdefault("openvino_telemetry", cast("ModuleType", None))
