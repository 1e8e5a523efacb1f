"""Small input, much CPU: whatever an outside party sends, reading it takes a time that grows with its length only.

Every decoder of foreign data reads texts that are made to be slow: one short piece over and over, values inside of
values, many values with a fault each. Seconds of the processor are counted, so a busy machine changes nothing.
Regular expressions are attacked one by one in ``tests/test_patterns.py``.
"""

from __future__ import annotations

import ast
import contextlib
import json
import signal
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw import code_spans, json_text
from openclaw.agent import skills
from openclaw.channels.signal import channel as signal_channel
from openclaw.config import edit
from openclaw.config.load import parse_config
from openclaw.config.secrets import SENTINEL
from openclaw.config.validate import ConfigError
from openclaw.gateway.server import frames
from openclaw.inbound import directives
from openclaw.inbound.message import Inbound, Peer, Sender
from openclaw.inbound.prompt_text import EnvelopeOptions, channel_body, display_name
from openclaw.mcp.connection import MAX_NODES, ListedTool, offered, usable_schema
from openclaw.memory import index
from openclaw.outbound import channel_formats, chunking, markdown
from openclaw.redact import redact
from openclaw.scheduler import hooks, schedule
from openclaw.sessions import tree
from openclaw.text import normalised
from openclaw.tools import web
from openclaw.tools.exec import allowlist
from openclaw.untrusted_text import disarmed, disarmed_name
from tests.security.test_channel_texts import PLATFORMS, texts, with_value
from tests.security.test_text_sources import SOURCE
from tests.support.sources import parsed

LENGTH = 24_000
ALLOWED_S = 0.5
"""Seconds of the processor for a text of ``LENGTH`` characters. Most take a few thousandths."""

PIECES = [
    *("[", "![", "](", "[a](", "[a]: b\n", "[^1]", "*", "**a", "*a ", "_a", "a_b", "`", "``a", "`a`", "~~a", "||a"),
    *("~~~\n", "```\n", "> ", ">", "- ", "1. ", "  - a\n", "* * ", "> - ", "\t- a\n", "    a\n", "# a\n", "---\n"),
    *("|", "|a", "|a|b|\n", "|-|-|\n", "a|b\n", "-|-\n", "\n", "\n\n", "a\n", "\r", "  \n", "\t", " ", "\\", "\\n"),
    *("<", "<a", "<!--", "<!", "<?", "</a>", "<b>", "<div>", "<table>", "<tr><td>a", '<a href="', "<script>"),
    *("&", "&amp", "&#", "&#x", "&lt;", "http://", "http://a ", "www.a.b ", "a@b.c ", "+1555", "sk-", "eyJ.", "$"),
    *("[[reply_to:", "[[", "MEDIA:", "MEDIA:a\n", "System:", "System: [", "[message_id:", "<think>", "NO_REPLY "),
    *("/think ", "/model a ", "@a ", "#", '"', "'", "(", ")", "{", '{"a":', "[1,", "\x1b[", "\x1b]", "-----BEGIN "),
    *("\u200b", "\u0301", "\u0316\u0301", "\ufe0f", "😀", "\u202e", "\x00", "\ud800", "a: ", "a:\n ", "- a: ", "${"),
]  # fmt: skip
Decoder = Callable[[str], Any]


def hook(text: str) -> None:
    payload = {"text": text, "list": [text[:100]] * 100}
    call = hooks.Call(path="wake", payload=payload, headers={}, query={"q": text[:2000]})
    hooks.run_ids(call, 0)
    hooks.rendered("{{payload.text}} {{list[0]}} {{query.q}}", call, 0)


def prompt(text: str) -> None:
    sender = Sender(id="1", name=text, username=text)
    said = Inbound(
        channel="signal", peer=Peer(kind="group", id="g"), sender=sender, to="g", text=text, group_subject=text
    )
    channel_body(said, EnvelopeOptions())


def schedules(text: str) -> None:
    for given in (
        {"kind": "cron", "expr": text},
        {"kind": "cron", "expr": f"{text} * * * *"},
        {"kind": "at", "at": text},
    ):
        with contextlib.suppress(schedule.BadSchedule):
            schedule.check_new(given, 0)


def tools(text: str) -> None:
    schema = {"description": text, "enum": [text] * 9}
    offered("s", [ListedTool(name, text, schema) for name in (text, text[:200])], ["*a*b*"], [])


