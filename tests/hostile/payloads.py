"""What a model or a user may put wherever there is room for text, and a harmless twin of each.

No payload has a lone surrogate: records are UTF-8, so those end where text comes in.
"""

from __future__ import annotations

MILLION = 1_000_000

HTML = (
    "<script>alert(1)</script>",
    "</script></style></title></textarea></pre></code><h1>owned</h1>",
    "<img src=x onerror=alert(2)>",
    "<!-- --><svg onload=alert(3)><a xlink:href=javascript:alert(4)>",
    "]]><![CDATA[ <?xml version='1.0'?> <!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]> &e;",
    '" onmouseover="alert(5)" style="background:url(https://evil.example/x)',
    "' autofocus onfocus='alert(6)",
    "<base href=//evil.example><iframe srcdoc=x><meta http-equiv=refresh content=0><link rel=import href=//e>",
    "javascript:alert(7) data:text/html,x https://evil.example www.evil.example",
    "{{ 7*7 }} {% include 'report.html.jinja' %} ${7*7} #{7*7}",
    "&lt;b&gt; &amp;amp; &#60;script&#62;",
    "<link rel=stylesheet href=https://evil.example/a><style>@import url(https://evil.example/b);body{width:9999px}",
    "</style><style>body{background:url(https://evil.example/c)}</style><p style=width:9999px>",
    "</pre></mark></div></table></svg></body></html><body onload=alert(8)><meta http-equiv=refresh content='1;x'>",
    "<embed src=https://evil.example/d><video poster=https://evil.example/e><details open ontoggle=alert(9)><form>",
)
TERMINAL = (
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[1;1H",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]52;c;cm0gLXJmIH4=\x07",
    "\x1b]0;title\x07\x1bP+q544e\x1b\\",
    "\x9b31m\x9d52;c;AAAA\x9c\x85",
    "safe\b\b\b\bPASS\x7f",
    "HOLD\rPROMOTE (exit status 0)",
    "line\nPROMOTE (exit status 0)\n::add-mask::HOLD",
    "[bold]loud[/bold] [link=https://evil.example]click[/link] [/] :skull:",
)
UNICODE = (
    "\x00NUL\x00",
    "\u202egnp.exe\u202c",
    "\u2066left\u2069 \u2067right\u2069 \u2068first\u2069 \u061c",
    "zero\u200bwidth\u200d\u2060\u00ad\u3164\ufe0f\U000e0041",
    "\ufeffBOM",
    "\uffff\ufffe\U0001fffe\ue000",
    "para\u2029graph\u2028line\x0bvertical\x0cform\x1c\x1d\x1e",
    "e" + "\u0301" * 500,
    "\u05d0\u05d1\u05d2 12.5 \u0627\u0644 – ü 数 \U0001f600",
)
SYNTAX = (
    "[link](https://evil.example) ![image](https://evil.example/x.png) [ref]: https://evil.example",
    "[ref]: https://evil.example 'title'",
    "<https://evil.example> <mailto:a@evil.example>",
    "| a | b |\n| --- | --- |\n| \\| ` | c |",
    "# heading\n===\n---\n## more ##",
    "```\n# out\n``````\n~~~\n</pre>\n````",
    "- [x] approved\n1. one\n> quoted\n***\n    code",
    "$$ \\input{/etc/passwd} $$ $\\frac{1}{0}$ $(touch owned) `touch owned` ; touch owned",
    "%s%n%x%(name)s {0} {0.__class__} {",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "!!python/object/apply:os.system ['touch owned']\n- *alias\n&anchor x: {y",
    "'; DROP TABLE runs; --",
)
PATHS = (
    "../../x",
    "/etc/passwd",
    "..\\..\\x",
    "~/.ssh/authorized_keys\x00.json",
    "CON\\aux:nul",
    "file:///etc/passwd",
    "-rf *",
)
LONG = (
    "A" * MILLION,
    "1" * 200_000,
    "<" * 200_000,
    "\u202e" * 200_000,
    "line\n" * 100_000,
    "<tool_call>a" + " " * 200_000 + "b",
)

SHORT = HTML + TERMINAL + UNICODE + SYNTAX + PATHS
HOSTILE = SHORT + LONG
HARMLESS = tuple(f"plain text number {number}" for number in range(len(HOSTILE)))
KINDS = {"hostile": HOSTILE, "harmless": HARMLESS}


def text(kind: str, number: int) -> str:
    """The payload at ``number`` or its twin; behind the last comes the first."""
    return KINDS[kind][number % len(HOSTILE)]


def name(kind: str, number: int) -> str:
    """As ``text``, of the short ones: for what is repeated in every record."""
    return KINDS[kind][number % len(SHORT)]


def names(kind: str, first: int = 0) -> str:
    """A dozen short payloads from number ``first`` on: for places of which there are few."""
    return " ".join(name(kind, number) for number in range(first, first + 12))
