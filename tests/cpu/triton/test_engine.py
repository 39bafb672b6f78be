"""One request, one text, with the whole engine on interpreted kernels and quantised weights.

What `make gpu-check` runs on a GPU, small; `tests/gpu/test_check.py` runs more of it, and
`tests/cpu/engine` the long version for the other backends.
"""

from __future__ import annotations

import pytest

from tests.gpu.setting import Setting
from tests.gpu.texts import check_texts


@pytest.mark.timeout(900)  # twenty seconds of work, on however busy a machine
def test_one_request_one_text() -> None:
    rows = list(check_texts(Setting("cpu", is_tiny=True), "int4"))
    assert [row for row in rows if not row["ok"]] == []
    scenarios = {row["scenario"]: row for row in rows}
    assert set(scenarios) == {"warm prefix cache", "alone", "chunks of 16", "preempted", "drafts"}
    assert scenarios["preempted"]["preemptions"] > 0
