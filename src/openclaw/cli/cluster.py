"""``openclaw cluster``: the Gateways that share one database."""

from __future__ import annotations

from openclaw.cli.command import Group, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any


def _show(payload: dict[str, Any], _: argparse.Namespace) -> Iterator[str]:
    from openclaw.text import counted, duration

    if not payload["clustered"]:
        yield "This Gateway keeps its sessions in files and is the only node. See docs/scaling.md to have several."
        return
    living = sum(node["state"] in ("alive", "draining") for node in payload["nodes"])
    yield f"{counted(living, 'node', 'nodes')} on {payload['storage']}"
    if problem := payload.get("problem"):
        yield f"The database cannot be reached ({problem}). This is what this node saw last."
    for node in payload["nodes"]:
        here = " (this one)" if node["id"] == payload["node"] else ""
        link = "" if here or node["connected"] or node["state"] not in ("alive", "draining") else ", not connected"
        yield f"{node['id']}  {node['state']:<8} {node['url'] or node['host']}{here}{link}"
        if node["state"] in ("alive", "draining"):
            yield (
                f"    {counted(node['sessions'], 'session', 'sessions')}, {counted(node['runs'], 'run', 'runs')}, "
                f"{node['queued']} waiting, {counted(node['clients'], 'client', 'clients')}; "
                f"lease {node['leaseMs'] / 1000:.1f} s, relay {node['relayLagMs']:.1f} ms, "
                f"database {node['databaseMs']:.1f} ms"
            )
        age = duration(max(0, payload["ts"] - node["startedAt"]))
        ended = ""
        if node.get("endedAt") is not None:
            how = "left" if node["state"] == "left" else "was given up"
            ended = f", {how} {duration(max(0, payload['ts'] - node['endedAt']))} ago"
        holds = ", ".join(name for name, holder in payload["holds"].items() if holder == node["id"])
        yield f"    version {node['version']}, pid {node['pid']} on {node['host']}, started {age} ago{ended}"
        if holds:
            yield f"    holds {holds}"
    if payload["unowned"]:
        yield f"{payload['unowned']} sessions have unfinished messages and no owner yet."


COMMANDS = {
    "cluster": Group(
        {
            "status": query(
                "Show the nodes of the cluster, their sessions, leases and lag",
                "cluster.status",
                (),
                show=_show,
                example="openclaw cluster status --json",
            )
        },
        default="status",
    )
}
