import sys
from pathlib import Path

import pytest

from openclaw.config.schema import SecretRef
from openclaw.config.secrets import SecretUnavailable, resolve_secret


def test_a_secret_is_fetched_from_where_it_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    command = [sys.executable, "-c", "print('from-command')"]
    assert resolve_secret("plain", {}) == "plain"
    assert resolve_secret(None, {}) is None
    assert resolve_secret(SecretRef(env="KEY"), {"KEY": "from-env"}) == "from-env"
    assert resolve_secret(SecretRef(file=str(file)), {}) == "from-file"
    assert resolve_secret(SecretRef(command=command), {}) == "from-command"


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (SecretRef(env="NO_SUCH"), "NO_SUCH is not set"),
        (SecretRef(file="/no/such/file"), "cannot read"),
        (SecretRef(command=["/no/such/program"]), "cannot be run"),
        (SecretRef(command=[sys.executable, "-c", "raise SystemExit(3)"]), "code 3"),
        (SecretRef(command=[sys.executable, "-c", ""]), "gave nothing"),
    ],
)
def test_a_secret_that_cannot_be_fetched_says_why(secret: SecretRef, words: str) -> None:
    with pytest.raises(SecretUnavailable, match=words):
        resolve_secret(secret, {}, "models.providers.x.apiKey")
