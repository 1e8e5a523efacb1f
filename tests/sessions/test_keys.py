import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.channels import normalize_account_id
from openclaw.paths import normalize_agent_id
from openclaw.sessions import keys


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("agent:main:main", ("main", "main")),
        (" agent:main:main ", ("main", "main")),
        ("agent::main:x", ("main", "x")),
        ("agent:Ops:Telegram:group:-100:topic:4", ("Ops", "Telegram:group:-100:topic:4")),
        ("agent:main", None),
        ("cron:1", None),
        ("AGENT:main:main", None),
        ("", None),
        (None, None),
    ],
)
def test_agent_key_is_taken_apart(key, expected):
    assert keys.parse_agent_key(key) == expected


@pytest.mark.parametrize(
    ("value", "agent", "account"),
    [
        ("My Agent!", "my-agent", "my-agent"),
        ("--x--", "x", "x"),
        ("", "main", "default"),
        ("  ", "main", "default"),
        ("!!!", "main", "default"),
        ("_x", "_x", "_x"),
        ("BIZ", "biz", "biz"),
        ("main", "main", "main"),
    ],
)
def test_agent_and_account_ids_are_normalised(value, agent, account):
    assert normalize_agent_id(value) == agent
    assert normalize_account_id(value) == account


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", None),
        ("agent:main:main", None),
        ("AGENT:main:main", None),
        ("main", None),
        ("cron:x", None),
        ("agent:main", "names no session"),
        ("Agent:", "names no session"),
        ("x" * 513, "has 513 characters"),
        ("a\nb", "holds control characters"),
    ],
)
def test_text_that_cannot_be_a_key_is_refused_with_a_reason(key, problem):
    found = keys.key_problem(key)
    assert problem in found if problem else found is None


@pytest.mark.parametrize(
    ("key", "agent"), [("Agent:Ops:Main", "ops"), ("cron:1", "work"), ("", "work"), ("agent:a:b", "a")]
)
def test_agent_of_a_key_falls_back_to_the_default_agent(key, agent):
    assert keys.agent_of(key, default_agent="Work") == agent


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("SUBAGENT:X", "agent:ops:subagent:x"),
        ("agent:W:Y", "agent:w:y"),
        ("cron:J", "agent:ops:cron:j"),
        ("", "agent:ops:main"),
        ("main", "agent:ops:main"),
    ],
)
def test_bare_keys_are_stored_under_their_agent(key, stored):
    assert keys.canonical_key(key, default_agent="Ops") == stored


@pytest.mark.parametrize(
    ("agent", "key", "main_key", "scope", "expected"),
    [
        ("ops", "agent:ops:main", "work", "per-sender", "agent:ops:work"),
        ("ops", "main", "main", "global", "global"),
        ("ops", "main", "main", "per-sender", "agent:ops:main"),
        ("ops", "agent:ops:work", "work", "global", "global"),
        ("ops", "agent:other:main", "work", "per-sender", "agent:other:main"),
        ("ops", "agent:ops:telegram:group:1", "work", "global", "agent:ops:telegram:group:1"),
    ],
)
def test_names_of_the_main_chat_become_one(agent, key, main_key, scope, expected):
    assert keys.canonicalize_main_alias(agent, key, main_key=main_key, scope=scope) == expected


@pytest.mark.parametrize(
    ("key", "settings", "expected"),
    [
        (" Agent:Main:FOO ", {}, "agent:main:foo"),
        ("main", {}, "agent:main:main"),
        (None, {}, "agent:main:main"),
        ("main", {"default_agent": "ops", "main_key": "Work"}, "agent:ops:work"),
        ("agent:other:main", {"default_agent": "ops", "main_key": "work"}, "agent:other:work"),
        ("main", {"scope": "global"}, "global"),
        ("GLOBAL", {}, "global"),
        ("unknown", {}, "unknown"),
        ("hook:ABC", {"default_agent": "ops"}, "agent:ops:hook:abc"),
        ("agent:main:dm:+1555", {}, "agent:main:direct:+1555"),
        ("agent:main:telegram:dm:42", {}, "agent:main:telegram:direct:42"),
        ("agent:main:telegram:tasks:dm:42", {}, "agent:main:telegram:tasks:direct:42"),
        ("agent:main:slack:group:dm:1", {}, "agent:main:slack:group:dm:1"),
    ],
)
def test_every_name_of_a_session_leads_to_its_store_key(key, settings, expected):
    assert keys.canonical_key(key, **settings) == expected


