"""Logs of inspect_ai, ``.eval`` and ``.json``, one or a folder of them: every sample is a conversation.

Read by inspect_ai itself. A short target is an accepted answer of the sample's last reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvquant_eval.core.chat import Unusable
from kvquant_eval.core.codec import DataError, quoted
from kvquant_eval.core.conversation import Conversation, LeftOut
from kvquant_eval.core.records import Json
from kvquant_eval.io.golden.importers._files import LONGEST_RECORD
from kvquant_eval.io.golden.manifest import open_file

LONGEST_ANSWER = 200
"""Characters of a target that is an answer; a longer one is a rubric, or a patch."""
_SUFFIXES = (".eval", ".json")
_PARTS = {"video": "video_url", "document": "file"}
"""What inspect_ai calls otherwise than OpenAI."""


def read(source: str) -> Iterator[Conversation | LeftOut]:
    """The conversation of every sample. Raises DataError without inspect_ai, and for a source that is no log."""
    try:
        from inspect_ai import log as library
    except ImportError as error:
        rule = "--format inspect_log: the package inspect_ai"
        raise DataError(f"{rule}, got {quoted(error)}; pip install 'kvquant_eval[inspect]'") from None
    for path in _paths(Path(source)):
        for found in tqdm(_samples(library, path), desc=path.name, unit="sample", disable=None):
            if isinstance(found, LeftOut):
                yield found
                continue
            task, sample = found
            place = f"{path}:{sample.id}:{sample.epoch}"
            try:
                yield _conversation(sample, task, place)
            except Unusable as error:
                yield LeftOut(place, str(error))


def _paths(source: Path) -> list[Path]:
    if not source.is_dir():
        if source.suffix not in _SUFFIXES:
            raise DataError(f"{source}: a log (.eval or .json) or a folder of logs, got neither; correct the path")
        open_file(source).close()
        return [source]
    paths = [path for path in sorted(source.rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    if not paths:
        raise DataError(f"{source}: a folder with .eval or .json logs, got none; correct the path")
    return paths


def _samples(library: Any, path: Path) -> Iterator[tuple[str, Any] | LeftOut]:
    """The task's name and a sample at a time; a JSON log is read whole.

    What is in the log is asked for, not ``read_eval_log_samples``: that one expects the samples that the header
    promises, and passes over others.
    """
    whole = path.suffix == ".json"
    if whole and path.stat().st_size > LONGEST_RECORD:
        yield LeftOut(str(path), f"a JSON log of more than {LONGEST_RECORD >> 20} MiB")
        return
    try:
        log = library.read_eval_log(str(path), header_only=not whole, resolve_attachments=True)
        listed = (log.samples or []) if whole else library.read_eval_log_sample_summaries(str(path))
    except Exception as error:  # noqa: BLE001 - whatever a damaged log makes inspect_ai raise
        yield LeftOut(str(path), f"a log that inspect_ai reads, got {_said(error)}")
        return
    if not listed:
        yield LeftOut(str(path), "a log without samples")
    for entry in listed:
        try:
            sample = entry if whole else _sample(library, path, entry)
        except Exception as error:  # noqa: BLE001 - as above
            place = f"{path}:{entry.id}:{entry.epoch}"
            yield LeftOut(place, f"a sample that inspect_ai reads, got {_said(error)}")
        else:
            yield log.eval.task, sample


def _sample(library: Any, path: Path, listed: Any) -> Any:
    return library.read_eval_log_sample(str(path), listed.id, listed.epoch, resolve_attachments=True)


def _conversation(sample: Any, task: str, place: str) -> Conversation:
    if sample.error is not None:
        raise Unusable(f"a sample that ended in an error, got {quoted(sample.error.message)}")
    replies: dict[int, dict[str, Json]] = {i: {} for i, said in enumerate(sample.messages) if said.role == "assistant"}
    if not replies:
        raise Unusable("a sample without a reply of the assistant")
    answers = _answers(sample.target)
    if answers:
        replies[max(replies)] = {"answers": answers}
    return Conversation(
        conversation_id=f"{task}/{sample.id}/{sample.epoch}",
        place=place,
        messages=[_message(message) for message in sample.messages],
        tools=_tools(sample),
        replies=replies,
    )


def _message(said: Any) -> dict[str, Json]:
    """A message in OpenAI's shape. Of a call that failed, a model is told the error in place of the result."""
    message: dict[str, Json] = {"role": said.role, "content": _content(said.content)}
    if said.role == "assistant" and said.tool_calls:
        message["tool_calls"] = [_call(call) for call in said.tool_calls]
    if said.role == "tool":
        message.update(tool_call_id=said.tool_call_id, name=said.function)
        if said.error is not None:
            message["content"] = f"Error: {said.error.message}"
    return message


def _content(content: Any) -> Json:
    """Content without reasoning. What is no text keeps its type only, by which it is turned down."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text} if part.type == "text" else {"type": _PARTS.get(part.type, part.type)}
        for part in content
        if part.type != "reasoning"
    ]


def _call(call: Any) -> dict[str, Json]:
    if call.parse_error:
        raise Unusable(f"a tool call with arguments, got {quoted(call.parse_error)}")
    return {"id": call.id, "type": "function", "function": {"name": call.function, "arguments": call.arguments}}


def _tools(sample: Any) -> list[dict[str, Json]]:
    """The tools of the sample's first call of a model."""
    tools: list[Any] = next((event.tools for event in sample.events if event.event == "model"), [])
    include = {"name", "description", "parameters"}
    return [tool.model_dump(mode="json", include=include, exclude_none=True) for tool in tools]


def _answers(target: str | list[str]) -> list[Json]:
    given = [text.strip() for text in ([target] if isinstance(target, str) else target)]
    return [text for text in given if 0 < len(text) <= LONGEST_ANSWER]


def _said(error: Exception) -> str:
    return quoted(f"{type(error).__name__}: {error}")
