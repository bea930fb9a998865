"""The network of Kokoro-82M (hexgrad, Apache-2.0), batched over sentences.

Written after the published torch modules (StyleTTS 2 with an iSTFTNet decoder). Sentences of a batch have the same
number of tokens in `Prosody` and of frames in `Decoder`, so nothing is padded and no norm sees padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

STYLE = 128  # each half of a voice's vector: sound first, prosody second
FRAME = 600  # samples of a frame, of 24 kHz
_HARMONICS, _SINE, _VOICED = 9, 0.1, 10.0
_FFT, _HOP = 20, 5


class AdaIN(nn.Module):
    """Instance norm whose scale and shift come from the style: [B, 128] -> both [B, C, 1]."""

    def __init__(self, width: int):
        super().__init__()
        self.fc = nn.Linear(STYLE, 2 * width)

    def forward(self, style: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.fc(style)[:, :, None].chunk(2, 1)


def _normed(x, gamma, beta):
    variance, mean = torch.var_mean(x.float(), 2, correction=0, keepdim=True)
    return (1 + gamma) * ((x - mean) * (variance + 1e-5).rsqrt()) + beta


def _leaky(x, gamma, beta):
    return F.leaky_relu(_normed(x, gamma, beta), 0.2).to(x.dtype)


def _snake(x, gamma, beta, alpha):
    y = _normed(x, gamma, beta)
    return (y + torch.sin(alpha * y).square() / alpha).to(x.dtype)


class Block(nn.Module):
    """Residual block with AdaIN; may double the length."""

    def __init__(self, wide: int, width: int, upsample: bool = False):
        super().__init__()
        self.norm1, self.norm2 = AdaIN(wide), AdaIN(width)
        self.conv1, self.conv2 = nn.Conv1d(wide, width, 3, padding=1), nn.Conv1d(width, width, 3, padding=1)
        if upsample:
            self.pool = nn.ConvTranspose1d(wide, wide, 3, 2, 1, 1, groups=wide)
        if wide != width:
            self.conv1x1 = nn.Conv1d(wide, width, 1, bias=False)

    def forward(self, x, style):
        y = _leaky(x, *self.norm1(style))
        if hasattr(self, "pool"):
            y, x = self.pool(y), x.repeat_interleave(2, 2)
        y = self.conv1(y)
        y = self.conv2(_leaky(y, *self.norm2(style)))
        return (y + (self.conv1x1(x) if hasattr(self, "conv1x1") else x)) * 0.5**0.5


class SnakeBlock(nn.Module):
    """Three pairs of convolutions with Snake activations."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        half = kernel // 2
        self.convs1 = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=d * half, dilation=d) for d in (1, 3, 5))
        self.convs2 = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=half) for _ in range(3))
        self.adain1 = nn.ModuleList(AdaIN(width) for _ in range(3))
        self.adain2 = nn.ModuleList(AdaIN(width) for _ in range(3))
        self.alpha1 = nn.ParameterList(torch.ones(1, width, 1) for _ in range(3))
        self.alpha2 = nn.ParameterList(torch.ones(1, width, 1) for _ in range(3))

    def forward(self, x, style):
        for i in range(3):
            y = self.convs1[i](SnakeBlock.activate(x, *self.adain1[i](style), self.alpha1[i]))
            x = x + self.convs2[i](SnakeBlock.activate(y, *self.adain2[i](style), self.alpha2[i]))
        return x

    activate = staticmethod(_snake)


def compile_activations() -> None:
    """Compile this process's activations from now on: one pass for the norm, one for the rest."""
    SnakeBlock.activate = staticmethod(torch.compile(_snake, dynamic=True))


