import os
from pathlib import Path

import pytest

from openclaw.config.load import Snapshot, read_config


def read(folder: Path, **files: str) -> Snapshot:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".json5")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_config(str(folder / "main.json5"), {})


def test_an_included_file_stands_where_it_is_named(tmp_path: Path) -> None:
    snapshot = read(tmp_path, main='{ agents: { $include: "agents.json5" } }', agents='{ list: [{ id: "a" }] }')
    assert snapshot.valid and snapshot.config.agents.list[0].id == "a"
    assert snapshot.includes == [str(tmp_path / "agents.json5")]
    assert snapshot.parsed == {"agents": {"$include": "agents.json5"}}


def test_later_files_and_then_the_keys_beside_win(tmp_path: Path) -> None:
    snapshot = read(
        tmp_path,
        main='{ $include: ["one.json5", "sub/two.json5"], gateway: { port: 3 } }',
        one='{ gateway: { port: 1, bind: "lan" }, session: { mainKey: "one" } }',
        sub__two='{ gateway: { port: 2 }, session: { $include: "./three.json5" } }',
        sub__three='{ mainKey: "three" }',
    )
    config = snapshot.config
    assert snapshot.valid and (config.gateway.port, config.gateway.bind, config.session.main_key) == (3, "lan", "three")


def test_lists_of_several_files_are_joined(tmp_path: Path) -> None:
    snapshot = read(
        tmp_path,
        main='{ $include: ["one.json5", "two.json5"] }',
        one='{ agents: { list: [{ id: "a" }] } }',
        two='{ agents: { list: [{ id: "b" }] } }',
    )
    assert [agent.id for agent in snapshot.config.agents.list] == ["a", "b"]


def test_a_whole_list_can_be_included(tmp_path: Path) -> None:
    snapshot = read(
        tmp_path, main='{ bindings: { $include: "b.json5" } }', b='[{ agentId: "a", match: { channel: "x" } }]'
    )
    assert snapshot.valid and snapshot.config.bindings[0].agent_id == "a"


def test_a_fault_in_an_included_file_is_placed_there(tmp_path: Path) -> None:
    snapshot = read(tmp_path, main='{ gateway: { $include: "g.json5" } }', g='{\n\n port: "x" }')
    (issue,) = snapshot.issues
    assert (issue.path, issue.line, issue.file) == ("gateway.port", 3, str(tmp_path / "g.json5"))
    assert "g.json5:3" in str(issue)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main": '{ $include: "main.json5" }'}, "includes itself"),
        ({"main": '{ $include: "a.json5" }', "a": '{ ui: { $include: "main.json5" } }'}, "includes itself"),
        ({"main": '{ $include: "gone.json5" }'}, "does not exist"),
        ({"main": '{ $include: "../outside.json5" }'}, "outside the folder"),
        ({"main": '{ $include: "/etc/passwd" }'}, "outside the folder"),
        ({"main": '{ $include: "bad.json5" }', "bad": "{ a: "}, "bad.json5:1"),
        ({"main": "{ $include: 5 }"}, "name of a file"),
        ({"main": '{ $include: "x\\u0000y" }'}, ""),
        ({"main": '{ $include: "list.json5", ui: {} }', "list": "[]"}, "must hold an object"),
        ({"main": '{ $include: "list.json5" }', "list": "[]"}, "must hold an object"),
    ],
)
def test_an_include_that_cannot_be_is_an_issue(tmp_path: Path, files: dict[str, str], words: str) -> None:
    snapshot = read(tmp_path, **files)
    assert not snapshot.valid and words in snapshot.issues[0].message
    assert "$include" in snapshot.issues[0].path


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.json5").write_text("{ port: 1 }")
    folder = tmp_path / "config"
    folder.mkdir()
    os.symlink(tmp_path / "secret.json5", folder / "link.json5")
    snapshot = read(folder, main='{ gateway: { $include: "link.json5" } }')
    assert "outside the folder" in snapshot.issues[0].message


def test_includes_nest_ten_levels_and_no_more(tmp_path: Path) -> None:
    def chain(length: int) -> Snapshot:
        files = {f"f{number}": f'{{ $include: "f{number + 1}.json5" }}' for number in range(1, length)}
        return read(tmp_path, main='{ $include: "f1.json5" }', **files, **{f"f{length}": "{ gateway: { port: 9 } }"})

    assert chain(10).config.gateway.port == 9
    assert "levels deep" in chain(11).issues[0].message
