"""Text for fine-tuning: novels, textbooks, an encyclopedia and speeches, as token ids in one file.

python text.py TOKENIZER.json DATA_DIR OUT.safetensors --novels REPO --textbooks REPO [REPO ...]

REPO is a git directory: of github mlschmitt/classic-books-markdown (public domain) and of github
philschatz/SUBJECT-book (OpenStax, CC BY). From DATA_DIR come WikiText-2's train split as far as it
is there, six times, and the later half of the State of the Union addresses. No questions of any
task are among it, and no 20 tokens in a row are in what is evaluated.
"""

import argparse
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import torch
from data import packed, read_text, train_tokens, without
from safetensors.torch import save_file
from tasks import TASKS, requests_of
from tokenizers import Tokenizer
from torch import Tensor

WIKITEXT_TIMES = 6
# letters: of a novel, after its front matter; of a page, that it is text
NOVEL, FRONT, PAGE = 60_000, 2_000, 1_500


def files_of(repository: Path, pattern: str) -> Iterator[str]:
    """The text of those files of a git repository's newest commit."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", "--name-only", "HEAD"], capture_output=True, check=True
    ).stdout
    for name in listed.decode("utf-8").split("\0"):
        if re.fullmatch(pattern, name):
            # what is not in the snapshot, a large file, is left out
            found = subprocess.run([*git, "show", f"HEAD:{name}"], capture_output=True, check=False)
            if found.returncode == 0:
                yield found.stdout.decode("utf-8", "replace")


def plain(markdown: str) -> str:
    """Paragraphs a line, without marks, pictures, formulas and tables."""
    text = re.sub(r"\A---\n.*?\n---\n", "", markdown.replace("\r", "\n"), flags=re.DOTALL)
    text = re.sub(r"!\[.*?\]\(.*?\)(\{.*?\})?", "", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?", r"\1", text)
    text = re.sub(r"<math.*?</math>|<[^>]+>|\{: [^}]*\}", "", text, flags=re.DOTALL)
    text = re.sub(r"^#+ *", "", text, flags=re.MULTILINE)
    text = re.sub(r"[*_]{1,3}(\S[^*_\n]*?)[*_]{1,3}", r"\1", text).replace("\\", "")
    lines = text.split("\n")
    text = "\n".join(line for line in lines if not re.match(r"\||.*(cnx|data-)", line))
    text = re.sub(r"\n[ \n]*\n", "\n\n", text)
    return re.sub(r"[ \t]+", " ", re.sub(r"(?<!\n)\n(?!\n)", " ", text)).strip()


def novels(repository: Path) -> list[str]:
    """A part of each."""
    texts = map(plain, files_of(repository, r".+/.+\.md"))
    return [text[FRONT : FRONT + NOVEL] for text in texts if len(text) > 2 * FRONT]


def pages(repositories: list[Path]) -> list[str]:
    """Pages of textbooks, at random."""
    found = [page for one in repositories for page in files_of(one, r"contents/.*\.md")]
    texts = [text for text in map(plain, found) if len(text) > PAGE]
    random.Random(0).shuffle(texts)
    return texts


def evaluated(tokenizer: Tokenizer, data: Path) -> Tensor:
    """All that a model is evaluated on, int32 [n]."""
    test = tokenizer.encode(
        read_text(data / "wikitext2_raw/wiki.test.raw"), add_special_tokens=False
    )
    asked = [packed(requests_of(task, data), tokenizer)["ids"].int() for task in TASKS]
    return torch.cat([torch.tensor(test.ids, dtype=torch.int32), *asked])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--novels", type=Path, required=True)
    parser.add_argument("--textbooks", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    tokenizer, data = Tokenizer.from_file(str(arguments.tokenizer)), arguments.data
    speeches = read_text(data / "calib/sotu_1790_on.txt.gz")
    texts = {
        "wikitext": [read_text(data / "wikitext2_raw/wiki.train.first2.9MB.txt.gz")],
        "textbooks": pages(arguments.textbooks),
        "speeches": [speeches[len(speeches) // 2 :]],
        "novels": novels(arguments.novels),
    }
    known, parts = evaluated(tokenizer, data), list[Tensor]()
    for name, some in texts.items():
        ids = without(train_tokens(tokenizer, iter(some)).int(), known)
        print(f"{name}: {len(some)} texts, {len(ids):,} tokens")
        parts += [ids] * (WIKITEXT_TIMES if name == "wikitext" else 1)
    save_file({"input_ids": torch.cat(parts).to(torch.uint16)}, arguments.out)


if __name__ == "__main__":
    main()
