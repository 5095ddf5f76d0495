"""Runs a GGUF file in llama.cpp by its C interface; a program of its own, started by `client`.

xllamacpp's Python interface gives tokens and the probabilities of the likeliest ones; the library
in it exports llama.h, which gives raw scores. The functions called here are the old core of that
header. Of the two parameter structs only the first words are touched (n_ctx, n_batch, n_ubatch,
n_seq_max): they are taken from llama.cpp itself and handed back, so their length and the rest of
their fields need not be known.

Reads one JSON object from standard input: model, threads, and
    text             -> prints the text's tokens as JSON, special ones read as such
    tokens, scores   -> writes the scores [tokens, vocabulary] to that file, as .npy
    tokens, count    -> prints the next `count` tokens, the seconds of loading, of the first token
                        and of the others, and the process's peak memory as JSON; with `warm_up`
                        four tokens go before, in another context
It imports nothing of Tercet's, so
that torch's threads do not run beside llama.cpp's, and a file that crashes llama.cpp takes only
this process with it.
"""

import ctypes
import json
import sys
from copy import copy
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

_PARAMETER_BYTES = 4096
_N_CTX, _N_BATCH, _N_UBATCH = 0, 1, 2
_ERROR_LEVEL = 4
_WARM_UP = 4
_LOG = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class _Parameters(ctypes.Structure):
    """A struct of llama.h at least as long as the real one: it travels in memory, by address."""

    _fields_ = [("words", c_uint32 * (_PARAMETER_BYTES // 4))]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


def library_path(module_file: str) -> Path:
    """The shared library of the installed xllamacpp."""
    found = sorted(Path(module_file).parent.glob("xllamacpp*.so"))
    if not found:
        raise FileNotFoundError(f"no xllamacpp*.so beside {module_file}")
    return found[0]


def _load() -> ctypes.CDLL:
    import xllamacpp

    library = ctypes.CDLL(str(library_path(str(xllamacpp.__file__))))
    types: dict[str, tuple[Any, list[Any]]] = {
        "llama_log_set": (None, [_LOG, c_void_p]),
        "llama_backend_init": (None, []),
        "llama_model_default_params": (_Parameters, []),
        "llama_context_default_params": (_Parameters, []),
        "llama_model_load_from_file": (c_void_p, [c_char_p, _Parameters]),
        "llama_init_from_model": (c_void_p, [c_void_p, _Parameters]),
        "llama_model_get_vocab": (c_void_p, [c_void_p]),
        "llama_vocab_n_tokens": (c_int32, [c_void_p]),
        "llama_tokenize": (
            c_int32,
            [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool],
        ),
        "llama_n_batch": (c_uint32, [c_void_p]),
        "llama_set_n_threads": (None, [c_void_p, c_int32, c_int32]),
        "llama_batch_init": (_Batch, [c_int32, c_int32, c_int32]),
        "llama_decode": (c_int32, [c_void_p, _Batch]),
        "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class LlamaCppSession:
    """A loaded model with an empty context for `length` tokens."""

    def __init__(self, path: str, length: int, threads: int) -> None:
        self.library = _load()
        # kept: a callback that Python collects crashes the library
        self._log = _LOG(_print_error)
        self.library.llama_log_set(self._log, None)
        self.library.llama_backend_init()
        self._model = self.library.llama_model_load_from_file(
            path.encode(), self.library.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self._words = self.library.llama_model_get_vocab(self._model)
        self.vocabulary: int = self.library.llama_vocab_n_tokens(self._words)
        self._threads = threads
        self._open(length)

    def another(self, length: int) -> Self:
        """The same model with a context of its own."""
        other = copy(self)
        other._open(length)
        return other

    def _open(self, length: int) -> None:
        parameters = self.library.llama_context_default_params()
        for word in (_N_CTX, _N_BATCH, _N_UBATCH):
            parameters.words[word] = length
        self.context = self.library.llama_init_from_model(self._model, parameters)
        if not self.context or self.library.llama_n_batch(self.context) < length:
            raise RuntimeError(f"llama.cpp makes no context for {length} tokens")
        self.library.llama_set_n_threads(self.context, self._threads, self._threads)
        self.batch = self.library.llama_batch_init(length, 0, 1)
        self.position = 0

    def scores(self, tokens: list[int], every: bool) -> npt.NDArray[np.float32]:
        """Feeds tokens; scores [T, V] after each of them, or [1, V] after the last."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = self.position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = every or index == len(tokens) - 1
        status = self.library.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode failed with status {status}")
        self.position += len(tokens)
        wanted = range(len(tokens)) if every else [len(tokens) - 1]
        rows = [self.library.llama_get_logits_ith(self.context, index) for index in wanted]
        return np.stack([np.ctypeslib.as_array(row, (self.vocabulary,)).copy() for row in rows])

    def tokenize(self, text: str) -> list[int]:
        """The text's tokens as llama.cpp splits it, with those that the model wants around it."""
        raw = text.encode()
        found = (c_int32 * (len(raw) + 8))()
        count = self.library.llama_tokenize(
            self._words, raw, len(raw), found, len(found), True, True
        )
        if count < 0:
            raise RuntimeError(f"llama_tokenize failed with status {count}")
        return list(found[:count])


def _print_error(level: int, text: bytes, _: object) -> None:
    if level == _ERROR_LEVEL:
        sys.stderr.write(text.decode(errors="replace"))


def _continue(session: LlamaCppSession, tokens: list[int], count: int) -> dict[str, Any]:
    start = perf_counter()
    found = [int(session.scores(tokens, False).argmax())]
    first = perf_counter()
    while len(found) < count:
        found.append(int(session.scores(found[-1:], False).argmax()))
    return {"tokens": found, "first_s": first - start, "rest_s": perf_counter() - first}


def _peak_resident_bytes() -> int | None:
    """As `tercet.records` measures it; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """One request."""
    request = json.load(sys.stdin)
    tokens, count = request.get("tokens", []), request.get("count", 0)
    length = max(len(tokens) + count, 1)
    start = perf_counter()
    session = LlamaCppSession(request["model"], length, request["threads"])
    load_s = perf_counter() - start
    if "text" in request:
        print(json.dumps(session.tokenize(request["text"])))
    elif "scores" in request:
        np.save(request["scores"], session.scores(tokens, True))
    else:
        if request.get("warm_up"):
            _continue(session.another(length), tokens[:_WARM_UP], _WARM_UP)
        found = _continue(session, tokens, count)
        peak = _peak_resident_bytes()
        print(json.dumps({**found, "load_s": load_s, "peak_resident_bytes": peak}))


if __name__ == "__main__":
    main()
