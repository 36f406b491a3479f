"""Text from a checkpoint's model: reads the folder's safetensors and config, and samples on the CPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from hashlib import file_digest, sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json
from rich.console import Console
from rich.progress import track

from averaging.data.base_files import StoredAdapter, find_base
from averaging.storage.text_name import text_name
from peer.models.sampling import Sampling, threads_for
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.ids import UnitName
from protocol.plain_file import check_plain_file
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.model_families import ModelSection
from protocol.tensors.tensor_schema import TensorSchema

if TYPE_CHECKING:
    import torch

    from averaging.data.chat.run_template import RunTemplate
    from peer.models.decode_text import TextTokenizer
    from peer.models.decoder import Decoder

PROMPT: Final = "def "
SAMPLE_TOKENS: Final = 320
_MANIFEST_NAME: Final = "manifest.json"
_TOKENIZER_NAME: Final = "tokenizer.json"
_TEMPLATE_NAME: Final = "chat.json"


class _StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    sha256: str


class _StoredTokenizer(_StoredFile):
    end: Annotated[int, Field(ge=0)]


class _Manifest(BaseModel):
    """The fields of a checkpoint's manifest.json that sampling needs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_name: str
    index: int
    unit: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    parameters: _StoredFile
    model: ModelSection
    experts: MixtureConfig | None = None
    adapter: StoredAdapter | None = None
    tokenizer: _StoredTokenizer | None = None
    template: _StoredFile | None = None


@dataclass(frozen=True, slots=True)
class CheckpointModel:
    """A checkpoint's model: its run, round and config, its (N,) float32 parameters in schema order, and its run's tokenizer.

    Attributes:
        adapter: in a run with an adapter. `flat_N` are then the adapter's parameters.
        base: the files of the adapter's base.
        template: of the run's chats; None in a run without.
    """

    run_name: str
    index: int
    config: ModelConfig
    flat_N: torch.Tensor
    tokenizer: TextTokenizer
    adapter: AdapterConfig | None = None
    base: tuple[Path, ...] = ()
    template: RunTemplate | None = None

    @property
    def num_values(self) -> int:
        """Values of the whole model."""
        return self.flat_N.numel() if self.adapter is None else model_schema(self.config).num_elements

    def decoder(self) -> Decoder:
        """The model with its values, on the CPU. Those of a base stay in bfloat16."""
        import torch

        from peer.models.adapted_decoder import adapted_decoder, base_of
        from peer.models.decoder import Decoder, load_flat

        if self.adapter is None:
            model = Decoder(self.config)
            load_flat(model, model_schema(self.config), self.flat_N)
            return model
        model = adapted_decoder(self.config, self.adapter, base_of(self.base, self.config), torch.device("cpu"))
        load_flat(model, adapter_schema(self.config, self.adapter), self.flat_N)
        return model


