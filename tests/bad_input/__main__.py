"""``python -m tests.bad_input`` writes docs/bad-input.md."""

from tests.bad_input.document import PATH, text

PATH.parent.mkdir(exist_ok=True)
PATH.write_text(text(), encoding="utf-8")
