"""The token store: made once per content and tokenizer, safe with two processes, rebuilt when damaged."""

import multiprocessing

import numpy as np
import pytest

from anchorlm.data import Document, TokenStore, leading_bos
from anchorlm.data import tokens as module
from small import char_tokenizer


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return [folder / f"{name}.txt" for name in texts]


def test_stream_offsets_eos_and_sizes(tmp_path):
    tokenizer = char_tokenizer()
    store = TokenStore.build(write(tmp_path, a="hello", b="né"), tokenizer, tmp_path / "cache")
    assert store.offsets.tolist() == [0, 6, 6 + len(store.document(1)) + 1]
    assert store.tokens[5] == store.tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(store.document(0).tolist()) == "hello"
    assert store.sizes.tolist() == [5, 3]
    assert store.names == ("a.txt", "b.txt")
    in_memory = TokenStore.from_documents([Document("a", "hello"), Document("b", "né")], tokenizer)
    assert np.array_equal(in_memory.tokens, store.tokens)
    assert in_memory.bytes_per_token == store.bytes_per_token


def test_tokenised_once_unless_the_content_changes(tmp_path, monkeypatch):
    calls, original = [], module.encode_document
    monkeypatch.setattr(module, "encode_document", lambda *a: calls.append(1) or original(*a))
    files = write(tmp_path, a="hello")
    first = TokenStore.build(files, char_tokenizer(), tmp_path / "cache")
    files[0].rename(tmp_path / "moved.txt")
    again = TokenStore.build(tmp_path / "moved.txt", char_tokenizer(), tmp_path / "cache")
    assert len(calls) == 1
    assert first.content_hash == again.content_hash
    changed = TokenStore.build(write(tmp_path, b="hullo"), char_tokenizer(), tmp_path / "cache")
    assert len(calls) == 2
    assert changed.content_hash != first.content_hash


@pytest.mark.parametrize("damage", ["short", "meta"])
def test_a_damaged_store_is_made_again(tmp_path, damage):
    files = write(tmp_path, a="hello world")
    TokenStore.build(files, char_tokenizer(), tmp_path / "cache")
    (folder,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    if damage == "short":
        (folder / "tokens.bin").write_bytes(b"\1\0")
    else:
        (folder / "meta.json").write_text("{")
    assert len(TokenStore.build(files, char_tokenizer(), tmp_path / "cache").document(0)) == 11


def _build(folder):
    return len(TokenStore.build(folder / "a.txt", char_tokenizer(), folder / "cache").tokens)


def test_two_processes_at_once(tmp_path):
    write(tmp_path, a="some text " * 2000)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [tmp_path, tmp_path]) == [20001, 20001]
    assert sum(path.is_dir() for path in (tmp_path / "cache").iterdir()) == 1


def test_bos_is_only_what_the_tokenizer_itself_adds():
    assert leading_bos(char_tokenizer()) is None
    with_bos = char_tokenizer(bos=True)
    assert leading_bos(with_bos) == with_bos.bos_token_id
