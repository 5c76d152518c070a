"""Tokenizers and chat templates of model folders: whole, broken, and wanting more than to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import ModelSpec
from kvquant_eval.worker.chat import chat_template, load_tokenizer, template_file
from kvquant_eval.worker.render import render
from tests.fakes.model import write_model
from tests.unit.worker.test_render import turn


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def edit(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def spec(template: Path | None) -> ModelSpec:
    return ModelSpec(id="m", revision=None, source="folder", chat_template=None if template is None else str(template))


def test_a_whole_folder_has_both(model: Path) -> None:
    tokenizer = load_tokenizer(model, trust_remote_code=False)
    own = (model / "chat_template.jinja").read_text()
    assert chat_template(tokenizer, None, str(model)) == own
    assert chat_template(tokenizer, "{{ messages }}", "x") == "{{ messages }}"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, r"no tokenizer\.json"),
        ("{", "JSONDecodeError: .*|Exception: .*"),
        ('{"version": "1.0"}', ".+"),
        ("root:x:0:0", ".+"),
    ],
)
def test_a_tokenizer_that_does_not_load_is_one_line(model: Path, content: str | None, found: str) -> None:
    (model / "tokenizer.json").unlink()
    if content is not None:
        (model / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=rf"^{model}: a tokenizer that loads, got ({found}); restore the tok") as caught:
        load_tokenizer(model, trust_remote_code=False)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_wants_code_names_the_switch(model: Path) -> None:
    edit(model / "tokenizer_config.json", tokenizer_class="E", auto_map={"AutoTokenizer": ["evil.E", None]})
    with pytest.raises(DataError, match=r"tokenizer_config\.json: .*evil\.E.*set model\.trust_remote_code=true$"):
        load_tokenizer(model, trust_remote_code=False)


def test_a_template_of_the_user_is_read(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("caf\u00e9 {{ messages }}", encoding="utf-8")
    assert template_file(spec(file)) == "caf\u00e9 {{ messages }}"
    assert template_file(spec(None)) is None


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, r"model\.chat_template: a Jinja file, got {file} \(no such file\); correct the path"),
        (b"", r"model\.chat_template: a Jinja file, got {file}, which is empty; correct it"),
        (b"\xff", r"{file}: UTF-8, got byte 0xff at offset 0; restore the file"),
    ],
)
def test_a_template_file_that_is_none_is_named(tmp_path: Path, content: bytes | None, line: str) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=f"^{line.format(file=file)}$"):
        template_file(spec(file))


def test_a_folder_is_no_template(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^model\.chat_template: a Jinja file, got .* \(not a file\); correct the path$"
    ):
        template_file(spec(tmp_path))


@pytest.mark.parametrize(
    ("template", "line"),
    [
        (None, r"^model: a chat template, got none in here; set model\.chat_template to a Jinja file$"),
        ({"default": "a", "tool_use": "b"}, r"^model: one chat template, got default, tool_use in here; "),
        (5, r"^model: one chat template, got 5 in here; "),
    ],
)
def test_a_model_needs_one_template(model: Path, template: Any, line: str) -> None:
    tokenizer = load_tokenizer(model, trust_remote_code=False)
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=line):
        chat_template(tokenizer, None, "here")


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("a\n{% if %}", r"^x:2: a Jinja chat template, got Expected an expression.*; correct it$"),
        ("{% for m in messages %}", r"^x:1: a Jinja chat template, got Unexpected end of template.*; correct it$"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", r"^x: a chat template that compiles, got RecursionError"),
        ("{{ 9 ** (9 ** 9) }}", r"^x: a chat template that compiles, got TimeoutError: no end after 5 s of CPU time"),
    ],
)
def test_a_template_that_does_not_compile_is_named_by_line(model: Path, template: str, line: str) -> None:
    with pytest.raises(DataError, match=line):
        chat_template(load_tokenizer(model, trust_remote_code=False), template, "x")


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError: access to attribute '__class__'"),
        ("{{ raise_exception.__globals__['json'] }}", "SecurityError: access to attribute '__globals__'"),
        ("{{ cycler.__init__.__globals__.os.system('touch x') }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(10 ** 12) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "TimeoutError: no end"),
        ("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}", "MemoryError"),
        ("{{ raise_exception('\x1b[2Jno\nmore') }}", r"TemplateError: \[2Jno; "),
        ("{{ nothing.at.all }}", "UndefinedError"),
    ],
)
def test_a_template_can_neither_reach_python_nor_go_on_for_ever(model: Path, template: str, found: str) -> None:
    tokenizer = load_tokenizer(model, trust_remote_code=False)
    with pytest.raises(DataError, match=rf"^t: the chat template must render, got {found}"):
        render(tokenizer, chat_template(tokenizer, template, "x"), turn(), 100)


def test_a_flood_of_text_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquant_eval.worker.render.LONGEST", 1000)
    flood = "{% for m in messages %}{{ m.content }}{{ 'x' * 2000 }}{% endfor %}"
    with pytest.raises(DataError, match=r"^t: at most 1,000 characters, got 4,\d+; correct the template$"):
        render(load_tokenizer(model, trust_remote_code=False), flood, turn(), 100)
