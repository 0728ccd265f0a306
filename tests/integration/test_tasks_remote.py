"""The store of several hosts on a real S3 server: what moves, who may write, what is refused."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from dvc.data_cloud import DataCloud
from dvc.repo import Repo
from helpers import shared_stores
from helpers.shared_stores import S3Server

from agent.training import checkpoints
from env import variables
from flows import stages
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError
from tasks.shared import holder, remote
from tasks.tracking import runs
from tasks.training import pushed_checkpoints

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("shared_stores")]
MARKS = {"code": "1", "data": "2"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with shared_stores.s3(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def store(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[remote.SharedStore]:
    shared_stores.use(monkeypatch, server, tmp_path.name)
    monkeypatch.chdir(tmp_path)
    yield remote.store()
    os.environ.pop(variables.FENCE, None)


# --- which run may write ---


def take(request: str = "a run") -> str:
    """Take the store as a host that never gives it back; returns its number."""
    os.environ.pop(variables.FENCE, None)
    holder._take(request, None)
    return os.environ[variables.FENCE]


def test_a_replaced_run_changes_nothing(store: remote.SharedStore) -> None:
    old, new = take(), take()
    assert int(new) > int(old)
    os.environ[variables.FENCE] = old
    before = store.read(holder.RECORD)
    for write in (holder.check, lambda: holder.change(checkpoint={"step": 9})):
        with pytest.raises(holder.ReplacedError, match=r"another run took over .*pushes"):
            write()
    assert store.read(holder.RECORD) == before
    os.environ[variables.FENCE] = new
    holder.change(checkpoint={"step": 10})
    assert holder.entry("checkpoint") == {"step": 10}


def test_a_replaced_run_begins_no_run_in_mlflow(
    store: remote.SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = take(), take()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path('mlflow.db').resolve()}")
    params = Params.model_validate({})
    os.environ[variables.FENCE] = old
    with pytest.raises(holder.ReplacedError):
        runs.start_run("train", params)
    assert not Path("mlflow.db").exists()
    os.environ[variables.FENCE] = new
    assert runs.start_run("train", params).run_id


@pytest.mark.parametrize("stage", stages.SHARED)
def test_a_stage_by_hand_does_not_write_beside_a_run(store: remote.SharedStore, stage: str) -> None:
    own = take()
    holder.require_free()
    del os.environ[variables.FENCE]  # as in a shell of any host
    with pytest.raises(StageError, match=r"holds the shared store\. Wait .*rlm run"):
        stages.run_stage(stage)
    os.environ[variables.FENCE] = own
    holder.change(ended=True)
    del os.environ[variables.FENCE]
    holder.require_free()


def test_two_hosts_that_take_the_store_at_once_are_one_run(
    store: remote.SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = remote.SharedStore.read

    def late(self: remote.SharedStore, name: str) -> object:
        found = read(self, name)
        monkeypatch.setattr(remote.SharedStore, "read", read)
        take("of the other host")
        return found

    monkeypatch.setattr(remote.SharedStore, "read", late)
    with pytest.raises(StageError, match="another host took the run at the same moment"):
        holder._take("a run", None)
    record = store.read(holder.RECORD)[0]
    assert record is not None
    assert record["request"] == "of the other host"


def test_a_host_that_takes_the_store_without_hearing_of_it_holds_it(
    store: remote.SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = remote.SharedStore.write

    def repeated(self: remote.SharedStore, name: str, data: holder.Record, version: str) -> None:
        write(self, name, data, version)  # its answer is lost, and the client repeats it
        monkeypatch.setattr(remote.SharedStore, "write", write)
        write(self, name, data, version)

    take()
    monkeypatch.setattr(remote.SharedStore, "write", repeated)
    assert take() == "2"


def test_hosts_of_one_name_that_take_the_store_at_once_are_one_run(
    store: remote.SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Clock:
            return cls(2026, 1, 1)

    monkeypatch.setattr(holder, "datetime", Clock)
    read, others = remote.SharedStore.read, []

    def late(self: remote.SharedStore, name: str) -> object:
        found = read(self, name)
        monkeypatch.setattr(remote.SharedStore, "read", read)
        others.append(take())
        return found

    monkeypatch.setattr(remote.SharedStore, "read", late)
    with pytest.raises(StageError, match="another host took the run at the same moment"):
        holder._take("a run", None)
    assert others == ["1"]


@pytest.mark.parametrize("stored", [b"[]", b"{}", b'"1"'])
def test_what_is_no_record_resets_no_numbers(store: remote.SharedStore, stored: bytes) -> None:
    store.client.put_object(Bucket=store.bucket, Key=store.prefix + holder.RECORD, Body=stored)
    for reads in (take, holder.require_free):
        with pytest.raises(ConfigError, match="is not a record of this project"):
            reads()


def test_a_checkpoint_that_the_record_cannot_name_deletes_no_other(
    store: remote.SharedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def conflict(*_: object) -> None:
        raise remote.RecordChangedError

    take()
    pusher = pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1)
    made(tmp_path / "a", 1)
    pusher.push()
    made(tmp_path / "a", 2)
    monkeypatch.setattr(remote.SharedStore, "write", conflict)
    with caplog.at_level(logging.WARNING):
        pusher.push()
    assert "checkpoint 2 was not pushed" in caplog.text
    assert holder.entry("checkpoint")["name"] == "checkpoints/1-1"
    assert "checkpoints/1-1/weights" in {
        key.removeprefix(store.prefix).replace("sub/", "") for key in store._keys("checkpoints/")
    }


def test_a_store_that_writes_without_the_condition_is_refused(store: remote.SharedStore) -> None:
    def forget(params: dict[str, dict[str, str]], **_: object) -> None:
        for name in ("If-Match", "If-None-Match"):
            params["headers"].pop(name, None)

    store.client.meta.events.register("before-call.s3.PutObject", forget)
    for _ in range(2):  # without a record, and with one
        with pytest.raises(ConfigError, match="does not check conditions of writes"):
            take()
    assert variables.FENCE not in os.environ


def test_a_run_that_ended_leaves_its_record_closed_and_no_checkpoint(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    with holder.held("a run", None) as died:
        assert died is None
        made(tmp_path / "models", 4)
        pushed_checkpoints.CheckpointPusher(tmp_path / "models", MARKS, 2).push()
    record = store.read(holder.RECORD)[0]
    assert record is not None
    assert (record["ended"], record["checkpoint"]) == (True, None)
    assert store._keys("checkpoints/") == []
    assert variables.FENCE not in os.environ


def test_the_next_run_learns_of_a_dead_one_and_a_failed_one_is_not_dead(
    store: remote.SharedStore,
) -> None:
    take("a run")
    with holder.held("a run", None) as died:
        assert died is not None
        assert died["token"] == 1
    with pytest.raises(ValueError, match="of the run"), holder.held("a run", None):
        raise ValueError("of the run")
    with holder.held("a run", None) as died:
        assert died is None


# --- checkpoints ---


def made(folder: Path, step: int) -> None:
    with checkpoints.writing(folder, step) as aside:
        (aside / "sub").mkdir()
        (aside / "sub/weights").write_text(f"of step {step}")
        state = {"step": step, "fingerprint": MARKS}
        (aside / checkpoints.STATE).write_text(json.dumps(state))


def test_the_newest_checkpoint_moves_to_another_host(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    take()
    pusher = pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, every=4)
    for step in (2, 4, 6, 8):
        made(tmp_path / "a", step)
        pusher.push()
    assert {key.split("/")[2] for key in store._keys("checkpoints/")} == {"1-8"}
    take()
    made(tmp_path / "b", 3)
    start = checkpoints.choose(tmp_path / "b", MARKS)
    assert pushed_checkpoints.fetch_newer(tmp_path / "b", MARKS, start)
    found = checkpoints.choose(tmp_path / "b", MARKS)
    assert found.checkpoint == tmp_path / "b/checkpoint-8"
    assert (found.checkpoint / "sub/weights").read_text() == "of step 8"
    assert not pushed_checkpoints.fetch_newer(tmp_path / "b", MARKS, found)  # it is here


def test_a_checkpoint_of_another_training_is_not_fetched_and_not_in_the_way(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    take()
    made(tmp_path / "a", 4)
    pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1).push()
    made(tmp_path / "b", 900)  # of an earlier training of this host
    other = {"code": "another"}
    start = checkpoints.choose(tmp_path / "b", other)
    assert not pushed_checkpoints.fetch_newer(tmp_path / "b", other, start)
    clean = checkpoints.Start(None, None, "code changed")
    assert pushed_checkpoints.fetch_newer(tmp_path / "b", MARKS, clean)
    assert [*checkpoints.steps(tmp_path / "b")] == [4]
    assert len(checkpoints.sets_aside(tmp_path / "b")) == 1


def test_a_replaced_training_stops_and_its_checkpoint_is_not_read(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    old = take()
    pusher = pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1)
    made(tmp_path / "a", 1)
    pusher.push()
    take()
    os.environ[variables.FENCE] = old
    made(tmp_path / "a", 2)
    with pytest.raises(holder.ReplacedError):
        pusher.push()
    os.environ[variables.FENCE] = "2"
    assert holder.entry("checkpoint")["step"] == 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_that_was_replaced_in_mid_write_deletes_no_checkpoint_of_the_next_one(
    store: remote.SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    change = holder.change

    def replaced_after(**entries: object) -> None:
        change(**entries)
        monkeypatch.setattr(holder, "change", change)
        own = take()
        made(tmp_path / "b", 5)
        pushed_checkpoints.CheckpointPusher(tmp_path / "b", MARKS, 1).push()
        os.environ[variables.FENCE] = str(int(own) - 1)

    with holder.held("a run", None):
        made(tmp_path / "a", 4)
        if ends:
            pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1).push()
        monkeypatch.setattr(holder, "change", replaced_after)
        if not ends:
            pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1).push()
            monkeypatch.setattr(holder, "change", lambda **_: None)
    assert {key.split("/")[2] for key in store._keys("checkpoints/")} == {"2-5"}
    record = store.read(holder.RECORD)[0]
    assert record is not None
    assert record["checkpoint"]["name"] == "checkpoints/2-5"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("AWS_ENDPOINT_URL", "http://127.0.0.1:9"), ("AWS_SECRET_ACCESS_KEY", "of yesterday")],
)
def test_a_lost_store_is_a_warning_for_a_checkpoint_which_the_next_push_repeats(
    store: remote.SharedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
) -> None:
    take()
    made(tmp_path / "a", 1)
    pusher = pushed_checkpoints.CheckpointPusher(tmp_path / "a", MARKS, 1)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setenv(variable, value)
        remote.opened.cache_clear()
        pusher.push()
        assert "checkpoint 1 was not pushed" in caplog.text
    remote.opened.cache_clear()
    pusher.push()
    assert holder.entry("checkpoint")["step"] == 1


@pytest.mark.parametrize("key", ["../../escaped", "sub/../../../escaped", "/tmp/rlm-escaped"])
def test_no_key_of_the_store_is_written_outside_the_folder(
    store: remote.SharedStore, tmp_path: Path, key: str
) -> None:
    (tmp_path / "one").mkdir()
    place = f"{store.prefix}checkpoints/1-1/"
    for name in ("inside", key):
        store.client.put_object(Bucket=store.bucket, Key=place + name, Body=b"x")
    with pytest.raises(StageError, match="leads out of a folder"):
        store.download("checkpoints/1-1", tmp_path / "one/two")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"inside"}
    assert not Path("/tmp/rlm-escaped").exists()


# --- stages ---


def chain(folder: Path) -> None:
    """A folder whose stage `made` copies a file and says that it ran; one output has no cache."""
    folder.mkdir()
    os.chdir(folder)
    Repo.init(no_scm=True).close()
    Path("source").write_text("rows")
    Path("stage.sh").write_text(
        "mkdir -p out && cp source out/rows && wc source > report && date >> ran"
    )
    stage = {
        "cmd": "sh stage.sh",
        "deps": ["source", "stage.sh"],
        "outs": ["out", {"report": {"cache": False}}],
    }
    Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {"made": stage}}))


def test_a_stage_that_one_host_ran_is_pulled_on_another(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    take()
    chain(tmp_path / "a")
    stages._reproduce("made")
    assert Path("ran").exists()
    chain(tmp_path / "b")
    stages._reproduce("made")
    assert Path("out/rows").read_text() == "rows"
    assert Path("report").read_text() == (tmp_path / "a/report").read_text()
    assert not Path("ran").exists()
    assert Path("dvc.lock").read_text() == (tmp_path / "a/dvc.lock").read_text()
    Path("source").write_text("other rows")  # else the test would pass for any stage
    stages._reproduce("made")
    assert Path("ran").exists()


def test_an_object_with_other_content_is_not_pulled(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    take()
    chain(tmp_path / "a")
    stages._reproduce("made")
    objects = [key for key in store._keys("files/") if not key.endswith(".dir")]
    for key in objects:
        store.client.put_object(Bucket=store.bucket, Key=key, Body=b"evil")
    chain(tmp_path / "b")
    with suppress(StageError):
        stages._reproduce("made")
    assert objects
    assert not Path("out/rows").exists() or Path("out/rows").read_text() == "rows"


def test_a_folder_that_names_a_place_outside_is_not_pulled(
    store: remote.SharedStore, tmp_path: Path
) -> None:
    take()
    chain(tmp_path / "a")
    stages._reproduce("made")
    (key,) = [key for key in store._keys("files/") if key.endswith(".dir")]
    listed = json.loads(store.client.get_object(Bucket=store.bucket, Key=key)["Body"].read())
    listed[0]["relpath"] = "../../escaped"
    store.client.put_object(Bucket=store.bucket, Key=key, Body=json.dumps(listed).encode())
    chain(tmp_path / "b")
    with suppress(StageError):
        stages._reproduce("made")
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "b/../escaped").exists()


def test_a_replaced_run_pushes_no_stage(store: remote.SharedStore, tmp_path: Path) -> None:
    old = take()
    take()
    os.environ[variables.FENCE] = old
    chain(tmp_path / "a")
    with pytest.raises(holder.ReplacedError):
        stages._reproduce("made")
    assert [*store._keys("files/"), *store._keys("runs/")] == []


def test_a_run_that_was_replaced_while_it_pushed_records_no_stage(
    store: remote.SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = DataCloud.push

    def replaced_after(self: DataCloud, *given: object, **named: object) -> object:
        done = push(self, *given, **named)
        own = take()
        os.environ[variables.FENCE] = str(int(own) - 1)
        return done

    take()
    chain(tmp_path / "a")
    monkeypatch.setattr(DataCloud, "push", replaced_after)
    with pytest.raises(holder.ReplacedError):
        stages._reproduce("made")
    assert store._keys("files/")
    assert store._keys("runs/") == []


# --- bad input ---


@pytest.mark.parametrize(
    ("variable", "value", "error", "says"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret", ConfigError, "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "AKIAWRONG", ConfigError, "InvalidAccessKeyId"),
        (
            variables.REMOTE,
            "s3://no-such-bucket/x",
            ConfigError,
            "NoSuchBucket",
        ),
        (variables.REMOTE, "/srv/remote", ConfigError, "not an address in S3"),
        (variables.REMOTE, "https://u:a-wrong-secret@h/b", ConfigError, "not an address in S3"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", StageError, "cannot be used .*ENDPOINT_URL"),
    ],
)
def test_a_wrong_variable_is_one_message_without_a_secret(
    store: remote.SharedStore,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    error: type[Exception],
    says: str,
) -> None:
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv(variable, value)
    remote.opened.cache_clear()
    with pytest.raises(error, match=says) as found, holder.held("a run", None):
        pytest.fail("the run began")
    assert secret not in str(found.value)
    assert "a-wrong-secret" not in str(found.value)
