"""Whether code of the model folder was run stands where people read about the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(("trusted", "said"), [(False, "off"), (True, "on: code of the model folder was run")])
def test_reports_say_whether_the_folders_code_was_run(
    trusted: bool, said: str, case: Callable[..., Any], tmp_path: Path
) -> None:
    made = case()
    made.document["model"]["trust_remote_code"] = trusted
    files = made.write(tmp_path)
    assert f"- trust_remote_code: {said}\n" in files["report.md"]
    assert f"<dt>trust_remote_code</dt><dd>{said}</dd>" in files["report.html"]
