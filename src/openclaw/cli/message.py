"""``openclaw message send`` and ``openclaw agent``: send one message to the agent and print the reply.

``openclaw outbox``: the replies that wait for their delivery, and those that were given up.
"""

from __future__ import annotations

import os
import re
import sys

from openclaw.cli import service
from openclaw.cli.client import GatewayClient, new_id
from openclaw.cli.command import (
    EXIT_USAGE,
    GATEWAY,
    JSON,
    TIMEOUT_MS,
    Action,
    Flag,
    Group,
    UserError,
    answer,
    decoded,
    query,
)
from openclaw.cli.session_lookup import check_agent, find_session, resolve_key, session_key
from openclaw.cli.terminal import note, print_json
from openclaw.cli.turn_stream import Turn, reply_texts, run_turn
from openclaw.text import clipped, counted, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

RUN_TIMEOUT_S = 600
_TO_CHANNEL = "straight to a channel (no agent)"
MAX_CHARS = 200_000
MAX_IMAGE_BYTES = 5_000_000
MAX_TEXT_BYTES = 4 * (MAX_CHARS + 2)
"""The bytes to read of a file: enough to see that its text is too long."""
_IMAGE_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
OUTBOX_WIDTH = 60


def send(args: argparse.Namespace) -> int:
    if args.text is not None and args.message is not None and args.text != "-":
        raise UserError("Give the text once: either as TEXT or with --message.", EXIT_USAGE)
    if args.yes and args.no:
        raise UserError("Give --yes or --no, not both.", EXIT_USAGE)
    if args.target:
        return _send_to_channel(args)
    text, attachments = with_context(_text(args), args.context)
    client = service.connect(args)
    params: dict[str, object] = {"message": text, "deliver": False, "idempotencyKey": new_id()}
    params |= session_params(client, args.session, args.agent)
    if attachments:
        params["attachments"] = attachments
    if args.thinking:
        params["thinking"] = args.thinking
    if args.run_timeout != RUN_TIMEOUT_S:
        params["timeout"] = args.run_timeout
    if args.no_wait:
        turn = Turn(str(params["idempotencyKey"]))
        for frame in client.stream("agent", params):
            turn.digest(frame)
            if turn.accepted is not None:
                print_json(turn.accepted)
                return 0
        raise UserError("The Gateway closed the connection without accepting the message.")
    answers = "yes" if args.yes else "no" if args.no else "ask"
    turn = run_turn(client, "agent", params, quiet=args.json, timeout_s=args.run_timeout, answers=answers)
    if args.json:
        payload = turn.payload or {}
        reply = "\n\n".join(reply_texts(payload)) or turn.final_text or ""
        print_json(
            {
                "runId": turn.run_id,
                "status": payload.get("status", "ok"),
                "sessionKey": turn.session_key or params.get("sessionKey"),
                "reply": reply,
                "result": payload.get("result"),
            }
        )
    return 0


def _text(args: argparse.Namespace) -> str:
    given = args.message if args.message is not None else args.text
    if given in (None, "-") and not sys.stdin.isatty():
        given = sys.stdin.read().rstrip("\n")
    if given in (None, "-") or not given.strip():
        raise UserError('Message text is required, for example: openclaw message send "Hello"')
    return given


def session_params(client: GatewayClient, session: str | None, agent: str | None) -> dict[str, str]:
    """The parameters that say where the message goes."""
    params: dict[str, str] = {}
    if agent:
        check_agent(client, agent)
        params["agentId"] = agent
    if session and session != "main":
        params["sessionKey"], new = session_key(client, session, agent)
        if new:
            note(f"New session {params['sessionKey']}.")
            params["sessionKey"] = session
    elif not agent:
        params["sessionKey"] = "main"
    return params


def _send_to_channel(args: argparse.Namespace) -> int:
    text = args.message if args.message is not None else args.text
    if not (text and text.strip()) and not args.media:
        raise UserError("A message to a channel needs a text or --media.")
    params: dict[str, object] = {"to": args.target, "message": text or "", "idempotencyKey": new_id()}
    optional = {"channel": args.channel, "accountId": args.account, "mediaUrl": args.media, "sessionKey": args.session}
    params |= {key: value for key, value in optional.items() if value}
    if args.gif_playback:
        params["gifPlayback"] = True
    if args.dry_run:
        print_json({"dryRun": True, "method": "send", "params": params})
        return 0
    client = service.connect(args)
    if args.session:
        params["sessionKey"] = resolve_key(client, args.session, args.agent)
    payload = client.call("send", params)
    text = f"Sent through {payload.get('channel', 'the channel')}: {payload.get('messageId', '')}"
    return answer(args, payload, text)


