"""Small tokenizers of the `tokenizers` library, made and not fetched."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
TEXTS = ("the cat sat on the mat", "a cat and a dog, and the mat")


def byte_level(path: Path, texts: Iterable[str] = TEXTS, size: int = 280) -> Tokenizer:
    """Write a tokenizer of GPT-2's kind, which has tokens for any text, and begins rows with END if asked to."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, made.token_to_id(END))]
    )
    made.enable_truncation(5)  # as many files have it, whose texts are whole here all the same
    made.enable_padding(length=9)
    made.save(str(path))
    return made


def words(path: Path, vocabulary: dict[str, int]) -> None:
    """Write a tokenizer of whole words, which has no token for others."""
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="none"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