def read_model(path: Path, expert: int = 0, base: Path | None = None) -> CheckpointModel:
    """Read the model of the checkpoint in folder `path`. Verifies its manifest's checksum and the hashes of its weights and
    tokenizer. In a run of experts it is the model of one expert, with the trunk (averaging/arithmetic/expert_dense.py). In a run
    with an adapter its base is read from `base`, or from the data folder beside the checkpoint.

    Raises:
        ConfigError: there is no checkpoint, or its base is not here.
        StorageError: it is damaged, or of another kind of model.
        MachineError: it has a tokenizer file, and tokenizers is not installed.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    remedy = "see: potluck checkpoint list"
    check_plain_file(path / _MANIFEST_NAME, "a file of a checkpoint", remedy)
    try:
        data = (path / _MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        expected = f"a round or name in the list, or a folder with {_MANIFEST_NAME}"
        raise ConfigError(f"no checkpoint at {path}", expected, remedy) from error
    except OSError as error:
        raise _unreadable(path, f"{_MANIFEST_NAME}: {error.strerror}") from error
    manifest = _open_manifest(path, data)
    tokenizer = _tokenizer(path, manifest.tokenizer)
    file = path / f"{manifest.unit}.safetensors"
    check_plain_file(file, "a file of a checkpoint", remedy)
    try:
        with file.open("rb") as opened:
            if file_digest(opened, "sha256").hexdigest() != manifest.parameters.sha256:
                raise _unreadable(path, f"{file.name} has another SHA-256 than {_MANIFEST_NAME} says")
        with text_name(file) as named:
            config, flat_N = _decoder(path, load_file(named), manifest, expert)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, f"{file.name}: {error}") from error
    template = _template(path, manifest.template)
    found = CheckpointModel(manifest.run_name, manifest.index, config, flat_N, tokenizer, template=template)
    if manifest.adapter is None:
        return found
    return replace(found, adapter=manifest.adapter.numbers, base=find_base(path, manifest.adapter, base))


def _open_manifest(path: Path, data: bytes) -> _Manifest:
    try:
        manifest = _Manifest.model_validate_json(data)
        values = from_json(data)
    except (ValidationError, ValueError) as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        raise _unreadable(path, f"{_MANIFEST_NAME} is damaged at {place or 'its JSON'}") from error
    checksum = values.pop("checksum", None)
    if sha256(to_json(values)).hexdigest() != checksum:
        raise _unreadable(path, f"{_MANIFEST_NAME} has another checksum than it says")
    return manifest


def _tokenizer(path: Path, stored: _StoredTokenizer | None) -> TextTokenizer:
    from averaging.data.tokenizer import ByteTokenizer
    from averaging.data.vocabulary import FileTokenizer

    if stored is None:
        return ByteTokenizer()
    try:
        return FileTokenizer(_small_file(path, _TOKENIZER_NAME, stored), _TOKENIZER_NAME, stored.end)
    except ConfigError as error:
        raise _unreadable(path, error.found) from error


def _template(path: Path, stored: _StoredFile | None) -> RunTemplate | None:
    from averaging.data.chat.run_template import open_template

    return None if stored is None else open_template(_small_file(path, _TEMPLATE_NAME, stored), _TEMPLATE_NAME)


def _small_file(path: Path, name: str, stored: _StoredFile) -> bytes:
    check_plain_file(path / name, "a file of a checkpoint", "see: potluck checkpoint list")
    try:
        data = (path / name).read_bytes()
    except OSError as error:
        raise _unreadable(path, f"{name}: {error.strerror}") from error
    if sha256(data).hexdigest() != stored.sha256:
        raise _unreadable(path, f"{name} has another SHA-256 than {_MANIFEST_NAME} says")
    return data


def _decoder(
    path: Path, tensors: dict[str, torch.Tensor], manifest: _Manifest, expert: int
) -> tuple[ModelConfig, torch.Tensor]:
    """The config of a model, and its parameters in the schema's order."""
    import torch

    from averaging.arithmetic.expert_dense import dense_config, dense_tensors
    from averaging.models.llama.config import require_llama

    config, mixture = manifest.model, manifest.experts
    if mixture is not None:
        _check(path, tensors, held_units(config, mixture, range(mixture.num_experts)).whole)
        llama = require_llama(config)
        config, tensors = dense_config(llama, mixture), dense_tensors(llama, mixture, tensors, expert)
    schema = model_schema(config, UnitName(manifest.unit))
    if manifest.adapter is not None:
        schema = adapter_schema(config, manifest.adapter.numbers)
    _check(path, tensors, schema)
    return config, torch.cat([tensors[spec.name].reshape(-1) for spec in schema.tensors])


def _check(path: Path, tensors: dict[str, torch.Tensor], schema: TensorSchema) -> None:
    import torch

    for spec in schema.tensors:
        tensor = tensors.get(spec.name)
        if tensor is None or tuple(tensor.shape) != spec.shape or tensor.dtype != torch.float32:
            raise _unreadable(path, f"its weights lack {spec.name} as float32 of shape {spec.shape}")


def _unreadable(path: Path, what: str) -> StorageError:
    return StorageError(
        f"{path} cannot be read as a checkpoint: {what}", "what was written", "use another: potluck checkpoint list"
    )


def sample_from_checkpoint(
    path: Path, *, prompt: str = PROMPT, num_tokens: int = SAMPLE_TOKENS, expert: int = 0
) -> str:
    """The prompt and the continuation by the checkpoint's model; by one expert's model in a run of experts. Raises as
    `read_model`, and as `print_text` for the model.
    """
    from peer.models.decode_text import decoded, prompt_text, prompt_tokens

    model = read_model(path, expert)
    begin = prompt_tokens(prompt, model.tokenizer)
    sampled = _sample(model, begin, Sampling(num_tokens))
    return prompt_text(prompt) + "".join(decoded(sampled, begin, model.tokenizer))