def agent(args: argparse.Namespace) -> int:
    if not (args.to or args.session_id or args.agent):
        raise UserError("Pass --to <E.164>, --session-id, or --agent to choose a session")
    if args.timeout < 0:
        raise UserError("--timeout must be a number of seconds, 0 for no limit")
    seconds, args.timeout = args.timeout, TIMEOUT_MS
    client = service.connect(args)
    params: dict[str, object] = {"message": args.message, "idempotencyKey": new_id(), "timeout": seconds}
    optional = {
        "to": args.to,
        "sessionId": args.session_id,
        "agentId": args.agent,
        "thinking": args.thinking,
        "channel": args.channel,
        "replyTo": args.reply_to,
        "replyChannel": args.reply_channel,
        "replyAccountId": args.reply_account,
    }
    params |= {key: value for key, value in optional.items() if value}
    params["deliver"] = args.deliver
    if args.agent:
        check_agent(client, args.agent)
    key = f"agent:{args.agent}:main"
    if args.session_id and (found := find_session(client, args.session_id, args.agent)):
        key = params["sessionKey"] = found
        del params["sessionId"]
    if args.verbose and (args.session_id or args.agent):
        client.call("sessions.patch", {"key": key, "verboseLevel": args.verbose})
    turn = run_turn(client, "agent", params, quiet=True, timeout_s=seconds)
    if args.json:
        print_json(turn.payload)
        return 0
    texts = reply_texts(turn.payload) or ([turn.final_text] if turn.final_text else [])
    if texts:
        sys.stdout.write("\n".join(texts) + "\n")
    else:
        note(str((turn.payload or {}).get("summary") or "No reply from agent."))
    return 0


# Files given with --context: text goes into the message after its own text, images are attached.


def with_context(text: str, files: list[str]) -> tuple[str, list[dict[str, str]]]:
    """Returns the message with the text files in it, and the images as attachments."""
    parts, attachments = [text], []
    for path in files:
        data = _read(path)
        mime = image_type(data)
        if mime is None:
            parts.append(_block(path, _decoded(path, data)))
            continue
        if len(data) > MAX_IMAGE_BYTES:
            raise UserError(f"Image too large: {path} has more than {MAX_IMAGE_BYTES} bytes")
        import binascii

        content = binascii.b2a_base64(data, newline=False).decode()
        image = {"type": "image", "mimeType": mime, "fileName": os.path.basename(path), "content": content}
        attachments.append(image)
    return "\n\n".join(parts), attachments


def image_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for signature, mime in _IMAGE_SIGNATURES if data.startswith(signature)), None)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max(MAX_TEXT_BYTES, MAX_IMAGE_BYTES) + 1)
    except FileNotFoundError:
        raise UserError(f"Context file not found: {path}") from None
    except IsADirectoryError:
        raise UserError(f"Context path is a directory, give a file: {path}") from None
    except OSError as error:
        raise UserError(f"Cannot read the context file {path}: {error.strerror}") from error


def _decoded(path: str, data: bytes) -> str:
    try:
        return data[:MAX_TEXT_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) > MAX_TEXT_BYTES and error.start >= MAX_TEXT_BYTES - 3:
            return data[: error.start].decode("utf-8-sig")
        raise UserError(
            f"Context file is neither UTF-8 text nor a known image (png, jpeg, gif, webp): {path}"
        ) from None


def _block(path: str, text: str) -> str:
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n[… cut here: the file is longer than {MAX_CHARS} characters]"
    # The fence is longer than any in the file, so that the file cannot end its own block.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    newline = "" if text.endswith("\n") else "\n"
    # The label is the path relative to the current folder. A file outside of it keeps the path as it was given.
    label = os.path.relpath(path)
    if label.split(os.sep, 1)[0] == os.pardir:
        label = path
    return f"{label}:\n{fence}\n{text}{newline}{fence}"


def _show_outbox(payload: object, args: argparse.Namespace) -> Iterator[str]:
    from openclaw.protocol.messages import OutboxPage

    page = decoded(payload, OutboxPage)
    if not page.parts:
        yield "Nothing waits, and nothing was given up." if args.state == "open" else "None."
        return
    for part in page.parts:
        age = duration(max(0, page.ts - part.created_at))
        text = " ".join(part.text.split()) or (f"[{part.media} files]" if part.media else f"[{part.act}]")
        yield f"{part.id:>5}  {part.state:<8} {part.channel} to {part.to}, {age} old: {clipped(text, OUTBOX_WIDTH)}"
        if part.error:
            yield f"       {part.error}"
    if any(part.state == "dead" for part in page.parts):
        yield "Given up: `openclaw outbox retry ID` tries again, `openclaw why <message>` tells more."


def _choice(args: argparse.Namespace) -> dict[str, object]:
    if bool(args.ids) == args.all:
        raise UserError("name the parts by their numbers (see `openclaw outbox`), or give --all")
    return {"all": True} if args.all else {"ids": args.ids}