class Bert(nn.Module):
    """ALBERT with one layer applied twelve times: ids [B, N] -> [B, N, 768]."""

    def __init__(self, vocab: int):
        super().__init__()
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(vocab, 128), "position_embeddings": nn.Embedding(512, 128),
            "token_type_embeddings": nn.Embedding(2, 128), "LayerNorm": nn.LayerNorm(128, 1e-12),
        })  # fmt: skip
        attention = nn.ModuleDict({name: nn.Linear(768, 768) for name in ("query", "key", "value", "dense")})
        attention["LayerNorm"] = nn.LayerNorm(768, 1e-12)
        layer = nn.ModuleDict({"attention": attention, "ffn": nn.Linear(768, 2048), "ffn_output": nn.Linear(2048, 768)})
        layer["full_layer_layer_norm"] = nn.LayerNorm(768, 1e-12)
        groups = nn.ModuleList([nn.ModuleDict({"albert_layers": nn.ModuleList([layer])})])
        self.encoder = nn.ModuleDict(
            {"embedding_hidden_mapping_in": nn.Linear(128, 768), "albert_layer_groups": groups}
        )

    def forward(self, ids):
        table = self.embeddings
        x = table["word_embeddings"](ids) + table["position_embeddings"].weight[: ids.shape[1]]
        x = table["LayerNorm"](x + table["token_type_embeddings"].weight[0])
        x = self.encoder["embedding_hidden_mapping_in"](x)
        layer = self.encoder["albert_layer_groups"][0]["albert_layers"][0]
        attention = layer["attention"]
        for _ in range(12):
            q, k, v = (attention[n](x).unflatten(2, (12, 64)).transpose(1, 2) for n in ("query", "key", "value"))
            seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = attention["LayerNorm"](x + attention["dense"](seen))
            y = layer["ffn_output"](F.gelu(layer["ffn"](x), approximate="tanh"))
            x = layer["full_layer_layer_norm"](x + y)
        return x


def _lstm(width: int) -> nn.LSTM:
    return nn.LSTM(width, 256, batch_first=True, bidirectional=True)


