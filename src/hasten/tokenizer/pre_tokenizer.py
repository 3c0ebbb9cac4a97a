"""How text is cut into words before byte-pair merging, by the name a GGUF file gives in `tokenizer.ggml.pre`.

Merges never cross a word border, so the wrong rule gives other ids for the same text and a worse model without any error:
an unknown name is refused. The patterns are facts of the models; each row names where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from hasten.errors import Unsupported

# Llama 3: the pattern of the reference tokenizer.py; contractions, words with one leading sign, up to 3 digits, signs, breaks
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen2: tokenizer.json of Qwen/Qwen2-7B; Llama 3's, with digits one by one
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Tekken: tokenizer.json of mistralai/Mistral-Nemo-Instruct-2407; words split where a capital follows a small letter
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One row: `pattern` None is GPT-2's own rule, which the tokenizers library has built in (ByteLevel's regex)."""

    pattern: str | None = None
    single_digits: bool = False  # every numeric character is a word of its own, cut before anything else
    ignore_merges: bool = False  # a word that is a token as a whole is taken as it is, whatever the merges say
    nfc: bool = False  # text is brought into Unicode's composed form first

    def build(self) -> PreTokenizer:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        if self.pattern is not None:
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(self.pattern), "isolated"), byte_level])
        if self.single_digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        return byte_level

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2 = SplitRule()  # Radford et al. 2019, the published encoder
_SMOLLM = SplitRule(single_digits=True)  # tokenizer.json of HuggingFaceTB/SmolLM2-135M and bigcode/starcoder
_LLAMA_BPE = SplitRule(pattern=_LLAMA3, ignore_merges=True)  # tokenizer.json of meta-llama/Meta-Llama-3-8B

SPLIT_RULES = {
    "default": _GPT2,  # written by old converters that did not know the model
    "gpt-2": _GPT2,
    "olmo": _GPT2,  # tokenizer.json of allenai/OLMo-7B-hf
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": SplitRule(pattern=_QWEN2, nfc=True),
    "tekken": SplitRule(pattern=_TEKKEN, ignore_merges=True),
}


def split_rule(pre: str) -> SplitRule:
    """The rule of that name. Raises: Unsupported naming the known ones."""
    rule = SPLIT_RULES.get(pre)
    if rule is None:
        known = ", ".join(sorted(SPLIT_RULES))
        raise Unsupported(f"pre-tokenizer {pre!r} is unknown, its ids would be wrong; hasten knows {known}")
    return rule