@given(st.text(max_size=40))
def test_canonical_key_stays_when_canonicalised_again(text):
    once = keys.canonical_key(text)
    assert keys.canonical_key(once) == once


@pytest.mark.parametrize(
    ("key", "entry", "kind", "channel"),
    [
        ("agent:main:main", {"lastChannel": "whatsapp"}, "main", "whatsapp"),
        ("main", None, "main", "unknown"),
        ("agent:main:cron:x", {"lastChannel": "telegram"}, "cron", "internal"),
        ("hook:1", None, "hook", "internal"),
        ("agent:main:node-3", None, "node", "internal"),
        ("node:3", None, "node", "internal"),
        ("agent:main:signal:group:g", {"channel": "signal", "lastChannel": "x"}, "group", "signal"),
        ("agent:main:discord:channel:c", {}, "group", "discord"),
        ("agent:main:matrix:room:r", None, "group", "matrix"),
        ("agent:main:odd", {"chatType": "room", "channel": "matrix"}, "group", "matrix"),
        ("agent:main:subagent:u", {}, "other", "unknown"),
        ("agent:main:telegram:direct:1", {"deliveryContext": {"channel": "telegram"}}, "other", "telegram"),
    ],
)
def test_kind_and_channel_of_a_listed_session(key, entry, kind, channel):
    assert keys.kind_of(key, entry) == kind
    assert keys.channel_of(entry, key) == channel


@pytest.mark.parametrize("key", ["subagent:x", "SUBAGENT:x", "agent:main:subagent:x", "agent:main:SubAgent:x"])
def test_subagent_keys_are_recognised_with_and_without_prefix(key):
    assert keys.is_subagent(key)


def test_cron_run_alias_is_told_from_the_job():
    assert keys.is_cron_run_alias("agent:main:cron:daily:run:abc")
    assert not keys.is_cron_run_alias("agent:main:cron:daily")


@pytest.mark.parametrize(
    ("session", "thread", "name"),
    [
        ("sess-1", None, "sess-1.jsonl"),
        ("sess-1", 123, "sess-1-topic-123.jsonl"),
        ("sess-1", "a b/c", "sess-1-topic-a%20b%2Fc.jsonl"),
        ("../../etc/passwd", None, "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd.jsonl"),
        ("..", None, "%2E%2E.jsonl"),
        ("a-topic-5", None, "a%2Dtopic-5.jsonl"),
    ],
)
def test_transcripts_are_named_after_their_session(session, thread, name):
    assert keys.session_file_name(session, thread) == name


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_texts_never_share_a_file_name(one, other):
    assert (keys.safe_file_name(one) == keys.safe_file_name(other)) == (one == other)
    assert "/" not in keys.safe_file_name(one)
    assert not keys.safe_file_name(one).startswith(".")
    assert 0 < len(keys.safe_file_name(one).encode()) < 255


@pytest.mark.parametrize(
    ("key", "chat_type"),
    [
        ("agent:main:main", "direct"),
        ("agent:main:slack:direct:u1", "direct"),
        ("agent:main:signal:group:g1", "group"),
        ("agent:main:slack:channel:c1:thread:5", "channel"),
        ("agent:main:chat:room:r1", "channel"),
        ("agent:group:main", "direct"),
        ("agent:channel:signal:group:g1", "group"),
    ],
)
def test_the_type_of_a_chat_is_read_behind_the_name_of_the_agent(key, chat_type):
    assert keys.chat_type_of(key) == chat_type
