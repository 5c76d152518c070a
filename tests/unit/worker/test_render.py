"""Golden turns to token ids, with a tokenizer of words made here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import Span
from kvquant_eval.worker.render import normalise, render
from tests.fakes.records import golden_turn

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }} : {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call> {{ c.function.name }} {{ c.function.arguments | tojson }} {% endfor %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)
FORGETFUL = "{% for m in messages[-1:] %}{{ m.role }} : {{ m.content }}<end>{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Words, numbers digit by digit, single signs; unknown ones are ``?``. Special tokens as chat models have them."""
    vocabulary = {"?": 0, "<bos>": 1, "<end>": 2}
    words = ["system", "user", "assistant", "Step", "add", "so", "the", "sum", "is", "a", "<call>"]
    for word in [*words, *"0123456789:+-=.,", " ", "\n"]:
        vocabulary.setdefault(word, len(vocabulary))
    special = {"bos_token": "<bos>", "eos_token": "<end>", "unk_token": "?"}
    core = Tokenizer(models.WordLevel(vocabulary, special["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"<call>|[A-Za-z]+|\d|\s|[^\sA-Za-z\d]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


def decode(tokenizer: Any, ids: Any) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(list(ids)))


def turn(reply: str = "3 + 2 = 5", **changes: Any) -> Any:
    messages = ({"role": "system", "content": "a"}, {"role": "user", "content": "add 2"})
    reference = {"role": "assistant", "content": reply}
    return golden_turn(**{"messages": messages, "reference": reference, "max_tokens": 8, **changes})


def test_prompt_and_reply_are_the_templates_text(tokenizer: Any) -> None:
    rendered = render(tokenizer, TEMPLATE, turn(), 100)
    assert decode(tokenizer, rendered.prompt_ids) == "<bos>system : a<end>\nuser : add 2<end>\nassistant : "
    assert decode(tokenizer, rendered.golden_ids) == "3 + 2 = 5"
    assert (rendered.turn_id, rendered.workload, rendered.max_tokens, rendered.skip) == ("t", "math_chain", 8, "")


def test_the_reply_ends_before_the_end_of_turn(tokenizer: Any) -> None:
    assert tokenizer.eos_token_id not in render(tokenizer, TEMPLATE, turn(), 100).golden_ids


def span_text(tokenizer: Any, reply: str, *decisive: Span) -> list[str]:
    rendered = render(tokenizer, TEMPLATE, turn(reply, decisive=decisive), 100)
    return [decode(tokenizer, rendered.golden_ids[start:end]) for start, end in rendered.spans]


def test_spans_cover_their_text(tokenizer: Any) -> None:
    found = span_text(tokenizer, "Step 1 : 3 + 2 = 5", Span(text="= 5"), Span(text="3 + 2"), Span(text="Step"))
    assert found == ["= 5", "3 + 2", "Step"]


def test_the_nth_occurrence(tokenizer: Any) -> None:
    reply = "5 + 5 = 1 0 , so 5"  # one token a character, but for "so"
    rendered = render(tokenizer, TEMPLATE, turn(reply, decisive=tuple(Span(text="5", nth=n) for n in range(3))), 100)
    starts = [start for start, _ in rendered.spans]
    assert starts == [0, 4, 16]


def test_a_span_within_a_token_covers_the_token(tokenizer: Any) -> None:
    assert span_text(tokenizer, "the sum is 5", Span(text="um i")) == ["sum is"]


@pytest.mark.parametrize("span", [Span(text="= 6"), Span(text="5", nth=1), Span(text="")])
def test_a_span_that_is_not_there_is_refused(tokenizer: Any, span: Span) -> None:
    with pytest.raises(DataError, match=r"^t: decisive span "):
        span_text(tokenizer, "3 + 2 = 5", span)


def test_a_turn_that_does_not_fit_is_skipped_and_never_cut(tokenizer: Any) -> None:
    whole = render(tokenizer, TEMPLATE, turn(), 100)
    needed = len(whole.prompt_ids) + max(len(whole.golden_ids), 8)
    fits, too_long = (render(tokenizer, TEMPLATE, turn(), limit) for limit in (needed, needed - 1))
    assert fits == whole
    assert too_long.skip == f"needs {needed} tokens, the context is {needed - 1}"
    assert (too_long.prompt_ids, too_long.golden_ids) == (whole.prompt_ids, whole.golden_ids)


def test_the_limit_of_the_reply_counts_when_it_is_the_longer(tokenizer: Any) -> None:
    whole = render(tokenizer, TEMPLATE, turn(), 1000)
    longer = render(tokenizer, TEMPLATE, turn(max_tokens=50), len(whole.prompt_ids) + 49)
    assert longer.skip


def test_two_bos_tokens_are_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"^t: one BOS token, got two; correct the chat template"):
        render(tokenizer, "{{ bos_token }}" + TEMPLATE, turn(), 100)


def test_a_template_that_rewrites_the_history_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"^t: the chat template must extend the prompt by the reply"):
        render(tokenizer, FORGETFUL, turn(), 100)


@pytest.mark.parametrize("template", ["{{ raise_exception('no system role') }}", "{% for %}", "{{ messages[0].a.b }}"])
def test_a_template_that_fails_is_the_users(tokenizer: Any, template: str) -> None:
    with pytest.raises(DataError, match=r"^t: the chat template must render, got "):
        render(tokenizer, template, turn(), 100)


def test_an_empty_golden_reply_is_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"^t: a golden reply of at least one token"):
        render(tokenizer, TEMPLATE, turn(""), 100)


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def test_arguments_as_a_json_string_render_as_the_object(tokenizer: Any) -> None:
    renders = [
        render(tokenizer, TEMPLATE, turn(messages=(call(arguments),), reference=call(arguments)), 200)
        for arguments in ({"a": 2}, '{"a": 2}')
    ]
    assert renders[0] == renders[1]
    assert '<call> add {"a": 2}'.replace('"', "?").replace("{", "?").replace("}", "?") in decode(
        tokenizer, renders[0].prompt_ids
    )


def test_normalise_leaves_the_message_itself_alone() -> None:
    message = call(json.dumps({"a": 2}))
    plain = normalise(message)
    assert plain["content"] == ""
    assert plain["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert plain["tool_calls"][0]["type"] == "function"
    assert message == call('{"a": 2}')


def test_a_call_without_arguments_has_none() -> None:
    assert normalise(call(None))["tool_calls"][0]["function"]["arguments"] == {}


def test_tools_reach_the_template(tokenizer: Any) -> None:
    template = "{{ 'sum ' if tools else '' }}" + TEMPLATE
    tools = ({"type": "function", "function": {"name": "add"}},)
    with_tools = render(tokenizer, template, turn(tools=tools), 100)
    assert decode(tokenizer, with_tools.prompt_ids).startswith("sum ")
    assert decode(tokenizer, render(tokenizer, template, turn(), 100).prompt_ids).startswith("<bos>")


@pytest.mark.parametrize("place", ["messages", "reference"])
def test_arguments_that_are_no_json_are_named(tokenizer: Any, place: str) -> None:
    bad = call("{broken")
    changes = {"messages": (bad,)} if place == "messages" else {"reference": bad}
    with pytest.raises(DataError, match=r"^t: "):
        render(tokenizer, TEMPLATE, turn(**changes), 100)
