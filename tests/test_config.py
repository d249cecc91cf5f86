"""Settings: what may stand in them, and which source wins."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from localspec import config
from localspec.config import Settings
from localspec.errors import ExitStatus, UsageError

NAN, INF = float("nan"), float("inf")
NONE_GIVEN = dict.fromkeys(config.names())

# setting -> values that are allowed, values that are not
RULES: dict[str, tuple[list[Any], list[Any]]] = {
    "model": (["m.gguf", "é"], ["a\0b"]),
    "draft": (["none", "ngram,m.gguf"], ["a\0b"]),
    "draft_len": ([1, 47], [0, 48, -1, 10**12]),
    "accept": (["coupled", "rejection"], ["", "COUPLED", "both"]),
    "threads": ([1, 512], [0, -1, 513]),
    "gpu_layers": ([-1, 0, 99], [-2, 10**6]),
    "kv_type": (["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"], ["", "F16", "q3"]),
    "flash_attn": (["auto", "on", "off"], ["", "yes"]),
    "exact": ([True, False], []),
    "ctx": ([16, 2**24], [15, 0, -1, 10**12]),
    "max_tokens": ([1, 2**24], [0, -1, 10**12]),
    "temp": ([0.0, 0.8, 100.0], [-0.1, 101.0, NAN, INF]),
    "top_k": ([0, 40], [-1, 10**12]),
    "top_p": ([0.01, 1.0], [0.0, 1.01, -1.0, NAN]),
    "min_p": ([0.0, 1.0], [-0.1, 1.1, NAN]),
    "repeat_penalty": ([0.5, 1.0, 2.0], [0.0, -1.0, INF, NAN]),
    "presence_penalty": ([-100.0, 0.0, 100.0], [-101.0, 101.0, NAN]),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "system": (["", "Be brief.", "é\n\t"], ["a\0b", "\udce9"]),
    "stop": ([(), ("END", "\n")], [("",), ("END", ""), ("a\0b",), ("\udce9",)]),
    "color": (["auto", "always", "never"], ["", "yes"]),
    "plain": ([True, False], []),
    "think": ([True, False], []),
    "vi": ([True, False], []),
    "save": ([True, False], []),
}
GOOD = [(name, value) for name, (allowed, _) in RULES.items() for value in allowed]
BAD = [(name, value) for name, (_, refused) in RULES.items() for value in refused]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_setting_has_rules_here() -> None:
    assert set(RULES) == set(config.names())


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_what_is_allowed(name: str, value: Any) -> None:
    assert getattr(Settings(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as error:
        Settings(**{name: value})
    assert error.value.exit_status == ExitStatus.USAGE
    wrong = value[-1] if isinstance(value, tuple) else value
    assert error.value.message == f"{config.flag_of(name)} is {wrong!r}"
    assert error.value.hint.startswith("give ")


def test_a_range_is_said_in_whole_numbers() -> None:
    with pytest.raises(UsageError) as error:
        Settings(ctx=10**12)
    assert error.value.hint == "give a number from 16 to 16777216"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().temp = 1.0  # type: ignore[misc]


def test_flags_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "config.toml", 'temp = 0.5\ntop-k = 7\nmodel = "file.gguf"\nstop = ["x"]\n')
    settings = config.load(NONE_GIVEN | {"temp": 0.25, "stop": ["y", "z"]}, path)
    assert (settings.temp, settings.stop) == (0.25, ("y", "z"))
    assert (settings.top_k, settings.model) == (7, "file.gguf")
    assert (settings.top_p, settings.draft) == (0.95, "auto")


def test_nothing_given(tmp_path: Path) -> None:
    flags = NONE_GIVEN | {"stop": []}  # what typer gives for a list that was not named
    assert config.load(flags, tmp_path / "no such file") == Settings()
    path = write(tmp_path / "config.toml", 'stop = ["x"]\n')
    assert config.load(flags, path).stop == ("x",)


def test_zero_and_empty_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "config.toml", 'temp = 0.5\nsystem = "Be brief."\n')
    settings = config.load({"temp": 0.0, "system": ""}, path)
    assert (settings.temp, settings.system) == (0.0, "")


def test_the_files_values_keep_their_type(tmp_path: Path) -> None:
    settings = config.load({}, write(tmp_path / "c.toml", 'temp = 1\nctx = 4096\nstop = ["a", "b"]\n'))
    assert isinstance(settings.temp, float)
    assert (settings.temp, settings.ctx, settings.stop) == (1.0, 4096, ("a", "b"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("temprature = 1", "unknown key 'temprature'", "known keys: model, draft,"),
        ("[chat]\ntemp = 1", "unknown key 'chat'", "known keys"),
        ('temp = "hot"', "temp is 'hot'", "give a number"),
        ("temp = true", "temp is True", "give a number"),
        ("ctx = 4096.0", "ctx is 4096.0", "give a whole number"),
        ("ctx = true", "ctx is True", "give a whole number"),
        ("model = 3", "model is 3", "give a text"),
        ('stop = "END"', "stop is 'END'", "give a list of texts"),
        ("stop = [1]", "stop is [1]", "give a list of texts"),
        ("temp = 1 2", "line 1", "mend the file"),
        ("temp = 200", ": temp is 200.0", "give a number from 0 to 100"),
        (b"system = '\xe9'", "codec", "mend the file"),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str | bytes, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        config.load(NONE_GIVEN, write(tmp_path / "config.toml", text))
    assert message in error.value.message
    assert error.value.hint.startswith(hint)


def test_variables_over_file_under_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "config.toml", "temp = 0.5\ntop-k = 7\nseed = 1\n")
    monkeypatch.setenv("LOCALSPEC_TEMP", "0.25")
    monkeypatch.setenv("LOCALSPEC_TOP_K", "8")
    monkeypatch.setenv("LOCALSPEC_PLAIN", "yes")
    settings = config.load(NONE_GIVEN | {"top_k": 9}, path)
    assert (settings.temp, settings.top_k, settings.seed, settings.plain) == (0.25, 9, 1, True)


@pytest.mark.parametrize(("text", "size"), [("32k", 2**15), ("1.5 k", 1536), ("1kib", 1024), ("4096", 4096)])
def test_a_context_may_be_written_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    assert config.load({"ctx": text}).ctx == size
    assert config.load({}, write(tmp_path / "config.toml", f'ctx = "{text}"\n')).ctx == size
    monkeypatch.setenv("LOCALSPEC_CTX", text)
    assert config.load({}).ctx == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 2**33), ("8gib", 2**33), ("1.5 k", 1536), ("512M", 2**29), ("7", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert config.parse_size(text, "--vram") == size
    with pytest.raises(UsageError, match="--vram is "):
        config.parse_size(text + "x", "--vram")


def test_what_is_wrong_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "config.toml", 'ctx = "much"\n')
    with pytest.raises(UsageError, match=f"{path}: ctx is 'much'"):
        config.load({}, path)
    monkeypatch.setenv("LOCALSPEC_CTX", "3")
    with pytest.raises(UsageError, match="LOCALSPEC_CTX is 3"):
        config.load({}, path)
    with pytest.raises(UsageError, match="--ctx is 'all'"):
        config.load({"ctx": "all"}, path)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    for text in ("no_such_key = 1", "temp = 'hot'", "broken"):
        path = write(tmp_path / "config.toml", text)
        with pytest.raises(UsageError, match=str(path)):
            config.load({}, path)
    with pytest.raises(UsageError, match="cannot read"):  # a folder
        config.load({}, tmp_path)


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "own"))
    assert config.config_file() == tmp_path / "own" / "config.toml"
    monkeypatch.setenv("LOCALSPEC_HOME", "~/own")
    assert config.config_file() == tmp_path / "own" / "config.toml"
    monkeypatch.setenv("LOCALSPEC_HOME", "~no.such.user/own")
    assert config.load(NONE_GIVEN) == Settings()
    monkeypatch.delenv("LOCALSPEC_HOME")
    assert config.config_file() == tmp_path / "xdg" / "localspec" / "config.toml"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert config.config_file() == tmp_path / ".config" / "localspec" / "config.toml"


def test_load_reads_the_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    write(tmp_path / "config.toml", "seed = 7\n")
    assert config.load(NONE_GIVEN).seed == 7