def print_text(
    path: Path, prompt: str, sampling: Sampling, expert: int = 0, base: Path | None = None, *, is_chat: bool = False
) -> None:
    """Print the prompt and then its continuation by the checkpoint's model, piece by piece as it is sampled. In a run of experts
    it is one expert's model. `base` as in `read_model`. A chat's prompt is a user's message, and the answer alone is printed.

    Raises:
        ConfigError: there is no checkpoint, its base is not here, its model generates no text, or it was not trained on chats.
        StorageError: the checkpoint is damaged.
        MachineError: standard output is closed, or there is a tokenizer file, and tokenizers is not installed.
    """
    from peer.models.decode_text import decoded, prompt_text

    model = _read_shown(path, expert, base)
    begin, stop = _question(path, model, prompt, is_chat=is_chat)
    sampled = _sample(model, begin, sampling, stop)
    # Sample once before printing the prompt: a model that cannot be sampled from prints only its error.
    first = list(islice(sampled, 1))
    before = [] if is_chat else [prompt_text(prompt)]
    shown = chain(before, decoded(chain(first, sampled), begin, model.tokenizer))
    _print_pieces(map(_without_controls, shown) if sys.stdout.isatty() else shown)


def text_json(
    path: Path, prompt: str, sampling: Sampling, expert: int = 0, base: Path | None = None, *, is_chat: bool = False
) -> str:
    """The same as one JSON object. `text` is the continuation, `ended` whether the model ended it. Raises as `print_text`."""
    from peer.models.decode_text import decoded, prompt_text

    model = _read_shown(path, expert, base)
    begin, stop = _question(path, model, prompt, is_chat=is_chat)
    sampled = list(_counted(_sample(model, begin, sampling, stop), sampling.num_tokens))
    found: dict[str, object] = {
        "checkpoint": str(path),
        "run": model.run_name,
        "round": model.index,
        "prompt": prompt_text(prompt),
        "text": "".join(decoded(sampled, begin, model.tokenizer)),
        "ended": len(sampled) < sampling.num_tokens,
        "num_sampled": len(sampled),
    }
    return json.dumps(found | asdict(sampling))


def _question(path: Path, model: CheckpointModel, prompt: str, *, is_chat: bool) -> tuple[Sequence[int], int]:
    """The tokens that the model continues, and the token that ends its text."""
    from peer.models.decode_text import prompt_text, prompt_tokens

    if not is_chat:
        return prompt_tokens(prompt, model.tokenizer), model.tokenizer.end
    if model.template is None:
        raise ConfigError(f"checkpoint {path} has no chat template", "one of a run on chats", "leave out --chat")
    from averaging.data.chat.run_template import question_tokens
    from averaging.data.chat.template_process import TemplateProcess

    with TemplateProcess(model.template.chat(f"of {path}")) as process:
        return question_tokens(process, prompt_text(prompt), model.tokenizer, "the prompt"), model.template.end


def _read_shown(path: Path, expert: int, base: Path | None) -> CheckpointModel:
    """`read_model`, with a line on a terminal while it lasts."""
    with Console(stderr=True).status("reading the checkpoint") if sys.stderr.isatty() else nullcontext():
        return read_model(path, expert, base)


def _counted(sampled: Iterator[int], num_tokens: int) -> Iterable[int]:
    """The tokens, with their number and the time to go on a terminal: JSON is printed at the end."""
    console = Console(stderr=True)
    return track(sampled, "sampling", num_tokens, console=console, transient=True, disable=not sys.stderr.isatty())


def _sample(model: CheckpointModel, begin: Sequence[int], sampling: Sampling, stop: int | None = None) -> Iterator[int]:
    import torch

    from peer.models.decode_text import sample_from

    before = torch.get_num_threads()
    torch.set_num_threads(sampling.threads or threads_for(model.num_values, before))
    try:
        yield from sample_from(model.decoder(), prompt=begin, sampling=sampling, tokenizer=model.tokenizer, stop=stop)
    finally:
        torch.set_num_threads(before)


def _without_controls(text: str) -> str:
    """Remove control characters: a model may write escape sequences, which a terminal must not obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _print_pieces(pieces: Iterator[str]) -> None:
    for piece in pieces:
        if not _print(piece):
            return
    _print("\n")


def _print(text: str) -> bool:
    """Returns whether the reader still reads: `potluck generate | head` closes the pipe early."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # otherwise Python would try again at its end, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:
        raise MachineError(f"standard output takes no more ({error.strerror})", "a place for the text") from error
    return True
