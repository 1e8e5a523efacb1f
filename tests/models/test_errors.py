"""A provider's failure has a kind, may be worth a retry, and is told to a person in plain words."""

from __future__ import annotations

import pytest

from openclaw.messages import AssistantMessage, Usage
from openclaw.models import errors
from openclaw.models.base import ModelError
from openclaw.models.errors import error_text, redact, retry_after_s, status_error, vendor_message


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 213462 tokens > 200000 maximum",
        "prompt is too long: 214291 tokens > 200000 maximum",
        "413 (no body)",
        "413 status code (no body)",
        "400 status code (no body)",
        "Input is too long for requested model.",
        "Your input exceeds the context window of this model.",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Please reduce the length of the messages or completion.",
        "This endpoint's maximum context length is 65536 tokens. However, you requested about 70000 tokens.",
        "This model's maximum context length is 8192",
        "prompt token count of 10000 exceeds the limit of 8192",
        "the request exceeds the available context size. try increasing the context size",
        "tokens to keep from the initial prompt is greater than the context length",
        "invalid params, context window exceeds limit",
        "Your request exceeded model token limit: 131072",
        "context_length_exceeded",
        "Too many tokens in the prompt",
        "request_too_large",
        "Request exceeds the maximum size",
        "413 Payload too large",
        "Context overflow: estimated 250000 tokens",
        "input length and `max_tokens` exceed context limit: 198411 + 32000 > 200000, decrease input length",
        "request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "prompt too long; exceeded max context length by 12 tokens",
        "Trying to keep the first 9000 tokens when context the overflows.",
        "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 512 `max_new_tokens`",
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5300",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 258048]",
        "Unable to submit request because the input token count is 1251952 but model only supports up to 1048576. "
        "Reduce the input token count and try again.",
        "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum "
        "length. Please update the input to try again.",
    ],
)
def test_a_prompt_that_does_not_fit_is_recognised_in_every_vendors_words(text: str) -> None:
    assert errors.is_overflow(text)
    assert errors.classify(400, text).kind == "overflow"
    assert not errors.classify(400, text).retryable


@pytest.mark.parametrize(
    ("text", "prompt", "limit"),
    [
        ("400 invalid_request_error: prompt is too long: 210000 tokens > 200000 maximum", 210_000, 200_000),
        ("input length and `max_tokens` exceed context limit: 198411 + 32000 > 200000", 198_411, 200_000),
        ("maximum context length is 8192 tokens. However, your messages resulted in 10,000 tokens.", 10_000, 8192),
        ("maximum context length is 128000 tokens, however you requested 150000 tokens", 150_000, 128_000),
        (
            "maximum context length is 8192 tokens. However, you requested 9100 tokens (7000 in the messages, 100 in "
            "the functions, and 2000 in the completion).",
            7100,
            8192,
        ),
        (
            "maximum context length is 131072 tokens. However, you requested about 150000 tokens (147000 of text "
            "input, 1000 of tool input, 2000 in the output).",
            148_000,
            131_072,
        ),
        (
            "'max_tokens' is too large: 32000. This model's maximum context length is 8192 tokens and your request has "
            "3000 input tokens (32000 > 8192 - 3000).",
            3000,
            8192,
        ),
        (
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
            1_196_265,
            1_048_575,
        ),
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", None, 1_048_576),
        ("maximum prompt length is 131072 but the request contains 537812 tokens.", 537_812, 131_072),
        ("prompt token count of 150000 exceeds the limit of 128000", 150_000, 128_000),
        ("request (9000 tokens) exceeds the available context size (8192 tokens)", 9000, 8192),
        ("Your request exceeded model token limit: 131072 (requested: 140000)", 140_000, 131_072),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 40_000, 32_768),
        ("number of tokens in the prompt cannot exceed 4081 - received 5000", 5000, 4081),
        ("invalid params, context window exceeds limit (2013)", None, None),
        ("Your input exceeds the context window of this model.", None, None),
        ("413 status code (no body)", None, None),
        ("`inputs` must have less than 4096 tokens. Given: 5300", 5300, 4096),
        ("Range of input length should be [1, 258048]", None, 258_048),
        ("the input token count is 1251952 but model only supports up to 1048576. Reduce", 1_251_952, 1_048_576),
    ],
)
def test_the_numbers_in_a_refusal_are_read(text: str, prompt: int | None, limit: int | None) -> None:
    assert errors.named_counts(text) == errors.NamedCounts(prompt, limit)


