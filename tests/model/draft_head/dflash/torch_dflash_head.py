"""A DFlash head in PyTorch, written from the paper with transformers' modules: the reference."""

from tests.lazy import torch


class TorchDFlashHead:
    """A head of the published names.

    Args:
        tensors: of its file, by name.
        config: the object of its config.json.
        embedding: the model's, for a head without one.
        vocabulary: the model's head, for a head without one.
    """

    def __init__(self, tensors, config, embedding, vocabulary):
        from transformers.models.qwen3 import modeling_qwen3

        self.w, self.modules = tensors, modeling_qwen3
        self.embedding = tensors.get("embed_tokens.weight", embedding)
        self.vocabulary = tensors.get("lm_head.weight", vocabulary)
        self.mask = config["dflash_config"]["mask_token_id"]
        self.config = modeling_qwen3.Qwen3Config(
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        )
        self.rotary = modeling_qwen3.Qwen3RotaryEmbedding(self.config)

    def features(self, states):
        """Of the model's hidden states ``[T, E]`` each."""
        return self._norm(torch.cat(states, -1) @ self.w["fc.weight"].T, "hidden_norm")

    def hidden(self, features, newest, count):
        """The normed states of the newest token and ``count`` masks, behind known features."""
        known = len(features)
        cos, sin = self.rotary(features, torch.arange(known + 1 + count)[None])
        x = self.embedding[torch.tensor([newest] + [self.mask] * count)]
        for index in range(self.config.num_hidden_layers):
            layer = f"layers.{index}."
            normed = self._norm(x, layer + "input_layernorm")
            context = torch.cat([features, normed])
            q = self._heads(normed, layer, "q")
            k, v = (self._heads(context, layer, name) for name in "kv")
            q = self._norm(q, layer + "self_attn.q_norm").transpose(0, 1)[None]
            k = self._norm(k, layer + "self_attn.k_norm").transpose(0, 1)[None]
            turn = self.modules.apply_rotary_pos_emb
            q, _ = turn(q, q, cos[:, known:], sin[:, known:])
            _, k = turn(k, k, cos, sin)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, k, v.transpose(0, 1)[None], enable_gqa=True
            )
            mixed = mixed[0].transpose(0, 1).reshape(len(x), -1)
            x = x + mixed @ self.w[layer + "self_attn.o_proj.weight"].T
            x = x + self._mlp(layer)(self._norm(x, layer + "post_attention_layernorm"))
        return self._norm(x, "norm")

    def drafts(self, features, token_ids, count):
        """The tokens guessed behind all of these, whose last has no feature yet."""
        known = features[: len(token_ids) - 1]
        normed = self.hidden(known, token_ids[-1], count)[1:]
        best = (normed @ self.vocabulary.T).argmax(-1)
        if "lm_head.weight" in self.w:
            best = best + self.w["d2t"][best]
        return best.tolist()

    def _heads(self, x, layer, name):
        projected = x @ self.w[f"{layer}self_attn.{name}_proj.weight"].T
        return projected.reshape(len(x), -1, self.config.head_dim)

    def _norm(self, x, name):
        weight = self.w[name + ".weight"]
        norm = self.modules.Qwen3RMSNorm(len(weight), self.config.rms_norm_eps)
        norm.load_state_dict({"weight": weight})
        return norm(x).detach()

    def _mlp(self, layer):
        mlp = self.modules.Qwen3MLP(self.config)
        names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
        mlp.load_state_dict({name: self.w[f"{layer}mlp.{name}"] for name in names})
        return mlp.requires_grad_(False)
