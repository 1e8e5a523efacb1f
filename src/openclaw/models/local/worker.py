"""The process that holds a local model: ``python -m openclaw.models.local.worker WEIGHTS CONTEXT [PURPOSE]``.

JSON lines on stdin: ``{"id", "body"}`` asks, ``{"cancel": id}`` stops that answer. A body with ``messages`` is written
out in the form that the model's file names; one with ``prompt`` is read as it is.
JSON lines on stdout: ``{"ready": context}`` once, then per request any number of ``{"id", "text"}`` and exactly one of
``{"id", "done", "input", "cached", "output"}``, ``{"id", "overflow": tokens}`` or ``{"id", "error"}``.
For the purposes ``embeddings`` and ``mean-embeddings`` (for models without a pooling type) it takes ``{"id", "texts"}``
and gives ``{"id", "done", "vectors"}``.
``{"fatal": kind, "detail"}`` means that the process cannot serve and ends. The end of stdin ends the process at once,
so it never outlives its Gateway. This module imports nothing of the package, only the library that runs the model.
"""

import importlib
import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
from typing import Any

MAX_THREADS = 8
SMALL_WINDOW = 8192


class RequestQueue:
    """Reads stdin in a thread of its own, so that cancellations take effect at once. Requests wait in order."""

    def __init__(self) -> None:
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self.cancelled: set[int] = set()

    def read_forever(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if "cancel" in message:
                self.cancelled.add(message["cancel"])
            else:
                self.requests.put(message)
        os._exit(0)


class ReplyWriter:
    """Turns the library's chunks for one request into our lines."""

    def __init__(self, request_id: int, inbox: RequestQueue, out: "LineOutput") -> None:
        self.id = request_id
        self.inbox = inbox
        self.out = out
        self.reason = ""
        self.usage: dict[str, Any] = {}
        self.overflow = 0
        self.error = ""

    def take(self, chunk: Any) -> bool:
        """Takes one chunk. Returning True asks the library to stop."""
        if "error" in chunk:
            error = chunk["error"]
            if error.get("type") == "exceed_context_size_error":
                self.overflow = int(error["n_prompt_tokens"])
            else:
                self.error = str(error.get("message", error))
            return True
        for choice in chunk.get("choices", ()):
            # A chat's chunk has a delta, that of a plain prompt a text.
            if text := choice["delta"].get("content") if "delta" in choice else choice.get("text"):
                self.out.send({"id": self.id, "text": text})
            self.reason = choice.get("finish_reason") or self.reason
        self.usage = chunk.get("usage") or self.usage
        if self.id in self.inbox.cancelled:
            self.reason = "cancelled"
            return True
        return False

    def finish(self) -> None:
        self.inbox.cancelled.discard(self.id)
        if self.overflow:
            self.out.send({"id": self.id, "overflow": self.overflow})
        elif self.error or not self.reason:
            self.out.send({"id": self.id, "error": self.error or "the model stopped without saying why"})
        else:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            counts = {
                "input": self.usage.get("prompt_tokens", 0) - cached,
                "cached": cached,
                "output": self.usage.get("completion_tokens", 0),
            }
            self.out.send({"id": self.id, "done": self.reason, **counts})


class LineOutput:
    """A copy of stdout. Descriptor 1 goes to stderr, because the library may print to it."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            os._exit(0)


def load(weights: str, context: int, purpose: str = "") -> Any:
    library: Any = importlib.import_module("xllamacpp")

    # The library always opens an HTTP server, which we do not use. It gets a socket in a private folder and a random
    # key, and the folder is removed as soon as the model is loaded.
    private = tempfile.mkdtemp(prefix="openclaw-local-")
    try:
        params = library.CommonParams()
        params.model.path = weights
        params.n_ctx = context
        params.n_parallel = 1
        params.cache_ram_mib = 0
        params.warmup = False
        params.verbosity = 0
        params.ui = False
        params.endpoint_slots = False
        if context > SMALL_WINDOW and not purpose:
            # What the model remembers of a large window takes gigabytes. In eight bits it takes half of them.
            params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_Q8_0
        if purpose:
            params.embedding = True
            # A text must be read in one batch, because its vector is made of all of it.
            params.n_batch = params.n_ubatch = context
        if purpose == "mean-embeddings":
            params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        params.api_keys = [secrets.token_hex(16)]
        if os.name == "posix":
            params.hostnames = [f"{private}/unused.sock"]
        # The threads wait for each other after every layer. One that shares its core with other work slows down all
        # of them, so only half of the cores are used.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, min(MAX_THREADS, cores // 2))
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        return library.Server(params)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def serve(server: Any, inbox: RequestQueue, out: LineOutput) -> None:
    while True:
        request = inbox.requests.get()
        answer = ReplyWriter(request["id"], inbox, out)
        body = {**request["body"], "stream": True, "stream_options": {"include_usage": True}}
        handle = server.handle_completions if "prompt" in body else server.handle_chat_completions
        try:
            if answer.id in inbox.cancelled:
                answer.reason = "cancelled"
            else:
                handle(body, answer.take)
        except (RuntimeError, ValueError, TypeError) as error:
            answer.error = str(error)
        answer.finish()


def serve_embeddings(server: Any, inbox: RequestQueue, out: LineOutput) -> None:
    while True:
        request = inbox.requests.get()
        try:
            answer = server.handle_embeddings({"input": request["texts"]})
            error = (answer.get("error") or {}).get("message", "")
            rows = sorted(answer.get("data", ()), key=lambda row: row["index"])
            vectors = [[round(number, 6) for number in row["embedding"]] for row in rows]
        except (RuntimeError, ValueError, TypeError, KeyError) as problem:
            error, vectors = str(problem), []
        if error or len(vectors) != len(request["texts"]):
            out.send({"id": request["id"], "error": error or "the model gave too few vectors"})
        else:
            out.send({"id": request["id"], "done": "stop", "vectors": vectors})


def main(weights: str, context: int, purpose: str = "") -> int:
    out = LineOutput()
    inbox = RequestQueue()
    threading.Thread(target=inbox.read_forever, daemon=True).start()
    try:
        server = load(weights, context, purpose)
    except ImportError as error:
        out.send({"fatal": "missing", "detail": str(error)})
        return 1
    except (RuntimeError, ValueError, AttributeError, OSError) as error:
        out.send({"fatal": "load", "detail": str(error)})
        return 1
    out.send({"ready": context})
    (serve_embeddings if purpose else serve)(server, inbox, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4]))