@pytest.mark.parametrize(
    "text",
    [
        "429 status code (no body)",
        "Rate limit reached: too many tokens per minute",
        "429 Too many tokens, please wait before trying again.",
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
        "overloaded_error",
        "weird",
        "500 status code (no body)",
    ],
)
def test_limits_per_minute_and_other_failures_are_not_overflow(text: str) -> None:
    assert not errors.is_overflow(text)


@pytest.mark.parametrize(("read", "silent"), [(60, True), (50, False)])
def test_a_provider_that_cuts_the_prompt_silently_is_found_by_its_usage(read: int, silent: bool) -> None:
    message = AssistantMessage(content=[], usage=Usage(input=150, cache_read=read))
    assert errors.is_silent_overflow(message, 200) is silent


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("429 too many", "rate_limit"),
        ("insufficient credits", "billing"),
        ("overloaded_error", "overloaded"),
        ("request timed out", "timeout"),
        ("invalid_api_key", "auth"),
        ("tool_use_id missing", "format"),
        ("weird", "other"),
        ("You exceeded your current quota: insufficient_quota", "billing"),
        ("429 You exceeded your current quota, please check your plan and billing details.", "billing"),
        ("You exceeded your current quota. Quota exceeded for metric: requests. Please retry in 34.07s.", "rate_limit"),
        ("quota exceeded", "rate_limit"),
        ("usage limit reached", "rate_limit"),
        ("the server is over capacity", "overloaded"),
        ("context deadline exceeded", "timeout"),
        ("permission_error", "auth"),
        ("402 Payment Required", "billing"),
        ("OAuth token has expired", "auth"),
        ("resource has been exhausted", "rate_limit"),
    ],
)
def test_a_failure_without_a_status_is_known_by_its_words(text: str, kind: str) -> None:
    assert errors.classify(None, text).kind == kind


@pytest.mark.parametrize(
    ("status", "text", "kind", "retryable"),
    [
        (401, "invalid x-api-key", "auth", False),
        (403, "no access", "auth", False),
        (402, "pay first", "billing", False),
        (400, "Your credit balance is too low to access the API", "billing", False),
        (400, "API key not valid. Invalid api key", "auth", False),
        (400, "messages.3: bad order", "format", False),
        (404, "model not found", "format", False),
        (408, "", "timeout", True),
        (413, "Request entity", "overflow", False),
        (429, "slow down", "rate_limit", True),
        (429, "too many tokens", "rate_limit", True),
        (429, "insufficient_quota: check your plan", "billing", False),
        (429, "You exceeded your current quota, please check your plan and billing details.", "billing", False),
        (429, "You exceeded your current quota. RESOURCE_EXHAUSTED", "rate_limit", True),
        (429, "You exceeded your current quota. Please retry in 34.07s", "rate_limit", True),
        (400, "You exceeded your current quota, please check your plan", "billing", False),
        (418, "no coffee", "format", False),
        (422, "unknown field", "format", False),
        (500, "over capacity", "overloaded", True),
        (None, "You exceeded your current quota", "billing", False),
        (500, "Internal server error", "other", True),
        (502, "bad gateway", "other", True),
        (503, "unavailable", "overloaded", True),
        (504, "gateway time-out", "timeout", True),
        (529, "Overloaded", "overloaded", True),
        (None, "Overloaded", "overloaded", True),
        (None, "upstream connect error", "other", True),
        (None, "nonsense", "other", False),
    ],
)
def test_a_failed_call_has_a_kind_and_may_or_may_not_be_tried_again(
    status: int | None, text: str, kind: str, retryable: bool
) -> None:
    assert errors.classify(status, text) == errors.Classified(kind, retryable)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["overloaded_error", "rate limit", "Too many requests", "503 x", "500", "service unavailable", "internal error",
     "connection refused", "other side closed", "fetch failed", "reset before headers", "terminated"],
)  # fmt: skip
def test_words_that_promise_a_later_success(text: str) -> None:
    assert errors.classify(None, text).retryable


def test_overflow_is_never_tried_again_as_a_passing_failure() -> None:
    assert not errors.classify(None, "500 prompt is too long: 300000 tokens").retryable


