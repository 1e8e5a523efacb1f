from __future__ import annotations

import pytest

from openclaw.messages import Cost
from openclaw.models.base import Price, priced_usage


def test_cost_is_price_per_million_times_tokens_per_class() -> None:
    usage = priced_usage(
        Price(input=3, output=15, cache_read=0.3, cache_write=3.75),
        input=1_000_000, output=100_000, cache_read=2_000_000, cache_write=10_000,
    )  # fmt: skip
    assert usage.total_tokens == 3_110_000
    assert usage.cost.input == pytest.approx(3)
    assert usage.cost.output == pytest.approx(1.5)
    assert usage.cost.cache_read == pytest.approx(0.6)
    assert usage.cost.cache_write == pytest.approx(0.0375)
    assert usage.cost.total == pytest.approx(5.1375)


def test_an_unknown_price_leaves_zeros() -> None:
    usage = priced_usage(None, input=10, output=5)
    assert usage.total_tokens == 15
    assert usage.cost == Cost()


def test_numbers_of_a_confused_server_never_become_negative() -> None:
    assert priced_usage(None, input=-5, output=3).input == 0