class StyleNorm(nn.Module):
    """Layer norm whose scale and shift come from the style."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(STYLE, 1024)

    def forward(self, x, style):  # [B, N, 512]
        gamma, beta = self.fc(style)[:, None].chunk(2, 2)
        return (1 + gamma) * F.layer_norm(x, (512,)) + beta


class Predictor(nn.Module):
    """Durations, pitch and loudness."""

    def __init__(self):
        super().__init__()
        parts = [_lstm(512 + STYLE) if i % 2 == 0 else StyleNorm() for i in range(6)]
        self.text_encoder = nn.ModuleDict({"lstms": nn.ModuleList(parts)})
        self.lstm, self.shared = _lstm(512 + STYLE), _lstm(512 + STYLE)
        self.duration_proj = nn.ModuleDict({"linear_layer": nn.Linear(512, 50)})
        self.F0 = nn.ModuleList([Block(512, 512), Block(512, 256, True), Block(256, 256)])
        self.N = nn.ModuleList([Block(512, 512), Block(512, 256, True), Block(256, 256)])
        self.F0_proj, self.N_proj = nn.Conv1d(256, 1, 1), nn.Conv1d(256, 1, 1)

    def durations(self, x, style):  # [B, N, 512] -> ([B, N, 640], frames [B, N])
        wide = style[:, None].expand(-1, x.shape[1], -1)
        for i in range(0, 6, 2):
            x, _ = self.text_encoder["lstms"][i](torch.cat([x, wide], 2))
            x = self.text_encoder["lstms"][i + 1](x, style)
        x = torch.cat([x, wide], 2)
        y, _ = self.lstm(x)
        return x, self.duration_proj["linear_layer"](y).sigmoid().sum(2)

    def curves(self, x, style):  # [B, T, 640] -> pitch in Hz, loudness, both [B, 2 T]
        x = self.shared(x)[0].transpose(1, 2)
        found = []
        for blocks, last in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            y = x
            for block in blocks:
                y = block(y, style)
            found.append(last(y)[:, 0])
        return found


class TextEncoder(nn.Module):
    """ids [B, N] -> [B, N, 512]."""

    def __init__(self, vocab: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 512)
        norms = [nn.ParameterDict({"gamma": torch.ones(512), "beta": torch.zeros(512)}) for _ in range(3)]
        self.cnn = nn.ModuleList(nn.ModuleList([nn.Conv1d(512, 512, 5, padding=2), norm]) for norm in norms)
        self.lstm = _lstm(512)

    def forward(self, ids):
        x = self.embedding(ids).transpose(1, 2)
        for conv, norm in self.cnn:
            x = F.layer_norm(conv(x).transpose(1, 2), (512,), norm["gamma"], norm["beta"]).transpose(1, 2)
            x = F.leaky_relu(x, 0.2)
        return self.lstm(x.transpose(1, 2))[0]


class Generator(nn.Module):
    """Features and pitch to samples: harmonics and noise through upsampling blocks, then an inverse STFT."""

    def __init__(self):
        super().__init__()
        self.m_source = nn.ModuleDict({"l_linear": nn.Linear(_HARMONICS, 1)})
        self.ups = nn.ModuleList([nn.ConvTranspose1d(512, 256, 20, 10, 5), nn.ConvTranspose1d(256, 128, 12, 6, 3)])
        self.noise_convs = nn.ModuleList([nn.Conv1d(22, 256, 12, 6, 3), nn.Conv1d(22, 128, 1)])
        self.noise_res = nn.ModuleList([SnakeBlock(256, 7), SnakeBlock(128, 11)])
        self.resblocks = nn.ModuleList(SnakeBlock(width, kernel) for width in (256, 128) for kernel in (3, 7, 11))
        self.conv_post = nn.Conv1d(128, _FFT + 2, 7, padding=3)
        self.register_buffer("window", torch.hann_window(_FFT), persistent=False)

    def source(self, pitch: torch.Tensor) -> torch.Tensor:
        """pitch [B, T] at 80 a second -> spectrum of the source [B, 22, 60 T + 1]."""
        count = pitch.shape[1] * FRAME // 2
        wanted = pitch[:, None] * torch.arange(1, _HARMONICS + 1, device=pitch.device)[:, None]
        steps = wanted / 24_000 % 1
        phase = F.interpolate(steps.cumsum(2) * (FRAME // 2), size=count, mode="linear")
        voiced = (pitch > _VOICED).float()[:, None].repeat_interleave(FRAME // 2, 2)
        sines = torch.sin(2 * torch.pi * phase) * _SINE * voiced  # without noise, as in the ONNX file
        made = self.m_source["l_linear"](sines.transpose(1, 2))[..., 0].tanh()
        found = torch.stft(made, _FFT, _HOP, window=self.window, return_complex=True)
        return torch.cat([found.abs(), found.angle()], 1)

    def forward(self, x, style, pitch):
        source = self.source(pitch).to(x.dtype)
        for i in range(2):
            told = self.noise_res[i](self.noise_convs[i](source), style)
            x = self.ups[i](F.leaky_relu(x, 0.1))
            if i == 1:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + told
            x = sum(self.resblocks[3 * i + j](x, style) for j in range(3)) / 3
        x = self.conv_post(F.leaky_relu(x)).float()
        size, phase = x[:, : _FFT // 2 + 1].exp(), x[:, _FFT // 2 + 1 :].sin()
        return torch.istft(torch.polar(size, phase), _FFT, _HOP, window=self.window)


class Decoder(nn.Module):
    """Text features [B, 512, T], pitch and loudness [B, 2 T] -> wav [B, 600 T]."""

    def __init__(self):
        super().__init__()
        self.encode = Block(514, 1024)
        self.decode = nn.ModuleList([*(Block(1090, 1024) for _ in range(3)), Block(1090, 512, True)])
        self.F0_conv, self.N_conv = nn.Conv1d(1, 1, 3, 2, 1), nn.Conv1d(1, 1, 3, 2, 1)
        self.asr_res = nn.ModuleList([nn.Conv1d(512, 64, 1)])
        self.generator = Generator()

    def to_half(self) -> None:
        """Convert convolutions to float16. Styles, statistics, the source and the spectra keep full precision."""
        window = self.generator.window
        self.half()
        for module in self.modules():
            if isinstance(module, AdaIN):
                module.float()
        self.generator.m_source.float()
        self.generator.window = window

    def forward(self, x, pitch, loudness, style):
        x = x.to(self.asr_res[0].weight.dtype)
        curves = self.F0_conv(pitch[:, None].to(x.dtype)), self.N_conv(loudness[:, None].to(x.dtype))
        told = torch.cat([self.asr_res[0](x), *curves], 1)
        x = self.encode(torch.cat([x, *curves], 1), style)
        for block in self.decode:
            x = block(torch.cat([x, told], 1), style)
        return self.generator(x, style, pitch)


class Kokoro(nn.Module):
    """The whole network."""

    def __init__(self, vocab: int = 178):
        super().__init__()
        self.bert, self.bert_encoder = Bert(vocab), nn.Linear(768, 512)
        self.predictor, self.text_encoder, self.decoder = Predictor(), TextEncoder(vocab), Decoder()

    @torch.no_grad()
    def read(self, ids, voice, speed):
        """ids [B, N], voice [B, 256], speed [B] -> (inputs of `say`: [B, N, 512] and [B, N, 640]; frames [B, N])."""
        x, frames = self.predictor.durations(self.bert_encoder(self.bert(ids)), voice[:, STYLE:])
        return self.text_encoder(ids), x, (frames / speed[:, None]).round().clamp_min(1).long()

    @torch.no_grad()
    def say(self, told, prosody, voice, pitch=None):
        """told [B, T, 512], prosody [B, T, 640], pitch [B]: a factor -> wav [B, 600 T]."""
        f0, loudness = self.predictor.curves(prosody, voice[:, STYLE:])
        return self.decoder(
            told.transpose(1, 2), f0 if pitch is None else f0 * pitch[:, None], loudness, voice[:, :STYLE]
        )
