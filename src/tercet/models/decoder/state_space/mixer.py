"""A Mamba-2 state space in a decoder's layer (arXiv:2405.21060), in torch.

Of a head's input x_t [P], its time step d_t and its group's B_t and C_t [N], all of one position:
S_t = exp(d_t A) S_(t-1) + d_t x_t B_t^T, and y_t = S_t C_t + D x_t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tercet.models.architecture import Architecture
from tercet.models.decoder.config import ACTIVATIONS, DecoderConfig, StateSpaceConfig
from tercet.models.decoder.linear import Linear, load_linear
from tercet.models.decoder.state_space.states import LayerState
from tercet.models.decoder.weight_reader import WeightReader

# positions at once: what is quadratic in them costs what the rest does
_CHUNK = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class StateSpaceMixer:
    """The weights of one layer's.

    Attributes:
        config: sizes and factors.
        activation: behind the convolution, a key of ACTIVATIONS.
        project: the input projection.
        factors: of its rows [rows]; None where all are 1.
        convolution: weight [channels, 1, width], one filter a channel.
        convolution_bias: [channels]; None without.
        rate: A, below 0, float32 [H].
        step_bias: of the time steps before softplus, float32 [H].
        skip: D, float32 [H].
        norm: weight [I] of the gated RMSNorm; None without.
        epsilon: of the norm.
        output: the output projection.
    """

    config: StateSpaceConfig
    activation: str
    project: Linear
    factors: Tensor | None
    convolution: Tensor
    convolution_bias: Tensor | None
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    norm: Tensor | None
    epsilon: float
    output: Linear

    def __call__(self, x: Tensor, state: LayerState) -> Tensor:
        """x [B T, hidden], T positions of each sequence, to [B T, hidden]; the state goes on."""
        config, batch = self.config, len(state.states)
        projected = self.project(x if config.input_factor == 1 else x * config.input_factor)
        if self.factors is not None:
            projected = projected * self.factors
        gate, channels, steps = torch.split(
            projected.view(batch, -1, config.rows), [config.inner, config.channels, config.heads], 2
        )
        inputs, b, c = torch.split(
            self._convolve(channels, state.inputs),
            [config.inner, *2 * [config.groups * config.state]],
            2,
        )
        grouped = *steps.shape[:2], config.groups
        heads = inputs.reshape(*grouped, -1, config.head_dim).float()
        b, c = (part.reshape(*grouped, 1, config.state).float() for part in (b, c))
        steps = functional.softplus(steps.float() + self.step_bias).view(*grouped, -1)
        found = torch.cat(
            [
                self._scan(*parts, states=state.states)
                for parts in zip(
                    *(torch.split(part, _CHUNK, 1) for part in (heads, steps, b, c)), strict=True
                )
            ],
            1,
        )
        skip = self.skip.view(config.groups, -1, 1)
        found = (found + skip * heads).flatten(2)
        made = self.output(self._gate(found, gate.float()).to(x.dtype).flatten(0, 1))
        return made if config.output_factor == 1 else made * config.output_factor

    def _convolve(self, channels: Tensor, before: Tensor) -> Tensor:
        """Channels [B, T, C] over positions; `before` [B, C, width - 1] goes on."""
        seen = torch.cat((before, channels.transpose(1, 2)), -1)
        before.copy_(seen[..., seen.shape[-1] - before.shape[-1] :])
        found = functional.conv1d(
            seen, self.convolution, self.convolution_bias, groups=self.config.channels
        )
        return ACTIVATIONS[self.activation](found).transpose(1, 2)

    def _scan(self, x: Tensor, steps: Tensor, b: Tensor, c: Tensor, states: Tensor) -> Tensor:
        """S_t C_t [B, T, G, R, P] of few positions, all at once; the states go on.

        Args:
            x: [B, T, G, R, P], R heads a group.
            steps: [B, T, G, R].
            b, c: [B, T, G, 1, N].
            states: [B, H, P, N].
        """
        config = self.config
        x, b, c = (part.permute(0, 2, 3, 1, 4) for part in (x, b, c))
        steps = steps.permute(0, 2, 3, 1)
        held = states.view(-1, config.groups, config.heads // config.groups, *states.shape[2:])
        # differences of long sums, of which float32 would keep too little
        sums = (steps * self.rate.view(config.groups, -1, 1)).double().cumsum(-1)
        apart = sums.unsqueeze(-1) - sums.unsqueeze(-2)
        later = torch.ones(apart.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        decay = apart.masked_fill_(later, -torch.inf).exp_().float()
        weights = (c @ b.transpose(-1, -2)) * decay * steps.unsqueeze(-2)
        since_start = sums.exp().float().unsqueeze(-1)
        found = weights @ x + since_start * (c @ held.transpose(-1, -2))
        until_end = (sums[..., -1:] - sums).exp().float() * steps
        held.mul_(since_start[..., -1:, :])
        held.add_((x * until_end.unsqueeze(-1)).transpose(-1, -2) @ b)
        return found.permute(0, 3, 1, 2, 4)

    def _gate(self, found: Tensor, gate: Tensor) -> Tensor:
        """What the heads give [B, T, I] times silu(gate), normalized before or behind it."""
        gate = functional.silu(gate)
        if self.norm is None:
            return found * gate
        if self.config.norm_first:
            return self._normalize(found, self.norm) * gate
        return self._normalize(found * gate, self.norm)

    def _normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        groups = x.view(*x.shape[:2], self.config.groups, -1)
        return functional.rms_norm(groups, groups.shape[-1:], eps=self.epsilon).flatten(2) * weight


def load_state_space(
    reader: WeightReader, architecture: Architecture, config: DecoderConfig, layer: int
) -> StateSpaceMixer | None:
    """That of layer `layer` of a checkpoint; None where the architecture has none."""
    sizes, keys = config.state_space, architecture.state_space
    if sizes is None or keys is None:
        return None
    name, heads = f"{architecture.layer.format(layer)}.{keys.module}", (sizes.heads,)
    factors = None
    if any(factor != 1 for factor in sizes.factors):
        shared = sizes.groups * sizes.state
        counts = torch.tensor([sizes.inner, sizes.inner, shared, shared, sizes.heads])
        factors = torch.tensor(sizes.factors, dtype=torch.float32).repeat_interleave(counts)
        factors = factors.to(reader.device, reader.dtype)
    bias = None
    if sizes.convolution_bias:
        bias = reader.tensor(f"{name}.conv1d.bias", (sizes.channels,))
    norm = None
    if sizes.normalized:
        norm = reader.tensor(f"{name}.norm.weight", (sizes.inner,), torch.float32)
    return StateSpaceMixer(
        config=sizes,
        activation=config.activation,
        project=load_linear(reader, [(f"{name}.in_proj", sizes.rows)], config.hidden, sizes.bias),
        factors=factors,
        convolution=reader.tensor(f"{name}.conv1d.weight", (sizes.channels, 1, sizes.width)),
        convolution_bias=bias,
        rate=-reader.tensor(f"{name}.A_log", heads, torch.float32).exp(),
        step_bias=reader.tensor(f"{name}.dt_bias", heads, torch.float32),
        skip=reader.tensor(f"{name}.D", heads, torch.float32),
        norm=norm,
        epsilon=config.norm_epsilon,
        output=load_linear(
            reader, [(f"{name}.out_proj", config.hidden)], sizes.inner, sizes.output_bias
        ),
    )
