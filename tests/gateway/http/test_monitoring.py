"""The Gateway's numbers, as Prometheus would read them."""

from __future__ import annotations

import asyncio
import re

import pytest

from openclaw.gateway.http.monitoring import MetricsPage, number
from openclaw.gateway.metrics import Histogram
from tests.gateway.http.served import BEARER, Served

pytestmark = pytest.mark.asyncio(loop_scope="package")
_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})? (-?[\d.e+-]+|[+-]Inf)')


async def read(gateway: Served) -> dict[str, float]:
    async with gateway.http.get(gateway.gateway.url + "/metrics", headers=BEARER) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = await response.text()
    samples: dict[str, float] = {}
    described: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in described
            described.add(line.split()[2])
        elif not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert re.sub(r"_(bucket|sum|count)$", "", match[1]) in described or match[1] in described
            samples[match[1] + (match[2] or "")] = float(match[3])
    return samples


async def test_messages_tokens_and_durations_are_counted(gateway: Served) -> None:
    before = await read(gateway)
    await gateway.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "[[reply:counted]]"}]})
    await gateway.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "[[error:400 no]]"}]})
    after = await read(gateway)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('openclaw_messages_total{state="answered"}') == 1
    assert grown('openclaw_messages_total{state="failed"}') == 1
    assert grown("openclaw_turn_duration_seconds_count") == 2
    assert grown('openclaw_tokens_total{kind="output"}') > 0
    assert grown('openclaw_model_errors_total{kind="format"}') == 2, "what a provider refuses is tried once more"
    assert after["openclaw_runs_active"] == after["openclaw_runs_queued"] == after["openclaw_outbox_depth"] == 0
    assert after["openclaw_ready"] == 1
    assert after["process_resident_memory_bytes"] > 10_000_000


async def test_the_delay_of_the_event_loop_is_watched(gateway: Served) -> None:
    async with asyncio.timeout(60):
        while (samples := await read(gateway))["openclaw_event_loop_lag_seconds_count"] == 0:
            await asyncio.sleep(0.02)  # A Gateway that has just started has no sample yet.
    assert 'openclaw_event_loop_lag_recent_seconds{quantile="0.99"}' in samples
    assert (
        samples['openclaw_event_loop_lag_seconds_bucket{le="+Inf"}'] == samples["openclaw_event_loop_lag_seconds_count"]
    )


async def test_a_connected_client_is_counted(gateway: Served) -> None:
    before = (await read(gateway))["openclaw_clients"]
    async with gateway.gateway.client():
        assert (await read(gateway))["openclaw_clients"] == before + 1


async def test_the_numbers_need_the_secret(gateway: Served) -> None:
    async with gateway.http.get(gateway.gateway.url + "/metrics") as response:
        assert response.status == 401
        assert "openclaw_" not in await response.text()


async def test_probes_need_no_secret(gateway: Served) -> None:
    for path in ("/healthz", "/readyz"):
        async with gateway.http.get(gateway.gateway.url + path) as response:
            assert (response.status, await response.json()) == (200, {"ok": True})


async def test_a_histogram_counts_upwards() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    page = MetricsPage()
    page.histogram("x_seconds", "Help.", histogram)
    assert page.text().splitlines() == [
        "# HELP x_seconds Help.",
        "# TYPE x_seconds histogram",
        'x_seconds_bucket{le="0.1"} 2',
        'x_seconds_bucket{le="1"} 3',
        'x_seconds_bucket{le="+Inf"} 4',
        "x_seconds_sum 7.65",
        "x_seconds_count 4",
    ]


async def test_labels_are_escaped() -> None:
    page = MetricsPage()
    page.values("x", "Help.", "gauge", "name", {'a"b\\c\nd': 1})
    assert page.text().splitlines()[-1] == 'x{name="a\\"b\\\\c\\nd"} 1'


@pytest.mark.parametrize(("value", "text"), [(1, "1"), (2.0, "2"), (0.5, "0.5"), (float("inf"), "+Inf")])
async def test_numbers_are_written_plainly(value: float, text: str) -> None:
    assert number(value) == text