def test_a_refused_thinking_level_names_the_supported_ones() -> None:
    text = "Unsupported value: 'xhigh'. Supported values are: 'low', 'medium', and 'high'."
    assert errors.supported_thinking_levels(text) == ("low", "medium", "high")
    assert errors.supported_thinking_levels("no") == ()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sun, 09 Sep 2001 01:47:10 GMT"}, 30),
        ({"retry-after": "Sun, 09 Sep 2001 01:00:00 GMT"}, 0),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-reset": "1000000045"}, 45),
        ({"x-ratelimit-reset": "1000000045000"}, 45),
        ({"x-ratelimit-reset-requests": "9s", "x-ratelimit-remaining-requests": "3"}, None),
        ({"x-ratelimit-reset-requests": "9s", "x-ratelimit-remaining-requests": "0"}, 9),
        ({"anthropic-ratelimit-tokens-reset": "2001-09-09T01:47:00Z"}, 20),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_the_wait_a_server_asks_for_is_read_from_its_headers(headers: dict[str, str], expected: float | None) -> None:
    found = retry_after_s(headers, now_s=1_000_000_000)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("body", "expected"),
    [("Please try again in 1m2.5s. Visit", 62.5), ('{"retryDelay": "34s"}', 34), ("try again later", None)],
)
def test_the_wait_may_also_stand_in_the_body(body: str, expected: float | None) -> None:
    assert retry_after_s({}, body) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded_error: Overloaded"),
        ('{"error":{"message":"No","type":"invalid_request_error","code":"bad_model"}}',
         "invalid_request_error (bad_model): No"),
        ('{"error":"model not found"}', "model not found"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('[{"error":{"code":429,"message":"Quota"}}]', "Quota"),
        ("<html><body><h1>502</h1> Bad   Gateway</body></html>", "502 Bad Gateway"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_vendors_sentence_is_found_in_any_body(body: str, message: str) -> None:
    assert vendor_message(body) == message


def test_an_error_text_is_short_and_holds_no_key() -> None:
    body = b'{"error":{"message":"Wrong key my-secret-key or sk-proj-abcdefghijklmnop1234 ' + b"x" * 5000 + b'"}}'
    error = status_error("openai", 401, {}, body, ["my-secret-key"])
    assert "my-secret-key" not in str(error)
    assert "abcdefghijklmnop1234" not in str(error)
    assert len(str(error)) <= 2048
    assert (error.kind, error.status) == ("auth", 401)


def test_an_empty_400_counts_as_overflow() -> None:
    error = status_error("cerebras", 400, {}, b"", [])
    assert str(error) == "400 status code (no body)"
    assert error.kind == "overflow"


def test_redaction_leaves_other_words_alone() -> None:
    assert redact("task-force sk-short", ["nothing"]) == "task-force sk-short"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("auth", "does not accept the key"),
        ("billing", "nothing left to pay with"),
        ("rate_limit", "takes no more requests from this account for now"),
        ("overloaded", "too much to do"),
        ("timeout", "took too long"),
        ("network", "could not be reached"),
        ("format", "refused the request"),
        ("other", "went wrong at the model's provider"),
    ],
)
def test_every_kind_says_what_is_wrong_what_to_do_and_what_the_provider_said(kind: str, words: str) -> None:
    told = error_text(ModelError("418 teapot: short and stout", kind=kind, status=418))  # type: ignore[arg-type]
    assert words in told
    assert "/model" in told
    assert "418 teapot: short and stout" in told


def test_our_own_words_are_left_alone() -> None:
    assert error_text(ModelError("the budget of today is used up", kind="billing")) == "the budget of today is used up"


def test_what_does_not_fit_is_explained_elsewhere() -> None:
    assert error_text(ModelError("prompt is too long", kind="overflow")) == "prompt is too long"


@pytest.mark.parametrize(
    ("status", "text", "unknown"),
    [
        (400, "the flux capacitor is misaligned", True),
        (422, "the flux capacitor is misaligned", True),
        (404, "no such model", False),
        (500, "the flux capacitor is misaligned", False),
        (400, "prompt is too long: 5 tokens > 4 maximum", False),
        (400, "invalid api key", False),
        (400, "messages.1.content.0.tool_use.id: String should match pattern", False),
        (400, "Rate limit reached", False),
    ],
)
def test_a_refusal_is_unknown_if_nothing_in_it_is_recognised(status: int, text: str, unknown: bool) -> None:
    kind = errors.classify(status, text)
    error = ModelError(f"{status} {text}", kind=kind.kind, status=status)
    assert errors.is_unknown_refusal(error) is unknown
