"""Files that are whole or not there at all, and arrays that come back bit by bit."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

from stretto.checkpoint import atomic_write, atomic_write_all, read_folder, write_folder
from stretto.errors import DamagedCheckpoint, UsageError
from stretto.safetensors import read_safetensors
from stretto.safetensors import safetensors as safetensors_of


def test_a_file_is_written_in_place_of_the_one_that_is_there(tmp_path):
    path = tmp_path / "x.json"
    for content in (b"\x00\xff", "text with \u20ac", ""):
        atomic_write(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    atomic_write(str(path), "half \ud800")
    assert path.read_text() == "half \\ud800"
    assert list(tmp_path.iterdir()) == [path]


def test_whoever_else_may_read_a_file_may_read_the_new_one(tmp_path):
    (tmp_path / "plain").write_text("")
    atomic_write(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there/x")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/x").read_text() == "new"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(tmp_path / "pipe", "hello")
        assert os.read(reader, 100) == b"hello"
        assert (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)


def test_if_one_of_several_cannot_be_written_all_are_as_before(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(FileNotFoundError):
        atomic_write_all({tmp_path / "a": "new", tmp_path / "b": "new", tmp_path / "missing/c": "new"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_one_who_is_killed_while_writing_leaves_the_old_file_whole(tmp_path):
    program = """
        import os, signal, sys
        from pathlib import Path
        from stretto.checkpoint import atomic_write
        def killed(fd):
            os.kill(os.getpid(), signal.SIGKILL)
        atomic_write(Path(sys.argv[1]), "old")
        os.fsync = killed
        atomic_write(Path(sys.argv[1]), "new and longer")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "x")]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert (tmp_path / "x").read_text() == "old"


# --- arrays ---------------------------------------------------------------------------------------------------

ODD = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1, 0x7F800000], np.uint32).view(
    np.float32
)  # NaNs, -0, the smallest


@pytest.mark.parametrize(
    "array",
    [
        ODD,
        np.array([np.pi, -0.0, 5e-324, np.nan]),
        np.array([2**63 - 1, -(2**63)]),
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.float32(2.5) + np.zeros((), np.float32),
        np.zeros((0, 4)),
        np.array([True, False]),
        *(
            np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
            for kind in ("i1", "i2", "i4", "u1", "u2", "u4", "u8")
        ),
        np.array([6e-8, np.inf], np.float16),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_what_is_written_is_read_bit_by_bit(array, tmp_path):
    atomic_write(tmp_path / "x", safetensors_of({"first": np.zeros(3, np.float32), "it": np.asarray(array)}))
    found = read_safetensors(tmp_path / "x")
    assert list(found) == ["first", "it"]
    native = np.asarray(array, array.dtype.newbyteorder("="))
    assert (found["it"].dtype, found["it"].shape) == (native.dtype, native.shape)
    assert found["it"].tobytes() == native.tobytes()
    found["it"][...] = 0  # it is the reader's own


@pytest.mark.parametrize("dtype", [np.complex64, np.longdouble, object, "U3", "M8[s]"])
def test_numbers_of_another_type_are_refused_and_nothing_is_written(dtype, tmp_path):
    with pytest.raises(UsageError, match=r"must be of BOOL, .*, F64, got .* in 'x'; convert"):
        atomic_write(tmp_path / "w", safetensors_of({"x": np.zeros(3, dtype)}))
    assert not list(tmp_path.iterdir())


def test_the_numbers_begin_at_a_multiple_of_eight_bytes(tmp_path):
    for name in ("x", "xy", "xyz", "xyzw"):
        atomic_write(tmp_path / "w", safetensors_of({name: np.ones(2)}))
        (length,) = struct.unpack_from("<Q", (tmp_path / "w").read_bytes())
        assert length % 8 == 0


def safetensors(tensors, **replaced):
    """The bytes of a file in the published format; `replaced` spoils a part of every entry."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        content = np.asarray(values, "<f4").tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "F32", "shape": list(np.shape(values)), "data_offsets": offsets, **replaced}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = {"a": np.arange(6).reshape(2, 3), "b": np.float32(2.5), "c": np.zeros((0, 4))}


def test_a_file_gives_back_the_numbers_and_shapes_that_were_saved(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(safetensors(GOOD))
    found = read_safetensors(tmp_path / "x.safetensors")
    assert {name: (values.shape, values.tolist()) for name, values in found.items()} == {
        name: (np.shape(values), np.asarray(values, np.float32).tolist()) for name, values in GOOD.items()
    }


DAMAGED = {
    "empty": b"",
    "shorter than its length": b"\x01\x02",
    "a header longer than the file": struct.pack("<Q", 1 << 40) + b"{}",
    "no header": struct.pack("<Q", 0),
    "a header that is no JSON": struct.pack("<Q", 3) + b"{a}",
    "a header that is no text": struct.pack("<Q", 2) + b"\xff\xff",
    "a header that is a list": struct.pack("<Q", 2) + b"[]",
    "a header nested too deep": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "an entry that is a number": struct.pack("<Q", 8) + b'{"a": 1}',
    "cut off": safetensors(GOOD)[:-1],
    "more bytes than halves take": safetensors(GOOD, dtype="F16"),
    "numbers that nobody knows": safetensors(GOOD, dtype="F8_E4M3"),
    "fewer bytes than doubles take": safetensors(GOOD, dtype="F64"),
    "a type that is a list": safetensors(GOOD, dtype=["F32"]),
    "an offset beyond the end": safetensors(GOOD, data_offsets=[1 << 40, (1 << 40) + 24]),
    "an offset before the beginning": safetensors(GOOD, data_offsets=[-24, 0]),
    "offsets in the wrong order": safetensors(GOOD, data_offsets=[24, 0]),
    "three offsets": safetensors(GOOD, data_offsets=[0, 24, 48]),
    "a shape that does not fit": safetensors(GOOD, shape=[5]),
    "a negative shape": safetensors(GOOD, shape=[-2, -3]),
    "a shape of fractions": safetensors(GOOD, shape=[1.5, 4]),
    "a shape that is a text": safetensors(GOOD, shape="23"),
    "an unknown field": safetensors(GOOD, run="code"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_with_its_name(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.safetensors must .*; save it again"):
        read_safetensors(tmp_path / "x.safetensors")


def test_parts_are_written_behind_one_another_and_read_back_into_other_parts(tmp_path):
    ring = np.arange(20, dtype=np.int16).reshape(10, 2)
    atomic_write(tmp_path / "x", safetensors_of({"ring": [ring[7:], ring[:4]], "other": np.ones(2)}))
    assert read_safetensors(tmp_path / "x")["ring"].tolist() == np.roll(ring, 3, axis=0)[:7].tolist()
    target = np.zeros((8, 2), np.int16)
    rest = read_safetensors(tmp_path / "x", into={"ring": [target[5:], target[:4]]})
    assert list(rest) == ["other"]
    assert np.concatenate([target[5:], target[:4]]).tolist() == np.roll(ring, 3, axis=0)[:7].tolist()
    for wrong in (target, target.astype(np.int32)[:7]):
        with pytest.raises(
            UsageError, match=r"'ring' of .* must be int\d+ of shape .*, got int16 of \(7, 2\); read it"
        ):
            read_safetensors(tmp_path / "x", into={"ring": [wrong]})
    with pytest.raises(UsageError, match="must hold missing"):
        read_safetensors(tmp_path / "x", into={"missing": [target]})


# --- folders --------------------------------------------------------------------------------------------------


def stored(folder):
    return {name: path.read_text() for name, path in read_folder(folder).items()}


def test_a_folder_is_replaced_as_a_whole_and_keeps_nothing_of_the_old(tmp_path):
    folder = tmp_path / "deep/run"
    write_folder(folder, {"a.json": "1", "b.txt": "old", "plain": "same"})
    (folder / "notes-by-me.txt").write_text("mine")
    write_folder(folder, {"a.json": "2", "plain": [b"sa", memoryview(b"me")]})
    assert stored(folder) == {"a.json": "2", "plain": "same"}
    assert len(list(folder.iterdir())) == 4  # two files, the manifest, and what is not ours


@pytest.mark.parametrize("moment", range(1, 7))
def test_one_who_is_killed_while_writing_a_folder_leaves_all_of_the_old_or_all_of_the_new(moment, tmp_path):
    program = """
        import os, signal, sys
        from stretto.checkpoint import write_folder
        write_folder(sys.argv[1], {"a": "old", "b": "old"})
        left, sync = int(sys.argv[2]), os.fsync
        def dying(fd):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(fd)
        os.fsync = dying
        write_folder(sys.argv[1], {"a": "new", "b": "new"})
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "x"), str(moment)]
    code = subprocess.run(command, check=False, timeout=60).returncode
    assert code == (-signal.SIGKILL if moment < 6 else 0)
    found = stored(tmp_path / "x")
    assert found == dict.fromkeys("ab", "new" if moment >= 5 else "old")
    write_folder(tmp_path / "x", {"a": "newer"})
    assert len(list((tmp_path / "x").iterdir())) == 2  # what the killed one left is gone


