"""Programs to lay into a model folder: each of them would write a marker file if anything ran it."""

from __future__ import annotations

import pickle
from pathlib import Path

PICKLES = ("pytorch_model.bin", "training_args.bin", "tokenizer.pkl", "vocab.pkl", "optimizer.pt")


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def lay(model: Path, marker: Path) -> Path:
    """Pickles beside the weights, a module ``evil`` with a class ``Evil``, and YAML with Python tags."""
    for name in PICKLES:
        (model / name).write_bytes(pickle.dumps(_Payload(marker)))
    touch = f"open({str(marker)!r}, 'w').close()"
    (model / "evil.py").write_text(f"{touch}\n\n\nclass Evil:\n    pass\n")
    for name in ("config.yaml", "generation_config.yaml"):
        (model / name).write_text(f"a: !!python/object/apply:builtins.exec [{touch!r}]\n")
    return model
