"""Write the lock files again after a change of pyproject.toml. Run by ``make lock``; needs .venv and a package index.

``requirements-dev.lock`` names everything. The others hold parts of it, so that every installation has the versions
that the tests ran with: ``requirements.lock`` for ``make run``, ``deploy/requirements.lock`` for the image, and one
file per extra in ``src/openclaw/locks`` for ``openclaw extras add``, without the packages of every installation.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRA_LOCKS = ROOT / "src" / "openclaw" / "locks"
IMAGE_EXTRAS = ("postgres", "telegram", "discord", "slack", "matrix", "mcp")
_STYLE = "--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url"


def compile_lock(output: Path, *options: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "--quiet", "pyproject.toml", *_STYLE.split(), "--no-emit-find-links"]
    done = [*command, *options, "--output-file", str(output)]
    subprocess.run(done, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def blocks(text: str) -> dict[str, str]:
    """The packages of a lock file, each with its lines. One with several versions has all of them."""
    found: dict[str, str] = {}
    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        if block.strip():
            name = re.split(r"[^\w.-]", block, maxsplit=1)[0].lower()
            found[name] = found.get(name, "") + block
    return found


def main() -> None:
    compile_lock(ROOT / "requirements-dev.lock", "--all-extras", "--group", "build", "--group", "dev")
    tested = ("--constraint", "requirements-dev.lock")
    compile_lock(ROOT / "requirements.lock", "--extra", "local", "--group", "build", *tested)
    in_image = [word for extra in IMAGE_EXTRAS for word in ("--extra", extra)]
    compile_lock(ROOT / "deploy" / "requirements.lock", *in_image, "--group", "build", *tested)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        everywhere, whole = Path(folder, "base.txt"), Path(folder, "extra.txt")
        compile_lock(everywhere, *tested)
        base = blocks(everywhere.read_text())
        for extra in project["optional-dependencies"]:
            compile_lock(whole, "--extra", extra, *tested)
            own = [block for name, block in blocks(whole.read_text()).items() if base.get(name) != block]
            (EXTRA_LOCKS / f"{extra}.txt").write_text("".join(own))


if __name__ == "__main__":
    main()
