import pytest

from openclaw.config.reload import changed_paths, reload_action


@pytest.mark.parametrize(
    ("paths", "action"),
    [
        ([], "none"),
        (["agents.defaults.model", "tools.deny", "models.providers.x", "session.reset", "messages.queue.mode"], "none"),
        (["bindings", "skills.entries", "logging.level", "ui.seamColor"], "none"),
        (["gateway.reload.mode", "gateway.remote.url"], "none"),
        (["hooks.token"], "hot"),
        (["cron.enabled", "ui.seamColor"], "hot"),
        (["agents.defaults.heartbeat.every"], "hot"),
        (["agents.list"], "hot"),
        (["channels.telegram.botToken"], "hot"),
        (["browser.enabled"], "hot"),
        (["gateway.port"], "restart"),
        (["gateway.auth.token", "channels.signal"], "restart"),
        (["plugins.enabled"], "restart"),
        (["discovery.mdns"], "restart"),
        (["canvasHost.port"], "restart"),
        (["somethingNew"], "restart"),
    ],
)
def test_a_change_asks_for_no_more_than_it_needs(paths: list[str], action: str) -> None:
    assert reload_action(paths) == action


def test_changes_are_named_by_their_key_paths() -> None:
    old = {"a": {"b": 1, "c": [1]}, "same": {"x": 1}, "gone": {"y": 1}}
    new = {"a": {"b": 2, "c": [1, 2]}, "same": {"x": 1}, "new.key": 5}
    assert changed_paths(old, new) == ["a.b", "a.c", "gone", '"new.key"']
