"""The checks of a run.toml before a run is opened, the same for `potluck host` and its dry run. Reads; packs and writes nothing."""

from __future__ import annotations

from pathlib import Path

from averaging.data.chat.run_template import run_template
from averaging.data.chat.template_files import find_template
from averaging.data.sources.sources import source_bytes
from averaging.data.tasks.task_lines import check_task
from averaging.data.tasks.task_packing import packed_task
from averaging.data.tokenizer import ByteTokenizer, Tokenizer
from averaging.data.vocabulary import FileTokenizer, check_bpe_size, open_tokenizer
from coordinator.push.push_kinds import check_push
from coordinator.run.run_router import check_router
from protocol.errors import ConfigError
from protocol.estimates.round_limits import round_problem
from protocol.run.manifest import RunConfig


def check_new_run(config: RunConfig, base: Path) -> list[str]:
    """Refuse a run that could not be hosted, as far as that is known without its text. Blocks.

    Args:
        config: from run.toml.
        base: the folder that its paths are relative to.

    Returns:
        Sentences about what may not be meant; the run can be hosted all the same.

    Raises:
        ConfigError: a value, a tokenizer, a chat template, a task or a checkpoint to start from that cannot work.
        MachineError, StorageError: a file cannot be read.
    """
    _check_target(config)
    _check_rounds(config)
    check_router(config, base)
    source_bytes(config.data, base)
    check_push_address(config)
    if config.run.start_from:
        from coordinator.checkpoints.weights_import import check_checkpoint

        check_checkpoint(base / config.run.start_from, config.model)
    if config.data.tokenizer == "bpe":
        check_bpe_size(config.model.vocab_size)
        check_questions(config, base, None)
        return []
    tokenizer = open_tokenizer(config.data, base, (), config.model.vocab_size)
    check_start_tokenizer(config, base, tokenizer)
    check_questions(config, base, tokenizer)
    return [tokenizer.doubt] if isinstance(tokenizer, FileTokenizer) and tokenizer.doubt else []


def check_questions(config: RunConfig, base: Path, tokenizer: Tokenizer | None) -> None:
    """Refuse a chat template that fails, and tasks that cannot be encoded; without a tokenizer, those that cannot be read. Raises as
    `check_new_run`.
    """
    template = None
    if config.data.has_chats:
        template = run_template(find_template(config.data, base), tokenizer or ByteTokenizer())
    for task in config.evaluate:
        if tokenizer is None:
            check_task(task, base)
        else:
            packed_task(task, base, tokenizer, config.model.context_tokens, template)


def check_push_address(config: RunConfig) -> None:
    """Refuse an address for checkpoints that cannot work on this machine. Raises ConfigError and MachineError."""
    if config.checkpoint.push:
        check_push(config.checkpoint.push)


def check_start_tokenizer(config: RunConfig, base: Path, tokenizer: Tokenizer) -> None:
    """Refuse another tokenizer than that of the checkpoint that the run starts from. Raises ConfigError and StorageError."""
    if config.run.start_from:
        from coordinator.checkpoints.weights_import import check_tokenizer, check_tokens

        check_tokenizer(base / config.run.start_from, config.model, tokenizer.vocab_size)
        check_tokens(base / config.run.start_from, tokenizer)


def _check_rounds(config: RunConfig) -> None:
    """Refuse numbers with which no round could be committed. Runs that are open keep theirs."""
    problem = round_problem(config)
    if problem is not None:
        raise ConfigError(*problem)


def _check_target(config: RunConfig) -> None:
    """A round of fewer tokens than one local step would be due after every step of any peer."""
    target, step = config.round.target_tokens, config.inner.batch_tokens
    if target < step:
        raise ConfigError(
            f"round.target_tokens is {target}",
            f"at least inner.batch_tokens, {step}, which one local step of one peer takes",
            f"take the tokens of all peers in some steps, for example {60 * step}",
        )