def events(platform: str) -> Decoder:
    """The event of a platform with the text in one place after the other."""
    read, all_events = PLATFORMS[platform]
    kind, event = next(iter(all_events.items()))

    def decode(text: str) -> None:
        for path in texts(event):
            with contextlib.suppress(msgspec.MsgspecError, KeyError):
                read(kind, with_value(event, path, text[: LENGTH // 4]))

    return decode


def skill(text: str) -> None:
    for header in (text, f"metadata: {{{text}", f"metadata: {text}", f"a:\n  {text}", f"description: '{text}"):
        with contextlib.suppress(skills.BadSkill):
            skills.parse_skill(f"---\nname: x\ndescription: y\n{header}\n---\n", path="/s", folder="s", source="w")


def configuration(text: str) -> None:
    quoted = json.dumps(text)
    for raw in (text, f"{{{text}", f'{{"a": {quoted}}}', f'{{{quoted}: 1, "channels": {{{quoted}: {{}}}}}}'):
        parse_config("/nowhere/openclaw.json", raw, {"A": "x" * 100})


DECODERS: dict[str, Decoder] = {
    **{
        f"markdown for {name}": lambda text, name=name: channel_formats.render(text, name)
        for name in channel_formats.FORMATS
    },
    **{
        f"parts for {name}": lambda text, name=name: chunking.chunk(text, chunking.Limits(2000, format=name))
        for name in channel_formats.FORMATS
    },
    "tables": lambda text: markdown.convert_tables(text, "code"),
    "fences": chunking.find_fences,
    "code spans": code_spans.code_ranges,
    "web page": lambda text: web.read_page(text, "http://a.test/"),
    "directives": directives.parse_directives,
    "commands": directives.is_control_message,
    "untrusted text": disarmed,
    "name": lambda text: (disarmed_name(text), display_name(text)),
    "secrets in text": redact,
    "prompt": prompt,
    "JSON": lambda text: json_text.decode_json5(text.encode("utf-8", "surrogatepass")),
    "request": lambda text: frames.decode_any(text.encode("utf-8", "surrogatepass")),
    "webhook": hook,
    "skill": skill,
    "configuration": configuration,
    "imported transcript": lambda text: tree.imported_lines([text, *text.split("a")], "s", "t"),
    "imported messages": lambda text: tree.imported_messages([json.dumps({"role": "user", "content": text})] * 3, 0),
    "schedule": schedules,
    "command": allowlist.parse,
    "notes": index.folded,
    "MCP tools": tools,
    **{f"event of {platform}": events(platform) for platform in PLATFORMS},
}  # fmt: skip
REFUSALS = (
    ValueError,
    KeyError,
    msgspec.MsgspecError,
    skills.BadSkill,
    tree.CannotImport,
    hooks.HookRefused,
    frames.NotJson,
    ConfigError,
)


class TooSlow(BaseException):
    pass


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    yield
    signal.signal(signal.SIGVTALRM, before)


def is_slow(decode: Decoder, given: Any, allowed_s: float = ALLOWED_S) -> bool:
    """Whether reading it takes too long. To refuse it is right; to fail in another way is not."""
    signal.setitimer(signal.ITIMER_VIRTUAL, allowed_s)
    try:
        with contextlib.suppress(*REFUSALS):
            decode(given)
        return False
    except TooSlow:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@pytest.mark.parametrize("name", DECODERS)
def test_no_text_is_slow_to_read(name: str) -> None:
    slow = [piece for piece in PIECES if is_slow(DECODERS[name], piece * (LENGTH // len(piece)))]
    assert not slow


ORDINARY = {"JSON": '{"a": 1}', "request": '{"a": 1}'}


@pytest.mark.parametrize("name", DECODERS)
def test_these_decoders_read_ordinary_text(name: str) -> None:
    """Otherwise the test above could not fail."""
    if name == "imported transcript":
        assert tree.imported_lines(['{"type": "message", "id": "1"}'], "s", "t")
    elif name == "skill":
        assert skills.parse_skill("---\nname: x\ndescription: y\n---\n", path="/s", folder="s", source="w").name == "x"
    else:
        text = ORDINARY.get(name, "hello")
        DECODERS[name](text)
        assert not is_slow(DECODERS[name], text)


@pytest.mark.parametrize(
    "expr",
    [
        "* * * * * * 2099",
        "0 0 30 2 *",
        "0 0 29 2 1#5",
        "0 0 31 2 *",
        ",".join(["0"] * 9000) + " * * * *",
        "1-59," * 4000 + "1 * * * *",
    ],
    ids=lambda expr: expr[:20],
)
def test_no_schedule_is_slow_to_look_up(expr: str) -> None:
    assert not is_slow(lambda expr: schedule.check_new({"kind": "cron", "expr": expr}, 1_794_766_939_000), expr)


def many(part: Callable[[int], str], length: int = 64_000) -> str:
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append(part(len(parts)))
        size += len(parts[-1]) + 1
    return ",".join(parts)


def nested_hours(number: int) -> str:
    return f'{{"id": "a{number}", "heartbeat": {{"activeHours": {{"timezone": "Europe/Madri{number}"}}}}}}'


CONFIGURATIONS = {
    "unknown keys": "{" + many(lambda n: f'"gatewey{n}": 1') + "}",
    "one long key": '{"' + "gateway" * 9000 + '": 1}',
    "nested": '{"a":' * 12_000,
    "faults": '{"agents": {"list": [\n' + many(lambda _: "5\n") + "]}}",
    "the same key": "{" + many(lambda _: '"a": 1') + "}",
    "channels": '{"channels": {' + many(lambda n: f'"telegrom{n}": {{}}') + "}}",
    "time zones": '{"agents": {"list": [' + many(nested_hours) + "]}}",
    "expressions": '{"messages": {"groupChat": {"mentionPatterns": [' + many(lambda n: f'"a{n}+(b|c)*d"') + "]}}}",
    "one long expression": '{"messages": {"groupChat": {"mentionPatterns": ["' + "(a|b)?" * 9000 + '"]}}}',
    "bindings": '{"bindings": [' + many(lambda n: f'{{"agentId": "b{n}", "match": {{"channel": "irc"}}}}') + "]}",
    "variables": '{"a": "' + "${A}" * 16_000 + '"}',
    "includes": '{"$include": [' + many(lambda n: f'"x{n}.json"') + "]}",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_configuration_is_slow_to_read(name: str) -> None:
    raw = CONFIGURATIONS[name]
    assert not is_slow(lambda raw: parse_config("/nowhere/openclaw.json", raw, {"A": "x" * 100}), raw, 1.5)


BEFORE = parse_config("/nowhere/openclaw.json", '{\n  "gateway": {"port": 1}, "channels": {},\n}\n', {})
FULL = parse_config("/nowhere/openclaw.json", json.dumps({"env": {f"k{n}": "v" for n in range(3000)}}), {})
PATCHES: dict[str, tuple[Any, dict[str, Any]]] = {
    "new keys": (BEFORE, {f"k{n}": n for n in range(5000)}),
    "keys below": (BEFORE, {"channels": {f"k{n}": {"a": 1} for n in range(3000)}}),
    "other values": (FULL, {"env": {f"k{n}": "w" for n in range(3000)}}),
    "removed keys": (FULL, {"env": {f"k{n}": None for n in range(3000)}}),
}


@pytest.mark.parametrize("name", PATCHES)
def test_no_patch_of_the_configuration_is_slow(name: str) -> None:
    before, patch = PATCHES[name]
    results: list[str] = []
    assert not is_slow(lambda patch: results.append(edit.merged_text(before, patch)), patch, 1.5)
    assert json.loads(results[0].replace(",\n}", "\n}")) == edit.merge_patch(before.parsed, patch)


def test_many_hidden_secrets_are_put_back_at_once() -> None:
    stored = {"env": {f"K{n}_TOKEN": "secret" for n in range(2000)}}
    raw = json.dumps({"env": {f"K{n}_TOKEN": SENTINEL for n in range(2000)}})
    results: list[str] = []
    assert not is_slow(lambda raw: results.append(edit.with_secrets(raw, stored)), raw, 1.5)
    assert json.loads(results[0]) == stored


def test_many_mentions_are_put_in_at_once() -> None:
    mentions = tuple(signal_channel.Mention(start=2 * n, length=1, name="Ann") for n in range(20_000))
    own = signal_channel.OwnIdentity("+15550000001")
    results: list[str] = []
    assert not is_slow(
        lambda text: results.append(signal_channel.with_mentions(text, mentions, own)), "\ufffc " * 20_000
    )
    assert results[0].startswith("@Ann @Ann ")


# Schemas of MCP servers


def doubling(keyword: str, wide: int) -> dict[str, Any]:
    """A schema of a kilobyte that stands for ``wide`` ** 12 parts."""
    parts = [{"$ref": "#/$defs/d{}"}]
    definitions = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"} for _ in parts * wide]} for n in range(8)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


SELF = {"properties": {name: {"$ref": "#/$defs/s"} for name in "abcdefghijklmnopqrstuvwxyz"}}
SCHEMAS: dict[str, Any] = {
    **{f"{keyword} {wide}": doubling(keyword, wide) for keyword in ("anyOf", "allOf", "oneOf") for wide in (2, 9, 40)},
    "refers to itself": {"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": SELF}},
    "two refer to each other": {
        "properties": {"a": {"$ref": "#/$defs/s"}},
        "$defs": {"s": {"items": {"$ref": "#/$defs/t"}, "type": "array"}, "t": {"anyOf": [{"$ref": "#/$defs/s"}] * 50}},
    },
    "many properties": {"properties": {f"p{n}": {"type": "string"} for n in range(50_000)}},
    "long list": {"enum": ["x"] * 100_000, "required": ["y"] * 100_000},
    "list in list": {"enum": [[[["x"] * 200] * 200] * 200] * 2},
    "deep": json.loads('{"items": ' * 150 + "{}" + "}" * 150),
    "long description": {"description": "\u0316\u0301[" * 1_000_000},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_schema_of_a_server_is_slow(name: str) -> None:
    assert not is_slow(usable_schema, SCHEMAS[name])


def test_a_schema_keeps_its_first_reference_to_itself() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/t"}, "size": {"type": "integer"}}}
    schema = usable_schema({"type": "object", "properties": {"root": {"$ref": "#/$defs/t"}}, "$defs": {"t": tree}})
    assert schema is not None
    assert schema["properties"]["root"]["properties"] == {"left": {}, "size": {"type": "integer"}}


def test_a_schema_with_too_many_parts_takes_any_parameters() -> None:
    wide = {f"p{n}": {"type": "string"} for n in range(MAX_NODES + 1)}
    assert usable_schema({"type": "object", "properties": wide}) == {"type": "object", "properties": {}}


# Normal forms


@pytest.mark.parametrize(
    "text", ["e\u0301", "\u1e69", "s\u0323\u0307 s\u0307\u0323", "한글", "plain", "a" + "\u0301" * 29]
)
def test_a_text_has_the_normal_form_of_unicode(text: str) -> None:
    for form in ("NFC", "NFD"):
        assert normalised(form, text) == unicodedata.normalize(form, text)


# Completeness

COSTLY = {"pyjson5", "difflib", "HTMLParser", "ElementTree", "yaml", "tomllib", "plistlib", "csv", "pickle"}
"""Libraries that read a format in a time that may grow faster than the text."""
READERS = {
    "agent/skills.py": "skill",
    "config/load.py": "configuration",
    "config/validate.py": "configuration",
    "json_text.py": "JSON",
    "inbound/commands/session.py": "a value of /config, which only owners set; MAX_TEXT bounds it",
    "inbound/commands/registry.py": "one word of a command that was not found",
    "models/catalogue.py": "the name of a model that was not found, looked for in a thread or a command",
    "agent/request_log.py": "two prompts that the Gateway made itself, compared in a thread",
    "tools/arguments.py": "the beginning of the name of a tool that does not exist; LONGEST_NAME bounds it",
    "tools/edit.py": "passages of a file of the workspace, with a limit of lines and characters",
    "tools/files.py": "the name of a missing file and a limited number of names, in a thread",
    "cli": "commands of the owner, in a process of their own",
}


def uses(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").split(".")[0], *(alias.name for alias in node.names)}
    return names & COSTLY


def test_every_file_that_reads_a_costly_format_has_a_rule() -> None:
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if uses(path)}
    files = {name for name in found if not name.startswith("cli/")}
    assert files == {name for name in READERS if name != "cli"}


def test_nothing_else_normalises_text_of_others() -> None:
    """The library's function takes a time that grows with the square of the number of combining marks."""
    calls = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("unicodedata.normalize", "unicodedata.is_normalized")
    }
    assert calls == {"text.py", "untrusted_text.py"}, "untrusted_text.py normalises single characters"