def cut(folder):
    path = read_folder(folder)["a.json"]
    path.write_bytes(path.read_bytes()[:-1])


def replace_manifest(text):
    return lambda folder: (folder / "manifest.json").write_text(text)


OTHER_DAMAGE = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "must hold a manifest.json, got none"),
    "a manifest that is cut off": (replace_manifest('{"version": 1, "fi'), "must be what Stretto wrote"),
    "a manifest that is a list": (replace_manifest("[]"), "must be what Stretto wrote"),
    "a manifest that leads elsewhere": (
        replace_manifest(json.dumps({"version": 1, "files": {"../a": "0" * 64}})),
        "must be what Stretto wrote",
    ),
    "a file that is gone": (lambda folder: read_folder(folder)["a.json"].unlink(), "must hold all files"),
    "a file that is cut off": (cut, r"a-\w+\.json must have the sha256"),
}


@pytest.mark.parametrize(("damage", "message"), OTHER_DAMAGE.values(), ids=OTHER_DAMAGE.keys())
def test_a_damaged_folder_is_refused_and_says_why(damage, message, tmp_path):
    write_folder(tmp_path, {"a.json": "{}", "b": "b"})
    damage(tmp_path)
    with pytest.raises(DamagedCheckpoint, match=message):
        read_folder(tmp_path)


def test_a_folder_of_a_later_version_is_not_called_damaged(tmp_path):
    replace_manifest('{"version": 2, "files": {}}')(tmp_path)
    with pytest.raises(UsageError, match="must be of version 1, got 2; read it with") as caught:
        read_folder(tmp_path)
    assert not isinstance(caught.value, DamagedCheckpoint)


def test_a_large_array_is_not_copied_while_it_is_saved(tmp_path):
    large = np.zeros((1 << 20, 8), np.float32)
    tracemalloc.start()
    try:
        write_folder(tmp_path, {"x.safetensors": safetensors_of({"x": [large[1000:], large[:1000]]})})
        assert tracemalloc.get_traced_memory()[1] < large.nbytes / 10
    finally:
        tracemalloc.stop()
