"""The codec in training form: the engine's convolutions, plain residual codebooks between them, and its export.

Its latents are as wide as a codebook's entries, so a codebook needs no projection. In the published layout the
projections are identities, and the semantic half is present with zero weight.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.parametrize import remove_parametrizations

from engine.checkpoint.codec_layout import decoder_shapes, encoder_shapes, unused_shapes
from engine.codec.dac import AcousticDecoder, AcousticEncoder
from engine.codec.modules import CODEBOOKS, CodecConfig
from engine.core.codes import CODEBOOK_SIZE
from engine.tools.tiny_codec import hf_config

from .convolutions import Snake, trainable

LATENT = 64
CONFIG = CodecConfig(
    codebook_size=CODEBOOK_SIZE,
    codebook_dim=LATENT,
    acoustic_hidden=LATENT,
    encoder_hidden=12,
    decoder_hidden=384,
    semantic_hidden=16,
    semantic_ffn=16,
    semantic_layers=1,
    pos_kernel=16,
    pos_groups=4,
    ratios=(8, 5, 4, 2, 3),
    conv_dims=(8,) * 7,
    conv_kernels=(10, 3, 3, 3, 3, 2, 2),
)
STORED = torch.float16  # ten bits of mantissa: rounding affects the codes less than in bfloat16
TELLING = 2  # leading codebooks that must identify what is said on their own
_DECAY = 0.99  # of the codebooks' running means
_DEAD = 0.03  # mean uses per batch below which an entry is replaced


class Books(nn.Module):
    """Eight codebooks [CODEBOOK_SIZE, LATENT]. Each entry is the running mean of the vectors nearest to it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("embed", torch.zeros(CODEBOOKS, CODEBOOK_SIZE, LATENT))
        self.register_buffer("count", torch.ones(CODEBOOKS, CODEBOOK_SIZE))
        self.register_buffer("total", torch.zeros(CODEBOOKS, CODEBOOK_SIZE, LATENT))

    def nearest(self, book: int, x: torch.Tensor) -> torch.Tensor:  # [N, LATENT] -> [N]
        table = self.embed[book]
        return (table.square().sum(1) - 2 * x @ table.T).argmin(1)

    @torch.no_grad()
    def begin(self, x: torch.Tensor, rounds: int = 12) -> None:
        """Initialise all entries by k-means over latents x [N, LATENT], book after book."""
        for book in range(CODEBOOKS):
            self.embed[book] = x[torch.randint(len(x), (CODEBOOK_SIZE,), device=x.device)]
            for _ in range(rounds):
                codes = self.nearest(book, x)
                self._move(book, x, codes, decay=0.0)
                self._revive(book, x, torch.ones((), dtype=torch.bool, device=x.device))
            x = x - self.embed[book][self.nearest(book, x)]

    def look_up(self, codes: torch.Tensor) -> torch.Tensor:  # [B, T, CODEBOOKS] -> [B, T, LATENT]
        return sum(self.embed[book][codes[..., book]] for book in range(CODEBOOKS))

    def forward(self, z: torch.Tensor, revive: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Quantise z [B, T, LATENT] -> (sum of eight entries, sum of the first TELLING, commitment loss).

        Both sums pass gradients straight through to z. revive: bool tensor; True moves rarely used entries.
        """
        left = z.reshape(-1, LATENT).float()
        commitment, telling = left.new_zeros(()), z
        for book in range(CODEBOOKS):
            with torch.no_grad():
                codes = self.nearest(book, left)
                entries = self.embed[book][codes]
                if self.training:
                    self._move(book, left.detach(), codes, _DECAY)
                    self._revive(book, left.detach(), revive)
            commitment = commitment + F.mse_loss(left, entries)
            left = left - entries
            if book + 1 == TELLING:
                telling = z - left.detach().view_as(z)
        return z - left.detach().view_as(z), telling, commitment / CODEBOOKS

    def _move(self, book: int, x: torch.Tensor, codes: torch.Tensor, decay: float) -> None:
        seen = torch.zeros_like(self.count[book]).index_add_(0, codes, torch.ones_like(codes, dtype=x.dtype))
        total = torch.zeros_like(self.total[book]).index_add_(0, codes, x)
        self.count[book].mul_(decay).add_(seen, alpha=1 - decay)
        self.total[book].mul_(decay).add_(total, alpha=1 - decay)
        self.embed[book] = torch.where(
            self.count[book][:, None] > 1e-4,
            self.total[book] / self.count[book].clamp_min(1e-4)[:, None],
            self.embed[book],
        )

    def _revive(self, book: int, x: torch.Tensor, allowed: torch.Tensor) -> None:
        dead = (self.count[book] < _DEAD)[:, None] & allowed
        fresh = x[torch.randint(len(x), (CODEBOOK_SIZE,), device=x.device)]
        self.embed[book] = torch.where(dead, fresh, self.embed[book])
        self.count[book] = torch.where(dead[:, 0], 1.0, self.count[book])
        self.total[book] = self.embed[book] * self.count[book][:, None]


class Codec(nn.Module):
    """wav [B, 1, 960 * T] -> (wav of the same shape, latents of the first TELLING codebooks, commitment loss)."""

    def __init__(self):
        super().__init__()
        self.acoustic_encoder = trainable(AcousticEncoder(CONFIG))
        self.fc = nn.Linear(LATENT, LATENT)
        self.books = Books()
        self.fc2 = nn.Linear(LATENT, LATENT)
        self.acoustic_decoder = trainable(AcousticDecoder(CONFIG))

    def latents(self, wav: torch.Tensor) -> torch.Tensor:  # [B, 1, S] -> [B, T, LATENT]
        return self.fc(self.acoustic_encoder(wav).transpose(1, 2))

    def fix_codes(self) -> None:
        """Freeze everything that decides a sound's codes."""
        for part in (self.acoustic_encoder, self.fc):
            part.requires_grad_(False)
        self.books.eval()

    @torch.no_grad()
    def begin_books(self, wav: torch.Tensor, at_once: int) -> None:
        """Initialise the codebooks from latents of wav [B, 1, S], `at_once` a time, normalised to mean 0 and size 1."""
        z = torch.cat([self.latents(part).flatten(0, 1) for part in wav.split(at_once)]).float()
        mean, size = z.mean(0), z.std()
        self.fc2.bias += self.fc2.weight @ mean
        self.fc2.weight *= size
        self.fc.bias.copy_((self.fc.bias - mean) / size)
        self.fc.weight /= size
        self.books.begin((z - mean) / size)

    def forward(
        self, wav: torch.Tensor, revive: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the codec. `revive`: as in Books; None: the latents bypass the codebooks."""
        z = self.latents(wav)
        z, telling, commitment = (z, z, z.new_zeros(())) if revive is None else self.books(z, revive)
        return self._speak(z), telling, commitment

    def decode(self, codes: torch.Tensor) -> torch.Tensor:  # [B, T, CODEBOOKS] -> [B, 1, 960 * T]
        return self._speak(self.books.look_up(codes))

    def _speak(self, z: torch.Tensor) -> torch.Tensor:
        return self.acoustic_decoder(self.fc2(z).transpose(1, 2))


_AFTER_CODES = ("fc2.", "acoustic_decoder.")
_CONVOLUTIONS = ("acoustic_encoder.", "acoustic_decoder.")


def canonical(codec: Codec) -> dict[str, torch.Tensor]:
    """Return every tensor of transformers' class, in fp32 on the CPU, with weight norm folded."""
    plain = Codec()
    plain.load_state_dict({name: tensor.detach().float().cpu() for name, tensor in codec.state_dict().items()})
    for module in list(plain.modules()):
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            remove_parametrizations(module, "weight")
    found = {n: t.clone() for n, t in plain.state_dict().items() if n.startswith(_CONVOLUTIONS)}
    width, extra = CONFIG.hidden, CONFIG.hidden - LATENT
    found |= {
        "fc.weight": F.pad(plain.fc.weight.data, (0, extra, 0, extra)),
        "fc.bias": F.pad(plain.fc.bias.data, (0, extra)),
    }
    found |= {"fc2.weight": F.pad(plain.fc2.weight.data, (0, extra)), "fc2.bias": plain.fc2.bias.data}
    identity, books = torch.eye(width), plain.books
    for i in range(CODEBOOKS):
        at = f"quantizer.quantizers.{i}"
        found |= {f"{at}.project_in.weight": identity[:LATENT].clone(), f"{at}.project_in.bias": torch.zeros(LATENT)}
        found |= {
            f"{at}.project_out.weight": identity[:, :LATENT].clone(),
            f"{at}.project_out.bias": torch.zeros(width),
        }
        found |= {f"{at}.codebook.embed": books.embed[i].clone(), f"{at}.codebook.embed_avg": books.total[i].clone()}
        found |= {f"{at}.codebook.cluster_size": books.count[i].clone(), f"{at}.codebook.inited": torch.ones(1)}
    return found | _idle()


def _idle() -> dict[str, torch.Tensor]:
    """Return the tensors without effect: HuBERT, its encoder, and those published codecs keep for training."""
    generator = torch.Generator().manual_seed(0)
    needed = {
        name: shape for name, shape in encoder_shapes(CONFIG).items() if name.startswith(("semantic_", "encoder_s"))
    }
    needed |= {name: shape for name, shape in unused_shapes(CONFIG).items() if not name.startswith("quantizer.")}
    del needed["semantic_model.masked_spec_embed"]
    made = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in needed.items()}
    norms = [name for name in made if name.endswith("layer_norm.weight") or name.endswith("original0")]
    return made | {name: torch.ones(needed[name]) for name in norms}


def save(codec: Codec, folder: Path, minutes: float, steps: int, fixed_codes: bool = False) -> None:
    """Write the codec as a folder that the engine and transformers load. `minutes`, `steps`: of training so far.

    `fixed_codes`: tensors that decide the codes stay bit-identical to those in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(STORED).contiguous() for name, tensor in canonical(codec).items()}
    if fixed_codes:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            held = tensors.keys() & set(file.keys())  # folders of an earlier leg may lack unused tensors
            tensors |= {name: file.get_tensor(name) for name in held if not name.startswith(_AFTER_CODES)}
    assert {**encoder_shapes(CONFIG), **decoder_shapes(CONFIG)}.keys() <= tensors.keys()
    partial = folder / "model.partial"
    save_file(tensors, partial, metadata={"format": "pt", "minutes": str(minutes), "steps": str(steps)})
    partial.replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf_config(CONFIG), indent=2) + "\n", encoding="utf-8", newline="\n")


def load(codec: Codec, folder: Path) -> tuple[float, int]:
    """Restore what `save` wrote, and return the minutes and steps of training so far."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        held = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        minutes, steps = float(file.metadata()["minutes"]), int(file.metadata()["steps"])
    _set(codec, held)
    return minutes, steps


@torch.no_grad()
def _set(codec: Codec, held: dict[str, torch.Tensor]) -> None:
    for name, module in codec.named_modules():
        if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
            module.weight = held[f"{name}.weight"].to(module.bias.device)  # weight norm splits it again
            module.bias.copy_(held[f"{name}.bias"])
        elif isinstance(module, Snake):
            module.alpha.copy_(held[f"{name}.alpha"])
    for linear, name in (codec.fc, "fc"), (codec.fc2, "fc2"):
        linear.weight.copy_(held[f"{name}.weight"][:LATENT, :LATENT])
        linear.bias.copy_(held[f"{name}.bias"][:LATENT])
    for i in range(CODEBOOKS):
        at = f"quantizer.quantizers.{i}.codebook"
        codec.books.embed[i].copy_(held[f"{at}.embed"])
        codec.books.count[i].copy_(held[f"{at}.cluster_size"])
    codec.books.total.copy_(codec.books.embed * codec.books.count[..., None])
