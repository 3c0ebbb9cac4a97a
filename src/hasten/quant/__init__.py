"""Weight formats, one file each. FORMATS is the list of what hasten reads; a new format is a file and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.quant.floats import BF16, F16, F32
from hasten.quant.format import WeightFormat
from hasten.quant.q4_0 import Q4_0
from hasten.quant.q4_1 import Q4_1
from hasten.quant.q8_0 import Q8_0

FORMATS: Mapping[str, WeightFormat] = {entry.name: entry for entry in (F32, F16, BF16, Q8_0, Q4_0, Q4_1)}

__all__ = ["FORMATS", "WeightFormat"]