_SEND = Action(
    "Send one message to the agent (or, with --target, to a channel) and print the reply",
    send,
    (
        Flag("text TEXT", "the message; '-' or nothing reads standard input", nargs="?"),
        Flag("-m --message MESSAGE", "the message, as a flag"),
        Flag("--session NAME", "session key, id or label; a new name begins a session (default: main)"),
        Flag("--agent ID", "agent to speak to (default: the default agent)"),
        Flag("--context FILE", "add a file; may be repeated", action="append", default=[]),
        Flag("--thinking LEVEL", "off, minimal, low, medium or high, for this turn"),
        Flag("--run-timeout S", "seconds for the run (600)", type=int, default=RUN_TIMEOUT_S),
        Flag("--no-wait", "print the run's id and leave; the run goes on"),
        Flag("--yes", "allow what the run asks to do, once each"),
        Flag("--no", "deny what the run asks to do"),
        JSON,
        Flag("-t --target TO", "recipient on the channel: number, chat id, @name", group=_TO_CHANNEL),
        Flag("--channel CHANNEL", "channel to send with", group=_TO_CHANNEL),
        Flag("--account ACCOUNT", "account of the channel", group=_TO_CHANNEL),
        Flag("--media URL", "media to attach", group=_TO_CHANNEL),
        Flag("--gif-playback", "play a video as a GIF", group=_TO_CHANNEL),
        Flag("--dry-run", "print what would be sent", group=_TO_CHANNEL),
        *GATEWAY,
    ),
    about=(
        "The words go to standard output as they come, tool calls as one-line remarks to standard error, so a "
        "pipe gets the reply only. If no Gateway runs, one is started. A new name for --session begins a session "
        "and says so. Ctrl-C stops the run. If the agent asks a question, a terminal asks you. In a pipe the question "
        "goes to standard error, the run waits, and the exit code is 3. With --target the message does not go to the "
        "agent but straight out "
        "to a channel."
    ),
    example='openclaw message send "Summarise this" --context notes.md',
)
_AGENT = Action(
    "Run one agent turn and print the reply",
    agent,
    (
        Flag("-m --message MESSAGE", "what to say to the agent", required=True),
        Flag("-t --to NUMBER", "recipient whose session is used"),
        Flag("--session --session-id NAME", "an existing session, by key, id or label", dest="session_id"),
        Flag("--agent ID", "an agent; its main session is used"),
        Flag("--thinking LEVEL", "off, minimal, low, medium or high, for this turn"),
        Flag("--verbose", "keep this verbosity for the session", choices=("on", "off")),
        Flag("--deliver", "send the reply to the session's channel"),
        Flag("--channel CHANNEL", "channel to deliver to"),
        Flag("--reply-to TO", "other recipient of the delivery"),
        Flag("--reply-channel CHANNEL", "other channel of the delivery"),
        Flag("--reply-account ID", "other account of the delivery"),
        Flag("--timeout S", "seconds for the run (600, 0 = no limit)", type=int, default=600),
        JSON,
        Flag("--url URL", "Gateway address (needs --token or --password)", group="gateway"),
        Flag("--token TOKEN", "Gateway token", group="gateway"),
        Flag("--password PASSWORD", "Gateway password", group="gateway"),
    ),
    example='openclaw agent --agent main --message "What did we decide yesterday?"',
)
_CHOICE = (Flag("ids", "numbers of parts", nargs="*", type=int, metavar="ID"), Flag("--all", "every one"))
_OUTBOX = {
    "list": query(
        "Show what waits for its delivery and what was given up",
        "outbox.list",
        (
            Flag(
                "--state",
                "which ones (default: open, which are those that wait or were given up)",
                choices=("open", "waiting", "dead", "sent"),
                default="open",
                param="state",
            ),
            Flag("--channel NAME", "of this channel only", param="channel"),
            Flag("--limit N", "at most so many", type=int, default=100, param="limit"),
        ),
        show=_show_outbox,
        example="openclaw outbox list --state dead",
    ),
    "retry": query(
        "Retry parts that were given up",
        "outbox.retry",
        _CHOICE,
        params=_choice,
        show=lambda payload, _: [f"{counted(payload['retried'], 'part', 'parts')} will be tried again."],
        example="openclaw outbox retry 17",
    ),
    "drop": query(
        "Give up parts that wait",
        "outbox.drop",
        _CHOICE,
        params=_choice,
        show=lambda payload, _: [f"{counted(payload['dropped'], 'part', 'parts')} will not be sent."],
        example="openclaw outbox drop --all",
    ),
}
COMMANDS = {"message": Group({"send": _SEND}), "agent": _AGENT, "outbox": Group(_OUTBOX, default="list")}
