"""The v3 talker for training: packed sequences in, logits of the rows to be learned out.

Same network as engine/talker (Qwen3 blocks, tied code embedding); a test compares the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import torch
import torch.nn.functional as F
from torch import nn

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # an older torch: all but training on a GPU works
    varlen_attn = None

CODEBOOKS, CODE_VOCAB = 8, 1026
THETA, EPS = 1e6, 1e-6
GUIDED_LAYERS = (1, 2)  # the first head of these learns to attend to the word that is spoken next
GUIDED_POSITIONS = {"cuda": 8192, "cpu": 1024}  # at the head of a batch, where all scores are computed
_NEVER = -1e9


@dataclass(frozen=True)
class Shape:
    """Sizes of a talker. The defaults are the embedded checkpoint's, and suit the engine's kernels."""

    text_vocab: int = 320
    hidden: int = 512
    layers: int = 7
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 128
    intermediate: int = 512

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass
class Batch:
    """Packed sequences, P positions in all.

    ids [P]: token of each position; codes [P, K]: row of each position; is_code [P]: bool, True if the row counts;
    learned [n]: the positions whose next row is learned; targets [n, K]: those rows, -1 if not learned; spoken [P]:
    number of the word that the next row says; word [P]: number of the word that a position of the text belongs to. Both
    count in the sequence and are negative for none. place [P]: position inside its sequence; ends [S + 1]: int32,
    cumulative lengths, the last repeated; longest: a bound on the sequences' length.
    """

    ids: torch.Tensor
    codes: torch.Tensor
    is_code: torch.Tensor
    learned: torch.Tensor
    targets: torch.Tensor
    spoken: torch.Tensor
    word: torch.Tensor
    place: torch.Tensor
    ends: torch.Tensor
    longest: int

    def tensors(self) -> dict[str, torch.Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)[:-1]}

    def to(self, device) -> Batch:
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()}
        return Batch(**moved, longest=self.longest)

    def pin_memory(self) -> Batch:
        """Return a pinned copy, for a DataLoader. A GPU fetches it while it works."""
        return Batch(**{name: tensor.pin_memory() for name, tensor in self.tensors().items()}, longest=self.longest)


class Block(nn.Module):
    """One Qwen3 layer."""

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.shape, self.dropout = shape, dropout
        hidden, dim = shape.hidden, shape.head_dim
        self.attn_norm, self.mlp_norm = nn.RMSNorm(hidden, EPS), nn.RMSNorm(hidden, EPS)
        self.q_norm, self.k_norm = nn.RMSNorm(dim, EPS), nn.RMSNorm(dim, EPS)
        self.q = nn.Linear(hidden, shape.heads * dim, bias=False)
        self.k = nn.Linear(hidden, shape.kv_heads * dim, bias=False)
        self.v = nn.Linear(hidden, shape.kv_heads * dim, bias=False)
        self.o = nn.Linear(shape.heads * dim, hidden, bias=False)
        self.gate = nn.Linear(hidden, shape.intermediate, bias=False)
        self.up = nn.Linear(hidden, shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, hidden, bias=False)

    def forward(self, x, cos, sin, attend):  # [P, H], [P, 1, D]
        dim, groups = self.shape.head_dim, self.shape.heads // self.shape.kv_heads
        h = self.attn_norm(x)
        q = rotate(self.q_norm(self.q(h).view(-1, self.shape.heads, dim)), cos, sin)
        k = rotate(self.k_norm(self.k(h).view(-1, self.shape.kv_heads, dim)), cos, sin)
        v = self.v(h).view(-1, self.shape.kv_heads, dim)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        x = x + F.dropout(self.o(attend(q, k, v).flatten(1)), self.dropout, self.training)
        h = self.mlp_norm(x)
        return x + F.dropout(self.down(F.silu(self.gate(h)) * self.up(h)), self.dropout, self.training)


class Talker(nn.Module):
    """Rows and text in, logits of the next row out."""

    def __init__(self, shape: Shape, dropout: float = 0.0):
        super().__init__()
        self.shape = shape
        self.text = nn.Embedding(shape.text_vocab, shape.hidden)
        self.codes = nn.Embedding(CODEBOOKS * CODE_VOCAB, shape.hidden)  # also the head
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, EPS)
        self.register_buffer("offsets", torch.arange(CODEBOOKS) * CODE_VOCAB, persistent=False)
        frequencies = THETA ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self._start()

    def _start(self):
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.6 * parameter.shape[1] ** -0.5)
        nn.init.normal_(self.text.weight, std=0.1)
        nn.init.normal_(self.codes.weight, std=0.03)
        for block in self.blocks:
            nn.init.zeros_(block.o.weight)
            nn.init.zeros_(block.down.weight)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits of the rows to be learned [n, K, V], and the guided heads' attention loss."""
        x = self.codes(batch.codes.int() + self.offsets).sum(1)
        x = torch.where(batch.is_code.unsqueeze(1), x, self.text(batch.ids.int()))
        angles = (batch.place.unsqueeze(1) * self.frequencies).repeat(1, 2).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        attend = Attention(batch)
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, attend.guided if number in GUIDED_LAYERS else attend)
        logits = F.linear(self.norm(x[batch.learned]), self.codes.weight).view(-1, CODEBOOKS, CODE_VOCAB)
        return logits, torch.stack(attend.guides).mean()


class Attention:
    """Causal attention inside each sequence of a batch: flash attention on a GPU, one by one elsewhere."""

    def __init__(self, batch: Batch):
        if varlen_attn is None and batch.ends.is_cuda:
            raise SystemExit(f"talker: torch {torch.__version__} has no varlen_attn, which training on a GPU needs")
        self.batch, self.guides = batch, []

    def __call__(self, q, k, v):  # [P, heads, D] each
        ends, longest = self.batch.ends, self.batch.longest
        if q.is_cuda:
            q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
            return varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0))
        lengths = ends.diff().tolist()
        each = zip(*(t.to(v.dtype).transpose(0, 1).split(lengths, 1) for t in (q, k, v)), strict=True)
        attended = [F.scaled_dot_product_attention(*one, is_causal=True) for one in each if one[0].shape[1]]
        return torch.cat(attended, 1).transpose(0, 1)

    def guided(self, q, k, v):
        """Return the same, and the cross entropy of the first head's attention to the word spoken next."""
        count = min(GUIDED_POSITIONS[q.device.type], len(q))
        place, spoken, word = (t[:count] for t in (self.batch.place, self.batch.spoken, self.batch.word))
        index = torch.arange(count, device=q.device)
        begin = index - place  # of the sequence
        seen = (begin[:, None] == begin) & (index[:, None] >= index)
        meant = seen & (spoken[:, None] == word)
        scores = (q[:count, 0] @ k[:count, 0].mT).float() * q.shape[2] ** -0.5
        missed = scores.masked_fill(~seen, _NEVER).logsumexp(1) - scores.masked_fill(~meant, _NEVER).logsumexp(1)
        known = meant.any(1)
        self.guides.append((missed * known).sum() / known.sum().clamp(min=1))
        return self(q, k, v)


def rotate(x, cos, sin):
    """Apply rotary embedding to x [P, heads, D], halves split."""
    left, right = x.float().chunk(2, -1)
    return (x * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def loss_of(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return [N + 1]: mean cross entropy of each codebook over the cells with a target, and their weighted mean."""
    wanted = targets.flatten().long()
    losses = F.cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=-1, reduction="none")
    losses = losses.view(targets.shape)
    known = targets >= 0
    each = losses.sum(0) / known.sum(0).clamp(min=1)
    return torch.cat([each, ((each * weights).sum() / weights.sum())[None]])
