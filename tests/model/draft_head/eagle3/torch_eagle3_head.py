"""An EAGLE-3 head in PyTorch, written from the published tensors alone: the tests' reference."""

from tests.lazy import torch


class TorchHead:
    """A head of the published names.

    Args:
        tensors: of its file, by name.
        config: the object of its config.json.
        embedding: the model's, for a head without one.
    """

    def __init__(self, tensors, config, embedding=None):
        self.w, self.config = tensors, config
        self.embedding = tensors.get("embed_tokens.weight", embedding)

    def features(self, states):
        """Of the model's three hidden states ``[T, E]`` each."""
        if self.config["fc_norm"]:
            states = [self._norm(x, f"fc_norm.{i}") for i, x in enumerate(states)]
        joined = torch.cat(states, -1)
        if self.config["norm_before_fc"]:
            joined = self._norm(joined, "input_norm")
        return joined @ self.w["fc.weight"].T

    def teacher_forced(self, features, token_ids):
        """The output behind the final norm at positions 1 to T - 1."""
        keys, values = self._no_pair()
        outputs = []
        for p in range(1, len(token_ids)):
            normed, _, keys, values = self._step(features[p - 1], token_ids[p], p, keys, values)
            outputs.append(normed)
        return torch.stack(outputs)

    def drafts(self, features, token_ids, count):
        """The tokens guessed behind all of these, whose last has no feature yet."""
        keys, values = self._no_pair()
        normed = back = features[0]
        for p in range(1, len(token_ids)):
            normed, back, keys, values = self._step(features[p - 1], token_ids[p], p, keys, values)
        p, guesses = len(token_ids) - 1, []
        for _ in range(count):
            best = int((self.w["lm_head.weight"] @ normed).argmax())
            guesses.append(best + int(self.w["d2t"][best]))
            p += 1
            normed, back, keys, values = self._step(back, guesses[-1], p, keys, values)
        return guesses

    def _no_pair(self):
        shape = (1, self.config["num_key_value_heads"], self.config["head_dim"])
        return torch.zeros(shape), torch.zeros(shape)

    def _step(self, feature, token_id, position, keys, values):
        """One pair: outputs, and the keys and values with its own."""
        layer, D = "midlayer.", self.config["head_dim"]
        hidden = self._norm(feature, layer + "hidden_norm")
        pair = torch.cat([self._norm(self.embedding[token_id], layer + "input_layernorm"), hidden])
        q, k, v = (
            (self.w[f"{layer}self_attn.{name}_proj.weight"] @ pair).reshape(-1, D) for name in "qkv"
        )
        q, k = self._rotated(q, position), self._rotated(k, position)
        keys, values = torch.cat([keys, k[None]]), torch.cat([values, v[None]])
        group = len(q) // len(k)
        heads = []
        for h in range(len(q)):
            weights = torch.softmax(keys[:, h // group] @ q[h] * D**-0.5, 0)
            heads.append(weights @ values[:, h // group])
        residual = hidden if self.config["norm_before_residual"] else feature
        residual = residual + self.w[layer + "self_attn.o_proj.weight"] @ torch.cat(heads)
        x = self._norm(residual, layer + "post_attention_layernorm")
        gate = torch.nn.functional.silu(self.w[layer + "mlp.gate_proj.weight"] @ x)
        inner = gate * (self.w[layer + "mlp.up_proj.weight"] @ x)
        residual = residual + self.w[layer + "mlp.down_proj.weight"] @ inner
        normed = self._norm(residual, "norm")
        return normed, normed if self.config["norm_output"] else residual, keys, values

    def _norm(self, x, name):
        root = torch.sqrt((x * x).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x / root * self.w[name + ".weight"]

    def _rotated(self, x, position):
        half = self.config["head_dim"] // 2
        angles = position / self.config["rope_theta"] ** (torch.arange(half) / half)
        cos, sin = torch.cos(angles), torch.sin(angles)
        first, second = x[:, :half], x[:, half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
